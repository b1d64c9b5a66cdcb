"""`hf-mlnmt train`: runs a whole training from a recipe or two files, or rounds of back-translation."""

import signal
import sys
from functools import partial
from pathlib import Path
from typing import Any, Literal

import typer

from hf_mlnmt.cli import options
from hf_mlnmt.cli.options import argument, option
from hf_mlnmt.common.errors import UserError
from hf_mlnmt.common.keys import variable

PANEL = "Train"
_of_pair = partial(option, rich_help_panel="From two files, without a recipe")


def train(
    recipe: list[str] | None = argument(
        None, "A setup such as multi30k-ende, a folder like it, or a YAML file.", metavar="RECIPE"
    ),
    pair: tuple[str, str] | None = _of_pair(
        None, "Two files, line by line, or one of both languages (.tmx): a recipe is chosen.", metavar="SOURCE TARGET"
    ),
    from_: str | None = _of_pair(None, "Code of the source language; unless told, train.en says en.", "--from"),
    to: str | None = _of_pair(None, "Code of the target language; the same."),
    bad_lines: Literal["error", "drop"] = _of_pair("error", "At broken lines of --pair: stop, or drop the pair."),
    keep_accelerators: bool = _of_pair(False, "Signs of keys (&File, _Open) stay in text of .po and .mo."),
    dev: tuple[str, str] | None = _of_pair(None, "Development set; else some pairs.", metavar="SOURCE TARGET"),
    test: list[str] | None = _of_pair(None, "A test set. Give it again for more.", metavar="SOURCE TARGET"),
    text: str | None = _of_pair(None, "Target text to translate back and train on; with --student: source text."),
    init_from: str | None = _of_pair(None, "A trained model, a folder or Hub name, that is fine-tuned."),
    student: str | None = _of_pair(
        None, "A student of --teacher is trained: student-tiny, student-base, student-self-attention.", metavar="SIZE"
    ),
    teacher: list[str] | None = _of_pair(None, "Model folder or Hub name. Give it again for an ensemble."),
    reverse: str | None = _of_pair(None, "Model of the other direction: what it finds unlikely is left out."),
    system: str | None = option(None, "A system of the zoo, m-10, or a recipe of the setup. Default: the recipe's."),
    data: options.DataFolder = Path(),
    output: Path | None = options.output(None, "Folder of this run, or of all rounds. Default: runs/<recipe>."),
    set_: options.Settings = None,
    seed: int | None = option(None, "Replace the recipe's seed.", min=0, max=2**31 - 1),
    processes: int = option(1, "GPUs or cores; each has batch.tokens a step.", "--processes", "-p", min=1),
    requeue_code: int | None = option(None, "Exit code after SIGTERM or SIGUSR1, for a scheduler.", min=1, max=255),
    check: bool = option(False, "Look for changes by reading all text; else by sizes and times."),
    dry_run: bool = option(False, "Check everything and estimate time and memory; leave nothing."),
) -> None:
    """Train a model: tokenizer, data, training, averaging, scores, a complete model folder.

    After a stop at any moment the same command resumes from the last checkpoint and ends with the same weights. A
    finished run can be started again with other test sets, decoding options or a longer budget. The run's folder has
    average/ and best/, results.json, metrics.jsonl, curves.png and checkpoints/.

    Several processes, rounds of back-translation, recipes, students, what --pair chooses: docs/training.md. A new
    language for a trained model, `--set model.add_to=MODEL`: docs/multilingual.md.

    Examples:

        hf-mlnmt train --pair train.en train.de --test test.en test.de
        hf-mlnmt train --pair mine.en mine.de --init-from published/en-de
        hf-mlnmt train --pair memory.tmx --from en --to de
        hf-mlnmt train --student student-tiny --teacher MODEL --pair train.en train.de --text news.en
        hf-mlnmt train multi30k-ende --system m-10 --data DIR --dry-run
        hf-mlnmt train french.yaml --data DIR --set model.add_to=runs/bridge/average -o runs/bridge-fr
    """
    from hf_mlnmt.cli import processes as group

    named = recipe or []
    if pair is None:
        of_pair: dict[str, Any] = {"--from": from_, "--to": to, "--dev": dev, "--test": test, "--text": text}
        of_pair |= {"--bad-lines": bad_lines != "error", "--keep-accelerators": keep_accelerators}
        of_pair |= {"--init-from": init_from, "--student": student, "--teacher": teacher, "--reverse": reverse}
        options.refuse(of_pair, "is of --pair; a recipe says it with its keys (languages, data, rounds, init_from).")
        if len(named) != 1:
            raise UserError(
                f"train: expected one recipe (a setup such as multi30k-ende, or a YAML file), not {len(named)}; or two "
                "files, as in: hf-mlnmt train --pair train.en train.de"
            )
    elif len(named) != len(test or []) or any(name.endswith((".yaml", ".yml")) for name in named):
        raise UserError(
            f"train: with --pair the recipe is chosen, so give either --pair or {' '.join(named) or 'a recipe'}. "
            "--pair, --dev and each --test need two files, as in --test test.en test.de."
        )
    elif bool(student) != bool(teacher) or (student is None and reverse) or (student and system):
        raise UserError(
            "train: a student needs both --student SIZE and --teacher MODEL; --reverse is of these, and SIZE says the "
            "--system."
        )
    started_by_us = group.end_with_parent()
    # Starts the processes, unless this process is one of them: torchrun sets RANK in each.
    if processes > 1 and variable("RANK", int) is None:
        group.check_processes(processes, "--processes")
        raise typer.Exit(_asking(requeue_code, group.run_in_processes(processes, sys.argv[1:])))

    from accelerate import PartialState
    from rich.console import Console

    from hf_mlnmt.cli.terminal import Progress
    from hf_mlnmt.training import TwoFiles, run_recipe, train_pair
    from hf_mlnmt.training.callbacks import Interrupted

    code = 0
    try:
        with Progress(console := Console(stderr=True)) as progress:
            watcher = progress.watcher()
            if pair is not None:
                # typer cannot repeat an option with two values: `named` holds the second file of each --test.
                tests = tuple(zip(test or [], named, strict=True))
                asked = TwoFiles(
                    *(pair, from_, to, dev, tests, text, system, init_from, student, tuple(teacher or ()), reverse),
                    bad_lines,
                    keep_accelerators,
                )
                train_pair(asked, data, output, set_ or [], seed, dry_run, console, watcher, check)
            else:
                run_recipe(named[0], data, output, set_ or [], seed, dry_run, console, watcher, system, check)
    except Interrupted as interrupted:
        typer.echo(str(interrupted), err=True)
        code = _asking(requeue_code, 128 + interrupted.signum)
    except (RuntimeError, OSError) as error:
        if not group.lost_the_others(error):
            raise
        if not started_by_us:
            typer.echo(
                "error: the connection to another process was lost: it says why, unless its machine is gone. The last "
                "checkpoint is kept: the same command goes on from there.",
                err=True,
            )
        group.end_after_the_first()
    if started_by_us:
        group.end_at_once(code)
    # A process group that is open when Python ends sometimes aborts the process, as its threads use freed objects.
    # After an error the group is not closed, since closing could wait forever for a process that has ended.
    PartialState().destroy_process_group()
    if code:
        raise typer.Exit(code)


def _asking(requeue_code: int | None, code: int) -> int:
    """Returns the exit code of the command: requeue_code, if given, instead of the code of SIGTERM or SIGUSR1."""
    ended = [128 + getattr(signal, name, 0) for name in ("SIGTERM", "SIGUSR1")]
    return requeue_code if requeue_code is not None and code in ended else code
