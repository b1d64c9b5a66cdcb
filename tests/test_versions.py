"""Which releases are allowed is said in one way: pyproject.toml, and the two sets that were tried."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import yaml

import hf_mlnmt

ROOT = Path(__file__).parents[1]
SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PROJECT = SETTINGS["project"]
EXTRAS = PROJECT["optional-dependencies"]
REQUIREMENTS = {*PROJECT["dependencies"], *(one for extra in EXTRAS.values() for one in extra)}
TARGETS = SETTINGS["tool"]["hatch"]["build"]["targets"]


def pins(name: str) -> dict[str, str]:
    """Package -> release of a file of constraints."""
    lines = (line.partition(";")[0] for line in (ROOT / name).read_text().splitlines())  # without a marker
    return {package.lower(): release for package, release in (line.split("==") for line in lines if "==" in line)}


def numbers(release: str) -> list[int]:
    return [int(part) for part in release.split(".")]


def test_the_oldest_set_is_the_lower_bounds():
    bounds = {
        name.lower(): bound for name, bound in re.findall(r"([\w-]+)(?:\[[\w,]+\])?>=([\d.]+)", "\n".join(REQUIREMENTS))
    }
    assert pins("constraints-oldest.txt") == bounds


def test_the_extra_all_is_all_that_users_may_want():  # the site is made by those who write docs
    assert EXTRAS["all"] == [f"hf-mlnmt[{','.join(sorted(EXTRAS.keys() - {'all', 'dev', 'site'}))}]"]


def test_a_wheel_can_be_built_from_the_sdist():
    wheel = TARGETS["wheel"]
    assert {*wheel["packages"], *wheel["force-include"]} <= {*TARGETS["sdist"]["only-include"]}


def test_the_upper_bound_of_transformers_is_the_release_that_was_tried():
    bound = next(match[1] for one in REQUIREMENTS if (match := re.fullmatch(r"transformers>=[\d.]+,<([\d.]+)", one)))
    major, minor, *_ = numbers(pins("constraints.txt")["transformers"])
    assert numbers(bound) == [major, minor + 1]


def test_the_tested_set_is_allowed():
    tested, oldest = pins("constraints.txt"), pins("constraints-oldest.txt")
    assert not [name for name in tested.keys() & oldest if numbers(tested[name]) < numbers(oldest[name])]


def test_one_version_everywhere():
    version = hf_mlnmt.__version__
    assert f"version: {version}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    newest = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert newest is not None
    assert newest[1] == version


def test_the_versions_of_python_that_are_promised_are_tried():
    promised = [re.search(r"3\.\d+$", one) for one in PROJECT["classifiers"]]
    promised = [match[0] for match in promised if match]
    assert PROJECT["requires-python"] == f">={promised[0]}"
    for name, job in (("tests", "installation"), ("release", "try")):
        workflow = yaml.safe_load((ROOT / f".github/workflows/{name}.yml").read_text(encoding="utf-8"))
        assert workflow["jobs"][job]["strategy"]["matrix"]["python"] == promised
