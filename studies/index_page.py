"""One HTML page of every run: what it is, its scores, its training curves; nothing is fetched from anywhere."""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import Any

from hf_mlnmt import reports
from hf_mlnmt.common.errors import UserError
from hf_mlnmt.common.files import write_text
from hf_mlnmt.common.model_folder import RESULTS
from hf_mlnmt.common.table import Number, Table
from hf_mlnmt.evaluation.curves import FILE as METRICS
from hf_mlnmt.evaluation.curves import figure, read_metrics
from hf_mlnmt.evaluation.figures import svg_text
from hf_mlnmt.reports.facts import load_results


def write_index(path: str | Path, folders: list[Path]) -> Path:
    """Write the page of all results files and runs below these folders; returns its path."""
    return write_text(path, index_page(folders))


def index_page(folders: list[Path]) -> str:
    """The page. UserError when there is neither a results file nor a run."""
    entries = [entry for folder in folders for entry in _entries(folder)]
    if not entries:
        raise UserError(f"{', '.join(map(str, folders))}: neither results files nor runs there.")
    scored = list(dict.fromkeys(key for entry in entries for key in entry["scores"]))
    columns = ["run", Number("seed"), Number("steps"), Number("parameters"), *(Number(_head(key)) for key in scored)]
    rows = [
        [
            entry["name"],
            *entry["facts"],
            *(f"{entry['scores'][key]:.2f}" if key in entry["scores"] else "" for key in scored),
        ]
        for entry in entries
    ]
    figures = [
        f"<figure><figcaption>{escape(e['name'])}</figcaption>{plot}</figure>" for e in entries for plot in e["plots"]
    ]
    css = (Path(reports.__file__).parent / "comparison_page.css").read_text(encoding="utf-8")
    head = '<meta charset="utf-8">\n<meta name="viewport" content="width=device-width, initial-scale=1">'
    body = f'<main>\n<h1>Runs</h1>\n<div class="wide">{Table(columns, rows).html()}</div>\n'
    body += f'<h2>Training curves</h2>\n<div class="plots">{"".join(figures)}</div>\n</main>'
    style = f"<title>Runs</title>\n<style>\n{css}</style>"
    return f'<!doctype html>\n<html lang="en">\n<head>\n{head}\n{style}\n</head>\n<body>\n{body}\n</body>\n</html>\n'


def _head(key: tuple[str, str]) -> str:
    return f"{key[0]}, BLEU {key[1]}"


def _entries(folder: Path) -> list[dict[str, Any]]:
    """Runs below a folder (at any depth), then results files that are no run's own."""
    if not folder.is_dir():
        raise UserError(f"{folder}: no such folder.")
    runs = sorted(path.parent for path in folder.rglob(METRICS))
    inside = {path for run in runs for path in run.rglob("*.json")}
    files = [path for path in sorted(folder.rglob("*.json")) if path not in inside and _is_results(path)]
    return [
        *(_entry(run.name, run / RESULTS, run) for run in runs),
        *(_entry(str(path.relative_to(folder).with_suffix("")), path, None) for path in files),
    ]


def _is_results(path: Path) -> bool:
    try:
        load_results(path)
    except UserError:
        return False
    return True


def _entry(name: str, results: Path, run: Path | None) -> dict[str, Any]:
    content = load_results(results) if results.is_file() else {}
    scores = {
        (test, protocol): metrics["BLEU"]["score"]
        for test, protocols in content.get("scores", {}).items()
        for protocol, metrics in protocols.items()
        if "BLEU" in metrics
    }
    steps = (content.get("budget") or {}).get("steps")
    numbers = [content.get("seed"), steps, content.get("parameters")]
    facts = [f"{number:,}" if isinstance(number, int) else "" for number in numbers]
    return {
        "name": name,
        "facts": facts,
        "scores": scores,
        "plots": [svg_text(figure({name: read_metrics(run)}))] if run else [],
    }
