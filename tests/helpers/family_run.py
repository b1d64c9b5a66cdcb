"""One member of each kind of family, trained for a few steps: by tests in this process, or as a program by several.

accelerate launch ... tests/helpers/family_run.py FOLDER      writes FOLDER/<system>.safetensors
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState
from safetensors.torch import save_file

if __name__ == "__main__":  # as a program it finds its neighbours by the folder above
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from helpers.training_helpers import VOCABULARY, Pairs, arguments, tiny_config
from transformers import AutoModelForSeq2SeqLM

from hf_mlnmt import config_for
from hf_mlnmt.training import Batches, Task, Translation, TranslationTrainer

# Layers gathered again and again, losses of several decoders, and dense connections through both sides.
FAMILIES = ["iter-c-agg", "ms-12-aif", "full-dc"]
_SIZES = {"d_model": 16, "encoder_layers": 3, "decoder_layers": 1, "vocab_size": VOCABULARY}
_SHAPE = {key: value for key, value in tiny_config().to_dict().items() if "ffn_dim" in key or "heads" in key}


def build(system: str, seed: int = 0, **fields: Any) -> Any:
    """A tiny model of the system with three encoder layers."""
    torch.manual_seed(seed)
    return AutoModelForSeq2SeqLM.from_config(config_for(system, "tiny", **{**_SHAPE, **_SIZES, **fields}))


def trainer(system: str, folder: Path, seed: int = 0, dropout: float = 0.1, **settings: Any) -> TranslationTrainer:
    """Its trainer on 60 random pairs."""
    model = build(system, seed, dropout=dropout)
    return TranslationTrainer(model, arguments(folder, **settings), Task(Pairs(), Translation(0, 0.1)), Batches(60))


def main(folder: Path) -> None:
    for system in FAMILIES:
        run = trainer(system, folder / system, dropout=0.0, logging_steps=1)
        run.train()
        if run.is_world_process_zero():
            state = run.accelerator.unwrap_model(run.model).state_dict()
            save_file({name: tensor.clone() for name, tensor in state.items()}, folder / f"{system}.safetensors")
            run.state.save_to_json(str(folder / f"{system}.json"))
    PartialState().destroy_process_group()  # its threads could abort Python as it ends


if __name__ == "__main__":
    main(Path(sys.argv[1]))
