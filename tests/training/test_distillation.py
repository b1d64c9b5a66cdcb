"""A student's loss: against loops in float64, with gradients; what it learns, keeps and refuses."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from helpers.export_toys import joint_tokenizer, toy_model, write_folder
from helpers.model_folders import SENTENCES
from reference import distillation as reference

from hf_mlnmt import UserError
from hf_mlnmt.data.tokenizer import Tokenizers, train_tokenizer
from hf_mlnmt.generation.translating.alignments import Aligner
from hf_mlnmt.generation.translating.loading import Parts
from hf_mlnmt.recipe.schema import DistillationSettings
from hf_mlnmt.training.distillation import Distillation
from hf_mlnmt.training.objectives import SHOWN, Ingredients

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def teacher(tmp_path_factory):
    tokenizers = joint_tokenizer()
    return write_folder(tmp_path_factory.mktemp("teacher") / "one", tokenizers, toy_model(tokenizers))


@pytest.fixture(scope="module")
def unigram():
    return Tokenizers(*[train_tokenizer(SENTENCES, "unigram", 350)] * 2)


def make(model, tokenizers, **settings):
    given = Ingredients(model, tokenizers, {"source": "en", "target": "de"}, 0.1)
    return Distillation.of(DistillationSettings(**settings), given)


def batch_of(objective, tokenizers, texts=SENTENCES[:3]):
    """Pairs of different lengths; each target is the next sentence."""
    sides = tokenizers.encode_source(texts), tokenizers.encode_target([*texts[1:], texts[0]])
    examples = [{"input_ids": x, "labels": y, SHOWN: np.array([0, i])} for i, (x, y) in enumerate(zip(*sides))]
    return objective.collate(examples)


@pytest.mark.parametrize("system", ["transformer", "ssru"])
def test_the_loss_and_its_gradients_equal_the_reference(teacher, system):
    tokenizers = joint_tokenizer()
    model = toy_model(tokenizers, system, dropout=0.0, d_model=16).double()
    objective = make(model, tokenizers, teacher=[str(teacher), str(teacher)], words=0.3, alignment=0.7)
    objective.model.double()
    batch = batch_of(objective, tokenizers, [" ".join(text.split()[: 3 + n]) for n, text in enumerate(SENTENCES[:3])])
    loss, parts = objective.loss(model, batch)
    numbers = batch.pop("sentence")
    assert numbers.tolist() == [0, 1, 2]
    labels, items = batch["labels"], int((batch["labels"] != -100).sum())
    seen = {}
    attention = model.model.decoder.layers[-1].source_attn
    for name in ("q_proj", "kv_proj"):
        layer = getattr(attention, name)
        layer.register_forward_hook(lambda module, inputs, output, name=name: seen.update({name: output}))
    logits = model(**batch, use_cache=False).logits
    logs = logits.log_softmax(-1)
    real = labels != -100
    smoothed = -0.9 * logs[real].gather(1, labels[real][:, None]).sum() - 0.1 * logs[real].mean(1).sum()
    of_teacher = {**batch, "decoder_input_ids": model.prepare_decoder_input_ids_from_labels(labels)}
    del of_teacher["labels"]
    with torch.no_grad():
        wanted = objective.model(**of_teacher).logits
    size = 16 // attention.heads
    links = [{(t, s) for t, s in matrix.nonzero().tolist()} for matrix in map(objective.links.get, range(3))]
    assert all(links)
    heads = seen["q_proj"][..., :size], seen["kv_proj"][..., :size]
    aligned = reference.alignment_loss(*heads, links, batch["attention_mask"])
    expected = 0.7 * smoothed + 0.3 * reference.words_loss(wanted, logits, labels) + 0.7 * aligned
    torch.testing.assert_close(loss, expected / items, rtol=1e-6, atol=1e-9)
    assert set(parts) == {"translation", "words", "alignment"}
    torch.testing.assert_close(parts["alignment"], 0.7 * aligned / items, rtol=1e-6, atol=1e-9)
    found, wished = (torch.autograd.grad(each, list(model.parameters())) for each in (loss, expected / items))
    for ours, theirs in zip(found, wished, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-8)


def test_a_student_with_other_subwords_learns_where_its_teacher_looks(teacher, unigram):
    torch.manual_seed(1)
    model = toy_model(unigram, dropout=0.0).train()
    objective = make(model, unigram, teacher=str(teacher), alignment=1.0)
    batch = batch_of(objective, unigram, SENTENCES[:6])
    optimizer, losses = torch.optim.Adam(model.parameters(), lr=6e-3), []
    for _ in range(32):
        loss, parts = objective.loss(model, batch)
        losses.append(parts["alignment"].item())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    assert losses[-1] < 0.5 * losses[0]
    with torch.autocast("cpu", torch.bfloat16):
        assert objective.loss(model, batch)[1]["alignment"].item() == pytest.approx(losses[-1], rel=0.1)
    assert model.generation_config.alignment_head == [model.config.decoder_layers, 1]
    aligner, pairs = Aligner(Parts(model.eval(), unigram)), (SENTENCES[:6], [*SENTENCES[1:6], SENTENCES[0]])
    ours, theirs = aligner.links(*pairs), objective.aligner.links(*pairs)
    same = sum(len({*a} & {*b}) for a, b in zip(ours, theirs)) / sum(map(len, theirs))
    assert same > 0.7


def test_links_are_of_words_and_made_once(teacher, unigram, monkeypatch):
    """Every subword of a word is linked to every subword of the word that the teacher links it to; no mark is."""
    objective = make(toy_model(unigram), unigram, teacher=str(teacher), alignment=0.1)
    batch = batch_of(objective, unigram)
    asked = []
    monkeypatch.setattr(Aligner, "links", lambda self, sources, targets: asked.append(sources) or [[(0, 1)]] * 3)
    guide = objective.guide(batch, batch["sentence"])
    assert torch.equal(objective.guide(batch, batch["sentence"]), guide)
    assert asked == [SENTENCES[:3]]
    for ids, labels, rows in zip(batch["input_ids"], batch["labels"], guide):
        sides = [(unigram.source.convert_ids_to_tokens([max(i, 0) for i in side.tolist()])) for side in (labels, ids)]
        begins = [[n for n, piece in enumerate(side) if piece.startswith("▁")] for side in sides]
        first = [n for n in range(begins[1][0], begins[1][1]) if sides[1][n] != "▁"]
        end = begins[0][2] if len(begins[0]) > 2 else sides[0].index("</s>")
        second = [n for n in range(begins[0][1], end) if sides[0][n] != "▁"]
        expected = torch.zeros_like(rows)
        for target in second:
            expected[target, first] = 1 / len(first)
        torch.testing.assert_close(rows, expected)


def test_what_cannot_be_taught(teacher, unigram):
    with pytest.raises(UserError, match="give a teacher, and words or alignment above 0"):
        DistillationSettings(teacher=str(teacher))
    with pytest.raises(UserError, match="vocabulary is not that of the student"):
        make(toy_model(unigram), unigram, teacher=str(teacher), words=0.5)
    with pytest.raises(UserError, match="another attention over the source in its last decoder layer"):
        make(toy_model(unigram, "m-10"), unigram, teacher=str(teacher), alignment=0.1)
    model = toy_model(unigram).train()
    objective = make(model, unigram, teacher=str(teacher), alignment=0.1)
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": True})
    with pytest.raises(UserError, match="does not go with gradient checkpointing"):
        objective.loss(model, batch_of(objective, unigram))


def test_sentences_without_a_number_have_links_of_their_own(teacher, unigram):
    objective = make(toy_model(unigram), unigram, teacher=str(teacher), alignment=0.1)
    nameless = torch.full((3,), -1)
    for texts in (SENTENCES[:3], SENTENCES[3:6]):
        batch = batch_of(objective, unigram, texts)
        fresh = make(toy_model(unigram), unigram, teacher=str(teacher), alignment=0.1)
        assert torch.equal(objective.guide(batch, nameless), fresh.guide(batch, batch["sentence"]))
