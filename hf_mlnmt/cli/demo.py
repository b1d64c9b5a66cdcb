"""`hf-mlnmt demo`: everything from nothing to a published, reloaded translation model, on a corpus of our own."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

STEM = "transformer.demo-ende"
TEST_SENTENCES = 5
BATCH_TOKENS = 1024  # of all processes together


def demo(
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for corpus, run and model.")] = Path("demo"),
    seed: Annotated[int, typer.Option(help="Seed of the corpus and of the training.")] = 1,
) -> None:
    """Train, score, try, publish and reload a small English-German model: minutes on two cores, no network.

    The corpus is written by a grammar of the project's own; its test set holds combinations of words that training
    never shows. Started again after an interruption it goes on where it was.
    """
    from rich.console import Console

    from hf_mlnmt.cli.processes import cores, run_in_processes
    from hf_mlnmt.demo import write_demo_corpus
    from hf_mlnmt.evaluation import read_results
    from hf_mlnmt.generation import TranslationPipeline
    from hf_mlnmt.hub import build_folder

    console = Console(stderr=True)
    data, run, hub = output / "data", output / "run", output / "hub"

    console.rule("1. a corpus of 40,000 sentence pairs, from a grammar")
    if not (data / "test.de.gz").is_file():
        write_demo_corpus(data, seed=seed)
    console.print(f"{data}: train, val and test, English and German")

    processes = min(2, cores())
    arguments = ["train", STEM, "--data", str(data), "--output", str(run), "--seed", str(seed)]
    arguments += ["--set", f"batch.tokens={BATCH_TOKENS // processes}"]
    console.rule(f"2. hf-mlnmt {' '.join(arguments)} --processes {processes}")
    if code := run_in_processes(processes, arguments):
        raise typer.Exit(code)

    console.rule(f"3. hf-mlnmt translate {run / 'average'}")
    translate = TranslationPipeline.from_pretrained(str(run / "average"))
    sources, references = _first_lines(data / "test.en.gz"), _first_lines(data / "test.de.gz")
    for source, translation, reference in zip(sources, translate(sources), references, strict=True):
        verdict = (
            "[green]as the reference[/green]" if translation == reference else f"[yellow]not: {reference}[/yellow]"
        )
        console.print(f"[dim]{source}[/dim]\n{translation}  {verdict}")

    console.rule(f"4. hf-mlnmt publish {run / 'average'} --to {hub}")
    build_folder(run / "average", hub)
    console.print(", ".join(sorted(path.name for path in hub.iterdir())))

    console.rule(f'5. AutoModelForSeq2SeqLM.from_pretrained("{hub}")')
    console.print(f"{sources[0]} -> {_reload(hub, sources[0])}")
    bleu = read_results(run / "results.json").scores["held-out"]["cased"]["BLEU"]["score"]
    console.rule(f"held-out BLEU {bleu:.1f}", style="bold green")


def _first_lines(path: Path) -> list[str]:
    from itertools import islice

    from hf_mlnmt.data import read_lines

    return list(islice(read_lines(path), TEST_SENTENCES))


def _reload(folder: Path, text: str) -> str:
    """A translation with nothing but Transformers' own classes, from the published folder."""
    from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForSeq2SeqLM.from_pretrained(folder)
    output = model.generate(**tokenizer(text, return_tensors="pt"))
    return str(tokenizer.decode(output[0], skip_special_tokens=True))
