"""Back-translation: synthetic corpora, text of one language with another side that a model wrote (or that is a copy).

manifest = back_translate("runs/de-en/average", ["news.de.gz"], "synthetic", Method("sampling", seed=1), tag="<bt>")
manifest.pairs, manifest.content["counts"]      # read again with hf_mlnmt.data.synthetic.read_manifest

Reference: Sennrich, Haddow and Birch 2016, "Improving Neural Machine Translation Models with Monolingual Data", ACL; in
the thesis on monolingual data section 4.3, where the text is the target and a beam search writes the source. Other
methods are in synthetic_methods.py, from the literature named there. Forward translation turns the roles: the text is
the source, and the model's output the target (with a larger model: sequence-level distillation).

While it is made, a corpus lies in source.txt.part and target.txt.part, and state.json says how many bytes of them, with
which hash, and how many lines of the text are done. What was written beyond that when a process ended is cut off at the
next start.
A shard is a corpus of some windows of the text, in a folder within that of the whole. A start without `shard` puts the
whole together from its shards; the model is not asked again.
What a corpus is made from is known by its content: the model's files and the text's.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

from hf_mlnmt.data.lines import read_lines
from hf_mlnmt.data.synthetic import COUNTS, FILES, MADE_FROM, MANIFEST, SCHEMA, Manifest, read_manifest
from hf_mlnmt.errors import UserError
from hf_mlnmt.files import Form, check_file, check_folder_name, explained, only_one, read_json, write_json
from hf_mlnmt.generation.lines import Shard
from hf_mlnmt.generation.synthetic_methods import USUAL, Counts, Judge, Method, check_reasons, doubts_about_language
from hf_mlnmt.made_from import differences, sha256, sha256_of_files
from hf_mlnmt.model_folder import MODEL_FILES, fetch_small_files


def identity_of_model(name: str, **options: Any) -> dict[str, Any]:
    """The model's name, and the SHA-256 of each file that decides what it writes: config, weights, tokenizers.

    A model of the Hub must have been loaded before. `options` are the Hub's (revision).
    """
    folder = fetch_small_files(name, **options)
    return {"name": name, "files": sha256_of_files(folder, MODEL_FILES)}


def identity_of_text(
    paths: Sequence[str | Path], bad: str, tell: Callable[[str], Any] | None = None
) -> list[dict[str, Any]]:
    """Of each file its name, the SHA-256 of its bytes and its number of lines. All lines are read: so an error in one
    shows before the first is translated.

    Raises: UserError naming file and line.
    """
    texts = []
    for path in paths:
        if tell:
            tell(f"reading {path}")
        lines = sum(1 for _ in text_lines([path], bad))
        texts.append({"name": str(path), "lines": lines, "sha256": sha256(path)})
    return texts


def text_lines(paths: Sequence[str | Path], bad: str) -> Iterator[str]:
    """The lines of several files, one after the other; with `bad` "drop" an unreadable one is an empty line."""
    problems: list[int] = []
    report = (lambda reason, number, text: problems.append(number)) if bad == "drop" else None
    for path in paths:
        for line in read_lines(path, report, remedy="Mend the file, or pass over such lines with bad_lines drop."):
            yield "" if problems else line
            problems.clear()


def _what_changed(before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    """What of two identities (the content of a manifest or a state) is not the same, for people to read.

    Names of models and texts, and versions, are no difference: content is.
    """
    models = before["model"], now["model"]
    for name, (old, new) in sorted(differences(*((model or {}).get("files", {}) for model in models)).items()):
        what = "is new" if old is None else "is gone" if new is None else "has another content"
        names = (models[0] or models[1] or {})["name"], (models[1] or models[0] or {})["name"]
        yield f"the model's {name} {what} ({names[0]} -> {names[1]})"
    if len(before["text"]) != len(now["text"]):
        yield f"text: {len(before['text'])} file(s) -> {len(now['text'])}"
    for old, new in zip(before["text"], now["text"]):
        if old["sha256"] != new["sha256"]:
            yield f"text {new['name']}: its content changed ({old['lines']:,} lines -> {new['lines']:,})"
    old, new = (
        {key: about.get(key) for key in ("direction", "tag", "settings", "method", "shard")} for about in (before, now)
    )
    for key, (was, is_now) in differences(old, new).items():
        yield f"{key.removeprefix('settings.').replace('method.', 'method, ')}: {was} -> {is_now}"


STATE = "state.json"
_PROGRESS: Form = {
    "lines": int,
    "bytes": dict.fromkeys(FILES, int),
    "sha256?": dict.fromkeys(FILES, str),
    "counts?": COUNTS,
    "warnings?": [str],
}
_BLOCK = 1 << 22


class Journal:
    """The two files of a corpus and their state, in `folder`; the files are open from `restore` to `close`.

    Args:
        about: what the corpus is made from; kept in the state, for the next start.
    """

    def __init__(self, folder: Path, about: Mapping[str, Any]) -> None:
        self.folder, self.about = folder, about
        self.progress: dict[str, Any] = {"lines": 0, "bytes": dict.fromkeys(FILES, 0)}
        self._files: dict[str, BinaryIO] = {}
        self._hashes = {side: hashlib.sha256() for side in FILES}  # of what is written

    @staticmethod
    def kept(folder: Path) -> dict[str, Any] | None:
        """The state that an earlier start left; None without one.

        Raises: UserError for a file that is no state.
        """
        path = folder / STATE
        if not path.is_file():
            return None
        try:
            return read_json(path, {"about": MADE_FROM, "progress": _PROGRESS})
        except UserError as error:
            raise UserError(f"{error} Or delete the folder {folder} and begin again.") from error

    def restore(self, state: Mapping[str, Any] | None) -> None:
        """Open the files where that state left them; without one, empty."""
        for leftover in self.folder.glob(".*.part"):  # of a process that was killed as it wrote the state
            leftover.unlink()
        if state is None:
            self._save()  # before the files: it says whose they are
        else:
            self.progress = dict(state["progress"])
        for side in FILES:
            part, whole, size = self.part(side), self.folder / FILES[side], self.progress["bytes"][side]
            if not part.exists() and whole.exists():  # it ended between the last renaming and the manifest
                os.replace(whole, part)
            file = part.open("r+b" if part.exists() else "w+b")
            if os.fstat(file.fileno()).st_size < size:
                file.close()
                raise UserError(f"{part}: shorter than it was. Delete the folder {self.folder} and begin again.")
            self._files[side], digest = file, self._hashes[side]
            for _ in range(0, size, _BLOCK):
                digest.update(file.read(min(_BLOCK, size - file.tell())))
            # A state of an earlier version has no hashes.
            if self.progress.get("sha256", {}).get(side, digest.hexdigest()) != digest.hexdigest():
                raise UserError(
                    f"{part}: changed since it was written. Put back what was there, or delete the folder "
                    f"{self.folder} and begin again."
                )
            file.truncate(size)

    def append(self, pairs: Sequence[tuple[str, str]], lines: int, **progress: Any) -> None:
        """Add pairs; `lines` of the text are done now. The state is written when the pairs are on the disk."""
        for side, texts in zip(FILES, zip(*pairs)):
            self._write(side, "".join(text + "\n" for text in texts).encode())
        self._note(lines, progress)

    def append_shard(self, shard: Manifest, lines: int) -> None:
        """Add all pairs of a finished shard, to whose end `lines` of the text go."""
        for side, name in FILES.items():
            with (shard.folder / name).open("rb") as file:
                while block := file.read(_BLOCK):
                    self._write(side, block)
        self._note(lines, {})

    def _write(self, side: str, written: bytes) -> None:
        with explained(self.part(side)):
            self._files[side].write(written)
        self._hashes[side].update(written)

    def _note(self, lines: int, progress: Mapping[str, Any]) -> None:
        for side, file in self._files.items():
            with explained(self.part(side)):
                file.flush()
                os.fsync(file.fileno())
            self.progress["bytes"][side] = file.tell()
        hashes = {side: digest.hexdigest() for side, digest in self._hashes.items()}
        self.progress |= {"lines": lines, "sha256": hashes, **progress}
        self._save()

    def finish(self, manifest: dict[str, Any], pairs: int) -> None:
        """Give the files their names and write the manifest, with their sizes and hashes."""
        self.close()
        files: dict[str, Any] = {"lines": pairs}
        for side, name in FILES.items():
            os.replace(self.part(side), self.folder / name)
            digest = self._hashes[side].hexdigest()
            files[side] = {"file": name, "bytes": (self.folder / name).stat().st_size, "sha256": digest}
        write_json(self.folder / MANIFEST, {**manifest, "pairs": files})
        (self.folder / STATE).unlink()

    def close(self) -> None:
        """Close the files."""
        for side, file in self._files.items():
            with explained(self.part(side)):  # what is still to be written is written now
                file.close()
        self._files = {}

    def part(self, side: str) -> Path:
        """The file that a side is in as long as the corpus is not finished."""
        return self.folder / f"{FILES[side]}.part"

    def _save(self) -> None:
        write_json(self.folder / STATE, {"about": self.about, "progress": self.progress})


@dataclass(frozen=True)
class Settings:
    """What decides the pairs, beside model, text and method.

    limit: lines of the text that are taken; all when None.
    drop: reasons for which a pair is dropped, of `synthetic_methods.REASONS`; None: the usual ones of the method.
    max_ratio: what "long" means there.
    bad_lines: at invalid UTF-8, control characters and overlong lines: stop with an "error", or "drop" and count.
    source_language, target_language: codes, where the model needs them.
    max_new_tokens: the longest output in subwords; None: as the model's generation_config.json says.
    window: lines that are sorted by length together, and kept together: what an interruption may cost.
    batch_tokens: source tokens in a batch, padding included. dtype: of the model's weights.
    """

    limit: int | None = None
    drop: tuple[str, ...] | None = None
    max_ratio: float = 3.0
    bad_lines: str = "error"
    source_language: str | None = None
    target_language: str | None = None
    max_new_tokens: int | None = None
    window: int = 2048
    batch_tokens: int = 4096
    dtype: str = "auto"

    def __post_init__(self) -> None:
        check_reasons(self.drop or ())
        for name in ("limit", "window", "batch_tokens", "max_new_tokens"):
            if (value := getattr(self, name)) is not None and value < 1:
                raise UserError(f"{name} must be at least 1, not {value}.")
        if not self.max_ratio >= 1:
            raise UserError(f"max_ratio must be at least 1, not {self.max_ratio}.")
        if self.bad_lines not in ("error", "drop"):
            raise UserError(f"bad_lines is 'error' or 'drop', not '{self.bad_lines}'.")

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {**asdict(self), "drop": None if self.drop is None else list(self.drop)}


@dataclass
class Watcher:
    """Who is told: `tell` gets messages, `warn` gets doubts, `progress` gets lines done, lines in all and counts."""

    tell: Callable[[str], Any] = lambda text: None
    warn: Callable[[str], Any] = lambda text: None
    progress: Callable[[int, int, Counts], Any] = lambda done, total, counts: None


def back_translate(
    model: str | Path | None,
    texts: Sequence[str | Path],
    output: str | Path,
    method: Method | None = None,
    settings: Settings | None = None,
    *,
    forward: bool = False,
    tag: str | None = None,
    watcher: Watcher | None = None,
    device: str | None = None,
    revision: str | None = None,
    shard: Shard | None = None,
) -> Manifest:
    """Write a synthetic corpus into the folder `output` (files: data/synthetic.py): pairs in the order of the text.

    Stopped at any moment and started again with the same arguments, it goes on and ends with the same bytes (on the
    same machine, with as many threads). Memory: one window of lines, and with "duplicate" in settings.drop some 100
    bytes for every pair.

    Args:
        model: a folder or a Hub name; None for the method "copied".
        texts: files of one sentence a line, plain or packed, read one after the other.
        forward: the text is the source and the model's output the target.
        tag: a token, as "<bt>", which a training is to put before every source of these pairs; kept in the manifest.
        shard: make this part only, in a folder of its own in `output`. When all are made, a call without it puts them
            together, and `output` is to the byte what one call would have made.

    Raises: UserError, and for a folder that holds a corpus of something else, naming what changed.
    """
    method, settings, watcher = method or Method(), settings or Settings(), watcher or Watcher()
    drop = tuple(name for name in USUAL if name != method.name) if settings.drop is None else settings.drop
    settings, folder = replace(settings, drop=drop), Path(output)
    if method.name in drop:
        raise UserError("drop: the method copied makes copies alone, of which none would be left. Leave copied out.")
    _check(model, texts, folder, method, forward, tag)
    if shard and "duplicate" in drop:
        raise UserError("--shard: duplicates are known in the whole text only. Leave duplicate out of --drop.")
    place = folder / f"shard-{shard.number}-of-{shard.count}" if shard else folder
    with only_one(place, f"{place}: another back-translation is writing into this folder. Wait for it."):
        here = model is None or Path(model).is_dir()  # a model of the Hub is known when it was loaded
        loaded = None if here else _load(model, settings, device, revision)
        about = {
            "schema": SCHEMA,
            "direction": "forward" if forward else "back",
            "model": None if model is None else identity_of_model(str(model), revision=revision),
            "text": identity_of_text(texts, settings.bad_lines, watcher.tell),
            "method": method.to_dict(),
            "tag": tag,
            "settings": settings.to_dict(),
        }
        if finished := _finished(folder, about):
            watcher.tell(f"{folder} is finished, and nothing changed since: {finished.pairs:,} pairs.")
            return finished
        if shard:
            about["shard"] = str(shard)
            if finished := _finished(place, about):
                watcher.tell(f"{place} is finished, and nothing changed since: {finished.pairs:,} pairs.")
                return finished
            if (folder / STATE).is_file():
                raise UserError(f"{folder}: was begun without --shard. Go on so, or choose another --output.")
        elif _shards(folder):
            return _put_together(folder, about, watcher)
        lines = _lines(about, settings, shard)
        loaded = loaded or _load(model, settings, device, revision)
        job = _Job(loaded, texts, lines, Journal(place, about), method, settings, forward, watcher)
        return job.run()


def _check(
    model: str | Path | None, texts: Sequence[str | Path], folder: Path, method: Method, forward: bool, tag: str | None
) -> None:
    if not texts:
        raise UserError("no text: give one file or more, of one sentence a line.")
    if (model is None) != (method.name == "copied"):
        raise UserError("a model is needed by every method but 'copied', which needs none.")
    if forward and method.name == "copied":
        raise UserError("copied: both sides are the text; leave --forward out.")
    if tag is not None and len(tag.split()) != 1:
        raise UserError(f"tag: one token without spaces is expected, such as <bt>, not {tag!r}.")
    check_folder_name(folder)
    inside = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
    others = {name for name in inside if not name.startswith(".") and not _SHARD.fullmatch(name)}
    if others and not inside & {MANIFEST, STATE}:
        raise UserError(f"{folder}: holds other things. Choose another --output, which need not exist.")
    for name in FILES.values():
        check_file(folder / name)


def _load(model: str | Path | None, settings: Settings, device: str | None, revision: str | None) -> Any:
    if model is None:
        return None
    from hf_mlnmt.generation import TranslationPipeline

    options: dict[str, Any] = {"revision": revision} if revision else {}
    return TranslationPipeline.from_pretrained(str(model), device=device, dtype=settings.dtype, **options)


def _finished(folder: Path, about: dict[str, Any]) -> Manifest | None:
    """The manifest of a corpus that is finished; None when it is not, or not begun.

    Raises: UserError when the folder holds a corpus of something else.
    """
    state = Journal.kept(folder)
    manifest = read_manifest(folder) if (folder / MANIFEST).is_file() else None
    before = manifest.content if manifest else state["about"] if state else None
    if before and (changed := [*_what_changed(before, about)]):
        what = "finished" if manifest else "not finished"
        raise UserError(
            f"{folder}: holds a corpus ({what}) of something else:\n  " + "\n  ".join(changed) + "\n"
            "Choose another --output, or go back to what it was."
        )
    if manifest:
        (folder / STATE).unlink(missing_ok=True)
    return manifest


def _lines(about: Mapping[str, Any], settings: Settings, shard: Shard | None) -> range:
    """The lines of the text that are taken, by number from 0."""
    lines, window = sum(text["lines"] for text in about["text"]), settings.window
    lines = min(lines, settings.limit or lines)
    if shard is None:
        return range(lines)
    return shard.windows(lines, [min(window, lines - start) for start in range(0, lines, window)])[1]


_SHARD = re.compile(r"shard-(\d+)-of-(\d+)")


def _shards(folder: Path) -> dict[int, dict[int, Path]]:
    """{number of all shards: {number of a shard: its folder}} of those that are begun or finished."""
    shards: dict[int, dict[int, Path]] = {}
    for path in folder.iterdir():
        if match := _SHARD.fullmatch(path.name):
            shards.setdefault(int(match[2]), {})[int(match[1])] = path
    return shards


def _put_together(folder: Path, about: dict[str, Any], watcher: Watcher) -> Manifest:
    """The whole of its finished shards.

    Raises: UserError naming the shards that are missing, not finished or made from something else.
    """
    shards = _shards(folder)
    if len(shards) > 1:
        kinds = ", ".join(f"of {count}" for count in sorted(shards))
        raise UserError(f"{folder}: holds shards {kinds}. Delete those that do not belong to the whole.")
    [(count, places)] = shards.items()
    manifests = []
    for number in range(1, count + 1):
        place = places.get(number, folder / f"shard-{number}-of-{count}")
        manifest = _finished(place, {**about, "shard": f"{number}/{count}"}) if place.is_dir() else None
        if manifest is None:
            raise UserError(f"{place}: this shard is not finished. Start it again, with --shard {number}/{count}.")
        manifests.append(manifest)
    counts, warnings = Counts(), []
    journal = Journal(folder, about)
    with ExitStack() as stack:
        stack.callback(journal.close)
        journal.restore(None)
        for manifest in manifests:
            counts.add(Counts(**manifest.content["counts"]))
            warnings += manifest.content["warnings"]
            journal.append_shard(manifest, counts.read)
        versions = manifests[-1].content["versions"]
        journal.finish({**about, "counts": asdict(counts), "warnings": warnings, "versions": versions}, counts.kept)
    watcher.tell(f"{folder}: put together from {count} shards, which may be deleted now")
    return read_manifest(folder)


@dataclass
class _Job:
    """One corpus, of some lines of the text, from where an earlier start left it to its end."""

    pipeline: Any
    texts: Sequence[str | Path]
    lines: range
    journal: Journal
    method: Method
    settings: Settings
    forward: bool
    watcher: Watcher

    def __post_init__(self) -> None:
        self.total = len(self.lines)
        self.warnings: list[str] = []

    def run(self) -> Manifest:
        """Go on to the end."""
        state = Journal.kept(self.journal.folder)
        with ExitStack() as stack:
            stack.callback(self.journal.close)
            self.journal.restore(state)
            progress = self.journal.progress
            self.warnings = progress.get("warnings", [])
            counts = Counts(**progress.get("counts", {}))
            drop = self.settings.drop or ()
            self.judge = Judge(drop, self.settings.max_ratio, counts)
            if "duplicate" in drop:
                self._remember_pairs()
            if progress["lines"]:
                self.watcher.tell(f"going on at line {progress['lines'] + 1:,} of {self.total:,}")
            self.watcher.progress(progress["lines"], self.total, counts)
            first = self.lines.start
            lines = islice(
                text_lines(self.texts, self.settings.bad_lines), first + progress["lines"], first + self.total
            )
            while window := list(islice(lines, self.settings.window)):
                self._window(first + self.journal.progress["lines"], window)
            versions = {name: importlib.metadata.version(name) for name in ("hf-mlnmt", "torch", "transformers")}
            manifest = {**self.journal.about, "counts": asdict(counts), "warnings": self.warnings}
            self.journal.finish({**manifest, "versions": versions}, counts.kept)
        return read_manifest(self.journal.folder)

    def _window(self, first: int, lines: list[str]) -> None:
        """Translate, judge and keep some lines; `first` is the number of the first of them, from 0."""
        outputs = self._outputs(first, lines)
        pairs = []
        for number, (line, (output, finished)) in enumerate(zip(lines, outputs, strict=True), start=first):
            changed = self.method.change(output, number)
            if self.judge.keeps(line, output, finished, changed):
                pairs.append((line, changed) if self.forward else (changed, line))
        counts, done = self.judge.counts, first - self.lines.start + len(lines)
        if first == 0 and self.pipeline is not None:
            written, reader = [output for output, _ in outputs], self.pipeline.parts.source
            self.warnings = list(doubts_about_language(lines, written, self.judge.spoilt, reader))
            for warning in self.warnings:
                self.watcher.warn(warning)
        self.journal.append(pairs, done, counts=asdict(counts), warnings=self.warnings)
        self.watcher.progress(done, self.total, counts)

    def _outputs(self, first: int, lines: list[str]) -> list[tuple[str, bool]]:
        """What the method makes of each line, and whether it ended by itself."""
        if self.pipeline is None:
            return [(line, True) for line in lines]
        settings, done = self.settings, first - self.lines.start

        def update(count: int) -> None:
            nonlocal done
            done += count
            self.watcher.progress(done, self.total, self.judge.counts)

        translations = self.pipeline.translate_lines(
            lines,
            first,
            update,
            source_language=settings.source_language,
            target_language=settings.target_language,
            max_new_tokens=settings.max_new_tokens,
            batch_tokens=settings.batch_tokens,
            **self.method.decoding(),
        )
        return [(" ".join(each.text.splitlines()), each.finished) for each in translations]

    def _remember_pairs(self) -> None:
        """The pairs that are written already."""
        sides = ("source", "target") if self.forward else ("target", "source")  # the text's side first
        with ExitStack() as stack:
            parts = [self.journal.part(side).open(encoding="utf-8", newline="\n") for side in sides]
            for line, output in zip(*map(stack.enter_context, parts)):
                self.judge.is_new(line.rstrip("\n"), output.rstrip("\n"))
