"""Back-translation: pairs from text of one language, the other side written by a model.

Reference: Sennrich, Haddow and Birch 2016, "Improving Neural Machine Translation Models with Monolingual Data", ACL;
in the thesis on monolingual data section 4.3, where the text is the target's and the model a beam search's. What other
methods there are is in methods.py, from the literature named there; forward translation turns the roles: the text is
the source, and the model's output the target (with a larger model's: sequence-level distillation).
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from hf_mlnmt.data.synthetic import MANIFEST, SCHEMA, Manifest, read_manifest
from hf_mlnmt.errors import UserError
from hf_mlnmt.files import check_folder_name, only_one
from hf_mlnmt.synthetic.identity import differences, identity_of_model, identity_of_text, text_lines
from hf_mlnmt.synthetic.journal import STATE, Journal
from hf_mlnmt.synthetic.language_check import doubts_about_language
from hf_mlnmt.synthetic.methods import Method
from hf_mlnmt.synthetic.outputs import USUAL, Counts, Judge, check_reasons


@dataclass(frozen=True)
class Settings:
    """What decides the pairs, beside model, text and method.

    limit: lines of the text that are taken; all when None.
    drop: reasons for which a pair goes, of `outputs.REASONS`; max_ratio: what "long" means there.
    bad_lines: at invalid UTF-8, control characters and overlong lines: stop with an "error", or "drop" and count.
    source_language, target_language: codes, where the model needs them.
    max_new_tokens: the longest output in subwords; None: as the model's generation_config.json says.
    window: lines that are sorted by length together, and kept together: what an interruption may cost.
    batch_tokens: source tokens in a batch, padding included. dtype: of the model's weights.
    """

    limit: int | None = None
    drop: tuple[str, ...] = USUAL
    max_ratio: float = 3.0
    bad_lines: str = "error"
    source_language: str | None = None
    target_language: str | None = None
    max_new_tokens: int | None = None
    window: int = 2048
    batch_tokens: int = 4096
    dtype: str = "auto"

    def __post_init__(self) -> None:
        check_reasons(self.drop)
        for name in ("limit", "window", "batch_tokens", "max_new_tokens"):
            if (value := getattr(self, name)) is not None and value < 1:
                raise UserError(f"{name} must be at least 1, not {value}.")
        if not self.max_ratio >= 1:
            raise UserError(f"max_ratio must be at least 1, not {self.max_ratio}.")
        if self.bad_lines not in ("error", "drop"):
            raise UserError(f"bad_lines is 'error' or 'drop', not '{self.bad_lines}'.")

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}


@dataclass
class Watcher:
    """Who is told: `tell` gets messages, `warn` what is doubtful, `progress` (lines done, lines in all, counts)."""

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
) -> Manifest:
    """Write a synthetic corpus into the folder `output` (files: data/synthetic.py): pairs in the order of the text.

    Stopped at any moment and started again with the same arguments, it goes on and ends with the same bytes (on the
    same machine, with as many threads). Memory: one window of lines, and with "duplicate" in settings.drop some 100
    bytes for every pair.

    Args:
        model: a folder or a Hub name; None for the method "copied".
        texts: files of one sentence a line, plain or gz, read one after the other.
        forward: the text is the source and the model's output the target.
        tag: a token, as "<bt>", which a training is to put before every source of these pairs; kept in the manifest.

    Raises: UserError, and for a folder that holds a corpus of something else, naming what changed.
    """
    method, settings, watcher = method or Method(), settings or Settings(), watcher or Watcher()
    _check(model, texts, method, forward, tag)
    folder = Path(output)
    check_folder_name(folder)
    _check_folder(folder)
    with only_one(folder, f"{folder}: another back-translation is writing into this folder. Wait for it."):
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
        if found := _finished(folder, about):
            watcher.tell(f"{folder} is finished, and nothing changed since: {found.pairs:,} pairs.")
            return found
        loaded = loaded or _load(model, settings, device, revision)
        job = _Job(loaded, texts, Journal(folder, about), method, settings, forward, watcher)
        return job.run()


def _check(
    model: str | Path | None, texts: Sequence[str | Path], method: Method, forward: bool, tag: str | None
) -> None:
    if not texts:
        raise UserError("no text: give one file or more, of one sentence a line.")
    if (model is None) != (method.name == "copied"):
        raise UserError("a model is needed by every method but 'copied', which needs none.")
    if forward and method.name == "copied":
        raise UserError("copied: both sides are the text; leave --forward out.")
    if tag is not None and len(tag.split()) != 1:
        raise UserError(f"tag: one token without spaces is expected, such as <bt>, not {tag!r}.")


def _check_folder(folder: Path) -> None:
    inside = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
    if {name for name in inside if not name.startswith(".")} and not inside & {MANIFEST, STATE}:
        raise UserError(f"{folder}: holds other things. Choose another --output, which need not exist.")


def _load(model: str | Path | None, settings: Settings, device: str | None, revision: str | None) -> Any:
    if model is None:
        return None
    from hf_mlnmt.generation import TranslationPipeline

    options: dict[str, Any] = {"revision": revision} if revision else {}
    # By generate() alone, whatever is installed: the same bytes are promised.
    return TranslationPipeline.from_pretrained(str(model), device=device, dtype=settings.dtype, **options)


def _finished(folder: Path, about: dict[str, Any]) -> Manifest | None:
    """The manifest of a corpus that is finished; None when it is not, or not begun.

    Raises: UserError when the folder holds a corpus of something else.
    """
    state = Journal.kept(folder)
    manifest = read_manifest(folder) if (folder / MANIFEST).is_file() else None
    before = manifest.content if manifest else state["about"] if state else None
    if before and (changed := differences(before, about)):
        what = "finished" if manifest else "not finished"
        raise UserError(
            f"{folder}: holds a corpus ({what}) of something else:\n  " + "\n  ".join(changed) + "\n"
            "Choose another --output, or go back to what it was."
        )
    if manifest:
        (folder / STATE).unlink(missing_ok=True)
    return manifest


class _Job:
    """One corpus, from where an earlier start left it to its end."""

    def __init__(
        self,
        pipeline: Any,
        texts: Sequence[str | Path],
        journal: Journal,
        method: Method,
        settings: Settings,
        forward: bool,
        watcher: Watcher,
    ) -> None:
        self.pipeline, self.texts, self.journal, self.watcher = pipeline, texts, journal, watcher
        self.method, self.settings, self.forward = method, settings, forward
        lines = sum(text["lines"] for text in journal.about["text"])
        self.total = min(lines, settings.limit or lines)
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
            self.judge = Judge(self.settings.drop, self.settings.max_ratio, counts)
            if "duplicate" in self.settings.drop:
                self._remember_pairs()
            if progress["lines"]:
                self.watcher.tell(f"going on at line {progress['lines'] + 1:,} of {self.total:,}")
            self.watcher.progress(progress["lines"], self.total, counts)
            for first, lines in self._windows(progress["lines"]):
                self._window(first, lines)
            manifest = {**self.journal.about, "counts": counts.to_dict(), "warnings": self.warnings}
            self.journal.finish({**manifest, "versions": _versions()}, counts.kept)
        return read_manifest(self.journal.folder)

    def _windows(self, done: int) -> Iterator[tuple[int, list[str]]]:
        """(number of the first line from 0, lines) of all that is not done."""
        lines = islice(text_lines(self.texts, self.settings.bad_lines), done, self.total)
        while window := list(islice(lines, self.settings.window)):
            yield done, window
            done += len(window)

    def _window(self, first: int, lines: list[str]) -> None:
        """Translate, judge and keep some lines."""
        outputs = self._outputs(first, lines)
        pairs = []
        for number, (line, (output, finished)) in enumerate(zip(lines, outputs, strict=True), start=first):
            changed = self.method.change(output, number)
            if self.judge.keeps(line, output, finished, changed):
                pairs.append((line, changed) if self.forward else (changed, line))
        if first == 0 and self.pipeline is not None:
            self._doubt(lines, [output for output, _ in outputs])
        counts, done = self.judge.counts, first + len(lines)
        self.journal.append(pairs, done, counts=counts.to_dict(), warnings=self.warnings)
        self.watcher.progress(done, self.total, counts)

    def _doubt(self, lines: list[str], outputs: list[str]) -> None:
        """Warn where the first lines look as if they were of another language than the model reads."""
        spoilt = [reason for reason in ("long", "repeated") for _ in range(self.judge.counts.found.get(reason, 0))]
        self.warnings = list(doubts_about_language(lines, outputs, spoilt, self.pipeline.parts.source))
        for warning in self.warnings:
            self.watcher.warn(warning)

    def _outputs(self, first: int, lines: list[str]) -> list[tuple[str, bool]]:
        """What the method makes of each line, and whether it ended by itself."""
        if self.pipeline is None:
            return [(line, True) for line in lines]
        settings, done = self.settings, first

        def update(count: int) -> None:
            nonlocal done
            done += count
            self.watcher.progress(done, self.total, self.judge.counts)

        found = self.pipeline.translate_lines(
            lines,
            first,
            update,
            source_language=settings.source_language,
            target_language=settings.target_language,
            max_new_tokens=settings.max_new_tokens,
            batch_tokens=settings.batch_tokens,
            **self.method.decoding(),
        )
        return [(" ".join(each.text.splitlines()), each.finished) for each in found]

    def _remember_pairs(self) -> None:
        """The pairs that are written already."""
        sides = ("source", "target") if self.forward else ("target", "source")  # the text's side first
        paths = [self.journal.written(side) for side in sides]
        with (
            paths[0].open(encoding="utf-8", newline="\n") as text,
            paths[1].open(encoding="utf-8", newline="\n") as out,
        ):
            for line, output in zip(text, out):
                self.judge.is_new(line.rstrip("\n"), output.rstrip("\n"))


def _versions() -> dict[str, str]:
    return {name: importlib.metadata.version(name) for name in ("hf-mlnmt", "torch", "transformers")}
