"""What a translation memory brings: scores, edits and time, over all and by bands of matches, of sets of the corpus.

    python -m studies.software.memory FOLDER MODEL -o FILE

FOLDER has test.NAME.* and memory.NAME.* (the test sets' projects' other strings), as `python -m studies.software`
writes them. A segment is translated without a memory; with it, put in only (weight 0); steered, by each weight; with
the stories of a game as a memory that is foreign; and by the memory alone: the translation of the most similar text.
TER and the share of segments that are the project's own translation to the letter say what is left to a translator;
times are CPU seconds, as ratios to those without a memory.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from hf_mlnmt.common.files import write_json
from hf_mlnmt.common.table import Number, Table
from hf_mlnmt.data.lines import read_lines
from hf_mlnmt.evaluation.scores import score
from hf_mlnmt.generation import TranslationMemory, TranslationPipeline
from hf_mlnmt.memory.matching import BANDS, band

SETS, FOREIGN = ("interface", "documentation", "descriptions"), "stories"


def lines_of(folder: Path, name: str) -> list[list[str]]:
    """Returns the lines of both sides of a set."""
    return [list(read_lines(folder / f"{name}.{code}")) for code in ("en", "de")]


def opened(folder: Path, name: str, place: Path) -> TranslationMemory:
    """Returns the memory of a test set's projects, as a table in `place`."""
    rows = zip(*lines_of(folder, f"memory.{name}"), strict=True)
    table = place / f"{name}.tsv"
    table.write_text(
        "".join("\t".join(row) + "\n" for row in rows if not any('"' in side[:1] for side in row)), "utf-8"
    )
    return TranslationMemory(table, source="en", target="de")


def measured(translate: Callable[[], list[str]], right: list[str], bands: list[int]) -> dict[str, Any]:
    """Translates texts; returns the scores over all and by bands, and CPU seconds a segment."""
    begun = time.process_time()
    found = translate()
    scores: dict[str, Any] = {"seconds": (time.process_time() - begun) / len(right)}
    for least, name in [(None, "all"), *BANDS.items()]:
        numbers = [number for number, own in enumerate(bands) if least in (None, own)]
        if numbers:
            sides = [[side[number] for number in numbers] for side in (found, right)]
            own = score(*sides, bootstrap=0)
            scores[name] = {"segments": len(numbers), "BLEU": own["BLEU"], "chrF": own["chrF"], "TER": own["TER"]}
            scores[name]["same"] = sum(map(str.__eq__, *sides)) / len(numbers)
    return scores


def main() -> None:
    """Measures, prints a table for each set, and writes all numbers."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("model")
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--weights", type=float, nargs="+", default=[4.0])
    parser.add_argument("--limit", type=int, default=1000)
    given = parser.parse_args()
    torch.set_num_threads(1)
    pipeline, result = TranslationPipeline.from_pretrained(given.model, device="cpu"), dict[str, Any]()
    with tempfile.TemporaryDirectory() as place:
        foreign = opened(given.folder, FOREIGN, Path(place))
        for name in SETS:
            texts, right = (side[: given.limit] for side in lines_of(given.folder, f"test.{name}"))
            memory = opened(given.folder, name, Path(place))
            found = [memory.matches(text, most=1) for text in texts]
            bands = [band(some[0].percent) if some else 0 for some in found]
            ways: dict[str, dict[str, Any]] = {"without": {}, "put in": {"memory": memory, "memory_weight": 0.0}}
            ways |= {f"steered {weight:g}": {"memory": memory, "memory_weight": weight} for weight in given.weights}
            ways["foreign"] = {"memory": foreign, "memory_weight": given.weights[0]}
            pipeline(texts[:64], num_beams=4, split="sentences")  # what is compiled is compiled
            search = partial(pipeline, texts, num_beams=4, split="sentences")
            rows = {way: measured(partial(search, **how), right, bands) for way, how in ways.items()}
            alone = [some[0].target if some else "" for some in found]
            rows["memory alone"] = measured(partial(list, alone), right, bands)
            result[name] = {"units": len(memory), "ways": rows}
            names = [key for key in rows["without"] if key != "seconds"]
            table = [
                [way]
                + [f"{own[key]['BLEU']:.1f} / {own[key]['chrF']:.1f}" for key in names]
                + [f"{own['all']['TER']:.1f}", f"{own['all']['same']:.1%}"]
                + [f"{own['seconds'] / rows['without']['seconds']:.2f}"]
                for way, own in rows.items()
            ]
            heads = [f"{key} ({rows['without'][key]['segments']})" for key in names]
            print(name, Table(["way", *map(Number, (*heads, "TER", "same", "time"))], table), sep="\n", flush=True)
            write_json(given.output, {"model": given.model, "segments": given.limit, "sets": result})


if __name__ == "__main__":
    main()
