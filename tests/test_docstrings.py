"""Docstrings begin with what the thing does or returns: a verb for a function, a noun for a class or a file."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from helpers.package_code import FILES, nodes_of

VERBS = frozenset(
    """
    accept add adjust advance align allocate allow answer append apply ask assemble assign attach attend average
    back back-translate batch begin bind break build calculate call cap carry cast change check choose clean clear
    close collapse collate collect combine compare compile complain complete compute concatenate configure connect
    consume convert copy count create cut deal decide declare decode define delete describe detach detect determine
    divide download draw drop embed empty encode end ensure enter estimate evaluate exclude execute expand explain
    export expose extend extract fail feed fetch fill filter find finish fit flatten fold follow forbid force forget
    format forward freeze fuse gather generate get give group guard halve hand handle hash hold identify ignore
    import index infer initialise initialize insert install invert iterate join judge keep label lay leave let lift
    limit link list load lock log look lower make map mark mask match measure memoise merge mix move multiply name
    normalise normalize note notice number open order pack pad parse pass patch perform permit pick pin place plan
    plot point pool predict prefix prepare preserve print probe process produce project prove publish put quote
    raise rank read rebuild receive record reduce refresh refuse register reject release reload remember remove
    render reorder repeat replace report request require reserve reset reshape resize resolve restore restrict
    resume retrieve return reverse rewrite round route run sample save say scale scan schedule score search segment
    select send separate serialise serve set shape shard share shift show shrink shuffle skip slice smooth sort
    speak split spread stack start state stop store stream strip subtract sum support swap switch take tell test tie
    time tokenise tokenize trace track train transform translate trim truncate try tune turn undo unfold unpack
    update upload use validate verify wait walk warn watch weigh weight withhold wrap write yield zero
    """.split()  # noqa: SIM905
)
# A verb in the third person ("Returns"), or as a command's help has it ("Train").
SPELT = VERBS | {f"{verb}s" for verb in VERBS} | {f"{verb}es" for verb in VERBS} | {f"{verb[:-1]}ies" for verb in VERBS}
FRAGMENTS = frozenset(
    "What Whether As Of How Those Where Which Why When That Its Their From With One".split()  # noqa: SIM905
)


def docstrings(file: str) -> Iterator[tuple[int, str, str]]:
    """Yields line, kind (function, class or file) and text of each docstring of a file."""
    for node in nodes_of(file):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Module)):
            kind = {ast.ClassDef: "class", ast.Module: "file"}.get(type(node), "function")
            yield from [(node.body[0].lineno, kind, text)] if (text := ast.get_docstring(node)) else []


def begins_well(kind: str, text: str) -> bool:
    """Returns whether a docstring's first word is a verb (of a function), or no fragment's (of a class or a file)."""
    first = text.split()[0].strip(",.:;`")
    return first.lower() in SPELT if kind == "function" else first not in FRAGMENTS


def test_docstrings_begin_with_what_the_thing_does_or_returns():
    found = [
        (begins_well(kind, text), f"{file}:{line}: {text.splitlines()[0]}")
        for file in FILES
        for line, kind, text in docstrings(file)
    ]
    others = [where for good, where in found if not good]
    assert len(others) <= 0.05 * len(found), "\n".join(others)
