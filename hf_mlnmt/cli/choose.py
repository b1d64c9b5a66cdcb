"""`hf-mlnmt choose`: chooses among several translations of each text the one that is most like the others."""

from pathlib import Path

import typer

from hf_mlnmt.cli import options
from hf_mlnmt.cli.options import argument, option
from hf_mlnmt.common.files import check_file, write_text
from hf_mlnmt.data.formats import check_output
from hf_mlnmt.generation.translating.options import OUTPUT

PANEL = "Translate"


def choose(
    candidates: list[Path] = argument(
        ..., "Files of several systems, or of several translations a line with tabs between; or n-best lists."
    ),
    *,
    output: Path | None = options.output(None, "Write here; default: to stdout.", rich_help_panel=OUTPUT),
    source: Path | None = option(None, "The texts, which a command as --utility may read.", "--source", "-s"),
    utility: str = option("chrf", "What is likeness, as of translate --mbr.", metavar="NAME"),
    to: options.To = None,
    device: options.Device = None,
) -> None:
    """Choose by minimum Bayes risk among existing translations, of any systems; no model translates.

    Examples:

        hf-mlnmt choose first.de second.de third.de -o chosen.de
        hf-mlnmt choose nbest.txt --utility embeddings=runs/demo-de-en/average
    """
    if output is not None:
        check_file(output)
        check_output(output)
    options.use_machine()
    from hf_mlnmt.common.errors import UserError
    from hf_mlnmt.common.languages import check_language, language_in
    from hf_mlnmt.data.lines import read_lines
    from hf_mlnmt.generation.choosing.minimum_risk import MinimumRisk, read_candidates

    language = to or language_in(next(filter(language_in, candidates), ""))
    for path in candidates:
        check_language(path, language, "it is read as", "Give translations into one language.")
    rows = read_candidates(candidates)
    sources = [""] * len(rows) if source is None else list(read_lines(source, keep_controls=True))
    if len(sources) != len(rows):
        raise UserError(f"{source}: {len(sources)} lines, and candidates of {len(rows)} texts: give one for each.")
    minimum_risk = MinimumRisk(utility, device=device, language=to)
    text = "".join(f"{minimum_risk.best(*pair)}\n" for pair in zip(sources, rows, strict=True))
    if output is None:
        typer.echo(text, nl=False)
    else:
        write_text(output, text)
