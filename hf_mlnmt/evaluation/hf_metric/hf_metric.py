"""hf_mlnmt's scores as an `evaluate` module: `evaluate.load(str(hf_mlnmt.evaluation.METRIC_PATH))`, offline too."""

from itertools import zip_longest

import datasets
import evaluate

from hf_mlnmt.evaluation.scores import score

_DESCRIPTION = """\
BLEU, chrF and TER by sacreBLEU under one of two protocols, never mixed: 'cased' (detokenised, 13a) or
'classic' (lower-cased, Moses-normalised and -tokenised by the module itself). Raw text on both sides.
"""

_INPUTS = """
Args:
    predictions (list of str): raw, detokenised outputs.
    references (list of str, or list of lists of str): one raw reference a sentence, or a list of any number of them.
    protocol, language, metrics, bootstrap, seed: of hf_mlnmt.evaluation.score; bootstrap is 0 unless told.
Returns:
    bleu, chrf, ter (float), length_ratio (float), empty_outputs (int), protocol (str),
    signatures ({metric: str}) and ci ({metric: (low, high)}, empty without bootstrap).
"""

_CITATION = "Post 2018, A Call for Clarity in Reporting BLEU Scores, https://aclanthology.org/W18-6319"


class MlnmtScores(evaluate.Metric):
    """BLEU, chrF and TER of this package as a metric of `evaluate`; the result names the protocol."""

    def _info(self) -> evaluate.MetricInfo:
        text = datasets.Value("string")
        return evaluate.MetricInfo(
            description=_DESCRIPTION,
            citation=_CITATION,
            inputs_description=_INPUTS,
            features=[
                datasets.Features({"predictions": text, "references": datasets.Sequence(text)}),
                datasets.Features({"predictions": text, "references": text}),
            ],
        )

    def _compute(self, predictions, references, bootstrap=0, **options):  # type: ignore[no-untyped-def]
        scores = score(predictions, _by_reference(references), bootstrap=bootstrap, **options)
        return {
            **{name.lower(): metric.score for name, metric in scores.metrics.items()},
            "length_ratio": scores.length_ratio,
            "empty_outputs": scores.empty_outputs,
            "protocol": scores.protocol,
            "signatures": {name: metric.signature for name, metric in scores.metrics.items()},
            "ci": {name: metric.ci for name, metric in scores.metrics.items() if metric.ci},
        }


def _by_reference(references):  # type: ignore[no-untyped-def]
    """Transposes references from lists by sentence (`evaluate`) to lists by reference (score()), None where missing."""
    if not references or isinstance(references[0], str):
        return references
    return [list(lines) for lines in zip_longest(*references)]
