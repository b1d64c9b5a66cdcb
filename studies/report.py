"""`make report`: makes the tables of README and docs, and the pages in results/, anew from results/ and the zoo.

    python studies/report.py
    python studies/report.py --check
    python studies/report.py --runs sweeps/zoo --index index.html

In README.md and docs/*.md, what stands between <!-- report: NAME --> and <!-- /report --> is made anew (regions.py says
what the names are); everything else is left alone. The pages of comparisons and of the study of text of one language
are made as a whole. With --index it also writes one HTML page of every run. Records and their cards are made by
records.py.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from index_page import write_index
from regions import pages, stale_pages, write_pages

from hf_mlnmt.common.errors import UserError
from hf_mlnmt.common.files import check_file


def parser() -> argparse.ArgumentParser:
    """The command's options."""
    found = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    found.add_argument(
        "results", nargs="?", type=Path, default=Path("results"), help="folder; README.md and docs/ lie beside it"
    )
    found.add_argument("--check", action="store_true", help="change nothing; exit with 1 and name what is stale")
    found.add_argument("--index", type=Path, help="write a page of every run, with scores and curves")
    found.add_argument("--runs", type=Path, action="append", help="for the index: a folder of runs, of a sweep too")
    return found


def report(options: argparse.Namespace) -> None:
    """Make the pages, or check them. UserError for what is stale, and for folders that are not there."""
    if not options.results.is_dir():
        raise UserError(f"{options.results}: no such folder. Give the folder of the results files.")
    if options.index:
        check_file(options.index)
    root = options.results.resolve().parent
    if not pages(root) and not options.index:
        raise UserError(f"{root}: neither README.md nor docs/*.md there. Give results/ of the folder that they are in.")
    if options.check:
        if stale := [path.relative_to(root).as_posix() for path in stale_pages(root)]:
            raise UserError(f"stale: {', '.join(stale)}. Make them anew with `make report`.")
        print("The pages say what the results say.")
        return
    changed = [path.relative_to(root).as_posix() for path in write_pages(root)]
    print(f"changed: {', '.join(changed) or 'none'}")
    if options.index:
        print(f"written to {write_index(options.index, [options.results, *(options.runs or [])])}")


def main(words: list[str] | None = None) -> int:
    """The command; returns the exit code."""
    try:
        report(parser().parse_args(words))
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
