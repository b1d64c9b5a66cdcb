"""The study of decoding on Multi30k: what can be had of trained models without another training.

    python studies/decoding.py --data DIR
    python studies/decoding.py --data DIR --sentences 30 --results /tmp/decoding

DIR holds train, val and test_2016_flickr of en and de. One thread; each row is kept in --results when it is made, and
what it took of val and of samples in --work: the same command goes on where it was stopped. It prints what each row
took and about how long the rest will take. Settings are chosen on val; scores are of test_2016_flickr, with intervals
of 1,000 resamples, and p of approximate randomisation against the beam of 5. Seconds are CPU time of one thread for the
test set, a model of the other direction and the choosing included; settings and weights are not.

| row | what is done |
| --- | --- |
| beam-5, greedy, beam-16 | the search alone |
| rerank-reverse | 16 beams, scored anew by score, length and the other direction; weights by BLEU of val |
| rerank-all | the same with the model of many languages and coverage |
| mbr-beams | of 16 beams that of the highest expected chrF |
| mbr-chrf, mbr-bleu, mbr-embeddings | of 64 samples, epsilon cutoff chosen on 300 sentences of val by BLEU |
| terms | beam of 5 with a glossary of words that go together in the training text (Dice) |
| must | beam of 5 with a word of the reference in each translation that the beam alone lacks (an oracle) |
| ensemble, ensemble-mbr | of --ensemble FROM-TO=MODEL, again for each model; seeds of one recipe |
"""

from __future__ import annotations

import argparse
import json
import random
import re
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from hf_mlnmt.common.errors import UserError
from hf_mlnmt.common.files import read_json, write_json, write_text
from hf_mlnmt.common.table import Number, Table
from hf_mlnmt.evaluation.outputs import read_texts

STUDY_FOLDER = "multi30k-decoding"  # in results/
DIRECTIONS = ("en-de", "de-en")
PAGES = {f"decoding-{direction}": f"{direction}.json" for direction in DIRECTIONS}  # what each table is made of
STUDY_TABLES = tuple(PAGES)
LEGEND = (
    "Cased BLEU and chrF on test_2016_flickr with 95 % intervals; p of approximate randomisation against the beam of "
    "5, not corrected for the number of rows; met: of what was asked for, in brackets without being asked for."
)
TEST, SAMPLES, CUTOFFS, CHOSEN_ON, SEED, FEWEST = "test_2016_flickr", 64, (0.0, 0.02), 300, 1, 100
# What each row costs, in beams of 5: to say how long the rest will take.
COSTS = {"beam-5": 1.0, "greedy": 0.4, "beam-16": 3.0, "rerank-reverse": 20.0, "mbr-beams": 3.0, "mbr-chrf": 9.0}
COSTS |= {"mbr-bleu": 5.0, "mbr-embeddings": 7.0, "must": 3.0, "terms": 3.0, "ensemble": 3.0, "ensemble-mbr": 10.0}
COSTS |= {"rerank-all": 45.0}


class Drawn:
    """A utility that keeps the samples of each source, and likes all the same."""

    all_in_one = True

    def __init__(self) -> None:
        self.samples: dict[str, list[str]] = {}

    def __call__(self, source: str, candidates: Sequence[str], references: Sequence[str]) -> list[list[float]]:
        """Keeps the samples; returns zeros (candidates, 1)."""
        self.samples[source] = list(references)
        return [[0.0]] * len(candidates)


@dataclass
class Study:
    """A direction: what is asked of it, what is there, and how each row is made."""

    direction: str
    options: argparse.Namespace
    rows: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.languages = self.direction.split("-")
        self.model = f"published/{self.direction}"
        self.reverse = f"published/{'-'.join(reversed(self.languages))}"
        self.work = self.options.work / self.direction
        self.file = self.options.results / f"{self.direction}.json"
        kept = read_json(self.file)
        now = json.loads(json.dumps(self.settings))
        if kept and not any(row.startswith("ensemble") for row in kept["rows"]):  # no row depends on the members yet
            for name in set(self.members) - kept["settings"]["models"].keys():
                del now["models"][name]
        if kept and kept["settings"] != now:
            raise UserError(f"{self.file}: has other models, text or sentences. Choose another --results and --work.")
        self.rows = kept.get("rows", {})

    @cached_property
    def settings(self) -> dict[str, Any]:
        """Returns what all rows depend on."""
        from hf_mlnmt.common.made_from import identity_of_model, sha256_of_lines

        models = [self.model, self.reverse, "published/many", *self.members]
        return {
            "sentences": len(self.test[0]),
            "text": {"val": [*map(sha256_of_lines, self.val)], TEST: [*map(sha256_of_lines, self.test)]},
            "models": {name: identity_of_model(name)["files"] for name in models},
            "seed": SEED,
        }

    @cached_property
    def members(self) -> list[str]:
        """Returns the models of the ensemble."""
        given = (pair.partition("=") for pair in self.options.ensemble)
        return [model for direction, _, model in given if direction == self.direction]

    def lines(self, name: str) -> list[list[str]]:
        """Returns the sentences of both languages of a set."""
        return [read_texts(self.options.data / f"{name}.{code}.gz") for code in self.languages]

    @cached_property
    def test(self) -> list[list[str]]:
        """Returns sources and references."""
        return [lines[: self.options.sentences] for lines in self.lines(TEST)]

    @cached_property
    def val(self) -> list[list[str]]:
        """Returns sources and references that settings are chosen on."""
        wanted = self.options.sentences
        return [lines[: wanted and max(wanted, FEWEST)] for lines in self.lines("val")]

    @cached_property
    def pipeline(self) -> Any:
        """Returns the pipeline of the model."""
        from hf_mlnmt.generation import TranslationPipeline

        pipeline = TranslationPipeline.from_pretrained(self.model, device="cpu")
        pipeline(self.test[0][:4], num_beams=5)  # what a first search compiles and lays out is no part of a row
        return pipeline

    @cached_property
    def ensemble(self) -> Any:
        """Returns the pipeline of the ensemble."""
        from hf_mlnmt.generation import TranslationPipeline
        from hf_mlnmt.generation.translating.fusing import fuse

        tokenizer = TranslationPipeline.from_pretrained(self.members[0], device="cpu").parts.tokenizers.source
        return TranslationPipeline(fuse(self.members, normalization="symbol"), tokenizer)

    @cached_property
    def beam(self) -> list[str]:
        """Returns the translations of the beam of 5, which other rows are compared with."""
        path = self.work / "beam-5.txt"
        if not path.is_file():
            write_lines(path, self.pipeline(self.test[0], num_beams=5))
        return path.read_text(encoding="utf-8").split("\n")[:-1]

    @property
    def missing(self) -> list[str]:
        """Returns the rows that can be made and are not there."""
        names = (name for name in COSTS if not name.startswith("ensemble") or self.members)
        return [name for name in names if name not in self.rows]

    def make(self, name: str) -> None:
        """Makes a row and keeps it."""
        from hf_mlnmt.evaluation.results import versions

        self.pipeline.model.eval()  # loaded before the time is taken
        before = time.process_time()
        lines, more = self.row(name)
        seconds = time.process_time() - before - more.pop("settings_seconds", 0.0) + more.pop("samples_seconds", 0.0)
        if name != "beam-5":
            write_lines(self.work / f"{name}.txt", lines)
        self.rows[name] = {**self.scores(lines), "cpu_seconds": round(seconds, 2), **more}
        content = {"what": f"decoding {self.direction}", "command": "python studies/decoding.py --data DIR"}
        write_json(self.file, {**content, "settings": self.settings, "versions": versions(), "rows": self.rows})

    def row(self, name: str) -> tuple[list[str], dict[str, Any]]:
        """Returns a row's translations of the test set, and what is said of it."""
        if name == "beam-5":
            (self.work / "beam-5.txt").unlink(missing_ok=True)
            return self.beam, {}
        kind, _, rest = name.partition("-")
        how: dict[str, Any]
        if kind == "rerank":
            return self.reranked(name, rest)
        if kind == "mbr" and rest != "beams":
            return self.of_samples(rest)
        if kind == "ensemble":
            how = {"mbr": SAMPLES, "seed": SEED, "epsilon_cutoff": CUTOFFS[-1]} if rest else {"num_beams": 5}
            return self.ensemble(self.test[0], **how), {"decoding": how, "models": self.members}
        if kind in ("terms", "must"):
            return self.constrained(kind)
        how = {"greedy": {"num_beams": 1}, "beam": {"num_beams": 16}, "mbr": {"num_beams": 16, "mbr": 16}}[kind]
        return self.pipeline(self.test[0], **how), {"decoding": how}

    def reranked(self, name: str, features: str) -> tuple[list[str], dict[str, Any]]:
        """Makes a reranker by val, where it is not there yet, and reranks."""
        from hf_mlnmt.analysis.tuning import make_reranker
        from hf_mlnmt.generation import DecodingOptions

        before, file = time.process_time(), self.work / f"{name}.json"
        if not file.is_file():
            files = [self.work / f"val.{code}" for code in self.languages]
            for path, lines in zip(files, self.val, strict=True):
                write_lines(path, lines)
            names = ["score", "length", f"reverse={self.reverse}"]
            names += ["translation=published/many", "coverage"] if features == "all" else []
            beams = DecodingOptions(num_beams=16)
            make_reranker(self.model, files[0], files[1], file, names, beams, seed=SEED, device="cpu", shown=False)
        made, of_settings = read_json(file), time.process_time() - before
        dropped = ("model", "models", "source", "reference")
        said = {key: value for key, value in made["made_from"].items() if key not in dropped}
        more = {"weights": made["features"], "val": said, "decoding": made["decoding"], "settings_seconds": of_settings}
        return self.pipeline(self.test[0], rerank=str(file)), more

    def drawn(self, part: str, sources: Sequence[str], cutoff: float) -> tuple[list[list[str]], float]:
        """Returns the samples of each source, kept in --work, and the CPU seconds that they took."""
        from hf_mlnmt.generation import DecodingOptions

        path = self.work / f"samples.{part}.{cutoff:g}.json.gz"
        if not path.is_file():
            before, keeper = time.process_time(), Drawn()
            how = DecodingOptions(mbr=SAMPLES, utility=keeper, seed=SEED, epsilon_cutoff=cutoff or None)
            self.pipeline(list(sources), how)
            samples = [keeper.samples[source] for source in sources]
            write_json(path, {"samples": samples, "seconds": time.process_time() - before})
        kept = read_json(path)
        return kept["samples"], kept["seconds"]

    def of_samples(self, name: str) -> tuple[list[str], dict[str, Any]]:
        """Chooses the cutoff on val, then among the samples of the test set by a utility."""
        from hf_mlnmt.evaluation.scores import score
        from hf_mlnmt.generation.choosing.minimum_risk import MinimumRisk

        before, utility = time.process_time(), f"embeddings={self.reverse}" if name == "embeddings" else name
        best = MinimumRisk(utility).best
        sources, references = (lines[:CHOSEN_ON] for lines in self.val)
        on_val = {}
        for cutoff in CUTOFFS:
            lines = [*map(best, sources, self.drawn("val", sources, cutoff)[0])]
            found = score(lines, references, language=self.languages[1], metrics=["BLEU"], bootstrap=0)
            on_val[f"{cutoff:g}"] = round(found["BLEU"], 4)
        cutoff = max(CUTOFFS, key=lambda each: on_val[f"{each:g}"])
        samples, of_samples = self.drawn(TEST, self.test[0], cutoff)
        more = {"decoding": {"mbr": SAMPLES, "utility": utility, "epsilon_cutoff": cutoff}, "val": on_val}
        of_settings = time.process_time() - before
        return [*map(best, self.test[0], samples)], {
            **more,
            "settings_seconds": of_settings,
            "samples_seconds": of_samples,
        }

    def constrained(self, kind: str) -> tuple[list[str], dict[str, Any]]:
        """Translates with what is asked of each text; says how much of it is there, and was there by itself."""
        before, (sources, references) = time.process_time(), self.test
        if kind == "terms":
            train = self.lines("train")
            terms = glossary(train[0], train[1])
            wanted = [[terms[word] for word in dict.fromkeys(words_of(text)) if word in terms] for text in sources]
            how: dict[str, Any] = {"terms": terms}
        else:
            draw, wanted = random.Random(SEED), []
            for reference, line in zip(references, self.beam, strict=True):
                lacking = [word for word in words_of(reference) if len(word) > 3 and not has(line, word)]
                wanted.append([draw.choice(lacking)] if lacking else [])
            how = {"force_phrases": [phrase for phrases in wanted for phrase in phrases or [""]]}
        of_settings = time.process_time() - before
        lines = self.pipeline(sources, num_beams=5, **how)
        sides = {"met": lines, "met_by_beam-5": self.beam, "met_by_reference": references}
        met = {name: share(wanted, text) for name, text in sides.items()}
        asked = {"asked": sum(map(len, wanted)), "sentences_asked": sum(map(bool, wanted))}
        return lines, {"decoding": {"num_beams": 5}, **met, **asked, "settings_seconds": of_settings}

    def scores(self, lines: Sequence[str]) -> dict[str, Any]:
        """Returns BLEU and chrF of the test set, with signatures, intervals and p against the beam of 5."""
        from hf_mlnmt.evaluation.scores import score
        from hf_mlnmt.evaluation.significance import compare_seeds

        how: dict[str, Any] = {"language": self.languages[1], "metrics": ["BLEU", "chrF"]}
        found, beam = (score(each, self.test[1], **how) for each in (lines, self.beam))
        tests = {
            name: compare_seeds(name, [beam.counts[name]], [found.counts[name]])["approximate_randomisation"]
            for name in found.metrics
        }
        return {"scores": found.to_dict(), "p": tests, "length_ratio": round(found.length_ratio, 4)}


def write_lines(path: Path, lines: Sequence[str]) -> None:
    """Writes lines."""
    write_text(path, "".join(f"{line}\n" for line in lines))


def words_of(text: str) -> list[str]:
    """Returns the words of a text, as they are written."""
    return re.findall(r"[^\W\d_]+", text)


def has(text: str, word: str) -> bool:
    """Returns whether a word of a text begins with this."""
    return re.search(rf"\b{re.escape(word)}", text) is not None


def share(wanted: Sequence[Sequence[str]], lines: Sequence[str]) -> float:
    """Returns the share of the words that are wanted of lines, and there, in percent."""
    there = [has(line, word) for words, line in zip(wanted, lines, strict=True) for word in words]
    return round(100 * sum(there) / max(1, len(there)), 2)


def glossary(sources: Sequence[str], targets: Sequence[str], least: int = 20, dice: float = 0.6) -> dict[str, str]:
    """Returns {word: the word of the other language with which it goes together most}: by Dice's coefficient of the
    sentences that have them, of words of four letters or more in `least` sentences."""
    sides = [[{word for word in words_of(text) if len(word) > 3} for text in lines] for lines in (sources, targets)]
    counts = [Counter(word for words in side for word in words) for side in sides]
    both = Counter((a, b) for ours, theirs in zip(*sides, strict=True) for a in ours for b in theirs)
    best: dict[str, tuple[float, str]] = {}
    for (a, b), number in both.items():
        if counts[0][a] >= least:
            best[a] = max(best.get(a, (0.0, "")), (2 * number / (counts[0][a] + counts[1][b]), b))
    return {a: b for a, (value, b) in sorted(best.items()) if value >= dice}


def study_tables(folder: str | Path) -> dict[str, Table]:
    """Returns the table of each direction that something is there for."""
    found = {}
    for name, file in PAGES.items():
        if rows := read_json(Path(folder) / file).get("rows"):
            columns = ["BLEU", "p", "chrF", "p", "CPU seconds", "times beam-5"]
            usual = rows.get("beam-5", {}).get("cpu_seconds")
            cells = []
            for row in (name for name in COSTS if name in rows):
                about = rows[row]
                numbers = []
                for metric, known in about["scores"].items():
                    low, high = known["ci"]
                    p = about["p"][metric]
                    numbers += [f"{known['score']:.2f} ({low:.1f}-{high:.1f})", "" if p is None else f"{p:.3f}"]
                seconds = about["cpu_seconds"]
                times = f"{seconds / usual:.1f}" if usual else ""
                met = f"{about['met']:.1f} % ({about['met_by_beam-5']:.1f} %)" if "met" in about else ""
                cells.append([f"`{row}`", *numbers, f"{seconds:,.0f}", times, met])
            found[name] = Table(["row", *map(Number, columns), "met"], cells)
    return found


def parser() -> argparse.ArgumentParser:
    """Returns the command's options."""
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--data", type=Path, required=True, metavar="DIR")
    made.add_argument("--results", type=Path, default=Path("results") / STUDY_FOLDER, help="a JSON file a direction")
    made.add_argument("--work", type=Path, default=Path("runs/decoding"), help="translations, samples, weights")
    made.add_argument("--directions", nargs="+", choices=DIRECTIONS, default=list(DIRECTIONS))
    made.add_argument("--sentences", type=int, help="so many of the test set, and 100 or as many of val: a trial")
    made.add_argument("--ensemble", nargs="+", default=[], metavar="FROM-TO=MODEL", help="models of one vocabulary")
    return made


def main(words: list[str] | None = None) -> int:
    """Makes the rows that are missing; returns the exit code."""
    options = parser().parse_args(words)
    import torch

    torch.set_num_threads(1)
    try:
        studies = [Study(direction, options) for direction in options.directions]
        todo = [(study, name) for name in COSTS for study in studies if name in study.missing]
        left = sum(COSTS[name] for _, name in todo)
        started, done = time.monotonic(), 0.0
        for study, name in todo:
            begun = time.monotonic()
            study.make(name)
            done += COSTS[name]
            row, now = study.rows[name], time.monotonic()
            scores = ", ".join(f"{metric} {known['score']:.2f}" for metric, known in row["scores"].items())
            rest = (now - started) / done * (left - done) / 60
            taken = f"{row['cpu_seconds']:.0f} CPU s of the test set, {now - begun:.0f} s in all"
            print(f"{study.direction} {name}: {scores}; {taken}; the rest about {rest:.0f} minutes", flush=True)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
