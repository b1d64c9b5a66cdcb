"""A random Marian checkpoint: names, shapes and files are read off those that pymarian 1.12.42 writes."""

import io
import struct
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


# As Firefox has them: written from the description of the format, not by the package's own writer.
STUDENT = {**SETTINGS, "dim-emb": 64, "dec-depth": 2, "transformer-heads": 8, "transformer-dim-ffn": 64}
STUDENT |= {"transformer-ffn-activation": "relu", "transformer-decoder-autoreg": "rnn", "dec-cell": "ssru"}
CODES = {"int8": 0x101, "float32": 0x404, "intgemm8": 0x4101}


def write_int8(path, arrays: dict, settings: dict, alphas: float | None = 20.0) -> dict:
    """A model in int8 with one alpha everywhere (None: with none); returns what its weights have become."""
    items, rounded = {}, {}
    for name, array in arrays.items():
        if "Wemb" in name or name[-3:-1] == "_W" or name.endswith("_W"):
            most = 127 - ("Wq" in name)  # whoever writes a file may round as he likes
            multiplier = np.float32(most) / np.abs(array).max()
            steps = np.rint(array * multiplier).astype("i1")
            rounded[name] = steps / multiplier
            steps = steps if "Wemb" in name else steps.T
            items[name] = ("intgemm8", array.shape, steps.tobytes("C") + struct.pack("<f", multiplier))
            if alphas and "Wemb" not in name:
                items[f"{name}_QuantMultA"] = ("float32", (1, 1), struct.pack("<f", alphas))
        else:
            rounded[name] = array
            items[name] = ("float32", array.shape, array.tobytes())
    if alphas:
        table = "Wemb" if "Wemb" in arrays else "decoder_Wemb"
        items[f"{table}_QuantMultA"] = ("intgemm8", (1, 1), struct.pack("<bf", 127, 127 / alphas))
        items |= {"none_QuantMultA": ("float32", (1, 1), struct.pack("<f", alphas))} if table == "Wemb" else {}
    text = yaml.safe_dump(settings).encode() + b"\0"
    write_items(path, {**dict(sorted(items.items())), "special:model.yml": ("int8", (len(text),), text)})
    return rounded


def write_items(path, items: dict) -> None:
    """name -> (type or its code, shape, bytes), in this order."""
    padded = {n: (t, s, p + bytes(0 if ":" in n else -len(p) % 256)) for n, (t, s, p) in items.items()}
    out = struct.pack("<QQ", 1, len(items))
    for name, (kind, shape, payload) in padded.items():
        out += struct.pack("<QQQQ", len(name) + 1, CODES.get(kind, kind), len(shape), len(payload))
    out += b"".join(name.encode() + b"\0" for name in padded)
    out += b"".join(struct.pack(f"<{len(shape)}i", *shape) for _, shape, _ in padded.values())
    blank = 256 - (len(out) + 8) % 256
    out += struct.pack("<Q", blank) + bytes(blank) + b"".join(payload for *_, payload in padded.values())
    Path(path).write_bytes(out)


def write_shortlist(path, lists: list[list[int]], first: int = 50, best: int = 50) -> None:
    ends = [sum(map(len, lists[:row])) for row in range(len(lists) + 1)]
    body = struct.pack(f"<4Q{len(ends)}Q", first, best, len(ends), ends[-1], *ends)
    body += b"".join(struct.pack("<I", each) for row in lists for each in sorted(row))
    seed = 0
    for (word,) in struct.iter_unpack("<Q", body[: len(body) // 8 * 8]):
        seed ^= (word + 0x9E3779B9 + (seed << 6) + (seed >> 2)) % 2**64
    Path(path).write_bytes(struct.pack("<2Q", 0xF11A48D5013417F5, seed) + body)


def student_vocabulary(path, sentences: list[str], size: int = 304) -> int:
    """A vocabulary as the Firefox pipeline trains it; returns how many pieces it has."""
    import sentencepiece

    model = io.BytesIO()
    options = {"bos_id": -1, "eos_id": 0, "unk_id": 1, "pad_id": -1, "byte_fallback": True, "split_digits": True}
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(sentences), model_writer=model, vocab_size=size, minloglevel=9, **options
    )
    Path(path).write_bytes(model.getvalue())
    return size
