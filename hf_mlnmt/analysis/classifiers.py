"""The classifiers of probing: a two-layer perceptron as in the papers, and logistic regression beside it.

Reference: thesis on joint attention, sections 4.5.4 and 5.6.1; "Dual contextual module", section 6: two layers, L2 of
1e-4 on the hidden layer, RMSProp, up to 100 epochs, stopped early by the accuracy on dev.

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
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from hf_mlnmt.analysis.probing_tasks import Part
from hf_mlnmt.errors import UserError


@dataclass(frozen=True)
class MlpSettings:
    """How a perceptron is trained."""

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
    """`test`: the classes named for the test part; accuracy on dev; the epoch whose weights are used, 0: no epochs."""

    test: Tensor
    dev_accuracy: float
    epoch: int = 0


def standardized(vectors: Vectors) -> dict[Part, Tensor]:
    """Each dimension less the training part's mean, over its deviation."""
    mean, deviation = vectors["train"].mean(0), vectors["train"].std(0, correction=0)
    return {part: (x - mean) / deviation.where(deviation > 0, 1.0) for part, x in vectors.items()}


def train_mlp(
    vectors: Vectors, labels: Mapping[Part, Tensor], classes: int, settings: MlpSettings, seed: int = 1
) -> Predictions:
    """Train on "train", stop by "dev", name the classes of "test". vectors (sentences, width), labels (sentences,).

    The same seed gives the same result; the caller's random numbers are left as they are.
    """
    vectors = standardized(vectors)
    model, accuracy, epoch = fit_mlp(vectors, labels, classes, settings, seed)
    with torch.no_grad():
        return Predictions(model(vectors["test"]).argmax(-1), accuracy, epoch)


def fit_mlp(
    vectors: Vectors, labels: Mapping[Part, Tensor], classes: int, settings: MlpSettings, seed: int = 1
) -> tuple[nn.Sequential, float, int]:
    """The best epoch's perceptron on vectors as they are, its accuracy on dev, and the epoch."""
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
    """scikit-learn's on the same vectors; "dev" only says how it does there. Raises: UserError without scikit-learn."""
    try:
        from sklearn.linear_model import LogisticRegression
    except ImportError as error:
        raise UserError("logistic regression needs scikit-learn: pip install 'hf-mlnmt[analysis]'") from error
    arrays = {part: x.numpy() for part, x in standardized(vectors).items()}
    model = LogisticRegression(max_iter=1000).fit(arrays["train"], labels["train"].numpy())
    dev = torch.from_numpy(model.predict(arrays["dev"]))
    test = torch.from_numpy(model.predict(arrays["test"]))
    return Predictions(test, (dev == labels["dev"]).double().mean().item())
