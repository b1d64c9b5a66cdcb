"""What verbs are told: each option once (name, help, completion), and the decoding options from `DecodingOptions`.

One letter means one thing in all verbs: -o the output, -b beams, -s and -r files of sources and references. Languages
are --from and --to. Systems are NAME=PATH.
"""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Iterable
from dataclasses import MISSING, Field, dataclass, fields
from pathlib import Path
from typing import Annotated, Any, get_args, get_type_hints

import typer

from hf_mlnmt.errors import UserError
from hf_mlnmt.generation.options import LANGUAGES as _LANGUAGES
from hf_mlnmt.generation.options import SPEED as MACHINE
from hf_mlnmt.generation.options import DecodingOptions


@dataclass(frozen=True)
class NamedPath:
    """An argument NAME=PATH, or a path without a name. A file or folder of that whole name is taken as a path."""

    path: str
    name: str = ""

    @classmethod
    def parse(cls, text: str) -> NamedPath:
        """From the command line."""
        name, equal, path = text.partition("=")
        return cls(path, name) if equal and not Path(text).exists() else cls(text)

    def __str__(self) -> str:
        return f"{self.name}={self.path}" if self.name else self.path

    @property
    def label(self) -> str:
        """The name, or else the run's: `ms-1` of runs/ms-1/average."""
        folder = Path(self.path).resolve()
        return self.name or (folder.parent.name if folder.name in ("average", "best", "hub") else folder.name)


def by_name(given: Iterable[NamedPath | str]) -> dict[str, str]:
    """{label: path}. Raises: UserError for one name twice."""
    paths: dict[str, str] = {}
    for each in (NamedPath.parse(one) if isinstance(one, str) else one for one in given):
        if each.label in paths:
            raise UserError(f"two models are called {each.label!r}; give each a name of its own with NAME=PATH.")
        paths[each.label] = each.path
    return paths


def named_paths(help: str) -> Any:
    """An argument of systems or models, NAME=PATH or PATH."""
    return typer.Argument(parser=NamedPath.parse, metavar="NAME=PATH", help=help)


# Models and files

Model = Annotated[str, typer.Argument(help="Model folder (a run's best/ or average/) or Hub name.")]
Models = Annotated[list[NamedPath], named_paths("Model folders or Hub names; NAME=PATH gives a name for the figures.")]
Source = Annotated[Path, typer.Option("--source", "-s", help="Sentences, one a line (text or .gz).")]
Reference = Annotated[
    list[Path], typer.Option("--reference", "-r", help="Raw references (text or .gz); give it again for more.")
]
OutputFolder = Annotated[Path, typer.Option("--output", "-o", help="Folder for JSON, csv and figures.")]
ModelToWrite = Annotated[Path, typer.Option("--output", "-o", help="The model folder to write.")]
Force = Annotated[bool, typer.Option("--force", help="Replace the output folder if it is a model's.")]


def output(help: str, **more: Any) -> Any:
    """The option --output, -o of a verb that says itself what it writes."""
    return typer.Option("--output", "-o", help=help, **more)


# Languages, where a verb does not decode (else: `decoding_options`)

From = Annotated[str | None, typer.Option("--from", help="Code of the source language.", rich_help_panel=_LANGUAGES)]
To = Annotated[str | None, typer.Option("--to", help="Code of the target language.", rich_help_panel=_LANGUAGES)]

# The machine, and where a model comes from

Device = Annotated[
    str | None, typer.Option(help="cpu, cuda, cuda:1...; default: a GPU where there is one.", rich_help_panel=MACHINE)
]
Dtype = Annotated[
    str,
    typer.Option(
        help="auto (as saved), float32, bfloat16, float16; int8 on a CPU.",
        rich_help_panel=MACHINE,
        autocompletion=lambda: ["auto", "float32", "bfloat16", "float16", "int8"],
    ),
]
Threads = Annotated[
    int | None, typer.Option(min=1, help="CPU threads, no more than there are cores.", rich_help_panel=MACHINE)
]
Revision = Annotated[str | None, typer.Option(help="Branch, tag or commit on the Hub.", rich_help_panel=MACHINE)]


def use_threads(threads: int | None) -> None:
    """Let PyTorch use so many threads of the CPU; more than there are cores only wait for one another."""
    if threads:
        import torch

        torch.set_num_threads(min(threads, os.cpu_count() or threads))


# Training

DataFolder = Annotated[
    Path, typer.Option("--data", "-d", help="Folder that the file names of recipes are relative to.")
]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY.SUB=VALUE", help="Replace a key of the recipe. Give it again for more."),
]
System = Annotated[
    str | None,
    typer.Option(help="What is trained: a system of the zoo, m-10, or a recipe of the setup. Default: the recipe's."),
]
RecipeSeed = Annotated[int | None, typer.Option("--seed", min=0, help="Replace the recipe's seed.")]

# Analyses

SampleSize = Annotated[int, typer.Option("--sample", "-n", min=0, help="Sentences to draw from the file; 0: all.")]
SampleSeed = Annotated[int, typer.Option(min=0, help="Seed of the sample.")]
Pooling = Annotated[
    str | None,
    typer.Option(
        help="flat (the bridge's rows side by side), mean, or a row's number from 0. Default: flat with a bridge, "
        "else mean."
    ),
]

# Decoding

TRANSLATION = (
    *("source_language", "target_language", "prefix", "num_beams", "length_penalty", "length_normalization"),
    *("early_stopping", "max_new_tokens", "max_source_tokens", "split_long", "alpha", "beta", "recombine"),
    "batch_tokens",
)
SAMPLING = ("do_sample", "temperature", "top_k", "top_p", "seed")


def decoding_options(
    *names: str, without: tuple[str, ...] = (), **defaults: Any
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Give a verb options of DecodingOptions, with their names, help, ranges and checks from there.

    The verb has a keyword argument `decoding`, and gets there as a dict the options that are other than by default;
    `DecodingOptions` has checked them.

    Args:
        names: fields of DecodingOptions; without any, and without `defaults`: those of a translation, `TRANSLATION`.
        without: of these.
        defaults: further fields, with a default of the verb's own.

    Example:

        @decoding_options(*TRANSLATION, *SAMPLING, progress=True)
        def translate(model: Model, *, decoding: dict[str, Any]) -> None:
    """
    names = names if names or defaults else TRANSLATION
    chosen = [name for name in (*names, *defaults) if name not in without]
    known = {field.name: field for field in fields(DecodingOptions)}
    types = get_type_hints(DecodingOptions)
    usual = {name: None if known[name].default is MISSING else known[name].default for name in chosen}

    def add(verb: Callable[..., Any]) -> Callable[..., Any]:
        hints = get_type_hints(verb, include_extras=True)
        parameters: list[inspect.Parameter] = []
        for parameter in inspect.signature(verb).parameters.values():
            if parameter.name != "decoding":
                parameters.append(parameter.replace(annotation=hints[parameter.name]))
                continue
            for name in chosen:
                kind, default = inspect.Parameter.KEYWORD_ONLY, defaults.get(name, usual[name])
                annotation: Any = Annotated[_type_of(known[name], types[name]), _shown(known[name])]  # type: ignore[valid-type]
                parameters.append(inspect.Parameter(name, kind, default=default, annotation=annotation))

        @functools.wraps(verb)
        def run(*arguments: Any, **keywords: Any) -> Any:
            given = {name: keywords.pop(name) for name in chosen if name in keywords}
            decoding = {name: _parsed(known[name], value) for name, value in given.items() if value is not None}
            decoding = {name: value for name, value in decoding.items() if value != usual[name]}
            draws = {} if "do_sample" in chosen else {"do_sample": True}  # the verb says itself when it samples
            DecodingOptions(**{**draws, **decoding})  # a mistake is found before a model is loaded
            return verb(*arguments, **keywords, decoding=decoding)

        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return run

    return add


def _type_of(field: Field[Any], annotation: Any) -> Any:
    return str | None if "parser" in field.metadata and str in get_args(annotation) else annotation


def _parsed(field: Field[Any], value: Any) -> Any:
    parser = field.metadata.get("parser")
    return parser(value) if parser and isinstance(value, str) else value


def _shown(field: Field[Any]) -> Any:
    """The option of a field of DecodingOptions."""
    about = dict(field.metadata)
    about.pop("parser", None)
    choices = about.pop("choices", ())
    if choices:
        about["autocompletion"] = lambda: list(choices)
    names = about.pop("names")
    return typer.Option(*names, rich_help_panel=about.pop("panel"), **about)
