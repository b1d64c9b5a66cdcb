"""Builds a static Space of the Hub: a page that translates in the reader's browser, without a server that computes.

The model is exported for transformers.js in int8 (export/transformers_js.py). transformers.js and ONNX Runtime for
browsers are fetched from npm into the same folder, so that the page loads nothing from other machines.
"""

import gzip
import hashlib
import json
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hf_mlnmt.common.errors import UserError
from hf_mlnmt.common.files import atomic_folder, write_text
from hf_mlnmt.common.model_folder import CARD
from hf_mlnmt.data.subwords import code_of
from hf_mlnmt.export.exporting import export
from hf_mlnmt.hub.checks import check_replaceable
from hf_mlnmt.hub.publish import check_translates, space_head
from hf_mlnmt.reports.facts import Facts
from hf_mlnmt.reports.tables import language_name, scores_of, template

PAGE, WORKER, OFFLINE, MODEL, RUNTIME = "index.html", "worker.js", "offline.js", "model", "runtime"
LIBRARY = ("@huggingface/transformers", "4.3.2")
_ENGINE = "onnxruntime-web"
_LIBRARY_FILE, _ENGINE_FILE, _BINARY = "transformers.js", "ort.mjs", "ort.wasm.gz"
_LONGEST = 5000  # characters
_MINUTES = 10


def check_static_space(folder: str | Path) -> None:
    """Raises UserError for a folder with other files than an earlier static Space's, and where npm is missing."""
    check_replaceable(Path(folder), "static Space", (CARD, PAGE, WORKER, OFFLINE, MODEL, RUNTIME))
    if shutil.which("npm") is None:
        raise UserError(
            f"--static: {LIBRARY[0]} comes from npm, which is not installed. Install Node.js, or leave --static out: "
            "such a Space runs on the Hub's machines."
        )


def build_static_space(facts: Facts, model: str | Path, folder: str | Path, name: str) -> Path:
    """Writes the folder of the static Space `name` (owner/name); replaces an earlier one.

    model: the published model folder that `facts` describe.

    Raises: UserError for a model that transformers.js cannot run, and where npm is missing or fails.
    """
    folder = Path(folder)
    check_static_space(folder)
    check_translates(facts, name)
    with atomic_folder(folder) as new:
        export(model, new / MODEL, "transformers.js", dtype="int8")
        runtime = fetch_runtime(new / RUNTIME)
        worker = template("static_worker.js").render()
        write_text(new / WORKER, _filled(worker, "LONGEST", facts.generation.get("max_source_tokens") or 128))
        page = _page(facts, name, _sizes(new))
        write_text(new / PAGE, template("static_page.html.jinja", autoescape=True).render(page=page))
        sizes = _sizes(new)
        offline = _filled(template("static_offline.js").render(), "FILES", {"./": sizes[PAGE], **sizes})
        write_text(new / OFFLINE, _filled(offline, "NAME", f"hf-mlnmt-{_digest(new, sizes)}"))
        head = space_head(facts, name, ["transformers.js"], sdk="static", app_file=PAGE)
        write_text(new / CARD, template("static_card.md.jinja").render(page=page, head=head, runtime=runtime))
    return folder


def fetch_runtime(folder: Path) -> str:
    """Fetches transformers.js and ONNX Runtime from npm into `folder`; returns their names and versions as text.

    Raises: UserError with npm's message if npm fails.
    """
    folder.mkdir()
    with tempfile.TemporaryDirectory() as scratch:
        library = _unpacked(*LIBRARY, Path(scratch))
        engine_version = json.loads((library / "package.json").read_text())["dependencies"][_ENGINE]
        engine = _unpacked(_ENGINE, engine_version, Path(scratch))
        text = (library / "dist" / "transformers.web.min.js").read_text(encoding="utf-8")
        # A browser's worker has no import map: both names become the path of the file that holds both packages.
        for imported in (f"{_ENGINE}/webgpu", "onnxruntime-common"):
            if text.count(f'from"{imported}"') != 1:
                raise UserError(f"{LIBRARY[0]} {LIBRARY[1]}: imports {imported} in another way than the page expects.")
            text = text.replace(f'from"{imported}"', f'from"./{_ENGINE_FILE}"')
        write_text(folder / _LIBRARY_FILE, text)
        shutil.copyfile(engine / "dist" / "ort.wasm.bundle.min.mjs", folder / _ENGINE_FILE)
        binary = (engine / "dist" / "ort-wasm-simd-threaded.wasm").read_bytes()
        (folder / _BINARY).write_bytes(gzip.compress(binary, mtime=0))
        shutil.copyfile(library / "LICENSE", folder / "LICENSE-transformers.txt")
        licence = json.loads((engine / "package.json").read_text())["license"]
        write_text(
            folder / "LICENSE-onnxruntime.txt", f"ONNX Runtime {engine_version}, {licence}, Microsoft Corporation.\n"
        )
    return f"{LIBRARY[0]} {LIBRARY[1]} and {_ENGINE} {engine_version}"


def _unpacked(package: str, version: str, scratch: Path) -> Path:
    """Fetches a package from npm into `scratch`; returns the folder with its files."""
    target = scratch / package.replace("/", "-")
    target.mkdir()
    command = ["npm", "pack", f"{package}@{version}", "-s"]
    try:
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=60 * _MINUTES, cwd=target)
    except (OSError, subprocess.SubprocessError) as error:
        said = (getattr(error, "stderr", None) or str(error)).strip().splitlines()
        raise UserError(f"npm pack {package}@{version}: {said[0] if said else 'failed'}.") from error
    with tarfile.open(next(target.glob("*.tgz"))) as archive:
        archive.extractall(target, filter="data")
    return target / "package"


def _filled(script: str, place: str, value: Any) -> str:
    """Returns a script with `value` as JSON after the comment /*PLACE*/, instead of what is there before the next ;."""
    before, found, after = script.partition(f"/*{place}*/")
    assert found, place
    rest = after[after.index(";") :]
    return f"{before}{json.dumps(value)}{rest}"


def _sizes(folder: Path) -> dict[str, int]:
    """Returns {path in the folder: size in bytes} of all files but licences."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and "LICENSE" not in path.name)
    return {path.relative_to(folder).as_posix(): path.stat().st_size for path in files}


def _digest(folder: Path, names: Mapping[str, int]) -> str:
    digest = hashlib.sha256()
    for name in names:
        digest.update(name.encode() + (folder / name).read_bytes())
    return digest.hexdigest()[:16]


def _page(facts: Facts, name: str, sizes: Mapping[str, int]) -> dict[str, Any]:
    """Returns the texts and values that the templates of page and card show."""
    source, target = facts.languages
    codes = facts.codes or ([target] if target else [])
    targets = {code: language_name(code) for code in codes} or {"": "Translation"}
    purpose = f"{language_name(source) if source else 'Text'} into {', '.join(targets.values())}."
    if facts.domain:
        purpose += f" For {facts.domain}, and nothing else: other text may come out as nonsense."
    scores = [
        (f"{score.metric}, {score.test_set}", f"{score.score:.1f} (in full precision, with beams)")
        for score in reversed(list(scores_of(facts.results)))
        if score.metric in ("BLEU", "chrF")
    ]
    about = {"name": facts.name, "licence": facts.licence, "trained on": facts.data.get("name"), **dict(scores[:2])}
    return {
        "title": name.split("/")[-1],
        "purpose": purpose,
        "source": language_name(source) if source else "Text",
        "source_code": source,
        "targets": targets,
        "tokens": {code: code_of(code) for code in facts.codes},  # {target: token put before sources}
        "facts": {key: str(value) for key, value in about.items() if value},
        "card": f"https://huggingface.co/{facts.name}" if "/" in facts.name else None,
        "megabytes": f"{sum(sizes.values()) / 1e6:.0f}",
        "longest": _LONGEST,
    }
