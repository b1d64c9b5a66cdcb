"""`make report`: marked regions of pages, published numbers apart, the index page; this project's own pages."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
from helpers.model_folders import some_results
from index_page import index_page
from papers import printed_tables
from regions import filled, region, stale_pages, write_pages
from report import main

from hf_mlnmt.common.errors import UserError
from hf_mlnmt.reports.comparison_page import page_of
from published import setup_tables

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def project(tmp_path) -> Path:
    (tmp_path / "docs").mkdir()
    (tmp_path / "results").mkdir()
    for seed, bleu in ((1, 30.0), (2, 33.0)):
        scores = {"BLEU": {"score": bleu, "signature": "x", "ci": None}}
        content = some_results(seed=seed, scores={"val": {"cased": scores}, "tst2013": {"cased": scores}})
        name = "transformer.iwslt-envi.json" if seed == 1 else "transformer.iwslt-envi.seed2.json"
        (tmp_path / "results" / name).write_text(json.dumps(content))
    (tmp_path / "README.md").write_text(
        "# x\n<!-- report: first:transformer.iwslt-envi -->\nold\n<!-- /report -->\nend\n"
    )
    (tmp_path / "docs" / "a.md").write_text("<!-- report: results -->\n<!-- /report -->\n")
    return tmp_path


def test_regions_are_made_anew_and_the_rest_stays(project):
    assert [path.name for path in stale_pages(project)] == ["README.md", "a.md"]
    write_pages(project)
    readme, page = (project / "README.md").read_text(), (project / "docs" / "a.md").read_text()
    assert readme.startswith("# x\n<!-- report: first:transformer.iwslt-envi -->\n| record |")
    assert readme.endswith("<!-- /report -->\nend\n")
    assert "old" not in readme
    assert "| [transformer.iwslt-envi, seed 7]" not in readme
    assert "](results/transformer.iwslt-envi.json) | tst2013 | 4,321 steps | 30.00 | not recorded |" in readme
    assert "seed2" not in readme
    assert "](../results/transformer.iwslt-envi.seed2.json) | tst2013 | 4,321 steps | 33.00 |" in page
    assert "val" not in page
    assert not stale_pages(project)
    (project / "README.md").write_text(readme.replace("30.00", "31.00"))
    assert [path.name for path in stale_pages(project)] == ["README.md"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("<!-- report: results -->\n", r"a\.md, line 1: .* has no <!-- /report --> behind it"),
        ("\n<!-- report: results -->\n<!-- report: results -->\n<!-- /report -->", r"a\.md, line 2"),
        ("<!-- report: resluts -->\n<!-- /report -->", "no region 'resluts' \\(did you mean 'results'"),
        ("<!-- report: results:transformr.iwslt-envi -->\n<!-- /report -->", "did you mean 'transformer.iwslt-envi'"),
    ],
)
def test_wrong_marks(project, text, message):
    (project / "docs" / "a.md").write_text(text)
    before = (project / "README.md").read_text()
    with pytest.raises(UserError, match=message):
        write_pages(project)
    assert (project / "README.md").read_text() == before  # all or none


def test_published_numbers_and_ours_stand_apart(project):
    """Ours: mean of 30 and 33, deviation sqrt(2 * 1.5 ** 2), in a column of its own; the paper's stay what they are."""
    page = project / "docs" / "a.md"
    page.write_text("<!-- report: published:iwslt-envi -->\n<!-- /report -->\n")
    text = filled(page, project)
    ours = "[31.50 ± 2.12 (2 seeds)](../results/transformer.iwslt-envi.json)"
    assert f"| `transformer` | 30.58 | 12.8 | 8.58 | {ours} |" in text
    assert "| `ms-13-aif` | 31.63 | 21.7 | 3.77 | not trained |" in text
    tables = setup_tables({})
    assert not any("ours" in str(column) for table in tables.values() for column in table.columns)
    page.write_text("<!-- report: published:wmt16-roen -->\n<!-- /report -->\n")
    text = filled(page, project)
    assert "| system | published BLEU | published TER | published dev BLEU | published dev TER | parameters" in text
    assert "| `fertility` | 34.4 | 47.1 | 36.2 | 45.1 |  |" in text
    assert "| `transformer-two-decoder-layers` |  |  | 33.0 | 48.1 |  |" in text
    assert {"`transformer-wide`", "`transformer-deep`"} <= {row[0] for row in tables["wmt14-ende"].rows}
    for setup in ("vien", "envi", "esen", "enes", "fren", "enfr", "roen", "enro"):
        names = {row[0] for row in tables[f"iwslt-{setup}"].rows}
        assert {"`transformer`", "`enc-dc`", "`dec-dc`", "`full-dc`"} <= names


@pytest.mark.parametrize("name", printed_tables())
def test_a_printed_table_is_whole(name):
    """As many cells as columns, and in each a number: a slip of the pen would part or join two."""
    table = printed_tables()[name].table()
    for row in table.rows:
        for cell in row[1:]:
            assert re.fullmatch(r"-|[\d.]+(/[\d.]+)?|[\d.]+ [\d.]+ [\d.]+", cell), row


def test_this_project_s_pages_say_what_its_results_say():
    assert not list(stale_pages(ROOT)), "run `make report`"


def test_the_page_of_a_comparison_is_made_with_what_the_papers_say(tmp_path):
    name = "multi30k-ende-long"
    shutil.copytree(ROOT / "results" / name, tmp_path / "results" / name)
    page = tmp_path / "results" / name / "README.md"
    text = page.read_text()
    assert "## What the papers say" in text
    assert not stale_pages(tmp_path)
    page.write_text(page_of(page.parent, ROOT))
    assert "papers" not in page.read_text(), "compare knows nothing of them"
    assert list(stale_pages(tmp_path)) == [page]


def test_the_index_has_every_run(project):
    run = project / "runs" / "one"
    run.mkdir(parents=True)
    lines = [
        {"step": 10, "loss": 3.0},
        {"step": 10, "eval_loss": 2.0, "eval_bleu": 5.0},
        {"step": 20, "eval_bleu": 7.0},
    ]
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (run / "results.json").write_text((project / "results" / "transformer.iwslt-envi.json").read_text())
    text = index_page([project / "results", project / "runs"])
    assert text.count("<tr>") == 1 + 3
    assert text.count('<svg role="img"') == 1
    assert all(f">{label}<" in text for label in ("loss per token", "dev BLEU"))
    assert "http" not in text
    with pytest.raises(UserError, match="neither results files nor runs"):
        index_page([project / "docs"])


def test_the_command(project, capsys):
    def run(*arguments):
        code = main([str(project / "results"), *map(str, arguments)])
        return code, "".join(capsys.readouterr())

    code, text = run("--check")
    assert code == 1
    assert "stale: README.md, docs/a.md" in text
    assert "changed: README.md, docs/a.md" in run("--index", project / "index.html")[1]
    assert (project / "index.html").is_file()
    assert run("--check") == (0, "The pages say what the results say.\n")
    (project / "alone" / "results").mkdir(parents=True)
    for folder, message in (("nothing", "no such folder"), ("alone/results", "neither README.md nor docs")):
        assert main([str(project / folder)]) == 1
        assert message in capsys.readouterr().err


def test_the_systems_of_a_comparison():
    """Of the folder's own page the classic BLEU, for all systems or for some; what the papers say, answered there."""
    text = region("systems:multi30k-ende-1500-steps", ROOT, ROOT / "docs")
    page = (ROOT / "results/multi30k-ende-1500-steps/README.md").read_text()
    lines = {line.split("|")[1].strip(): line for line in text.splitlines() if line.startswith("| `")}
    for name, line in lines.items():
        whole = next(row for row in page.splitlines() if row.startswith(f"| {name[:-1]}.multi30k-ende` | "))
        assert {cell.strip() for cell in line.split("|")[5:-1]} <= {cell.strip() for cell in whole.split("|")}
    assert len(lines) == 17
    assert "(../results/multi30k-ende-1500-steps/README.md)" in text
    some = region("systems:multi30k-ende-1500-steps:m-10,ms-1", ROOT, ROOT)
    assert [line for line in some.splitlines() if line.startswith("| `")] == [
        lines[name] for name in ("`transformer`", "`m-10`", "`ms-1`")
    ]
    assert "| `iter-c-agg` better than `transformer` |" in region("claims:multi30k-ende-short", ROOT, ROOT)
    with pytest.raises(UserError, match=r"^a.md: no runs of 'm-12' \(did you mean 'm"):
        region("systems:multi30k-ende-1500-steps:m-12", ROOT, ROOT, "a.md")
    with pytest.raises(UserError, match="did you mean 'systems:multi30k-ende-1500-steps'"):
        region("systems:multi30k-ende-1500-step", ROOT, ROOT)
