"""Checks that a folder loads again in fresh processes, with the package and without, and computes the same."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from hf_mlnmt.common.errors import UserError
from hf_mlnmt.common.files import write_json
from hf_mlnmt.common.model_folder import LANGUAGE_TOKENIZERS, auto_class_of
from hf_mlnmt.data.tokenizer import Tokenizers
from hf_mlnmt.hub.reload import compute
from hf_mlnmt.reports.tables import NAMES, example

TEXTS = [example(code) for code in ("en", "de", "fr")] + ["7"]
_TOLERANCE = 1e-4
_LENGTH = 12


def check_loading(folder: str | Path, model: Any, tokenizers: Tokenizers, ways: tuple[str, ...]) -> None:
    """Raises UserError for a folder that does not load again, or whose model computes other outputs than `model`.

    ways: "package", "remote-code", "own-code" (see reload.py), each in a process; the processes run side by side.
    """
    config, auto_class, names = model.config, auto_class_of(folder), {}
    if hasattr(config, "source_languages"):  # modules of several languages: each call names two of them
        names = {"source_language": config.source_languages[0], "target_language": config.target_languages[-1]}
    tokenizer, subfolder = tokenizers.source, ""
    if tokenizers.each:
        source = names["source_language"]
        tokenizer, subfolder = tokenizers.each[source], f"{LANGUAGE_TOKENIZERS}/{source}"
    language = getattr(tokenizer, "src_lang", None)
    texts = TEXTS if language is None or language[:2] in NAMES else TEXTS[:1]
    generator = torch.Generator().manual_seed(1)
    rows = (model.pair(**names) if names else model).get_output_embeddings().weight.shape[0]
    probe = {
        "texts": texts,
        "target": torch.randint(rows, (len(texts), 6), generator=generator).tolist(),
        "max_new_tokens": _LENGTH,
        "threads": torch.get_num_threads(),
        "auto_class": auto_class,
        "names": names,
        "subfolder": subfolder,
    }
    expected = compute(model, tokenizer, probe)
    with tempfile.TemporaryDirectory() as scratch:
        started = {way: _start(Path(folder), Path(scratch) / way, way, probe) for way in ways}
        try:
            for way, process in started.items():
                _, errors = process.communicate()
                if process.returncode:
                    last = "\n".join(errors.strip().splitlines()[-8:])
                    raise UserError(f"{folder}: does not load again ({way}):\n{last}")
                _compare(folder, way, expected, load_file(Path(scratch) / way / "out"))
        finally:
            for process in started.values():  # ends processes that still run after an error or interruption
                process.kill()
                process.wait()


def _start(folder: Path, work: Path, way: str, probe: dict[str, Any]) -> subprocess.Popen[str]:
    """Starts a process that loads the folder and writes what it computes to `work`/out."""
    here = Path(__file__)
    work.mkdir()
    write_json(work / "probe.json", probe)
    # The user's cache may hold code of an earlier publication of this name: this process neither reads nor fills it.
    environment = {**os.environ, "HF_MODULES_CACHE": str(work / "modules"), "HF_HUB_OFFLINE": "1"}
    if way != "remote-code":  # the process imports this copy of the package, installed or not
        paths = [str(here.parents[2]), environment.get("PYTHONPATH", "")]
        environment["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
    # -P: Python must not find files beside reload.py by their bare names.
    arguments = [str(here.with_name("reload.py")), str(folder), str(work / "probe.json"), str(work / "out"), way]
    command, silent = [sys.executable, "-P", *arguments], subprocess.DEVNULL
    return subprocess.Popen(command, env=environment, text=True, stdin=silent, stdout=silent, stderr=subprocess.PIPE)


def _compare(folder: str | Path, way: str, expected: dict[str, Tensor], reloaded: dict[str, Tensor]) -> None:
    for name, tensor in expected.items():
        same = tensor.shape == reloaded[name].shape
        difference = (tensor.double() - reloaded[name].double()).abs().max().item() if same else float("inf")
        if not difference <= (_TOLERANCE if name == "logits" else 0):
            raise UserError(
                f"{folder}: loaded again ({way}), its {name} differ by {difference:g} from the model it was made from. "
                "Nothing was published. Its code or weights are not those of the model: report this."
            )
