"""The objectives on text beside translation, and of a fused model: in this process, or as a program by several.

accelerate launch ... tests/helpers/text_tasks.py FOLDER      trains them; writes the weights of each training
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import PartialState
from torch import nn

if __name__ == "__main__":  # as a program it finds its neighbours by the folder above
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from helpers.fused import our_language_model
from helpers.toy_tasks import SETTINGS, Text, save_run, toy_trainer
from helpers.training_helpers import VOCABULARY, Pairs, tiny_model

from hf_mlnmt import fuse
from hf_mlnmt.recipe.schema import DistortionSettings
from hf_mlnmt.training import Task, Translation
from hf_mlnmt.training.fusion_objectives import FusionNBest, FusionTrellis
from hf_mlnmt.training.objectives import (
    DecoderLanguageModel,
    Distortion,
    EncoderCloze,
    EncoderLanguageModel,
    PseudoEncoder,
)

STEPS = {"text": 10, "n-best": 3, "trellis": 3}
TAU = Distortion(DistortionSettings(distorted=0.4), 4, np.arange(5), VOCABULARY, seed=3)


def _head(seed: int) -> nn.Linear:
    torch.manual_seed(seed)
    return nn.Linear(16, VOCABULARY, bias=False).double()


def text_tasks() -> list[Task]:
    """Translation, and each of the four on a text of its own; texts of few sentences: several epochs."""
    objectives = {
        "encoder-lm": EncoderLanguageModel(0, 3, head=_head(1)),
        "encoder-cloze": EncoderCloze(0, 3, head=_head(2), distortion=TAU),
        "decoder-lm": DecoderLanguageModel(0, 3, 0.1),
        "pseudo-encoder": PseudoEncoder(0, 3, distortion=TAU),
    }
    tasks = [Task(Pairs(), Translation(0, 0.1), 1, "translation")]
    return [*tasks, *(Task(Text(24, 10 + n), one, 1, name) for n, (name, one) in enumerate(objectives.items()))]


def fused_tasks(kind: str) -> list[Task]:
    """One, of either approximation."""
    how = {"max_length": 6}
    objective = FusionNBest(0, n=3, **how) if kind == "n-best" else FusionTrellis(0, beams=3, **how)
    return [Task(Pairs(24, longest=5), objective, 1, "fusion")]


def model_of(kind: str) -> Any:
    """Tiny, float64, without dropout."""
    translation = tiny_model(dropout=0.0).double()
    if kind == "text":
        return translation
    return fuse(translation, our_language_model(VOCABULARY), alpha=1.0, beta=0.5)


def trainer_of(kind: str, folder: Path) -> Any:
    """A short training of it."""
    tasks = text_tasks() if kind == "text" else fused_tasks(kind)
    return toy_trainer(folder / kind, tasks, model_of(kind), **{**SETTINGS, "max_steps": STEPS[kind]})


def main(folder: Path) -> None:
    for kind in STEPS:
        run = trainer_of(kind, folder)
        run.train()
        save_run(run, folder, kind)
    PartialState().destroy_process_group()  # its threads could abort Python as it ends


if __name__ == "__main__":
    main(Path(sys.argv[1]))
