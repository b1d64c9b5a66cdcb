"""Folders of random models of Transformers, of the architectures that can be imported."""

import pytest
from helpers.foreign_translators import sentencepiece_model
from helpers.originals import MAKERS, save


@pytest.fixture(scope="session")
def original(tmp_path_factory):
    """name -> the folder of an original, made when it is first asked for."""
    made = {}
    spm, pieces = sentencepiece_model(tmp_path_factory.mktemp("spm"))

    def folder(name):
        if name not in made:
            target = tmp_path_factory.mktemp(name)
            made[name] = save(target, *MAKERS[name](target, spm, pieces))
        return made[name]

    return folder
