"""The pipeline against generate() one sentence at a time, for our models and every foreign family."""

import logging

import numpy as np
import pytest
import torch
from helpers.searching import compiled_step
from helpers.toy_translators import SENTENCES, bpe, our_model, sentence
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, GenerationConfig

from hf_mlnmt import UserError
from hf_mlnmt.generation import Hypothesis, TranslationPipeline
from hf_mlnmt.generation.translating import batches
from hf_mlnmt.search.cpu.int8 import compiled

FAMILIES = {  # options of the pipeline; the same by hand: source code, prefix, arguments from the tokenizer
    "marian": ({}, None, "", lambda t: {}),
    "marian-multilingual": ({"target_language": "fra"}, None, ">>fra<< ", lambda t: {}),
    "m2m100": (
        {"source_language": "en", "target_language": "de"}, "en", "",
        lambda t: {"forced_bos_token_id": t.get_lang_id("de")},
    ),
    "nllb": (
        {"source_language": "eng_Latn", "target_language": "deu_Latn"}, "eng_Latn", "",
        lambda t: {"forced_bos_token_id": t.convert_tokens_to_ids("deu_Latn")},
    ),
    "mbart": (
        {"source_language": "en_XX", "target_language": "ro_RO"}, "en_XX", "",
        lambda t: {"decoder_start_token_id": t.convert_tokens_to_ids("ro_RO")},
    ),
    "mbart50": (
        {"source_language": "en_XX", "target_language": "ro_RO"}, "en_XX", "",
        lambda t: {"forced_bos_token_id": t.convert_tokens_to_ids("ro_RO")},
    ),
    "t5": ({"source_language": "en", "target_language": "de"}, None, "translate English to German: ", lambda t: {}),
}  # fmt: skip


@pytest.mark.parametrize("family", FAMILIES)
def test_foreign_families_as_by_hand(foreign, family):
    options, code, prefix, arguments = FAMILIES[family]
    tokenizer = AutoTokenizer.from_pretrained(foreign[family])
    model = AutoModelForSeq2SeqLM.from_pretrained(foreign[family])
    if code:
        tokenizer.src_lang = code
    texts = SENTENCES[4:12]
    expected = []
    for text in texts:
        inputs = tokenizer(prefix + text, return_tensors="pt")
        output = model.generate(**inputs, num_beams=3, **arguments(tokenizer))[0].tolist()
        output = output[2:] if "forced_bos_token_id" in arguments(tokenizer) else output[1:]
        expected.append(tokenizer.decode(output, skip_special_tokens=True))
    for fast in (True, False):
        pipeline = TranslationPipeline.from_pretrained(foreign[family], device="cpu", fast=fast)
        assert pipeline.model.config.model_type.startswith("mlnmt-") == (fast and family != "t5")
        assert pipeline(texts, num_beams=3, batch_tokens=60, **options) == expected
    assert len(set(expected)) > 3


@pytest.mark.parametrize("family", [*FAMILIES, "ours"])
def test_scores_are_the_scores_of_the_search(foreign, ours, family):
    """n-best scores come from a pass of their own; they must be what the beam search itself computed."""
    folder = ours if family == "ours" else foreign[family]
    pipeline = TranslationPipeline.from_pretrained(folder, device="cpu")
    seen = {}
    generate = pipeline.model.generate

    def spy(**arguments):
        output = generate(**arguments, return_dict_in_generate=True, output_scores=True)
        seen["scores"] = output.sequences_scores.view(-1, 3)
        return output

    pipeline.model.generate = spy
    texts = [sentence(seed, words=6) for seed in range(4)]
    options = FAMILIES[family][0] if family != "ours" else {}
    results = pipeline(
        texts, num_beams=4, num_return_sequences=3, length_normalization="gnmt", length_penalty=0.7, **options
    )
    lengths = [len(ids) for ids in pipeline.parts.source(texts)["input_ids"]]
    order = sorted(range(4), key=lambda i: (-lengths[i], i))
    for i, row in zip(order, seen["scores"].tolist(), strict=True):
        for hypothesis, score in zip(results[i], row, strict=True):
            assert isinstance(hypothesis, Hypothesis)
            assert hypothesis.score == pytest.approx(score, abs=2e-4)
        assert [h.score for h in results[i]] == sorted([h.score for h in results[i]], reverse=True)


def test_order_and_batches_change_nothing(pipeline):
    texts = SENTENCES[:40]
    one_by_one = [pipeline(text, num_beams=2) for text in texts]
    assert pipeline(texts, num_beams=2) == one_by_one
    assert pipeline(texts, num_beams=2, batch_tokens=30) == one_by_one
    assert pipeline(texts[::-1], num_beams=2, batch_tokens=200) == one_by_one[::-1]
    assert list(pipeline.stream(iter(texts), window=7, num_beams=2)) == one_by_one


def test_batches_hold_the_token_budget_and_call_generate_once_each(pipeline, monkeypatch):
    shapes = []
    generate = pipeline.model.generate
    monkeypatch.setattr(pipeline.model, "generate", lambda **a: shapes.append(a["input_ids"].shape) or generate(**a))
    pipeline(SENTENCES, batch_tokens=128, num_beams=1)
    assert sum(rows for rows, _ in shapes) == len(SENTENCES)
    assert all(rows * longest <= 128 for rows, longest in shapes)
    assert [longest for _, longest in shapes] == sorted([longest for _, longest in shapes], reverse=True)
    assert len(shapes) < 100


def test_empty_texts_stay_empty(pipeline):
    assert pipeline(["", " \t", "A man.", ""])[0:2] == ["", ""]
    assert pipeline([]) == []
    assert pipeline("") == ""
    assert pipeline([""], num_return_sequences=2) == [[Hypothesis("", 0.0, 0.0, 0)] * 2]


def test_stream_reads_no_further_than_its_window(pipeline):
    read = []

    def source():
        for text in SENTENCES[:6]:
            read.append(text)
            yield text

    results = pipeline.stream(source(), window=2)
    next(results)
    assert len(read) == 2
    next(results), next(results)
    assert len(read) == 4


def test_long_text_is_split_into_its_sentences(pipeline):
    texts = [sentence(seed, words=9) for seed in range(12)]
    long = texts[0] + "\n\n" + "  ".join(texts[1:6]) + " \t" + " ".join(texts[6:])
    translated = [pipeline(text) for text in texts]
    expected = translated[0] + "\n\n" + "  ".join(translated[1:6]) + " \t" + " ".join(translated[6:])
    assert len(pipeline.parts.source(long)["input_ids"]) > 64
    assert pipeline(long) == expected
    assert pipeline([SENTENCES[0], long, SENTENCES[1]])[1] == expected
    assert pipeline(long + "\n\n " + texts[0]) == expected + "\n\n " + translated[0]


def test_n_best_of_a_split_text_ranks_by_rank(pipeline):
    texts = [sentence(seed, words=9) for seed in range(8)]
    options = {"num_beams": 3, "num_return_sequences": 3}
    parts = pipeline(texts, **options)
    whole = pipeline([" ".join(texts)], **options)[0]
    for rank in range(3):
        found = next(h for h in whole if h.text == " ".join(part[rank].text for part in parts))
        assert found.log_probability == pytest.approx(sum(part[rank].log_probability for part in parts), abs=1e-3)
        assert found.length == sum(part[rank].length for part in parts)
        assert found.score == pytest.approx(found.log_probability / found.length)
    assert [h.score for h in whole] == sorted([h.score for h in whole], reverse=True)


def test_every_sentence_of_a_line_is_translated_where_that_is_asked(pipeline, caplog):
    sentences = [text.split(".")[0] + "." for text in SENTENCES[:4]]
    alone = pipeline(sentences)
    texts = [" ".join(sentences[:2]), "", f"{sentences[2]}\n{sentences[3]}  {sentences[0]}", sentences[1]]
    together = pipeline(texts, split="sentences")
    assert together == [" ".join(alone[:2]), "", f"{alone[2]}\n{alone[3]}  {alone[0]}", alone[1]]
    ranked = pipeline(texts, split="sentences", num_return_sequences=2, num_beams=2)
    assert [[type(one.text) for one in of_text] for of_text in ranked] == [[str, str]] * 4
    assert "several sentences" not in caplog.text
    with pytest.raises(UserError, match="split: 'words' is none of long, sentences"):
        pipeline(texts, split="words")


def test_lines_of_several_sentences_that_stay_whole_are_said_once(pipeline, caplog):
    list(pipeline.stream(["A man.", "A man. A dog. A cat.", "Dr. Smith.", "A dog! A cat."], window=1))
    assert caplog.text.count("lines that hold several sentences: 2, the first is line 2; a model of single") == 1


def test_nothing_longer_than_in_training_is_read_at_once(pipeline, caplog, monkeypatch):
    """Though there are positions for it; a call may say otherwise, and all lines are told of once."""
    monkeypatch.setattr(pipeline.model.generation_config, "max_source_tokens", 20, raising=False)
    read, generate = [], pipeline.model.generate
    monkeypatch.setattr(
        pipeline.model, "generate", lambda **given: (read.append(given["input_ids"].shape[1]), generate(**given))[1]
    )
    text = " ".join(sentence(seed, words=15)[:-1] for seed in range(3))
    with caplog.at_level(logging.WARNING):
        pipeline([text, "A man.", text + " and", "la " * 45])
    assert max(read) <= 20
    assert caplog.text.count("longer than the 20 tokens the model reads at once: 3, the first is line 1;") == 1
    read.clear()
    pipeline(text, max_source_tokens=60)
    assert max(read) > 20
    read.clear()
    pipeline(text, split_long=False)
    assert max(read) > 20, "what is not divided would be cut off"


def test_a_search_ends_where_the_positions_end(pipeline, caplog, monkeypatch):
    """Of 64; the generation config of a model may promise more, a call may not."""
    monkeypatch.setattr(pipeline.model.generation_config, "max_new_tokens", 256)
    with caplog.at_level(logging.WARNING):
        (best,) = pipeline("A man.", min_new_tokens=63, num_return_sequences=1)
    assert best.length == 63
    assert "cut there: 1; the model has no more positions" in caplog.text
    for beams in (1, 3):
        assert pipeline(["A man.", "A dog and a cat."], max_new_tokens=64, min_new_tokens=64, num_beams=beams)
    for least, most in ((65, None), (2000, None), (65, 64)):
        asked = {} if most is None else {"max_new_tokens": most}
        with pytest.raises(UserError, match=f"min_new_tokens: {least} is more than"):
            pipeline("A man.", min_new_tokens=least, **asked)
    with pytest.raises(UserError, match="max_new_tokens: 65 is more than the model's 64 positions"):
        pipeline("A man.", max_new_tokens=65)


def test_what_cannot_be_divided_is_cut_off_and_reported(pipeline, caplog, monkeypatch):
    read, generate = [], pipeline.model.generate
    monkeypatch.setattr(
        pipeline.model, "generate", lambda **given: (read.append(given["input_ids"][0]), generate(**given))[1]
    )
    with caplog.at_level(logging.WARNING):
        pipeline(["x" * 5000])
    assert "line 1: " in caplog.text
    assert "the rest is not translated" in caplog.text
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        pipeline([" ".join(SENTENCES[:40])], split_long=False)
    assert "the rest is not translated" in caplog.text
    assert {int(ids[-1]) for ids in read} == {pipeline.model.config.eos_token_id}, "a sentence that ends nowhere"
    assert max(map(len, read)) == pipeline.model.config.max_position_embeddings


def test_outputs_at_the_length_limit_are_reported(pipeline, caplog):
    with caplog.at_level(logging.WARNING):
        results = pipeline(SENTENCES[:20], max_new_tokens=2, num_return_sequences=1)
    cut = sum(not result[0].finished for result in results)
    assert f"reached the length limit and are cut there: {cut};" in caplog.text
    assert max(result[0].length for result in results) == 2
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        pipeline(" ".join(SENTENCES[:3]), max_new_tokens=2, split="sentences")
    assert "reached the length limit and are cut there: 1;" in caplog.text  # of three sentences


def test_without_a_limit_in_the_model_the_positions_are_the_limit(pipeline, monkeypatch):
    """Never Transformers' own 20 tokens; nor does sampling draw from its 50 likeliest."""
    seen = {}
    monkeypatch.setattr(pipeline.model.generation_config, "max_new_tokens", None)
    generate = pipeline.model.generate
    monkeypatch.setattr(pipeline.model, "generate", lambda **a: seen.update(a) or generate(**a))
    pipeline("A man.", do_sample=True)
    assert (seen["max_new_tokens"], seen["top_k"]) == (63, 0)


def test_sampling_repeats_with_its_seed(pipeline):
    first = pipeline(SENTENCES[:5], do_sample=True, top_k=20, temperature=1.5, seed=1)
    assert pipeline(SENTENCES[:5], do_sample=True, top_k=20, temperature=1.5, seed=1) == first
    assert pipeline(SENTENCES[:5], do_sample=True, top_k=20, temperature=1.5, seed=2) != first
    assert pipeline(SENTENCES[:5], do_sample=True, top_k=1, seed=2) == pipeline(SENTENCES[:5], num_beams=1)
    assert pipeline(SENTENCES[:5], do_sample=True, draws="text", seed=2**64 - 1)
    lists = pipeline(SENTENCES[:3], do_sample=True, num_return_sequences=4, seed=2**64 - 1)
    assert [len(hypotheses) for hypotheses in lists] == [4, 4, 4]


def test_a_recorded_normalization_is_the_default(ours, tmp_path):
    AutoTokenizer.from_pretrained(ours).save_pretrained(tmp_path)
    model = AutoModelForSeq2SeqLM.from_pretrained(ours)
    # Not by changing the config made from the model's: Transformers drops unknown fields of such a one on loading.
    ids = {name: getattr(model.config, name) for name in ("pad_token_id", "eos_token_id", "decoder_start_token_id")}
    model.generation_config = GenerationConfig(
        num_beams=4, length_penalty=0.6, length_normalization="gnmt", max_new_tokens=20, **ids
    )
    model.save_pretrained(tmp_path)
    pipeline = TranslationPipeline.from_pretrained(tmp_path, device="cpu")
    result = pipeline(["A man."], num_return_sequences=1)[0][0]
    assert result.score == pytest.approx(result.log_probability / ((5 + result.length) / 6) ** 0.6)
    pipeline.model.generate(**pipeline.parts.source("A man.", return_tensors="pt"))  # plain generate() bears it


RERANKED = {"features": {"length": 1.0}}
REFUSED = [  # options, and what the message says
    ({"num_beams": 0}, "num_beams"),
    ({"num_beams": np.float64(3)}, "num_beams: .* is not a whole number of at least 1"),
    ({"batch_tokens": "many"}, "batch_tokens"),
    ({"num_return_sequences": 5, "num_beams": 2}, "num_beams of at least 5"),
    ({"temperature": 0.5}, "only acts when sampling"),
    ({"min_p": 0.1}, "only acts when sampling"),
    ({"draws": "text"}, "draws only acts when sampling"),
    ({"do_sample": True, "temperature": 0.0}, "above 0"),
    ({"do_sample": True, "temperature": float("inf")}, "temperature: inf is not a number"),
    ({"do_sample": True, "temperature": 1e-40}, "temperature: must be at least 1e-30, not 1e-40"),
    ({"do_sample": True, "seed": 2**64}, "seed: 18446744073709551616 is too large: at most 18446744073709551615"),
    ({"do_sample": True, "top_k": -1}, "top_k: -1 is not a whole number"),
    ({"do_sample": True, "top_p": 3}, "top_p: must be at most 1, not 3"),
    ({"do_sample": True, "top_p": 0.0}, "top_p: must be above 0, not 0"),
    ({"length_normalization": "gnm", "num_beams": 2}, "did you mean 'gnmt'"),
    ({"length_normalization": "lenght+1"}, r"did you mean 'length\+1'"),
    ({"max_source_tokens": 1}, "max_source_tokens=1"),
    *(({"length_penalty": a}, f"length_penalty: {a} is not a number") for a in (float("nan"), float("inf"))),
    *(({"length_penalty": a}, f"length_penalty: {a} is not a number from -10 to 10") for a in (-20.0, 10.5)),
    ({"prefix": "\udc80"}, r"prefix: U\+DC80 at column 1 is half of a character"),
    ({"repetition_penalty": -1}, r"repetition_penalty: must be at least 0.01, not -1"),
    ({"repetition_penalty": "x"}, "repetition_penalty: 'x' is not a number"),
    ({"no_repeat_ngram_size": 1.5}, r"no_repeat_ngram_size: 1\.5 is not a whole number"),
    ({"min_new_tokens": 9, "max_new_tokens": 8}, "min_new_tokens: 9 is more than max_new_tokens, 8"),
    ({"mbr": 8, "num_beams": 4}, "mbr: 8 of 4 beams"),
    ({"mbr": 8, "do_sample": True}, "mbr: .* leave do_sample out"),
    ({"mbr": 8, "num_return_sequences": 9}, "9 of 8 candidates"),
    ({"mbr": 8, "draws": "text"}, "draws by text are of one translation"),
    ({"do_sample": True, "draws": "text", "min_p": 0.1}, "min_p: draws by text know temperature, top_k, top_p"),
    ({"mbr": 1}, "mbr: 1 is not a whole number of at least 2"),
    ({"mbr": 8, "epsilon_cutoff": 1.5}, "epsilon_cutoff: must be"),
    ({"utility": "bleu"}, "utility: is of mbr"),
    ({"rerank": "/no/such/file"}, "no such file"),
    ({"rerank": {**RERANKED, "decoding": {"num_beams": 5}}, "mbr": 8}, "mbr: .* leave rerank out"),
    ({"rerank": {**RERANKED, "decoding": {"num_beams": 5}}, "num_return_sequences": 6}, "6 is more than there are"),
    ({"rerank": RERANKED, "do_sample": True, "num_beams": 2}, "leave num_beams or do_sample out"),
    ({"rerank": RERANKED, "do_sample": True, "draws": "text"}, "draws by text are of one translation"),
    ({"bad_phrases": 3}, "bad_phrases: 3 is neither"),
    ({"force_phrases": ["c"], "num_beams": 4}, "force_phrases: 1 rows for 2 texts"),
    *(
        ({name: "url", **asked}, name)
        for name in ("keep", "force_phrases")
        for asked in ({"do_sample": True}, {"mbr": 4}, {"num_beams": 4, "recombine": 1}, {"num_beam_groups": 2})
    ),
    ({"force_phrases": "red", "num_beams": 4, "split": "sentences"}, "none of them is named"),
    ({"num_beans": 4}, "num_beans"),
]


@pytest.mark.parametrize(("options", "message"), REFUSED)
def test_bad_options(pipeline, options, message):
    with pytest.raises((UserError, ValueError, TypeError), match=message):
        pipeline(["A man.", "A man. A dog."], **options)


def test_a_penalty_without_beams_is_said_to_do_nothing(pipeline, caplog):
    with caplog.at_level(logging.WARNING):
        pipeline("A man.", num_beams=2, length_penalty=0.5)
        pipeline("A man.", num_beams=1, num_return_sequences=1, length_penalty=0.5)  # the score that comes back has it
        assert "one beam" not in caplog.text
        pipeline("A man.", num_beams=1, length_penalty=0.5)
    assert "do nothing with one beam" in caplog.text


def test_memory_shortage_halves_the_batch(pipeline, monkeypatch):
    generate = pipeline.model.generate

    def limited(**arguments):
        if len(arguments["input_ids"]) > 3:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return generate(**arguments)

    expected = pipeline(SENTENCES[:10])
    monkeypatch.setattr(pipeline.model, "generate", limited)
    assert pipeline(SENTENCES[:10]) == expected


def test_many_beams_are_searched_in_smaller_batches_or_refused(pipeline, monkeypatch):
    """In half of the memory: a sentence with w beams and v words takes w (3 v + 4 w) numbers of four bytes."""
    generate, sizes = pipeline.model.generate, []
    count = lambda **given: (sizes.append(len(given["input_ids"])), generate(**given))[1]  # noqa: E731
    monkeypatch.setattr(pipeline.model, "generate", count)
    expected = pipeline(SENTENCES[:10], num_beams=4)
    of_one = 4 * 4 * (3 * pipeline.model.config.vocab_size + 4 * 4)
    monkeypatch.setattr(batches, "memory_of_machine", lambda on_cpu: 2.0 * 3 * of_one)
    sizes.clear()
    assert pipeline(SENTENCES[:10], num_beams=4) == expected
    assert max(sizes) == 3
    with pytest.raises(UserError, match=r"of 100,000: one sentence alone takes 1\d\d\.\d GiB, of 0\.0"):
        pipeline(SENTENCES[:10], num_beams=100_000)


def test_loading_mistakes(ours, tmp_path):
    for name, message in [(tmp_path, "no config.json"), ("nobody/nothing", "no such folder; as a Hub name")]:
        with pytest.raises(UserError, match=message):
            TranslationPipeline.from_pretrained(name)
    with pytest.raises(UserError, match="device 'tpu9'"):
        TranslationPipeline.from_pretrained(ours, device="tpu9")
    with pytest.raises(UserError, match="dtype 'float99'"):
        TranslationPipeline.from_pretrained(ours, dtype="float99")
    bpe().save_pretrained(tmp_path)
    our_model(50).save_pretrained(tmp_path)
    with pytest.raises(UserError, match="50 embeddings"):
        TranslationPipeline.from_pretrained(tmp_path)


def test_int8(ours, caplog):
    """Rounded weights give nearly the same scores, by the same search; where that is slow, it is said."""
    exact = TranslationPipeline.from_pretrained(ours, device="cpu")
    rounded = TranslationPipeline.from_pretrained(ours, dtype="int8")
    has_instructions = compiled(rounded.model.lm_head) is not None
    assert (compiled_step(rounded.model) is not None) == has_instructions
    assert ("here float32 may be faster" in caplog.text) != has_instructions
    ids = torch.tensor([[5, 6, 7, 1]])
    pair = [pipe.model(input_ids=ids, decoder_input_ids=ids).logits for pipe in (exact, rounded)]
    assert not torch.equal(*pair)
    assert torch.nn.functional.cosine_similarity(*(logits.flatten() for logits in pair), dim=0) > 0.99
    assert len(rounded(["a b c", "d"], num_beams=3)) == 2
    with pytest.raises(UserError, match="int8 is for a CPU"):
        TranslationPipeline.from_pretrained(ours, dtype="int8", device="meta")


@pytest.fixture
def ahead(monkeypatch):
    """The device computes alone, and Python works beside it."""
    for module in ("batches", "searching"):
        monkeypatch.setattr(f"hf_mlnmt.generation.translating.{module}.runs_alone", lambda model: True)
    monkeypatch.setattr("hf_mlnmt.generation.translating.call.PART", 3)


def said(results):
    """Texts and alignments; scores depend on the batch in their last digits."""
    return [x if isinstance(x, str) else [(best.text, best.alignment) for best in x] for x in results]


def test_work_beside_the_search_changes_nothing(pipeline, monkeypatch, request):
    texts = [*SENTENCES[:12], "", "A man.\nA dog.", *SENTENCES[12:17]]
    asked = {}, {"num_beams": 2}, {"num_return_sequences": 2, "num_beams": 2}, {"alignments": True}
    expected = [said(pipeline(texts, batch_tokens=40, **options)) for options in asked]
    request.getfixturevalue("ahead")
    rows, generate = [], pipeline.model.generate
    monkeypatch.setattr(pipeline.model, "generate", lambda **a: rows.append(len(a["input_ids"])) or generate(**a))
    for options, found in zip(asked, expected, strict=True):
        assert said(pipeline(texts, batch_tokens=40, **options)) == found
        assert said(pipeline.stream(texts, 7, batch_tokens=40, **options)) == found
    assert set(rows) <= {1, 2, 4}  # filled up


def test_the_next_lines_are_read_and_results_come_while_it_searches(pipeline, ahead, monkeypatch):
    """The first batch of a group is searched before the results of the group before are given out."""
    seen, generate = [], pipeline.model.generate
    texts = (seen.append(f"read {i}") or text for i, text in enumerate(SENTENCES[:4]))
    monkeypatch.setattr(pipeline.model, "generate", lambda **a: seen.append("search") or generate(**a))
    for _ in pipeline.stream(texts, window=2, num_beams=1):
        seen.append("result")
    assert seen == ["read 0", "read 1", "read 2", "read 3", "search", "search", *["result"] * 4]
    seen.clear()
    texts = (seen.append("read") or text for text in SENTENCES[:2])
    for _ in pipeline.stream(texts, window=1, num_beams=1):
        seen.append("result")
    assert seen == ["read", "search", "result"] * 2


def test_an_error_beside_the_search_comes_behind_what_was_found(pipeline, ahead):
    """What is no text is found while the group before is searched, or is read behind it."""

    def reading():
        yield from SENTENCES[:2]
        raise OSError("gone")

    for texts, error in (([*SENTENCES[:2], "\ud800"], UserError), (reading(), OSError)):
        found = []
        with pytest.raises(error):
            for text in pipeline.stream(texts, window=2, num_beams=1):
                found.append(text)
        assert len(found) == 2


def test_batches_of_powers_of_two():
    lengths = [9, 8, 8, 7, 7, 7, 5, 5, 4, 3, 2]
    cut = batches.batches_by_tokens(lengths, 28, powers=True)
    assert [[lengths[i] for i in batch] for batch in cut] == [[9, 8], [8, 7], [7, 7, 5, 5], [4, 3, 2]]
    assert [len(batch) for batch in batches.batches_by_tokens(lengths, 28)] == [3, 4, 4]
    assert [len(batch) for batch in batches.batches_by_tokens(lengths, 28, 3, True)] == [2, 2, 2, 2, 2, 1]
    assert batches.batches_by_tokens([40, 0], 28) == [[0], [1]]
