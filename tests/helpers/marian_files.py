"""A random Marian checkpoint: names, shapes and files are read off those that pymarian 1.12.42 writes."""

from pathlib import Path

import numpy as np
import yaml

SETTINGS = {
    "type": "transformer", "dim-emb": 16, "enc-depth": 2, "dec-depth": 1, "transformer-heads": 4,
    "transformer-dim-ffn": 24, "transformer-decoder-dim-ffn": 0, "transformer-ffn-depth": 2,
    "transformer-decoder-ffn-depth": 0, "transformer-ffn-activation": "swish", "transformer-preprocess": "",
    "transformer-postprocess": "dan", "transformer-postprocess-top": "", "transformer-postprocess-emb": "d",
    "transformer-decoder-autoreg": "self-attention", "transformer-tied-layers": [], "tied-embeddings-all": True,
    "tied-embeddings": False, "tied-embeddings-src": False, "output-omit-bias": False, "right-left": False,
}  # fmt: skip


def arrays_of(seed: int, vocabulary: int, settings: dict) -> dict:
    """Random numbers under Marian's names."""
    draw, d = np.random.default_rng(seed), settings["dim-emb"]
    found = {"Wemb": draw.normal(size=(vocabulary, d)), "decoder_ff_logit_out_b": draw.normal(size=(1, vocabulary))}
    pre = "_pre" if "n" in settings["transformer-preprocess"] else ""
    for side, depth in (("encoder", settings["enc-depth"]), ("decoder", settings["dec-depth"])):
        inner = settings["transformer-dim-ffn"]
        inner = (side == "decoder" and settings["transformer-decoder-dim-ffn"]) or inner
        for layer in (f"{side}_l{n + 1}" for n in range(depth)):
            state = side == "decoder" and settings["transformer-decoder-autoreg"] == "rnn"
            if state:
                for name in ("W", "Wf"):
                    found[f"{layer}_rnn_{name}"] = draw.normal(size=(d, d)) * 0.3
                found[f"{layer}_rnn_bf"] = draw.normal(size=(1, d))
                found |= norm(draw, d, f"{layer}_rnn_ffn_ln", pre)
            for attention in (("context",) if state else ("self", "context")) if side == "decoder" else ("self",):
                for name in "qkvo":
                    found[f"{layer}_{attention}_W{name}"] = draw.normal(size=(d, d)) * 0.3
                    found[f"{layer}_{attention}_b{name}"] = draw.normal(size=(1, d)) * 0.3
                found |= norm(draw, d, f"{layer}_{attention}_Wo_ln", pre)
            found |= {
                f"{layer}_ffn_W1": draw.normal(size=(d, inner)) * 0.3,
                f"{layer}_ffn_b1": draw.normal(size=(1, inner)),
            }
            found |= {
                f"{layer}_ffn_W2": draw.normal(size=(inner, d)) * 0.3,
                f"{layer}_ffn_b2": draw.normal(size=(1, d)),
            }
            found |= norm(draw, d, f"{layer}_ffn_ffn_ln", pre)
        if pre:
            found |= norm(draw, d, f"{side}_top_ln", "")
    return {name: array.astype(np.float32) for name, array in found.items()}


def norm(draw, d: int, name: str, end: str) -> dict:
    return {f"{name}_scale{end}": 1 + 0.1 * draw.normal(size=(1, d)), f"{name}_bias{end}": draw.normal(size=(1, d))}


def write(folder, arrays: dict, settings: dict, spm: str) -> None:
    """model.npz, its decoder.yml and the vocabulary."""
    text = np.frombuffer((yaml.safe_dump(settings) + "\0").encode(), np.int8)
    np.savez(folder / "model.npz", **arrays, **{"special:model.yml": text})
    (folder / "v.spm").write_bytes(Path(spm).read_bytes())
    decoder = {"models": ["model.npz"], "vocabs": ["v.spm", "v.spm"], "beam-size": 6, "normalize": 0.6}
    (folder / "model.npz.decoder.yml").write_text(yaml.safe_dump(decoder))
