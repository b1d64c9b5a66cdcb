"""`hf-mlnmt report`: the tables of README, docs and cards from results/ and the zoo; an index page of runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hf_mlnmt.errors import UserError


def report(
    results: Annotated[Path, typer.Argument(help="Folder of results files; README.md and docs/ lie beside it.")] = Path(
        "results"
    ),
    check: Annotated[bool, typer.Option("--check", help="Change nothing; exit with 1 and name what is stale.")] = False,
    cards: Annotated[bool, typer.Option(help="Make the cards of the records too, which takes longer.")] = True,
    runs: Annotated[
        list[Path] | None, typer.Option("--runs", help="For the index: folders of runs, of sweeps too.")
    ] = None,
    index: Annotated[Path | None, typer.Option(help="Write a page of every run, with scores and curves.")] = None,
) -> None:
    """Make the tables of README, docs and model cards from results/ and the zoo's entries, published numbers apart.

    In pages, what stands between <!-- report: NAME --> and <!-- /report --> is made anew (docs/results.md has some);
    everything else is left alone. Example:

        hf-mlnmt report results
        hf-mlnmt report results --no-cards --runs sweeps/zoo --index index.html
    """
    from hf_mlnmt.files import check_file
    from hf_mlnmt.reports.index_page import write_index
    from hf_mlnmt.reports.published import papers_table
    from hf_mlnmt.reports.record_cards import stale_cards, write_cards
    from hf_mlnmt.reports.regions import pages, stale_pages, write_pages

    if not results.is_dir():
        raise UserError(f"{results}: no such folder. Give the folder of the results files.")
    if index:
        check_file(index)
    root = results.resolve().parent
    if not pages(root) and not index:
        raise UserError(f"{root}: neither README.md nor docs/*.md there. Give results/ of the folder that they are in.")
    has_cards = cards and (root / "modeling").is_dir()
    if check:
        stale = [str(path.relative_to(root)) for path in stale_pages(root)]
        stale += [f"model_cards/{stem}.md" for stem in (stale_cards(root, papers_table) if has_cards else [])]
        if stale:
            raise UserError(f"stale: {', '.join(stale)}. Make them anew with `hf-mlnmt report {results}`.")
        typer.echo(f"README, docs{' and cards' if has_cards else ''} say what the results say.")
        return
    changed = write_pages(root)
    typer.echo(f"{len(pages(root))} pages, changed: {', '.join(path.name for path in changed) or 'none'}")
    if has_cards:
        typer.echo(f"{len(write_cards(root, papers_table))} cards")
    if index:
        typer.echo(f"written to {write_index(index, [results, *(runs or [])])}")
