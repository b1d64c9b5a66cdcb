"""Checkpoints in the layouts of JoeyNMT, OpenNMT-py 3 and Eole: every weight follows from its name, in any process."""

from __future__ import annotations

import json
import zlib
from argparse import Namespace

import torch
import yaml
from safetensors.torch import save_file

WORDS = [f"w{n}" for n in range(40)]
WIDTH, INNER, LAYERS = 16, 24, {"encoder": 2, "decoder": 1}
IDS = torch.tensor([[5, 9, 31, 22, 7, 3], [40, 8, 30, 3, 1, 1]])  # the last two are padding
TARGET = torch.tensor([[2, 6, 11, 43, 19], [2, 25, 7, 33, 4]])


def weight(name: str, *shape: int) -> torch.Tensor:
    """Numbers that are all different; of matrices about as large as those of a trained model."""
    count = torch.Size(shape).numel()
    waves = torch.sin(torch.arange(count, dtype=torch.float64) * 12.9898 + zlib.crc32(name.encode()) % 1000)
    if len(shape) == 1:  # norms and biases
        return (0.3 * waves + float(name.endswith("norm.weight") or ("norm_" in name and "weight" in name))).float()
    return (waves * (2.0 if "embed" in name or "lut" in name else 0.6)).reshape(shape).float()


def linear(name: str, outputs: int, inputs: int, bias: bool = True) -> dict[str, torch.Tensor]:
    made = {f"{name}.weight": weight(f"{name}.weight", outputs, inputs)}
    return made | ({f"{name}.bias": weight(f"{name}.bias", outputs)} if bias else {})


def norm(name: str) -> dict[str, torch.Tensor]:
    return {f"{name}.weight": 1 + weight(f"{name}.bias2", WIDTH), f"{name}.bias": weight(f"{name}.bias", WIDTH)}


def sines(kind: str = "SinusoidalInterleaved", length: int = 5000) -> torch.Tensor:
    """(length, WIDTH) in float32, as the toolkits compute it."""
    half = torch.arange(WIDTH // 2, dtype=torch.float)
    interleaved = kind == "SinusoidalInterleaved"
    step = torch.log(torch.tensor(10000.0)) / (WIDTH / 2 if interleaved else WIDTH // 2 - 1)
    angles = torch.arange(length, dtype=torch.float)[:, None] * torch.exp(half * -step)
    if interleaved:
        return torch.stack([angles.sin(), angles.cos()], -1).flatten(1)
    return torch.cat([angles.sin(), angles.cos()], 1)


# JoeyNMT -------------------------------------------------------------------------------------------------------------


def joeynmt(folder, norm_position="pre", tied=True, activation="relu", change=lambda content: content, **settings):
    """A folder as JoeyNMT's training leaves it."""
    folder.mkdir()
    tensors = {"src_embed.lut.weight": weight("src_embed.lut.weight", 44, WIDTH)}
    tensors["trg_embed.lut.weight"] = tensors["src_embed.lut.weight"] if tied else weight("trg.embed", 44, WIDTH)
    tensors["decoder.output_layer.weight"] = tensors["trg_embed.lut.weight"] if tied else weight("output", 44, WIDTH)
    for side, attentions in (("encoder", ["src_src_att"]), ("decoder", ["trg_trg_att", "src_trg_att"])):
        tensors[f"{side}.pe.pe"] = sines()[None]
        tensors |= norm(f"{side}.layer_norm") if norm_position == "pre" else {}
        for layer in range(LAYERS[side]):
            name = f"{side}.layers.{layer}"
            norms = ["layer_norm"] if side == "encoder" else ["x_layer_norm", "dec_layer_norm"]
            for each in [*norms, "feed_forward.layer_norm"]:
                tensors |= norm(f"{name}.{each}")
            for attention in attentions:
                for part in ("k_layer", "v_layer", "q_layer", "output_layer"):
                    tensors |= linear(f"{name}.{attention}.{part}", WIDTH, WIDTH)
            tensors |= linear(f"{name}.feed_forward.pwff_layer.0", INNER, WIDTH)
            tensors |= linear(f"{name}.feed_forward.pwff_layer.3", WIDTH, INNER)
    side = {
        "type": "transformer", "hidden_size": WIDTH, "ff_size": INNER, "dropout": 0.1, "layer_norm": norm_position,
        "activation": activation, "embeddings": {"embedding_dim": WIDTH, "scale": True},
    }  # fmt: skip
    language = {"level": "word", "lowercase": False}
    content = {
        "name": "toy", "model_dir": str(folder), "use_cuda": False, "training": {},
        "data": {"src": {**language, "lang": "en"}, "trg": {**language, "lang": "de"}, "special_symbols": {}},
        "testing": {"beam_size": 5, "beam_alpha": 1.0},
        "model": {
            "tied_embeddings": tied, "tied_softmax": tied,
            "encoder": {**side, "num_layers": LAYERS["encoder"], "num_heads": 2},
            "decoder": {**side, "num_layers": LAYERS["decoder"], "num_heads": 4},
        },
    }  # fmt: skip
    set_in(content, settings)
    (folder / "config.yaml").write_text(yaml.safe_dump(content))
    for name in ("src_vocab.txt", "trg_vocab.txt"):
        (folder / name).write_text("".join(f"{token}\n" for token in ("<unk>", "<pad>", "<s>", "</s>", *WORDS)))
    file = {"model_state": tensors, "optimizer_state": {}, "scaler_state": None, "stats_state": {"steps": 3}}
    torch.save(change(file), folder / "best.ckpt")
    return folder


# OpenNMT-py and Eole -------------------------------------------------------------------------------------------------


def _attention(name: str, bias: bool) -> dict[str, torch.Tensor]:
    parts = ("linear_keys", "linear_values", "linear_query", "final_linear")
    return {k: v for part in parts for k, v in linear(f"{name}.{part}", WIDTH, WIDTH, bias).items()}


def opennmt(folder, bias=False, tied=False, change=lambda content: content, **settings):
    """A folder with a checkpoint of OpenNMT-py 3."""
    folder.mkdir()
    options = {
        "model_task": "seq2seq", "model_type": "text", "encoder_type": "transformer", "decoder_type": "transformer",
        "enc_layers": LAYERS["encoder"], "dec_layers": LAYERS["decoder"], "enc_hid_size": WIDTH, "dec_hid_size": WIDTH,
        "hidden_size": WIDTH, "src_word_vec_size": WIDTH, "tgt_word_vec_size": WIDTH, "word_vec_size": WIDTH,
        "heads": 4, "transformer_ff": INNER, "dropout": [0.1], "attention_dropout": [0.2], "position_encoding": True,
        "position_encoding_type": "SinusoidalInterleaved", "add_qkvbias": bias, "add_ffnbias": bias, "norm_eps": 1e-6,
        "pos_ffn_activation_fn": "relu", "share_embeddings": tied, "share_decoder_embeddings": tied, "layers": -1,
        "data": {"corpus_1": {"transforms": ["sentencepiece", "filtertoolong"]}}, "src_subword_model": "/x/joint.spm",
    }  # fmt: skip
    options |= settings
    tensors, table = {}, sines(options["position_encoding_type"])[:, None]
    source = weight("source.embed", 48, WIDTH)
    target = source if tied else weight("target.embed", 48, WIDTH)
    for side, embedding in (("encoder", source), ("decoder", target)):
        tensors[f"{side}.embeddings.make_embedding.emb_luts.0.weight"] = embedding
        tensors[f"{side}.embeddings.make_embedding.pe.pe"] = table
        tensors |= norm(f"{side}.layer_norm")
        for layer in range(LAYERS[side]):
            name = f"encoder.transformer.{layer}" if side == "encoder" else f"decoder.transformer_layers.{layer}"
            norms = ["layer_norm"] if side == "encoder" else ["layer_norm_1", "layer_norm_2"]
            for each in [*norms, "feed_forward.layer_norm"]:
                tensors |= norm(f"{name}.{each}")
            for attention in ["self_attn"] if side == "encoder" else ["self_attn", "context_attn"]:
                tensors |= _attention(f"{name}.{attention}", bias)
            tensors |= linear(f"{name}.feed_forward.w_1", INNER, WIDTH, bias)
            tensors |= linear(f"{name}.feed_forward.w_2", WIDTH, INNER, bias)
    generator = {"weight": target if tied else weight("generator", 48, WIDTH), "bias": weight("generator.bias", 48)}
    content = {"model": tensors, "generator": generator, "vocab": _vocabulary(), "opt": Namespace(**options)}
    torch.save(change({**content, "optim": {"step": 3}}), folder / "model_step_10.pt")
    return folder


def _vocabulary() -> dict:
    tokens = ["<unk>", "<blank>", "<s>", "</s>", *WORDS, *(f"averyunlikelytoken{n}" for n in range(4))]
    return {"src": tokens, "tgt": list(tokens), "data_task": "seq2seq", "decoder_start_token": "<s>"}


def eole(folder, bias=False, tied=False, change=lambda tensors: tensors, **settings):
    """A folder of Eole's."""
    folder.mkdir()
    common = {"heads": 4, "transformer_ff": INNER, "hidden_size": WIDTH, "position_encoding_type": "SinusoidalConcat"}
    common |= {"add_qkvbias": True, "add_ffnbias": True} if bias else {}
    model = {
        **common, "architecture": "transformer", "share_embeddings": tied, "share_decoder_embeddings": tied,
        "encoder": {**common, "encoder_type": "transformer", "layers": LAYERS["encoder"], "src_word_vec_size": WIDTH},
        "decoder": {
            **common, "decoder_type": "transformer", "layers": LAYERS["decoder"], "tgt_word_vec_size": WIDTH,
            "with_cross_attn": True,
        },
        "embeddings": {
            "src_word_vec_size": WIDTH, "tgt_word_vec_size": WIDTH, "position_encoding_type": "SinusoidalConcat",
        },
    }  # fmt: skip
    content = {"model": model, "training": {"dropout": [0.1], "attention_dropout": [0.2]}}
    set_in(content, settings)
    tensors, table = {}, sines("SinusoidalConcat")[:, None]
    source = weight("source.embed", 48, WIDTH)
    tensors |= {"src_emb.embeddings.weight": source, "src_emb.pe.pe": table, "tgt_emb.pe.pe": table.clone()}
    tensors |= {} if tied else {"tgt_emb.embeddings.weight": weight("target.embed", 48, WIDTH)}
    tensors |= {} if tied else {"generator.weight": weight("generator", 48, WIDTH)}
    tensors["generator.bias"] = weight("generator.bias", 48)
    for side in ("encoder", "decoder"):
        tensors |= norm(f"{side}.layer_norm")
        for layer in range(LAYERS[side]):
            name = f"{side}.transformer_layers.{layer}"
            for each in ("input_layernorm", "post_attention_layernorm"):
                tensors |= norm(f"{name}.{each}")
            tensors |= _attention(f"{name}.self_attn", bias)
            if side == "decoder":
                tensors |= norm(f"{name}.precontext_layernorm") | _attention(f"{name}.context_attn", bias)
                tensors[f"{name}.layer_scalar"] = torch.ones(1)
            tensors |= linear(f"{name}.mlp.gate_up_proj", INNER, WIDTH, bias)
            tensors |= linear(f"{name}.mlp.down_proj", WIDTH, INNER, bias)
    save_file(change(tensors), folder / "model.00.safetensors")
    specials = {"unk_token": "<unk>", "pad_token": "<blank>", "bos_token": "<s>", "eos_token": "</s>"}
    (folder / "vocab.json").write_text(json.dumps({**_vocabulary(), "specials": specials}))
    (folder / "config.json").write_text(json.dumps(content))
    return folder


def set_in(content: dict, settings: dict) -> None:
    """Change nested values: model__encoder__alpha=2 is content["model"]["encoder"]["alpha"] = 2; None removes."""
    for path, value in settings.items():
        *above, last = path.split("__")
        inner = content
        for name in above:
            inner = inner[name]
        inner[last] = value
        if value is None:
            del inner[last]


VARIANTS = {
    "joeynmt pre": lambda folder: joeynmt(folder),
    "joeynmt post": lambda folder: joeynmt(folder, "post", tied=False, activation="gelu"),
    "opennmt": lambda folder: opennmt(folder),
    "opennmt biases": lambda folder: opennmt(
        folder, True, True, position_encoding_type="SinusoidalConcat", pos_ffn_activation_fn="gelu"
    ),
    "eole": lambda folder: eole(folder),
    "eole biases": lambda folder: eole(folder, True, True),
}
