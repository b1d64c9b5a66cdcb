"""Trains from two files of pairs, or from one file of both languages: reads the corpus, holds out a development set,
chooses a recipe, writes the recipe and runs it.

With `init_from` a trained model is fine-tuned, with its own tokenizer and shape. With `student` the recipe trains a
small model on what larger ones translate (students.py).

The run's folder has pair/: <name>.yaml, the recipe, to copy and change; asked.json, what it was chosen for; dev.*, the
pairs that were held out; train.* and text.*, what is left without sentences of the development set. The same request,
made again, reads nothing again. recipe/sizes.py makes the choices.
"""

from __future__ import annotations

import heapq
import json
import os
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

import torch
from rich.console import Console

from hf_mlnmt.common.errors import UserError, naming
from hf_mlnmt.common.files import atomic_folder, read_json, size_and_crc, write_json, write_text
from hf_mlnmt.common.languages import check_language, direction_of, same_language
from hf_mlnmt.common.made_from import differences
from hf_mlnmt.common.model_folder import GENERATION_CONFIG, auto_class_of, check_model_folder, read_config, read_part
from hf_mlnmt.data.bilingual import BILINGUAL
from hf_mlnmt.data.corpus import FORMATS, CorpusSpec, TextSpec, is_of_units, read_pairs, read_text
from hf_mlnmt.data.directions import direction, is_told
from hf_mlnmt.data.filters import DROPPED, MOST_DROPPED, FilterReport, Pair, PairFilter
from hf_mlnmt.data.formats import format_of
from hf_mlnmt.data.tables import SIDES
from hf_mlnmt.data.tokenizer import check_untold, load_tokenizers
from hf_mlnmt.data.tokenizer import languages_of as codes_of
from hf_mlnmt.data.words import words
from hf_mlnmt.evaluation import Results
from hf_mlnmt.generation.synthetic.back_translation import Watcher
from hf_mlnmt.recipe import sizes
from hf_mlnmt.recipe.reading import load_yaml
from hf_mlnmt.training import folder, students
from hf_mlnmt.training.init_from import local_folder
from hf_mlnmt.training.processes import common, join_group, main_first, meet
from hf_mlnmt.training.run import run_recipe
from hf_mlnmt.zoo.systems import architecture_of, positions_of

HELD_OUT = 1000  # most pairs that are held out as the development set, which has a twentieth of the pairs
FEWEST_HELD_OUT = 50  # fewest pairs that are held out if a model is fine-tuned, but at most a quarter of all pairs
MAX_LENGTH = 256  # subwords: the defaults of data.max_length and decoding.max_new_tokens
FEWEST = 200  # least number of distinct pairs that a training is begun with
Row = TypeVar("Row", bound=Sequence[str])
HELD, ASKED = folder.PAIR, "asked.json"


@dataclass(frozen=True)
class TwoFiles:
    """The request of `train --pair`: files, all relative to --data, their languages, and what is trained.

    pair: sources and targets, or twice the same: a file, a folder or a zip of both languages. source, target: codes of
    their languages; unless told, the file names say them.
    dev, test: pairs of files. text: sentences of the target language, for a student of the source language. system: of
    the zoo. init_from: a trained model, a folder or Hub name, that is fine-tuned. student: the size of a small model
    that is trained on what `teachers` translate; several, of one vocabulary, translate as one. reverse: a model of the
    other direction, by whose probabilities unlikely translations are left out. bad_lines, keep_accelerators: as of a
    corpus, of the pair.
    """

    pair: tuple[str, str]
    source: str | None = None
    target: str | None = None
    dev: tuple[str, str] | None = None
    test: Sequence[tuple[str, str]] = ()
    text: str | None = None
    system: str | None = None
    init_from: str | None = None
    student: str | None = None
    teachers: Sequence[str] = ()
    reverse: str | None = None
    bad_lines: str = "error"
    keep_accelerators: bool = False

    @property
    def pair_settings(self) -> dict[str, Any]:
        """Returns the keys, beside the files, that the training corpus of these pairs has in the recipe."""
        dropped = {"bad_lines": self.bad_lines} if self.bad_lines != "error" else {}
        return dropped | ({"keep_accelerators": True} if self.keep_accelerators else {})

    @property
    def languages(self) -> tuple[str, str]:
        """Returns the codes of source and target, given or read from the file names. UserError without them."""
        return sizes.languages_of(self.pair, (self.source, self.target))

    @property
    def name(self) -> str:
        """Returns the run's name: train.en-de of train.en and train.de, train.en-de.student-tiny of a student."""
        stem, pair = sizes.stem_of(self.pair[0]), "-".join(self.languages)
        named = stem if stem.endswith(pair) else f"{stem}.{pair}"
        return named if self.student is None else f"{named}.{self.student}"


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
) -> Results | dict[str, Results] | None:
    """Chooses a recipe for two files, writes it into the run's folder and runs it (`run_recipe`).

    output: unless told, runs/<name of the files>, with the seed if it is given. settings, seed: replace keys of the
    recipe that was chosen. Raises: UserError for files that are missing, broken, too small or do not go together.
    """
    console, data = console or Console(stderr=True), Path(data)
    output = Path(output or Path("runs") / (asked.name if seed is None else f"{asked.name}.seed{seed}"))
    processes = join_group()
    with ExitStack() as stack:
        asking = _asking(asked, data)
        with nullcontext() if dry_run else main_first():
            kept = _is_kept(output, asking)
            home = output if kept or not dry_run else Path(stack.enter_context(tempfile.TemporaryDirectory()))
            path = home / HELD / f"{asked.name}.yaml"
            if not kept and (dry_run or processes.is_main_process):
                with _no_empty(home), atomic_folder(home / HELD) as making:
                    content, lines = _chosen(asked, data, making, home / HELD, processes.num_processes)
                    write_text(making / path.name, sizes.to_yaml(content, lines))
                    write_json(making / ASKED, asking)
        if not dry_run:
            common(path)
        told = [] if asked.system is None else [f"model.system={asked.system}"]
        tests = _tests(asked, load_yaml(path)[0]["data"].get("test") or {})
        told += [f"data.test={json.dumps(tests)}"] if tests else []
        if processes.is_main_process:
            said = [line[2:] for line in path.read_text(encoding="utf-8").splitlines() if line.startswith("# ")]
            for line in [*said, *([] if dry_run else [f"recipe: {path}, to copy and change"])]:
                console.print(line, highlight=False, markup=False, soft_wrap=True)
        meet()
        how = [*told, *settings], seed, dry_run, console, watcher
        try:
            return run_recipe(path, data, output, *how, check=check)
        except UserError as error:
            if home == output:
                raise
            raise UserError(str(error).replace(str(path), path.name)) from error  # a dry run's file is deleted


def _asking(asked: TwoFiles, data: Path) -> dict[str, Any]:
    """Returns the request as asked.json holds it, files by checksums. UserError if its parts do not go together."""
    _check_files(asked, data)
    if asked.student and asked.init_from:
        raise UserError("--init-from: a student begins with nothing; its teacher is --teacher. Leave it out.")
    if asked.init_from and (asked.text or asked.system):
        raise UserError(
            "--init-from: the model says its system, and translates in one direction: leave out --system, and --text, "
            "which needs a model of the other one."
        )
    files = [*asked.pair, *(asked.dev or ()), *([asked.text] if asked.text else [])]
    names = ("pair", "languages", "dev", "text", "init_from", "student", "teachers", "reverse")
    told = {name: getattr(asked, name) for name in names}
    return {
        **{name: list(value) if isinstance(value, list | tuple) else value for name, value in told.items()},
        "checksums": {
            str(path): size_and_crc(data / path)
            for name in files
            for path in ([name] if (data / name).is_file() else sorted((data / name).rglob("*")))
            if (data / path).is_file()
        },
        **asked.pair_settings,
    }


def _is_kept(home: Path, asking: dict[str, Any]) -> bool:
    """Returns whether a folder holds the recipe that was chosen for the same request.

    Raises: UserError for a folder in which something else is trained already.
    """
    asked_before = home / HELD / ASKED
    if not asked_before.is_file():
        folder.check_output(home)
        if (home / folder.RECIPE).is_file() and folder.has_begun(home):
            raise UserError(
                f"{home}: this folder holds a training by another recipe. Choose another --output, or go on with it: "
                f"hf-mlnmt train {home / folder.RECIPE} -o {home}"
            )
        return False
    changed = differences(read_json(asked_before), asking, whole=("checksums.*",))
    if changed and folder.has_begun(home):
        listed = "\n".join(f"  {key}: {old} -> {new}" for key, (old, new) in changed.items())
        raise UserError(
            f"{home}: this folder holds another training (old -> new):\n{listed}\nChoose another --output "
            "for the new one, or go back to the old."
        )
    return not changed


@contextmanager
def _no_empty(home: Path) -> Iterator[None]:
    """Runs a block; if it fails, removes the folder `home` where the block made it and left it empty."""
    before = home.exists()
    try:
        yield
    except BaseException:
        if not before:
            with suppress(OSError):
                home.rmdir()
        raise


def _check_files(asked: TwoFiles, data: Path) -> None:
    """Raises UserError for a file on both sides, a development set that is the corpus, or files of other languages."""
    for option, files in (("--pair", asked.pair), ("--dev", asked.dev), *(("--test", each) for each in asked.test)):
        sizes.check_texts(option, files or ("", ""))
        if files and files[0] == files[1]:
            whole = data / files[0]
            if not (is_of_units(whole) or format_of(whole) in FORMATS):
                raise UserError(
                    f"{option}: {files[0]} alone is no corpus. Give two files, sources first, line by line; or one of "
                    f"both languages: {', '.join(dict.fromkeys([*BILINGUAL, *FORMATS]))}, a folder or a zip."
                )
        elif files and (data / files[0]).resolve() == (data / files[1]).resolve():
            raise UserError(f"{option}: {files[0]} is given twice. Give the file of each language, sources first.")
        for path, language in zip(files if files and files[0] != files[1] else (), asked.languages):
            check_language(path, language, f"this side of {option} is", "Give sources first, as in --pair.")
    if asked.text:
        side = "With --student it is of the source" if asked.student else "It is text of the target"
        check_language(asked.text, asked.languages[not asked.student], "--text is read as", f"{side} language.")
    if asked.dev and {*map(str, asked.dev)} & {*map(str, asked.pair)}:
        raise UserError(
            "--dev: is the training corpus. Give other sentences, or leave it out: some pairs are held out."
        )


def _tests(asked: TwoFiles, before: dict[str, Any]) -> dict[str, Any]:
    """Returns the test sets, each under the name of its files, after those in `before`."""
    tests = dict(before)
    for files in (files for files in asked.test if _corpus(files, asked.languages) not in before.values()):
        name = sizes.stem_of(files[0]) or "test"
        while name in tests:
            name += "-2"
        tests[name] = _corpus(files, asked.languages)
    return tests


def _corpus(files: tuple[str, str], languages: tuple[str, str]) -> dict[str, Any]:
    """Returns two files, or one of both languages, as a recipe has them."""
    if files[0] == files[1]:
        return {"path": files[0], "languages": dict(zip(SIDES, languages))}
    return {"files": dict(zip(SIDES, files))}


def _chosen(asked: TwoFiles, data: Path, making: Path, held: Path, processes: int) -> tuple[dict[str, Any], list[str]]:
    """Reads the corpus, holds out the development set (into `making`, which becomes `held`), chooses the recipe."""
    languages = asked.languages
    spec = CorpusSpec(**_corpus(asked.pair, languages), **asked.pair_settings)
    kept, one = PairFilter(**sizes.FILTERS), spec.path is not None
    config = _config_to_tune(asked.init_from, languages, data) if asked.init_from else None
    if asked.dev:
        dev = list(read_pairs(CorpusSpec(**_corpus(asked.dev, languages)), data))
    else:
        dev = _held_out(kept(read_pairs(spec, data)), FEWEST_HELD_OUT if asked.init_from else 0)
    known = tuple({pair[side].strip() for pair in dev} for side in (0, 1))
    counts, filtered = Counter[str](), FilterReport()
    remaining = kept(unknown(read_pairs(spec, data, filtered), known, counts), filtered)
    write_columns(_files(making, "train", languages), _measured(remaining, counts))
    corpus, left = sizes.Measured(counts["pairs"], counts["words"]), counts["known"]
    pairs = corpus.pairs + (0 if asked.dev else len(dev))
    if pairs < FEWEST:
        raise UserError(_too_few(spec, pairs, left, filtered, asked.dev is not None))
    where = held if data == Path() else held.absolute()  # files of a recipe are relative to --data
    train, dev_files = asked.pair, asked.dev
    names = " + ".join(dict.fromkeys(asked.pair))
    lines = [f"corpus: {names}, {' to '.join(languages)}: {filtered.read + left:,} pairs"]
    lines += [f"dropped: {reason}: {count:,}" for reason, count in filtered.dropped.most_common()]
    if filtered.write_dropped(making / DROPPED):
        lines.append(f"what was dropped: {HELD}/{DROPPED}, the first {MOST_DROPPED:,} pairs of each reason")
    if dev_files:
        lines.append(f"development set: {' + '.join(dict.fromkeys(dev_files))}, {len(dev):,} pairs")
    else:
        lines.append(f"development set: {len(dev):,} of the pairs are held out, always the same ones ({HELD}/dev.*)")
    if dev_files is None or dev_files[0] == dev_files[1]:
        dev_files = _files(where, "dev", languages)
        write_columns(_files(making, "dev", languages), dev)
    if left or one:
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
            "name": " + ".join(Path(name).name for name in dict.fromkeys(asked.pair)),
            "train": _corpus(train, languages) | (asked.pair_settings if train == asked.pair else {}),
            "dev": _corpus(dev_files, languages),
            "filters": dict(sizes.FILTERS),
            "drop_test_pairs": True,
        },
        **chosen,
    }
    if asked.init_from:  # the recipe scores the development set too, before and after fine-tuning
        content["augment"] = dict(sizes.AUGMENT)
        lines.append(f"changed pairs: {', '.join(f'{x:.0%} {name}' for name, x in sizes.AUGMENT.items())} (augment)")
        content["data"]["test"] = {"dev": content["data"]["dev"]}
        told = read_part(local_folder(asked.init_from, data, "--init-from"), GENERATION_CONFIG)
        if tokens := told.get("placeholders"):
            content["data"]["placeholders"] = tokens
            lines.append(f"placeholders: {', '.join(tokens)}, as of the model")
    if asked.test:  # drop_test_pairs leaves their pairs out of training, also if the recipe is run by itself
        content["data"]["test"] = _tests(asked, content["data"].get("test") or {})
    lines += [] if asked.student else choices
    longest = positions_of(config) if config is not None else None
    if longest is not None and longest <= MAX_LENGTH:
        content["data"]["max_length"], content["decoding"] = longest, {"max_new_tokens": longest - 1}
        lines.append(f"lengths: at most {longest:,} subwords, as many as {asked.init_from} has positions")
    texts, counts = [train[0]] if asked.student else [], Counter()
    if asked.text:
        side = 0 if asked.student else 1
        spoken = kept(read_text(TextSpec(asked.text, language=languages[side]), data))
        name, file = asked.text, making / f"text.{languages[side]}"
        write_columns([str(file)], unknown(((sentence,) for sentence in spoken), known[side : side + 1], counts))
        if counts["known"]:
            name = str(where / file.name)
            lines.append(
                f"text: without the {counts['known']:,} sentences of the development set in it ({HELD}/text.*)"
            )
        else:
            file.unlink()
        texts.append(name)
    if asked.student:
        lines += students.plan(content, asked, data, (making, where), texts, machine)
    elif asked.text:
        lines += sizes.with_text(content, corpus, texts[0], counts["left"])
    return content, lines


def _config_to_tune(model: str, languages: tuple[str, str], data: Path) -> Any:
    """Returns the config of the model of --init-from. UserError for one that does not translate this direction."""
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
        ours, there, source = architecture_of(config), direction_of(folder), load_tokenizers(folder).source
        codes, base = codes_of(source), SimpleNamespace(config=config)
        if ours is not None:
            check_untold(source, model)
        elif is_told(base, source):
            direction(base, source, *languages, model)  # raises UserError for an unknown code
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
    """Returns the message for a corpus with too few pairs. given: the development set is a corpus of its own."""
    without, other = " that hold no sentence of the development set", ", or another development set"
    return (
        f"{spec}: {pairs:,} distinct pairs{without if given else ''}, and at least {FEWEST} are needed; some 5,000 "
        f"give a model that translates text very like its own. Give more pairs{other if given else ''}."
        f"\n{left:,} pairs of the {filtered.read + left:,} hold a sentence of the development set."
        + (f" Of the others:\n{filtered.table()}" if filtered.read else "")
    )


def _held_out(pairs: Iterator[Pair], least: int) -> list[Pair]:
    """Chooses the development set: a twentieth of the pairs, at most HELD_OUT, of distinct sources, by their digests.

    least: at least so many pairs are chosen, but no more than a quarter of all.
    """
    count = 0

    def keyed() -> Iterator[tuple[bytes, Pair]]:
        nonlocal count
        for pair in pairs:
            count += 1
            yield blake2b(pair[0].strip().encode(), digest_size=8, person=b"hf-mlnmt").digest(), pair

    smallest = heapq.nsmallest(4 * HELD_OUT, keyed())
    distinct = dict(smallest)  # one pair for each source sentence
    return [distinct[key] for key in sorted(distinct)][: min(HELD_OUT, max(count // 20, min(least, count // 4)))]


def unknown(rows: Iterable[Row], known: Sequence[set[str]], counts: dict[str, int]) -> Iterator[Row]:
    """Yields the rows without a sentence that `known` has for its column; counts these as "left", others as "known"."""
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
    """Writes each column of `rows` into its own file, a row a line."""
    with ExitStack() as stack:
        files = [stack.enter_context(open(name, "w", encoding="utf-8", newline="\n")) for name in names]
        for row in rows:
            for text, file in zip(row, files):
                file.write(f"{text}\n")
