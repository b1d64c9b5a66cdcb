"""Marian's own engine trains small models; imported, they score translations as it does and find its greedy ones."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from helpers.toy_translators import SENTENCES

from hf_mlnmt import import_model
from hf_mlnmt.convert.marian_binary import read_items, read_shortlist, shortlist_bytes, shortlist_of, to_bytes
from hf_mlnmt.convert.vocabularies import read_list

if importlib.util.find_spec("pymarian") is None:
    pytest.skip("Marian's engine is not installed: pip install pymarian", allow_module_level=True)

ENGINE = Path(__file__).parents[1] / "helpers" / "marian_engine.py"
SIZES = "--dim-emb 32 --transformer-heads 4 --transformer-dim-ffn 48 --enc-depth 2 --dec-depth 1"
TRAINING = "--after 40u --mini-batch 16 --maxi-batch 10 --learn-rate 0.01 --cpu-threads 1 --workspace 200 --seed 1"
TRAINING += " --valid-metrics ce-mean-words --valid-freq 40u"
VARIANTS = {
    "OPUS-MT's": ("joint", "--tied-embeddings-all"),
    "pre-norm, relu": (
        "joint",
        "--tied-embeddings-all --transformer-preprocess n --transformer-postprocess da --transformer-postprocess-top n "
        "--transformer-ffn-activation relu",
    ),
    "two vocabularies, gelu": ("two", "--tied-embeddings --transformer-ffn-activation gelu"),
    "nothing tied, norm of the embeddings": (
        "two",
        "--transformer-postprocess-emb nd --transformer-decoder-dim-ffn 40",
    ),
    "an SSRU decoder": (
        "joint",
        "--tied-embeddings-all --transformer-decoder-autoreg rnn --dec-cell ssru --transformer-ffn-activation relu",
    ),
    "one embedding for both sides, no output bias": ("joint", "--tied-embeddings-src --output-omit-bias"),
}


def engine(*arguments: str) -> tuple[str, str]:
    """What it wrote to stdout and to stderr."""
    command = [sys.executable, str(ENGINE), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout, done.stderr


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """name of a variant -> its folder, and the engine's cross-entropy of the training set with the finished model."""
    texts = tmp_path_factory.mktemp("texts")
    (texts / "t.en").write_text("\n".join(SENTENCES) + "\n")
    (texts / "t.de").write_text("\n".join(map(turned, SENTENCES)) + "\n")
    sets = f"{texts / 't.en'} {texts / 't.de'}"
    made = {}

    def folder(name):
        if name not in made:
            target = tmp_path_factory.mktemp("model")
            kind, options = VARIANTS[name]
            joint = kind == "joint"
            vocabularies = ["v.spm", "v.spm"] if joint else ["en.spm", "de.spm"]
            paths, sizes = " ".join(str(target / v) for v in vocabularies), "90 90" if joint else "80 90"
            _, log = engine(
                "train",
                f"--type transformer --model {target / 'model.npz'} --train-sets {sets} --valid-sets {sets} "
                f"--vocabs {paths} --dim-vocabs {sizes} {SIZES} {TRAINING} {options}",
            )
            made[name] = target, float(re.findall(r"ce-mean-words : ([\d.]+)", log)[-1])
        return made[name]

    return folder


def turned(line: str) -> str:
    return " ".join(reversed(line.split()))


def translations(folder, beams: int, lines: list[str]):
    """For each line the engine's n-best: pieces, and the log probability of each and of the end of sentence."""
    vocabularies = "v.spm v.spm" if (folder / "v.spm").exists() else "en.spm de.spm"
    paths = " ".join(str(folder / name) for name in vocabularies.split())
    (folder / "input").write_text("\n".join(lines))
    options = f"--models {folder / 'model.npz'} --vocabs {paths} --beam-size {beams} --n-best --no-spm-decode"
    options += " --word-scores --cpu-threads 1 --max-length-factor 3 --quiet"
    found, _ = engine("translate", options, str(folder / "input"))
    rows = [row.split(" ||| ") for row in json.loads(found)]
    return [(int(n), pieces.split(), [float(x) for x in words.split()[1:]]) for n, pieces, words, *_ in rows]


def test_every_token_of_the_engines_vocabulary_is_text(tmp_path):
    """It writes vocab.yml itself, from the words of the training set."""
    words = "on No null ~ 010 true << 1e3 0x1f 2020-01-01 1:30 = ! .inf y a: # a# ' \" \\ - ? [ &a % { } , | > @ ` *"
    words = [*words.split(), "---", "...", "a\x85b", "a\u2028b", "a\x0bb", "a\x1cb", "\xa0", "\ufeffa", "日本", "🙂"]
    (tmp_path / "text").write_text(f"{' '.join(words)}\n", encoding="utf-8")
    files = f"--vocabs {tmp_path / 'v.yml'} {tmp_path / 'v.yml'} --train-sets {tmp_path / 'text'} {tmp_path / 'text'}"
    model = f"--type transformer --model {tmp_path / 'model.npz'} --after 1u --cpu-threads 1 --workspace 200"
    engine("train", f"{model} {files} {SIZES}")
    assert set(read_list(tmp_path / "v.yml")) == {"</s>", "<unk>", *words}


@pytest.mark.parametrize("name", VARIANTS)
def test_the_cross_entropy_is_the_engines(trained, name):
    """Of targets that are given, as in training."""
    folder, expected = trained(name)
    model, tokenizers, *_ = import_model(folder)
    pad = model.config.pad_token_id
    source = tokenizers.source(SENTENCES, return_tensors="pt", padding=True)
    labels = tokenizers.source(text_target=list(map(turned, SENTENCES)), return_tensors="pt", padding=True)["input_ids"]
    with torch.no_grad():
        found = model(**source, labels=labels.masked_fill(labels == pad, -100)).loss.item()
    assert found == pytest.approx(expected, abs=1e-4)  # printed with four digits


@pytest.mark.parametrize("name", [name for name in VARIANTS if "pre-norm" not in name])
def test_scores_and_greedy_translations_are_the_engines(trained, name):
    """Not of pre-norm models: the engine's decoder does not compute what it trains."""
    (folder, _), lines = trained(name), SENTENCES[:6]
    model, tokenizers, *_ = import_model(folder)
    tokenizer = tokenizers.source
    ids_of = tokenizer.target_encoder if tokenizer.separate_vocabs else tokenizer.encoder
    start, end = model.config.decoder_start_token_id, model.config.eos_token_id
    for beams in (1, 4):
        for n, pieces, expected in translations(folder, beams, lines):
            batch = tokenizer(lines[n], return_tensors="pt")
            ids = [start, *(ids_of[piece] for piece in pieces), end][: len(expected) + 1]
            with torch.no_grad():
                logits = model(**batch, decoder_input_ids=torch.tensor([ids[:-1]])).logits
            found = logits.log_softmax(-1)[0].gather(1, torch.tensor(ids[1:])[:, None])[:, 0]
            assert (found - torch.tensor(expected)).abs().max() < 2e-4, (name, beams, pieces)  # printed with six digits
            if beams == 1:
                limit = {"max_new_tokens": len(expected), "num_beams": 1}
                assert model.generate(**batch, **limit)[0].tolist() == ids


def test_the_engines_binary_files(trained, tmp_path):
    """Its model.bin is that of model.npz, and both it and its shortlist are written here as it writes them."""
    folder, _ = trained("an SSRU decoder")
    (tmp_path / "vocab.spm").write_bytes((folder / "v.spm").read_bytes())
    file, vocabulary = tmp_path / "model.bin", tmp_path / "vocab.spm"
    engine("convert", f"--from {folder / 'model.npz'} --to {file}")
    assert to_bytes(read_items(file)) == file.read_bytes()
    found, expected = (import_model(path) for path in (file, folder))
    assert found.record["notes"] == []
    for name, tensor in expected.model.state_dict().items():
        assert torch.equal(tensor, found.model.state_dict()[name]), name
    numbers = found.tokenizers.source.encoder
    pieces = [piece for piece in numbers if piece.startswith("▁")][:9]
    pairs = [(a, b, 1 / (1 + (7 * i + 3 * j) % 11)) for i, a in enumerate(pieces) for j, b in enumerate(pieces)]
    table, lists = tmp_path / "lex.txt", tmp_path / "made.bin"
    table.write_text("".join(f"{a} {b} {p}\n" for a, b, p in [*pairs, ("NULL", pieces[0], 1.0)]))
    engine("convert", f"--shortlist {table} 50 50 0 --dump-shortlist {lists} --vocabs {vocabulary} {vocabulary}")
    known = len(numbers) - 1  # without <pad>
    scores: dict[int, dict[int, float]] = {numbers[piece]: {} for piece in pieces}
    for target, source, score in pairs:
        scores[numbers[source]][numbers[target]] = score
    assert shortlist_bytes(shortlist_of(scores, known)) == lists.read_bytes()
    assert shortlist_bytes(read_shortlist(lists, [known] * 2)) == lists.read_bytes()
