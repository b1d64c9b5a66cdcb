"""The `hf-mlnmt` command: translate.py is `hf-mlnmt translate`, `average` in model.py is `hf-mlnmt model average`.

A file with a PANEL, its heading in the help, is a verb: the function of the file's name (`import_` is `import`), whose
docstring is the help. A file without such a function is a group, whose verbs are its public functions. Imports at the
tops of these files must be fast, since help, option errors and the shell's completion import all files.
"""

import functools
import glob
import inspect
import io
import os
import pkgutil
import re
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, NoReturn, get_type_hints

import typer
from typer.models import OptionInfo

from hf_mlnmt.cli.help import HelpAll, Verb
from hf_mlnmt.cli.options import NamedPath, Trust, as_typed
from hf_mlnmt.common.errors import OptionError, UserError
from hf_mlnmt.common.keys import variable
from hf_mlnmt.common.model_folder import CONFIG, MODEL_FILES, trusting

PANELS = ("First steps", "Train", "Translate", "Score", "Look into a model", "Publish", "Models of other toolkits")


def _paragraphs(text: str | None) -> str:
    """Joins the lines of each paragraph and list item of a docstring, to be wrapped to the terminal; examples stay."""
    paragraphs = inspect.cleandoc(text or "").split("\n\n")
    return "\n\n".join(each if each.startswith("  ") else re.sub(r"\n(?!- )\s*", " ", each) for each in paragraphs)


def _add(verbs: typer.Typer, verb: Callable[..., None], panel: str | None = None) -> None:
    """Adds a function to `verbs` as a verb of its name, with its docstring as help."""
    name = verb.__name__.strip("_").replace("_", "-")
    verbs.command(name, cls=Verb, rich_help_panel=panel, help=_paragraphs(verb.__doc__))(_keeping_inputs(verb))


_OUTPUTS = ("output", "html", "save_translations", "scores_file", "doubtful", "report")
# Arguments whose files an output may replace: the recipe of a run, for example, may be in the run's output folder.
_NO_INPUTS = ("cache", "data", "recipe", "recipes")
_MODELS = {"model", "models", "device", "init_from", "checkpoints"}  # a verb with one of these arguments loads a model


def _keeping_inputs(verb: Callable[..., None]) -> Callable[..., None]:
    """Returns the verb with a check that no output is an input or another output, and with --help-all; verbs that load
    models also get --trust-remote-code."""

    @functools.wraps(verb)
    def run(*arguments: Any, trust_remote_code: bool = False, help_all: bool = False, **given: Any) -> None:
        from hf_mlnmt.common.files import keeping

        written = [Path(os.path.realpath(given[name])) for name in _OUTPUTS if given.get(name)]
        if len(set(written)) < len(written):
            raise UserError(f"{written[0]}: is the name of two outputs. Choose another for one of them.")
        read = [value for name, value in given.items() if name not in (*_OUTPUTS, *_NO_INPUTS)]
        try:
            with trusting(trust_remote_code), keeping(path for value in read for path in _files_of(value)):
                verb(*arguments, **given)
        except OptionError as error:
            raise UserError(as_typed(str(error))) from error

    signature, hints = inspect.signature(verb), get_type_hints(verb, include_extras=True)
    added: dict[str, Any] = {"help_all": HelpAll}
    if _MODELS & hints.keys() and verb.__name__ != "import_":
        added["trust_remote_code"] = Trust
    keyword = inspect.Parameter.KEYWORD_ONLY
    parameters = [inspect.Parameter(name, keyword, default=False, annotation=kind) for name, kind in added.items()]
    parameters = [*(each.replace(annotation=hints[each.name]) for each in signature.parameters.values()), *parameters]
    for each in parameters:  # a switch that is off by default gets no option --no-NAME
        if isinstance(each.default, OptionInfo) and each.default.default is False and not each.default.param_decls:
            each.default.param_decls = (f"--{each.name.strip('_').replace('_', '-')}",)
    run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    run.__annotations__ = hints | added
    return run


def _files_of(value: Any) -> Iterator[Path]:
    """Yields the existing paths that an argument names; for a model folder also its model and tokenizer files."""
    if isinstance(value, list | tuple):
        for each in value:
            yield from _files_of(each)
    elif isinstance(value, str | Path | NamedPath):
        # In a path, `compare` replaces {test} by the name of each test set.
        pattern = glob.escape(str(getattr(value, "path", value))).replace("{test}", "*")
        for path in map(Path, glob.glob(pattern)):
            yield path
            if (path / CONFIG).is_file():
                yield from (file for name in MODEL_FILES for file in path.glob(name) if file.is_file())


def _all_verbs() -> typer.Typer:
    """Returns the typer app with all verbs and groups of this folder, sorted by panel and name."""
    verbs = typer.Typer(
        name="hf-mlnmt",
        no_args_is_help=True,
        # Not "markdown", which removes <2de> from help texts as HTML.
        rich_markup_mode="rich",
        pretty_exceptions_enable=False,
    )
    files = [import_module(f"{__name__}.{file.name}") for file in pkgutil.iter_modules(__path__)]
    files = [file for file in files if hasattr(file, "PANEL")]
    panels = list(dict.fromkeys([*PANELS, *(file.PANEL for file in files)]))
    for file in sorted(files, key=lambda file: (panels.index(file.PANEL), file.__name__)):
        name = file.__name__.rpartition(".")[2]
        if verb := getattr(file, name, None):
            _add(verbs, verb, file.PANEL)
            continue
        group = typer.Typer(no_args_is_help=True, rich_markup_mode="rich", help=_paragraphs(file.__doc__))
        for verb in vars(file).values():
            if inspect.isfunction(verb) and verb.__module__ == file.__name__ and not verb.__name__.startswith("_"):
                _add(group, verb)
        verbs.add_typer(group, name=name, rich_help_panel=file.PANEL)
    return verbs


app = _all_verbs()


def _version(asked: bool) -> None:
    if asked:
        from importlib import metadata
        from platform import python_version

        from hf_mlnmt import __version__

        typer.echo(f"hf-mlnmt {__version__}")
        for package in ("torch", "transformers"):  # reads versions from metadata: importing takes seconds
            typer.echo(f"{package} {metadata.version(package)}")
        typer.echo(f"Python {python_version()}")
        raise typer.Exit


@app.callback()
def about(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the versions and exit.")
    ] = False,
) -> None:
    """Neural machine translation models for Transformers: train, translate, score, publish.

    `hf-mlnmt VERB --help` explains a verb. New here? `hf-mlnmt demo` does everything once, in minutes.
    """


def main() -> None:
    """Runs the command line. Exit codes: 0; 1 after an error message; 2 for wrong options; 130 after Ctrl-C, 143 after
    SIGTERM."""
    _replace_closed_streams()
    if isinstance(sys.stdout, io.TextIOWrapper) and not variable("PYTHONIOENCODING"):
        # Standard output is UTF-8 with "\n" as files are; on Windows a pipe would be in the system's code page.
        sys.stdout.reconfigure(encoding="utf-8", errors=sys.stdout.errors, newline="\n")
    try:
        try:
            app()
        finally:
            sys.stdout.flush()  # raises OSError for a full disk, which is reported below
    except UserError as error:
        _fail(str(error))
    except UnicodeEncodeError as error:
        written = error.object[error.start]
        _fail(f"standard output is {error.encoding}, which has no {written!r}: unset PYTHONIOENCODING, or name a file.")
    except BrokenPipeError:  # the program that reads this output has ended, as `head` does in `| head`
        _drop_output()
        sys.exit(1)
    except OSError as error:  # an error of the operating system: no permission, no space, no network
        _drop_output()
        _fail(": ".join(str(part) for part in (error.filename, error.strerror or error) if part))


class _Closed(io.TextIOBase):
    """Replaces a closed standard output; raises UserError when something is written."""

    @property
    def buffer(self) -> Any:
        """Returns this object, so that `sys.stdout.buffer.write` raises UserError too."""
        return self

    def write(self, text: str) -> int:
        raise UserError("standard output is closed: nothing can be written there. Name a file, or open it.")


def _replace_closed_streams() -> None:
    """Opens the null device for closed standard streams, whose numbers the next opened files would get otherwise."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the system assigns the lowest free number: that of the closed stream
    sys.stdout = sys.stdout or _Closed()
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115


def _fail(message: str) -> NoReturn:
    from rich.console import Console

    Console(stderr=True).print("error:", style="bold red", end=" ")
    print(message, file=sys.stderr)
    sys.exit(1)


def _drop_output() -> None:
    """Discards buffered standard output, which Python would try to write again, with an error, when it ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
