"""The contract of every model, part four: what is saved and loaded, and the code that lies beside the weights."""

from __future__ import annotations

import itertools
import sys
from pathlib import Path

import pytest
import torch
from helpers.contract import RECURRENT, Member, assert_same, members_once, of_each_kind
from helpers.once import asked_for, made_once
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModel, AutoModelForSeq2SeqLM
from transformers.dynamic_module_utils import get_imports


def logits_of(model, batch):
    with torch.no_grad():
        return model(**batch.inputs).logits


def test_config_round_trip(member, tmp_path):
    config = member.config(dropout=0.25)
    config.save_pretrained(tmp_path)
    loaded = AutoConfig.from_pretrained(tmp_path)
    assert type(loaded) is type(config)
    assert loaded.to_dict() | {"_name_or_path": ""} == config.to_dict()


def test_round_trip_is_exact(member, model, batch, tmp_path):
    """Weights and tables; what the config says is tied is one parameter, before and after, and is saved once."""
    model.save_pretrained(tmp_path)
    loaded, report = AutoModelForSeq2SeqLM.from_pretrained(tmp_path, output_loading_info=True)
    assert type(loaded) is type(model)
    assert not any(report.values()), report
    assert loaded.dtype == torch.float64
    assert torch.equal(logits_of(loaded, batch), logits_of(model, batch))
    assert not [name for name, p in loaded.named_parameters() if not p.requires_grad]
    buffers = dict(loaded.named_buffers())
    assert bool(buffers) == (member.system not in RECURRENT)  # which have no tables
    assert buffers.keys() == dict(model.named_buffers()).keys()
    for name, value in model.named_buffers():  # not saved, they are computed anew
        assert torch.equal(buffers[name], value.to(buffers[name].dtype)), name
    config = model.config
    distinct = 3 - config.tie_word_embeddings - config.share_encoder_decoder_embeddings
    for one in (model, loaded):
        tables = [one.lm_head, one.get_decoder().embed_tokens, one.get_encoder().embed_tokens]
        assert len({id(table.weight) for table in tables}) == distinct
    vocabularies = {config.vocab_size, config.decoder_vocab_size}
    saved = load_file(tmp_path / "model.safetensors")
    assert sum(1 for value in saved.values() if value.dim() == 2 and value.shape[0] in vocabularies) == distinct
    assert sum(value.numel() for value in saved.values()) == model.num_parameters()


def with_lora(**options):
    """Merges a LoRA adapter, and what was saved beside it, into the model; all of it differs from what was there."""

    def change(model):
        adapted = get_peft_model(model, LoraConfig(r=2, init_lora_weights=False, **options))
        with torch.no_grad():
            for name, parameter in adapted.named_parameters():
                if "modules_to_save" in name:
                    parameter.copy_(torch.randn_like(parameter))
        return adapted.merge_and_unload()

    return change


def with_its_own(*names):
    def change(model):
        for name in names:
            part = model.get_submodule(name)
            part.weight = torch.nn.Parameter(torch.randn_like(part.weight))
        return model

    return change


def untied_by_hand(model):
    model.config.tie_word_embeddings = False
    return model


ENCODER, DECODER, OUTPUT = "model.encoder.embed_tokens", "model.decoder.embed_tokens", "lm_head"
# Change of a model -> which of encoder, decoder and output it gives a table of its own (None: all are one table).
CHANGES = {
    "LoRA of all layers": (with_lora(), ""),
    "LoRA and its own output": (with_lora(modules_to_save=["lm_head"]), "o"),
    "LoRA and its own embeddings": (with_lora(modules_to_save=["embed_tokens"]), "edo"),
    "LoRA and all three": (with_lora(modules_to_save=["embed_tokens", "lm_head"]), "edo"),
    "an output of its own": (with_its_own(OUTPUT), "o"),
    "an encoder's table of its own": (with_its_own(ENCODER), "e"),
    "a decoder's table of its own": (with_its_own(DECODER), "edo"),
    "three tables": (with_its_own(ENCODER, DECODER, OUTPUT), "edo"),
    "untied in the config alone": (untied_by_hand, ""),
    "nothing": (lambda model: model, ""),
}


VOCABULARIES = {
    "one": {},
    "two": {"decoder_vocab_size": 27, "share_encoder_decoder_embeddings": False},
    "one, as two": {"share_encoder_decoder_embeddings": False},
    "output untied": {"tie_word_embeddings": False},
    "all untied": {"tie_word_embeddings": False, "share_encoder_decoder_embeddings": False},
}
SYSTEMS = list({member.system: member for member in members_once()}.values())
TIES = [
    (SYSTEMS[0], change, vocabularies)
    for change in CHANGES
    for vocabularies in (("one", "two") if "LoRA" in change else VOCABULARIES)
]
TIES += [(system, "untied in the config alone", vocabulary) for system in SYSTEMS[1:] for vocabulary in ("one", "two")]


@pytest.mark.filterwarnings("ignore:(?s).*(tied|tie_word_embeddings)")
@pytest.mark.parametrize(
    ("system", "change", "vocabularies"),
    [pytest.param(*case, id=", ".join(map(str, case)), marks=of_each_kind(case[:1])[0].marks) for case in TIES],
)
def test_what_is_tied_is_what_the_weights_say(system, change, vocabularies, batch, tmp_path):
    """Whatever was tied or untied, and by whom: the model that is saved is the one that is loaded, also resized."""
    torch.manual_seed(0)
    make, own = CHANGES[change]
    model = make(system.model(**VOCABULARIES[vocabularies])).eval()
    told = system.config(**VOCABULARIES[vocabularies])
    for size in (None, 40):
        if size:
            if not model.config.share_encoder_decoder_embeddings:
                continue  # two vocabularies stay
            model.resize_token_embeddings(size)
        folder = tmp_path / str(size)
        model.save_pretrained(folder)
        loaded, report = AutoModelForSeq2SeqLM.from_pretrained(folder, output_loading_info=True)
        assert not any(report.values()), report
        assert_same(logits_of(loaded, batch), logits_of(model, batch))
        tables = [loaded.get_encoder().embed_tokens, loaded.get_decoder().embed_tokens, loaded.lm_head]
        sizes = [told.vocab_size, told.decoder_vocab_size, told.decoder_vocab_size]
        assert [table.weight.shape[0] for table in tables] == ([size] * 3 if size else sizes)
        shared, tied = (one.weight is other.weight for one, other in itertools.pairwise(tables))
        assert shared == (told.share_encoder_decoder_embeddings and not set("ed") & set(own))
        assert tied == (told.tie_word_embeddings and "o" not in own)
        assert (shared, tied) == (loaded.config.share_encoder_decoder_embeddings, loaded.config.tie_word_embeddings)
        saved = load_file(folder / "model.safetensors")
        assert sum(value.numel() for value in saved.values()) == loaded.num_parameters()


@pytest.fixture
def unwritten_is_nan():
    """Memory that nobody has written to holds NaN, instead of what was there before, often zeros."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def test_missing_weights_begin_like_new_ones(member, tmp_path, unwritten_is_nan):
    """All but the embeddings and a layer of the decoder. What is drawn has the deviation of what is drawn for a new
    model, to 5 deviations of the difference of two such estimates; what is constant is the same."""
    torch.manual_seed(0)
    model = AutoModelForSeq2SeqLM.from_config(member.config(attention_bias=True))
    model.save_pretrained(tmp_path)
    path = tmp_path / "model.safetensors"
    kept = {k: v + 1.0 for k, v in load_file(path).items() if "embed_tokens" in k or ".decoder.layers.1." in k}
    save_file(kept, path, metadata={"format": "pt"})
    loaded = AutoModelForSeq2SeqLM.from_pretrained(tmp_path)
    fresh = dict(model.named_parameters())
    tied = ("embed_tokens", "lm_head")  # they are there, under one of their names
    missing = [name for name in fresh if name not in kept and not any(part in name for part in tied)]
    assert missing
    for name, value in loaded.named_parameters():
        deviation = float(fresh[name].std(unbiased=False))
        if name in kept:
            assert torch.equal(value, fresh[name] + 1.0), name
        elif name in missing and not deviation:
            assert torch.equal(value, fresh[name]), name
        elif name in missing:
            assert 0 < float(value.std(unbiased=False)) < deviation * (1 + 5 * value.numel() ** -0.5), name
            assert abs(float(value.mean() - fresh[name].mean())) < 5 * deviation * (2 / value.numel()) ** 0.5, name


def test_base_model_and_head_share_a_checkpoint(model, batch, tmp_path):
    model.save_pretrained(tmp_path / "head")
    base = AutoModel.from_pretrained(tmp_path / "head").eval()
    states = base(**batch.inputs).last_hidden_state
    assert_same(model.lm_head(states), logits_of(model, batch))
    base.save_pretrained(tmp_path / "base")
    loaded = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "base")
    assert_same(loaded.model(**batch.inputs).last_hidden_state, states)


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
def test_resized_vocabulary(member, batch, tmp_path, tied):
    """With one vocabulary both sides grow together; the grown model saves and loads. Two vocabularies stay."""
    model = member.model(**({} if tied else {"tie_word_embeddings": False}))
    before = logits_of(model, batch)
    if not model.config.share_encoder_decoder_embeddings:
        with pytest.raises(ValueError, match="for each side cannot be resized"):
            model.resize_token_embeddings(35)
        return
    model.resize_token_embeddings(35)
    after = logits_of(model, batch)
    assert after.shape[-1] == 35
    assert_same(after[..., : before.shape[-1]], before)
    assert (model.config.vocab_size, model.config.decoder_vocab_size) == (35, 35)
    one = model.get_output_embeddings().weight is model.get_decoder().embed_tokens.weight
    assert one == model.config.tie_word_embeddings
    model.save_pretrained(tmp_path)
    assert_same(logits_of(AutoModelForSeq2SeqLM.from_pretrained(tmp_path), batch), after)


@pytest.fixture(scope="session")
def saved_with_code(request, tmp_path_factory) -> Path:
    """The folder of all members, each saved with its code; test_generate.py reads such folders without the package."""
    members = asked_for(request, "member")
    return made_once(tmp_path_factory, "hub", lambda root: publish(root, members))


def publish(root: Path, published: list[Member]) -> None:
    for member in published:
        model = member.model()
        model.config.register_for_auto_class()
        type(model).register_for_auto_class("AutoModelForSeq2SeqLM")
        try:
            model.save_pretrained(root / str(member))
        finally:  # the other tests save weights alone
            type(model)._auto_class = type(model.config)._auto_class = None


def test_published_folder_loads_with_the_package_and_no_remote_code(member, model, batch, saved_with_code):
    loaded = AutoModelForSeq2SeqLM.from_pretrained(saved_with_code / str(member))
    assert type(loaded) is type(model)
    assert torch.equal(logits_of(loaded, batch), logits_of(model, batch))


def test_published_code_imports_only_torch_and_transformers(member, saved_with_code):
    allowed = {"torch", "transformers", "huggingface_hub", *sys.stdlib_module_names}
    optional = {"triton", "hf_mlnmt"}  # inside `try`: used if they are there
    for path in (saved_with_code / str(member)).glob("*.py"):
        assert set(get_imports(path)) <= allowed, path.name  # what Transformers asks a reader to install
        for line in path.read_text().splitlines():
            words = line.split()
            if words[:1] in (["import"], ["from"]) and (words[0] == "import" or "import" in words[2:3]):
                assert words[1].startswith(".") or words[1].split(".")[0] in allowed | optional, f"{path.name}: {line}"


BASELINE = {"attention", "configuration", "generation", "layers", "linear", "loss", "outputs", "releases"}
BASELINE |= {"stack", "transformer"}


def test_published_code_is_the_paper_and_the_baseline(member, saved_with_code):
    """Neither kernels nor searches go along: beside the baseline's files there are files of the paper's family."""
    copied = {path.stem for path in (saved_with_code / str(member)).glob("*.py")}
    assert copied >= BASELINE
    assert (copied == BASELINE) == (member.system == "transformer")
    assert not [name for name in copied if "fused" in name or "triton" in name]
