"""After training: the best and the average model as complete folders."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file
from transformers import GenerationConfig

from hf_mlnmt.data.text import begin_texts
from hf_mlnmt.errors import UserError
from hf_mlnmt.files import atomic_folder
from hf_mlnmt.model_folder import WEIGHTS, copy_all_but_weights, is_causal_folder
from hf_mlnmt.training import checkpoints
from hf_mlnmt.training.averaging import average_checkpoints
from hf_mlnmt.training.scoring import MadeOf, digest_of_model
from hf_mlnmt.training.tasks import is_head


def write_model(
    folder: Path, checkpoint: Path, weights_of: list[Path], generation: GenerationConfig | None = None
) -> Path:
    """A model folder from a checkpoint's config and tokenizers and the mean weights of `weights_of`; atomically.

    A causal language model's tokenizer puts <s> before a text and nothing behind it. Heads of objectives stay behind.
    `generation` replaces the checkpoint's generation_config.
    """
    with atomic_folder(folder) as new, checkpoints.explain_full_disk(new):
        copy_all_but_weights(checkpoint, new)
        if generation is not None:
            generation.save_pretrained(new)
        if is_causal_folder(new):
            begin_texts(new)
        weights = load_file(checkpoint / WEIGHTS) if weights_of == [checkpoint] else average_checkpoints(weights_of)
        weights = {name: tensor for name, tensor in weights.items() if not is_head(name)}
        save_file(weights, new / WEIGHTS, metadata={"format": "pt"})
    return folder


def best_and_average(
    run: Path, steps: list[int], best_step: int | None, output: Path, generation: GenerationConfig | None
) -> dict[str, Path]:
    """Write output/best and output/average, unless they are there as they would be. `steps`: what to average.

    Raises: UserError for a checkpoint that is not whole.
    """
    folder = {step: run / f"checkpoint-{step}" for step in [*steps, best_step or steps[-1]]}
    for path in folder.values():
        if problem := checkpoints.what_is_wrong(path):
            raise UserError(f"{path}: {problem}. Delete this folder and run the same command again: it is made anew.")
    best, last = folder[best_step or steps[-1]], folder[steps[-1]]
    made, found = MadeOf(output), {}
    for name, first, weights_of in (("best", best, [best]), ("average", last, [folder[step] for step in steps])):
        product, made_of = f"model/{name}", digest_of_model(weights_of, generation)
        if not (output / name / WEIGHTS).is_file() or not made.same(product, made_of):
            write_model(output / name, first, weights_of, generation)
            made.note(product, made_of)
        found[name] = output / name
    return found


def read_state(checkpoint: Path) -> dict[str, Any]:
    """trainer_state.json and meter.json of a checkpoint: what was done and what it cost."""
    state = json.loads((checkpoint / "trainer_state.json").read_text(encoding="utf-8"))
    meter = json.loads((checkpoint / "meter.json").read_text(encoding="utf-8"))
    return {**state, "meter": meter}
