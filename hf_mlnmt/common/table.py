"""A table that can be written for the terminal (rich), as plain text, Markdown or HTML."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table as RichTable


class Number(str):
    """The name of a column of numbers, which is right-aligned."""

    __slots__ = ()


class Table:
    """A table of cells of text; line breaks in cells are kept on the terminal and in HTML, else become spaces.

    Args:
        columns: names, of columns of numbers as Number(name); if all are empty, no header is written.
        rows: cells, as many in each row as columns.
        title: text above the table. caption: text below it, of one line or several.
        lines: whether to draw lines between rows, on the terminal.
        bold: numbers of the rows to emphasise, from 0, on the terminal and in HTML.
    """

    def __init__(
        self,
        columns: Iterable[str],
        rows: Iterable[Sequence[str]],
        title: str = "",
        caption: str = "",
        *,
        lines: bool = False,
        bold: Iterable[int] = (),
    ) -> None:
        self.columns = list(columns)
        self.rows = [[str(cell) for cell in row] for row in rows]
        self.title, self.caption, self.lines, self.bold = title, caption, lines, set(bold)
        for row in self.rows:
            if len(row) != len(self.columns):
                raise ValueError(f"{len(self.columns)} columns, but {len(row)} cells in {row}")

    def __rich__(self) -> RichTable:
        """Converts to rich's table, which its Console.print writes."""
        from rich.table import Table as RichTable
        from rich.text import Text

        table = RichTable(
            title=Text(self.title, style="bold") if self.title else None,
            caption=Text(self.caption) if self.caption else None,
            title_justify="left",
            caption_justify="left",
            show_header=any(self.columns),
            show_lines=self.lines,
        )
        for column in self.columns:
            table.add_column(Text(column), justify="right" if isinstance(column, Number) else "left", overflow="fold")
        for number, row in enumerate(self.rows):
            table.add_row(*map(Text, row), style="bold" if number in self.bold else "")
        return table

    def __str__(self) -> str:
        """Returns plain text for a log: the rows without header, with aligned columns."""
        rows = [[cell.replace("\n", " ") for cell in row] for row in self.rows]
        widths = [max(map(len, cells)) for cells in zip(*rows, strict=True)]
        lines = []
        for row in rows:
            sides = zip(row, widths, self.columns, strict=True)
            cells = [
                cell.rjust(width) if isinstance(column, Number) else cell.ljust(width) for cell, width, column in sides
            ]
            lines.append(" ".join(cells).rstrip())
        return "\n".join(lines)

    def markdown(self) -> str:
        """Returns the table in Markdown, without title and caption: the page that has it writes these itself."""
        lines = [self.columns, ["---"] * len(self.columns), *self.rows]
        return "\n".join("| " + " | ".join(map(_markdown_cell, line)) + " |" for line in lines)

    def html(self) -> str:
        """Returns an HTML <table>, with title and caption; its classes: `number` of cells, `strong` of bold rows."""
        caption = "<br>".join(_html_text(text) for text in (self.title, self.caption) if text)
        lines = ["<table>", *([f"<caption>{caption}</caption>"] if caption else [])]
        if any(self.columns):
            cells = "".join(f'<th scope="col">{_html_text(name)}</th>' for name in self.columns)
            lines.append(f"<thead><tr>{cells}</tr></thead>")
        lines.append("<tbody>")
        for number, row in enumerate(self.rows):
            pairs = zip(row, self.columns, strict=True)
            kinds = ((' class="number"' if isinstance(column, Number) else "", cell) for cell, column in pairs)
            cells = "".join(f"<td{kind}>{_html_text(cell)}</td>" for kind, cell in kinds)
            lines.append(f'<tr class="strong">{cells}</tr>' if number in self.bold else f"<tr>{cells}</tr>")
        return "\n".join([*lines, "</tbody>", "</table>"])


def _markdown_cell(text: str) -> str:
    # sacreBLEU's signatures have "|" between their parts, which would end the cell, in code too.
    return markdown_text(text).replace("|", "\\|").replace("\n", " ")


def markdown_text(text: str) -> str:
    """Returns text with "<" escaped where it could begin an HTML element; code between backticks is unchanged."""
    return re.sub(r"(`[^`\n]*`)|<(?=[A-Za-z/!?])", lambda match: match[1] or "&lt;", text)


def _html_text(text: str) -> str:
    return escape(text).replace("\n", "<br>")
