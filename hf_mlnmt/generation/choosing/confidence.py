"""Calibrates confidences (0 to 1) of translations and words, and the projected chrF of documents, on a development set.

References: Zadrozny and Elkan 2002, "Transforming Classifier Scores into Accurate Multiclass Probability Estimates"
(isotonic regression); Platt 1999, "Probabilistic Outputs for Support Vector Machines".

(1) of a translation:  the expected chrF, 0 to 1: isotonic regression of chrF on s, the mean ln P of the translation's
    subwords, end of sentence included, on the development set; linear between the knots
(2) of a word:  1 / (1 + exp(-(a m + b))),  m the least ln P of its subwords; logistic regression of whether the
    reference has the word
(3) of a document:  chrF = a m + b,  m the mean of (1) over its translations, weighted by their characters; least
    squares over the development set cut into documents of DOCUMENT sentences, as they come and sorted by (1)

All are fitted here, saved in the model's generation_config.json under "confidence", and computed by `Calibration` and
`Quality` (translating/hypotheses.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from difflib import SequenceMatcher
from pathlib import Path

import numpy as np

from hf_mlnmt.common.errors import UserError
from hf_mlnmt.common.files import keeping, write_json
from hf_mlnmt.common.languages import check_files
from hf_mlnmt.common.model_folder import GENERATION_CONFIG, check_model_folder, read_part
from hf_mlnmt.data.lines import read_lines
from hf_mlnmt.generation.translating.call import TranslationCall
from hf_mlnmt.generation.translating.hypotheses import CONFIDENCE, Calibration, Hypothesis, Quality, mean
from hf_mlnmt.generation.translating.options import DecodingOptions
from hf_mlnmt.generation.translating.pipeline import TranslationPipeline
from hf_mlnmt.generation.translating.watching import RATIO, size_of

FEWEST = 100  # least number of sentences of a development set
KNOTS = 20
DOCUMENT = 20  # sentences


def calibrate(scores: Sequence[float], qualities: Sequence[float], words: Sequence[tuple[float, bool]]) -> Calibration:
    """Fits the confidence of translations (equation 1) and that of words (equation 2) to a development set.

    Args:
        scores: mean ln P of each translation of a development set. qualities: their sentence chrF, 0 to 1.
        words: for each word of all translations the least ln P of a subword, and whether the reference has the word.
    Raises: UserError for fewer than 100 translations, or without scikit-learn.
    """
    try:
        from sklearn.isotonic import IsotonicRegression
        from sklearn.linear_model import LogisticRegression
    except ImportError as error:
        raise UserError("a calibration needs scikit-learn: pip install 'hf-mlnmt[analysis]'.") from error
    if len(scores) < FEWEST:
        raise UserError(f"{len(scores)} translations are too few to calibrate by: give {FEWEST} sentences or more.")
    steps = IsotonicRegression(y_min=0.0, y_max=1.0, out_of_bounds="clip").fit(scores, qualities)
    places = np.quantile(scores, np.linspace(0, 1, KNOTS))
    knots = np.unique(np.round(places, 4))
    least, right = np.array([least for least, _ in words])[:, None], np.array([right for _, right in words])
    a, b = 0.0, 20.0 if right.all() else -20.0
    if right.any() and not right.all():
        line = LogisticRegression().fit(least, right)
        a, b = float(line.coef_[0, 0]), float(line.intercept_[0])
    return Calibration(
        knots.tolist(), np.round(steps.predict(knots), 4).tolist(), [round(a, 4), round(b, 4)], len(scores)
    )


class _AsTheyAre:
    """Stands in for a Calibration, so that "confidences" are the scores to fit to: returns scores unchanged."""

    def of_translation(self, score: float) -> float:
        return score

    of_word = of_translation


def calibrate_folder(
    folder: Path, source: Path, reference: Path, decoding: DecodingOptions, device: str | None = None
) -> Calibration:
    """Fits confidences to the translations of a development set, and writes them into the folder's generation config,
    with the ratio of characters of its references to those of its sources, by which watching.py finds omissions.

    Raises: UserError for files of different lengths, or of fewer than 100 sentences.
    """
    check_files(check_model_folder(folder), [source], [reference], decoding.told)
    texts, references = (list(read_lines(path)) for path in (source, reference))
    if len(texts) != len(references):
        raise UserError(f"{source} has {len(texts)} lines, {reference} {len(references)}: give a reference for each.")
    found = calibration_of(TranslationPipeline.from_pretrained(str(folder), device=device), texts, references, decoding)
    settings = read_part(folder, GENERATION_CONFIG)
    settings.pop("_from_model_config", None)  # else generate() would derive these settings from config.json again
    with keeping(()):  # lifts the protection of the model, an input, to write this file
        ratio = sum(map(size_of, references)) / max(1, sum(map(size_of, texts)))
        write_json(folder / GENERATION_CONFIG, {**settings, CONFIDENCE: found.to_dict(), RATIO: round(ratio, 3)})
    return found


def calibration_of(
    pipeline: TranslationPipeline, texts: Sequence[str], references: Sequence[str], decoding: DecodingOptions
) -> Calibration:
    """Fits confidences to a pipeline's translations of texts with references."""
    from sacrebleu import CHRF

    call = TranslationCall(pipeline, replace(decoding, num_return_sequences=1, confidence=False))
    call.calibration, call.options = _AsTheyAre(), replace(call.options, confidence=True)  # type: ignore[assignment]
    best, metric = [row[0] for row in call.translate(texts, 1, lambda done: None)], CHRF()
    qualities = [metric.sentence_score(each.text, [right]).score / 100 for each, right in zip(best, references)]
    words = [
        pair
        for each, right in zip(best, references)
        for pair in zip(each.word_confidences or (), words_in_reference(each.text, right), strict=True)
    ]
    found = calibrate([mean(each) for each in best], qualities, words)
    return replace(found, document=line_of_documents(found, best, references))


def line_of_documents(calibration: Calibration, best: Sequence[Hypothesis], references: Sequence[str]) -> list[float]:
    """Fits equation 3 to documents of 20 sentences each; returns a, b, and the standard deviation of the equation's
    errors for documents of consecutive sentences."""
    from sacrebleu import CHRF

    plain, order = replace(calibration, document=[1.0, 0.0, 0.0]), sorted(range(len(best)), key=lambda i: mean(best[i]))
    places = [numbers[i : i + DOCUMENT] for numbers in (range(len(best)), order) for i in range(0, len(best), DOCUMENT)]
    means = [Quality(plain, [best[i] for i in of_document]).chrf for of_document in places]
    metric = CHRF()
    scores = [
        metric.corpus_score([best[i].text for i in of_document], [[references[i] for i in of_document]]).score
        for of_document in places
    ]
    a, b = np.polyfit(means, scores, 1) if max(means) > min(means) else (0.0, float(np.mean(scores)))
    off = (a * np.array(means) + b - scores)[: len(places) // 2]
    return [round(float(a), 2), round(float(b), 2), round(float(off.std()), 1)]


def words_in_reference(translation: str, reference: str) -> list[bool]:
    """Returns for each word of a translation whether it is in a matching block (difflib) with the reference's words."""
    words, expected = translation.split(), reference.split()
    found = [False] * len(words)
    for first, _, size in SequenceMatcher(None, words, expected, autojunk=False).get_matching_blocks():
        found[first : first + size] = [True] * size
    return found
