"""`hf-mlnmt back-translate`: makes a synthetic parallel corpus from text of one language."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from hf_mlnmt.cli import options
from hf_mlnmt.cli.options import argument, decoding_options, option
from hf_mlnmt.common.errors import UserError
from hf_mlnmt.generation.translating.options import DecodingOptions

if TYPE_CHECKING:
    from hf_mlnmt.common.table import Table
    from hf_mlnmt.data.corpus import Manifest

PANEL = "Translate"
_of_method = partial(option, rich_help_panel="Method")
_of_pairs = partial(option, rich_help_panel="Text and pairs")
_DECODING = ("length_penalty", "temperature", "top_k", "top_p", "seed")
_SETTINGS = ("source_language", "target_language", "max_new_tokens", "batch_tokens")


@decoding_options(*_SETTINGS, "num_beams", *_DECODING)
def back_translate(
    model: str = argument(..., "Model folder or Hub name. With --method copied there is none: a text file too."),
    files: list[Path] | None = argument(None, "Text files, one sentence a line, plain or packed, one after the other."),
    output: Path | None = options.output(None, "Folder for source.txt, target.txt and manifest.json."),
    method: Literal["beam", "greedy", "sampling", "top-k", "noised", "copied"] = _of_method(
        "beam",
        "Beam search (5 beams), greedy search, draws, draws from the best 10, beams with noise, or the text itself.",
    ),
    forward: bool = _of_method(False, "The text is the source, the model's output the target."),
    drop_words: float | None = _of_method(None, "noised: probability that a word goes, 0.1."),
    replace_words: float | None = _of_method(None, "noised: probability that a word becomes the filler, 0.1."),
    swap_words: int | None = _of_method(None, "noised: places that a word may move, 3.", min=0),
    filler: str | None = _of_method(None, "noised: '_'."),
    *,
    decoding: DecodingOptions,
    tag: str | None = _of_pairs(None, "A token, such as <bt>, that trainings put before every source."),
    limit: int | None = _of_pairs(None, "Take so many lines of the text.", min=1),
    reference: list[Path] | None = _of_pairs(
        None, "Human translations: the beam nearest is kept.", "--reference", "-r"
    ),
    reverse: str | None = _of_pairs(None, "Model of the other direction: what it finds unlikely goes, one in twenty."),
    drop: str | None = _of_pairs(None, "What goes: empty,long,repeated,copied,duplicate,language; or none."),
    max_ratio: float = _of_pairs(3.0, "An output with more than so many times the text's words is long."),
    bad_lines: str = _of_pairs("error", "At lines that cannot be read: error, or drop, which counts them."),
    window: int = options.machine(2048, "Lines that are sorted by length together, and kept together.", min=1),
    device: options.Device = None,
    dtype: options.Dtype = "auto",
    threads: options.Threads = None,
    revision: options.Revision = None,
) -> None:
    """Make a synthetic corpus: text of one language, and its translation by a model.

    For back-translation --from is the language of the text, --to that of the output. After a stop at any moment the
    same command resumes, and ends with the same bytes. A recipe reads the folder as a corpus, `synthetic: DIR`.
    docs/monolingual-back-translation.md

    Examples:

        hf-mlnmt back-translate runs/de-en/average news.de.gz -o synthetic
        hf-mlnmt back-translate runs/de-en/average news.de.gz -o sampled --method sampling --seed 1 --tag "<bt>"
    """
    if output is None:
        raise UserError("--output DIR is missing: the folder for the pairs and their manifest.")

    from rich.console import Console

    from hf_mlnmt.cli.terminal import Progress, silence
    from hf_mlnmt.generation.synthetic import back_translation
    from hf_mlnmt.generation.synthetic.methods import Method

    copied = method == "copied"
    texts = [Path(model), *(files or [])] if copied else list(files or [])
    of_method: dict[str, Any] = {name: getattr(decoding, name) for name in _DECODING}
    noise: dict[str, Any] = {"drop": drop_words, "replace": replace_words, "swap": swap_words, "filler": filler}
    chosen = Method(method, decoding.num_beams, **of_method, **noise)
    reasons = None if drop is None else () if drop == "none" else tuple(name.strip() for name in drop.split(","))
    told: dict[str, Any] = {name: getattr(decoding, name) for name in _SETTINGS}
    told |= {"limit": limit, "drop": reasons, "max_ratio": max_ratio, "bad_lines": bad_lines, "window": window}
    told |= {"dtype": dtype, "references": tuple(map(str, reference or ())), "reverse": reverse}
    settings = back_translation.Settings(**told)
    how: dict[str, Any] = {"forward": forward, "tag": tag, "device": device, "revision": revision}
    silence()
    options.use_machine(threads)
    console = Console(stderr=True)
    with Progress(console, "kept but for the last --window. The same command goes on.") as progress:
        watcher = progress.watcher()
        manifest = back_translation.back_translate(
            None if copied else model, texts, output, chosen, settings, watcher=watcher, **how
        )
    console.print(_table(manifest))
    watcher.tell(f"{manifest.folder}: {manifest.pairs:,} pairs")


def _table(manifest: Manifest) -> Table:
    """Makes a table of the numbers of lines read and of pairs kept and dropped, by reason."""
    from hf_mlnmt.common.table import Number, Table

    counts = manifest.content["counts"]
    dropped = counts["dropped"]
    rows = [("lines read", counts["read"]), ("pairs kept", counts["kept"])]
    rows += [(f"dropped: {reason}", count) for reason, count in dropped.items()]
    for reason, count in counts["found"].items():
        if others := count - dropped.get(reason, 0):
            rows.append((f"{reason}, kept or dropped for something else", others))
    total = max(1, counts["read"])
    cells = [(name, f"{count:,}", f"{count / total:.2%}") for name, count in rows]
    return Table(["", Number("number"), Number("share")], cells)
