"""A pipeline beside other users of its tokenizers: what they were called with before, and what others ask at once."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from helpers.toy_translators import SENTENCES
from transformers import AutoTokenizer

from hf_mlnmt.data.tokenizer import load_tokenizers
from hf_mlnmt.generation import TranslationPipeline

DIRECTIONS = {  # two of each family
    "ours": ({}, {}),
    "ours_multilingual": ({"target_language": "de"}, {"target_language": "fr"}),
    "marian": ({}, {}),
    "marian-multilingual": ({"target_language": "fra"}, {"target_language": "deu"}),
    "m2m100": tuple({"source_language": code, "target_language": "de"} for code in ("en", "fr")),
    "nllb": tuple({"source_language": code, "target_language": "deu_Latn"} for code in ("eng_Latn", "fra_Latn")),
    "mbart": tuple({"source_language": code, "target_language": "ro_RO"} for code in ("en_XX", "de_DE")),
    "mbart50": tuple({"source_language": code, "target_language": "ro_RO"} for code in ("en_XX", "de_DE")),
    "t5": ({"source_language": "en", "target_language": "de"}, {"prefix": "as it is: "}),
}


@pytest.fixture
def folder(request, foreign, ours, ours_multilingual):
    return {"ours": ours, "ours_multilingual": ours_multilingual, **foreign}[request.param]


TWO = {name: each for name, each in DIRECTIONS.items() if name not in ("ours", "mbart50")}  # one; cuts as mbart's does


@pytest.mark.parametrize(("folder", "directions"), TWO.items(), indirect=["folder"], ids=list(TWO))
def test_threads_do_not_mix_up_their_directions(folder, directions):
    pipeline = TranslationPipeline.from_pretrained(folder, device="cpu")
    texts, directions = SENTENCES[:4], [{**options, "max_new_tokens": 4} for options in directions]
    alone = [pipeline(texts, **options) for options in directions]
    assert alone[0] != alone[1] or directions[0] == directions[1]
    streams = [pipeline.stream(texts, window=1, **options) for options in directions]
    assert list(zip(*streams)) == list(zip(*alone))
    with ThreadPoolExecutor(8) as pool:
        calls = [pool.submit(pipeline, texts, **directions[i % 2]) for i in range(16)]
        assert [call.result() for call in calls] == [alone[i % 2] for i in range(16)]


@pytest.mark.parametrize(("folder", "directions"), DIRECTIONS.items(), indirect=["folder"], ids=list(DIRECTIONS))
def test_what_a_tokenizer_was_called_with_before_changes_nothing(folder, directions, tmp_path):
    pipeline = TranslationPipeline.from_pretrained(folder, device="cpu", fast=False)
    before = pipeline(SENTENCES[:4], **directions[0])
    ids = load_tokenizers(folder).encode_source(SENTENCES[:4])
    saved = AutoTokenizer.from_pretrained(folder)
    for tokenizer in (pipeline.parts.source, pipeline.parts.target, saved):
        tokenizer(SENTENCES[0], padding="max_length", truncation=True, max_length=5)
    assert pipeline(SENTENCES[:4], **directions[0]) == before
    saved.save_pretrained(tmp_path)
    loaded = load_tokenizers(tmp_path)
    for one, expected in zip(loaded.encode_source(SENTENCES[:4]), ids, strict=True):
        np.testing.assert_array_equal(one, expected)
    if (backend := getattr(loaded.source, "backend_tokenizer", None)) is not None:
        assert backend.padding is backend.truncation is None  # nor in what is written from it
