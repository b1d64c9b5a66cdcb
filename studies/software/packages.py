"""The packages of the list: fetched by apt into a cache, and read member by member."""

from __future__ import annotations

import re
import subprocess
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import yaml
from langcodes import Language

from hf_mlnmt.common.errors import UserError, suggest

from .readers import KINDS, Side, run

LIST = Path(__file__).with_name("packages.yaml")
# Where members lie, English and translated: those whose groups are equal go together. An entry may say it of itself.
PLACES = {
    "catalogues": ("", r"(.*[/-]){locale}(?:/LC_MESSAGES/(.*))?\.[mp]o"),
    "mallard": (r"usr/share/help/C/(.*\.page)", r"usr/share/help/{language}/(.*\.page)"),
    "kde": (r"usr/share/doc/HTML/en/(.*/index\.cache\.bz2)", r"usr/share/doc/HTML/{language}/(.*/index\.cache\.bz2)"),
    "manuals": (r"usr/share/man/(man\d/.*)\.gz", r"usr/share/man/{language}/(man\d/.*)\.gz"),
    "messages": (r"(.*/i18n/(?:.*/)?)en(\.json)", r"(.*/i18n/(?:.*/)?){language}(\.json)"),
    "bundles": (r".*\.xpi()", r".*\.xpi()"),
    "descriptions": (r"(.*_i18n_)Translation-en(?:\.\w+)?", r"(.*_i18n_)Translation-{language}(?:\.\w+)?"),
}
# Licences that cannot be joined with GPL-3: a model of such a text and of the others could not be published.
UNJOINABLE = {"GPL-2", "GFDL-1.2+", "GFDL-NIV-1.3+", "CC-BY-SA-3.0"}


class Missing(UserError):
    """A package that apt does not know."""


@dataclass
class Entry:
    """Packages of a project, their kind, and what debian/copyright says of its licence.

    Args:
        package, english: names of the packages of the translation, and of English if others; {language} for the code.
        places: patterns of names of members, English and translated.
    """

    package: str | list[str]
    kind: str
    project: str
    licence: str
    english: str | list[str] = field(default_factory=list)
    places: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.places = self.places or list(PLACES.get(self.kind, ()))
        if self.kind not in KINDS:
            raise UserError(f"{LIST.name}, {self.package}: unknown kind '{self.kind}'.{suggest(self.kind, KINDS)}")
        if len(self.places) != 2:
            raise UserError(f"{LIST.name}, {self.package}: places are two patterns, of English and translated members.")
        if "django" in str(self.package).lower():
            raise UserError(f"{LIST.name}, {self.package}: Django's texts are kept for a judgement from outside.")
        if self.licence in UNJOINABLE:
            raise UserError(f"{LIST.name}, {self.package}: {self.licence} cannot be joined with GPL-3 in one model.")

    def sides(self, language: str) -> list[tuple[list[str], re.Pattern[str]]]:
        """Returns names of packages and a pattern of members, of English and of the translation."""
        filled = {"{language}": language, "{locale}": f"{language}(?:_{Language.get(language).maximize().territory})?"}
        names = [[side] if isinstance(side, str) else side for side in (self.english or self.package, self.package)]
        own, other = ([_filled(name, filled) for name in side] for side in names)
        return [(side, re.compile(_filled(place, filled))) for side, place in zip((own, other), self.places)]

    def label(self, language: str) -> str:
        """Returns the name of the entry in messages and in the manifest."""
        return f"{self.sides(language)[1][0][0]} ({self.kind})"


def _filled(text: str, values: dict[str, str]) -> str:
    return re.sub("|".join(values), lambda match: values[match[0]], text)


def read_list(path: Path = LIST) -> list[Entry]:
    """Returns the entries of the list, one for each kind of a line. Raises: UserError for one that is not right."""
    try:
        lines = yaml.safe_load(path.read_text("utf-8"))
        return [Entry(**{**line, "kind": kind}) for line in lines for kind in line["kind"].split()]
    except (TypeError, KeyError) as error:
        raise UserError(f"{path}: {error}. An entry has package, kind, project and licence.") from error


def fetch(name: str, cache: Path) -> Path:
    """Returns the file of a package, from the cache or as apt downloads it. Raises: Missing where apt knows none."""
    if not (there := sorted(cache.glob(f"{name}_*.deb"))):
        if not run("apt-cache", "search", "--names-only", f"^{re.escape(name)}$"):
            raise Missing(f"apt knows no package {name}")
        run("apt-get", "download", "-q", "-o", "APT::Sandbox::User=root", name, folder=cache)
        there = sorted(cache.glob(f"{name}_*.deb"))
    return there[-1]


def fetch_descriptions(language: str, cache: Path) -> list[Path]:
    """Returns apt's lists of English and translated descriptions, fetched if they are not there."""
    lists = cache / f"lists-{language}"
    if not list(lists.glob(f"*Translation-{language}*")):
        (lists / "partial").mkdir(parents=True, exist_ok=True)
        options = f"Dir::State::Lists={lists.resolve()}", f"Acquire::Languages=en,{language}", "APT::Sandbox::User=root"
        run("apt-get", "update", "-q", *(word for option in options for word in ("-o", option)))
    return sorted(lists.glob("*Translation-*"))


def read_sides(entry: Entry, language: str, cache: Path) -> tuple[list[Side], list[Path]]:
    """Returns the members of an entry by their places, English and translated, and the files that they are of."""
    both, files = list[Side](), list[Path]()
    for names, pattern in entry.sides(language):
        if entry.kind == "descriptions":
            files = fetch_descriptions(language, cache)
            paths = [path for path in files if pattern.fullmatch(path.name)]
            found = ((path.name, run("/usr/lib/apt/apt-helper", "cat-file", str(path))) for path in paths)
        else:
            paths = [fetch(name, cache) for name in names if pattern.pattern]
            files += [path for path in paths if path not in files]
            found = (member for path in paths for member in members(path, pattern))
        both.append({"/".join(filter(None, pattern.fullmatch(name).groups())): content for name, content in found})  # type: ignore[union-attr]
    return both, files


def members(package: Path, pattern: re.Pattern[str]) -> Iterator[tuple[str, bytes]]:
    """Yields name and content of the files in a package whose whole names match. Raises: UserError for a broken one."""
    words = ["dpkg-deb", "--fsys-tarfile", str(package)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        try:
            with tarfile.open(fileobj=process.stdout, mode="r|") as archive:
                for member in archive:
                    name = member.name.removeprefix("./")
                    if member.isfile() and pattern.fullmatch(name) and (file := archive.extractfile(member)):
                        yield name, file.read()
        except tarfile.TarError as error:
            raise UserError(f"{package}: is no whole package ({error}). Remove it and run this again.") from error
