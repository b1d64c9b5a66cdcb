"""The tour of `hf-mlnmt demo`: makes the demo corpus, trains, translates, publishes and reloads a model."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from hf_mlnmt.common.files import check_folder_name
from hf_mlnmt.common.model_folder import RESULTS
from hf_mlnmt.data import read_lines
from hf_mlnmt.demo import write_demo_corpus

if TYPE_CHECKING:
    from rich.console import Console

TEST_SENTENCES = 5  # number of test sentences that are shown with their translations
BATCH_TOKENS = 1024  # tokens of a batch, divided among the processes
# Settings of the recipe for a small tour: the model learns little, but every step is run.
SMALL = ("budget.steps=240", "schedule.warmup=60", "evaluation.every=120", "checkpoints.average=1")


def tour(
    output: Path,
    seed: int,
    small: bool,
    processes: int,
    run_in_processes: Callable[[int, list[str]], int],
    console: Console,
) -> int:
    """Makes the corpus, trains, translates, publishes and reloads a model; returns the training's exit code.

    output: the folder of all files; those of an earlier call are used again. small: train for seconds only.
    """
    from hf_mlnmt.evaluation import read_results
    from hf_mlnmt.hub import build_folder

    data, run, hub = output / "data", output / "run", output / "hub"
    check_folder_name(output)
    console.rule("1. a corpus of 40,000 sentence pairs, from a grammar")
    if not (data / "test.de.gz").is_file():
        write_demo_corpus(data, seed=seed)
    console.print(f"{data}: train, val and test, English and German")

    arguments = ["train", "demo-ende", "--data", str(data), "--output", str(run), "--seed", str(seed)]
    arguments += ["--set", f"batch.tokens={BATCH_TOKENS // processes}"]
    for setting in SMALL if small else ():
        arguments += ["--set", setting]
    console.rule(f"2. hf-mlnmt {' '.join(arguments)} --processes {processes}")
    if code := run_in_processes(processes, arguments):
        return code

    console.rule(f"3. hf-mlnmt translate {run / 'average'}")
    _translate(run / "average", data, console)

    console.rule(f"4. hf-mlnmt publish {run / 'average'} --output {hub}")
    build_folder(run / "average", hub)
    console.print(", ".join(sorted(path.name for path in hub.iterdir())))

    console.rule(f'5. AutoModelForSeq2SeqLM.from_pretrained("{hub}")')
    sentence = _first_lines(data / "test.en.gz")[0]
    console.print(f"{sentence} -> {_reload(hub, sentence)}")
    scores = read_results(run / RESULTS).scores["held-out"]["cased"]
    console.rule(f"held-out BLEU {scores['BLEU']['score']:.1f}", style="bold green")
    console.print(f"Try it in a browser: hf-mlnmt serve {hub} (needs pip install 'hf-mlnmt\\[serve]')", soft_wrap=True)
    return 0


def _translate(model: Path, data: Path, console: Console) -> None:
    from hf_mlnmt.generation import TranslationPipeline

    translate = TranslationPipeline.from_pretrained(str(model))
    sources, references = _first_lines(data / "test.en.gz"), _first_lines(data / "test.de.gz")
    for source, translation, reference in zip(sources, translate(sources), references, strict=True):
        verdict = "[green]as the reference" if translation == reference else f"[yellow]not: {reference}"
        console.print(f"[dim]{source}[/dim]\n{translation}  {verdict}")


def _first_lines(path: Path) -> list[str]:
    return list(islice(read_lines(path), TEST_SENTENCES))


def _reload(folder: Path, text: str) -> str:
    """Translates a text with the published folder's model, loaded by Transformers' own classes alone."""
    from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForSeq2SeqLM.from_pretrained(folder)
    output = model.generate(**tokenizer(text, return_tensors="pt"))
    return str(tokenizer.decode(output[0], skip_special_tokens=True))
