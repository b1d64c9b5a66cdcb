"""What the pages tell a reader to type: blocks of code, the commands in them, small stand-ins for what they name."""

from __future__ import annotations

import gzip
import re
import shlex
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from helpers import finished_runs, originals
from helpers.contract import FIELDS, redraw
from helpers.foreign_translators import sentencepiece_model
from helpers.tiny_run import WORDS, run, write_recipe
from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM

import hf_mlnmt
from hf_mlnmt.data import save_tokenizers, train_tokenizer
from hf_mlnmt.generation.translating.fusing import fuse_folders
from hf_mlnmt.zoo.systems import find_system

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
LANGUAGES = ("en", "de", "fr", "cs")
SIZES = {"d_model": 16, "encoder_layers": 2, "decoder_layers": 2, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32}
BRIDGE = {**SIZES, "bridge_heads": 2, "bridge_width": 8}


class Block(NamedTuple):
    """A fenced block: the page's name below the root, the line of its fence, its language, its text."""

    page: str
    line: int
    language: str
    text: str


class Command(NamedTuple):
    """A simple command of a block of bash; `source` is the file that it reads as its standard input, if it does."""

    page: str
    line: int
    words: tuple[str, ...]
    source: str | None


def blocks(page: Path, *languages: str) -> list[Block]:
    """The page's blocks in these languages, in order."""
    text = page.read_text(encoding="utf-8")
    name = page.relative_to(ROOT).as_posix()
    return [
        Block(name, text.count("\n", 0, match.start()) + 1, match[1], match[2])
        for match in re.finditer(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
        if match[1] in languages
    ]


def commands(block: Block, **variables: str) -> Iterator[Command]:
    """The simple commands of a block: loops are gone through once, variables replaced; no comments, no outputs."""
    text = re.sub(r"\\\n\s*", lambda match: "  "[: len(match[0]) - 2], block.text)
    for number, line in enumerate(text.splitlines(), block.line + 1):
        for name, value in variables.items():
            line = re.sub(rf"\${name}\b", value, line)
        lexer = shlex.shlex(line, posix=True, punctuation_chars="|<>;&")
        lexer.whitespace_split = True
        words = list(lexer)
        if words[:1] == ["for"]:
            variables[words[1]] = words[3]
        elif len(words) == 1 and re.match(r"\w+=", words[0]):
            name, _, variables[name] = words[0].partition("=")
        else:
            yield from _simple(block.page, number, words)


def _simple(page: str, line: int, words: list[str]) -> Iterator[Command]:
    here: list[str] = []
    source = redirected = None
    for word in [*words, ";"]:
        if word in ("<", ">"):
            redirected = word
        elif redirected:
            source, redirected = (word if redirected == "<" else source), None
        elif set(word) <= set("|;&"):
            if here and here != ["done"]:
                yield Command(page, line, tuple(here), source)
            here, source = [], None
        else:
            here.append(word)


class StandIns:
    """Small models, runs and corpora for the names that the pages use; each is made when it is first asked for."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.tokenizer = train_tokenizer([*sentences("en"), *sentences("de")], vocab_size=200, byte_fallback=False)

    def put(self, name: str, where: Path) -> bool:
        """Put what `name` stands for to `where` / name, if it stands for anything that is not there yet."""
        place = where / name
        for pattern, make in KINDS.items():
            if (match := re.fullmatch(pattern, name)) and not place.exists():
                place.parent.mkdir(parents=True, exist_ok=True)
                place.symlink_to(getattr(self, make)(*match.groups()))
                return True
        return False

    def _once(self, name: str, make: Callable[[Path], Any]) -> Path:
        """A file or folder of this name, made when it is not there."""
        if not (place := self.folder / name).exists():
            make(place)
        return place

    def system(self, name: str = "transformer", **fields: Any) -> Path:
        """A model of a system of the zoo, with large random weights."""
        sizes = {key: size for key, size in SIZES.items() if not (name == "lm" and "encoder" in key)}
        fields = {**sizes, **FIELDS.get(name, {}), "vocab_size": len(self.tokenizer), **fields}
        config = hf_mlnmt.config_for(name, "tiny", **fields)
        kind = AutoModelForCausalLM if name == "lm" else AutoModelForSeq2SeqLM
        return self._once(f"{name}.{len(fields)}", lambda place: self._save(kind.from_config(config), place))

    def named(self, name: str) -> Path:
        """Of a system's name; of any other name the baseline."""
        try:
            find_system(name)
        except hf_mlnmt.UserError:
            name = "transformer"
        return self.lm() if name == "lm" else self.system(name)

    def reranker(self) -> Path:
        """Weights of features, made from nothing."""
        content = '{"features": {"score": 1.0}, "decoding": {"num_beams": 2}}'
        return self._once("rerank.json", lambda place: place.write_text(content))

    def lm(self) -> Path:
        """A language model with the same vocabulary."""
        return self.system("lm", norm_position="pre")

    def pre_norm(self) -> Path:
        return self.system(norm_position="pre")

    def tokenizer_folder(self) -> Path:
        return self.system()

    def fused(self) -> Path:
        return self._once("fused", lambda place: fuse_folders([self.system(), self.lm()], place, lambda text: None))

    def opus(self) -> Path:
        """A MarianMTModel of Transformers."""

        def make(place: Path) -> None:
            (scratch := self.folder / "scratch").mkdir()
            originals.save(place, *originals.MAKERS["marian"](scratch, *sentencepiece_model(scratch)))

        return self._once("opus", make)

    def many(self) -> Path:
        """The run of a model of many languages."""

        def make(place: Path) -> None:
            between = {"between": ["de", "en", "fr"], "train": "train.<language>.gz", "dev": "val.<language>.gz"}
            recipe = write_recipe(
                self.folder / "many.yaml",
                data={"train": None, "dev": None, "test": {}},
                directions={**between, "test": {"test": "test_2016_flickr.<language>.gz"}},
                model={"system": "bridge-rnn", "shape": "tiny", "settings": BRIDGE},
                budget={"steps": 2},
                evaluation={"every": 2, "metrics": [], "best": "mean_loss"},
                decoding={"beams": 1, "max_new_tokens": 4},
            )
            run(recipe, self.data(), place)

        return self._once("many", make)

    def bridge(self) -> Path:
        return self.many() / "average"

    def run(self, name: str) -> Path:
        """A finished training of a system on the test set `test`."""
        system = name.partition(".")[0]
        key = "base" if system == "transformer" else "a"
        return self._once(f"run-{name}", lambda place: finished_runs.write_run(place, key, system=f"{system}.toy"))

    def data(self) -> Path:
        """The corpora of the recipes that the pages name, with as many lines as a test needs."""

        def make(place: Path) -> None:
            for language in LANGUAGES:
                for stem in ("train", "val", "test_2016_flickr", "news", "monolingual/train"):
                    _write(place / f"{stem}.{language}.gz", sentences(language, 120 if "train" in stem else 10))
                for stem in ("train", "val"):
                    _write(place / f"{stem}.{language}", sentences(language, 120 if stem == "train" else 10))
                _write(place / f"test.{language}", finished_runs.sentences(0, 0))
            for language in ("en", "de"):  # of docs/studies/published.md
                for stem in ("europarl-v7.de-en", "commoncrawl.de-en", "news-commentary-v9.de-en", "newstest2013"):
                    _write(place / f"{stem}.{language}", sentences(language, 10 if "newstest" in stem else 120))
                _write(place / f"newstest2014.{language}", sentences(language, 12))

        return self._once("data", make)

    def document(self, ending: str) -> Path:
        """A small document with two sentences."""
        words = 'xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main"'

        def make(place: Path) -> None:
            if ending == "docx":
                with zipfile.ZipFile(place, "w") as file:
                    text = "<w:p><w:r><w:t>A dog. Two dogs.</w:t></w:r></w:p>"
                    file.writestr("word/document.xml", f"<w:body {words}>{text}</w:body>")
            texts = {"po": 'msgid "A dog."\nmsgstr ""\n', "srt": "0:00:01,000 --> 0:00:02,000\nA dog.\n"}
            if ending in texts:
                place.write_text(texts[ending], encoding="utf-8")

        return self._once(f"document.{ending}", make)

    def text(self, language: str, packed: str | None) -> Path:
        return self._once(f"text.{language}{packed or ''}", lambda place: _write(place, sentences(language, 120)))

    def _save(self, model: Any, folder: Path) -> None:
        redraw(model)
        model.generation_config.max_new_tokens = 6
        model.save_pretrained(folder)
        save_tokenizers(folder, self.tokenizer)


# What a name stands for: the first pattern that fits whole, and the method that makes it of the pattern's groups.
KINDS = {
    r"DIR|data/multi30k": "data",
    r"fused": "fused",
    r"rerank\.json": "reranker",
    r"MODEL|opus-en-de|published/(?:software-)?en-de": "system",
    r"lm-en": "lm",
    r"(?:report|messages|film)\.(docx|po|srt)": "document",
    r"(?:.*[./])?(en|de|fr|cs)(\.gz)?": "text",
    r"Helsinki-NLP/opus-mt-en-de": "opus",
    r"runs/bridge-rnn\.multi30k-many": "many",
    r"K\d+|runs/bridge.*/average": "bridge",
    r"runs/(?:encoder-cloze|pseudo-encoder)\..*/best": "pre_norm",
    r"runs/transformer\.multi30k-deen/tokenizer": "tokenizer_folder",
    r"runs/(?:other-)?(lm)\..*": "named",
    r"runs/([\w-]+)(?:\.[\w.-]+)?/(?:average|best)(?:/adapter)?": "named",
    r"(?:runs|sweeps/zoo)/([\w.-]+)": "run",
}


def sentences(language: str, count: int = 120) -> list[str]:
    """Made-up sentences: those of two languages go together line by line."""
    shift = LANGUAGES.index(language)
    return [
        " ".join(
            WORDS[(number * 7 + place * (number % 5 + 1)) % 10][shift % 2 :] + "xyzw"[shift]
            for place in range(3 + number % 6)
        )
        + "."
        for number in range(count)
    ]


def _write(path: Path, lines: list[str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    content = "".join(line + "\n" for line in lines).encode()
    path.write_bytes(gzip.compress(content, mtime=0) if path.suffix == ".gz" else content)
