"""Makes a matrix of a multilingual model's scores, from each language into each, with zero-shot pairs marked.

It reads a run whose recipe has tasks for pairs of languages (`directions`, recipe/reading.py): results.json,
recipe.yaml, and translations of the test sets <name>.<source>-<target>.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from hf_mlnmt.common.errors import UserError
from hf_mlnmt.common.files import file_name
from hf_mlnmt.common.model_folder import RESULTS
from hf_mlnmt.common.table import Number, Table
from hf_mlnmt.data.lines import read_lines
from hf_mlnmt.evaluation.results import results_content
from hf_mlnmt.recipe.reading import load_yaml

SENTENCES = 5000  # sentences of each language that the language classifier is trained on


@dataclass
class Matrix:
    """The scores of a run, and the shares of translations in a wrong language, as {"source-target": number}."""

    run: Path
    test: str
    model: str
    protocol: str
    metric: str
    sources: list[str]
    targets: list[str]
    scores: dict[str, float]
    zero_shot: list[str]
    off_target: dict[str, float] = field(default_factory=dict)
    classifier_accuracy: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """Returns the content of matrix.json."""
        return {"schema": "hf_mlnmt.matrix/1", **{key: value for key, value in asdict(self).items() if key != "run"}}

    def mean(self, zero_shot: bool) -> float | None:
        """Returns the mean score of the zero-shot pairs, or of the trained pairs; None if there are none."""
        scores = [score for pair, score in self.scores.items() if (pair in self.zero_shot) == zero_shot]
        return sum(scores) / len(scores) if scores else None

    def table(self) -> Table:
        """Makes a table of scores from source languages (rows) into target languages; * marks zero-shot pairs."""
        return self._table(self.scores, "{:.2f}", f"{self.metric}, {self.protocol}: {self.test}, {self.model}")

    def off_target_table(self) -> Table:
        """Makes a table of the shares of translations in a wrong language, in percent."""
        percent = {pair: 100 * share for pair, share in self.off_target.items()}
        title = f"% of translations in another language, {self.test}; the classifier finds the language of "
        return self._table(percent, "{:.1f}", f"{title}{self.classifier_accuracy or 0:.2%} of the references")

    def _table(self, values: Mapping[str, float], form: str, title: str) -> Table:
        rows = []
        for source in self.sources:
            pairs = [f"{source}-{target}" for target in self.targets]
            cells = [form.format(values[pair]) if pair in values else "" for pair in pairs]
            stars = ["*" if cell and pair in self.zero_shot else "" for cell, pair in zip(cells, pairs)]
            rows.append([source, *(cell + star for cell, star in zip(cells, stars))])
        means = [(text, self.mean(zero)) for text, zero in (("trained", False), ("zero-shot*", True))]
        said = ", ".join(f"{text} {mean:.2f}" for text, mean in means if mean is not None)
        caption = f"mean: {said}" if values is self.scores else "* not trained together"
        return Table(["from / to", *map(Number, self.targets)], rows, title, caption)


def read_matrix(
    run: str | Path,
    test: str | None = None,
    protocol: str = "classic",
    metric: str = "bleu",
    data: str | Path | None = None,
) -> Matrix:
    """Reads the scores of a finished run as a `Matrix`.

    Args:
        run: the run's folder, or a model's folder in it: average/ (default) or best/.
        test: the common name of the test sets; None: that of the first.
        data: the folder of the recipe's corpora, to measure the shares of translations in a wrong language, by a
            classifier that is trained on the training corpora.

    Raises: UserError for a run without such test sets, scores or corpora.
    """
    run, model = Path(run), "average"
    if not (run / "recipe.yaml").is_file() and (run.resolve().parent / "recipe.yaml").is_file():
        run, model = run.resolve().parent, run.resolve().name
    results, (recipe, _) = results_content(run / model / RESULTS), load_yaml(run / "recipe.yaml")
    if not all(isinstance(recipe.get(key) or {}, dict) for key in ("tasks", "data")):
        raise UserError(f"{run / 'recipe.yaml'}: tasks and data: expected mappings, as in a run of many languages.")
    tests = [name.rpartition(".") for name in results["scores"] if name.rpartition(".")[2].count("-") == 1]
    test = test or next((name for name, _, _ in tests if name), None)
    pairs = [pair for name, _, pair in tests if name == test]
    if not pairs:
        raise UserError(f"{run}: no test sets {test or '<name>'}.<source>-<target>, as `directions` makes them.")
    scores = {}
    for pair in pairs:
        known = results["scores"][f"{test}.{pair}"]
        named = {name.lower(): score["score"] for name, score in known.get(protocol, {}).items()}
        if metric.lower() not in named:
            have = ", ".join(f"{name}: {' '.join(metrics)}" for name, metrics in known.items())
            raise UserError(f"{run}: no {metric} under the protocol {protocol}; there are {have}.")
        scores[pair] = named[metric.lower()]
    sides = [[pair.split("-")[side] for pair in pairs] for side in (0, 1)]
    sources, targets = ([code for code in dict.fromkeys(sides[0] + sides[1]) if code in side] for side in sides)
    zero_shot = [pair for pair in pairs if pair not in (recipe.get("tasks") or {})]
    matrix = Matrix(run, str(test), model, protocol, metric, sources, targets, scores, zero_shot)
    if data is not None:
        _measure_languages(matrix, recipe, Path(data))
    return matrix


def _measure_languages(matrix: Matrix, recipe: dict[str, Any], data: Path) -> None:
    """Trains a language classifier; sets the matrix's off-target shares, and the accuracy on references."""
    guess = LanguageGuesser(_sentences(_corpora(recipe["tasks"].values()), data, SENTENCES))
    tests = {name: corpus for name, corpus in recipe["data"]["test"].items() if name.startswith(f"{matrix.test}.")}
    matrix.classifier_accuracy = guess.accuracy(_sentences(_corpora({"data": c} for c in tests.values()), data))
    for pair in matrix.scores:
        target = pair.split("-")[1]
        file = matrix.run / "translations" / file_name(f"{matrix.test}.{pair}.{matrix.model}.{target}")
        lines = [line for line in file.read_text(encoding="utf-8").split("\n")[:-1] if line.strip()]
        wrong = guess.others(lines, target)
        matrix.off_target[pair] = sum(line in wrong for line in lines) / max(1, len(lines))


def _corpora(sections: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Returns {language: a text file in it} for the corpora of sections. Raises: UserError if none names files."""
    files: dict[str, str] = {}
    for section in sections:
        corpora = section["data"] if isinstance(section["data"], list) else [section["data"]]
        for corpus in corpora:
            languages = corpus.get("languages") or section.get("languages") or {}
            for side, file in (corpus.get("files") or {}).items():
                files.setdefault(languages[side], file)
    if not files:
        raise UserError("the tasks name no files of text: the languages cannot be learnt from them.")
    return files


def _sentences(files: Mapping[str, str], data: Path, most: int | None = None) -> dict[str, list[str]]:
    return {language: list(islice(read_lines(data / file), most)) for language, file in files.items()}


class LanguageGuesser:
    """Classifies the language of texts by naive Bayes over n-grams of one to four characters in words, without case.

    Reference: Cavnar and Trenkle 1994, "N-Gram-Based Text Categorization", for the features.

    It distinguishes a few known languages, those of a model; a sentence in any other language is assigned to the
    nearest of these. Report its accuracy on other sentences beside its results. Needs scikit-learn.
    """

    def __init__(self, texts: Mapping[str, Sequence[str]]):
        """Trains on {language: lines}. Raises: UserError for fewer than two languages, or a language without text."""
        try:
            from sklearn.feature_extraction.text import CountVectorizer
            from sklearn.naive_bayes import MultinomialNB
            from sklearn.pipeline import make_pipeline
        except ImportError as error:
            raise UserError("telling languages apart needs scikit-learn: pip install 'hf-mlnmt[analysis]'") from error
        if len(texts) < 2:
            raise UserError(f"languages {', '.join(texts) or 'none'}: expected text of at least two.")
        if empty := [language for language, some in texts.items() if not any(line.strip() for line in some)]:
            raise UserError(f"language '{empty[0]}': there is no sentence to learn it from.")
        lines = [line for some in texts.values() for line in some]
        labels = [language for language, some in texts.items() for _ in some]
        # Equal prior probabilities, whatever the amount of text of each language.
        steps = CountVectorizer(analyzer="char_wb", ngram_range=(1, 4)), MultinomialNB(fit_prior=False)
        self._classifier = make_pipeline(*steps).fit(lines, labels)

    def __call__(self, texts: Sequence[str]) -> list[str]:
        """Returns the language of each text."""
        return list(map(str, self._classifier.predict(texts))) if texts else []

    def others(self, texts: Sequence[str], language: str) -> set[str]:
        """Returns the texts that are classified as another language than `language`; empty texts are left out."""
        lines = [text for text in texts if text.strip()]
        return {line for line, guess in zip(lines, self(lines), strict=True) if guess != language}

    def accuracy(self, texts: Mapping[str, Sequence[str]]) -> float:
        """Returns the share of non-empty sentences ({language: lines}) classified correctly; UserError without any."""
        pairs = [(line, language) for language, lines in texts.items() for line in lines if line.strip()]
        if not pairs:
            raise UserError("there is no sentence to measure the accuracy on.")
        lines, languages = zip(*pairs)
        return sum(map(str.__eq__, self(lines), languages)) / len(pairs)
