"""The likeliest next words behind a prefix: against all that the model can say, in every family, from the shell; and
samplers."""

from __future__ import annotations

import json
from collections import Counter

import pytest
import torch
from helpers.foreign_translators import FAMILIES
from helpers.toy_translators import SENTENCES, our_model
from helpers.toy_words import END, EXACT, PIECES, toy_pipeline
from typer.testing import CliRunner

from hf_mlnmt import UserError
from hf_mlnmt.cli import app
from hf_mlnmt.data.tokenizer import Tokenizers, train_tokenizer
from hf_mlnmt.generation import TranslationPipeline
from hf_mlnmt.generation.constraints.lexical_constraints import Asked, NextWords, Spelling
from hf_mlnmt.generation.translating.loading import Parts

DEEPEST = 4  # tokens of a word


@torch.no_grad()
def all_words(pipeline, text: str, ids: tuple[int, ...], rest: str) -> dict[str, float]:
    """P(word behind `ids`) of all short words that begin with `rest`, each summed over all ways to spell it."""
    source, words = pipeline.parts.source(text, return_tensors="pt")["input_ids"], {}
    tokens = [END, *PIECES]
    closing = [token for token in tokens if token == END or PIECES[token].startswith(" ")]

    def follow(spelt: str, before: tuple[int, ...], probability: float) -> None:
        logits = pipeline.model(input_ids=source, decoder_input_ids=torch.tensor([[3, *before]])).logits[0, -1]
        allowed = closing if rest == " " and not spelt else tokens
        shares = dict(zip(allowed, (probability * logits[allowed].softmax(-1)).tolist()))
        if spelt or rest == " ":
            words[spelt] = words.get(spelt, 0.0) + sum(shares[token] for token in (closing if spelt else [END]))
        for token in PIECES if len(before) < len(ids) + DEEPEST else ():
            longer = spelt + PIECES[token]
            if token in shares and longer.startswith(rest[: len(longer)]) and not (spelt and token in closing):
                follow(longer, (*before, token), shares[token])

    follow("", ids, 1.0)
    found = Counter[str]()
    for word, share in words.items():
        found[word.strip()] += share * (word.startswith(rest) or not word)
    total = found.total() if rest.strip() else 1.0
    return {word: share / total for word, share in found.items()}


@pytest.mark.parametrize(("prefix", "ids", "rest"), [("", (), ""), ("bab a ", (5, 8, 4), " "), ("a b", (4,), " b")])
def test_words_and_their_probabilities_are_those_of_the_model(prefix, ids, rest):
    pipeline = toy_pipeline()
    expected = sorted(all_words(pipeline, "a b ab", ids, rest).items(), key=lambda pair: -pair[1])[:4]
    options = {"bad_words_ids": EXACT["bad_words_ids"], "max_new_tokens": 12}
    found = pipeline("a b ab", target_prefix=prefix, alternatives=20, **options)[:4]
    assert [best.word for best in found] == [word for word, _ in expected]
    assert [best.probability for best in found] == pytest.approx([share for _, share in expected], rel=0.05)
    for best in found:  # each with what the search finds behind it
        begins = f"{' '.join(prefix.split()[: len(prefix.split()) - bool(rest.strip())])} {best.word}".strip()
        assert f"{best.text} ".startswith(f"{begins} ")
        if best.text != begins:
            assert best.text == pipeline("a b ab", target_prefix=f"{begins} ", **options)


@pytest.mark.parametrize("family", ["ours_multilingual", "marian", "nllb", "t5"])
def test_of_each_family(ours_multilingual, foreign, family):
    """A text alone and in a batch, in whatever order."""
    folder = foreign.get(family, ours_multilingual)
    options = {**FAMILIES.get(family, {"target_language": "de"})}
    options |= {"max_new_tokens": 12, "alternatives": 3}
    texts, prefixes = [SENTENCES[0], "", SENTENCES[1], SENTENCES[2]], ["The ", "A", "A ma", ""]
    pipeline = TranslationPipeline.from_pretrained(folder, device="cpu")
    found = pipeline(texts, target_prefix=prefixes, **options)
    assert [best.text for best in found[1]] == [""]
    for text, prefix, ranked in zip(texts, prefixes, found):
        alone = pipeline(text, target_prefix=prefix, **options)
        assert [best.text for best in alone] == [best.text for best in ranked]
        if text:
            assert 1 <= len({best.word for best in ranked}) == len(ranked) <= 3
            shares = [best.probability for best in ranked]
            assert shares == sorted(shares, reverse=True)
            assert 0 < sum(shares) < 1 + 1e-5
            assert [best.probability for best in alone] == pytest.approx(shares, abs=1e-4)
        for best in ranked if text else ():
            whole = prefix if prefix.endswith(" ") or not prefix else f"{' '.join(prefix.split()[:-1])} "
            assert f"{best.text} ".startswith(f"{whole}{best.word}".strip() + " ")


def test_a_script_without_spaces():
    """There a word is what a token spells."""
    tokenizer = train_tokenizer(["今天天气很好。", "昨天天气不好。", "今天很好。"], vocab_size=300)
    pipeline = TranslationPipeline(Parts(our_model(len(tokenizer)), Tokenizers(tokenizer, tokenizer)))
    found = pipeline("今天很好。", target_prefix="今天", alternatives=4, max_new_tokens=12)
    assert len(found) == 4
    for best in found:
        assert best.text.replace(" ", "").startswith(f"今天{best.word}")
        assert len(best.word) <= 4


def test_from_the_shell_and_what_is_refused(ours, pipeline, tmp_path):
    def invoke(*arguments):
        return CliRunner().invoke(app, ["translate", str(ours), *arguments], input=f"{SENTENCES[0]}\n")

    (line,) = invoke("--alternatives", "2", "--target-prefix", "The ", "--jsonl").stdout.splitlines()
    expected = pipeline(SENTENCES[0], target_prefix="The ", alternatives=2)
    given = [(one["word"], one["translation"]) for one in json.loads(line)["n_best"]]
    assert given == [(best.word, best.text) for best in expected]
    assert str(invoke("--alternatives", "2").exception) == "--alternatives needs --jsonl."
    for name, value in {"do_sample": True, "mbr": 4, "num_return_sequences": 2}.items():
        with pytest.raises(UserError, match=f"leave {name} out"):
            pipeline(SENTENCES[0], alternatives=2, **{name: value})
    with pytest.raises(UserError, match="alternatives of line 1: it has 2 sentences or parts"):
        pipeline(f"{SENTENCES[0]} {SENTENCES[1]}", alternatives=2, split="sentences")


def test_samplers_of_a_call(pipeline):
    """Five translations, none twice; of one standard deviation fewer tokens than of all."""
    options = {"do_sample": True, "max_new_tokens": 8, "seed": 1}
    found = pipeline(SENTENCES[:2], num_return_sequences=5, without_replacement=True, top_n_sigma=1.5, **options)
    assert [len({best.log_probability for best in ranked}) for ranked in found] == [5, 5]
    least = pipeline(SENTENCES[:2], top_n_sigma=1e-3, **options)
    assert least == pipeline(SENTENCES[:2], num_beams=1, max_new_tokens=8)
    for wrong in ({"without_replacement": True}, {"top_n_sigma": 1.0, "do_sample": False}, {"top_n_sigma": 0.0}):
        with pytest.raises(UserError, match=next(iter(wrong))):
            pipeline(SENTENCES[:2], **{**options, **wrong})


def test_what_is_not_allowed_counts_and_what_spells_nothing_is_no_word():
    """Scores go through as they are while the beginning is not spelt; tokens without text are never chosen."""
    spelling = Spelling(toy_pipeline().parts.target)
    scores = torch.randn(1, len(spelling.bytes), generator=torch.Generator().manual_seed(1))
    spells = torch.zeros_like(scores, dtype=torch.bool)
    spells[0, [token for _, token in spelling.ordered]] = True
    for rest, expected in ((b" do", scores), (b"", scores.log_softmax(-1))):
        found = NextWords(spelling, [Asked([], rest)], 0, [END])(torch.tensor([[0]]), scores.clone())
        assert torch.equal(found[spells], expected[spells])
        spells[0, END] = True  # the end has a probability of its own
        assert found[~spells].isneginf().all()
        spells[0, END] = False
    rule = NextWords(spelling, [Asked([], b"")], 0, [END])
    rule(torch.tensor([[0]]), scores.clone())
    for _, token in spelling.ordered[:5]:  # inside of a word
        silent = ~spells & (torch.arange(len(spelling.bytes)) != END)
        assert rule(torch.tensor([[0, token]]), scores.clone())[silent].isneginf().all()
