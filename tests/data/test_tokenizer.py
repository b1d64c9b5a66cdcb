"""Tokenizers: lossless up to normalisation on many scripts, plain AutoTokenizer, special tokens, codes, errors."""

from __future__ import annotations

import json
import unicodedata
from typing import Any

import numpy as np
import pytest
from helpers import fresh
from helpers.texts import TEXTS
from hypothesis import example, given, settings
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from hf_mlnmt.common.errors import UserError, say_once
from hf_mlnmt.data.processing import TextProcessing
from hf_mlnmt.data.tokenizer import (
    Tokenizers,
    encode,
    language_code,
    languages_of,
    load_tokenizers,
    save_tokenizers,
    statistics,
    train_tokenizer,
    with_mask,
)
from hf_mlnmt.data.words import without_invisible

KINDS = [("bpe", True), ("unigram", True)]


def backend_normalized(tokenizer, text: str) -> str:
    return tokenizer.backend_tokenizer.normalizer.normalize_str(text)


def as_read(tokenizer, text: str) -> str:
    """docs/data.md's rule, one character after the other: NFKC where the vocabulary lacks a character and has those."""

    def read(sign: str) -> str:
        new, known = unicodedata.normalize("NFKC", sign), tokenizer.get_vocab()
        raised = unicodedata.decomposition(sign).startswith(("<super>", "<sub>"))
        other = sign not in known and not sign.isspace() and not raised and all(map(known.get, new.replace(" ", "")))
        return new if other else sign

    return "".join(map(read, without_invisible(text)))


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=80, deadline=None)
@given(parts=TEXTS)
@example(parts=["\u0132", "\uff34\uff37\uff4f", " x\xb2"])
def test_decode_of_encode_is_the_normalised_text(trained, kind, parts):
    tokenizer, text = trained[kind], "".join(parts)
    ids = encode(tokenizer, [text])[0]
    expected = backend_normalized(tokenizer, as_read(tokenizer, text))
    assert tokenizer.decode(ids, skip_special_tokens=True) == expected
    assert tokenizer.unk_token_id not in ids.tolist()
    assert ids[-1] == tokenizer.eos_token_id


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=60, deadline=None)
@given(parts=TEXTS)
def test_normalisation_is_what_the_documentation_says(trained, kind, parts):
    text = "".join(part for part in parts if all(unicodedata.category(character) != "Cn" for character in part))
    # Python's split also takes U+001C to U+001F for white space, Unicode does not.
    plain = text.translate(dict.fromkeys(range(28, 32), "x"))
    expected = " ".join(unicodedata.normalize("NFC", plain).replace("▁", " ").split())
    assert backend_normalized(trained[kind], plain) == expected


@pytest.mark.parametrize("kind", [("bpe", False), ("unigram", False)])
def test_without_byte_fallback_the_unknown_is_reported(trained, kind):
    tokenizer = trained[kind]
    assert statistics(tokenizer, ["Der Mann sieht die Frau.", ""]).unknown == 0
    counts = statistics(tokenizer, ["Der Mann sieht 猫 die Frau."])
    assert counts.unknown == 1
    assert counts.words == 6


def plain(model: Any, normalizer: Any = None) -> PreTrainedTokenizerFast:
    """A tokenizer as imports make them, which changes no character."""
    backend = Tokenizer(model)
    backend.pre_tokenizer, backend.normalizer = pre_tokenizers.WhitespaceSplit(), normalizer
    return PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="<unk>", eos_token="</s>")


IDS = {"<unk>": 0, "</s>": 1, "caf\xe9": 2, "c": 3, "a": 4, "f": 5, "\xe9": 6}
OF_MARKS = {"<unk>": 0, "</s>": 1, "cafe\u0301": 2, "c": 3, "a": 4, "f": 5, "e": 6, "\u0301": 7}
PLAIN = {
    "words": (models.WordLevel(IDS, unk_token="<unk>"), [2]),
    "merges": (models.BPE(IDS, [], unk_token="<unk>"), [3, 4, 5, 6]),
    "unigram": (models.Unigram([(token, -len(token)) for token in IDS], 0, False), [2]),
    "joined by itself": (models.WordLevel(IDS, unk_token="<unk>"), [2]),
    "its marks stand apart too": (models.WordLevel(OF_MARKS, unk_token="<unk>"), [2]),
}


@pytest.mark.parametrize("name", PLAIN)
def test_marks_apart_from_their_characters_are_joined_where_a_vocabulary_has_them_so(name, caplog):
    """Text of macOS (NFD), by both ways to ids and by a tokenizer that Transformers calls; said once."""
    model, expected = PLAIN[name]
    tokenizer = plain(model, normalizers.NFC() if name == "joined by itself" else None)
    slow = type("Slow", (PreTrainedTokenizerFast,), {})(tokenizer_object=tokenizer.backend_tokenizer, unk_token="<unk>")
    for _ in range(2):
        say_once.cache_clear()
        caplog.clear()
        for each in (tokenizer, slow):
            assert [ids.tolist() for ids in encode(each, ["cafe\u0301", "cafe\u0301"])] == [expected] * 2
        flat, lengths = Tokenizers(tokenizer, tokenizer).sides()["source"](["cafe\u0301", "c"])
        assert flat[: lengths[0]].tolist() == expected
        said = [record.message for record in caplog.records if "read joined (NFC)" in record.message]
        assert len(said) == (name in ("words", "merges", "unigram", "joined by itself")), said


def test_moses_cuts_no_marks_off():
    for text in ("le cafe\u0301 est la\u0300", "U\u0308ber"):
        whole = unicodedata.normalize("NFC", text)
        assert TextProcessing("fr", moses=True).apply(text) == whole
        assert TextProcessing("de", lowercase=True).apply(text) == whole.lower()


def test_statistics_by_hand(trained):
    tokenizer = trained["bpe", True]
    counts = statistics(tokenizer, ["the man", "猫"])
    assert (counts.lines, counts.words) == (2, 3)
    assert counts.subwords == 2 + 1 + 3  # the, man; the word's beginning and three bytes
    assert counts.bytes == 3
    assert counts.longest == 4
    assert counts.unknown == 0


def test_every_language_gets_the_mask():
    each = {}
    for language in ("de", "en"):
        each[language] = train_tokenizer(["the man sleeps"] * 3, vocab_size=300)
        each[language].mask_token = None
    with_mask(Tokenizers.of_languages(each))
    assert [tokenizer.mask_token for tokenizer in each.values()] == ["<mask>", "<mask>"]


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
@pytest.mark.parametrize("byte_fallback", [True, False])
def test_special_tokens_codes_and_sizes(trained, kind, byte_fallback):
    tokenizer = trained[kind, byte_fallback]
    tokens = ["<pad>", "</s>", "<unk>", "<s>", "<mask>", "<2de>", "<2pt-BR>"]
    assert tokenizer.convert_tokens_to_ids(tokens) == list(range(7))
    assert tokenizer.convert_ids_to_tokens(list(range(7))) == tokens
    names = ("pad", "eos", "unk", "bos", "mask")
    assert [getattr(tokenizer, f"{name}_token_id") for name in names] == [0, 1, 2, 3, 4]
    assert len(tokenizer) == tokenizer.vocab_size <= 600
    assert sorted(tokenizer.get_vocab().values()) == list(range(len(tokenizer)))
    assert languages_of(tokenizer) == ["de", "pt-BR"]


def test_a_code_in_front_changes_nothing_behind(trained):
    for tokenizer in trained.values():
        plain = tokenizer("The man sees the dog.").input_ids
        assert tokenizer("<2de> The man sees the dog.", split_special_tokens=False).input_ids == [5, *plain]
        assert plain[-1] == 1
        assert tokenizer("", text_target="x").input_ids == [1]


def test_a_corpus_cannot_smuggle_special_tokens_in(trained):
    for tokenizer in trained.values():
        ids = encode(tokenizer, ["the </s> <2de> <pad> man"])[0]
        assert ids.dtype == np.int32
        assert (ids[:-1] > 6).all() or tokenizer.unk_token_id in ids[:-1]
        assert not set(ids[:-1].tolist()) & {0, 1, 3, 4, 5, 6}
        # and the tokenizer is as before for everyone else
        assert 1 in tokenizer("the </s> man", split_special_tokens=False).input_ids[:-1]
        assert 1 in tokenizer.backend_tokenizer.encode("the </s> man").ids[:-1]
    ids = encode(trained["bpe", True], ["the </s> man"])[0]
    assert trained["bpe", True].decode(ids, skip_special_tokens=True) == "the </s> man"


def test_punctuation_keeps_out_of_words(trained):
    for tokenizer in trained.values():
        assert tokenizer.tokenize("the man.")[-1] == "."
        assert tokenizer.tokenize("the man.")[:-1] == tokenizer.tokenize("the man")


def test_plain_auto_tokenizer_in_a_process_without_the_package(trained, tmp_path):
    save_tokenizers(tmp_path, trained["bpe", True])
    text = "The  man\tsees 猫 the dog's cup."
    code = (
        "import sys, json; from transformers import AutoTokenizer; t = AutoTokenizer.from_pretrained(sys.argv[1]);"
        "assert not any(name.startswith('hf_mlnmt') for name in sys.modules);"
        "e = t(sys.argv[2], text_target='x'); print(json.dumps([e.input_ids, e.labels, t.decode(e.input_ids,"
        "skip_special_tokens=True), t.model_max_length, t.clean_up_tokenization_spaces, t.extra_special_tokens]))"
    )
    done = fresh.python("-c", code, str(tmp_path), text, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    ids, labels, decoded, longest, clean_up, codes = json.loads(done.stdout)
    assert ids == trained["bpe", True](text).input_ids
    assert labels[-1] == 1
    assert decoded == "The man sees 猫 the dog's cup."
    assert (longest, clean_up, codes) == (1024, False, ["<2de>", "<2pt-BR>"])


def test_saving_and_loading_separate_and_joint(trained, tmp_path):
    source, target = trained["bpe", True], trained["unigram", False]
    (tmp_path / "config.json").write_text("{}")
    processing = {"target": TextProcessing("de", moses=True)}
    save_tokenizers(tmp_path, source, target, processing)
    loaded = load_tokenizers(tmp_path)
    assert not loaded.joint
    assert loaded.source.get_vocab() == source.get_vocab()
    assert loaded.target.get_vocab() == target.get_vocab()
    assert loaded.processing == {"source": TextProcessing(), "target": TextProcessing("de", moses=True)}
    # a joint one over it leaves nothing of the separate ones
    loaded.target, loaded.processing = loaded.source, {}
    loaded.save(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "config.json",
        "tokenizer.json",
        "tokenizer_config.json",
    ]
    assert load_tokenizers(tmp_path).joint


def test_ids_of_both_sides_and_back(trained):
    tokenizers = Tokenizers(
        trained["bpe", True], trained["unigram", True], {"target": TextProcessing("de", moses=True)}
    )
    text = "Der Mann, der die Frau sieht, lacht."
    assert tokenizers.encode_source(["the man"], language="de")[0].tolist() == [
        5,
        *tokenizers.encode_source(["the man"])[0],
    ]
    ids = tokenizers.encode_target([text, "Ja."])
    assert tokenizers.target.decode(ids[0], skip_special_tokens=True) == "Der Mann , der die Frau sieht , lacht ."
    assert tokenizers.decode_target(ids) == [text, "Ja."]


def test_another_models_tokenizer_is_called_as_it_is(trained):
    class Other(type(trained["bpe", True])):
        def __call__(self, text=None, text_target=None, **options):
            return {"input_ids": [[7] if text_target else [8]]}

    other = Other(tokenizer_object=trained["bpe", True].backend_tokenizer)
    assert encode(other, ["x"])[0].tolist() == [8]
    assert encode(other, ["x"], target=True)[0].tolist() == [7]


def test_language_codes(trained):
    tokenizer = trained["bpe", True]
    assert language_code("de") == "<2de>"
    assert language_code("pt-BR", tokenizer) == "<2pt-BR>"
    with pytest.raises(UserError, match=r"'fr'.*de, pt-BR"):
        language_code("fr", tokenizer)
    with pytest.raises(UserError, match="letters"):
        language_code("d e")
    with pytest.raises(UserError, match="no language codes"):
        language_code("fr", train_tokenizer(["a b c"] * 3, vocab_size=300))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"vocab_size": 261}, r"261 leaves no room.*byte_fallback"),
        ({"vocab_size": 10**12}, "vocab_size: 1000000000000 is more than a million"),
        ({"alphabet_limit": 10**20}, "alphabet_limit: 10+ is more than a million"),
        ({"vocab_size": 270}, r"270 cannot hold the \d+ entries"),
        ({"vocab_size": 8, "byte_fallback": False}, "cannot hold"),
        ({"kind": "wordpiece"}, "'bpe' or 'unigram'"),
        ({"languages": ["de", "de"]}, "twice"),
        ({"languages": ["de>"]}, "letters"),
    ],
)
def test_bad_arguments(arguments, message):
    with pytest.raises(UserError, match=message):
        train_tokenizer(["the quick brown fox jumps over the lazy dog"], **arguments)


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
@pytest.mark.parametrize("text", ["a", "猫", "!", "a b", "x" * 50, "the quick brown fox"])
def test_very_little_text(kind, text, caplog):
    tokenizer = train_tokenizer([text], kind, 400)
    said = f"vocab_size: 400 entries were asked for, and this text gives {len(tokenizer)}."
    assert (said in caplog.text) == (len(tokenizer) < 360)
    for known in (text, "the 猫 <0x41> !"):
        assert tokenizer.decode(encode(tokenizer, [known])[0], skip_special_tokens=True) == known


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_no_text(kind):
    for texts in ([], ["", "  "]):
        with pytest.raises(UserError, match="No text"):
            train_tokenizer(texts, kind, 1000)


def test_alphabet_limit_sends_rare_characters_to_bytes():
    texts = ["aaaa bbbb"] * 50 + ["猫"]
    limited = train_tokenizer(texts, vocab_size=300, alphabet_limit=3)
    assert "猫" not in limited.get_vocab()
    assert limited.decode(limited("猫").input_ids, skip_special_tokens=True) == "猫"


def test_loading_errors(tmp_path):
    with pytest.raises(UserError, match=r"no tokenizer there"):
        load_tokenizers(tmp_path)
    (tmp_path / "tokenizer.json").write_text('{"version": "1.0", "tru')
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "TokenizersBackend"}')
    with pytest.raises(UserError, match=r"tokenizer\.json: not valid JSON"):
        load_tokenizers(tmp_path)


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_the_same_text_gives_the_same_bytes(kind, texts, monkeypatch):
    """With one thread and with several; also where characters are so rare that the trainer knows no score of them."""
    rare = [*texts[:300], "".join(map(chr, range(0x391, 0x3CA)))]
    for lines, size in ((texts, 600), (rare, 500), (texts[:40], 340)):
        files = set()
        for threads in ("false", "true", "false", "true"):
            monkeypatch.setenv("TOKENIZERS_PARALLELISM", threads)
            files.add(train_tokenizer(lines, kind, size).backend_tokenizer.to_str())
        assert len(files) == 1
