"""Reranking: features against their definitions, the choice against brute force."""

import json
import sys

import numpy as np
import pytest
import torch
from helpers.fused_folders import gpt2, write_fused
from helpers.toy_translators import SENTENCES, bpe, our_model
from typer.testing import CliRunner

from hf_mlnmt import UserError
from hf_mlnmt.cli import app
from hf_mlnmt.common.made_from import identity_of_model
from hf_mlnmt.data.directions import Direction
from hf_mlnmt.generation import TranslationPipeline
from hf_mlnmt.generation.choosing import reranking
from hf_mlnmt.generation.choosing.reranking import Reranker, coverage_of
from hf_mlnmt.generation.translating import loading
from hf_mlnmt.generation.translating.alignments import SourceAttention

TEXTS = [*SENTENCES[:2], "", SENTENCES[5]]
TOKENIZER = bpe()
BEAMS = {"decoding": {"num_beams": 5}}


@pytest.fixture(scope="module")
def others(tmp_path_factory):
    """{reverse, lm: folder}: a model of the other direction, and a language model of Transformers' own."""
    folders = {}
    for name, model in (("reverse", our_model(len(TOKENIZER), seed=7)), ("lm", gpt2(len(TOKENIZER)))):
        folders[name] = tmp_path_factory.mktemp(name)
        model.save_pretrained(folders[name])
        TOKENIZER.save_pretrained(folders[name])
    return folders


def command(tmp_path, text):
    """A command that writes what `text` makes of the parts of each line."""
    file = tmp_path / "score.py"
    file.write_text(f"import sys\nfor line in sys.stdin:\n    parts = line[:-1].split('\\t')\n    print({text})\n")
    return f"command={sys.executable} -u {file}"


def log_probability(model, source, target):
    """ln P of a text; source None: of a language model."""
    ids = TOKENIZER(target)["input_ids"]
    start = model.config.decoder_start_token_id if source is not None else model.config.bos_token_id
    given = {"input_ids": torch.tensor([[start, *ids[:-1]]])}
    if source is not None:
        given = {"input_ids": torch.tensor([TOKENIZER(source)["input_ids"]]), "decoder_input_ids": given["input_ids"]}
    with torch.no_grad():
        logs = model(**given).logits[0].double().log_softmax(-1)
    return sum(float(row[token]) for row, token in zip(logs, ids, strict=True))


def test_features_are_what_they_are_defined_as(pipeline, others, tmp_path):
    names = ["model", "score", "length", "coverage", f"reverse={others['reverse']}", f"translation={others['reverse']}"]
    names += [f"language-model={others['lm']}", command(tmp_path, "len(parts[0]) - 2 * len(parts[1])")]
    text = TEXTS[0]
    ranked = pipeline(text, rerank={**BEAMS, "features": dict.fromkeys(names, 0.0)}, num_return_sequences=5)
    beams = {each.text: each for each in pipeline(text, num_beams=5, num_return_sequences=5)}
    reverse, lm = our_model(len(TOKENIZER), seed=7), gpt2(len(TOKENIZER)).eval()
    attention = SourceAttention(pipeline.model)
    assert len(ranked) == len(beams) == 5
    for each in ranked:
        found, beam = each.features, beams[each.text]
        assert found[:3] == pytest.approx((beam.log_probability, beam.score, beam.length), rel=1e-5)
        expected = [log_probability(reverse, each.text, text), log_probability(reverse, text, each.text)]
        expected += [log_probability(lm, None, each.text), len(text) - 2 * len(each.text)]
        assert found[4:] == pytest.approx(expected, rel=1e-4)
        ids = TOKENIZER(each.text)["input_ids"]
        if len(ids) == each.length:  # what was generated is how the tokenizer cuts the text
            source = torch.tensor([TOKENIZER(text)["input_ids"]])
            start = torch.tensor([[pipeline.model.config.decoder_start_token_id, *ids[:-1]]])
            given = attention(source, torch.ones_like(source), start)[0].double()
            least = [min(1.0, max(1e-4, float(given[:, place].sum()))) for place in range(source.shape[1])]
            assert found[3] == pytest.approx(float(torch.tensor(least).log().sum()), rel=1e-3)


def test_a_fused_model_s_scales_are_the_weights_of_its_two_kinds(tmp_path):
    fused = TranslationPipeline.from_pretrained(str(write_fused(tmp_path / "fused", beta=0.7)), device="cpu")
    names = {"translation-models": 1.0, "language-models": 0.7}
    ranked = fused(["a red dog runs"], rerank={**BEAMS, "features": names}, num_return_sequences=5, max_new_tokens=8)
    searched = fused(["a red dog runs"], num_beams=5, num_return_sequences=5, max_new_tokens=8)
    expected = {each.text: each.log_probability for each in searched[0][::-1]}  # ln p_TM + .7 ln p_LM
    assert {each.text: each.score for each in ranked[0]} == pytest.approx(expected, rel=1e-4)
    assert all(min(each.features) < 0 for each in ranked[0])


@pytest.mark.parametrize("sampling", [False, True])
def test_the_choice_is_that_of_brute_force(pipeline, others, sampling):
    reverse = f"reverse={others['reverse']}"
    weights = {"score": 1.0, "length": 0.3, reverse: 0.4}
    asked = {"decoding": {"do_sample": True}, "samples": 6} if sampling else BEAMS
    drawn = (
        {"do_sample": True, "draws": "row", "num_return_sequences": 6}
        if sampling
        else {"num_beams": 5, "num_return_sequences": 5}
    )
    given = pipeline(TEXTS, **drawn, seed=2)
    ranked = pipeline(TEXTS, rerank={**asked, "features": weights}, seed=2, num_return_sequences=2)
    model = our_model(len(TOKENIZER), seed=7)
    for text, candidates, found in zip(TEXTS, given, ranked, strict=True):
        scores = {
            each.text: each.score + 0.3 * each.length + 0.4 * log_probability(model, each.text, text)
            for each in candidates
            if each.text
        }
        best = sorted(scores, key=scores.get, reverse=True)[:2]
        assert [each.text for each in found] == (best if text else ["", ""])
        assert [each.score for each in found] == pytest.approx([scores[each] for each in best] or [0, 0], rel=1e-4)
    assert pipeline(TEXTS, rerank={**asked, "features": weights}, seed=2) == [two[0].text for two in ranked]


def test_sentences_of_a_text_add_up(pipeline):
    text = f"{SENTENCES[0]} {SENTENCES[1]}"
    reranker = {**BEAMS, "features": {"score": 1.0, "length": 0.5}}
    alone = [pipeline(each, rerank=reranker, num_return_sequences=3) for each in SENTENCES[:2]]
    both = pipeline(text, rerank=reranker, num_return_sequences=3, split="sentences")
    for first, second, whole in zip(*alone, both, strict=True):
        assert (whole.text, whole.score) == (f"{first.text} {second.text}", pytest.approx(first.score + second.score))
        assert whole.features == pytest.approx([a + b for a, b in zip(first.features, second.features)])


def test_what_was_done_before_a_command_failed_is_kept(ours, tmp_path):
    (tmp_path / "in").write_text("\n".join(SENTENCES[:3]) + "\n")
    feature = command(tmp_path, f"len(parts[1]) if {SENTENCES[2]!r} != parts[0] else sys.exit(1)")
    (tmp_path / "r.json").write_text(json.dumps({**BEAMS, "features": {feature: 1.0}}))
    words = ["translate", ours, tmp_path / "in", "--rerank", tmp_path / "r.json", "--window", 1, "-o", tmp_path / "out"]
    failed = CliRunner().invoke(app, list(map(str, words)))
    assert "ended after 0 of 5 lines, twice" in str(failed.exception)
    assert json.loads((tmp_path / "out.part" / "state.json").read_text())["progress"]["lines"] == 2
    command(tmp_path, "len(parts[1])")
    assert CliRunner().invoke(app, list(map(str, words))).exit_code == 0
    pipeline = TranslationPipeline.from_pretrained(str(ours), device="cpu")
    candidates = pipeline(SENTENCES[:3], num_beams=5, num_return_sequences=5)
    expected = [max((each.text for each in row), key=len) for row in candidates]
    assert (tmp_path / "out").read_text().split("\n")[:-1] == expected


def test_weights_of_another_model_are_refused(ours, others, tmp_path):
    made_from = {"models": {f"reverse={others['reverse']}": identity_of_model(str(others["reverse"]))}}
    made_from["model"] = identity_of_model(str(ours))
    content = {**BEAMS, "features": {"score": 1.0, f"reverse={others['reverse']}": 1.0}, "made_from": made_from}
    translate = TranslationPipeline.from_pretrained(str(ours), device="cpu")
    assert translate(TEXTS[:1], rerank=content)
    for part in (made_from["model"], *made_from["models"].values()):
        files, part["files"] = part["files"], {**part["files"], "model.safetensors": "0"}
        with pytest.raises(UserError, match="made with another model"):
            translate(TEXTS[:1], rerank=content)
        part["files"] = files
    with pytest.raises(UserError, match="is no language model"):
        translate(TEXTS[:1], rerank={**BEAMS, "features": {f"language-model={others['reverse']}": 1.0}})


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({}, "features: is not there"),
        ({"features": {}}, "one of 'features' or more"),
        ({"features": {"lenght": 1.0}}, "no feature 'lenght'.*length"),
        ({"features": {"reverse": 1.0}}, "no feature 'reverse'"),
        ({"features": {"length": "much"}}, "expected a number"),
        *(({"features": {"length": weight}}, "is no weight: at most 1e.06") for weight in (1e308, -1e308, 1e7)),
        ({"features": {"length": 1.0}, "decoding": {"model": "x"}}, "'model' is none of"),
        ({"features": {"length": 1.0}, "decoding": {"num_beams": 0}}, "num_beams"),
        ({"features": {"language-models": 1.0}, **BEAMS}, "of a fused model"),
        ({"features": {"command=/no/such/program": 1.0}, **BEAMS}, "cannot be started"),
        ({"features": {"reverse=/no/such/model": 1.0}, **BEAMS}, "/no/such/model"),
    ],
)
def test_a_wrong_file_is_one_message(pipeline, tmp_path, content, message):
    (tmp_path / "r.json").write_text(json.dumps(content))
    with pytest.raises(UserError, match=message):
        pipeline(TEXTS[0], rerank=str(tmp_path / "r.json"))


def test_phrases_that_cannot_be_met_are_left_out(pipeline, caplog):
    reranker = {**BEAMS, "features": {"score": 1.0, "length": 0.5}}
    expected = pipeline(TEXTS, rerank=reranker)
    long = " ".join(SENTENCES[:9])  # longer than a translation may be
    assert pipeline(TEXTS, rerank=reranker, force_phrases=["", long, "", ""]) == expected
    assert "terms that are not met: 1, the first is line 2; " in caplog.text
    assert "green" in pipeline(TEXTS[0], rerank=reranker, force_phrases="green")


def test_a_source_that_is_read_twice_is_covered_once():
    assert coverage_of(torch.tensor([[0.9, 0.1], [0.8, 0.2]])) == pytest.approx(np.log(0.3), rel=1e-5)


@pytest.mark.parametrize(("kind", "pair"), [("reverse", ("de", "en")), ("translation", ("en", "de"))])
def test_a_model_of_several_languages_is_told_its_direction(ours, monkeypatch, kind, pair):
    asked = []
    monkeypatch.setattr(reranking, "is_told", lambda model, tokenizer: True)
    monkeypatch.setattr(loading, "direction", lambda *given: asked.append(given[2:4]) or Direction())
    Reranker({"features": {f"{kind}={ours}": 1.0}}, languages=("en", "de"))
    assert asked == [pair]


def test_given_translations_are_scored_token_by_token(pipeline, tmp_path):
    sources, targets = SENTENCES[:9], SENTENCES[9:18]
    given = pipeline.score(sources, targets, length_penalty=0.6, length_normalization="gnmt")
    for each, source, target in zip(given, sources, targets, strict=True):
        ids = TOKENIZER(target)["input_ids"]
        assert each.log_probability == pytest.approx(log_probability(pipeline.model, source, target), abs=1e-4)
        assert each.score == pytest.approx(each.log_probability / ((5 + len(ids)) / 6) ** 0.6, abs=1e-5)
        assert sum(each.token_log_probabilities) == pytest.approx(each.log_probability, abs=1e-4)
        assert (each.text, each.length, list(each.tokens)) == (target, len(ids), TOKENIZER.convert_ids_to_tokens(ids))
    with pytest.raises(UserError, match="1 translations of 2 texts"):
        pipeline.score(["a", "b"], ["c"])
    pipeline.model.save_pretrained(tmp_path / "model")
    TOKENIZER.save_pretrained(tmp_path / "model")
    for name, lines in (("en", sources), ("de", targets)):
        (tmp_path / name).write_text("\n".join(lines) + "\n")
    asked = ["evaluate", tmp_path / "model", "-s", tmp_path / "en", "-r", tmp_path / "de", "--scores"]
    for output in (tmp_path / "out.tsv", tmp_path / "out.jsonl"):
        result = CliRunner().invoke(app, list(map(str, [*asked, output, "--length-penalty", "0.6"])))
        assert result.exit_code == 0, result.exception
    rows = [line.split("\t") for line in (tmp_path / "out.tsv").read_text().splitlines()]
    records = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    for row, record, each in zip(rows, records, given, strict=True):
        assert list(map(float, row)) == pytest.approx(
            [each.log_probability, each.log_probability / each.length**0.6], abs=1e-3
        )
        assert record["tokens"] == list(each.tokens)
        assert sum(record["token_log_probabilities"]) == pytest.approx(float(row[0]), abs=1e-3)
    (tmp_path / "de").write_text("one\n")
    for wrong in ([], ["--metric", "BLEU"], ["--output", "x.json"], ["--perplexity"], ["-r", tmp_path / "en"]):
        assert CliRunner().invoke(app, list(map(str, [*asked, tmp_path / "no", *wrong]))).exit_code
    assert not (tmp_path / "no").exists()
