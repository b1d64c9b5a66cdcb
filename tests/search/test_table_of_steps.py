"""The table of a beam step's four parts in search/__init__.py: the names are there, and the files bear the numbers."""

import re
from pathlib import Path

from hf_mlnmt import search

ROWS = [line.strip("| ").split(" | ") for line in search.__doc__.splitlines()]


def test_the_table_of_steps_names_what_there_is():
    files, *rows = (row[1:] for row in ROWS if len(row) == 5 and "---" not in row[0])
    for number, cells in enumerate(rows, start=1):
        for file, cell in zip(files, cells, strict=True):
            text = (Path(search.__file__).parent / file).read_text("utf-8")
            assert f"({number})" in text, file
            for name in re.findall(r"(\w+)`", cell):
                assert re.search(rf"^ *(def|long|static \w+) {name}\(", text, re.MULTILINE), f"{file}: {name}"
            assert max(map(len, text.splitlines())) <= 120
    assert number == 4
