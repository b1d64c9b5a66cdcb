"""How good a model of software text is: every test set of the corpus, and everyday sentences that we wrote ourselves.

    python -m studies.software.scores FOLDER MODEL -o scores.json [--card MODEL/README.md]

FOLDER is what `python -m studies.software` wrote. Of each set: BLEU, chrF and TER; BLEU without the segments that are
near to one of the training (90 % of the words or more); of the segments with placeholders the share in which all came
back, as lines of text (in a program's file the others stay untranslated), and the same with `--keep`; and the share
that is the project's own translation to the letter. `--card` writes the table and the licences of the training text
behind a card. MODEL may also be a folder of files for Firefox's engines: fxtranslate reads them, and searches greedily.
"""

from __future__ import annotations

import argparse
import csv
import json
from collections import Counter
from pathlib import Path
from typing import Any

import torch

from hf_mlnmt.common.files import atomic_path, write_json
from hf_mlnmt.common.languages import direction_of
from hf_mlnmt.common.table import Number, Table
from hf_mlnmt.data.lines import read_lines
from hf_mlnmt.data.placeholders import placeholders
from hf_mlnmt.evaluation.scores import score
from hf_mlnmt.generation import TranslationPipeline
from hf_mlnmt.generation.translating.segments import split_sentences

SETS = ("interface", "documentation", "descriptions", "stories", "short")
EVERYDAY = Path(__file__).parent / "everyday.tsv"
NEAR, BEGIN = 0.9, "\n## By kind of text\n"
KEEP = ("placeholder", "tag", "url")
LEGEND = """Four beams. Near ones: segments with 90 % of the words or more of one of the training (their number in
brackets). Placeholders kept: as lines of text; in a program's file messages that lose one stay untranslated. With
keep: by `--keep placeholder,tag,url`. Unchanged: segments that are the project's own translation to the letter."""
OF_EVERYDAY = "Everyday: 100 sentences that we wrote."


def set_of(folder: Path, name: str, codes: tuple[str, str]) -> tuple[list[str], list[str], list[bool]]:
    """Returns sources, references, and which segments are near to one of the training."""
    if name == "everyday":
        with EVERYDAY.open(encoding="utf-8", newline="") as file:
            rows = [row if codes[0] == "en" else row[::-1] for row in csv.reader(file, delimiter="\t")]
        return [row[0] for row in rows], [row[1] for row in rows], [False] * len(rows)
    sides = [list(read_lines(folder / f"test.{name}.{code}")) for code in codes]
    said = [json.loads(line) for line in (folder / f"test.{name}.jsonl").read_text("utf-8").splitlines()]
    return sides[0], sides[1], [one.get("near", 0) >= NEAR for one in said]


class Engine:
    """Translates as Firefox does, sentence by sentence and greedily, whatever the options."""

    def __init__(self, folder: Path):
        import fxtranslate

        weights, vocabulary = (next(folder.glob(name)).read_bytes() for name in ("*.alphas.bin", "*.spm"))
        self.engine = fxtranslate.Translator(model=weights, src_vocab=vocabulary, trg_vocab=vocabulary)

    def __call__(self, texts: list[str], **options: Any) -> list[str]:
        return [" ".join(self.engine.translate(part.text) for part in split_sentences(text)) for text in texts]


def scores_of(pipeline: Any, texts: list[str], right: list[str], near: list[bool]) -> dict[str, Any]:
    """Translates a set with four beams, an Engine greedily, and scores it."""
    found = pipeline(texts, num_beams=4, split="sentences")
    far = [number for number, one in enumerate(near) if not one]
    some = [number for number, text in enumerate(texts) if placeholders(text)]
    both = [[found[k] for k in some]]
    if not isinstance(pipeline, Engine):
        both.append(pipeline([texts[k] for k in some], num_beams=4, split="sentences", keep=list(KEEP)))
    whole = [
        sum(Counter(placeholders(texts[k])) == Counter(placeholders(one)) for k, one in zip(some, outputs))
        for outputs in both
    ]
    of_some = [score(outputs, [right[k] for k in some], bootstrap=0)["BLEU"] for outputs in both] if some else None
    own = score(found, right, bootstrap=0)
    return {
        "segments": len(texts),
        **{"BLEU": own["BLEU"], "chrF": own["chrF"], "TER": own["TER"], "near": sum(near)},
        "BLEU without near": score([found[k] for k in far], [right[k] for k in far], bootstrap=0)["BLEU"],
        "with placeholders": len(some),
        "placeholders kept": [number / len(some) for number in whole] if some else None,  # without and with `keep`
        "BLEU of those": of_some,
        "same": sum(map(str.__eq__, found, right)) / len(texts),
    }


def table_of(sets: dict[str, dict[str, Any]]) -> Table:
    """Returns the table of a model's sets."""
    heads = ["BLEU", "chrF", "TER", "BLEU without near ones", "placeholders kept", "with keep", "unchanged"]
    rows = []
    for name, own in sets.items():
        whole = [f"{share:.1%} of {own['with placeholders']}" for share in own["placeholders kept"] or ()]
        cells = [f"{own[key]:.1f}" for key in ("BLEU", "chrF", "TER")]
        cells += [f"{own['BLEU without near']:.1f} ({own['near']})"]
        cells += [*whole, "", ""][:2]
        cells += [f"{own['same']:.1%}"]
        rows.append([f"{name} ({own['segments']:,})", *cells])
    return Table(["test set", *map(Number, heads)], rows)


def licences_of(folder: Path) -> Table:
    """Returns the licences of the training text with their pairs, the most first."""
    counts = Counter(json.loads((folder / "manifest.json").read_text("utf-8"))["licences"])
    return Table(["licence", Number("pairs")], [[name, f"{number:,}"] for name, number in counts.most_common()])


def main() -> None:
    """Scores a model, prints the table, and writes numbers and card."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("model")
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--card", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(1)
    codes = direction_of(given.model) or ("en", "de")
    is_engine = any(Path(given.model).glob("*.alphas.bin"))
    pipeline = (
        Engine(Path(given.model)) if is_engine else TranslationPipeline.from_pretrained(given.model, device="cpu")
    )
    there = [name for name in SETS if (given.folder / f"test.{name}.jsonl").is_file()]
    there += ["everyday"] if {*codes} == {"en", "de"} else []
    sets = {name: scores_of(pipeline, *set_of(given.folder, name, codes)) for name in there}
    write_json(given.output, {"model": given.model, "languages": codes, "beams": 1 if is_engine else 4, "sets": sets})
    print(table_of(sets))
    if given.card:
        legend = f"{LEGEND}\n{OF_EVERYDAY}" if "everyday" in sets else LEGEND
        said = f"{BEGIN}\n{table_of(sets).markdown()}\n\n{legend}\n"
        said += f"\n## Licences of the training text\n\n{licences_of(given.folder).markdown()}\n"
        with atomic_path(given.card) as path:
            path.write_text(given.card.read_text("utf-8").partition(BEGIN)[0].rstrip() + "\n" + said, "utf-8")


if __name__ == "__main__":
    main()
