"""The finished models on the test sets: translations and their scores. What is unchanged is not done again.

On test sets of text: the perplexity of language models, of other models the loss of their objective.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any

import transformers
from accelerate import Accelerator

from hf_mlnmt.data.tokenizer import Tokenizers
from hf_mlnmt.evaluation import Results, read_results, score_protocols, versions
from hf_mlnmt.evaluation.perplexity import perplexity
from hf_mlnmt.evaluation.scores import with_arrow
from hf_mlnmt.files import write_json, write_text
from hf_mlnmt.model_folder import RESULTS, auto_class_of, load_model
from hf_mlnmt.table import Number, Table
from hf_mlnmt.training import checkpoints
from hf_mlnmt.training.dev import DevSet
from hf_mlnmt.training.objectives import Objective

if TYPE_CHECKING:
    from hf_mlnmt.training.preparation import RawPairs

MADE_OF = "made_of.json"


def digest(*parts: Any) -> str:
    """One short text that is equal for equal values."""
    return blake2b(json.dumps(parts, sort_keys=True, default=str).encode(), digest_size=16).hexdigest()


class MadeOf:
    """What each product of a finished run was made of, in the run's folder: {product: digest}.

    Products are `model/<name>`, `translations/<file>` and `scores/<file>`. A product whose digest is as it was is
    taken as it is. `tests` is the digest of all test sets' text, to see at the start whether one of them changed.
    """

    def __init__(self, output: Path) -> None:
        self.path = output / MADE_OF
        try:
            self.digests = json.loads(self.path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            self.digests = {}

    def same(self, product: str, value: str) -> bool:
        """Whether a product was made of just this."""
        return self.digests.get(product) == value

    def note(self, product: str, value: str) -> None:
        """Keep what a product was made of; called when it is there."""
        if not self.same(product, value):
            self.digests[product] = value
            write_json(self.path, self.digests)


def digest_of_model(folders: Sequence[Path], generation: Any) -> str:
    """Of what a model folder is made: checkpoints, by their lists of checksums, and the decoding."""
    manifests = [(folder / checkpoints.MANIFEST).read_text(encoding="utf-8") for folder in folders]
    return digest(manifests, {} if generation is None else generation.to_diff_dict())


def digest_of_tests(tests: Sequence[RawPairs]) -> str:
    """A digest of the names and the text of all test sets: equal where nothing changed."""
    return digest([[test.name, test.sources, test.references, test.target_language] for test in tests])


class Scoring:
    """Translates and scores the test sets with one model after the other.

    Args:
        output: the run's folder, in which the model folders lie; outputs are kept in its translations/.
        tell: hears what is being done.
    """

    def __init__(self, output: Path, made: MadeOf, tell: Callable[[str], None]) -> None:
        self.output, self.made, self.tell = output, made, tell

    def score(self, model: Path, tests: Sequence[RawPairs], name: str, facts: Mapping[str, Any]) -> Results:
        """Write model/results.json: every test set under both protocols. `facts`: the other fields of Results."""
        file = model / RESULTS
        before = read_results(file) if file.is_file() else None
        results = new_results(name, facts)
        for test in tests:
            outputs = self._outputs(model, test)
            product = f"scores/{test.name}.{model.name}"
            made_of = digest(outputs, test.references, test.language, versions())
            if before is not None and self.made.same(product, made_of) and test.name in before.scores:
                results.scores[test.name] = before.scores[test.name]
                results.outputs[test.name] = before.outputs[test.name]
            else:
                results.add_scores(test.name, score_protocols(outputs, test.references, language=test.language))
            results.write(file)
            self.made.note(product, made_of)
        return results

    def _outputs(self, model: Path, test: RawPairs) -> list[str]:
        """The translations: those of before if nothing that they depend on changed."""
        from hf_mlnmt.generation import TranslationPipeline

        kept = self.output / "translations" / f"{test.name}.{model.name}.{test.language}"
        made_of = self.made.digests.get(f"model/{model.name}")
        made_of = digest(made_of, test.sources, *asked(test).values(), test.language, versions())
        if kept.is_file():
            outputs = kept.read_text(encoding="utf-8").split("\n")[:-1]
            if self.made.same(f"translations/{kept.name}", digest(made_of, outputs)):
                return outputs
        self.tell(f"translating {test.name} ({len(test.sources)} sentences) with {model}")
        translate = TranslationPipeline.from_pretrained(str(model))
        options = {name: language for name, language in asked(test).items() if language}
        if not options and translate.languages:  # the recipe names no codes, but its tokenizer.path has them
            options = {"target_language": test.language}
        outputs = [" ".join(line.splitlines()) for line in translate(test.sources, **options)]
        write_text(kept, "".join(line + "\n" for line in outputs))
        self.made.note(f"translations/{kept.name}", digest(made_of, outputs))
        return outputs


def asked(test: RawPairs) -> dict[str, str | None]:
    """What a model of several languages is told."""
    names = {"target_language": test.target_language}
    return {**names, "source_language": test.source_language} if test.source_language else names


def new_results(name: str, facts: Mapping[str, Any]) -> Results:
    """Results (see evaluation/results.py) without scores; fields that it does not know go to the end."""
    known = {"data", "seed", "budget", "command", "parameters", "steps_per_second", "decoding"}
    extra = {key: value for key, value in facts.items() if key not in known}
    return Results(name, **{key: value for key, value in facts.items() if key in known}, extra=extra)


def table_of(results: Mapping[str, Results]) -> Table:
    """One row for each model and test set, with the scores of both protocols; signatures are in the results files."""
    scored = list(
        dict.fromkeys(
            (protocol, metric)
            for each in results.values()
            for protocols in each.scores.values()
            for protocol, metrics in protocols.items()
            for metric in metrics
        )
    )
    rows = []
    for test in dict.fromkeys(test for each in results.values() for test in each.scores):
        for model, each in results.items():
            scores = each.scores.get(test, {})
            cells = [scores.get(protocol, {}).get(metric, {}).get("score") for protocol, metric in scored]
            rows.append([test, model, *("" if score is None else f"{score:.2f}" for score in cells)])
    numbers = [Number(f"{protocol}\n{with_arrow(metric)}") for protocol, metric in scored]
    return Table(["test set", "model", *numbers], rows, "scores", CAPTION)


CAPTION = (
    "cased: detokenised text as it is, sacreBLEU 13a; classic: lower-cased, Moses-normalised and -tokenised. "
    "95 % intervals and signatures: results.json."
)

SHOWN = ("per_subword", "per_word", "bits_per_byte", "loss", "per_predicted_token")


def score_texts(
    folders: Mapping[str, Path],
    results: Mapping[str, Results],
    objective: Objective,
    tokenizers: Tokenizers,
    tests: Sequence[RawPairs],
    encode: Callable[[str], Any],
) -> Table:
    """Write the key "perplexity" of each model's results.json: test set -> its numbers. Returns them as a table.

    Args:
        folders, results: of each finished model.
        objective: that they were trained with.
        encode: the encoded test set of a name.
    """
    rows = []
    for name, folder in folders.items():
        results[name].extra["perplexity"] = found = _score(folder, objective, tokenizers, tests, encode)
        results[name].write(folder / RESULTS)
        rows += [(test, name, numbers) for test, numbers in found.items()]
    shown = [number for number in SHOWN if any(number in numbers for _, _, numbers in rows)]
    cells = [
        [test, name, *(f"{numbers[one]:.3f}" if one in numbers else "" for one in shown)]
        for test, name, numbers in rows
    ]
    return Table(["test set", "model", *(Number(one.replace("_", " ")) for one in shown)], sorted(cells), "perplexity")


def _score(
    folder: Path, objective: Objective, tokenizers: Tokenizers, tests: Sequence[RawPairs], encode: Callable[[str], Any]
) -> dict[str, dict[str, float]]:
    """Perplexity (evaluation/perplexity.py) of a language model; of others loss and exp(loss) per predicted token."""
    auto_class = auto_class_of(folder)
    model = load_model(folder, getattr(transformers, auto_class)).eval()
    if auto_class == "AutoModelForCausalLM":
        return {test.name: perplexity(model, tokenizers, test.sources).to_dict() for test in tests}
    found = {}
    for test in tests:
        scores = DevSet(encode(test.name), objective=objective.measured()).evaluate(model, Accelerator(cpu=True))
        found[test.name] = {"loss": scores["loss"], "per_predicted_token": math.exp(scores["loss"])}
    return found
