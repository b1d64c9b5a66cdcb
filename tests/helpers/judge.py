"""The sacrebleu command as the judge of our numbers, and outputs to judge."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any


def disturb(lines: list[str], rate: float, seed: int) -> list[str]:
    """A 'translation': words of the reference dropped, doubled or replaced."""
    rng = random.Random(seed)

    def word(text: str) -> list[str]:
        kind = rng.random() / rate
        return [[], [text, text], ["Haus"]][int(3 * kind)] if kind < 1 else [text]

    return [" ".join(part for text in line.split() for part in word(text)) for line in lines]


def sacrebleu(folder: Path, *arguments: str) -> Any:
    """The JSON that the sacrebleu command prints."""
    return json.loads(sacrebleu_text(folder, *arguments, "-f", "json"))


def sacrebleu_text(folder: Path, *arguments: str) -> str:
    """What the sacrebleu command prints."""
    environment = {k: v for k, v in os.environ.items() if k != "SACREBLEU_SEED"}
    command = [sys.executable, "-m", "sacrebleu", *arguments]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout
