"""Bergamot's engine, in a Python 3.10 that has it: the FOLDER of its files, and "shortlist" to use that; line by line.

The compiled module is loaded by itself: its package wants the network.
"""

import glob
import importlib.util
import sys
from pathlib import Path


def main(folder: str) -> None:
    place = importlib.util.find_spec("bergamot").submodule_search_locations[0]
    spec = importlib.util.spec_from_file_location("_bergamot", glob.glob(f"{place}/_bergamot*.so")[0])
    engine = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(engine)
    model, vocabulary, lists = (next(Path(folder).absolute().glob(name)) for name in ("model*", "vocab*", "lex*"))
    settings = {"models": [model], "vocabs": [vocabulary, vocabulary], "max-length-factor": 2.0, "beam-size": 1}
    settings |= {"mini-batch-words": 1024, "workspace": 128, "max-length-break": 128, "skip-cost": "true"}
    settings |= {"gemm-precision": "int8shiftAlphaAll", "ssplit-mode": "sentence", "allow-unk": "true", "quiet": "true"}
    settings |= {"shortlist": [lists, "true"]} if sys.argv[2:] else {}  # true: its checksum is looked at
    lines = (f"{k}: [{', '.join(map(str, v))}]" if isinstance(v, list) else f"{k}: {v}" for k, v in settings.items())
    service = engine.Service(engine.ServiceConfig(1, 0, "off"))
    loaded = service.modelFromConfig("\n".join(lines))
    options = engine.ResponseOptions(qualityScores=False, alignment=False, HTML=False, sentenceMappings=False)
    for line in sys.stdin.read().splitlines():
        print(service.translate(loaded, engine.VectorString([line]), options)[0].target.text)


if __name__ == "__main__":
    main(sys.argv[1])
