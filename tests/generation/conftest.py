"""Tiny random translation systems of every family the pipeline serves, with tokenizers trained here."""

import pytest
from helpers.foreign_translators import m2m100, marian, mbart, nllb, sentencepiece_model, t5
from helpers.toy_translators import bpe, our_model
from transformers import MBart50Tokenizer, MBartTokenizer

from hf_mlnmt.generation import TranslationPipeline


@pytest.fixture(scope="session")
def ours(tmp_path_factory):
    """Folder of one of our models, one language pair."""
    return _save(tmp_path_factory.mktemp("ours"), tokenizer := bpe(), our_model(len(tokenizer)))


@pytest.fixture(scope="module")
def pipeline(ours):
    return TranslationPipeline.from_pretrained(str(ours), device="cpu")


@pytest.fixture(scope="session")
def ours_multilingual(tmp_path_factory):
    tokenizer = bpe(codes=("<2de>", "<2fr>"))
    return _save(tmp_path_factory.mktemp("multilingual"), tokenizer, our_model(len(tokenizer)))


@pytest.fixture(scope="session")
def foreign(tmp_path_factory):
    """family -> folder, of each foreign family."""
    scratch = tmp_path_factory.mktemp("spm")
    spm, pieces = sentencepiece_model(scratch)
    systems = {
        "marian": marian(scratch, spm, pieces),
        "marian-multilingual": marian(scratch, spm, pieces, [">>deu<<", ">>fra<<"]),
        "m2m100": m2m100(scratch, spm, pieces),
        "nllb": nllb(),
        "mbart": mbart(MBartTokenizer, pieces),
        "mbart50": mbart(MBart50Tokenizer, pieces),
        "t5": t5(pieces),
    }
    return {name: _save(tmp_path_factory.mktemp(name), *system) for name, system in systems.items()}


def _save(folder, tokenizer, model):
    tokenizer.save_pretrained(folder)
    model.save_pretrained(folder)
    return folder
