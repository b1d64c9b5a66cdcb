"""Probing: how well a classifier reads a property of the sentence from a frozen encoder's vector of it.

References: thesis on joint attention, sections 4.5.4 (table 4.8) and 5.6.1 (table 5.5); "Dual contextual module",
section 6; Conneau et al. 2018.

Sentence vectors: the mean of a layer's states over the real positions, kept on disk. Layers: 0 the embeddings, 1 .. L
the encoder's layers as they hand on their states, L after the layer norm that ends a pre-norm encoder; </s> is a
position like the others.

Classifiers: logistic regression, and the papers' two-layer perceptron: L2 of 1e-4 on the hidden layer, RMSProp, up to
100 epochs, stopped early by the accuracy on dev.

| preset | source | learning rate | batch |
| --- | --- | --- | --- |
| multi-level | thesis, section 4.5.4 | 1e-3 | 512 |
| dual-context | thesis, section 5.6.1; dual contextual module | 2.5e-4 | 64 |

Departs, the texts being silent: 200 hidden units, ReLU; L2 is lambda |W|^2 of the hidden layer's matrix, added to the
mean cross-entropy; RMSProp with PyTorch's other settings; training stops when dev has not improved for 5 epochs, and
the best epoch's weights are used; vectors are standardised (mean and deviation of the training part), for both
classifiers. Logistic regression: scikit-learn's, C = 1.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from hf_mlnmt.analysis import figures
from hf_mlnmt.analysis.embeddings import embed_texts
from hf_mlnmt.analysis.probing_tasks import (
    PARTS,
    Part,
    ProbingTask,
    bigram_shift_task,
    find_files,
    language_task,
    length_task,
    read_task,
    word_content_task,
)
from hf_mlnmt.analysis.reading import Systems, encode_sources, encoder_passes, usable_indices
from hf_mlnmt.analysis.study import Study, naming
from hf_mlnmt.errors import UserError
from hf_mlnmt.files import atomic_path
from hf_mlnmt.generation.languages import has_modules
from hf_mlnmt.generation.loading import Parts
from hf_mlnmt.made_from import Digest
from hf_mlnmt.modeling.sentence_embedding import pooled_states

CHUNK = 4096  # sentences in a file of the cache


def check_layer(model: Any, layer: int | None) -> int:
    """Returns the layer asked for, the last for None. Raises: UserError if it is not there."""
    last = int(getattr(model.config, "encoder_layers", None) or model.config.num_hidden_layers)
    if layer is not None and not 0 <= layer <= last:
        raise UserError(f"layer {layer}: this encoder has 0 (embeddings) to {last}.")
    return last if layer is None else layer


def mean_states(parts: Parts, sources: Sequence[Sequence[int]], layer: int) -> Tensor:
    """Returns the means of a layer's states over real positions, float32 (sentences, width), on the CPU."""
    vectors: dict[int, Tensor] = {}
    for read in encoder_passes(parts, sources, output_hidden_states=True):
        means = pooled_states(read.output.hidden_states[layer].float(), read.source_real, "mean").cpu()
        vectors.update(zip(read.indices, means, strict=True))
    return torch.stack([vectors[i] for i in range(len(sources))])


def fingerprint(model: Any) -> str:
    """Returns a digest of what vectors depend on: config and the encoder's weights; of several encoders the model's."""
    fields = {key: value for key, value in model.config.to_dict().items() if key != "_name_or_path"}
    encoder = model if has_modules(model) else model.get_encoder()
    return Digest("sha256").value(fields).weights(encoder.state_dict(), shapes=False).hex()


def cached_states(
    parts: Parts, texts: Sequence[str], layer: int, cache: Path, languages: tuple[str | None, str | None] = (None, None)
) -> Tensor:
    """Returns `mean_states` of texts: those in the folder `cache` are read, others computed and written.

    A file holds some thousand sentences, under a name made from the encoder's weights and the token ids; an interrupted
    run goes on behind the last one.
    """
    sources, of_model, vectors = encode_sources(parts, texts, *languages), fingerprint(parts.model), []
    for start in range(0, len(sources), CHUNK):
        chunk = sources[start : start + CHUNK]
        name = Digest("sha256").text(f"{of_model} {layer} {chunk}").hex()[:32]
        path = cache / f"{name}.safetensors"
        try:
            states = load_file(path)["states"]
        except (FileNotFoundError, SafetensorError, KeyError):  # none, or half a file
            states = mean_states(parts, chunk, layer)
            with atomic_path(path) as temporary:
                save_file({"states": states}, temporary)
        vectors.append(states)
    return torch.cat(vectors)


@dataclass(frozen=True)
class MlpSettings:
    """The settings of a perceptron's training."""

    learning_rate: float
    batch_size: int
    penalty: float = 1e-4
    epochs: int = 100
    patience: int = 5
    hidden: int = 200


PRESETS: dict[str, MlpSettings] = {"multi-level": MlpSettings(1e-3, 512), "dual-context": MlpSettings(2.5e-4, 64)}

Vectors = Mapping[Part, Tensor]


@dataclass(frozen=True)
class Predictions:
    """`test`: the classes predicted for the test part; `epoch`: the one whose weights are used, 0 without epochs."""

    test: Tensor
    dev_accuracy: float
    epoch: int = 0


def standardized(vectors: Vectors) -> dict[Part, Tensor]:
    """Subtracts the training part's mean from each dimension, and divides by its deviation."""
    mean, deviation = vectors["train"].mean(0), vectors["train"].std(0, correction=0)
    return {part: (x - mean) / deviation.where(deviation > 0, 1.0) for part, x in vectors.items()}


def train_mlp(
    vectors: Vectors, labels: Mapping[Part, Tensor], classes: int, settings: MlpSettings, seed: int = 1
) -> Predictions:
    """Trains on "train", stop by "dev", predict "test". vectors (sentences, width), labels (sentences,).

    The same seed gives the same result; the caller's random numbers are left as they are.
    """
    vectors = standardized(vectors)
    model, accuracy, epoch = fit_mlp(vectors, labels, classes, settings, seed)
    with torch.no_grad():
        return Predictions(model(vectors["test"]).argmax(-1), accuracy, epoch)


def fit_mlp(
    vectors: Vectors, labels: Mapping[Part, Tensor], classes: int, settings: MlpSettings, seed: int = 1
) -> tuple[nn.Sequential, float, int]:
    """Fits a perceptron to vectors as they are; returns the best epoch's, its accuracy on dev, and the epoch."""
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
        accuracy = _accuracy(model, vectors["dev"], labels["dev"])
        if accuracy > best_accuracy:
            best, best_accuracy, best_epoch = copy.deepcopy(model.state_dict()), accuracy, epoch
        elif epoch - best_epoch >= settings.patience:
            break
    model.load_state_dict(best)
    return model, best_accuracy, best_epoch


@torch.no_grad()
def _accuracy(model: nn.Module, vectors: Tensor, labels: Tensor) -> float:
    return (model(vectors).argmax(-1) == labels).double().mean().item()


def train_logistic_regression(vectors: Vectors, labels: Mapping[Part, Tensor]) -> Predictions:
    """Fits scikit-learn's to the same vectors; nothing is chosen by "dev". Raises: UserError without scikit-learn."""
    try:
        from sklearn.linear_model import LogisticRegression
    except ImportError as error:
        raise UserError("logistic regression needs scikit-learn: pip install 'hf-mlnmt[analysis]'") from error
    arrays = {part: x.numpy() for part, x in standardized(vectors).items()}
    model = LogisticRegression(max_iter=1000).fit(arrays["train"], labels["train"].numpy())
    dev, test = (torch.from_numpy(model.predict(arrays[part])) for part in ("dev", "test"))
    return Predictions(test, (dev == labels["dev"]).double().mean().item())


Classifier = Literal["mlp", "logistic"]
CLASSIFIERS: tuple[Classifier, ...] = get_args(Classifier)


def wilson_interval(right: int, count: int, z: float = 1.959964) -> tuple[float, float]:
    """Returns the 95 % interval of a share (Wilson 1927): low and high, each from 0 to 1."""
    share, square = right / count, z * z / count
    middle = share + square / 2
    width = z * (share * (1 - share) / count + square / (4 * count)) ** 0.5
    return (middle - width) / (1 + square), (middle + width) / (1 + square)


def probe(
    parts: Parts,
    task: ProbingTask,
    layer: int | str,
    classifier: Classifier,
    settings: MlpSettings,
    cache: Path,
    seed: int = 1,
    languages: tuple[str | None, str | None] = (None, None),
) -> dict[str, Any]:
    """Returns a row: accuracy on the test part in percent with its 95 % interval, and that of the most frequent class.

    layer: of the encoder, 0 the embeddings; or the pooling of `embed_texts`: "flat", "mean", "row 3".
    `majority`: the most frequent class's accuracy; `epoch`: the perceptron's best, by `dev_accuracy`; `train`,
    `dev`, `test`: sentences.
    """
    vectors = {part: _vectors(parts, task.texts[part], layer, cache, languages) for part in PARTS}
    labels = {part: torch.tensor(task.labels[part]) for part in PARTS}
    if classifier == "mlp":
        predictions = train_mlp(vectors, labels, len(task.classes), settings, seed)
    else:
        predictions = train_logistic_regression(vectors, labels)
    right, count = int((predictions.test == labels["test"]).sum()), len(labels["test"])
    low, high = wilson_interval(right, count)
    scores = {"accuracy": right / count, "low": low, "high": high, "majority": task.majority}
    scores["dev_accuracy"] = predictions.dev_accuracy
    return {
        "task": task.name,
        "layer": layer,
        "classifier": classifier,
        **{name: 100 * value for name, value in scores.items()},
        "epoch": predictions.epoch or None,
        "classes": len(task.classes),
        **{str(part): len(task.texts[part]) for part in PARTS},
    }


def _vectors(
    parts: Parts, texts: Sequence[str], layer: int | str, cache: Path, languages: tuple[str | None, str | None]
) -> torch.Tensor:
    """Returns (sentences, width): a layer's mean states, or the model's embeddings, which are not cached."""
    if isinstance(layer, int):
        return cached_states(parts, texts, layer, cache, languages)
    pooling = int(layer.removeprefix("row ")) if layer.startswith("row ") else layer
    return torch.from_numpy(embed_texts(parts, texts, languages[0], pooling))


def read_sizes(text: str) -> list[int]:
    """Reads "1000,100,100", the sentences for train, dev and test."""
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
    """Makes tasks from raw text: {language: lines}, or {"": lines} of one text. `names`: None for all that can be made.

    length, word-content and bigram-shift are of the first text. Sentences that a system cannot take are left out.
    Raises: UserError for `language` with one text only.
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


def senteval_tasks(paths: Sequence[Path]) -> list[ProbingTask]:
    """Reads the tasks of SentEval's files, and of all such files in folders."""
    return [read_task(file) for path in paths for file in (find_files(path) if path.is_dir() else [path])]


def probing_study(
    systems: Systems,
    tasks: Sequence[ProbingTask],
    cache: Path,
    layers: Sequence[int] | None = None,
    classifiers: Sequence[Classifier] | None = None,
    preset: str = "multi-level",
    seed: int = 1,
    tell: Callable[[str], None] = lambda text: None,
    pooling: str | None = None,
    languages: tuple[str | None, str | None] = (None, None),
) -> Study:
    """Probes every system on every task; vectors are kept in the folder `cache`, and read there the next time.

    layers: None for the last one of each encoder. pooling: of `embed_texts`, "flat", "mean" or "row 3": the model's
    embeddings (of an attention bridge, where there is one) in place of a layer's states.
    """
    study = Study("probing")
    if pooling is not None and layers:
        raise UserError("a layer's states or the model's embeddings: give layers or a pooling, not both.")
    chosen: dict[str, list[Any]] = {
        name: _layers(name, parts, layers) if pooling is None else [pooling] for name, parts in systems.items()
    }
    every = [(task, name, layer) for task in tasks for name in systems for layer in chosen[name]]
    for (task, name, layer), classifier in product(every, classifiers or CLASSIFIERS):
        row = probe(systems[name], task, layer, classifier, PRESETS[preset], cache, seed, languages)
        place = f"layer {layer}" if isinstance(layer, int) else layer
        tell(f"{name}, {task.name}, {place}, {classifier}: {row['accuracy']:.2f}")
        study.rows.append({"system": name, **row})
    study.summary = [
        {
            **{key: row[key] for key in ("system", "task", "layer", "classifier")},
            "accuracy": f"{row['accuracy']:.2f}",
            "95 %": f"{row['low']:.1f} to {row['high']:.1f}",
            "most frequent": f"{row['majority']:.1f}",
        }
        for row in study.rows
    ]
    study.figures["probing"] = _figure(study.rows)
    return study


def _layers(name: str, parts: Any, layers: Sequence[int] | None) -> list[int]:
    with naming(name):
        if has_modules(parts.model):
            raise UserError("a model of several encoders is read at its bridge: give a pooling, such as flat.")
        return [check_layer(parts.model, layer) for layer in layers or (None,)]


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
