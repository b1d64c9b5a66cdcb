"""Marian's .npz: its function in plain loops of numpy, the files beside it, and what is refused."""

from __future__ import annotations

import json
import zipfile

import numpy as np
import pytest
import torch
import yaml
from helpers.foreign_translators import sentencepiece_model
from helpers.marian_files import SETTINGS, arrays_of, write
from helpers.toy_translators import SENTENCES

from hf_mlnmt import UserError, import_model
from hf_mlnmt.convert.vocabularies import read_list
from hf_mlnmt.generation import TranslationPipeline

SSRU = {"transformer-decoder-autoreg": "rnn", "dec-cell": "ssru", "dec-depth": 2}
PRE = {"transformer-preprocess": "n", "transformer-postprocess": "da", "transformer-postprocess-top": "n"}


@pytest.fixture(scope="module")
def spm(tmp_path_factory):
    path, pieces = sentencepiece_model(tmp_path_factory.mktemp("spm"))
    return path, len(pieces) + 3


@pytest.fixture
def folder(tmp_path, spm):
    """Makes a checkpoint with these settings."""

    def make(**settings):
        settings = {**SETTINGS, **settings}
        target = tmp_path / "marian"
        target.mkdir()
        write(target, arrays_of(1, spm[1], settings), settings, spm[0])
        return target

    return make


class Reference:
    """Marian's Transformer in float64, one sentence, in Marian's own names."""

    def __init__(self, arrays, settings):
        self.arrays = {name: array.astype(np.float64) for name, array in arrays.items()}
        self.settings, self.pre = settings, settings["transformer-preprocess"] == "n"

    def norm(self, x, name):
        end = "_pre" if self.pre and not name.endswith("top") else ""
        scale, bias = (self.arrays[f"{name}_ln_{part}{end}"] for part in ("scale", "bias"))
        return (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + 1e-6) * scale + bias

    def sublayer(self, x, name, compute):
        return x + compute(self.norm(x, name)) if self.pre else self.norm(x + compute(x), name)

    def product(self, x, name, which):
        return x @ self.arrays[f"{name}_W{which}"] + self.arrays[f"{name}_b{which}"]

    def attention(self, x, memory, name, causal=False):
        heads, found = self.settings["transformer-heads"], []
        q, k, v = self.product(x, name, "q"), self.product(memory, name, "k"), self.product(memory, name, "v")
        for part in np.split(np.arange(q.shape[1]), heads):
            scores = q[:, part] @ k[:, part].T / np.sqrt(len(part))
            if causal:
                scores = np.where(np.tri(len(scores), dtype=bool), scores, -np.inf)
            weights = np.exp(scores - scores.max(1, keepdims=True))
            found.append(weights / weights.sum(1, keepdims=True) @ v[:, part])
        return self.product(np.concatenate(found, 1), name, "o")

    def state(self, x, name):
        inputs, gates = x @ self.arrays[f"{name}_W"], 1 / (1 + np.exp(-self.product(x, name, "f")))
        found = [np.zeros(x.shape[1])]
        for candidate, gate in zip(inputs, gates, strict=True):
            found.append(gate * found[-1] + (1 - gate) * candidate)
        return np.maximum(found[1:], 0)

    def feed_forward(self, x, name):
        inner = self.product(x, name, "1")
        return self.product(inner / (1 + np.exp(-inner)), name, "2")

    def embed(self, rows):
        d = rows.shape[1]
        angles = np.arange(len(rows))[:, None] * 10000 ** (-np.arange(d // 2) / (d / 2 - 1))
        return rows * np.sqrt(d) + np.concatenate([np.sin(angles), np.cos(angles)], 1)

    def __call__(self, source, target):
        """Logits of the token behind each prefix of the target."""
        table = self.arrays["Wemb"]
        x = self.embed(table[source])
        for name in (f"encoder_l{n + 1}" for n in range(self.settings["enc-depth"])):
            x = self.sublayer(x, f"{name}_self_Wo", lambda y, name=name: self.attention(y, y, f"{name}_self"))
            x = self.sublayer(x, f"{name}_ffn_ffn", lambda y, name=name: self.feed_forward(y, f"{name}_ffn"))
        memory = self.norm(x, "encoder_top") if self.pre else x
        y = self.embed(np.concatenate([np.zeros((1, table.shape[1])), table[target]]))
        for name in (f"decoder_l{n + 1}" for n in range(self.settings["dec-depth"])):
            if self.settings["transformer-decoder-autoreg"] == "rnn":
                y = self.sublayer(y, f"{name}_rnn_ffn", lambda z, name=name: self.state(z, f"{name}_rnn"))
            else:
                y = self.sublayer(y, f"{name}_self_Wo", lambda z, name=name: self.attention(z, z, f"{name}_self", True))
            y = self.sublayer(
                y, f"{name}_context_Wo", lambda z, name=name: self.attention(z, memory, f"{name}_context")
            )
            y = self.sublayer(y, f"{name}_ffn_ffn", lambda z, name=name: self.feed_forward(z, f"{name}_ffn"))
        y = self.norm(y, "decoder_top") if self.pre else y
        return y @ table.T + self.arrays["decoder_ff_logit_out_b"]


def small_variance(arrays):
    """One norm's input hardly varies: there its epsilon counts."""
    for name in arrays:
        if name.startswith("encoder_l1_self_Wo_ln"):
            arrays[name] *= 0.003 * name.endswith("scale")
        if name.startswith(("encoder_l1_ffn_W2", "encoder_l1_ffn_b2")):
            arrays[name] *= 0
    return arrays


@pytest.mark.parametrize("change", [lambda arrays: arrays, small_variance], ids=["drawn", "epsilon"])
@pytest.mark.parametrize(
    "settings", [{}, {**PRE, "transformer-decoder-dim-ffn": 40}, SSRU], ids=["post", "pre, wider decoder", "SSRU"]
)
def test_logits_are_those_of_the_reference(folder, settings, change, spm):
    made, settings = folder(**settings), {**SETTINGS, **settings}
    arrays = change(arrays_of(1, spm[1], settings))
    write(made, arrays, settings, spm[0])
    model = import_model(made).model
    source, target = [5, 9, 30, 0], [7, 8, 40]
    expected = Reference(arrays, settings)(source, target)
    pad = model.config.pad_token_id
    with torch.no_grad():
        ids = {"input_ids": torch.tensor([source]), "decoder_input_ids": torch.tensor([[pad, *target]])}
        found = model.double()(**ids).logits[0]
    assert pad == spm[1] == found.shape[1] - 1
    np.testing.assert_allclose(found[:, :pad], expected, atol=1e-5 * np.abs(expected).max())  # float32 positions
    assert (found[:, pad] == -100).all()


def test_the_files_beside_it(folder, tmp_path):
    imported = import_model(folder(), tmp_path / "out")
    config = imported.model.generation_config
    assert (config.num_beams, config.length_penalty, config.eos_token_id) == (6, 0.6, 2)
    import sentencepiece

    engine = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "marian" / "v.spm"))
    for text, ids in zip(SENTENCES[:50], imported.tokenizers.encode_source(SENTENCES[:50]), strict=True):
        assert ids.tolist() == [*engine.encode(text), 2]


def test_a_folder_translates(folder, tmp_path):
    imported = import_model(folder(), tmp_path / "out")
    pipeline = TranslationPipeline.from_pretrained(imported.folder, device="cpu")
    tokenizer = imported.tokenizers.source
    output = imported.model.generate(**tokenizer(SENTENCES[0], return_tensors="pt"), max_length=9)[0]
    expected = tokenizer.decode(output, skip_special_tokens=True)
    assert pipeline(SENTENCES[:1], max_new_tokens=8) == [expected] != [""]


def test_vocab_yml_with_source_and_target_spm(folder, tmp_path):
    """As OPUS-MT's own releases are packed."""
    made = folder()
    import sentencepiece

    model = sentencepiece.SentencePieceProcessor(model_file=str(made / "v.spm"))
    for name in ("source.spm", "target.spm"):
        (made / name).write_bytes((made / "v.spm").read_bytes())
    turned = {model.id_to_piece(index): len(model) - 1 - index for index in range(len(model))}
    (made / "opus.vocab.yml").write_text(yaml.safe_dump(turned, allow_unicode=True))
    (made / "model.npz.decoder.yml").unlink()
    (made / "decoder.yml").write_text(yaml.safe_dump({"vocabs": ["opus.vocab.yml"] * 2}))
    imported = import_model(made)
    expected = [len(model) - 1 - index for index in [*model.encode(SENTENCES[0]), 2]]
    assert imported.tokenizers.encode_source(SENTENCES[:1])[0].tolist() == expected
    assert imported.model.config.eos_token_id == len(model) - 3


TOKENS = ["on", "no", "null", "~", "010", "true", "<<", "1e3", "0x1f", "2020-01-01", "1:30", "a:b", "ab#c", "=", "!"]
TOKENS += [
    "a\x85b",
    "a\u2028b",
    "a\x0bb",
    "a\x1cb",
    "\u2029",
    "\xa0",
    "\ufeffa",
    "'",
    '"',
    "\\",
    "''",
    "-",
    "? ",
    "[",
    "&a",
    "%",
]
SPECIALS = ["</s>", "<unk>"]


def written_by_marian(token: str) -> str:
    """As yaml-cpp writes a key: quoted where a sign of YAML or a control character demands it, and never for a type."""
    if all(ord(sign) >= 32 for sign in token) and token[0] not in "'\"\\-?[&%!=":
        return token
    signs = {'"': '\\"', "\\": "\\\\"}
    return '"' + "".join(signs.get(x, x if ord(x) >= 32 else f"\\x{ord(x):02x}") for x in token) + '"'


@pytest.mark.parametrize("form", ["marian", "single", "json", "flow"])
def test_every_token_of_a_vocabulary_is_text(tmp_path, form):
    ids = {token: number for number, token in enumerate([*SPECIALS, *TOKENS])}
    file = tmp_path / "v.yml"
    if form == "marian":
        text = "".join(f"{written_by_marian(token)}: {number}\n" for token, number in ids.items())
    elif form == "single":
        text = "---\n" + "".join(
            "'{}': {}\r\n".format(token.replace("'", "''"), number) for token, number in ids.items()
        )
    elif form == "json":
        text = json.dumps(ids)
    else:
        text = "{" + ", ".join(f"{json.dumps(token)}: {number}" for token, number in ids.items()) + ", }"
    file.write_bytes(text.encode())
    assert read_list(file) == ids


def test_vocabularies_that_are_none(tmp_path):
    file = tmp_path / "v.yml"
    for text, message in [
        (b"a: 0\na: 1\n", "the token 'a' stands there twice"),
        (b"a: 0\nb: 2\n", "a mapping of tokens to the numbers"),
        (b"- a\n- b\n", "a mapping of tokens to the numbers"),
        (b"a: !!python/object:os.system x\n", "a mapping of tokens to the numbers"),
        (b"a: [b\n", "cannot be read"),
        (b"\xff: 0\n", "cannot be read"),
        (b"[" * 100_000, "cannot be read"),
    ]:
        file.write_bytes(text)
        with pytest.raises(UserError, match=message):
            read_list(file)


def resaved(folder, change):
    with np.load(folder / "model.npz") as content:
        arrays = change(dict(content))
    np.savez(folder / "model.npz", **arrays)


def with_a_member(folder, name):
    with zipfile.ZipFile(folder / "model.npz", "a") as file:
        file.writestr(name, "of somebody")


def with_settings(folder, text):
    resaved(folder, lambda arrays: {**arrays, "special:model.yml": np.frombuffer(text, np.int8)})


DAMAGES = {
    "lacks": (
        lambda f: resaved(f, lambda a: {k: v for k, v in a.items() if k != "encoder_l1_ffn_W1"}),
        "ffn_W1 is missing",
    ),
    "has others": (
        lambda f: resaved(f, lambda a: {**a, "encoder_l9_self_Wq": a["Wemb"]}),
        "no place for: encoder_l9_self_Wq",
    ),
    "misshapen": (
        lambda f: resaved(f, lambda a: {**a, "encoder_l1_ffn_W1": a["Wemb"]}),
        "settings in the checkpoint ask",
    ),
    "another vocabulary": (
        lambda f: resaved(f, lambda a: {**a, "Wemb": a["Wemb"][:50]}),
        "Wemb has 50 rows, the vocabulary",
    ),
    "a pickle": (lambda f: resaved(f, lambda a: {**a, "Wemb": np.array([{1: 2}], dtype=object)}), "plain numbers"),
    "rounded": (lambda f: resaved(f, lambda a: {**a, "Wemb": a["Wemb"].astype(np.int8)}), "Wemb is int8"),
    "no settings": (
        lambda f: resaved(f, lambda a: {k: v for k, v in a.items() if ":" not in k}),
        "holds no special:model.yml",
    ),
    "a further member": (lambda f: with_a_member(f, "notes.txt"), r"notes\.txt in it is no array"),
    "settings within one another": (lambda f: with_settings(f, b"[" * 100_000), r"special:model\.yml: cannot be read"),
    "a tag without a value": (lambda f: with_settings(f, b"dim-emb: !!int"), r"special:model\.yml: cannot be read"),
    "not npz": (lambda f: (f / "model.npz").write_text("no"), "not a .npz file"),
    "no decoder.yml": (lambda f: (f / "model.npz.decoder.yml").unlink(), "decoder.yml"),
    "no vocabulary": (lambda f: (f / "v.spm").unlink(), "v.spm is not beside it"),
    "a broken vocabulary": (lambda f: (f / "v.spm").write_text("no"), "not a SentencePiece model"),
    "two models": (
        lambda f: (f / "other.npz").write_bytes((f / "model.npz").read_bytes()),
        "one .npz or .bin file is expected",
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_what_is_not_whole_is_refused(folder, damage, tmp_path):
    break_it, message = DAMAGES[damage]
    made = folder()
    break_it(made)
    with pytest.raises(UserError, match=message):
        import_model(made, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"type": "s2s"}, "type: 's2s'"),
        ({"transformer-decoder-autoreg": "average-attention"}, "autoreg: 'average-attention'"),
        ({"transformer-decoder-autoreg": "rnn"}, "autoreg rnn: dec-cell: 'gru'"),
        ({**SSRU, "transformer-rnn-projection": True}, "rnn-projection: True"),
        ({**SSRU, "layer-normalization": True}, "layer-normalization: True"),
        ({**SSRU, **PRE}, "preprocess: 'n'"),
        ({"transformer-ffn-activation": "tanh"}, "activation"),
        ({"transformer-preprocess": "n"}, "must be"),
        ({"transformer-train-position-embeddings": True}, "position-embeddings: True"),
        ({"right-left": True}, "right-left"),
        ({"tied-embeddings": "false"}, "tied-embeddings: 'false'"),
        ({"output-omit-bias": "no"}, "output-omit-bias: 'no'"),
        ({"transformer-ffn-activation": ["relu"]}, r"transformer-ffn-activation: \['relu'\] is nothing"),
        ({"transformer-postprocess-emb": 3}, "transformer-postprocess-emb: a text is expected, not 3"),
        ({"dec-depth": 10**12}, "dec-depth is 1,000,000,000,000, which the weights cannot have"),
        ({"dim-emb": None}, "nothing is said of dim-emb"),
    ],
)
def test_settings_that_the_baseline_lacks(folder, settings, message, spm):
    made = folder()
    write(made, arrays_of(1, spm[1], SETTINGS), {**SETTINGS, **settings}, spm[0])
    with pytest.raises(UserError, match=message):
        import_model(made)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("vocabs", "ab", "vocabs must name two files"),
        ("vocabs", [1, 2], "vocabs must name two files"),
        ("vocabs", 5, "vocabs must name two files"),
        ("beam-size", "many", "beam-size: a whole number of at least 1 is expected, not 'many'"),
        ("beam-size", -2, "beam-size: a whole number of at least 1 is expected, not -2"),
        ("normalize", [1], r"normalize: a number from -10 to 10 is expected, not \[1\]"),
        ("normalize", float("nan"), "normalize: a number from -10 to 10 is expected, not nan"),
    ],
)
def test_what_decoder_yml_cannot_mean(folder, field, value, message):
    file = folder() / "model.npz.decoder.yml"
    file.write_text(yaml.safe_dump({**yaml.safe_load(file.read_text()), field: value}))
    with pytest.raises(UserError, match=rf"decoder\.yml: {message}"):
        import_model(file.parent)


def test_the_record(folder, tmp_path):
    record = json.loads((import_model(folder(), tmp_path / "out").folder / "import.json").read_text())
    assert record["format"] == "Marian npz"
    assert record["largest_difference_of_logits"] is None
    assert record["parameters"]["model.encoder.layers.0.self_attn.qkv_proj.weight"] == [
        f"encoder_l1_self_W{name}" for name in "qkv"
    ]


def test_a_vocabulary_that_is_shorter_than_the_embeddings_is_said(folder):
    """Engines are trained with tables of whole multiples; what no token has is never read, and never written."""
    path = folder()
    expected = import_model(path).model.state_dict()

    def padded(arrays):
        more = {"Wemb": ((0, 5), (0, 0)), "decoder_ff_logit_out_b": ((0, 0), (0, 5))}
        return {k: np.pad(v, more[k], constant_values=9) if k in more else v for k, v in arrays.items()}

    resaved(path, padded)
    imported = import_model(path)
    assert all(torch.equal(tensor, expected[name]) for name, tensor in imported.model.state_dict().items())
    assert "Wemb has 95 rows, its vocabulary 90 tokens" in str(imported.record["notes"])
