"""Small seeded test sets."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import pytest
from helpers.judge import disturb

SENTENCES = [
    "Ein Mann mit einem orangefarbenen Hut, der etwas anstarrt.",
    "Dr. Müller sagt: „Das ist z. B. ein Hund!“",
    "Zwei Hunde (ein brauner, ein weißer) laufen über saftig-grünes Gras.",
    "Die Frau im blau-weißen T-Shirt kauft 2,5 kg Äpfel für 3.99 € ...",
    "Fünf Leute stehen im Schnee; hinter ihnen sieht man Schneemobile.",
    'Auf dem Schild steht "Asian Pacific 2007" & mehr.',
    "Kinder spielen, während der Vater kocht.",
    "Ein Junge springt ins Wasser – seine Schwester lacht.",
]


@pytest.fixture(scope="session")
def references() -> list[str]:
    """104 raw German sentences, no two alike."""
    rng = random.Random(7)
    return [
        f"{sentence} {' '.join(rng.sample(['rot', 'blau', 'grün', 'alt', 'neu', 'klein'], 3))}."
        for sentence in SENTENCES * 13
    ]


@pytest.fixture(scope="session")
def systems(references: list[str]) -> dict[str, list[str]]:
    """Three outputs, the first the best; one of them has an empty line."""
    outputs = {
        name: disturb(references, rate, i) for i, (name, rate) in enumerate({"a": 0.2, "b": 0.25, "c": 0.5}.items())
    }
    outputs["c"][3] = ""
    return outputs


@pytest.fixture
def files(tmp_path: Path, references: list[str], systems: dict[str, list[str]]) -> Path:
    """A folder with test.de, second.de (another reference) and one file a system."""
    second = disturb(references, 0.3, 99)
    for name, lines in {
        "test.de": references,
        "second.de": second,
        **{f"{k}.txt": v for k, v in systems.items()},
    }.items():
        (tmp_path / name).write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    return tmp_path


@pytest.fixture
def evaluate_cache(tmp_path_factory, monkeypatch):
    """An `evaluate` cache of its own: the user's stays clean, and what other tests have loaded does not matter.

    `evaluate` copies a module into its cache and imports it from there, as part of a package `evaluate_modules`.
    """
    import evaluate.config

    def forget() -> None:
        for name in [name for name in sys.modules if name.split(".")[0] == "evaluate_modules"]:
            del sys.modules[name]

    folder = tmp_path_factory.mktemp("evaluate")
    monkeypatch.setattr(evaluate.config, "HF_METRICS_CACHE", folder)
    monkeypatch.setattr(evaluate.config, "HF_MODULES_CACHE", str(folder / "modules"))
    others = [path for path in sys.path if (Path(path) / "evaluate_modules").is_dir()]  # of a load without this fixture
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path not in others])
    forget()
    yield
    forget()
