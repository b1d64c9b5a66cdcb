"""A table says the same in every form of writing, and no cell can break out of it."""

from __future__ import annotations

import io
import xml.etree.ElementTree as ElementTree

import pytest
from rich.console import Console

from hf_mlnmt.common.table import Number, Table

COLUMNS = ["system", Number("BLEU")]
ROWS = [["a|b [red]x[/]", "9"], ['<i>"c", d</i>', "10.5\n+3"]]


@pytest.fixture
def table() -> Table:
    return Table(COLUMNS, ROWS, "Title [1]", "One & two\nthree", bold=[1])


def terminal(table: Table) -> str:
    console = Console(file=io.StringIO(), width=80)
    console.print(table)
    return console.file.getvalue()


def test_terminal(table):
    lines = terminal(table).splitlines()
    assert lines[0].strip() == "Title [1]"
    assert "a|b [red]x[/]" in lines[4], "rich takes brackets for its own marks"
    assert lines[4].endswith("│    9 │")
    assert [line.strip() for line in lines[-2:]] == ["One & two", "three"]
    assert "\n" in terminal(Table(["", ""], [["a", "b"]]))
    assert "━" not in terminal(Table(["", ""], [["a", "b"]])), "without names there is no head"


def test_numbers_stand_on_the_right_of_plain_text(table):
    assert str(table) == 'a|b [red]x[/]       9\n<i>"c", d</i> 10.5 +3'
    assert str(Table(COLUMNS, [])) == ""


def test_markdown(table):
    assert table.markdown().splitlines() == [
        "| system | BLEU |", "| --- | --- |", "| a\\|b [red]x[/] | 9 |", '| &lt;i>"c", d&lt;/i> | 10.5 +3 |',
    ]  # fmt: skip


def test_html(table):
    parsed = ElementTree.fromstring(table.html().replace("<br>", "\n"))
    assert "".join(parsed.find("caption").itertext()) == "Title [1]\nOne & two\nthree"
    assert [cell.text for cell in parsed.findall("thead/tr/th")] == COLUMNS
    assert [[cell.text for cell in row] for row in parsed.findall("tbody/tr")] == ROWS
    assert [row.get("class") for row in parsed.findall("tbody/tr")] == [None, "strong"]
    assert [cell.get("class") for cell in parsed.find("tbody/tr")] == [None, "number"]


def test_a_row_of_another_length_is_refused():
    with pytest.raises(ValueError, match="2 columns, but 1 cells"):
        Table(COLUMNS, [["a"]])
