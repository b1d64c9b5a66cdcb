"""Folders of toy models with the languages that they translate, as a server finds them."""

import json

import pytest
from helpers.foreign_translators import marian, nllb, sentencepiece_model
from helpers.toy_translators import bpe, our_model


@pytest.fixture(scope="session")
def pair_folders(tmp_path_factory):
    """Pair -> folder of a model of it, as training leaves it: results.json says the languages."""
    folders = {}
    for seed, pair in enumerate(("en-de", "de-fr", "fr-en")):
        folder = tmp_path_factory.mktemp("served") / pair
        tokenizer = bpe()
        tokenizer.save_pretrained(folder)
        our_model(len(tokenizer), seed=seed).save_pretrained(folder)
        source, target = pair.split("-")
        languages = {"source": source, "target": target}
        (folder / "results.json").write_text(json.dumps({"system": "toy", "languages": languages}))
        folders[pair] = folder
    return folders


@pytest.fixture(scope="session")
def tagged_folder(tmp_path_factory):
    """A model that is told its target by a token."""
    folder = tmp_path_factory.mktemp("tagged")
    tokenizer = bpe(codes=("<2de>", "<2fr>"))
    tokenizer.save_pretrained(folder)
    our_model(len(tokenizer)).save_pretrained(folder)
    (folder / "README.md").write_text("---\nlanguage:\n- en\n- de\n- fr\n---\n# A model\n")
    return folder


@pytest.fixture(scope="session")
def foreign_folders(tmp_path_factory):
    """Family -> folder of a toy of Transformers' own."""
    scratch = tmp_path_factory.mktemp("spm")
    spm, pieces = sentencepiece_model(scratch)
    folders = {}
    for name, (tokenizer, model) in {"opus-mt-en-de": marian(scratch, spm, pieces), "nllb": nllb()}.items():
        folders[name] = tmp_path_factory.mktemp("foreign") / name
        tokenizer.save_pretrained(folders[name])
        model.save_pretrained(folders[name])
    return folders
