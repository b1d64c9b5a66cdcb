"""A model from two files: a corpus is read, a development set held out, a recipe chosen and written, and trained.

With a trained model to begin with (`init_from`) that is fine-tuned: tokenizer and shape are its own.

The run's folder has recipe.yaml, to copy and change, and pair/: asked.json, what was asked for, by checksums, and what
was chosen; dev.*, the pairs that were held out; train.* and text.*, what is left without sentences of the development
set, where there were such.

What is asked again is not read again: the recipe of the first time is trained on. recipe/sizes.py has the choices.
"""

from __future__ import annotations

import copy
import heapq
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any, TypeVar

import torch
from rich.console import Console

from hf_mlnmt.common.errors import UserError, naming
from hf_mlnmt.common.files import atomic_folder, read_json, size_and_crc, write_json, write_text
from hf_mlnmt.common.languages import check_language, direction_of, same_language
from hf_mlnmt.common.made_from import differences
from hf_mlnmt.common.model_folder import auto_class_of, check_model_folder, read_config
from hf_mlnmt.data.corpus import CorpusSpec, read_pairs
from hf_mlnmt.data.filters import FilterReport, Pair, PairFilter
from hf_mlnmt.data.text import TextSpec, check_untold, read_text
from hf_mlnmt.data.tokenizer import languages_of as codes_of
from hf_mlnmt.data.tokenizer import load_tokenizers
from hf_mlnmt.data.words import words
from hf_mlnmt.evaluation import Results
from hf_mlnmt.generation.synthetic.back_translation import Watcher
from hf_mlnmt.recipe import sizes
from hf_mlnmt.recipe.reading import recipe_of, set_key
from hf_mlnmt.recipe.schema import Recipe
from hf_mlnmt.training import folder
from hf_mlnmt.training.init_from import local_folder
from hf_mlnmt.training.processes import join_group, main_first, meet
from hf_mlnmt.training.rounds import PlannedRound, rounds_of
from hf_mlnmt.training.run import run_recipe
from hf_mlnmt.zoo.systems import positions_of

HELD_OUT = 1000  # pairs, or a twentieth of a smaller corpus
FEWEST_HELD_OUT = 50  # where a model is fine-tuned, of 200 pairs and more
MAX_LENGTH = 256  # subwords, as data.max_length and decoding.max_new_tokens say unless told
FEWEST = 200  # distinct pairs that a training is begun with
Row = TypeVar("Row", bound=Sequence[str])
RECIPE, HELD, ASKED = folder.RECIPE, "pair", "asked.json"


@dataclass(frozen=True)
class TwoFiles:
    """The files that a user has, all relative to --data.

    pair: sources and targets. source, target: codes of their languages; unless told, the file names say them.
    dev, test: pairs of files. text: sentences of the target language. system: of the zoo. init_from: a trained model, a
    folder or Hub name, that is fine-tuned.
    """

    pair: tuple[str, str]
    source: str | None = None
    target: str | None = None
    dev: tuple[str, str] | None = None
    test: Sequence[tuple[str, str]] = ()
    text: str | None = None
    system: str | None = None
    init_from: str | None = None

    @property
    def name(self) -> str:
        """Returns the run's name: train.en-de of train.en and train.de."""
        stem = sizes.stem_of(self.pair[0])
        pair = "-".join(sizes.languages_of(self.pair, (self.source, self.target)))
        return stem if stem.endswith(pair) else f"{stem}.{pair}"


@folder.each_said_once()
def train_pair(
    asked: TwoFiles,
    data: str | Path = ".",
    output: str | Path | None = None,
    settings: Sequence[str] = (),
    seed: int | None = None,
    dry_run: bool = False,
    console: Console | None = None,
    watcher: Watcher | None = None,
    check: bool = False,
    extend: Callable[[dict[str, Any], Path, list[str], Callable[[dict[str, Any]], Any]], list[str]] | None = None,
) -> Results | dict[str, Results] | None:
    """Chooses a recipe for two files, writes it into the run's folder and trains it, as `run_recipe` does.

    output: unless told, runs/<name of the files>, with the seed if it is given. settings, seed: replace keys of the
    recipe that was chosen. extend: changes the recipe's content, in the run's folder, and what is said of it, and has
    it checked before it measures (training/students.py). Raises: UserError for files that are missing, broken, too
    small or do not go together.
    """
    console = console or Console(stderr=True)
    data, languages = Path(data), sizes.languages_of(asked.pair, (asked.source, asked.target))
    output = Path(output or Path("runs") / (asked.name if seed is None else f"{asked.name}.seed{seed}"))
    processes, at = join_group(), Path(f"{asked.name}.yaml")

    def told(content: dict[str, Any]) -> dict[str, Any]:
        held = {"dev": content["data"]["dev"]} if asked.init_from else {}  # to be scored by both models
        content["data"]["test"] = _tests(asked, held)
        if asked.system is not None:
            content["model"]["system"] = asked.system
        for setting in settings:
            set_key(content, setting)
        if seed is not None:
            content["seed"] = seed
        return content

    def planned(content: dict[str, Any]) -> tuple[Recipe, dict[str, PlannedRound] | None]:
        recipe = recipe_of(copy.deepcopy(content), at)
        return recipe, None if recipe.rounds is None else rounds_of(content, None, at)

    with ExitStack() as stack:
        asking = _asking(asked, languages, data)
        with nullcontext() if dry_run else main_first():
            before = _kept(output, asking)
            home = output if before or not dry_run else stack.enter_context(folder.temporary())
            if before is None:
                with _no_empty(home), atomic_folder(home / HELD) as making:
                    content, lines = _chosen(asked, languages, data, making, home / HELD, processes.num_processes)
                    write_json(making / ASKED, {"asked": asking, "content": content, "lines": lines})
            else:
                content, lines = before["content"], before["lines"]
            if extend:
                lines = extend(content, home, lines, lambda content: planned(told(copy.deepcopy(content))))
        recipe, rounds = planned(told(content))
        if processes.is_main_process:
            for line in [*lines, *([] if dry_run else [f"recipe: {home / RECIPE}, to copy and change"])]:
                console.print(line, highlight=False, markup=False, soft_wrap=True)
        path = home / RECIPE
        if rounds is not None:  # each of them compares its own keys with those of before
            folder.compare(home, recipe)
        changed = [f"changed by --set: {setting}" for setting in settings]
        if processes.is_main_process and (rounds is not None or not (dry_run or path.is_file())):
            write_text(path, sizes.to_yaml(content, [f"{asked.name}, to copy and change:", *lines, *changed]))
        meet()
        return run_recipe(
            recipe, data, output, dry_run=dry_run, console=console, watcher=watcher, check=check, rounds=rounds
        )


def _asking(asked: TwoFiles, languages: tuple[str, str], data: Path) -> dict[str, Any]:
    """Returns what a recipe is chosen for, files by their checksums. UserError for what does not go together."""
    _check_files(asked, languages, data)
    if asked.init_from and (asked.text or asked.system):
        raise UserError(
            "--init-from: the model says its system, and translates in one direction: leave out --system, and --text, "
            "which needs a model of the other one."
        )
    files = [*asked.pair, *(asked.dev or ()), *([asked.text] if asked.text else [])]
    return {
        "pair": list(asked.pair),
        "languages": list(languages),
        "dev": list(asked.dev) if asked.dev else None,
        "text": asked.text,
        "init_from": asked.init_from,
        "checksums": {name: size_and_crc(data / name) for name in files if (data / name).is_file()},
    }


def _kept(home: Path, asking: dict[str, Any]) -> dict[str, Any] | None:
    """Returns the content and lines that were chosen when this was asked for the first time; None if it was not yet.

    Raises: UserError for a folder in which something else is trained already.
    """
    if not (home / HELD / ASKED).is_file():
        folder.check_output(home)
        if (home / RECIPE).is_file() and folder.has_begun(home):
            raise UserError(
                f"{home}: this folder holds a training by another recipe. Choose another --output, or go on with it: "
                f"hf-mlnmt train {home / RECIPE} -o {home}"
            )
        return None
    before = read_json(home / HELD / ASKED, {"asked": dict, "content": dict, "lines": list})
    if not (changed := differences(before["asked"], asking, whole=("checksums.*",))):
        return before
    if folder.has_begun(home):
        listed = "\n".join(f"  {key}: {old} -> {new}" for key, (old, new) in changed.items())
        raise UserError(
            f"{home}: this folder holds another training (old -> new):\n{listed}\nChoose another --output "
            "for the new one, or go back to the old."
        )
    return None


@contextmanager
def _no_empty(home: Path) -> Iterator[None]:
    """Removes a folder that was not there before and is empty when something fails."""
    before = home.exists()
    try:
        yield
    except BaseException:
        if not before:
            with suppress(OSError):
                home.rmdir()
        raise


def _check_files(asked: TwoFiles, languages: tuple[str, str], data: Path) -> None:
    """Raises UserError for a file on both sides, a development set that is the corpus, names of other languages."""
    for option, files in (("--pair", asked.pair), ("--dev", asked.dev), *(("--test", each) for each in asked.test)):
        sizes.check_texts(option, files or ("", ""))
        if files and (data / files[0]).resolve() == (data / files[1]).resolve():
            raise UserError(f"{option}: {files[0]} is given twice. Give the file of each language, sources first.")
        for path, language in zip(files or (), languages):
            check_language(path, language, f"this side of {option} is", "Give sources first, as in --pair.")
    if asked.text:
        check_language(asked.text, languages[1], "--text is read as", "It is text of the target language.")
    if asked.dev and {*map(str, asked.dev)} & {*map(str, asked.pair)}:
        raise UserError(
            "--dev: is the training corpus. Give other sentences, or leave it out: some pairs are held out."
        )


def _tests(asked: TwoFiles, before: dict[str, Any]) -> dict[str, Any]:
    """Returns the test sets by the names of their files, behind those in `before`."""
    tests = dict(before)
    for files in asked.test:
        name = sizes.stem_of(files[0]) or "test"
        while name in tests:
            name += "-2"
        tests[name] = _corpus(*files)
    return tests


def _corpus(source: str | Path, target: str | Path) -> dict[str, Any]:
    return {"files": {"source": str(source), "target": str(target)}}


def _chosen(
    asked: TwoFiles, languages: tuple[str, str], data: Path, making: Path, held: Path, processes: int
) -> tuple[dict[str, Any], list[str]]:
    """Reads the corpus, holds out the development set (into `making`, which becomes `held`), chooses the recipe."""
    spec, kept = CorpusSpec(**_corpus(*asked.pair)), PairFilter(**sizes.FILTERS)
    config = _config_to_tune(asked.init_from, languages, data) if asked.init_from else None
    if asked.dev:
        dev = list(read_pairs(CorpusSpec(**_corpus(*asked.dev)), data))
    else:
        dev = _held_out(kept(read_pairs(spec, data)), FEWEST_HELD_OUT if asked.init_from else 0)
    known = tuple({pair[side].strip() for pair in dev} for side in (0, 1))
    counts, filtered = Counter[str](), FilterReport()
    remaining = kept(unknown(read_pairs(spec, data), known, counts), filtered)
    write_columns(_files(making, "train", languages), _measured(remaining, counts))
    corpus, left = sizes.Measured(counts["pairs"], counts["words"]), counts["known"]
    pairs = corpus.pairs + (0 if asked.dev else len(dev))
    if pairs < FEWEST:
        raise UserError(_too_few(spec, pairs, left, filtered, asked.dev is not None))
    where = held if data == Path() else held.absolute()  # files of a recipe are relative to --data
    train, dev_files = asked.pair, asked.dev
    lines = [f"corpus: {' + '.join(asked.pair)}, {languages[0]} to {languages[1]}: {filtered.read + left:,} pairs"]
    lines += [f"dropped: {reason}: {count:,}" for reason, count in filtered.dropped.most_common()]
    if dev_files:
        lines.append(f"development set: {' + '.join(dev_files)}, {len(dev):,} pairs")
    else:
        dev_files = _files(where, "dev", languages)
        write_columns(_files(making, "dev", languages), dev)
        lines.append(f"development set: {len(dev):,} of the pairs are held out, always the same ones ({HELD}/dev.*)")
    if left:
        train = _files(where, "train", languages)
        lines.append(f"training: without the {left:,} pairs that hold a sentence of it ({HELD}/train.*)")
    else:
        for name in _files(making, "train", languages):
            Path(name).unlink()
    machine = sizes.Machine(torch.accelerator.is_available(), processes, os.cpu_count() or 1)
    if asked.init_from:
        chosen, choices = sizes.tune(corpus, machine, asked.init_from, getattr(config, "d_model", None))
    else:
        chosen, choices = sizes.choose(corpus, machine)
    content: dict[str, Any] = {
        "languages": dict(zip(("source", "target"), languages)),
        "data": {
            "name": " + ".join(Path(name).name for name in asked.pair),
            "train": _corpus(*train),
            "dev": _corpus(*dev_files),
            "filters": dict(sizes.FILTERS),
        },
        **chosen,
    }
    lines += choices
    longest = positions_of(config) if config is not None else None
    if longest is not None and longest <= MAX_LENGTH:
        content["data"]["max_length"], content["decoding"] = longest, {"max_new_tokens": longest - 1}
        lines.append(f"lengths: at most {longest:,} subwords, as many as {asked.init_from} has positions")
    if asked.text:
        spoken = kept(read_text(TextSpec(asked.text, language=languages[1]), data))
        name, file, counts = asked.text, making / f"text.{languages[1]}", Counter()
        write_columns([str(file)], unknown(((sentence,) for sentence in spoken), known[1:], counts))
        if counts["known"]:
            name = str(where / file.name)
            lines.append(
                f"text: without the {counts['known']:,} sentences of the development set in it ({HELD}/text.*)"
            )
        else:
            file.unlink()
        lines += sizes.with_text(content, corpus, name, counts["left"])
    return content, lines


def _config_to_tune(model: str, languages: tuple[str, str], data: Path) -> Any:
    """Returns the config of the model of --init-from. UserError for one that is no whole model of this direction."""
    folder = local_folder(model, data, "--init-from")
    with naming("--init-from"):
        if auto_class_of(check_model_folder(folder)) != "AutoModelForSeq2SeqLM":
            raise UserError(f"{model}: is no translation model. Give one of {' to '.join(languages)}.")
        config = read_config(folder)
        if config.model_type in ("mlnmt-bridge", "mlnmt-fusion"):
            raise UserError(
                f"{model}: is made of several models (a bridge or a fused one), and --pair tunes none. Give one "
                "of those that a fused model was made of; a bridge is trained by a recipe (docs/multilingual.md)."
            )
        there, source = direction_of(folder), load_tokenizers(folder).source
        check_untold(source, model)
        codes = codes_of(source)
        if there and not all(map(same_language, there, languages)):
            raise UserError(
                f"{model}: translates {' to '.join(there)}, and the files are {' to '.join(languages)}. Give the files "
                "in its order, or a model of theirs. To begin with it all the same, name it in a recipe's init_from."
            )
        if codes and languages[1] not in codes:
            raise UserError(
                f"{model}: translates into {', '.join(codes)}, not into {languages[1]}. Say --to as it does."
            )
    return config


def _too_few(spec: CorpusSpec, pairs: int, left: int, filtered: FilterReport, given: bool) -> str:
    """Returns what to say of so few pairs. given: the development set was not taken from them."""
    without, other = " that hold no sentence of the development set", ", or another development set"
    return (
        f"{spec}: {pairs:,} distinct pairs{without if given else ''}, and at least {FEWEST} are needed; some 5,000 "
        f"give a model that translates text very like its own. Give more pairs{other if given else ''}."
        f"\n{left:,} pairs of the {filtered.read + left:,} hold a sentence of the development set."
        + (f" Of the others:\n{filtered.table()}" if filtered.read else "")
    )


def _held_out(pairs: Iterator[Pair], least: int) -> list[Pair]:
    """Chooses a twentieth of the pairs, at most `HELD_OUT`, of distinct sources: those of the smallest digests.

    least: so many are chosen of fewer pairs, but no more than a quarter.
    """
    count = 0

    def keyed() -> Iterator[tuple[bytes, Pair]]:
        nonlocal count
        for pair in pairs:
            count += 1
            yield blake2b(pair[0].strip().encode(), digest_size=8, person=b"hf-mlnmt").digest(), pair

    smallest = heapq.nsmallest(4 * HELD_OUT, keyed())
    distinct = dict(smallest)  # one pair of each source
    return [distinct[key] for key in sorted(distinct)][: min(HELD_OUT, max(count // 20, min(least, count // 4)))]


def unknown(rows: Iterable[Row], known: Sequence[set[str]], counts: dict[str, int]) -> Iterator[Row]:
    """Yields the rows that hold no known sentence of their columns; counts those ("left") and the others ("known")."""
    for row in rows:
        is_known = any(text.strip() in sentences for text, sentences in zip(row, known))
        counts["known" if is_known else "left"] += 1
        if not is_known:
            yield row


def _measured(pairs: Iterable[Pair], counts: Counter[str]) -> Iterator[Pair]:
    for pair in pairs:
        counts["pairs"] += 1
        counts["words"] += len(words(pair[1])) + 1
        yield pair


def _files(folder: Path, part: str, languages: tuple[str, str]) -> tuple[str, str]:
    return str(folder / f"{part}.{languages[0]}"), str(folder / f"{part}.{languages[1]}")


def write_columns(names: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Writes a file for each column."""
    with ExitStack() as stack:
        files = [stack.enter_context(open(name, "w", encoding="utf-8", newline="\n")) for name in names]
        for row in rows:
            for text, file in zip(row, files):
                file.write(f"{text}\n")
