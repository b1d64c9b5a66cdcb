"""CONTRIBUTING's "Adding something": a toy of each kind, added to a copy of the package in the places that the page
names and in no other, does what the page says."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from helpers.fresh import python
from helpers.once import made_once

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| ([a-z ]+) \| (`.*`) \| \d+ \|$", PAGE.split("## Adding something")[1], re.MULTILINE)
GATE, ENTRY = re.findall("```python\n(.*?)```", (ROOT / "docs/own-system.md").read_text("utf-8"), re.DOTALL)

# Of each kind, by its place: a new file's text, or (before, after) of lines of the file that is there; and a trial.
TOYS = {
    "verb": (
        {
            "cli/greet.py": '''
from hf_mlnmt.cli.options import argument, option

PANEL = "Train"


def greet(name: str = argument(..., "Whom."), twice: bool = option(False, "Two times.", "--twice")) -> None:
    """Greet somebody."""
    print(f"Hello {name}!" * (2 if twice else 1))
'''
        },
        """
from typer.testing import CliRunner
from hf_mlnmt.cli import app
assert "Greet somebody" in CliRunner().invoke(app, ["--help"]).output
assert CliRunner().invoke(app, ["greet", "you", "--twice"]).output == "Hello you!Hello you!\\n"
""",
    ),
    "corpus format": (
        {
            "data/corpus.py": [
                (
                    "# The formats of one file",
                    """def _read_toy(spec: CorpusSpec, path: Path, report: FilterReport) -> Iterator[Pair]:
    records = (dict(zip(_SIDES, line.split(" = "))) for line, _ in checked_lines(path, REMEDY, form="any"))
    return _records(records, spec, f"{path}, line", report)


# The formats of one file""",
                ),
                ("FORMATS = {", 'FORMATS = {\n    ".toy": _read_toy,'),
            ]
        },
        """
from pathlib import Path
from hf_mlnmt.data import CorpusSpec, TextSpec, read_pairs, read_text
Path("a.toy").write_text("one = eins\\ntwo = zwei\\n")
assert list(read_pairs(CorpusSpec(path="a.toy"))) == [("one", "eins"), ("two", "zwei")]
assert list(read_text(TextSpec(path="a.toy", column="target"))) == ["eins", "zwei"]
""",
    ),
    "document format": (
        {
            "documents/toy.py": '''
from hf_mlnmt.documents.marked import PLAIN, Passage, Reading, Token, passages


def read_toy(text: str, reading: Reading) -> list[str | Passage]:
    """Returns the parts of a text, whose lines with # are comments."""
    lines = text.splitlines(keepends=True)
    return list(passages((Token("break" if "#" in line else "text", line) for line in lines), PLAIN))
''',
            "documents/__init__.py": [
                (
                    "from hf_mlnmt.documents.xml import",
                    "from hf_mlnmt.documents.toy import read_toy\nfrom hf_mlnmt.documents.xml import",
                ),
                ("FORMATS = {", 'FORMATS = {\n    ".toy": Format(read_toy),'),
            ],
            "data/formats.py": [("DOCUMENTS = (", 'DOCUMENTS = (\n    ".toy",')],
        },
        """
from hf_mlnmt.documents import is_document, read
document = read("A dog.\\n# no\\nA cat.\\n", ".toy")
assert is_document("a.toy") and document.texts == ["A dog.", "A cat."]
""",
    ),
    "metric": (
        {
            "evaluation/scores.py": [
                ('MetricName = Literal["BLEU", ', 'MetricName = Literal["Edits", "BLEU", '),
                (
                    "    code = written_language(language)\n",
                    '    if name == "Edits":\n        return metrics.TER()\n    code = written_language(language)\n',
                ),
                ("NUMBERS = {", 'NUMBERS = {"Edits": 2, '),
                ("_FORMULAS = {", '_FORMULAS = {"Edits": _ter, '),
            ],
        },
        """
from hf_mlnmt.evaluation import score_protocols
from hf_mlnmt.evaluation.scores import count_metric, scores_of_sums
from hf_mlnmt.evaluation.scores import METRICS, Protocol
assert "Edits" in METRICS
scores = score_protocols(["a b"], [["a c"]], protocols=["cased"], bootstrap=0)["cased"]
assert scores["Edits"] == scores["TER"] == 50
assert scores_of_sums("Edits", count_metric(Protocol("cased"), "Edits", ["a b"], [["a c"]])) == [50]
""",
    ),
    "analysis": (
        {
            "analysis/lengths.py": '''
from hf_mlnmt.evaluation.figures import Study


def lengths_study(lines: list[str]) -> Study:
    """Measures how long lines are."""
    rows = [{"line": number, "words": len(line.split())} for number, line in enumerate(lines, 1)]
    return Study("lengths", rows, rows)
''',
            "cli/analyse.py": [
                (
                    'PANEL = "Look into a model"\n',
                    '''PANEL = "Look into a model"


def lengths(file: Path = argument(..., "Text."), output: Path = options.output(..., "Folder.")) -> None:
    """Measure how long lines are."""
    from hf_mlnmt.analysis.lengths import lengths_study

    finish(lengths_study(file.read_text().splitlines()), output, {"file": str(file)})
''',
                )
            ],
        },
        """
import json
from pathlib import Path
from typer.testing import CliRunner
from hf_mlnmt.cli import app
Path("text").write_text("a b c\\nd\\n")
assert CliRunner().invoke(app, ["analyse", "lengths", "text", "-o", "out"]).exit_code == 0
found = json.loads(Path("out/lengths.json").read_text())
assert [row["words"] for row in found["rows"]] == [3, 1] and found["settings"] == {"file": "text"}
""",
    ),
    "importer": (
        {
            "convert/toy.py": '''
from safetensors.torch import load_file
from transformers import GenerationConfig

from hf_mlnmt.convert.checkpoint import Checkpoint, Move, Placement
from hf_mlnmt.data.tokenizer import Tokenizers, train_tokenizer
from hf_mlnmt.zoo.systems import config_for


def read(path):
    """Reads a toy's checkpoint."""
    config = config_for("transformer", "tiny", vocab_size=40)
    account = Placement(str(path), load_file(path))
    account.move(Move(name.removeprefix("toy."), (name,), False) for name in account.tensors)
    tokenizer = train_tokenizer(["a b c d"], vocab_size=40, byte_fallback=False)
    search = GenerationConfig.from_model_config(config)
    return Checkpoint("toy", config, account, Tokenizers(tokenizer, tokenizer), search)
''',
            "convert/importing.py": [
                (
                    "    if pickles := [file for file in inside",
                    '    if path.suffix == ".toy":\n        from hf_mlnmt.convert import toy\n\n'
                    "        return toy.read(path)\n    if pickles := [file for file in inside",
                )
            ],
        },
        """
import pytest
from safetensors.torch import save_file
from hf_mlnmt import TransformerForConditionalGeneration, UserError, config_for, import_model
state = TransformerForConditionalGeneration(config_for("transformer", "tiny", vocab_size=40)).state_dict()
tensors = {f"toy.{name}": tensor.clone() for name, tensor in state.items()}
save_file(tensors, "a.toy")
assert len(import_model("a.toy", "out").record["parameters"]) == len(state)
name, _ = tensors.popitem()
save_file(tensors, "b.toy")
with pytest.raises(UserError, match=f"nothing there for {name.removeprefix('toy.')}"):
    import_model("b.toy")
""",
    ),
    "objective": (
        {
            "training/objectives.py": [
                (
                    "class TextObjective(Objective):",
                    '''class Length(Translation):
    """Twice the cross-entropy."""

    def loss(self, model, batch, num_items_in_batch=None):
        loss, parts = super().loss(model, batch, num_items_in_batch)
        return 2 * loss, parts


@dataclass
class TextObjective(Objective):''',
                )
            ],
            "recipe/schema.py": [
                (
                    "OBJECTIVES = {",
                    'OBJECTIVES = {\n    "length": ObjectiveKey(SmoothedSettings, "Twice.", translates=True),',
                )
            ],
            "training/preparation.py": [
                ("    Translation,\n", "    Length,\n    Translation,\n"),
                ('    "translation": Translation,\n', '    "translation": Translation,\n    "length": Length,\n'),
            ],
        },
        """
import sys
from pathlib import Path
sys.path.append(TESTS)
from helpers.tiny_run import run_in
step = {"budget": {"steps": 1}, "evaluation": {"every": 1}, "checkpoints": {"average": 1}}
run_in(Path("toy"), objective={"name": "length", "label_smoothing": 0.1}, **step)
assert Path("toy/run/average/model.safetensors").is_file()
""",
    ),
    "system": (
        {
            "modeling/gate.py": GATE.replace("hf_mlnmt.modeling.", ".").replace('"gate"', '"mlnmt-gate"'),
            "zoo/systems.py": [("_ENTRIES = (", f"_ENTRIES = (\n    {ENTRY}")],
        },
        """
import torch
from transformers import AutoModelForSeq2SeqLM
from hf_mlnmt import config_for, list_systems
assert "gate" in list_systems()
config = config_for("gate", "tiny", vocab_size=20, gate_temperature=3.0)
model = AutoModelForSeq2SeqLM.from_config(config).eval()
assert type(model).__name__ == "GateForConditionalGeneration" and not hasattr(config, "auto_map")
assert model.generate(torch.tensor([[5, 6, 1]]), max_new_tokens=3).shape[1] > 1
model.save_pretrained("saved")
assert AutoModelForSeq2SeqLM.from_pretrained("saved").config.gate_temperature == 3
""",
    ),
}


def test_each_kind_of_the_page_is_tried():
    assert dict(ROWS).keys() == TOYS.keys()


RUN = """
import json, os, sys, traceback
found = {}
for kind, trial in json.loads(TRIALS).items():
    os.makedirs(kind)
    os.chdir(kind)
    try:
        exec(trial, {"TESTS": TESTS})
        found[kind] = ""
    except BaseException:
        found[kind] = traceback.format_exc()
    os.chdir("..")
open("found.json", "w").write(json.dumps(found))
"""


@pytest.fixture(scope="session")
def tried(tmp_path_factory) -> dict[str, str]:
    """Kind -> why its trial failed, "" if it did not: all toys in one copy of the package, tried in one process."""
    return json.loads((made_once(tmp_path_factory, "toys", _try_all) / "found.json").read_text())


def _try_all(folder: Path) -> None:
    package = folder / "hf_mlnmt"
    for path in sorted((ROOT / "hf_mlnmt").rglob("*")):
        copy = package / path.relative_to(ROOT / "hf_mlnmt")
        if path.is_file() and path.suffix != ".pyc":
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.symlink_to(path)
    for places, _ in TOYS.values():
        for place, change in places.items():
            text = change if isinstance(change, str) else (package / place).read_text(encoding="utf-8")
            for before, after in change if isinstance(change, list) else ():
                assert before in text
                text = text.replace(before, after, 1)
            (package / place).unlink(missing_ok=True)
            (package / place).write_text(text, encoding="utf-8")
    trials = json.dumps({kind: trial for kind, (_, trial) in TOYS.items()})
    names = f"TRIALS, TESTS = {trials!r}, {str(ROOT / 'tests')!r}"
    done = python("-c", f"import sys; sys.path.insert(0, {str(folder)!r}); {names}\n{RUN}", cwd=folder)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(("kind", "named"), ROWS, ids=[kind for kind, _ in ROWS])
def test_a_toy_needs_the_places_that_the_page_names(kind, named, tried):
    places, _ = TOYS[kind]
    patterns = [re.escape(place) for place in re.findall("`(.+?)`", named)]
    patterns = [re.sub(r"<[a-z]+>", r"[a-z_]+", pattern) for pattern in patterns]
    assert len(patterns) == len(places)
    assert all(any(re.fullmatch(pattern, place) for pattern in patterns) for place in places)
    assert not tried[kind], tried[kind]
