"""Constraints of a search: against everything that a model can say, for each kind of decoder; terms of a glossary."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import pytest
import torch
from helpers.contract import Member, assert_same
from helpers.fused import fused
from helpers.searching import decode, sources, tiny
from helpers.toy_context import bigram_translator
from helpers.toy_translators import SENTENCES, our_model
from typer.testing import CliRunner

from hf_mlnmt import UserError, search
from hf_mlnmt.cli import app
from hf_mlnmt.data.processing import TextProcessing
from hf_mlnmt.data.tokenizer import Tokenizers, train_tokenizer
from hf_mlnmt.generation import DecodingOptions, TranslationPipeline
from hf_mlnmt.generation.constraints.lexical_constraints import Spelling, Terms
from hf_mlnmt.generation.translating.loading import Parts
from hf_mlnmt.search.constraints import Automaton, Constrained, allocated
from hf_mlnmt.search.hypotheses import IMPOSSIBLE
from hf_mlnmt.search.rules import Constraints

VOCABULARY, LONGEST, END = 5, 5, 1
OTHERS = [token for token in range(VOCABULARY) if token != END]
CONSTRAINTS = {
    "one token": [[[2]]],
    "two of one token": [[[2]], [[4]]],
    "a phrase": [[[2, 4]]],
    "alternatives": [[[2, 2], [4]]],
    "one repeats the other's beginning": [[[2, 2, 4]]],
    "a phrase and alternatives": [[[3, 4]], [[0], [2, 2]]],
    "one within another": [[[2, 3, 4]], [[3]]],
    "phrases that overlap": [[[2, 3]], [[3, 4]]],
    "twice": [[[2]], [[2]]],
    "one of two, twice, and another": [[[2, 4], [3]], [[2, 4], [3]], [[0]]],
    "none": [],
}


def has(body, constraints):
    """Whether each constraint has an alternative in the tokens, as often as it is there."""
    return all(
        sum(
            any(tuple(phrase) == tuple(body[max(0, end - len(phrase)) : end]) for phrase in constraint)
            for end in range(1, len(body) + 1)
        )
        >= constraints.count(constraint)
        for constraint in constraints
    )


@torch.no_grad()
def everything(model, source):
    """(log P / length, ids) of all hypotheses, those that are cut off at the limit too."""
    bodies = [body for size in range(LONGEST) for body in itertools.product(OTHERS, repeat=size)]
    rows = [(*body, END) for body in bodies] + list(itertools.product(OTHERS, repeat=LONGEST))
    scored = []
    for size, group in itertools.groupby(rows, len):
        ids = torch.tensor(list(group))
        inputs = torch.cat([torch.full((len(ids), 1), 3), ids[:, :-1]], dim=1)
        repeated = {name: value.expand(len(ids), -1) for name, value in source.items()}
        logits = model(**repeated, decoder_input_ids=inputs).logits
        logits = logits if getattr(model, "logits_are_scores", False) else logits.log_softmax(-1)
        sums = logits.gather(2, ids.unsqueeze(-1)).sum((1, 2)) / size
        scored += zip(sums.tolist(), map(tuple, ids.tolist()))
    return sorted(scored, reverse=True)


MODELS = {
    "transformer": lambda: tiny("transformer", VOCABULARY),
    "rnn": lambda: tiny("rnn", VOCABULARY),
    "fused": lambda: fused(bigram_translator(VOCABULARY), normalization="sequence", alpha=0.6, beta=0.4),
}
WIDE = {"num_beams": 300, "early_stopping": "never", "length_penalty": 1.0, "max_new_tokens": LONGEST}


@pytest.mark.parametrize("kind", MODELS)
def test_it_finds_the_best_of_all_that_meet_them(kind):
    """Two sentences in a batch, each with constraints of its own: the best four of all, in order."""
    model = MODELS[kind]()
    inputs = sources((3, 2), VOCABULARY)
    singles = [{name: value[i : i + 1] for name, value in inputs.items()} for i in range(2)]
    ranked = [everything(model, source) for source in singles]
    names = list(CONSTRAINTS)
    for name, other in zip(names, names[1:] + names[:1]) if kind == "transformer" else [("a phrase", "none")]:
        asked = [CONSTRAINTS[name], CONSTRAINTS[other]]
        output = decode(model, **inputs, **WIDE, num_return_sequences=4, logits_processor=[Constraints(asked)])
        for sentence in range(2):
            allowed = [one for one in ranked[sentence] if has(one[1], asked[sentence])][:4]
            part = slice(4 * sentence, 4 * sentence + 4)
            rows = [tuple(row) for row in output.sequences[part, 1:].tolist()]
            assert [row[: len(ids)] for row, (_, ids) in zip(rows, allowed)] == [ids for _, ids in allowed], name
            scores = [score for score, _ in allowed]
            assert output.sequences_scores[part].tolist() == pytest.approx(scores, abs=1e-5)


def test_where_one_alternative_of_several_is_begun_again():
    """A mismatch falls back to the longest end that begins a phrase; what is met stays met; banks count tokens."""
    automaton = Automaton.of([[[[2, 2, 4]], [[3], [2, 3]]], []], torch.device("cpu"))
    node, met = torch.zeros(2, 1, dtype=torch.long), torch.zeros_like(automaton.sizes).unsqueeze(1)
    banks = []
    for token in (2, 2, 2, 4, 0, 2, 3, 2):
        node, met = automaton.follow(node, met, torch.full((2, 1), token))
        banks.append(automaton.banks(node, met)[:, 0].tolist())
    # 2 | 2 2 | 2 2 | 2 2 4 | | 2 of the second | met, and nothing more to begin
    assert banks == [[1, 0], [2, 0], [2, 0], [3, 0], [3, 0], [4, 0], [5, 0], [5, 0]]


@pytest.mark.parametrize(
    ("constraints", "tokens", "expected"),
    [
        ([[[2, 4]], [[2, 4]]], (2, 4, 0, 2, 4, 2, 4), [1, 2, 2, 3, 4, 4, 4]),  # to be met twice
        ([[[5, 2, 4]], [[2, 3]]], (5, 2, 4, 5, 2, 3), [1, 2, 3, 3, 4, 5]),  # the second begins inside of the first
    ],
)
def test_banks(constraints, tokens, expected):
    automaton, node, banks = Automaton.of([constraints], torch.device("cpu")), torch.zeros(1, 1, dtype=torch.long), []
    met = torch.zeros_like(automaton.sizes).unsqueeze(1)
    for token in tokens:
        node, met = automaton.follow(node, met, torch.full((1, 1), token))
        banks.append(automaton.banks(node, met).item())
    assert banks == expected


def test_beams_go_to_the_best_of_each_bank_in_turn():
    sums = torch.tensor([[-1.0, -2.0, -9.0, -3.0, -8.0, -torch.inf], [-5.0, -4.0, -3.0, -2.0, -1.0, -1.5e9]])
    banks = torch.tensor([[0, 0, 2, 0, 2, 1], [0] * 6])
    assert allocated(sums, banks).tolist() == [[4, 0, 2, 1, 3, 5], [4, 3, 2, 1, 0, 5]]


def test_no_hypothesis_to_come_is_better_than_the_best_beam_that_is_possible():
    """Beams are in the order of their banks, not of their scores."""
    running = torch.tensor([[IMPOSSIBLE, -5.0, -2.0], [-3.0, -1.0, IMPOSSIBLE], [IMPOSSIBLE] * 3])
    found = Constrained.highest(SimpleNamespace(beams=SimpleNamespace(running=running)))
    assert found.tolist() == [-2.0, -1.0, -torch.inf]


def test_many_tokens_that_end_a_sentence_leave_enough_that_go_on():
    model, inputs, options = lively(eos_token_id=[1, *range(5, 40, 2)], num_return_sequences=5, early_stopping="never")
    plain = decode(model, **inputs, **options)
    found = decode(model, **inputs, **options, logits_processor=[Constraints([[]] * 6)])
    assert found.sequences.tolist() == plain.sequences.tolist()
    assert_same(found.sequences_scores, plain.sequences_scores, 1e-5)


def lively(**options):
    """A model that ends its sentences, and sentences that leave the search at different steps."""
    member = Member("transformer", "post", {"vocab_size": 40, "d_model": 16, "norm_position": "post"})
    options = {"exponential_decay_length_penalty": (2, 1.2), "max_new_tokens": 24, "num_beams": 5, **options}
    return member.model(dtype=torch.float32), sources((7, 5, 3, 7, 2, 4), 40), options


@pytest.mark.parametrize("early_stopping", [True, False, "never"])
def test_sentences_leave_and_those_without_constraints_are_searched_as_ever(early_stopping):
    model, inputs, options = lively(early_stopping=early_stopping, num_return_sequences=2)
    plain = decode(model, **inputs, **options).sequences
    asked = [[], [[[7, 9]]], [], [[[30], [31, 32]], [[8]]], [], [[[5]]]]
    output = decode(model, **inputs, **options, logits_processor=[Constraints(asked)]).sequences
    for sentence, constraints in enumerate(asked):
        for row in (2 * sentence, 2 * sentence + 1):
            ids = output[row, 1:].tolist()
            assert has(ids[: ids.index(1)] if 1 in ids else ids, constraints)
            if not constraints:
                shorter = min(output.shape[1], plain.shape[1])
                assert output[row, :shorter].tolist() == plain[row, :shorter].tolist()
    alone = {name: value[3:4] for name, value in inputs.items()}
    single = decode(model, **alone, **options, logits_processor=[Constraints(asked[3:4])]).sequences
    assert output[6:8, : single.shape[1]].tolist() == single.tolist()


def test_what_cannot_be_met_and_what_is_refused(monkeypatch):
    model, inputs, options = lively(max_new_tokens=3)
    long = [[[[4, 5, 6, 7]]]] + [[]] * 5
    output = decode(model, **inputs, **options, logits_processor=[Constraints(long)]).sequences
    assert set(output[0, 1:].tolist()) <= {0, 1}
    for wrong in ({"num_beams": 1}, {"recombine": 1}):
        with pytest.raises(UserError, match="need several beams"):
            decode(model, **inputs, **{**options, **wrong}, logits_processor=[Constraints(long)])
    with pytest.raises(UserError, match="constraints of 1 sentences for 6"):
        decode(model, **inputs, **options, logits_processor=[Constraints(long[:1])])
    monkeypatch.setattr(search, "why_not", lambda *arguments: "a test")
    with pytest.raises(UserError, match="only this package's beam search knows them"):
        decode(model, **inputs, **options, logits_processor=[Constraints(long)])


# Terms of a glossary

TEXTS = [*SENTENCES[:4], "", "A green dog."]


@pytest.fixture(scope="module")
def pipeline():
    tokenizer = train_tokenizer(SENTENCES, vocab_size=450)
    return TranslationPipeline(Parts(our_model(len(tokenizer)), Tokenizers(tokenizer, tokenizer)))


def test_terms_of_each_text_whatever_the_order(pipeline):
    terms = {"dog": ["red child", "house"], "green": "ball", "the": ["men"], "The": ["men"]}
    options = {"num_beams": 4, "terms": terms}
    translations = pipeline(TEXTS, **options)
    asked = 0
    for text, translation in zip(TEXTS, translations):
        for term, targets in terms.items():
            if term in text.strip(".").split():
                targets = [targets] if isinstance(targets, str) else targets
                assert any(f" {target}" in f" {translation}" for target in targets)
                asked += 1
    assert asked > 4
    assert translations[4] == ""
    assert [pipeline(text, **options) for text in TEXTS] == translations
    assert pipeline(TEXTS, batch_tokens=20, **options) == translations
    assert list(pipeline.stream(TEXTS, window=2, **options)) == translations
    assert pipeline(TEXTS, num_beams=4, terms={"nothing": "house"}) == pipeline(TEXTS, num_beams=4)
    ranked = pipeline(TEXTS, num_return_sequences=3, alignments=True, **options)
    assert [one[0].text for one in ranked] == translations
    assert all(len(one) == 3 for one in ranked)
    assert all(one[0].alignment for text, one in zip(TEXTS, ranked) if text)
    with_prefix = pipeline(TEXTS, target_prefix="A re", **options)
    assert all(text.startswith("A re") for text in with_prefix if text)
    assert "ball" in with_prefix[5]


def test_which_terms_a_text_has(pipeline):
    spelling = Spelling(pipeline.parts.target)
    terms = {"Red house": ["a"], "house": ["b"], "House": ["c"], "U.S.": ["d"], "\u5185\u6838": ["e"], "red": ["f"]}
    exact, folded = (Terms(terms, fold, spelling, TextProcessing()) for fold in (False, True))
    assert list(exact.of("A Red  house and houses, greenhouse.")) == ["Red house"]
    assert list(exact.of("(house) HOUSE House red-house")) == ["house", "House", "red"]
    assert list(folded.of("A RED House")) == ["red house"]
    assert folded.targets["house"] == ["b", "c"]
    assert list(exact.of("the U.S. and \u65b0\u5185\u6838\u7684")) == ["U.S.", "\u5185\u6838"]
    assert not exact.of("reds")
    ids = Terms({"a": ["dog"]}, False, spelling, TextProcessing()).of("a")["a"]
    assert [pipeline.parts.target.convert_ids_to_tokens(one)[0][0] for one in ids] == ["\u2581"]


def test_terms_that_cannot_be_met_are_said(pipeline, caplog, monkeypatch):
    free = pipeline(TEXTS, num_beams=4)
    long = "house " * 30
    assert pipeline(TEXTS, num_beams=4, terms={"A green dog": long}) == free
    assert "terms that are not met: 1, the first is line 6; A green dog: " in caplog.text
    caplog.clear()
    monkeypatch.setattr(Spelling, "inside", lambda *_: [])  # of a vocabulary that lacks its letters
    assert pipeline(TEXTS, num_beams=4, terms={"A green dog": "house"}) == free
    assert "terms that are not met: 1, the first is line 6; A green dog: " in caplog.text


def test_terms_that_are_not_met_are_named_in_one_line(pipeline, caplog, monkeypatch):
    monkeypatch.setattr("hf_mlnmt.generation.constraints.rules.is_met", lambda translation, targets: False)
    texts, terms = ["A dog.", "", "The dog.", "A man, a dog."], {"dog": "red", "man": ["house", "ball"]}
    list(pipeline.stream(texts, num_beams=4, terms=terms, force_phrases="takes", window=2))
    (said,) = [message for message in caplog.messages if "not met" in message]
    assert "terms that are not met: 7, the first is line 1; dog (3), takes (3), man: " in said


def test_terms_from_the_shell_and_what_is_refused(pipeline, tmp_path):
    pipeline.model.save_pretrained(tmp_path / "model")
    pipeline.parts.source.save_pretrained(tmp_path / "model")
    glossary = tmp_path / "terms.tsv"
    glossary.write_text("DOG\tred child\thouse\n\ngreen\tball\n")

    def translated(*options):
        arguments = ["translate", str(tmp_path / "model"), "--terms", str(glossary), *options]
        return CliRunner().invoke(app, arguments, input="A green dog.\n")

    expected = pipeline("A green dog.", num_beams=4, terms={"dog": ["red child", "house"], "green": ["ball"]})
    assert translated("--terms-ignore-case", "-b", "4").stdout == f"{expected}\n"
    assert pipeline("A green dog.", num_beams=4, terms=glossary, terms_ignore_case=True) == expected
    assert "need a beam search; say --beams too" in str(translated().exception)
    glossary.write_text("dog\tHund\ncat\n")
    assert f"{glossary}, line 2: 'cat' is no term; expected" in str(translated("-b", "4").exception)
    for wrong, message in [
        ({"dog": []}, "'dog'"), ({"dog": ["a", 3]}, "'dog'"), ({" ": "a"}, "' '"), (["dog"], "neither a dict"),
    ]:  # fmt: skip
        with pytest.raises(UserError, match=f"terms: .*{message}"):
            DecodingOptions(terms=wrong)
    with pytest.raises(UserError, match=r"terms_ignore_case \(--terms-ignore-case\): is of terms"):
        DecodingOptions(terms_ignore_case=True)
    with pytest.raises(UserError, match="terms: need a beam search without sampling"):
        DecodingOptions(terms={"a": "b"}, do_sample=True)
