"""The objectives on text, with every system of the zoo: what they read, what they add up, what they train or refuse."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from helpers.contract import TINY, assert_same, gradients, members, redraw
from torch import nn
from transformers import AutoModelForCausalLM, AutoModelForMaskedLM, MarianConfig, MarianMTModel

from hf_mlnmt import UserError, config_for
from hf_mlnmt.recipe.checks import read_objective
from hf_mlnmt.recipe.schema import DistortionSettings
from hf_mlnmt.training.objectives import (
    IGNORED,
    SHOWN,
    DecoderLanguageModel,
    Distortion,
    EncoderCloze,
    EncoderLanguageModel,
    Ingredients,
    PseudoEncoder,
)
from hf_mlnmt.training.preparation import make_objective
from hf_mlnmt.training.tasks import check_needs

SYSTEMS = list({member.system: member for member in members()}.values())
ONES = pytest.mark.parametrize("one", SYSTEMS, ids=lambda member: member.system)
OF_ONE_VOCABULARY = [one for one in SYSTEMS if not hasattr(one.config(), "source_languages")]
OF_EACH_FAMILY = list({type(one.config()): one for one in OF_ONE_VOCABULARY}.values())
SENTENCES = [[7, 12, 9, 20, 15, 1], [11, 1], [6, 18, 13, 1]]
EXAMPLES = [{"input_ids": np.array(ids), SHOWN: np.array([2, number])} for number, ids in enumerate(SENTENCES)]
TAU = Distortion(DistortionSettings(distorted=0.5), 4, np.arange(5), 22, seed=3)


def projection() -> nn.Linear:
    torch.manual_seed(5)
    return nn.Linear(16, 29, bias=False).double()


def sum_of(logits, labels, smoothing=0.0):
    """By hand: a sum over the labels that are not -100."""
    total = torch.zeros((), dtype=torch.float64)
    for row, label_row in zip(logits, labels.tolist()):
        for scores, label in zip(row, label_row):
            if label != IGNORED:
                log_p = scores.log_softmax(-1)
                total = total - (1 - smoothing) * log_p[label] - smoothing * log_p.mean()
    return total


def test_what_the_objectives_read():
    language_model = DecoderLanguageModel(0, 3).collate(EXAMPLES)
    assert language_model["input_ids"].tolist() == [[3, 7, 12, 9, 20, 15], [3, 11, 0, 0, 0, 0], [3, 6, 18, 13, 0, 0]]
    assert language_model["labels"][1].tolist() == [11, 1, *[IGNORED] * 4]
    assert language_model["attention_mask"].sum(1).tolist() == [6, 2, 4]
    assert EncoderLanguageModel(0, 3).collate(EXAMPLES)["input_ids"].equal(language_model["input_ids"])
    cloze = EncoderCloze(0, 3, distortion=TAU).collate(EXAMPLES)
    pseudo = PseudoEncoder(0, 3, distortion=TAU).collate(EXAMPLES)
    for row, ids in enumerate(SENTENCES):
        distorted, chosen = TAU(np.array(ids), 2, row)
        assert cloze["input_ids"][row, : len(ids)].tolist() == distorted.tolist()
        expected = np.where(chosen, ids, IGNORED).tolist()
        assert cloze["labels"][row].tolist() == expected + [IGNORED] * (6 - len(ids))
    assert (cloze["labels"] != IGNORED).any()
    assert pseudo["input_ids"].equal(cloze["input_ids"])
    assert pseudo["labels"].equal(cloze["labels"])
    assert pseudo["decoder_input_ids"].equal(language_model["input_ids"]), "the prefix is undistorted"


@pytest.mark.parametrize("one", OF_ONE_VOCABULARY, ids=lambda member: member.system)
def test_losses_by_hand(one):
    """Of every system; the projection of the encoder's objectives is the objective's. Measured they are unsmoothed."""
    model, head = one.model(**ONE_VOCABULARY), projection()
    common = {"pad_token_id": 0, "start_token_id": 3, "label_smoothing": 0.1}
    for objective in (
        EncoderLanguageModel(**common, head=head),
        EncoderLanguageModel(**common, tie=True),
        EncoderCloze(**common, head=head, distortion=TAU),
        DecoderLanguageModel(**common),
        PseudoEncoder(**common, distortion=TAU),
    ):
        if not all(need.met(model) for need in objective.needs):
            continue  # refused: below
        batch = objective.collate(EXAMPLES)
        ids, mask, labels = batch["input_ids"], batch["attention_mask"], batch["labels"]
        with torch.no_grad():
            loss, parts = objective.loss(model, batch, num_items_in_batch=7)
            if isinstance(objective, DecoderLanguageModel):
                logits = model.lm_head(model.get_decoder()(ids).last_hidden_state)
            elif isinstance(objective, PseudoEncoder):
                logits = model(ids, mask, batch["decoder_input_ids"]).logits
            else:
                causal = {"is_causal": True} if isinstance(objective, EncoderLanguageModel) else {}
                states = model.get_encoder()(ids, mask, **causal).last_hidden_state
                logits = states @ model.get_encoder().embed_tokens.weight.T if objective.tie else head(states)
        assert_same(loss, sum_of(logits, labels, 0.1) / 7)
        assert not parts
        assert_same(objective.measured().loss(model, batch, 1)[0], sum_of(logits, labels))


ONE_VOCABULARY = {"decoder_vocab_size": 29, "share_encoder_decoder_embeddings": True}


def test_they_train_what_the_table_says():
    """Encoder and projection; the decoder without the attention over the source; everything."""
    model, head = SYSTEMS[0].model(), projection()
    for objective, trained in (
        (EncoderLanguageModel(0, 3, head=head), "encoder"),
        (EncoderCloze(0, 3, head=head, distortion=TAU), "encoder"),
        (DecoderLanguageModel(0, 3), "decoder"),
        (PseudoEncoder(0, 3, distortion=TAU), ""),
    ):
        head.zero_grad(set_to_none=True)
        objective.loss(model, objective.collate(EXAMPLES))[0].backward()
        expected = {
            name
            for name, _ in model.named_parameters()
            if (trained in name or "embed_tokens" in name) and not (trained == "decoder" and "source_attn" in name)
        }
        assert gradients(model).keys() == expected
        assert (head.weight.grad is not None) == (trained == "encoder")


@pytest.mark.parametrize("one", OF_EACH_FAMILY, ids=lambda member: member.system)
def test_a_batch_in_which_nothing_was_drawn(one):
    model, tau = one.model(**ONE_VOCABULARY), Distortion(DistortionSettings(), 4, np.arange(29), 30)
    for objective in (EncoderCloze(0, 3, head=projection(), distortion=tau), PseudoEncoder(0, 3, distortion=tau)):
        batch = objective.collate(EXAMPLES)
        assert int(objective.items(batch)) == 0
        for items in (None, 0, torch.tensor(0)):
            loss, _ = objective.loss(model.train(), batch, items)
            loss.backward()
            assert loss == 0
        assert not any(gradient.count_nonzero() for gradient in gradients(model).values())


def test_the_models_of_a_part_are_trained_as_they_train_themselves():
    """Alone: the masked and the causal model of the encoder, and lm, compute the same by their own forward."""
    for name, auto, kind in (
        ("transformer", AutoModelForMaskedLM, EncoderCloze),
        ("enc-dc", AutoModelForCausalLM, EncoderLanguageModel),
        ("lm", AutoModelForCausalLM, DecoderLanguageModel),
    ):
        known = config_for(name, "tiny").to_dict()
        config = config_for(name, "tiny", **{key: value for key, value in TINY.items() if key in known})
        model = auto.from_config(config).eval().double()
        redraw(model)
        objective = kind(0, 3, **({"distortion": TAU} if kind is EncoderCloze else {}))
        check_needs("text", objective, model)
        batch = objective.collate(EXAMPLES)
        shifted = {} if kind is EncoderCloze else {"shift_labels": batch.pop("labels")}
        own = model(**batch, **shifted).loss
        batch["labels"] = batch.get("labels", shifted.get("shift_labels"))
        assert_same(objective.loss(model, batch)[0], own)


# System -> objective -> what it needs and the system has not; everything else can be trained.
REFUSED: dict[str, dict[type, str]] = {
    "ms-1-aif": {DecoderLanguageModel: "a decoder that works without a source .*information_fusion"},
    "ms-123-aif": {DecoderLanguageModel: "a decoder that works without a source .*information_fusion"},
    "rnn": {
        EncoderLanguageModel: "whose self-attention can be made causal",
        DecoderLanguageModel: "which can leave its attention over the source out",
    },
}
KINDS = (EncoderCloze, EncoderLanguageModel, DecoderLanguageModel, PseudoEncoder)
REFUSED |= dict.fromkeys(("bridge-rnn", "bridge-transformer"), dict.fromkeys(KINDS, "one encoder and one decoder"))


@ONES
def test_every_system_is_trained_or_refused_with_the_reason(one):
    model = one.model()
    for kind in KINDS:
        if reason := REFUSED.get(one.system, {}).get(kind):
            with pytest.raises(UserError, match=rf"{kind.__name__} needs .*{reason}"):
                check_needs("text", kind(0, 3), model)
        else:
            check_needs("text", kind(0, 3), model)


def test_models_without_the_part_are_refused():
    lm = AutoModelForCausalLM.from_config(config_for("lm", "tiny", vocab_size=29))
    masked = AutoModelForMaskedLM.from_config(SYSTEMS[0].config())
    marian = MarianMTModel(MarianConfig(vocab_size=20, d_model=16, encoder_layers=1, decoder_layers=1, pad_token_id=0,
                                        encoder_ffn_dim=8, decoder_ffn_dim=8, encoder_attention_heads=2,
                                        decoder_attention_heads=2, decoder_start_token_id=0))  # fmt: skip
    for model, kind, what in (
        (lm, EncoderCloze, "an encoder"),
        (lm, PseudoEncoder, "an encoder and a decoder"),
        (masked, DecoderLanguageModel, "a decoder of this package"),
        (masked, PseudoEncoder, "an encoder and a decoder"),
        (marian, EncoderLanguageModel, "an encoder of this package"),
        (marian, DecoderLanguageModel, "a decoder of this package"),
    ):
        with pytest.raises(UserError, match=f"{kind.__name__} needs {what}"):
            check_needs("text", kind(0, 3), model)
    check_needs("text", EncoderCloze(0, 3), marian)
    objective = EncoderCloze(0, 3, head=nn.Linear(16, 20, bias=False), distortion=TAU)
    objective.loss(marian, {k: v.clamp(max=19) for k, v in objective.collate(EXAMPLES).items()})[0].backward()


def given(model, tokenizer, joint: bool = True, **more) -> Ingredients:
    tokenizers = SimpleNamespace(source=tokenizer, target=tokenizer, joint=joint)
    return Ingredients(model, tokenizers, {"text": "en"}, 0.1, **more)


class Words(list):
    """A tokenizer of 29 entries."""

    def __init__(self, mask: int | None = 4) -> None:
        super().__init__(range(29))
        self.mask_token_id, self.all_special_ids = mask, list(range(5))


def test_what_a_recipe_can_say_and_what_is_refused():
    model = SYSTEMS[0].model()

    def make(name: str, settings=None, **changes):
        named = read_objective({"name": name, **(settings or {})}, "recipe.yaml", ("objective",))
        return make_objective(named, given(model, changes.pop("tokenizer", Words()), **changes))

    cloze = make("encoder-cloze", {"distorted": 0.3, "force": True}, seed=7)
    assert (cloze.distortion.settings.distorted, cloze.distortion.seed, cloze.label_smoothing) == (0.3, 7, 0.1)
    assert cloze.head.weight.shape == (29, 16)
    assert make("encoder-lm", {"tie": True, "label_smoothing": 0.0}).head is None
    assert make("encoder-lm", seed=2).head.weight.equal(make("encoder-lm", seed=2).head.weight)
    assert not make("encoder-lm", seed=2).head.weight.equal(make("encoder-lm", seed=3).head.weight)
    with pytest.raises(UserError, match=r"no <mask>.*Set tokenizer.mask to true"):
        make("encoder-cloze", tokenizer=Words(None))
    with pytest.raises(UserError, match=r"pseudo-encoder reads target text as a source.*tokenizer.joint"):
        make("pseudo-encoder", joint=False)
    with pytest.raises(UserError, match="encoder-lm trains on text of the source side"):
        make("encoder-lm", joint=False, sides=frozenset(["target"]))
    assert make("decoder-lm", joint=False, sides=frozenset(["target"])).start_token_id == 3
