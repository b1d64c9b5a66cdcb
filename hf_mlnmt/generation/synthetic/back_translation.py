"""Back-translation: writes a parallel corpus of monolingual text and a model's translation of it (or a copy).

manifest = back_translate("runs/de-en/average", ["news.de.gz"], "synthetic", Method("sampling", seed=1), tag="<bt>")
manifest.pairs, manifest.content["counts"]      # read again with hf_mlnmt.data.corpus.read_manifest

Reference: Sennrich, Haddow and Birch 2016, "Improving Neural Machine Translation Models with Monolingual Data", ACL; in
the thesis on monolingual data section 4.3, where the text is the target and a beam search writes the source; other
methods: methods.py. In forward translation the text is the source (with a larger model: distillation).

Until the corpus is finished, a journal (journal.py) writes its files, so that a stopped call can be resumed.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, replace
from itertools import chain, islice, repeat
from pathlib import Path
from typing import Any

from hf_mlnmt.common.errors import UserError
from hf_mlnmt.common.files import check_file, check_folder_name, only_one, write_json
from hf_mlnmt.common.keys import Section
from hf_mlnmt.common.languages import base_language, check_direction, check_files, direction_of
from hf_mlnmt.common.made_from import check_same, identity_of_model, identity_of_text, sha256, sha256_of_files
from hf_mlnmt.common.model_folder import MODEL_FILES, fetch_small_files
from hf_mlnmt.data.corpus import FILES, MADE_FROM, MANIFEST, SCHEMA, Manifest, read_manifest
from hf_mlnmt.data.directions import is_told
from hf_mlnmt.data.lines import checked_lines
from hf_mlnmt.data.words import is_visible
from hf_mlnmt.generation.synthetic.methods import UNLIKELY, USUAL, Counts, Judge, Method, check_reasons
from hf_mlnmt.generation.translating.batches import Generated, batches_by_tokens, token_logs_of
from hf_mlnmt.generation.translating.call import TranslationCall
from hf_mlnmt.generation.translating.journal import STATE, Journal
from hf_mlnmt.generation.translating.pipeline import TranslationPipeline
from hf_mlnmt.zoo.systems import positions_of


def text_lines(paths: Sequence[str | Path], bad: str) -> Iterator[str]:
    """Yields the lines of several files; where `bad` is "drop", an empty line for each line that cannot be read."""
    remedy = None if bad == "drop" else "Mend the file, or pass over such lines with bad_lines drop."
    for path in paths:
        yield from ("" if problem else line for line, problem in checked_lines(path, remedy))


@dataclass(frozen=True)
class Settings(Section):
    """The settings that decide which pairs are written, beside model, text and method.

    limit: how many lines of the text are translated; None: all.
    drop: reasons of `methods.REASONS` for which a pair is dropped; None: the usual reasons of the method.
    max_ratio: ratio of words above which an output has the reason "long" (`Judge`).
    bad_lines: at invalid UTF-8, control characters and overlong lines: stop with an "error", or "drop" and count.
    source_language, target_language: language codes, for a model that needs them.
    max_new_tokens: the longest output in subwords; None: as the model's generation_config.json says.
    window: lines that are sorted by length and written together; an interruption loses one window at most.
    batch_tokens: source tokens in a batch, padding included. dtype: of the model's weights.
    references: files, one for each of the first texts, of human translations of its lines: of all beams the one that
        is nearest to the human translation by chrF is kept (Kim and Rush 2016, section 3.3: interpolated).
    reverse: a model of the other direction, whose scores decide which pairs are "unlikely".
    Raises: UserError for a value that is not allowed.
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
    references: tuple[str, ...] = ()
    reverse: str | None = None

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
        """Returns the fields for JSON, with hashes of `references` and `reverse`, each left out where empty."""
        found = {**asdict(self), "drop": None if self.drop is None else list(self.drop)}
        found["references"] = [sha256(path) for path in self.references]
        found["reverse"] = self.reverse and sha256_of_files(fetch_small_files(self.reverse), MODEL_FILES)
        return {name: value for name, value in found.items() if value or name not in ("references", "reverse")}


@dataclass
class Watcher:
    """Callbacks: `tell` is called with messages; `progress` with the lines done, the lines in all and the counts."""

    tell: Callable[[str], Any] = lambda text: None
    progress: Callable[..., Any] = lambda done, total, counts=None: None


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
    """Writes a synthetic corpus into the folder `output` (files: data/corpus.py), pairs in the order of the text.

    A call that was stopped at any moment is resumed by a call with the same arguments, and ends with the same bytes (on
    the same machine, with as many threads). Memory: a window of lines; 100 bytes a pair where duplicates are dropped.

    Args:
        model: a folder or a Hub name; None for the method "copied".
        texts: files of one sentence a line, plain or packed, read one after the other.
        forward: the text is the source and the model's output the target.
        tag: a token such as "<bt>", written to the manifest, that a training puts before every source of these pairs.

    Raises: UserError for bad arguments, and, naming what changed, for a folder with a corpus of other arguments.
    """
    method, settings, watcher = method or Method(), settings or Settings(), watcher or Watcher()
    drop = tuple(name for name in USUAL if name != method.name) if settings.drop is None else settings.drop
    if settings.reverse and "unlikely" not in drop:
        drop = (*drop, "unlikely")
    settings, folder = replace(settings, drop=drop), Path(output)
    if method.name in drop:
        raise UserError("drop: the method copied makes copies alone, of which none would be left. Leave copied out.")
    _check(model, texts, folder, method, forward, tag)
    told = [settings.source_language, settings.target_language]
    if model is not None:
        check_files(model, texts, settings.references, told)
    if settings.reverse:
        there = direction_of(model) if model is not None else None
        check_direction(settings.reverse, list(there or told)[::-1], f"reverse: {settings.reverse}")
    _check_judging(model, texts, method, settings)
    with only_one(folder, f"{folder}: another back-translation is writing into this folder. Wait for it."):
        watcher.tell(f"reading {', '.join(map(str, texts))}")
        here = model is None or Path(model).is_dir()  # a Hub model has an identity only once it was downloaded
        pipeline = None if here else _load(model, settings, device, revision)
        about: dict[str, Any] = {
            "schema": SCHEMA,
            "direction": "forward" if forward else "back",
            "model": None if model is None else identity_of_model(str(model), revision=revision),
            "text": [identity_of_text(path, text_lines([path], settings.bad_lines)) for path in texts],
            "method": method.to_dict(),
            "tag": tag,
            "settings": settings.to_dict(),
        }
        journal = Journal(folder, {side: folder / name for side, name in FILES.items()}, about, MADE_FROM)
        if finished := _finished(journal):
            watcher.tell(f"{folder} is finished, and nothing changed since: {finished.pairs:,} pairs.")
            return finished
        if not any(map(is_visible, text_lines(texts, settings.bad_lines))):
            raise UserError(f"{', '.join(map(str, texts))}: every line is blank or dropped. Give text to translate.")
        count = sum(text["lines"] for text in about["text"])
        total = min(count, settings.limit or count)
        pipeline = pipeline or _load(model, settings, device, revision)
        job = _Job(pipeline, texts, total, journal, method, settings, forward, watcher, _languages(model, settings))
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
    others = {name for name in inside if not name.startswith(".")}
    if others and not inside & {MANIFEST, STATE}:
        raise UserError(f"{folder}: holds other things. Choose another --output, which need not exist.")
    for name in FILES.values():
        check_file(folder / name)


def _check_judging(model: str | Path | None, texts: Sequence[str | Path], method: Method, settings: Settings) -> None:
    """Raises UserError where references, reverse model or languages do not fit the method, the texts or `drop`."""
    if settings.references and (method.name != "beam" or len(settings.references) > len(texts)):
        raise UserError("references: choose among the beams of the method beam; give a file for each of the texts.")
    for text, reference in zip(texts, settings.references):
        counts = [sum(1 for _ in text_lines([path], settings.bad_lines)) for path in (text, reference)]
        if counts[0] != counts[1]:
            raise UserError(
                f"{reference}: has {counts[1]:,} lines and {text} {counts[0]:,}: line i is to be what people wrote for "
                "line i."
            )
    if "unlikely" in (settings.drop or ()) and not settings.reverse:
        raise UserError("drop: unlikely is what a reverse model finds so: give one (--reverse).")
    if "language" in (settings.drop or ()) and not _languages(model, settings):
        raise UserError("drop: for language it must be known which they are: say --from and --to.")


def _languages(model: str | Path | None, settings: Settings) -> tuple[str, str] | None:
    """Returns the language codes of the outputs and of the texts, for language detection; None if one is unknown."""
    found = direction_of(model) if model else None
    source, target = (settings.source_language, settings.target_language)
    source, target = (source or found[0], target or found[1]) if found else (source, target)
    return (base_language(target), base_language(source)) if source and target else None


def _load(model: str | Path | None, settings: Settings, device: str | None, revision: str | None) -> Any:
    if model is None:
        return None
    options: dict[str, Any] = {"revision": revision} if revision else {}
    return TranslationPipeline.from_pretrained(str(model), device=device, dtype=settings.dtype, **options)


def _finished(journal: Journal) -> Manifest | None:
    """Returns the manifest of a finished corpus; None when the corpus is not begun or not finished.

    Raises: UserError when the folder holds a corpus that was made from something else.
    """
    state, folder = journal.kept(), journal.folder
    manifest = read_manifest(folder) if (folder / MANIFEST).is_file() else None
    before = manifest.content if manifest else state["about"] if state else None
    if before:
        what = "finished" if manifest else "not finished"
        check_same(before, journal.about, f"{folder}: holds a corpus ({what})", "Choose another --output")
    if manifest:
        (folder / STATE).unlink(missing_ok=True)
    return manifest


def nearest(hypotheses: Sequence[Any], reference: str) -> Any:
    """Returns the hypothesis with the highest chrF to a reference (the first of equals); for a blank reference the
    first hypothesis."""
    if not reference.strip():
        return hypotheses[0]
    from sacrebleu.metrics import CHRF

    metric = CHRF()
    return max(hypotheses, key=lambda each: metric.sentence_score(each.text, [reference]).score)


@dataclass
class _Job:
    """Writes the corpus of the first `total` lines of a text; resumes after the lines that the journal has."""

    pipeline: Any
    texts: Sequence[str | Path]
    total: int
    journal: Journal
    method: Method
    settings: Settings
    forward: bool
    watcher: Watcher
    languages: tuple[str, str] | None  # language codes of outputs and of texts; None: unknown
    reverse: Any = None

    def run(self) -> Manifest:
        """Translates the remaining lines window by window, writes the manifest, and returns it."""
        state = self.journal.kept()
        with closing(self.journal):
            self.journal.restore(state)
            progress, done = self.journal.progress, self.journal.progress["lines"]
            counts = Counts(**progress.get("counts", {}))
            self.judge = Judge(self.settings.drop or (), self.settings.max_ratio, counts, self.languages)
            if "duplicate" in self.judge.drop:
                self._remember_pairs()
            if done:
                self.watcher.tell(f"going on at line {done + 1:,} of {self.total:,}")
            self.watcher.progress(done, self.total, counts)
            lines = islice(text_lines(self.texts, self.settings.bad_lines), done, self.total)
            known = chain(text_lines(self.settings.references, self.settings.bad_lines), repeat(""))
            references = islice(known, done, None)
            while window := list(islice(lines, self.settings.window)):
                near = list(islice(references, len(window))) if self.settings.references else []
                self._window(self.journal.progress["lines"], window, near)
            versions = {name: importlib.metadata.version(name) for name in ("hf-mlnmt", "torch", "transformers")}
            manifest = {**self.journal.about, "counts": asdict(counts), "versions": versions}
            pairs = {"lines": counts.kept, **self.journal.finish()}
            write_json(self.journal.folder / MANIFEST, {**manifest, "pairs": pairs})
            (self.journal.folder / STATE).unlink()
            return read_manifest(self.journal.folder)

    def _window(self, first: int, lines: list[str], references: list[str]) -> None:
        """Translates and judges a window of lines, appends the kept pairs; first: the first line's number, from 0."""
        outputs = self._outputs(first, lines, references)
        unlikely = self._unlikely(lines, [output for output, _ in outputs])
        pairs = []
        for number, (line, (output, finished)) in enumerate(zip(lines, outputs, strict=True), start=first):
            changed = self.method.change(output, number)
            if self.judge.keeps(line, output, finished, changed, number - first in unlikely):
                pairs.append((line, changed) if self.forward else (changed, line))
        counts, done = self.judge.counts, first + len(lines)
        parts = {side: "".join(f"{text}\n" for text in texts).encode() for side, texts in zip(FILES, zip(*pairs))}
        self.journal.append(parts, done, counts=asdict(counts))
        self.watcher.progress(done, self.total, counts)

    def _outputs(self, first: int, lines: list[str], references: list[str]) -> list[tuple[str, bool]]:
        """Returns each line's translation (or copy) by the method, and whether it ended before the length limit."""
        if self.pipeline is None:
            return [(line, True) for line in lines]
        settings, done = self.settings, first

        def update(count: int) -> None:
            nonlocal done
            done += count
            self.watcher.progress(done, self.total, self.judge.counts)

        names = ["max_new_tokens", "batch_tokens"]
        if "language" not in (settings.drop or ()) or is_told(self.pipeline.model, self.pipeline.parts.source):
            names += ["source_language", "target_language"]  # else only language detection needs the codes
        decoding = replace(self.method.decoding(), **{name: getattr(settings, name) for name in names})
        if references:
            decoding = replace(decoding, num_return_sequences=self.method.beams)
        found = TranslationCall(self.pipeline, decoding, first).translate(lines, first, update)
        translations = list(map(nearest, found, references)) if references else [best[0] for best in found]
        return [(" ".join(each.text.splitlines()), each.finished) for each in translations]

    def _unlikely(self, lines: list[str], outputs: list[str]) -> set[int]:
        """Returns the indices of the share UNLIKELY of the lines with the least mean ln P a subword, given their
        outputs, by the reverse model; none without a reverse model."""
        if self.settings.reverse is None:
            return set()
        if self.reverse is None:
            self.reverse = _load(self.settings.reverse, self.settings, str(self.pipeline.model.device), None).parts
        tokenizers, longest = self.reverse.tokenizers, positions_of(self.reverse.model.config)
        sources = [ids.tolist()[:longest] for ids in tokenizers.encode_source(outputs)]
        targets = [Generated(ids.tolist()[:longest], 0.0) for ids in tokenizers.encode_target(lines)]
        scores = [0.0] * len(lines)
        lengths = [max(len(source), len(target.ids)) for source, target in zip(sources, targets)]
        for batch in batches_by_tokens(lengths, self.settings.batch_tokens):
            rows = [targets[index] for index in batch]
            logs = token_logs_of(self.reverse, [sources[index] for index in batch], rows, {}, 0)
            for index, score in zip(batch, logs.sum(1).tolist(), strict=True):
                scores[index] = score / max(1, len(targets[index].ids))
        worst = sorted(range(len(lines)), key=scores.__getitem__)
        return set(worst[: round(UNLIKELY * len(lines))])

    def _remember_pairs(self) -> None:
        # The side of the given text, then that of the outputs.
        sides = ("source", "target") if self.forward else ("target", "source")
        with ExitStack() as stack:
            parts = [self.journal.part(side).open(encoding="utf-8", newline="\n") for side in sides]
            for line, output in zip(*map(stack.enter_context, parts)):
                self.judge.is_new(line.rstrip("\n"), output.rstrip("\n"))
