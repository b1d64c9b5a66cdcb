"""A whole run on a made-up language, small enough for tests: word i of the source is word i of the target."""

from __future__ import annotations

import io
import random
import shutil
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest import mock

import yaml
from rich.console import Console

from hf_mlnmt.evaluation import score
from hf_mlnmt.training import run_recipe
from hf_mlnmt.training.callbacks import DrawCurves

FINAL = ("average/model.safetensors", "best/model.safetensors")
WORDS = ["ba", "do", "ki", "lu", "me", "no", "pa", "ro", "su", "ti"]


def write_corpus(folder: Path, sizes: dict[str, int] | None = None, languages: Any = ("en", "de")) -> Path:
    """train, val and test as text files: the target says each source word twice as long and ends with a full stop."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = random.Random(1)
    for part, size in (sizes or {"train": 120, "val": 10, "test": 10}).items():
        sources = [[rng.choice(WORDS) for _ in range(rng.randint(1, 6))] for _ in range(size)]
        targets = [" ".join(word + word[::-1] for word in words) + "." for words in sources]
        for language, lines in zip(languages, ([" ".join(words) for words in sources], targets)):
            (folder / f"{part}.{language}").write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    return folder


def write_recipe(path: Path, scores: bool = True, **changes: Any) -> Path:
    """A recipe for it: 20 steps, a checkpoint every 4. Changes replace a section, but for `data`, to which they add.

    Without `scores` nothing is translated, which takes a third of the time: losses choose, and there is no test set.
    """
    sizes = {"d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32}
    languages = changes.get("languages", {"source": "en", "target": "de"})
    recipe: dict[str, Any] = {
        "languages": languages,
        "data": {
            part: {"files": {side: f"{name}.{code}" for side, code in languages.items()}}
            for part, name in PARTS.items()
        },
        "model": {"system": "transformer", "shape": "tiny", "settings": sizes},
        "tokenizer": {"vocab_size": 120, "byte_fallback": False},
        "batch": {"tokens": 60},
        "optimizer": {"learning_rate": 0.01},
        "schedule": {"name": "cosine", "warmup": 3},
        "budget": {"steps": 20},
        "evaluation": {"every": 4} if scores else UNSCORED,
        "checkpoints": {"keep": 3, "average": 3},
        "decoding": {"beams": 2, "max_new_tokens": 20},
        "logging": {"every": 5},
    }
    recipe["data"]["test"] = {"made_up": recipe["data"].pop("test")} if scores else {}
    recipe["data"]["max_length"] = 40
    recipe["data"] |= changes.pop("data", {})
    path.write_text(yaml.safe_dump({**recipe, **changes}, sort_keys=False), encoding="utf-8")
    return path


UNSCORED = {"every": 4, "metrics": [], "best": "loss"}
PARTS = {"train": "train", "dev": "val", "test": "test"}


def run(recipe: Path, data: Path, output: Path, curves: bool = False, **options) -> str:
    """Run in this process; what was printed, and few resamples for intervals.

    `curves`: draw them too, a third of the time that a small run takes.
    """
    text = io.StringIO()
    drawing = nullcontext() if curves else mock.patch.object(DrawCurves, "draw")
    with drawing, mock.patch.dict(score.__kwdefaults__, bootstrap=20):
        run_recipe(recipe, data, output, console=Console(file=text, width=200), **options)
    return text.getvalue()


def run_in(folder: Path, dry_run: bool = False, **changes: Any) -> str:
    """Run in a folder of its own, the recipe changed as by `write_recipe`; what was printed."""
    folder.mkdir(exist_ok=True)
    recipe = write_recipe(folder / "recipe.yaml", **changes)
    return run(recipe, write_corpus(folder / "data"), folder / "run", dry_run=dry_run)


def killed(folder: Path, to: Path, *steps: int) -> Path:
    """A copy of a finished run as a kill would have left it before the checkpoints of these steps."""
    shutil.copytree(folder, to)
    for name in ("best", "average", *(f"checkpoints/checkpoint-{step}" for step in steps)):
        shutil.rmtree(to / name, ignore_errors=True)
    (to / "results.json").unlink()
    return to


def same_weights(left: Path, right: Path) -> bool:
    """Whether two runs ended with the same models, bit for bit."""
    return all((left / name).read_bytes() == (right / name).read_bytes() for name in FINAL)
