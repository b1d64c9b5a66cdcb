"""An extension of griffe: docstrings of this package as Google's sections, their source untouched.

`Raises:` and `Returns:` that begin on their line become sections, and what Markdown would swallow stays readable. A
field that says its help beside its default, `x: int = option("Help.", default=1)`, shows the default alone.
"""

import re

import griffe

SAID = re.compile(r"^(?:option|key|field)\(")
DEFAULT = re.compile(r"\bdefault=([^,()]+(?:\([^()]*\))?)")
INLINE = re.compile(r"^(Returns|Raises|Yields|Args):[ ]+(\S.*(?:\n(?!\s*$|\w+:).*)*)", re.M)
# What Markdown would take for something else, and what it is written as: <name>, [Q^1 .. Q^n], lines of equations that
# are numbered or stand further in, an example.
WRITTEN = (
    (re.compile(r"(?<![`\w])(</?\w[\w-]*>)"), r"`\1`"),
    (re.compile(r"(?<!`)(\[[^][`\n]+ \.\. [^][`\n]+\])"), r"`\1`"),
    (re.compile(r"^(\(\d[\d.]*\) .*)\n(?=\(\d)", re.M), r"\1  \n"),
    (re.compile(r"^(?!Args:|Returns:|Raises:|Yields:)(\S.*:)\n {4}(\S.*)$", re.M), r"\1\n```text\n\2\n```"),
    (re.compile(r"^(>>> (?:.+\n?)+?)(?=\n\n|\n?\Z)", re.M), r"```pycon\n\1\n```"),
)


class Sections(griffe.Extension):
    def on_object(self, *, obj: griffe.Object, **kwargs) -> None:
        if obj.docstring:
            obj.docstring.value = as_sections(obj.docstring.value)

    def on_class(self, *, cls: griffe.Class, **kwargs) -> None:
        for member in cls.members.values():
            for parameter in getattr(member, "parameters", ()) if member.name == "__init__" else ():
                if parameter.default is not None and SAID.match(value := str(parameter.default)):
                    default = DEFAULT.search(value)
                    parameter.default = default[1] if default else "None"


def as_sections(text: str) -> str:
    """Returns a docstring whose inline sections stand on lines of their own."""
    for pattern, written in WRITTEN:
        text = pattern.sub(written, text)

    def section(found: re.Match) -> str:
        body = " ".join(line.strip() for line in found[2].splitlines())
        if found[1] == "Raises":
            kind, _, rest = body.partition(":") if re.match(r"\w+:", body) else body.partition(" ")
            body = f"{kind}: {rest.strip() or 'see above'}"
        return f"\n{found[1]}:\n    {body}\n"

    return INLINE.sub(section, text)
