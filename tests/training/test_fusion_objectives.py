"""Sequence-level training of fused models: log Z, log q, the loss and its gradients against enumeration."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from helpers.fused import fused, language_model, member_logits, translator
from helpers.searching import sources
from helpers.toy_context import bigram_language_model, bigram_translator
from reference.fusion import every_sequence, k_token_partition, log_partition

from hf_mlnmt.search.recombination import END, Trellis
from hf_mlnmt.training.fusion_objectives import FusionNBest, FusionSymbol, FusionTrellis, log_sums, with_references
from hf_mlnmt.training.objectives import IGNORED

VOCABULARY, LONGEST, ALPHA, BETA = 6, 3, 0.8, 0.5
ALL = every_sequence(VOCABULARY, 1, LONGEST)  # 31
LABELS = torch.tensor([[4, 5, 1], [2, 1, -100]])
WIDE = {"n": 160, "max_length": LONGEST}


def model_of(kind: str = "real", **settings):
    settings = {"alpha": ALPHA, "beta": BETA, **settings}
    if kind == "real":
        return fused(translator(vocabulary=VOCABULARY, dropout=0.0), lms=[language_model(VOCABULARY)], **settings)
    lms = [bigram_language_model(VOCABULARY)]
    return fused(bigram_translator(VOCABULARY), lms=lms, **settings)


def batch_of(labels=LABELS):
    return {**sources((3, 2), VOCABULARY), "labels": labels}


def log_qs(model, batch, sentence, rows, alpha=ALPHA, beta=BETA):
    """alpha sum log p_TM + beta sum log p_LM of each translation; those of a length are read at once."""
    found = {}
    for length in {len(row) for row in rows}:
        alike = [tuple(row) for row in rows if len(row) == length]
        inputs = torch.tensor([[3, *row[:-1]] for row in alike])
        source = {name: batch[name][[sentence] * len(alike)] for name in ("input_ids", "attention_mask")}
        translation, language = (logits.log_softmax(-1) for logits in member_logits(model, source, inputs))
        each = (alpha * translation + beta * language).gather(2, torch.tensor(alike)[..., None])
        found |= dict(zip(alike, each.sum((1, 2))))
    return found


def log_q(model, batch, sentence, row, **weights):
    return log_qs(model, batch, sentence, [row], **weights)[tuple(row)]


def references(labels):
    return [[token for token in row if token != -100] for row in labels.tolist()]


def enumerated(model, batch, rows=ALL):
    """The loss over all translations, by loops; log Z and s of each sentence."""
    each = [log_qs(model, batch, sentence, rows) for sentence in range(len(batch["labels"]))]
    found = [log_partition(lambda row, log_q=log_q: log_q[tuple(row)], rows) for log_q in each]
    own = [log_q(model, batch, i, row) for i, row in enumerate(references(batch["labels"]))]
    tokens = (batch["labels"] != -100).sum()
    return (sum(found) - sum(own)) / tokens, torch.stack(found), torch.stack(own)


def gradients(loss, model):
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    return torch.autograd.grad(loss, weights, allow_unused=True)


def assert_like_enumeration(objective, model, batch):
    log_z, own = objective.sums(model, batch)
    loss, parts = objective.loss(model, batch)
    expected, expected_z, expected_own = enumerated(model, batch)
    torch.testing.assert_close(log_z, expected_z)
    torch.testing.assert_close(own, expected_own)
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(parts["log_z"] - parts["log_q"], loss)
    torch.testing.assert_close(parts["log_q"], expected_own.sum() / 5)
    halved, _ = objective.loss(model, batch, num_items_in_batch=10)
    torch.testing.assert_close(halved, loss / 2)
    for ours, reference in zip(gradients(loss, model), gradients(expected, model)):
        assert (ours is None) == (reference is None)
        if ours is not None:
            torch.testing.assert_close(ours, reference, rtol=1e-6, atol=1e-8)


OBJECTIVES = {
    "n-best": FusionNBest(0, **WIDE),
    "trellis": FusionTrellis(0, beams=160, k=LONGEST, max_length=LONGEST, tolerance=0.0),
}


@pytest.mark.parametrize("name", OBJECTIVES)
@pytest.mark.parametrize("split", [False, True])
def test_with_beams_for_all_it_is_the_exact_loss(name, split, monkeypatch):
    """Values and gradients by the weights of the translation model; also when scores are computed part by part."""
    if split:
        monkeypatch.setattr("hf_mlnmt.training.fusion_objectives.ELEMENTS", 7 * VOCABULARY * LONGEST)
    assert_like_enumeration(OBJECTIVES[name], model_of(), batch_of())


def test_a_trellis_of_a_model_that_sees_k_tokens_is_exact():
    """With far fewer beams than there are translations; and the recursion for Q gives the same."""
    model, batch = model_of("bigram"), batch_of()
    objective = FusionTrellis(0, beams=VOCABULARY**2, k=1, max_length=LONGEST, tolerance=0.0)
    assert_like_enumeration(objective, model, batch)
    for sentence, found in enumerate(objective.sums(model, batch)[0].tolist()):

        def log_q_of(context, sentence=sentence):
            row = [3, *context[-1:]]
            source = {name: batch[name][sentence : sentence + 1] for name in ("input_ids", "attention_mask")}
            logits = [one[0, -1].log_softmax(-1) for one in member_logits(model, source, torch.tensor([row]))]
            return (ALPHA * logits[0] + BETA * logits[1]).tolist()

        assert found == pytest.approx(k_token_partition(log_q_of, 1, 1, LONGEST), abs=1e-6)


@torch.no_grad()
def bigram_sums(model, batch, sentence, longest, end=1):
    """log Z of all translations of at most 1 to `longest` tokens, and log of what is open behind so many."""
    source = {name: batch[name][sentence : sentence + 1].expand(VOCABULARY, -1) for name in batch if name != "labels"}
    logits = model(**source, decoder_input_ids=torch.arange(VOCABULARY)[:, None]).logits[:, 0]
    q = (model.config.alpha * logits).exp()  # of the column's token behind the row's
    going_on = q.clone()
    going_on[:, end] = 0
    mass, total, sums = torch.eye(VOCABULARY, dtype=torch.float64)[3], 0.0, []
    for _ in range(longest):
        total, mass = total + mass @ q[:, end], mass @ going_on
        sums.append((float(total.log()), float(mass.sum().log())))
    return sums


@pytest.mark.parametrize("alpha", [0.4, 1.2])
def test_a_trellis_ends_where_its_open_beams_are_less_than_the_tolerance(alpha, monkeypatch):
    """Each sentence where its own are, whatever is beside it."""
    monkeypatch.setattr("hf_mlnmt.search.decoders.decoder_of", lambda model: None)  # the toy leaves its cache empty
    model = model_of("bigram", alpha=alpha, beta=1.0)
    batch = {**sources((3, 2, 1), VOCABULARY), "labels": torch.tensor([[4, 1], [2, 1], [1, IGNORED]])}
    with torch.no_grad():
        model.translation_0.of_source.bias[1] -= 2.0
    ends = set()
    for tolerance in (0.5, 0.2, 0.1, 0.05, 0.02, 0.01):
        objective = FusionTrellis(0, beams=VOCABULARY**2, k=1, max_length=40, tolerance=tolerance)
        for sentence, (log_z, own) in enumerate(zip(*(sums.tolist() for sums in objective.sums(model, batch)))):
            sums = bigram_sums(model, batch, sentence, 40)
            last = next(i for i, (total, open_) in enumerate(sums) if open_ <= total + math.log(tolerance) or i == 39)
            expected = sums[last][0] if last else math.log(math.exp(sums[0][0]) + math.exp(own))  # of two tokens
            assert log_z == pytest.approx(expected, abs=1e-5)
            ends.add((sentence, last))
    assert len(ends) > 5, "sentences do not end together"


@pytest.mark.parametrize("name", ["n-best", "trellis"])
def test_two_end_tokens(name):
    """Either ends a translation; none goes on behind it."""
    model, batch = model_of(), batch_of(torch.tensor([[4, 2, 5], [2, 1, -100]]))
    model.generation_config.eos_token_id = [1, 5]
    bodies = [body for body in ALL if 5 not in body]
    log_z = OBJECTIVES[name].sums(model, batch)[0]
    torch.testing.assert_close(log_z, enumerated(model, batch, bodies + [[*body[:-1], 5] for body in bodies])[1])


def test_beams_go_on_however_many_tokens_end_a_translation():
    """Two ends are likelier than anything else: one beam goes on all the same."""
    probabilities = torch.tensor([0.05, 0.4, 0.06, 0.05, 0.04, 0.4], dtype=torch.float64)
    translation = bigram_translator(VOCABULARY, sees=0)
    with torch.no_grad():
        translation.of_source.weight.zero_()
        translation.of_source.bias.copy_(probabilities.log())
    model, batch = fused(translation, lms=[]), batch_of(torch.tensor([[1], [1]]))
    model.generation_config.eos_token_id = [1, 5]
    log_z = FusionTrellis(0, beams=1, k=0, max_length=3, tolerance=0.0).sums(model, batch)[0]
    assert log_z.tolist() == pytest.approx([math.log(0.4 * (1 + 0.06 + 0.06**2))] * 2)


def test_no_hypothesis_is_longer_than_the_limit():
    """10 more than twice the longest reference, unless told."""
    model, batch = model_of("bigram"), batch_of()
    with torch.no_grad():
        model.translation_0.of_source.bias[1] = -40.0  # hardly anything ends
    for most, longest in ((None, 16), (7, 7)):
        assert FusionNBest(0, n=2, max_length=most).search(model, batch).shape == (2, 2, longest)
        trellis = FusionTrellis(0, beams=VOCABULARY**2, k=1, max_length=most, tolerance=0.0)
        for sentence, log_z in enumerate(trellis.sums(model, batch)[0].tolist()):
            assert log_z == pytest.approx(bigram_sums(model, batch, sentence, longest)[-1][0], abs=1e-5)


def test_what_is_left_out():
    """An n-best list has a part of Z; a merged trellis of a model that sees more than k tokens may have any."""
    model, batch = model_of("real"), batch_of()
    exact = enumerated(model, batch)[1]
    before = torch.full((2,), -torch.inf, dtype=torch.float64)
    for n in (1, 2, 4, 8):
        found, own = FusionNBest(0, n=n, max_length=LONGEST).sums(model, batch)
        assert (found < exact).all()
        assert (found >= own - 1e-9).all()  # the reference is in it: the loss is at least 0
        if n > 1:
            assert (found > before - 1e-9).all()
        before = found
    merged = FusionTrellis(0, beams=12, k=0, max_length=LONGEST, tolerance=0.0).sums(model, batch)[0]
    assert not torch.allclose(merged, exact)


def test_a_pruned_reference_is_added():
    """So that the loss has a lower bound; one that is there is not counted twice."""
    model = model_of()
    each = log_qs(model, batch_of(), 0, ALL)
    unlikely = list(min(each, key=each.get))
    labels = torch.tensor([unlikely + [-100] * (LONGEST - len(unlikely)), [2, 1, -100]])
    batch = batch_of(labels)
    for objective in (FusionTrellis(0, beams=2, k=3, max_length=LONGEST), FusionNBest(0, n=2, max_length=LONGEST)):
        log_z, own = objective.sums(model, batch)
        assert (log_z > own).all()
        torch.testing.assert_close(own[0], log_q(model, batch, 0, unlikely))
    found = FusionNBest(0, n=2, max_length=LONGEST).search(model, batch)[0, 0].tolist()
    found = found[: found.index(1) + 1]
    labels = torch.tensor([found + [-100] * (LONGEST - len(found)), [2, 1, -100]])
    trellis = FusionTrellis(0, beams=2, k=3, max_length=LONGEST)
    without = trellis.sums(model, batch_of(labels))[0]  # it has its reference
    log_z, own = trellis.sums(model, batch)
    torch.testing.assert_close(log_z[0], torch.logaddexp(without[0], own[0]))


def test_the_reference_is_in_the_list_once():
    rows = torch.tensor([[[4, 5, 1, 0], [2, 1, 0, 0], [7, 7, 7, 7]], [[1, 0, 0, 0], [4, 1, 0, 0], [5, 1, 0, 0]]])
    labels = torch.tensor([[2, 1, -100, -100, -100], [9, 9, 9, 9, 1]])
    found, counted, place = with_references(rows, labels, [1])
    none = -100
    assert found[0].tolist() == [[4, 5, 1, none, none], [2, 1, none, none, none], [7, 7, 7, 7, none]]
    assert found[1].tolist() == [[1, *[none] * 4], [4, 1, none, none, none], [9, 9, 9, 9, 1]]
    assert counted.tolist() == [[True, True, False], [True, True, True]]
    assert place.tolist() == [1, 2]
    labels[0] = torch.tensor([8, 1, -100, -100, -100])  # what has not ended is the worst
    found, counted, place = with_references(rows, labels, [1])
    assert found[0, 2].tolist() == [8, 1, none, none, none]
    assert counted.all()
    assert place.tolist() == [2, 2]
    rows[0, 1] = rows[0, 0]
    found, counted, place = with_references(rows, labels, [1])
    assert counted[0].tolist() == [True, True, False]
    assert found[0, 1].tolist() == [8, 1, none, none, none]


def test_beta_0_is_the_translation_model_alone():
    """In the loss, whatever the language model."""
    batch = batch_of()
    for name, objective in OBJECTIVES.items():
        one = model_of(beta=0.0)
        other = copy.deepcopy(one)
        for weight in other.language_0.parameters():
            weight.data.mul_(3.0)
        first, second = (objective.loss(model, batch)[0] for model in (one, other))
        assert torch.equal(first, second), name
        each = log_qs(one, batch, 0, ALL, beta=0.0)
        exact = log_partition(lambda row, each=each: each[tuple(row)], ALL)
        torch.testing.assert_close(objective.sums(one, batch)[0][0], exact)


def test_lists_are_made_by_a_model_in_evaluation_mode_and_kept_if_that_is_asked():
    model, batch = model_of(), batch_of()
    model.train()
    for objective in OBJECTIVES.values():
        first, second = (objective.loss(model, batch)[0] for _ in range(2))
        assert model.training
        assert model.translation_0.training
        torch.testing.assert_close(first, second)  # these toys have no dropout
    made, objective = [], FusionNBest(0, n=4, max_length=LONGEST, reuse=2)
    search = objective.search
    objective.search = lambda model, batch: (made.append(len(batch["labels"])), search(model, batch))[1]
    expected = FusionNBest(0, n=4, max_length=LONGEST).loss(model, batch)[0]
    for _ in range(3):
        torch.testing.assert_close(objective.loss(model, batch)[0], expected)
    wider = {
        name: torch.nn.functional.pad(value, (0, 2), value={"input_ids": 0, "attention_mask": 0}.get(name, IGNORED))
        for name, value in batch.items()
    }
    torch.testing.assert_close(objective.loss(model, wider)[0], expected)
    assert made == [2, 2], "the same pairs in a batch that is padded otherwise"


def test_found_by_the_translation_models():
    """Scored by q all the same."""
    model, batch = model_of(beta=3.0), batch_of()
    lists = {
        by: FusionNBest(0, n=3, found_by=by, max_length=LONGEST).search(model, batch) for by in ("q", "translation")
    }
    assert lists["q"].shape[:2] == (2, 3)
    assert lists["q"].tolist() != lists["translation"].tolist()
    wide = FusionNBest(0, found_by="translation", **WIDE)
    each = log_qs(model, batch, 0, ALL, beta=3.0)
    exact = log_partition(lambda row: each[tuple(row)], ALL)
    torch.testing.assert_close(wide.sums(model, batch)[0][0], exact)


def test_symbol_level_training_is_the_loss_of_the_model():
    model, batch = model_of(), batch_of()
    loss, parts = FusionSymbol(0).loss(model, batch)
    torch.testing.assert_close(loss, model(**batch).loss)
    assert parts == {}
    with pytest.raises(ValueError, match="label smoothing is not defined"):
        FusionSymbol(0, label_smoothing=0.1).loss(model, batch)


def test_log_sums():
    values = torch.tensor([1.0, 2.0, -torch.inf, 3.0], requires_grad=True)
    found = log_sums(values, torch.tensor([0, 0, 1, 3]), 4)
    assert found[0].item() == pytest.approx(math.log(math.exp(1) + math.exp(2)))
    assert found[1:].tolist() == [-math.inf, -math.inf, 3.0]
    (gradient,) = torch.autograd.grad(found[[0, 3]].sum(), values)
    assert gradient.tolist() == pytest.approx([1 / (1 + math.e), math.e / (1 + math.e), 0.0, 1.0])


def test_a_trellis_without_dead_ends():
    arcs = [[(0, 5, 0), (0, 6, 1), (0, 1, END)], [(0, 7, 0), (1, 1, END)], []]
    trellis = Trellis([[()], [(5,), (6,)], [(5, 7)]], arcs)
    found = trellis.pruned()
    assert found.nodes == [[()], [(6,)], []]
    assert found.arcs == [[(0, 6, 0), (0, 1, END)], [(0, 1, END)], []]
    assert [found.has(path) for path in ([1], [6, 1], [5, 1], [6], [6, 1, 1])] == [True, True, False, False, False]
