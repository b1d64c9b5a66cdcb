"""Formats the help of verbs: --help shows the options that most users need, --help-all every option, by group."""

from __future__ import annotations

import re
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from hf_mlnmt.common.errors import UserError
from hf_mlnmt.generation.translating.options import SAMPLING, SEARCH, SPEED

# Groups of which --help shows only the options in EVERYDAY; of other groups it shows all options but those in RARE.
LONG = {SEARCH, SAMPLING, SPEED, "Limits", "Method", "Text and pairs", "What is said of translations"}
EVERYDAY = frozenset({"--beams", "--length-penalty", "--terms", "--keep", "--device", "--batch-tokens"})
RARE = {"--alternatives", "--below", "--mark", "--leave", "--fuzzy", "--alignments"}
RARE |= {"--confidence", "--prefix", "--trust-remote-code", "--tokenize", "--protocol"}
RARE |= {"--bad-lines", "--keep-accelerators", "--methods", "--requeue-code", "--progress", "--matrix", "--bootstrap"}
RARE |= {"--test-set", "--robustness", "--doubtful", "--summary", "--report"}
RARE |= {"--name", "--language", "--scores", "--one-based"}
# Options that, where a verb allows them to be repeated, get each word up to the next option as a value.
SEVERAL = {"--text", "--languages", "--code", "--like"}


class Verb(TyperCommand):
    """A command whose help has no boxes and no types, and is at most 80 characters wide."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parses the command line; reads `--text a b` as `--text a --text b` (SEVERAL) and `--pair a.tmx`, one file of
        both languages, as `--pair a.tmx a.tmx`. Raises UserError for an empty argument, which would count as an option
        left out or as the current folder."""
        several = {name for each in self.params if getattr(each, "multiple", False) for name in each.opts} & SEVERAL
        both = {name for each in self.params if each.metavar == "SOURCE TARGET" for name in each.opts}
        words: list[str] = []
        for before, value in zip(["", *args], args, strict=False):
            if not value or re.fullmatch(r"--[\w-]+=", value):
                name = value.rstrip("=") or (before if before.startswith("-") else "an argument")
                raise UserError(f"{name}: is empty, as is a variable of the shell that is not set. Give it a value.")
            alone = len(words) > 1 and words[-2] in both and value.startswith("-")
            words += words[-1:] if alone else []
            following = len(words) > 1 and words[-2] in several and not value.startswith("-")
            words += [words[-2], value] if following else [value]
        words += words[-1:] if len(words) > 1 and words[-2] in both else []
        return super().parse_args(ctx, words)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Writes the help: usage, description, arguments, and options by group."""
        self.format_usage(ctx, formatter)
        for paragraph in (self.help or "").split("\n\n"):
            formatter.write_paragraph()
            for line in paragraph.split("\n"):
                if line.startswith("  "):  # an example
                    formatter.write(f"{line}\n")
                else:
                    formatter.write_text(line)
        groups: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
        left = 0
        for parameter in self.params:
            kind = "Arguments" if parameter.param_type_name == "argument" else "Options"
            group, names = getattr(parameter, "rich_help_panel", None) or kind, set(parameter.opts)
            rare = bool(names & RARE) or (group in LONG and not names & EVERYDAY)
            if rare and "help_all" not in ctx.meta:
                left += 1
            else:
                groups.setdefault(group, []).append(_row(parameter, ctx))
        for group, rows in groups.items():
            if rows:
                with formatter.section(group):
                    formatter.write_dl(rows, col_max=24)
        if left:
            formatter.write_paragraph()
            formatter.write_text(f"{left} more options: --help-all")


def _row(parameter: Any, ctx: Any) -> tuple[str, str]:
    """Returns (names, help with default and choices) of an argument or option."""
    text = re.sub(r"  \[default: no-[a-z-]+\]$", "", parameter.get_help_record(ctx)[1])
    if parameter.param_type_name == "argument":
        return (parameter.metavar or parameter.name.upper()) + "..." * (parameter.nargs != 1), text
    kind = "" if parameter.is_flag else parameter.display_type_rich(ctx=ctx)
    choices = ", ".join(re.findall(r"[^<>\[\]|]+", kind.replace("list[", ""))) if "|" in kind else ""
    return ", ".join(sorted(parameter.opts, key=len)), f"{text}  ({choices})" if choices else text


def _show_all(ctx: typer.Context, asked: bool) -> None:
    """Prints the help with every option, and exits, if --help-all was given."""
    if asked:
        ctx.meta["help_all"] = True
        typer.echo(ctx.get_help())
        raise typer.Exit


HelpAll = Annotated[
    bool, typer.Option("--help-all", callback=_show_all, is_eager=True, help="Show every option and exit.")
]
