"""fairseq checkpoints against Transformers' ports of its code (M2M100 pre-norm with sines, BART post-norm, learned)."""

from __future__ import annotations

from argparse import Namespace

import pytest
import torch
from helpers.contract import assert_same
from helpers.originals import SIZES, varied
from transformers import BartConfig, BartForConditionalGeneration, M2M100Config, M2M100ForConditionalGeneration

from hf_mlnmt import UserError, import_model
from hf_mlnmt.convert.fairseq import read_dictionary
from hf_mlnmt.generation import TranslationPipeline

TOKENS = [f"w{n}" for n in range(40)]
IDS = {"vocab_size": 44, "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2, "decoder_start_token_id": 2}


def port(learned: bool):
    config = (BartConfig if learned else M2M100Config)(**IDS, **SIZES, scale_embedding=not learned)
    return varied((BartForConditionalGeneration if learned else M2M100ForConditionalGeneration)(config))


def settings(learned: bool, **changes):
    sides = {}
    for side in ("encoder", "decoder"):
        sides |= {
            f"{side}_embed_dim": 16, f"{side}_layers": SIZES[f"{side}_layers"], f"{side}_learned_pos": learned,
            f"{side}_attention_heads": SIZES[f"{side}_attention_heads"], f"{side}_normalize_before": not learned,
            f"{side}_ffn_embed_dim": SIZES[f"{side}_ffn_dim"],
        }  # fmt: skip
    others = {"arch": "transformer_iwslt_de_en", "share_all_embeddings": True, "dropout": 0.0, "source_lang": "en"}
    others |= {"activation_fn": "gelu" if learned else "relu", "no_scale_embedding": learned, "target_lang": "de"}
    others |= {"layernorm_embedding": learned, "max_source_positions": 64, "max_target_positions": 64}
    return {**sides, **others, **changes}


def tensors(model):
    """fairseq's names: those of the port without its outermost module."""
    found = {name.removeprefix("model."): value for name, value in model.state_dict().items()}
    found.pop("final_logits_bias", None)
    found.pop("shared.weight", None)
    found["decoder.output_projection.weight"] = found.pop("lm_head.weight")
    found["encoder.version"] = torch.tensor([3.0])
    if "encoder.embed_positions.weight" not in found:
        found |= {f"{side}.embed_positions._float_tensor": torch.zeros(1) for side in ("encoder", "decoder")}
    return found


@pytest.fixture
def checkpoint(tmp_path):
    """Makes a folder with checkpoint_best.pt and dictionaries."""

    def make(learned=False, later=False, change=lambda content: content, **changes):
        args = settings(learned, **changes)
        known = (
            {"cfg": {"model": Namespace(**args, _name="transformer")}, "args": None}
            if later
            else {"args": Namespace(**args)}
        )
        folder = tmp_path / "fairseq"
        folder.mkdir()
        for language in ("en", "de"):
            (folder / f"dict.{language}.txt").write_text("".join(f"{token} 7\n" for token in TOKENS))
        content = {**known, "model": tensors(port(learned)), "extra_state": {"epoch": 3}}
        torch.save(change(content), folder / "checkpoint_best.pt")
        return folder

    return make


@pytest.mark.parametrize("later", [False, True], ids=["args", "cfg"])
@pytest.mark.parametrize("learned", [False, True], ids=["sines", "learned"])
def test_logits_are_those_of_the_port(checkpoint, learned, later):
    model, original = import_model(checkpoint(learned, later)).model, port(learned)
    generator = torch.Generator().manual_seed(1)
    ids = {name: torch.randint(4, 44, (2, 9), generator=generator) for name in ("input_ids", "decoder_input_ids")}
    with torch.no_grad():
        expected, found = (each.double()(**ids).logits for each in (original, model))
    assert_same(found, expected, 1e-12 * expected.abs().max().item())


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"dropout": 0.3, "attention_dropout": 0.2, "activation_dropout": 0.4}, (0.3, 0.2, 0.4)),
        ({"dropout": 0.3, "relu_dropout": 0.4}, (0.3, 0.0, 0.4)),
    ],
)
def test_rates_of_dropout_are_taken_over(checkpoint, given, expected):
    config = import_model(checkpoint(**given)).model.config
    assert (config.dropout, config.attention_dropout, config.activation_dropout) == expected


def test_an_output_that_is_the_targets_embedding(checkpoint):
    """Of two embeddings; earlier versions saved no matrix of the output's own."""

    def change(content):
        del content["model"]["decoder.output_projection.weight"]
        content["model"]["encoder.embed_tokens.weight"] = 2 * content["model"]["decoder.embed_tokens.weight"]
        return content

    shared = {"share_all_embeddings": False, "share_decoder_input_output_embed": True}
    model = import_model(checkpoint(change=change, **shared)).model
    source, target = model.get_encoder().embed_tokens.weight, model.get_decoder().embed_tokens.weight
    assert model.lm_head.weight is target
    assert torch.equal(source, 2 * target)


def test_a_folder_translates_text_that_is_cut(checkpoint, tmp_path):
    imported = import_model(checkpoint(), tmp_path / "out")
    assert imported.tokenizers.joint
    assert imported.tokenizers.encode_source(["w3 w0 what"])[0].tolist() == [7, 4, 3, 2]
    assert "cut already" in imported.record["notes"][0]
    assert imported.tokenizers.decode_target([[0, 7, 4, 2, 1]]) == ["w3 w0"]
    (found,) = TranslationPipeline.from_pretrained(imported.folder, device="cpu")(["w3 w0 w9"], max_new_tokens=5)
    assert set(found.split()) <= set(TOKENS)


class Evil:
    def __reduce__(self):
        return (print, ("run",))


def model_with(**tensors):
    return lambda content: {**content, "model": {**content["model"], **tensors}}


def without(name):
    return lambda content: {**content, "model": {k: v for k, v in content["model"].items() if k != name}}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (without("encoder.layers.0.fc1.weight"), "fc1.weight is missing"),
        (model_with(adapter=torch.ones(2)), "no place for: adapter"),
        (model_with(**{"decoder.output_projection.weight": torch.ones(44, 16)}), "should be the same tensor"),
        (model_with(**{"encoder.layers.0.fc1.weight": torch.ones(3, 16)}), "settings in the checkpoint ask"),
        (lambda content: {**content, "model": [1]}, "model: a mapping of names to tensors is expected"),
        (
            lambda content: {**content, "extra_state": Evil()},
            r"it asks for (builtins\.)?print\. Code in a checkpoint is never run",
        ),
        (lambda content: {"model": content["model"]}, "unknown layout"),
        (lambda content: [1], "this is a list"),
    ],
)
def test_what_is_not_whole_is_refused(checkpoint, change, message, tmp_path, capsys):
    folder = checkpoint(change=change)
    with pytest.raises(UserError, match=message):
        import_model(folder, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    assert "run" not in capsys.readouterr().out.split()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"arch": "fconv"}, "arch fconv"),
        ({"arch": "transformer_lm_big"}, "arch transformer_lm_big"),
        ({"adaptive_softmax_cutoff": "1,2"}, "adaptive_softmax_cutoff"),
        ({"decoder_embed_dim": 32}, "embed_dim is 16 in the encoder, 32 in the decoder"),
        ({"encoder_layers": None}, "nothing is said of encoder_layers"),
        ({"activation_fn": "linear3"}, "activation linear3"),
        ({"activation_fn": ["relu"]}, "activation"),
        ({"no_scale_embedding": "false"}, "no_scale_embedding: 'false'"),
        ({"decoder_layers": 10**12}, "decoder_layers is 1,000,000,000,000, which the weights cannot have"),
        ({"max_source_positions": "many"}, "max_target_positions: 'many' is no length"),
        ({"max_source_positions": 10**12}, "max_target_positions: 1000000000000 is no length"),
    ],
)
def test_settings_that_the_baseline_lacks(checkpoint, changes, message):
    with pytest.raises(UserError, match=message):
        import_model(checkpoint(**changes))


def test_a_dictionary_ends_lines_at_line_feeds(tmp_path):
    tokens = ["a\x85b", "\u2028", "\x0b", "\x1c", "a\rb", "\x0c", "\u2029"]
    (tmp_path / "dict.txt").write_bytes("".join(f"{token} {n}\n" for n, token in enumerate(tokens)).encode())
    assert list(read_dictionary(tmp_path / "dict.txt"))[4:] == tokens
    (tmp_path / "dict.txt").write_bytes(b"a 3\r\nb 2 #fairseq:overwrite\r\n")
    assert list(read_dictionary(tmp_path / "dict.txt"))[4:] == ["a", "b"]
    (tmp_path / "dict.txt").write_bytes(b"lat\xe4 3\n")
    with pytest.raises(UserError, match=r"dict\.txt: not UTF-8"):
        read_dictionary(tmp_path / "dict.txt")


def test_a_dictionary_that_is_shorter_than_the_embeddings_is_said(checkpoint):
    """fairseq pads the embeddings to whole multiples."""
    folder = checkpoint()
    for language in ("en", "de"):
        (folder / f"dict.{language}.txt").write_text("".join(f"{token} 7\n" for token in TOKENS[:37]))
    imported = import_model(folder)
    assert imported.model.config.vocab_size == 44
    assert len(imported.tokenizers.source) == 41
    assert "decoder.embed_tokens.weight has 44 rows, its dictionary 41 tokens" in str(imported.record)


def test_dictionaries(checkpoint):
    folder = checkpoint()
    (folder / "dict.de.txt").write_text("alone\n")
    with pytest.raises(UserError, match="line 1: a token and its count"):
        import_model(folder)
    (folder / "dict.de.txt").write_text("w1 3\n")
    with pytest.raises(UserError, match="its sides share their embeddings, but their dictionaries beside it differ"):
        import_model(folder)
    (folder / "dict.de.txt").unlink()
    with pytest.raises(UserError, match=r"dict\.de\.txt or dict\.txt is not beside it"):
        import_model(folder)
