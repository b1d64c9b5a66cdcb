"""The command `hf-mlnmt` as a whole: help, versions, mistakes, signals, what the machine refuses; all of it quick."""

from __future__ import annotations

import ast
import builtins
import dataclasses
import errno
import io
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import typer
from helpers.package_code import FILES, nodes_of
from transformers import GenerationConfig
from typer.main import get_command
from typer.testing import CliRunner

import hf_mlnmt
from hf_mlnmt import cli
from hf_mlnmt.__main__ import _stop as stop
from hf_mlnmt.__main__ import main as start
from hf_mlnmt.cli import PANELS, app, main
from hf_mlnmt.cli.options import _SHELL, NamedPath, as_typed, by_name, decoding_options
from hf_mlnmt.common.errors import OptionError
from hf_mlnmt.generation.translating.options import DecodingOptions

ROOT = Path(__file__).resolve().parents[2]
TOP = dict(get_command(app).commands)
GROUPS = {name: command.commands for name, command in TOP.items() if hasattr(command, "commands")}
COMMANDS = {(name,): command for name, command in TOP.items() if name not in GROUPS}
COMMANDS |= {(group, name): command for group, verbs in GROUPS.items() for name, command in verbs.items()}
NAMES = [" ".join(words) for words in COMMANDS]
HEAVY = ("torch", "transformers", "numpy", "datasets", "sacrebleu", "huggingface_hub")
# The package without its __init__: what the commands themselves cost, whatever `import hf_mlnmt` does.
BARE = f"""
import sys, types
package = types.ModuleType("hf_mlnmt")
package.__path__, package.__version__ = [{str(ROOT / "hf_mlnmt")!r}], "9.8.7"
sys.modules["hf_mlnmt"] = package
from hf_mlnmt import cli
"""


def run(*arguments: str, width: int = 200):
    return CliRunner().invoke(app, list(arguments), env={"COLUMNS": str(width), "TERM": "dumb"})


def bare(code: str, *arguments: str, **options) -> subprocess.Popen:
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, **options}
    return subprocess.Popen([sys.executable, "-c", BARE + code, *arguments], **streams)


def words(text: str) -> str:
    """Letters of a terminal's text in order, without boxes, spaces and line breaks."""
    return re.sub(r"[\s│╭╮╰╯─]", "", text)


def test_help_and_mistakes_import_nothing_heavy():
    """In one process, all verbs: torch and transformers take seconds."""
    code = f"""
import functools
from typer import testing
testing._get_command = functools.cache(testing._get_command)
CliRunner = testing.CliRunner
for arguments in (["--help"], ["--version"], ["trainx"], *([*name.split(), "--help"] for name in {NAMES!r})):
    CliRunner().invoke(cli.app, arguments)
for name in {NAMES!r}:
    CliRunner().invoke(cli.app, [*name.split(), "--no-such-option"])
print([name for name in {HEAVY!r} if name in sys.modules])
"""
    output, errors = bare(code).communicate(timeout=300)
    assert output.strip() == "[]", errors


def test_versions_are_told_without_importing_what_they_are_of():
    output, errors = bare("sys.argv = ['hf-mlnmt', '--version']; cli.main()").communicate(timeout=200)
    lines = output.splitlines()
    assert lines[0] == "hf-mlnmt 9.8.7", errors
    assert [line.split()[0] for line in lines] == ["hf-mlnmt", "torch", "transformers", "Python"]
    assert run("--version").output.startswith(f"hf-mlnmt {hf_mlnmt.__version__}\n")


def test_verbs_at_the_top_by_purpose():
    text = run("--help").output
    assert all(panel in text for panel in PANELS)
    assert all(re.search(rf"^│ {name} ", text, re.MULTILINE) for name in TOP)


def test_every_verb_of_the_folder_is_there():
    """A file with a PANEL is the verb of its name, or a group of all its public functions."""
    found = set()
    for path in (ROOT / "hf_mlnmt" / "cli").glob("*.py"):
        text, name = path.read_text(encoding="utf-8"), path.stem.strip("_").replace("_", "-")
        if re.search("^PANEL = ", text, re.MULTILINE):
            public = re.findall(r"^def ([a-z]\w*)\(", text, re.MULTILINE)
            alone = path.stem in public
            found |= {(name,)} if alone else {(name, verb.replace("_", "-")) for verb in public}
    assert found == set(COMMANDS)


def test_the_page_of_verbs_names_all():
    shown = (ROOT / "docs" / "verbs.md").read_text(encoding="utf-8")
    assert all(f"`{name.split()[-1]}`" in shown or f"`{name}`" in shown for name in NAMES)


def test_an_option_means_one_thing_in_every_verb():
    """Languages are --from and --to, one letter is one option; decoding options are those of DecodingOptions."""
    letters = {"-o": "--output", "-b": "--beams", "-s": "--source", "-r": "--reference"}
    fields = {field.name: field for field in dataclasses.fields(DecodingOptions) if field.metadata}
    for words, command in COMMANDS.items():
        for parameter in command.params:
            long = [name for name in parameter.opts if name.startswith("--")]
            for letter in (name for name in parameter.opts if len(name) == 2):
                assert letters.setdefault(letter, long[0]) in long, (words, letter)
            assert not {"--source-language", "--target-language"} & set(parameter.opts), words
            if parameter.name in fields and words != ("analyse", "fusion-grid"):  # its alpha and beta are lists
                about = fields[parameter.name].metadata
                if parameter.opts == list(about["names"]) and not parameter.name.endswith("_language"):
                    assert parameter.help == about["help"], (words, parameter.name)
    shown = {parameter.name for parameter in COMMANDS["translate",].params}
    assert fields.keys() <= shown


# Options of torchrun, accelerate and GCC, of sacreBLEU's signatures, of pip, of LibreOffice; a style of the page's.
FOREIGN = {"--nproc_per_node", "--multi_gpu", "--mixed_precision", "--ter-normalized", "--ter-asian-support"}
FOREIGN |= {"--extra-index-url", "--w", "--help", "--headless", "--convert-to", "--param"}


def test_every_option_that_a_text_of_the_package_names_is_one():
    known = {option for verb in COMMANDS.values() for parameter in verb.params for option in parameter.opts}
    known |= {option for verb in COMMANDS.values() for parameter in verb.params for option in parameter.secondary_opts}
    known |= {option for parameter in get_command(app).params for option in parameter.opts} | FOREIGN
    for file in FILES:
        for node in nodes_of(file):
            if not isinstance(node, ast.JoinedStr | ast.Constant):
                continue
            parts = node.values if isinstance(node, ast.JoinedStr) else [node]
            texts = [part.value for part in parts if isinstance(part, ast.Constant)]
            text = "".join(text for text in texts if isinstance(text, str))
            named = set(re.findall(r"(?<![\w-])--[a-z][\w-]*", text)) if "--" in text else set()
            assert named <= known, f"{file}, line {node.lineno}"
            if file.split("/")[0] in ("export", "hub"):  # there --to was the output's and the format's name
                assert "--to" not in named or "--from" in named, f"{file}, line {node.lineno}"


def test_decoding_options_are_those_given_and_checked():
    seen = []
    app = typer.Typer()

    @app.command()
    @decoding_options("num_beams", "early_stopping", "temperature", "seed", without=("seed",), progress=True)
    def verb(model: str, *, decoding: DecodingOptions, window: int = 3) -> None:
        seen.append((model, window, decoding.given))

    call = lambda *words: CliRunner().invoke(app, ["m", *words])  # noqa: E731
    assert call("-b", "2", "--early-stopping", "True", "--temperature", "2", "--window", "4").exit_code == 0
    assert call("--no-progress").exit_code == 0
    given = {"num_beams": 2, "early_stopping": True, "temperature": 2.0, "progress": True, "do_sample": True}
    assert seen == [("m", 4, given), ("m", 3, {"do_sample": True})]
    assert call("-b", "0").exit_code == 2
    assert call("--seed", "3").exit_code == 2
    assert "temperature: nan is not a number" in str(call("--temperature", "nan").exception)
    assert "choose true, false or never" in str(call("--early-stopping", "perhaps").exception)


def test_a_name_before_a_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a=b").mkdir()
    assert NamedPath.parse("x=runs/y") == NamedPath("runs/y", "x")
    assert NamedPath.parse("a=b") == NamedPath("a=b")
    assert NamedPath.parse("lat\udce4.de").label == "lat\\udce4.de"
    assert by_name(map(NamedPath.parse, ["runs/ms-1/average", "k=y"])) == {"ms-1": "runs/ms-1/average", "k": "y"}
    with pytest.raises(hf_mlnmt.UserError, match="two models are called 'k'"):
        by_name(map(NamedPath.parse, ["k=x", "y/k"]))


@pytest.mark.parametrize("name", NAMES)
def test_no_word_of_a_help_text_is_lost(name):
    """Markdown took <2de> for HTML and left it out; brackets may be taken for markup."""
    result = run(*name.split(), "--help-all")
    assert result.exit_code == 0
    shown = words(result.output)
    command = COMMANDS[tuple(name.split())]
    for paragraph in command.help.split("\n"):
        assert words(paragraph) in shown
    for parameter in command.params:
        if parameter.help:
            assert words(parameter.help) in shown, parameter.name


@pytest.mark.parametrize("name", NAMES)
def test_the_everyday_options_fit_a_screen(name):
    lines = run(*name.split(), "--help", width=80).output.splitlines()
    assert len(lines) <= 60
    assert max(len(line) for line in lines if not line.startswith("    ")) <= 80


def test_items_and_examples_stay_lines():
    text = run("tokenizer", "--help", width=80).output
    items = [line for line in run("analyse", "masking", "--help").output.splitlines() if line.startswith("- ")]
    assert [item.split(":")[0] for item in items] == ["- layers", "- auxiliaries", "- decoders"]
    example = "hf-mlnmt tokenizer train.en.gz train.de.gz --vocab-size 8000 --output tokenizer"
    assert f"\n    {example}\n" in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("evalute",), "Did you mean 'evaluate'?"),
        (("analyse", "atention"), "Did you mean 'attention'?"),
        (("translate", "--beems", "3"), "--beams"),
        (("evaluate", "--referense", "x"), "--reference"),
        (("publish", "m", "--licens", "mit"), "--licen"),
    ],
)
def test_mistyped_verbs_and_options_name_the_nearest(arguments, message):
    result = run(*arguments)
    assert result.exit_code == 2
    assert message in result.output


def test_the_shell_s_completion_knows_the_verbs():
    environment = {**os.environ, "_HF_MLNMT_COMPLETE": "complete_bash", "COMP_WORDS": "hf-mlnmt tra", "COMP_CWORD": "1"}
    code = "sys.argv = ['hf-mlnmt']; cli.main()"
    output, errors = bare(code, env=environment).communicate(timeout=200)
    assert output.split() == ["train", "translate"], errors
    assert "--install-completion" in run("--help").output


HOLD = """
from pathlib import Path
import time
from hf_mlnmt.common.files import atomic_folder, atomic_path

@cli.app.command()
def hold(folder: Path):
    with atomic_path(folder / "file") as file, atomic_folder(folder / "folder") as new:
        file.write_text("half")
        (new / "weights").write_text("half")
        print("ready", flush=True)
        time.sleep(60)

from hf_mlnmt.__main__ import main
main()
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGINT])
def test_a_signal_leaves_nothing_half_written(tmp_path: Path, number):
    if signal.getsignal(number) is signal.SIG_IGN:
        pytest.skip("whoever started this process has it ignore that signal, as nohup does")
    process = bare(HOLD, "hold", str(tmp_path))
    assert process.stdout.readline() == "ready\n"
    assert len(list(tmp_path.iterdir())) == 2
    process.send_signal(number)
    _, errors = process.communicate(timeout=200)
    assert process.returncode == 128 + number
    assert list(tmp_path.iterdir()) == []
    assert "Traceback" not in errors
    assert ("stopped by" in errors) == (number != signal.SIGINT)


def test_a_hangup_that_is_ignored_stays_ignored(tmp_path: Path):
    code = "import signal; signal.signal(signal.SIGHUP, signal.SIG_IGN)\n" + HOLD
    process = bare(code, "hold", str(tmp_path))
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGHUP)
    time.sleep(0.5)
    assert process.poll() is None
    process.terminate()
    assert process.wait(timeout=200) == 143


@pytest.fixture
def in_main(monkeypatch, capsys):
    """main() with a stand-in for the verbs; returns (exit code, standard error)."""

    def call(verb) -> tuple[int, str]:
        monkeypatch.setattr(cli, "app", verb)
        monkeypatch.setattr(cli, "_drop_output", lambda: None)
        with pytest.raises(SystemExit) as end:
            main()
        return end.value.code, capsys.readouterr().err

    return call


@pytest.mark.parametrize("given", ["--requeue-code 75", "--requeue-code=75", "r.yaml", "--set x=1"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP])
def test_a_signal_before_a_training_begins_asks_to_be_started_again(monkeypatch, given, number):
    monkeypatch.setattr(sys, "argv", ["hf-mlnmt", "train", *given.split(" ")])
    with pytest.raises(SystemExit) as ended:
        stop(number, None)
    assert ended.value.code == (75 if "75" in given and number != signal.SIGHUP else 128 + number)


def test_standard_output_that_is_closed_takes_neither_text_nor_bytes():
    for write in (cli._Closed().write, cli._Closed().buffer.write):
        with pytest.raises(hf_mlnmt.UserError, match="standard output is closed"):
            write(b"PK")


def test_what_the_machine_refuses_is_one_message(in_main):
    def refused():
        raise PermissionError(errno.EACCES, "Permission denied", "/root/secret")

    code, text = in_main(refused)
    assert (code, text) == (1, "error: /root/secret: Permission denied\n")


def test_a_full_disk_behind_standard_output_is_one_message(in_main, monkeypatch):
    class Full:
        def flush(self):
            raise OSError(errno.ENOSPC, "No space left on device")

    def ended():
        raise SystemExit(0)

    monkeypatch.setattr(sys, "stdout", Full())
    code, text = in_main(ended)
    assert code == 1
    assert "No space left on device" in text
    assert text.count("\n") == 1


def test_standard_output_is_utf_8_with_plain_line_ends(in_main, monkeypatch):
    """Also where the system's is not, as in a pipe on Windows; unless the user says which it is."""

    def verb():
        print("Ü 日本")
        raise SystemExit(0)

    written = io.BytesIO()
    monkeypatch.delenv("PYTHONIOENCODING", raising=False)
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="cp1252", newline="\r\n"))
    assert in_main(verb)[0] == 0
    assert written.getvalue() == "Ü 日本\n".encode()
    monkeypatch.setenv("PYTHONIOENCODING", "utf-16-le")
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written := io.BytesIO(), encoding="utf-16-le", newline="\n"))
    assert in_main(verb)[0] == 0
    assert written.getvalue() == "Ü 日本\n".encode("utf-16-le")


def test_a_mistake_is_one_message(in_main):
    def mistaken():
        raise hf_mlnmt.UserError("say what")

    assert in_main(mistaken) == (1, "error: say what\n")


def test_ctrl_c_during_the_import_is_no_traceback(monkeypatch):
    def interrupt(name, *rest):
        if name == "hf_mlnmt.cli":
            raise KeyboardInterrupt
        return imported(name, *rest)

    imported = builtins.__import__
    monkeypatch.setattr(builtins, "__import__", interrupt)
    with pytest.raises(SystemExit) as ended:
        start()
    assert ended.value.code == 130


OPTIONS = [
    ({"force_phrases": "a", "do_sample": True}, "--must: need a beam search"),
    ({"bad_phrases": 3}, "--must-not: 3 is neither"),
    ({"target_prefix": 3}, "--target-prefix: 3 is neither"),
    ({"mbr": 8, "num_return_sequences": 9}, "--n-best: 9 of 8"),
    ({"mbr": 8, "terms": {"a": "b"}}, "leave --terms out"),
    ({"top_p": 0.5}, "--top-p only acts when sampling: add --sample, or"),
    ({"num_beams": 0}, "--beams: 0 is not a whole number of at least 1"),
    ({"num_beams": True}, "--beams: True is not a whole number"),
    ({"num_beam_groups": True}, "--beam-groups: True is not"),
    ({"diversity_penalty": float("nan")}, "--diversity-penalty: nan is not a number"),
    ({"diversity_penalty": -1.0}, "--diversity-penalty: must be at least 0"),
    ({"without_replacement": True}, "--without-replacement: needs --sample and --n-best of 2"),
    ({"terms_ignore_case": True}, "--terms-ignore-case: is of terms, a glossary"),
    ({"min_new_tokens": 9, "max_new_tokens": 3}, "--min-new-tokens: 9 is more than --max-new-tokens, 3"),
    ({"no_repeat_ngram_size": -1}, "--no-repeat-ngram: -1 is not"),
    ({"length_normalization": "x"}, "--length-normalization: unknown value 'x'"),
    ({"length_penalty": 99.0}, "--length-penalty: 99.0 is not a number from"),
    ({"keep": "(num_beams"}, "--keep: '(num_beams' is no regular expression"),
    ({"terms": {"num_beams": ""}}, "--terms: 'num_beams': ''"),
    (
        {"alternatives": 2, "do_sample": True},
        "--alternatives: each is one search for the best translation: leave --sample",
    ),
    ({"draws": "text", "do_sample": True, "num_return_sequences": 4}, "leave --n-best, --beams and --mbr out"),
    ({"terms": {"man": "\0"}}, "--terms: 'man': '\\x00'"),
    ({"terms": {"m\x1bn": "x"}}, "--terms: 'm\\x1bn'"),
    ({"repetition_penalty": 1e-308}, "--repetition-penalty: must be at least 0.01"),
    ({"repetition_penalty": 1e30}, "--repetition-penalty: must be at most 100"),
    ({"early_stopping": "x"}, "--early-stopping: 'x' is neither"),
    ({"utility": "chrf"}, "--utility: is of mbr, minimum"),
]


@pytest.mark.parametrize(("given", "message"), OPTIONS, ids=[message.split(":")[0] for _, message in OPTIONS])
def test_an_option_is_named_as_it_is_typed(given, message):
    """In Python by its keyword; what is quoted stays as it was given."""
    with pytest.raises(OptionError) as raised:
        DecodingOptions(**given)
    typed = as_typed(str(raised.value))
    assert message in typed
    assert not {name for name in _SHELL if "_" in name and re.search(rf"(?<!\w){name}\b", re.sub("'[^']*'", "", typed))}


GROUPS = [
    ({"num_beam_groups": 3}, "--beam-groups: 3 groups of 4 beams"),
    ({"num_beam_groups": 2}, "--beam-groups: say --diversity-penalty too"),
    ({"num_beam_groups": 2, "diversity_penalty": 0.0}, "--beam-groups: say --diversity-penalty too"),
    ({"diversity_penalty": 1.0}, "--diversity-penalty: acts between groups of beams: say --beam-groups too"),
    ({"num_beam_groups": 1, "diversity_penalty": 1.0}, "--diversity-penalty: acts between groups"),
    ({"num_beam_groups": 2, "diversity_penalty": 1.0, "do_sample": True}, "leave --sample, --mbr and --recombine out"),
    ({"num_beam_groups": 2, "diversity_penalty": 1.0, "recombine": 1}, "leave --sample, --mbr and --recombine out"),
    ({"num_beam_groups": 2, "diversity_penalty": 1.0, "num_beams": 1}, "2 groups of 1 beams (--beams)"),
    ({"num_beam_groups": 8, "diversity_penalty": 1.0}, "8 groups of 4 beams"),
]


@pytest.mark.parametrize("where", ["options", "generation_config"])
@pytest.mark.parametrize(("given", "message"), GROUPS)
def test_groups_of_beams_that_cannot_be(given, message, where):
    given = {"num_beams": 4, **given}
    own = {"num_beam_groups": None, "diversity_penalty": None}
    if where == "generation_config":
        own = {name: given.pop(name, None) for name in own}
    model = SimpleNamespace(generation_config=GenerationConfig(max_new_tokens=5), config=SimpleNamespace())
    vars(model.generation_config).update(own)
    with pytest.raises(OptionError) as raised:
        DecodingOptions(**given).generation_arguments(model, SimpleNamespace(generate={}))
    assert message in as_typed(str(raised.value))
