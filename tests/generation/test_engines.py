"""CTranslate2 in the pipeline: generate()'s translations and scores, and what it cannot do is refused."""

from __future__ import annotations

import re
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from helpers.export_toys import joint_tokenizer, toy_model, two_tokenizers, write_folder
from helpers.foreign_translators import sentencepiece_model
from helpers.originals import LANGUAGES, MAKERS, save
from helpers.toy_translators import SENTENCES
from peft import LoraConfig, get_peft_model
from typer.testing import CliRunner

from hf_mlnmt import UserError
from hf_mlnmt.generation import TranslationPipeline
from hf_mlnmt.generation.translating.ctranslate2 import CTranslate2Search, content_hash, request_of
from hf_mlnmt.generation.translating.pipeline import ENGINES

pytest.importorskip("ctranslate2", reason="pip install 'hf-mlnmt[export]'")

TEXTS = [*SENTENCES[:9], "", SENTENCES[9]]
MARIAN = {"renormalize_logits": True}  # as in the generation_config.json of OPUS-MT models
KINDS = {
    "baseline": {},
    "two vocabularies": {},
    **{name: {**LANGUAGES.get(name, {}), **(MARIAN if "marian" in name else {})} for name in MAKERS if name != "mbart"},
}
SEARCHES = {
    "greedy": {"num_beams": 1},
    "beam 4": {"num_beams": 4, "early_stopping": True},
    "n-best, small windows and batches": {
        "num_beams": 4, "early_stopping": True, "num_return_sequences": 3, "length_penalty": 0.4, "batch_tokens": 40,
    },
    "length 2.0": {"num_beams": 3, "early_stopping": True, "length_penalty": 2.0, "num_return_sequences": 1},
}  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory):
    """Converted models, and nothing of the user's."""
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_MLNMT_CACHE", str(folder))
        yield folder


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    made = {}
    spm, pieces = sentencepiece_model(tmp_path_factory.mktemp("spm"))

    def folder(kind):
        if kind not in made:
            target = tmp_path_factory.mktemp("model")
            if kind in MAKERS:
                made[kind] = save(target, *MAKERS[kind](target, spm, pieces))
            else:
                tokenizers = two_tokenizers() if kind == "two vocabularies" else joint_tokenizer()
                made[kind] = write_folder(target, tokenizers, ending(toy_model(tokenizers)))
        return made[kind]

    return folder


def ending(model):
    """Sentences end by themselves, most of them long before the limit, and early enough to matter."""
    with torch.no_grad():
        model.lm_head.weight[model.config.eos_token_id] *= 1.3
    model.generation_config.max_new_tokens = 30
    return model


def pipeline(folder, engine, **options):
    return TranslationPipeline.from_pretrained(folder, "cpu", engine=engine, **options)


@pytest.mark.parametrize("kind", KINDS)
def test_translations_and_scores_are_generates(folders, kind):
    ours, theirs = (pipeline(folders(kind), engine) for engine in ENGINES)
    ours.model.generation_config.forced_eos_token_id = None  # CTranslate2 forces no end at the limit
    for options in SEARCHES.values():
        expected = ours(TEXTS, **KINDS[kind], **options)
        found = theirs(TEXTS, **KINDS[kind], **options)
        if "num_return_sequences" not in options:
            assert found == expected
            assert len(set(expected)) > 2
            continue
        for row, other in zip(found, expected, strict=True):
            assert [one.text for one in row] == [one.text for one in other]
            for one, two in zip(row, other, strict=True):
                assert one.length == two.length
                assert one.score == pytest.approx(two.score, abs=1e-4)
                assert one.log_probability == pytest.approx(two.log_probability, abs=1e-3)


def test_searches_end_as_with_early_stopping(folders):
    """With many models and lengths: every hypothesis of every search, in its order."""
    tokenizers, lengths = joint_tokenizer(), set()
    for seed in range(4):
        model = toy_model(tokenizers)
        torch.manual_seed(seed)
        for parameter in model.parameters():
            parameter.data += 0.1 * parameter.std() * torch.randn_like(parameter)
        parts = TranslationPipeline.from_pretrained(folders("baseline"), "cpu").parts._replace(model=ending(model))
        ours, theirs = (TranslationPipeline(parts, engine=engine) for engine in ENGINES)
        for penalty, count in ((0.0, 1), (0.6, 5), (1.5, 5)):
            options = {"num_beams": 5, "num_return_sequences": count, "length_penalty": penalty, "early_stopping": True}
            expected, found = ours(TEXTS, **options), theirs(TEXTS, **options)
            assert [[one.text for one in row] for row in found] == [[one.text for one in row] for row in expected]
            lengths |= {one.length for row in expected for one in row}
    assert len(lengths) > 8, "says too little"


REASONS = {
    "do_sample": {"do_sample": True, "seed": 1},
    "no_repeat_ngram_size=3": {"no_repeat_ngram_size": 3},
    "repetition_penalty=1.2": {"repetition_penalty": 1.2},
    "min_new_tokens=4": {"min_new_tokens": 4},
    "what the argument logits_processor asks": {"logits_processor": []},
    "early_stopping=False (CTranslate2's searches end as with True)": {"num_beams": 3, "early_stopping": False},
    "early_stopping=never": {"num_beams": 3, "early_stopping": "never"},
    "length_normalization=gnmt": {"num_beams": 3, "early_stopping": True, "length_normalization": "gnmt"},
    "bad_words_ids without renormalize_logits": {"num_beams": 3, "early_stopping": True, "bad_words_ids": [[7]]},
    "bad_words_ids of several tokens": {"bad_words_ids": [[7, 8]]},
    "several translations with length_penalty=0": {
        "num_beams": 3, "early_stopping": True, "length_penalty": 0.0, "num_return_sequences": 2,
    },
    "eos_token_id=[1, 9]": {"eos_token_id": [1, 9]},
}  # fmt: skip


@pytest.mark.parametrize("reason", REASONS)
def test_what_the_engine_does_not_know_is_refused(folders, reason):
    theirs = pipeline(folders("baseline"), "ctranslate2")
    with pytest.raises(UserError, match=re.escape(f"engine 'ctranslate2' cannot do {reason}")):
        theirs(TEXTS[:3], **REASONS[reason])
    assert "translator" not in vars(theirs.run_batch), "nothing was converted for it"


def test_limits_beyond_the_positions_and_starts_of_their_own_are_not_the_engines(folders):
    model = pipeline(folders("baseline"), "torch").model
    assert "max_new_tokens=99, more than the model's 64" in request_of(model, {"max_new_tokens": 99})
    mbart = pipeline(folders("mbart"), "ctranslate2")  # of 25 languages: the decoder starts with the language's code
    with pytest.raises(UserError, match="decoder_start_token_id"):
        mbart(TEXTS[:2], **LANGUAGES["mbart"])


def test_searches_end_as_the_engine_ends_them(folders):
    ours, theirs = (pipeline(folders("baseline"), engine) for engine in ENGINES)
    assert theirs(TEXTS, num_beams=4) == ours(TEXTS, num_beams=4, early_stopping=True)


def test_forbidden_tokens(folders):
    """Those that would be taken most often."""
    ours, theirs = (pipeline(folders("baseline"), engine) for engine in ENGINES)
    options = {"num_beams": 3, "early_stopping": True, "renormalize_logits": True}
    before = ours(TEXTS, **options)
    sources = ours.parts.source(SENTENCES[:9])["input_ids"]
    found = ours.run_batch(sources, {"num_beams": 3, "num_return_sequences": 1}, 0, False)
    ids = [index for row in found for index in row[0].ids if index != ours.model.config.eos_token_id]
    options["bad_words_ids"] = [[index] for index in sorted(set(ids), key=ids.count)[-3:]]
    expected = ours(TEXTS, **options)
    assert expected != before
    assert theirs(TEXTS, **options) == expected


@pytest.mark.parametrize("kind", ["marian", "bart"])
def test_no_end_is_forced_at_the_limit(folders, kind):
    """generate() puts one there; the text is the same."""
    ours, theirs = (pipeline(folders(kind), engine) for engine in ENGINES)
    options = {**MARIAN, "num_beams": 1, "num_return_sequences": 1, "max_new_tokens": 5}
    expected, found = ours(TEXTS, **options), theirs(TEXTS, **options)
    same = [one[0].text.startswith(two[0].text) for one, two in zip(found, expected, strict=True)]
    assert all(same)
    assert not all(one[0].finished for one in found)


def test_int8(folders):
    """By its own products: near float32's log probabilities, and not the same."""
    exact, rounded = (pipeline(folders("baseline"), "ctranslate2", dtype=dtype) for dtype in ("auto", "int8"))
    options = {"num_beams": 1, "num_return_sequences": 1}
    means = []
    for pipe in (exact, rounded):
        rows = [row[0] for row in pipe(TEXTS[:4], **options)]
        means.append(sum(one.log_probability for one in rows) / sum(one.length for one in rows))
    # Where a processor has no VNNI products of int8 saturate, and these toys have large weights.
    assert 0 < abs(means[0] - means[1]) < 1


def test_models_that_it_cannot_run(tmp_path):
    tokenizers = joint_tokenizer()
    folder = write_folder(tmp_path, tokenizers, toy_model(tokenizers, "s-agg"))
    with pytest.raises(UserError, match=r"engine 'ctranslate2' cannot run .*it lacks S-Agg: the decoder reads"):
        pipeline(folder, "ctranslate2")
    with pytest.raises(UserError, match="bfloat16 on a CPU"):
        pipeline(folder, "ctranslate2", dtype="bfloat16")


def test_multi_level_supervision_goes_as_its_main_decoder(tmp_path):
    tokenizers = joint_tokenizer()
    folder = write_folder(tmp_path, tokenizers, ending(toy_model(tokenizers, "ms-1")))
    expected = pipeline(folder, "torch")(TEXTS, num_beams=1)
    assert pipeline(folder, "ctranslate2")(TEXTS, num_beams=1) == expected


def test_which_engine(folders, monkeypatch):
    with pytest.raises(UserError, match=r"engine 'ctranslate': unknown.*did you mean 'ctranslate2'"):
        pipeline(folders("baseline"), "ctranslate")
    search = TranslationPipeline.from_pretrained(folders("baseline"), "cpu").run_batch
    assert not isinstance(search, CTranslate2Search)
    monkeypatch.setattr("hf_mlnmt.generation.translating.pipeline.installed", lambda: False)
    with pytest.raises(UserError, match=r"hf-mlnmt\[export\]"):
        pipeline(folders("baseline"), "ctranslate2")


def test_a_cache_that_cannot_be_written(folders, monkeypatch):
    monkeypatch.setenv("HF_MLNMT_CACHE", "/dev/null/cache")
    with pytest.raises(UserError, match="cannot load"):
        pipeline(folders("baseline"), "ctranslate2")(TEXTS, num_beams=1)


def test_a_model_is_converted_once_by_several_at_once(folders, tmp_path, monkeypatch, caplog):
    """Each has a search of its own, as processes do."""
    monkeypatch.setenv("HF_MLNMT_CACHE", str(tmp_path))
    searches = [pipeline(folders("baseline"), "ctranslate2") for _ in range(4)]
    together, seen, exists = threading.Barrier(4, timeout=10), threading.local(), Path.exists

    def asked(path):
        found = exists(path)
        if path.parent.name == "ctranslate2" and not hasattr(seen, "it"):
            seen.it = together.wait()  # no one has made it yet
        return found

    monkeypatch.setattr(Path, "exists", asked)
    with ThreadPoolExecutor(4) as threads:
        texts = list(threads.map(lambda translate: translate(TEXTS[:2], num_beams=1), searches))
    assert texts == [texts[0]] * 4
    assert caplog.text.count("converted for CTranslate2, once, into") == 1


def test_from_the_command_line(folders):
    import typer

    from hf_mlnmt.cli.translate import translate

    app = typer.Typer()
    app.command()(translate)
    texts = "\n".join(TEXTS)
    found = [
        CliRunner().invoke(app, [str(folders("baseline")), "--beams", "4", "--engine", engine, *more], input=texts)
        for engine, more in (("torch", ["--early-stopping", "true"]), ("ctranslate2", []))
    ]
    assert found[0].stdout == found[1].stdout
    assert found[0].exit_code == found[1].exit_code == 0


def test_what_is_changed_or_put_around_the_model_later_counts(folders):
    ours, theirs = (pipeline(folders("baseline"), engine) for engine in ENGINES)
    before = theirs(TEXTS)
    for translate in (ours, theirs):
        with torch.no_grad():
            translate.model.lm_head.weight.data[5] *= 4
    assert theirs(TEXTS) == ours(TEXTS) != before
    other = pipeline(folders("baseline"), "torch").model
    ours.model = theirs.model = other
    assert theirs(TEXTS) == ours(TEXTS) == before
    hook = theirs.model.register_forward_hook(lambda module, given, output: None)
    with pytest.raises(UserError, match=r"cannot run .*: forward hooks"):
        theirs(TEXTS)
    hook.remove()
    get_peft_model(theirs.model, LoraConfig(r=2, target_modules=["fc1"]))
    with pytest.raises(UserError, match="parts of the package peft"):
        theirs(TEXTS)


def test_the_hash_is_of_the_content():
    tokenizers = joint_tokenizer()
    tokens = [["a", "b"], ["a", "b"]]
    first = content_hash(toy_model(tokenizers), tokens)
    assert content_hash(toy_model(tokenizers), tokens) == first
    assert content_hash(toy_model(tokenizers, norm_position="pre"), tokens) != first
    assert content_hash(toy_model(tokenizers), [["a", "b"], ["b", "a"]]) != first
    changed = toy_model(tokenizers)
    with torch.no_grad():
        changed.model.decoder.layers[0].feed_forward.fc1.bias[0] += 1e-6
    assert content_hash(changed, tokens) != first
