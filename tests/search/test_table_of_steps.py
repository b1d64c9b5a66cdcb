"""The table of a beam step's parts in search/__init__.py: the names are there, and the files bear the numbers."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from hf_mlnmt import search

FOLDER = Path(search.__file__).parent
ROWS = [[cell.strip() for cell in line.strip("|").split("|")] for line in search.__doc__.splitlines()]
FILES = next(row for row in ROWS if row[0] == "part" and len(row) == 5)[1:]


@pytest.mark.parametrize("number", range(1, 5))
def test_the_table_of_steps_names_what_there_is(number):
    _, *cells = next(row for row in ROWS if row[0].startswith(f"({number}) "))
    for file, cell in zip(FILES, cells, strict=True):
        text = (FOLDER / file).read_text("utf-8")
        names = re.findall(r"`(?:\w+\.)?(\w+)`", cell)
        assert names
        for name in names:
            assert re.search(rf"^ *(def|long|void|static \w+) {name}\(", text, re.MULTILINE), f"{file}: {name}"
        assert f"({number})" in text, file


def test_lines_of_compiled_code_have_their_length():
    assert max(map(len, (FOLDER / "cpu" / "search.c").read_text("utf-8").splitlines())) <= 120
