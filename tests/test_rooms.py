"""The house's rooms: imports run from upper rooms to lower ones, and nobody reads another file's private names."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from pathlib import Path

from helpers.package_code import FILES, PACKAGE, nodes_of

# From the ground up; a room may import those before it, its own files, and nothing else of the package.
FLOORS = ["modeling", "common"]
FLOORS += ["search", "zoo", "data", "convert", "memory", "generation", "documents", "evaluation"]
FLOORS += ["recipe", "training", "reports", "hub", "export", "analysis", "serving", "demo", "cli"]
# Room: (most lines, most files); and the most lines in all and of tests. CONTRIBUTING.md says how a ceiling is raised.
CEILINGS = {
    "analysis": (2_740, 12),
    "cli": (2_990, 22),
    "common": (2_290, 12),
    "convert": (2_640, 11),
    "data": (5_190, 19),
    "demo": (410, 3),
    "documents": (2_810, 11),
    "evaluation": (2_860, 12),
    "export": (2_120, 11),
    "generation": (6_950, 31),
    "hub": (910, 6),
    "memory": (820, 5),
    "modeling": (7_760, 33),
    "recipe": (1_680, 5),
    "reports": (1_640, 10),
    "search": (5_830, 24),
    "serving": (3_280, 12),
    "training": (7_700, 27),
    "zoo": (590, 4),
}
TOTAL, TESTS = 61_120, 53_050
# Names that Transformers and named tuples give their classes, for all to use.
PUBLIC = {"_can_record_outputs", "_tied_weights_keys", "_layer_type", "_fields", "_replace"}


def room_of(file: str) -> str:
    return file.split("/")[0].removesuffix(".py")


@functools.cache
def imports(file: str) -> list[tuple[str, str, str]]:
    """(module, name, the name it has here) of everything that is imported from the package, in functions too."""
    return [one for node in nodes_of(file) for one in imported_by(node, file)]


def imported_by(node: ast.AST, file: str) -> list[tuple[str, str, str]]:
    """The same of one statement."""
    found = []
    if isinstance(node, ast.ImportFrom):
        folder = ".".join(["hf_mlnmt", *file.split("/")[:-1]]) if node.level else None
        module = ".".join(filter(None, [folder, node.module]))
        found = [(module, alias.name, alias.asname or alias.name) for alias in node.names]
    elif isinstance(node, ast.Import):
        found = [(x.name, "", x.asname or x.name) for x in node.names]
    return [one for one in found if one[0].split(".")[0] == "hf_mlnmt"]


def files_imported(file: str) -> Iterator[str]:
    """The package's files that a file imports, without what stands under TYPE_CHECKING."""
    only_types = {
        part
        for node in nodes_of(file)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
        for part in ast.walk(node)
    }
    for node in nodes_of(file):
        if isinstance(node, ast.Import | ast.ImportFrom) and node not in only_types:
            for module, name, _ in imported_by(node, file):
                path = module.replace(".", "/").removeprefix("hf_mlnmt").removeprefix("/")
                candidates = [f"{path}/{name}.py", f"{path}.py", f"{path}/__init__.py"]
                target = next((one.removeprefix("/") for one in candidates if one.removeprefix("/") in FILES), None)
                yield from {target} - {file, None}


def rooms_below(file: str) -> set[str]:
    """The rooms that a file imports, its own and the package's face left out."""
    found = {f"{module}.{name}".split(".")[1] for module, name, _ in imports(file)}
    return (found & set(FLOORS)) - {room_of(file)}


def test_every_room_has_its_floor():
    assert {room_of(file) for file in FILES} - {"__init__", "__main__"} == set(FLOORS)


def lines_in(folder: Path, inner: str = "**/*") -> list[int]:
    """The lines of each file of Python and C in a folder, blank ones and docstrings included."""
    return [len(path.read_text("utf-8").splitlines()) for path in folder.glob(inner) if path.suffix in (".py", ".c")]


def test_every_room_is_within_its_ceiling():
    rooms = {room: lines_in(PACKAGE / room) for room in FLOORS}
    rooms["common"] += lines_in(PACKAGE, "*")
    assert CEILINGS.keys() == rooms.keys()
    sizes = {room: (sum(lines), len(lines)) for room, lines in rooms.items()}
    above = {room: size for room, size in sizes.items() if size[0] > CEILINGS[room][0] or size[1] > CEILINGS[room][1]}
    assert not above, "shorten the room, or raise its ceiling by a decision (CONTRIBUTING.md)"
    assert sum(lines for lines, _ in sizes.values()) <= TOTAL
    assert sum(lines_in(Path(__file__).parent)) <= TESTS


def test_imports_run_down():
    for file in FILES:
        if (room := room_of(file)) in FLOORS:
            above = FLOORS[FLOORS.index(room) + 1 :]
            found = {(file, other) for other in rooms_below(file) if other in above}
            assert not found, "an import that runs up"


def test_the_package_imports_nothing_of_studies():
    """What only this project's pages and records need is no part of the package, and is not installed with it."""
    programs = {"studies", *(path.stem for path in (PACKAGE.parent / "studies").glob("*.py"))}
    for file in FILES:
        for node in nodes_of(file):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else []
            assert not {name.split(".")[0] for name in names} & programs, file


def test_no_circles():
    """Of files that import each other, at their tops or when they run, but for what only types read."""
    needed = {file: set(files_imported(file)) for file in FILES}
    while free := {file for file, others in needed.items() if not others & needed.keys()}:
        needed = {file: others for file, others in needed.items() if file not in free}
    assert not needed, "each of these imports another of them"


def test_architectures_import_nothing_but_each_other():
    found = {(file, other) for file in FILES if room_of(file) == "modeling" for other in rooms_below(file)}
    assert not found, "what is copied beside the weights must not need the package"


def test_servers_and_documents_use_what_anybody_may():
    """Our own interface is enough for them: hf_mlnmt.generation's public names, and helpers that know no model."""
    faces = {"hf_mlnmt", "hf_mlnmt.generation", "hf_mlnmt.documents"}
    helpers = {"hf_mlnmt.data.formats", "hf_mlnmt.data.lines", "hf_mlnmt.data.placeholders"}
    helpers |= {"hf_mlnmt.reports.facts", "hf_mlnmt.reports.tables"}
    for file in FILES:
        looks_into_models = file in ("serving/page.py", "serving/views.py")  # the map of attention, and long texts
        if (room := room_of(file)) in ("documents", "serving") and not looks_into_models:
            own = ("hf_mlnmt.common.", f"hf_mlnmt.{room}.")
            used = {module for module, *_ in imports(file) if not module.startswith(own)}
            assert used <= faces | helpers, file


def test_private_names_stay_private():
    for file in FILES:
        for module, name, _ in imports(file):
            assert not name.startswith("_") or name.endswith("__"), f"{file} imports {name} of {module}"
        ours = {here for _, _, here in imports(file)}
        for node in nodes_of(file):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in ours:
                private = node.attr.startswith("_") and not node.attr.endswith("__") and node.attr not in PUBLIC
                assert not private, f"{file}, line {node.lineno}: {node.value.id}.{node.attr}"
