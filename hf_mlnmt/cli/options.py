"""Defines the options of several verbs (name, help, completion), and makes decoding options of `DecodingOptions`.

A letter is the same option in all verbs: -o output, -b beams, -s and -r files of sources and references. Languages are
given by --from and --to, systems as NAME=PATH.
"""

from __future__ import annotations

import functools
import inspect
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import Field, dataclass, fields
from functools import partial
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from hf_mlnmt.common.errors import UserError
from hf_mlnmt.common.files import check_folder_name
from hf_mlnmt.generation.translating.options import LANGUAGES, REPETITION, SAMPLERS, SPEED, DecodingOptions


@dataclass(frozen=True)
class NamedPath:
    """An argument NAME=PATH, or a path without a name; an argument that is an existing path as a whole is a path."""

    path: str
    name: str = ""

    @classmethod
    def parse(cls, text: str) -> NamedPath:
        """Parses an argument of the command line to name and path."""
        name, equal, path = text.partition("=")
        return cls(path, name) if equal and path and not Path(text).exists() else cls(text)

    def __str__(self) -> str:
        return f"{self.name}={self.path}" if self.name else self.path

    @property
    def label(self) -> str:
        """Returns the name, or if there is none the name of the folder or of the run (`ms-1` of runs/ms-1/average)."""
        folder = Path(self.path).resolve()
        label = self.name or (folder.parent.name if folder.name in ("average", "best", "hub") else folder.name)
        return label.encode(errors="backslashreplace").decode()


def by_name(given: Iterable[NamedPath]) -> dict[str, str]:
    """Returns {label: path} of arguments NAME=PATH. Raises: UserError where two have the same label."""
    paths: dict[str, str] = {}
    for each in given:
        if each.label in paths:
            raise UserError(f"two models are called {each.label!r}; give each a name of its own with NAME=PATH.")
        paths[each.label] = each.path
    return paths


def option(default: Any, help: str, *names: str, **more: Any) -> Any:
    """Makes an option of a verb. default: ... if the option is required. names: default --PARAMETER."""
    return typer.Option(default, *names, help=help, **more)


def argument(default: Any, help: str, **more: Any) -> Any:
    """Makes an argument of a verb; default, help: as of `option`."""
    return typer.Argument(default, help=help, **more)


def output(default: Any, help: str, **more: Any) -> Any:
    """Makes the option --output, -o."""
    return option(default, help, "--output", "-o", **more)


def output_folder(default: Any, help: str) -> Any:
    """Makes the option --output, -o, for a folder; whether the folder can be made is checked before the verb runs."""

    def check(folder: Path | None) -> Path | None:
        if folder is not None:
            check_folder_name(folder)
        return folder

    return output(default, help, callback=check)


named_argument = partial(argument, parser=NamedPath.parse, metavar="NAME=PATH")
named_option = partial(option, parser=NamedPath.parse)
machine = partial(option, rich_help_panel=SPEED)

# Options that several verbs share. In Annotated, the default ... is replaced by that of the verb's parameter.

Model = Annotated[str, argument(..., "Model folder (a run's best/ or average/) or Hub name.")]
Models = Annotated[
    list[NamedPath], named_argument(..., "Model folders or Hub names; NAME=PATH gives a name for the figures.")
]
Source = Annotated[Path, option(..., "Sentences, one a line (plain or packed).", "--source", "-s")]
Reference = Annotated[
    list[Path], option(..., "Raw references (plain or packed); give it again for more.", "--reference", "-r")
]
OutputFolder = Annotated[Path, output_folder(..., "Folder for JSON, csv and figures.")]
ModelToWrite = Annotated[Path, output(..., "The model folder to write.")]
Force = Annotated[bool, option(..., "Replace the output folder if it is a model's.", "--force")]

# Options for languages, of verbs that do not translate; other verbs get them by `decoding_options`.

From = Annotated[str | None, option(..., "Code of the source language.", "--from", rich_help_panel=LANGUAGES)]
To = Annotated[str | None, option(..., "Code of the target language.", "--to", rich_help_panel=LANGUAGES)]

# Options for the machine (device, threads), and for loading a model.

Device = Annotated[str | None, machine(..., "cpu, cuda, cuda:1...; default: a GPU where there is one.")]
Dtype = Annotated[str, machine(..., "auto (as saved), float32, bfloat16, float16; int8 on a CPU.")]
Threads = Annotated[int | None, machine(..., "CPU threads, no more than there are cores.", min=1)]
Trust = Annotated[bool, machine(..., "Run the code that lies beside a model; read it first.", "--trust-remote-code")]
Revision = Annotated[str | None, machine(..., "Branch, tag or commit on the Hub.")]

# Options of trainings and of analyses.

DataFolder = Annotated[Path, option(..., "Folder that the file names of recipes are relative to.", "--data", "-d")]
Settings = Annotated[
    list[str] | None,
    option(..., "Replace a key of the recipe. Give it again for more.", "--set", metavar="KEY.SUB=VALUE"),
]
Pooling = Annotated[
    str | None, option(..., "flat (a bridge's rows side by side, its default), mean, or a row's number from 0.")
]


def use_machine(threads: int | None = None) -> None:
    """Makes the allocator keep freed memory, hides Transformers' progress bars, and sets the number of threads, at most
    the number of cores, as more would wait for one another."""
    import torch
    from transformers.utils import logging

    from hf_mlnmt.common.memory import keep_memory

    keep_memory()
    logging.disable_progress_bar()
    if threads:
        torch.set_num_threads(min(threads, os.cpu_count() or threads))


def refuse(given: Mapping[str, Any], why: str) -> None:
    """Raises UserError for the first option with a value in `given`. why: the message after the option's name."""
    if name := next((name for name, value in given.items() if value), None):
        raise UserError(f"{name}: {why}")


_SHELL = {
    field.name: next(iter(field.metadata["names"]), f"--{field.name.replace('_', '-')}")
    for field in fields(DecodingOptions)
    if field.metadata
}


def as_typed(message: str) -> str:
    """Returns an OptionError's message with options named as on the command line (num_beams=4: --beams 4)."""
    names = "|".join(sorted(_SHELL, key=len, reverse=True))

    def named(found: re.Match[str]) -> str:
        value = "" if found[2] in (None, "", "True") else f" {found[2]}"
        return f"{_SHELL[found[1]]}{value}" if found[1] else found[0]

    message = re.sub(r" \(--[^)]*\)", "", message)
    for place in (rf"^({names})(?:=(\w+))?(?=[:\s])", rf"'[^']*'|(?<![\w.-])((?=\w+_)(?:{names}))\b(?:=(\w+))?"):
        message = re.sub(place, named, message)
    return re.sub(
        r"(?<=leave )([\w, -]+)(?= out)", lambda some: re.sub(rf"(?<![\w-])({names})\b()(?!-)", named, some[0]), message
    )


EVERY = tuple(_SHELL)  # names of all decoding options in Python (num_beams, not --beams)
TRANSLATION = (
    *("source_language", "target_language", "prefix", "num_beams", "length_penalty", "length_normalization"),
    *("early_stopping", "max_new_tokens", "max_source_tokens", "split", "case", "watch", "split_long", "alpha", "beta"),
    *(*REPETITION, "recombine", "num_beam_groups", "diversity_penalty", "batch_tokens"),
)
SAMPLING = ("do_sample", *SAMPLERS, "without_replacement", "seed")


def decoding_options(
    *names: str, without: tuple[str, ...] = (), **defaults: Any
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorator that gives a verb options for fields of DecodingOptions, with their names, help, ranges and checks.

    The options are the fields `names`, without those in `without`, and the fields in `defaults`, with these defaults.
    The verb gets their values as the keyword argument `decoding`, checked before a model is loaded.
    """
    known, types = {field.name: field for field in fields(DecodingOptions)}, get_type_hints(DecodingOptions)
    chosen = {name: known[name] for name in (*names, *defaults) if name not in without}
    kinds = {
        name: {None: types[name], list: list[str] | None}.get(field.metadata.get("parser"), str | None)
        for name, field in chosen.items()
    }
    added = [
        _parameter(name, kinds[name], defaults.get(name, field.default), _shown(field))
        for name, field in chosen.items()
    ]

    def gather(given: dict[str, Any]) -> DecodingOptions:
        # A verb with --temperature but without --sample always samples.
        samples = "temperature" in chosen and "do_sample" not in chosen
        decoding: dict[str, Any] = {"do_sample": True} if samples else {}
        for name, value in given.items():
            if value is not None:
                decoding[name] = chosen[name].metadata.get("parser", lambda word: word)(value)
        return DecodingOptions(**decoding)

    return lambda verb: _with_options(verb, "decoding", added, gather)


def limits_options(verb: Callable[..., Any]) -> Callable[..., Any]:
    """Decorator that gives a verb options for the fields of the server's Limits; the verb gets them as `limits`."""
    from hf_mlnmt.serving.limits import Limits

    added = [_parameter(field.name, int, field.default, _shown(field)) for field in fields(Limits)]
    return _with_options(verb, "limits", added, lambda given: Limits(**given))


def _parameter(name: str, kind: Any, default: Any, shown: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, shown])


def _with_options(
    verb: Callable[..., Any], name: str, added: list[inspect.Parameter], gather: Callable[[dict[str, Any]], Any]
) -> Callable[..., Any]:
    """Returns a verb with options instead of its argument `name`; gather: makes the argument of the options' values."""
    hints = get_type_hints(verb, include_extras=True)
    parameters: list[inspect.Parameter] = []
    for parameter in inspect.signature(verb).parameters.values():
        own = parameter.name != name
        parameters += [parameter.replace(annotation=hints[parameter.name])] if own else added

    @functools.wraps(verb)
    def run(*arguments: Any, **given: Any) -> Any:
        gathered = gather({option.name: given.pop(option.name) for option in added if option.name in given})
        return verb(*arguments, **given, **{name: gathered})

    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


def _shown(field: Field[Any]) -> Any:
    """Makes the typer option of a field of DecodingOptions or Limits, from the field's metadata."""
    about = {key: value for key, value in field.metadata.items() if key not in ("parser", "names", "panel", "choices")}
    if choices := field.metadata.get("choices"):
        about["autocompletion"] = lambda: list(choices)
    return typer.Option(*field.metadata["names"], rich_help_panel=field.metadata["panel"], **about)
