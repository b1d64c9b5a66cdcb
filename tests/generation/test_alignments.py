"""Alignments of translations: what each system's attention gives, from subwords to words, pieces, the command line."""

from __future__ import annotations

import json

import pytest
import torch
from helpers.contract import PARTLY_ELSEWHERE, assert_same
from helpers.foreign_translators import FAMILIES
from helpers.toy_translators import SENTENCES, bpe, our_model
from typer.testing import CliRunner

from hf_mlnmt import UserError
from hf_mlnmt.cli import app
from hf_mlnmt.data.processing import TextProcessing
from hf_mlnmt.data.tokenizer import Tokenizers, train_tokenizer
from hf_mlnmt.generation import TranslationPipeline
from hf_mlnmt.generation.translating import searching
from hf_mlnmt.generation.translating.alignments import SourceAttention, to_pharaoh, words_of_source, words_of_target
from hf_mlnmt.generation.translating.loading import Parts


def test_every_system_has_attention_over_the_source(model, member, batch):
    before = model.config._attn_implementation, {name: value.clone() for name, value in model.state_dict().items()}
    weights = SourceAttention(model)(**batch.inputs)
    assert weights.shape == (*batch.target.shape, batch.source.shape[1])
    assert (weights[:, :, batch.source_mask[0] == 0] == 0).all()
    assert (weights.masked_select(batch.source_mask[:, None] == 0) == 0).all()
    if member.system not in PARTLY_ELSEWHERE:
        assert_same(weights.sum(-1), torch.ones(batch.target.shape, dtype=weights.dtype))
    assert model.config._attn_implementation == before[0]
    assert all(torch.equal(value, before[1][name]) for name, value in model.state_dict().items())


def of_target(tokenizer, ids):
    """The word of each id: a word begins where the decoded text has one more. None for what shows nothing."""
    words, before = [], []
    for end in range(1, len(ids) + 1):
        now = tokenizer.decode(ids[:end], skip_special_tokens=True).split()
        words.append(len(now) - 1 if now != before else None)
        before = now
    return words


def of_source(tokenizer, ids, text):
    """The word of each id: its pieces spell it, one after the other. None for what is no part of the text."""
    words, at, rest, left = [], -1, "", text.split()
    for token in tokenizer.convert_ids_to_tokens(ids):
        shown = token.replace("\u2581", "").replace("\u0120", "")
        following = left[at + 1] if not rest and at + 1 < len(left) else rest
        if not shown or not following.startswith(shown):
            words.append(None)
            continue
        at, rest = at + (not rest), following[len(shown) :]
        words.append(at)
    return words


@torch.no_grad()
def naive(model, source_ids, start, generated, source, target, skipped):
    """The links of one sentence: each token's weights by a call of its own, each word's as sums and means."""
    model.set_attn_implementation("eager")
    sums = [[0.0] * (1 + max(word for word in source if word is not None)) for _ in target]
    for at, word in enumerate(target):
        before = torch.tensor([[start, *generated[: at + skipped]]])
        output = model(input_ids=torch.tensor([source_ids]), decoder_input_ids=before, output_attentions=True)
        for column, weight in enumerate(output.cross_attentions[0][0, :, -1].mean(0).tolist()):
            if word is not None and source[column] is not None:
                sums[word][source[column]] += (
                    weight  # the mean over a word's subwords has its largest where the sum has
                )
    model.set_attn_implementation("sdpa")
    return tuple(sorted((sums[word].index(max(sums[word])), word) for word in set(target) - {None}))


@pytest.mark.parametrize("family", ["ours", *FAMILIES])
def test_links_are_those_of_the_weights_word_by_word(ours, foreign, family, monkeypatch):
    folder = ours if family == "ours" else foreign[family]
    pipeline = TranslationPipeline.from_pretrained(folder, device="cpu", fast=False)
    parts, texts = pipeline.parts, SENTENCES[:2]
    options = {**FAMILIES.get(family, {}), "num_beams": 2, "num_return_sequences": 2, "max_new_tokens": 10}
    options["no_repeat_ngram_size"] = 1  # random weights repeat one word for ever
    translations = pipeline(texts, alignments=True, **options)
    search, calls = searching.generate, []
    monkeypatch.setattr(
        searching, "generate", lambda *asked: calls.append((*asked[1:], search(*asked))) or calls[-1][-1]
    )
    links = []
    for text, hypotheses in zip(texts, translations):
        pipeline([text], **options)
        ((source_ids,), arguments, skipped, _, (rows,)) = calls.pop()
        start = arguments.get("decoder_start_token_id", pipeline.model.generation_config.decoder_start_token_id)
        source = of_source(parts.source, source_ids, text)
        for generated, hypothesis in zip(rows, hypotheses, strict=True):
            ends = pipeline.model.generation_config.eos_token_id
            target = of_target(parts.target, [one for one in generated.ids[skipped:] if one != ends])
            expected = naive(pipeline.model, source_ids, start, generated.ids, source, target, skipped)
            assert hypothesis.alignment == expected
            links += expected
    assert len(set(links)) > 1


def test_words_of_bytes_unknown_characters_codes_and_moses():
    for byte_fallback in (True, False):
        tokenizer = train_tokenizer([*SENTENCES, "(two), (two)"], vocab_size=600, byte_fallback=byte_fallback)
        text = "A \u20ac\u20ac man, two\u00a0dogs."
        ids = tokenizer(text)["input_ids"]
        words = words_of_source(tokenizer, [7, *ids], "", text, text)
        assert words[0] is words[-1] is None
        spelt = {}
        for token, word in zip(tokenizer.convert_ids_to_tokens(ids), words[1:]):
            spelt[word] = spelt.get(word, "") + token.strip("\u2581")
        unknown = "<0xE2><0x82><0xAC>" if byte_fallback else "<unk>"
        assert [spelt[word] for word in (0, 1, 2, 3, 4)] == ["A", 2 * unknown, "man,", "two", "dogs."]
        target = words_of_target(tokenizer, ids[:-1], tokenizer.decode(ids[:-1], skip_special_tokens=True))
        # The translation does not show what is unknown: "A man, two dogs." has a word less.
        assert target == ([words[1:-1], [0, None, *target[2:]]][not byte_fallback]), byte_fallback
        assert target[-1] == (4 if byte_fallback else 3)
    moses = TextProcessing("en", moses=True)
    text = "A man, two dogs (red)."
    processed = moses.apply(text)
    assert processed == "A man , two dogs ( red ) ."
    ids = tokenizer(processed)["input_ids"]
    words = words_of_source(tokenizer, ids, "", processed, text)
    target = words_of_target(tokenizer, ids[:-1], moses.undo(tokenizer.decode(ids[:-1])))
    assert words[:-1] == target
    tokens = [token.strip("\u2581") for token in tokenizer.convert_ids_to_tokens(ids)]
    assert [words[tokens.index(mark)] for mark in (",", "(", ")", ".")] == [1, 4, 4, 4]
    prefixed = tokenizer("read this: " + text)["input_ids"]
    words = words_of_source(tokenizer, prefixed, "read this: ", text, text)
    assert [word for word in words if word is not None][:1] == [0]
    assert words[words.index(0) - 1] is None
    assert max(word for word in words if word is not None) == 4
    cut = [*prefixed[:-4], 1]
    assert words_of_source(tokenizer, cut, "read this: ", text, text) == [*words[:-4], None]


def test_words_are_numbered_on_over_the_pieces_of_a_text(pipeline):
    first, second, third = SENTENCES[:3]
    alone = [one[0] for one in pipeline([first, second, third], alignments=True)]
    ((whole,),) = pipeline([f"{first}  {second}\n\n{third}"], alignments=True, split="sentences")
    expected, source, target = set(), 0, 0
    for text, one in zip([first, second, third], alone):
        expected |= {(i + source, j + target) for i, j in one.alignment}
        source, target = source + len(text.split()), target + len(one.text.split())
    assert whole.text.split() == " ".join(one.text for one in alone).split()
    assert set(whole.alignment) == expected
    assert len(whole.alignment) == len(whole.text.split())
    assert pipeline([""], alignments=True)[0][0].alignment == ()
    assert pipeline(first, num_return_sequences=1)[0].alignment is None
    halves = pipeline(first, alignments=True, max_source_tokens=8)[0]
    assert max(i for i, _ in halves.alignment) < len(first.split())


def test_of_a_layer_and_head_that_the_model_names(ours, monkeypatch):
    pipeline = TranslationPipeline.from_pretrained(ours, device="cpu")
    mean = pipeline(SENTENCES[:20], alignments=True)
    monkeypatch.setattr(pipeline.model.generation_config, "alignment_head", [1, 2], raising=False)
    assert pipeline(SENTENCES[:20], alignments=True) != mean
    monkeypatch.setattr(pipeline.model.generation_config, "alignment_head", [1, 0])
    assert pipeline(SENTENCES[:20], alignments=True) == mean
    for wrong in ([2, 1], [1, 3], [0, 0], 5, ["a", "b"]):
        monkeypatch.setattr(pipeline.model.generation_config, "alignment_head", wrong)
        with pytest.raises(UserError, match=r"alignment_head .* layer from 1 to 1 and a head from 1 to 2"):
            pipeline(SENTENCES[:1], alignments=True)


def test_the_last_layer_but_one_is_read():
    parts = Parts(our_model(len(tokenizer := bpe()), decoder_layers=3), Tokenizers(tokenizer, tokenizer))
    default = TranslationPipeline(parts)(SENTENCES[:9], alignments=True)
    found = []
    for layer in (1, 2, 3):
        parts.model.generation_config.alignment_head = [layer, 0]
        found.append(TranslationPipeline(parts)(SENTENCES[:9], alignments=True) == default)
    assert found == [False, True, False]


def test_int8_and_a_model_without_attention(ours):
    pipeline = TranslationPipeline.from_pretrained(ours, device="cpu", dtype="int8")
    assert all(one[0].alignment for one in pipeline(SENTENCES[:3], alignments=True))
    pipeline = TranslationPipeline.from_pretrained(ours, device="cpu")
    with pytest.MonkeyPatch.context() as patch:
        forward = type(pipeline.model).forward

        def without(self, *arguments, **options):
            output = forward(self, *arguments, **options)
            output.cross_attentions = None
            return output

        patch.setattr(type(pipeline.model), "forward", without)
        with pytest.raises(UserError, match="returns no attention over the source"):
            pipeline(SENTENCES[:1], alignments=True)


def test_from_the_shell(ours, pipeline):
    texts = SENTENCES[:3]
    expected = [one[0] for one in pipeline(texts, alignments=True)]

    def lines(*options):
        result = CliRunner().invoke(
            app, ["translate", str(ours), "--alignments", *options], input="\n".join([*texts, ""])
        )
        assert result.exit_code == 0, result.output
        return result.stdout.splitlines()

    links = [to_pharaoh(one.alignment) for one in expected]
    assert lines() == [f"{one.text} ||| {link}" for one, link in zip(expected, links)]
    records = [json.loads(line) for line in lines("--jsonl")]
    assert records == [
        {"source": text, "translation": one.text, "alignment": link} for text, one, link in zip(texts, expected, links)
    ]
    assert lines("--n-best", "1") == [
        f"{i} ||| {one.text} ||| {one.score:.6f} ||| {link}" for i, (one, link) in enumerate(zip(expected, links))
    ]
    (record, *_) = [json.loads(line) for line in lines("--jsonl", "--n-best", "2", "--beams", "2")]
    assert [set(one) for one in record["n_best"]] == [
        {"translation", "alignment", "score", "log_probability", "length"}
    ] * 2
