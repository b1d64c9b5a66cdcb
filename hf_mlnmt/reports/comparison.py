"""Comparisons of training runs as they are kept: results/<name>/<stem>.json for each system, and a README.md of them.

Each JSON is the run's own results file with `significance` filled in, and "compared": what it was tested against, with
digests of both translations, so that a comparison can grow run by run and nothing is tested twice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hf_mlnmt.errors import UserError
from hf_mlnmt.evaluation.results import read_results
from hf_mlnmt.evaluation.runs import (
    FinishedRun,
    against_baseline,
    check_comparable,
    read_run,
    references_of,
    version_notes,
)
from hf_mlnmt.files import write_json, write_text
from hf_mlnmt.reports.comparison_page import comparison_page
from hf_mlnmt.reports.facts import read_json
from hf_mlnmt.reports.paths import hide_paths
from hf_mlnmt.zoo.records import records_root

PAGE = "README.md"
COMPARED = "compared"


def add_runs(
    folders: Sequence[str | Path],
    output: str | Path,
    data: str | Path = ".",
    tell: Callable[[str], None] = print,
    **settings: Any,
) -> list[str]:
    """Compare runs with the first one and write them into `output`; what is there already is kept.

    Args:
        folders: runs, the baseline first. Unfinished ones are passed over, to be added by a later call.
        output: folder of the comparison.
        data: folder of the raw references, as for training.
        settings: bootstrap, trials, seed and jobs of the paired tests.

    Returns: the names of the systems that were added or tested anew.
    Raises: UserError for runs that are not comparable, and for an `output` with another baseline.
    """
    baseline, runs = _read(folders, tell)
    output = Path(output)
    stems = {run.name: run for run in (baseline, *runs)}
    if len(stems) <= len(runs):
        raise UserError(f"two of these runs are of one system ({', '.join(run.name for run in (baseline, *runs))}).")
    for run in runs:
        check_comparable(run, baseline)
        for note in version_notes(run, baseline):
            tell(f"note: {note}")
    _check_baseline(output, baseline)
    numbers = {key: value for key, value in settings.items() if key != "jobs"}
    wanted = {run.name: _content(run, baseline, numbers) for run in (baseline, *runs)}
    new = [run for run in runs if not _is_kept(output, wanted[run.name])]
    if new:
        tell(f"testing {', '.join(run.name for run in new)} against {baseline.name}")
        tests = against_baseline(new, baseline, references_of(baseline, data), **settings)
        for run in new:
            wanted[run.name]["significance"] = {
                test: {protocol: _only(paired.to_dict(), run.name) for protocol, paired in by_protocol.items()}
                for test, by_protocol in tests.items()
            }
    for run in (baseline, *new):
        write_json(output / f"{run.name}.json", wanted[run.name])
    write_text(output / PAGE, page_of(output))
    return [run.name for run in new]


def _read(folders: Sequence[str | Path], tell: Callable[[str], None]) -> tuple[FinishedRun, list[FinishedRun]]:
    found = {str(folder): read_run(folder) for folder in folders}
    baseline, *others = found.values()
    if baseline is None:
        raise UserError(f"{folders[0]}: the baseline's run has no results.json yet. Let it finish first.")
    for folder, run in found.items():
        if run is None:
            tell(f"{folder}: not finished, passed over")
    return baseline, [run for run in others if run is not None]


def _content(run: FinishedRun, baseline: FinishedRun, numbers: Mapping[str, Any]) -> dict[str, Any]:
    """The file of a run, before its tests."""
    digests = {"baseline": baseline.name, "outputs": run.digests(), "baseline_outputs": baseline.digests()}
    return hide_paths({**run.results, "significance": {}, COMPARED: {**digests, **numbers}})  # type: ignore[no-any-return]


def _is_kept(output: Path, wanted: Mapping[str, Any]) -> bool:
    """Whether the file of a run is there, of this very run and with tests against this very baseline."""
    kept = read_json(output / f"{wanted['system']}.json")
    return bool(kept.get("significance")) and {**kept, "significance": {}} == wanted


def _check_baseline(output: Path, baseline: FinishedRun) -> None:
    for name, content in comparison_of(output).items() if output.is_dir() else ():
        before = content[COMPARED]
        if before["baseline"] != baseline.name or before["baseline_outputs"] != baseline.digests():
            raise UserError(
                f"{output / name}.json: compared with another baseline or another run of it ({before['baseline']}; now "
                f"{baseline.name}). Choose another --output, or delete {output}."
            )


def _only(tests: dict[str, Any], name: str) -> dict[str, Any]:
    return {**tests, "systems": {name: tests["systems"][name]}}


def comparison_of(folder: str | Path) -> dict[str, dict[str, Any]]:
    """{system: content} of a comparison's folder, the baseline first, the others in the zoo's order, then by name."""
    from hf_mlnmt.zoo.systems import list_systems

    found = {}
    for path in sorted(Path(folder).glob("*.json")):
        read_results(path)
        content = read_json(path)
        if COMPARED not in content:
            raise UserError(f'{path}: no "{COMPARED}" in it: not a file of a comparison (`hf-mlnmt compare-runs`).')
        found[content["system"]] = content
    order = {system: number for number, system in enumerate(list_systems())}

    def place(item: tuple[str, dict[str, Any]]) -> tuple[bool, int, str]:
        name, content = item
        return name != content[COMPARED]["baseline"], order.get(name.split(".")[0], len(order)), name

    return dict(sorted(found.items(), key=place))


def page_of(folder: str | Path, root: str | Path | None = None) -> str:
    """The README.md of a comparison's folder, from its JSON files, and the recipe's own budget from the record."""
    contents = comparison_of(folder)
    if not contents:
        raise UserError(f"{folder}: no results of a comparison here.")
    return comparison_page(contents, own_budget(next(iter(contents)), root))


def own_budget(stem: str, root: str | Path | None = None) -> Mapping[str, Any] | None:
    """The budget of a record's recipe; None if there is no such record."""
    from hf_mlnmt.training.recipe import read_recipe

    path = (Path(root) if root is not None else records_root()) / "training" / f"{stem}.yaml"
    return read_recipe(path).to_dict()["budget"] if path.is_file() else None


def comparisons_of_record(stem: str, root: str | Path) -> dict[str, dict[str, Any]]:
    """{name of the comparison: the record's results in it}, from results/*/."""
    paths = sorted((Path(root) / "results").glob(f"*/{stem}.json"))
    return {path.parent.name: read_json(path) for path in paths if COMPARED in read_json(path)}


def stale_comparisons(root: str | Path | None = None) -> list[str]:
    """Names of the comparisons under results/ whose README.md is not what their JSON files say.

    Folders of other results have pages written by hand.
    """
    root = Path(root) if root is not None else records_root()
    folders = sorted({path.parent for path in (root / "results").glob("*/*.json") if COMPARED in read_json(path)})
    return [
        folder.name
        for folder in folders
        if not (folder / PAGE).is_file() or (folder / PAGE).read_text(encoding="utf-8") != page_of(folder, root)
    ]
