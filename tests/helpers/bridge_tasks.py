"""A model of the attention bridge and tasks of three of its pairs: in this process, or as a program by several.

accelerate launch ... tests/helpers/bridge_tasks.py FOLDER      trains them; writes weights and what each step changed
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState
from transformers import AutoModelForSeq2SeqLM

if __name__ == "__main__":  # as a program it finds its neighbours by the folder above
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from helpers.toy_tasks import Changed, save_run, toy_trainer
from helpers.training_helpers import VOCABULARY, Pairs

from hf_mlnmt import config_for
from hf_mlnmt.training import Task, Translation

PAIRS = [("de", "en"), ("en", "fr"), ("fr", "fr")]
SETTINGS: dict[str, Any] = {"max_steps": 8, "gradient_accumulation_steps": 2, "max_grad_norm": 0.0, "logging_steps": 1}


def bridge_tasks() -> list[Task]:
    """Two pairs of languages and a copy."""
    found = []
    for number, (source, target) in enumerate(PAIRS):
        names = {"source_language": source, "target_language": target}
        found.append(Task(Pairs(40, seed=number), Translation(0, 0.1, languages=names), 1, f"{source}-{target}"))
    return found


def bridge_model(system: str = "bridge-rnn") -> Any:
    """Tiny, float64, without dropout."""
    sizes = {"d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "bridge_heads": 3, "bridge_width": 8}
    languages = {"source_languages": ["de", "en", "fr"], "target_languages": ["en", "fr"]}
    tokens = {"vocab_size": VOCABULARY, "pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 0}
    torch.manual_seed(0)
    config = config_for(system, "tiny", **sizes, **languages, **tokens, dropout=0.0)
    return AutoModelForSeq2SeqLM.from_config(config).double()


def main(folder: Path) -> None:
    run = toy_trainer(folder / "run", bridge_tasks(), bridge_model(), **SETTINGS)
    run.add_callback(changed := Changed(run.model))
    run.train()
    (folder / f"rank{PartialState().process_index}.json").write_text(json.dumps(changed.steps))
    save_run(run, folder)
    PartialState().destroy_process_group()  # its threads could abort Python as it ends


if __name__ == "__main__":
    main(Path(sys.argv[1]))
