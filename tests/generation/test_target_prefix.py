"""What a translation begins with: against everything that a model can say, in every family, rows, the shell; rules
against repetition."""

from __future__ import annotations

import pytest
import torch
from helpers.foreign_translators import FAMILIES
from helpers.toy_translators import SENTENCES, our_model
from helpers.toy_words import EXACT, everything, spelt, toy_pipeline, toy_tokenizer
from typer.testing import CliRunner

from hf_mlnmt import UserError, search
from hf_mlnmt.cli import app
from hf_mlnmt.data.processing import TextProcessing
from hf_mlnmt.data.tokenizer import Tokenizers, train_tokenizer
from hf_mlnmt.generation import TranslationPipeline
from hf_mlnmt.generation.constraints.lexical_constraints import Asked, PrefixProcessor, Spelling
from hf_mlnmt.generation.translating.loading import Parts

PREFIXES = {  # what is followed to the token, and what may be spelt by any
    "a": ((), " a"),
    "ab": ((), " ab"),
    "a b": ((4,), " b"),
    "ab ": ((4, 7), " "),
    "bab a": ((5, 8), " a"),
    "b a ": ((5, 4), " "),
}


@pytest.mark.parametrize("prefix", PREFIXES)
def test_the_best_of_all_that_begin_with_it_are_found(prefix):
    pipeline = toy_pipeline()
    ids, rest = PREFIXES[prefix]
    allowed = [
        (score, row)
        for score, row in everything(pipeline, "a b ab")
        if row[: len(ids)] == ids and spelt(row[len(ids) :]).startswith(rest)
    ]
    found = pipeline(["a b ab"], target_prefix=prefix, num_return_sequences=5, **EXACT)[0]
    assert [one.text for one in found] == [spelt(row).strip() for _, row in allowed[:5]]
    assert [one.score for one in found] == pytest.approx([score for score, _ in allowed[:5]], abs=1e-5)
    assert all(f"{one.text} ".startswith(prefix) for one in found)


@pytest.mark.parametrize("kind", ["bpe", "unigram", "bpe without bytes"])
def test_tokens_that_can_spell_the_rest_of_a_word(kind):
    text = [*SENTENCES, "\u20ac"] if "without" in kind else SENTENCES
    tokenizer = train_tokenizer(text, kind.split()[0], 400, byte_fallback="without" not in kind)
    spelling, vocabulary = Spelling(tokenizer), tokenizer.get_vocab()
    for prefix in ("A ma", "The gree", "A \u20ac"):
        ids, rest = spelling.prefix(prefix, TextProcessing(), "")
        assert tokenizer.decode(ids) == prefix.split()[0]
        assert rest.decode() == " " + prefix.split()[1]
        allowed = spelling.continuing(rest)
        pieces = {token.replace("\u2581", " ") for token in vocabulary if not token.startswith("<")}
        own = {piece for piece in pieces if piece.startswith(rest.decode()) or rest.decode().startswith(piece)}
        shown = {tokenizer.convert_ids_to_tokens(one).replace("\u2581", " ") for one in allowed}
        assert {one for one in shown if not one.startswith("<0x")} <= own
        assert own - shown == set() or "\u20ac" in prefix
        assert ("<0x20>" in shown) == (kind != "bpe without bytes")
    if "without" not in kind:
        (first,) = {tokenizer.convert_ids_to_tokens(one) for one in spelling.continuing("\u20ac".encode())}
        assert first == "<0xE2>"
        second = [tokenizer.convert_ids_to_tokens(one) for one in spelling.continuing("\u20ac".encode()[1:])]
        assert second == ["<0x82>"]
    else:
        with pytest.raises(UserError, match="line 3: 'A \u2122' has characters that are not in the model's vocabulary"):
            spelling.prefix("A \u2122", TextProcessing(), "line 3")


@pytest.mark.parametrize("family", ["ours", "ours_multilingual", *FAMILIES])
def test_of_each_family(ours, ours_multilingual, foreign, family):
    """Each text has its own, in whatever order; the score is that of the whole translation."""
    folder = {"ours": ours, "ours_multilingual": ours_multilingual}.get(family) or foreign[family]
    options = {**FAMILIES.get(family, {"target_language": "de"} if "multi" in family else {})}
    options |= {"num_beams": 1 if family in ("ours", "m2m100") else 3, "max_new_tokens": 12}
    texts = [*SENTENCES[:3], "", SENTENCES[3]]
    prefixes = ["", "The red hou", "A man ", "A", "Two d"]
    pipeline = TranslationPipeline.from_pretrained(folder, device="cpu")
    found = pipeline(texts, target_prefix=prefixes, num_return_sequences=1, **options)
    free = pipeline(texts, **options)
    assert found[0][0].text == free[0]
    assert found[3][0].text == ""
    for text, prefix, (one,) in zip(texts, prefixes, found):
        assert not text or f"{one.text} ".startswith(prefix)
        alone = pipeline(text, target_prefix=prefix, num_return_sequences=1, **options)[0]
        assert alone.text == one.text
        assert alone.log_probability == pytest.approx(one.log_probability, abs=1e-4)
    assert pipeline(texts, target_prefix=prefixes, batch_tokens=20, **options) == [one[0].text for one in found]
    assert list(pipeline.stream(texts, window=2, target_prefix=prefixes, **options)) == [one[0].text for one in found]
    with pytest.raises(UserError, match=r"takes [12] tokens and more"):
        pipeline(texts[:1], target_prefix="A man", **{**options, "max_new_tokens": 1 + ("target_language" in options)})


def test_sampled_with_text_processing_and_in_pieces(pipeline):
    drawn = pipeline(SENTENCES[:5], target_prefix="The re", do_sample=True, draws="text", seed=1)
    assert len(set(drawn)) > 1
    assert all(text.startswith("The re") for text in drawn)
    assert all(
        one.text.startswith("The re")
        for one in pipeline(SENTENCES[0], target_prefix="The re", do_sample=True, num_return_sequences=3)
    )
    first, second = SENTENCES[:2]
    whole = pipeline(f"{first} {second}", target_prefix="Two men", split="sentences")
    assert whole == f"{pipeline(first, target_prefix='Two men')} {pipeline(second)}"
    both = pipeline([first, f"{first} {second}"], target_prefix=["", ("Two men", "The re")], split="sentences")
    assert both[1] == " ".join(pipeline([first, second], target_prefix=["Two men", "The re"]))
    with pytest.raises(UserError, match="line 2: holds several sentences, and the line's 2 sentences or parts"):
        pipeline([first, f"{first} {second}"], target_prefix="A man. A dog.", split="sentences")
    tokenizer = train_tokenizer([*SENTENCES, "(a) , (a) ,"], vocab_size=500)
    moses = TextProcessing("en", moses=True)
    processed = TranslationPipeline(
        Parts(our_model(len(tokenizer)), Tokenizers(tokenizer, tokenizer, {"source": moses, "target": moses}))
    )
    assert processed(first, target_prefix="A man, a (re").startswith("A man, a (re")


def test_what_is_refused(pipeline):
    for wrong in (3, ["A", 3], {"A": "B"}):
        with pytest.raises(UserError, match="neither a text for all nor a list of texts"):
            pipeline(SENTENCES[:2], target_prefix=wrong)
    for wrong in ("\0", "A \x1b[31m", "A\x7f", ["A", "b\x08"], ["A", ("B", "\x0e")], ("\x01",)):
        with pytest.raises(UserError, match=r"^target_prefix: .* has a control character"):
            pipeline(SENTENCES[:2], target_prefix=wrong)
    with pytest.raises(UserError, match=r"^prefix: .* has a control character"):
        pipeline(SENTENCES[:2], prefix="into German\0: ")
    with pytest.raises(UserError, match="target_prefix: 1 rows for 2 texts"):
        pipeline(SENTENCES[:2], target_prefix=["A"])
    with pytest.raises(UserError, match="1 given, but there is a text 2"):
        list(pipeline.stream(SENTENCES[:2], target_prefix=["A"]))
    with pytest.raises(UserError, match="3 given for 2 texts"):
        list(pipeline.stream(SENTENCES[:2], target_prefix=["A"] * 3))


def invoke(*arguments, **options):
    return CliRunner().invoke(app, ["translate", *map(str, arguments)], **options)


def test_from_the_shell(ours, pipeline, tmp_path):
    texts, prefixes = SENTENCES[:3], ["The re", "", "A "]
    (tmp_path / "prefixes").write_text("\n".join([*prefixes, ""]))
    asked = {"input": "\n".join([*texts, ""])}
    expected = pipeline(texts, target_prefix=prefixes)
    assert invoke(ours, "--prefix-file", tmp_path / "prefixes", **asked).stdout.splitlines() == expected
    assert invoke(ours, "--target-prefix", "The re", **asked).stdout.splitlines() == pipeline(
        texts, target_prefix="The re"
    )
    both = invoke(ours, "--target-prefix", "A", "--prefix-file", tmp_path / "prefixes", **asked)
    assert "leave one out" in str(both.exception or both.output)
    (tmp_path / "prefixes").write_text("A\n")
    few = invoke(ours, "--prefix-file", tmp_path / "prefixes", "-o", tmp_path / "out", **asked)
    assert "1 given" in str(few.exception or few.output)
    assert not (tmp_path / "out").exists()


RULES = {"no_repeat_ngram_size": 2, "repetition_penalty": 3, "min_new_tokens": 15}


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("beams", [1, 3])
def test_rules_against_repetition_are_those_of_generate_on_the_fast_loops(ours, pipeline, name, beams, monkeypatch):
    texts, calls, run = SENTENCES[:6], [], search.run
    monkeypatch.setattr(search, "run", lambda *arguments: (calls.append(run(*arguments)), calls[-1])[1])
    expected = pipeline(texts, num_beams=beams, generate={name: RULES[name] * (1.0 if "penalty" in name else 1)})
    assert pipeline(texts, num_beams=beams, **{name: RULES[name]}) == expected
    assert [found is None for found in calls] == [False, False]
    assert pipeline(texts, num_beams=beams) != expected or name == "min_new_tokens"
    option = {"no_repeat_ngram_size": "--no-repeat-ngram"}.get(name, "--" + name.replace("_", "-"))
    lines = invoke(ours, option, RULES[name], "-b", beams, input="\n".join([*texts, ""])).stdout.splitlines()
    assert lines == expected


def test_rows_that_leave_dead_ends_and_tokens_that_a_rule_forbade():
    spelling = Spelling(toy_tokenizer())
    rules = PrefixProcessor(spelling, [Asked([4], b""), Asked([5, 7], b"")], 0)
    allowed = rules(torch.tensor([[3], [3]]), torch.zeros(2, 10)).isfinite()
    assert allowed.nonzero().tolist() == [[0, 4], [1, 5]]
    rules.keep_rows(torch.tensor([1]))
    scores = rules(torch.tensor([[3, 5]]), torch.full((1, 10), -torch.inf))
    assert scores.isfinite().nonzero().tolist() == [[0, 7]]
    assert scores[0, 7] == 0
    assert spelling.continuing(b" ab") == [9, 4]  # the space alone, " a"; and what goes on behind them
    assert spelling.continuing(b" ac") == []  # " a" could come, but nothing spells "c"
