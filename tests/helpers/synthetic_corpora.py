"""A synthetic corpus without a model, for what reads one: the pairs of tiny_run's language, copied or with noise."""

from __future__ import annotations

from pathlib import Path

from hf_mlnmt.generation.synthetic.back_translation import Method, Settings, back_translate


def write_synthetic(folder: Path, lines: list[str], tag: str | None = None) -> Path:
    """Lines as the target, and their copies as the source."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    text = folder.parent / f"{folder.name}.text"
    text.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    back_translate(None, [text], folder, Method("copied"), Settings(drop=()), tag=tag)
    return folder
