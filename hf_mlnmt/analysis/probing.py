"""Probing: the accuracy of a classifier that predicts a property of a sentence from a frozen encoder's vector of it.

References: thesis on joint attention, sections 4.5.4 (table 4.8) and 5.6.1 (table 5.5); "Dual contextual module",
section 6; Conneau et al. 2018, "What you can cram into a single $&!#* vector", section 2.

Tasks are sentences with labels in three parts, train, dev and test. They are made from raw text without annotation,
where words are runs of letters and repeated sentences are used once; or read from SentEval's files, with an example on
each line: `tr`, `va` or `te`, a label and the sentence, separated by tabs.

Sentence vectors: the mean of a layer's states over the real positions, </s> included. Layers: 0 the embeddings, 1 .. L
the outputs of the encoder's layers, L after the layer norm that ends a pre-norm encoder.

Classifiers: logistic regression, and the papers' two-layer perceptron: L2 of 1e-4 on the hidden layer, RMSProp, up to
100 epochs, with early stopping by the accuracy on dev; the preset multi-level is that of the thesis, section 4.5.4,
dual-context that of its section 5.6.1.

Departs, the texts being silent: 200 hidden units, ReLU; L2 is lambda |W|^2 of the hidden layer's matrix, added to the
mean cross-entropy; RMSProp with PyTorch's other settings; training stops when dev has not improved for 5 epochs, and
the best epoch's weights are used; vectors are standardised (mean and deviation of the training part), for both
classifiers. Logistic regression: scikit-learn's, C = 1.
"""

from __future__ import annotations

import copy
import random
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise, product
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import torch
from torch import Tensor, nn

from hf_mlnmt.analysis.reading import Systems, encode_sources, encoder_passes, usable_indices
from hf_mlnmt.common.errors import UserError
from hf_mlnmt.data.directions import has_modules
from hf_mlnmt.data.lines import read_lines
from hf_mlnmt.evaluation import figures
from hf_mlnmt.evaluation.figures import Study
from hf_mlnmt.generation.choosing.embedding import embed_texts
from hf_mlnmt.generation.translating.loading import Parts
from hf_mlnmt.modeling.transformer import pooled_states

Part = Literal["train", "dev", "test"]
PARTS: tuple[Part, ...] = get_args(Part)
SIZES: tuple[int, int, int] = (100_000, 10_000, 10_000)
"""Sizes of the parts, as in the papers; with less text 8, 1 and 1 tenth of the sentences."""
_WORD = re.compile(r"[^\W\d_]+")
_FREQUENT = 100  # how many of the most frequent words are excluded as classes of word content
_FEWEST = 20  # fewest sentences with a word for it to be a class of word content


@dataclass(frozen=True)
class ProbingTask:
    """A task: the sentences of the parts train, dev and test, and each sentence's label, an index into `classes`."""

    name: str
    classes: list[str]
    texts: Mapping[Part, list[str]]
    labels: Mapping[Part, list[int]]

    @property
    def majority(self) -> float:
        """Returns the accuracy of always naming the test part's most frequent class."""
        return max(Counter(self.labels["test"]).values()) / len(self.labels["test"])


def build(name: str, examples: Mapping[Part, Sequence[tuple[str, str]]]) -> ProbingTask:
    """Makes a task from {part: (label, text) pairs}; sorts the classes by alphabet, or numbers by value. Raises:
    UserError for an empty part, a single class, or a class that is not in the training part."""
    if lacking := [part for part in PARTS if not examples.get(part)]:
        raise UserError(f"task {name}: no sentences for {', '.join(lacking)}. Give more text, or a complete file.")
    trained = {label for label, _ in examples["train"]}
    classes = sorted(trained, key=lambda label: label.zfill(9) if label.isdigit() else label)
    if len(classes) < 2:
        raise UserError(f"task {name}: every training sentence has the label {classes[0]!r}; expected at least two.")
    numbers = {label: number for number, label in enumerate(classes)}
    for part in PARTS:
        if unseen := sorted({label for label, _ in examples[part]} - trained):
            raise UserError(f"task {name}: label {unseen[0]!r} is in {part} and never in train.")
    texts = {part: [text for _, text in examples[part]] for part in PARTS}
    labels = {part: [numbers[label] for label, _ in examples[part]] for part in PARTS}
    return ProbingTask(name, classes, texts, labels)


def different(lines: Sequence[str]) -> list[str]:
    """Returns the distinct lines without the empty ones, stripped and sorted."""
    return sorted({line.strip() for line in lines} - {""})


def split(lines: Sequence[str], seed: int, sizes: Sequence[int] = SIZES) -> dict[Part, list[str]]:
    """Shuffles the distinct lines and splits them into parts of `sizes`; too few lines into 8, 1 and 1 tenth."""
    shuffled = different(lines)
    random.Random(seed).shuffle(shuffled)
    if len(shuffled) < sum(sizes):
        tenth = min(len(shuffled) // 10, *sizes[1:])
        sizes = (min(len(shuffled) - 2 * tenth, sizes[0]), tenth, tenth)
    return {part: shuffled[end - size : end] for part, end, size in zip(PARTS, accumulate(sizes), sizes, strict=True)}


def length_task(lines: Sequence[str], seed: int = 1, sizes: Sequence[int] = SIZES, groups: int = 6) -> ProbingTask:
    """Makes a task of surface information: the sentence's length in words, in `groups` classes of about equal size."""
    parts = split(lines, seed, sizes)
    counts = sorted(len(_WORD.findall(line)) for line in parts["train"])
    borders = range(1, groups) if counts else ()
    starts = sorted({counts[len(counts) * group // groups] for group in borders} - set(counts[:1]))
    names = [f"under {starts[0]}", *(f"{start} and more" for start in starts)] if starts else ["all"]
    numbered = {
        part: [(f"{bisect_right(starts, len(_WORD.findall(line)))}", line) for line in parts[part]] for part in PARTS
    }
    task = build("length", numbered)
    return replace(task, classes=[names[int(number)] for number in task.classes])


def word_content_task(
    lines: Sequence[str], seed: int = 1, sizes: Sequence[int] = SIZES, count: int = 100
) -> ProbingTask:
    """Makes a task of surface information: which of `count` words (1,000 in the paper) the sentence contains.

    The words are the most frequent ones of the text after the first 100, if they are in at least 20 sentences; used are
    sentences with exactly one of them. Raises: UserError if there are fewer than two such words.
    """
    sets = {line: {word.lower() for word in _WORD.findall(line)} for line in different(lines)}
    frequency = Counter(word for words in sets.values() for word in words)
    ranked = sorted(frequency, key=lambda word: (-frequency[word], word))[_FREQUENT:]
    chosen = {word for word in ranked[:count] if frequency[word] >= _FEWEST}
    if len(chosen) < 2:
        raise UserError(
            f"task word-content: {len(chosen)} words beyond the {_FREQUENT} most frequent ones are in {_FEWEST} "
            "sentences or more; expected at least two. Give more text."
        )
    parts = split([line for line, words in sets.items() if len(words & chosen) == 1], seed, sizes)
    examples = {part: [((sets[line] & chosen).pop(), line) for line in parts[part]] for part in PARTS}
    trained = {word for word, _ in examples["train"]}
    return build("word-content", {part: [x for x in examples[part] if x[0] in trained] for part in PARTS})


def bigram_shift_task(lines: Sequence[str], seed: int = 1, sizes: Sequence[int] = SIZES) -> ProbingTask:
    """Makes a task of syntactic information: whether two neighbouring words were swapped, in half of the sentences."""
    drawn = random.Random(seed)
    parts = split([line for line in lines if swappable(line)], seed, sizes)
    examples: dict[Part, list[tuple[str, str]]] = {}
    for part in PARTS:
        swapped = set(drawn.sample(range(len(parts[part])), len(parts[part]) // 2))
        examples[part] = [
            ("swapped", swap(line, drawn.choice(swappable(line)))) if i in swapped else ("original", line)
            for i, line in enumerate(parts[part])
        ]
    return build("bigram-shift", examples)


def swappable(line: str) -> list[tuple[int, int, int, int]]:
    """Returns (begin, end, begin, end) of every two neighbouring words that differ and have only space between them.
    Leaves out the line's first word."""
    spans = [match.span() for match in _WORD.finditer(line)][1:]
    return [
        (*first, *second)
        for first, second in pairwise(spans)
        if line[first[1] : second[0]].isspace() and line[slice(*first)].lower() != line[slice(*second)].lower()
    ]


def swap(line: str, place: tuple[int, int, int, int]) -> str:
    """Returns the line with two words exchanged; place: (begin, end, begin, end) of the words, as from `swappable`."""
    a, b, c, d = place
    return line[:a] + line[c:d] + line[b:c] + line[a:b] + line[d:]


def language_task(texts: Mapping[str, Sequence[str]], seed: int = 1, sizes: Sequence[int] = SIZES) -> ProbingTask:
    """Makes a task of the language of a sentence from {language: lines}, with equally many sentences of each.

    sizes: of the parts, all languages together. Raises: UserError for fewer than two languages.
    """
    if len(texts) < 2:
        known = ", ".join(texts) or "no language"
        raise UserError(f"task language: text of {known}; expected at least two languages, --text XX=FILE for each.")
    once = {language: different(lines) for language, lines in texts.items()}
    fewest = min(len(lines) for lines in once.values())
    examples: dict[Part, list[tuple[str, str]]] = {part: [] for part in PARTS}
    for language, lines in once.items():
        parts = split(random.Random(seed).sample(lines, fewest), seed, [size // len(texts) for size in sizes])
        for part in PARTS:
            examples[part] += [(language, line) for line in parts[part]]
    return build("language", examples)


SENTEVAL_PARTS: dict[str, Part] = {"tr": "train", "va": "dev", "te": "test"}
FILES: dict[str, str] = {
    "sentence_length": "SentLen",
    "word_content": "WC",
    "tree_depth": "TreeDepth",
    "bigram_shift": "BShift",
    "top_constituents": "TopConst",
    "past_present": "Tense",
    "subj_number": "SubjNum",
    "obj_number": "ObjNum",
    "odd_man_out": "SOMO",
    "coordination_inversion": "CoordInv",
}
"""File name without its ending -> the task's usual name, in the order of the papers' tables."""


def read_task(path: Path) -> ProbingTask:
    """Reads a task from a file of SentEval's form, plain or gz. Raises: UserError for a line of another form."""
    name = path.name.split(".")[0]
    examples: dict[Part, list[tuple[str, str]]] = {part: [] for part in SENTEVAL_PARTS.values()}
    for number, line in enumerate(read_lines(path, form="table"), start=1):
        fields = line.split("\t")
        if len(fields) != 3 or fields[0] not in SENTEVAL_PARTS or not fields[1].strip() or not fields[2].strip():
            raise UserError(
                f"{path}, line {number}: expected tr, va or te, a label and a sentence, separated by tabs; found "
                f"{len(fields)} fields, beginning with {line[:40]!r}."
            )
        examples[SENTEVAL_PARTS[fields[0]]].append((fields[1].strip(), fields[2].strip()))
    return build(FILES.get(name, name), examples)


def senteval_tasks(paths: Sequence[Path]) -> list[ProbingTask]:
    """Reads a task from each of SentEval's files, or those of a folder. Raises: UserError for a folder without any."""
    files: list[Path] = []
    for path in paths:
        inside = {file.name.split(".")[0]: file for file in sorted(path.glob("*"))}
        found = [inside[name] for name in FILES if name in inside] if path.is_dir() else [path]
        if not found:
            raise UserError(f"{path}: none of SentEval's probing files there ({next(iter(FILES))}.txt ...).")
        files += found
    return list(map(read_task, files))


def mean_states(parts: Parts, sources: Sequence[Sequence[int]], layer: int) -> Tensor:
    """Returns the means of a layer's states over real positions, float32 (sentences, width), on the CPU."""
    vectors: dict[int, Tensor] = {}
    for read in encoder_passes(parts, sources, output_hidden_states=True):
        means = pooled_states(read.output.hidden_states[layer].float(), read.source_real, "mean").cpu()
        vectors.update(zip(read.indices, means, strict=True))
    return torch.stack([vectors[i] for i in range(len(sources))])


class MlpSettings(NamedTuple):
    """The settings of a perceptron and its training."""

    learning_rate: float
    batch_size: int
    penalty: float = 1e-4
    epochs: int = 100
    patience: int = 5
    hidden: int = 200


PRESETS: dict[str, MlpSettings] = {"multi-level": MlpSettings(1e-3, 512), "dual-context": MlpSettings(2.5e-4, 64)}
Vectors = Mapping[Part, Tensor]


def standardized(vectors: Vectors) -> dict[Part, Tensor]:
    """Standardises all parts: subtracts the training part's mean in each dimension, and divides by its deviation."""
    mean, deviation = vectors["train"].mean(0), vectors["train"].std(0, correction=0)
    return {part: (x - mean) / deviation.where(deviation > 0, 1.0) for part, x in vectors.items()}


def train_mlp(
    vectors: Vectors, labels: Mapping[Part, Tensor], classes: int, settings: MlpSettings, seed: int = 1
) -> tuple[nn.Sequential, float, int]:
    """Trains a perceptron on "train"; returns that of the best epoch on "dev", its accuracy there, and the epoch.

    vectors: standardised (sentences, width) for each part; labels: (sentences,). The same seed gives the same result;
    the state of PyTorch's global generator stays unchanged.
    """
    shuffling = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        hidden = nn.Linear(vectors["train"].shape[1], settings.hidden)
        model = nn.Sequential(hidden, nn.ReLU(), nn.Linear(settings.hidden, classes))
    optimizer = torch.optim.RMSprop(model.parameters(), lr=settings.learning_rate)
    best, best_accuracy, best_epoch = copy.deepcopy(model.state_dict()), -1.0, 0
    for epoch in range(1, settings.epochs + 1):
        for rows in torch.randperm(len(labels["train"]), generator=shuffling).split(settings.batch_size):
            loss = nn.functional.cross_entropy(model(vectors["train"][rows]), labels["train"][rows])
            loss = loss + settings.penalty * hidden.weight.square().sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        accuracy = _share(predict(model, vectors["dev"]), labels["dev"])
        if accuracy > best_accuracy:
            best, best_accuracy, best_epoch = copy.deepcopy(model.state_dict()), accuracy, epoch
        elif epoch - best_epoch >= settings.patience:
            break
    model.load_state_dict(best)
    return model, best_accuracy, best_epoch


@torch.no_grad()
def predict(model: nn.Module, vectors: Tensor) -> Tensor:
    """Returns the class of each vector (sentences, width): (sentences,)."""
    return model(vectors).argmax(-1)  # type: ignore[no-any-return]


def _share(predicted: Tensor, labels: Tensor) -> float:
    return (predicted == labels).double().mean().item()


def logistic_regression(vectors: Vectors, labels: Mapping[Part, Tensor]) -> tuple[Tensor, float]:
    """Fits scikit-learn's logistic regression to standardised vectors; returns the classes it predicts for "test", and
    its accuracy on "dev"."""
    from sklearn.linear_model import LogisticRegression

    model = LogisticRegression(max_iter=1000).fit(vectors["train"].numpy(), labels["train"].numpy())
    dev, test = (torch.from_numpy(model.predict(vectors[part].numpy())) for part in ("dev", "test"))
    return test, _share(dev, labels["dev"])


Classifier = Literal["mlp", "logistic"]
CLASSIFIERS: tuple[Classifier, ...] = get_args(Classifier)


def probe(
    task: ProbingTask, vectors: Vectors, layer: int | str, classifier: Classifier, settings: MlpSettings, seed: int = 1
) -> dict[str, Any]:
    """Trains and tests a classifier; returns a row with its accuracy on the test part in percent and 95 % interval.

    vectors: of the task's sentences, (sentences, width) for each part; layer: their origin, for the row. Raises:
    UserError without SciPy.
    """
    try:
        from scipy.stats import binomtest
    except ImportError as error:
        raise UserError("probing needs scikit-learn and SciPy: pip install 'hf-mlnmt[analysis]'") from error
    vectors, epoch = standardized(vectors), None
    labels = {part: torch.tensor(task.labels[part]) for part in PARTS}
    if classifier == "mlp":
        model, dev_accuracy, epoch = train_mlp(vectors, labels, len(task.classes), settings, seed)
        predicted = predict(model, vectors["test"])
    else:
        predicted, dev_accuracy = logistic_regression(vectors, labels)
    right, count = int((predicted == labels["test"]).sum()), len(labels["test"])
    low, high = binomtest(right, count).proportion_ci(method="wilson")
    scores = {"accuracy": right / count, "low": low, "high": high, "majority": task.majority}
    return {
        "task": task.name,
        "layer": layer,
        "classifier": classifier,
        **{name: 100 * float(value) for name, value in (scores | {"dev_accuracy": dev_accuracy}).items()},
        "epoch": epoch,
        "classes": len(task.classes),
        **{str(part): len(task.texts[part]) for part in PARTS},
    }


def vectors_of(
    parts: Parts, task: ProbingTask, layer: int | str, languages: tuple[str | None, str | None] = (None, None)
) -> Vectors:
    """Returns vectors (sentences, width) of each part: means of a layer's states, or the model's embeddings.

    layer: number of an encoder layer, 0 for the embeddings; or a pooling of `embed_texts`: "flat", "mean", "row 3".
    """
    if isinstance(layer, int):
        return {part: mean_states(parts, encode_sources(parts, task.texts[part], *languages), layer) for part in PARTS}
    pooling = int(layer.removeprefix("row ")) if layer.startswith("row ") else layer
    return {part: torch.from_numpy(embed_texts(parts, task.texts[part], languages[0], pooling)) for part in PARTS}


def read_sizes(text: str) -> list[int]:
    """Returns the sizes of train, dev and test in a text such as "1000,100,100". Raises: UserError for another."""
    fields = text.split(",")
    if len(fields) != 3 or not all(field.strip().isdigit() and int(field) > 0 for field in fields):
        raise UserError(f"sizes {text!r}: expected three numbers, for train, dev and test, such as 10000,1000,1000.")
    return [int(field) for field in fields]


def make_tasks(
    systems: Systems,
    texts: Mapping[str, Sequence[str]],
    names: Sequence[str] | None,
    seed: int,
    sizes: Sequence[int],
    words: int,
    languages: tuple[str | None, str | None] = (None, None),
) -> list[ProbingTask]:
    """Makes tasks from raw text: {language: lines}, or {"": lines} for one text.

    names: tasks; None: all that are possible. length, word-content and bigram-shift are made from the first text.
    Sentences that are empty or too long for a system are left out. Raises: UserError for `language` with one text only.
    """
    fit = {}
    for name, lines in texts.items():
        usable = [set(usable_indices(parts, lines, *languages)) for parts in systems.values()]
        fit[name] = [lines[i] for i in sorted(set.intersection(*usable))]
    first = next(iter(fit.values()))
    makers: dict[str, Callable[[], ProbingTask]] = {
        "length": lambda: length_task(first, seed, sizes),
        "word-content": lambda: word_content_task(first, seed, sizes, words),
        "bigram-shift": lambda: bigram_shift_task(first, seed, sizes),
        "language": lambda: language_task(fit, seed, sizes),
    }
    return [makers[name]() for name in names or [name for name in makers if name != "language" or len(fit) > 1]]


def probing_study(
    systems: Systems,
    tasks: Sequence[ProbingTask],
    layers: Sequence[int] | None = None,
    classifiers: Sequence[Classifier] | None = None,
    preset: str = "multi-level",
    seed: int = 1,
    tell: Callable[[str], None] = lambda text: None,
    pooling: str | None = None,
    languages: tuple[str | None, str | None] = (None, None),
) -> Study:
    """Trains and tests classifiers of each task on vectors of each system; returns rows and a figure of accuracies.

    layers: None for the last one of each encoder. pooling: of `embed_texts`, "flat", "mean" or "row 3", to probe the
    model's embeddings (of an attention bridge, if it has one) instead of a layer's states.
    Raises: UserError for layers and a pooling together, and for a layer that does not exist.
    """
    study = Study("probing")
    if pooling is not None and layers:
        raise UserError("a layer's states or the model's embeddings: give layers or a pooling, not both.")
    chosen: dict[str, list[Any]] = {
        name: _layers(name, parts.model, layers) if pooling is None else [pooling] for name, parts in systems.items()
    }
    for task, name in product(tasks, systems):
        for layer in chosen[name]:
            vectors = vectors_of(systems[name], task, layer, languages)
            place = f"layer {layer}" if isinstance(layer, int) else layer
            for classifier in classifiers or CLASSIFIERS:
                row = probe(task, vectors, layer, classifier, PRESETS[preset], seed)
                tell(f"{name}, {task.name}, {place}, {classifier}: {row['accuracy']:.2f}")
                study.rows.append({"system": name, **row})
    for row in study.rows:
        about = {key: row[key] for key in ("system", "task", "layer", "classifier")}
        within = {"95 %": f"{row['low']:.1f} to {row['high']:.1f}", "most frequent": f"{row['majority']:.1f}"}
        study.summary.append({**about, "accuracy": f"{row['accuracy']:.2f}", **within})
    study.note = "Bars: 95 % intervals over the test sentences."
    study.figures["probing"] = _figure(study.rows)
    return study


def _layers(name: str, model: Any, layers: Sequence[int] | None) -> list[int]:
    """Returns `layers`, or the encoder's last layer for None. Raises: UserError for a layer that does not exist."""
    if has_modules(model):
        raise UserError(f"{name}: a model of several encoders is read at its bridge: give a pooling, such as flat.")
    last = int(getattr(model.config, "encoder_layers", None) or model.config.num_hidden_layers)
    for layer in layers or ():
        if not 0 <= layer <= last:
            raise UserError(f"{name}: layer {layer}: this encoder has 0 (embeddings) to {last}.")
    return list(layers or (last,))


def _figure(rows: Sequence[dict[str, Any]]) -> Any:
    names = list(dict.fromkeys(row["task"] for row in rows))
    several = len({row["layer"] for row in rows}) > 1
    titles = {"mlp": "two-layer perceptron", "logistic": "logistic regression"}
    panels: dict[str, dict[str, list[figures.Interval]]] = {}
    for row in rows:
        series = f"{row['system']}, layer {row['layer']}" if several else row["system"]
        line = panels.setdefault(titles[row["classifier"]], {}).setdefault(series, [(None, None, None)] * len(names))
        line[names.index(row["task"])] = (row["accuracy"], row["low"], row["high"])
    majorities = {row["task"]: row["majority"] for row in rows}
    levels = "most frequent class", [majorities[name] for name in names]
    return figures.points(panels, names, "", "accuracy (%)", levels)
