"""Marian's .npz: its function in plain loops of numpy, the files beside it, and what is refused."""

from __future__ import annotations

import json
import zipfile

import numpy as np
import pytest
import torch
import yaml
from helpers.foreign_translators import sentencepiece_model
from helpers.marian_files import (
    SETTINGS,
    STUDENT,
    arrays_of,
    student_vocabulary,
    write,
    write_int8,
    write_items,
    write_shortlist,
)
from helpers.toy_translators import SENTENCES

from hf_mlnmt import UserError, import_model
from hf_mlnmt.common.languages import direction_of
from hf_mlnmt.convert.marian_binary import read_items
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
        swish = self.settings["transformer-ffn-activation"] == "swish"
        return self.product(inner / (1 + np.exp(-inner)) if swish else np.maximum(inner, 0), name, "2")

    def embed(self, rows):
        d = rows.shape[1]
        angles = np.arange(len(rows))[:, None] * 10000 ** (-np.arange(d // 2) / (d / 2 - 1))
        return rows * np.sqrt(d) + np.concatenate([np.sin(angles), np.cos(angles)], 1)

    def __call__(self, source, target):
        """Logits of the token behind each prefix of the target."""
        table = self.arrays["Wemb" if "Wemb" in self.arrays else "decoder_Wemb"]
        x = self.embed(self.arrays.get("encoder_Wemb", table)[source])
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
TOKENS += ["a\x85b", "a\u2028b", "a\x0bb", "a\x1cb", "\u2029", "\xa0", "\ufeffa", "'", '"', "\\", "''", "-", "? "]
TOKENS += ["[", "&a", "%"]
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
        (b"a: 0\nb: 0\n", "a mapping of tokens to the numbers"),
        (b"a: 0\nb: -1\n", "a mapping of tokens to the numbers"),
        (b'{"a": 0, "b": -1}', "a mapping of tokens to the numbers"),
        (b'{"a": 0, "b": 1.5}', "a mapping of tokens to the numbers"),
        (b'{"a": 0, "b": null}', "a mapping of tokens to the numbers"),
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


MODEL = "model.ende.intgemm.alphas.bin"


def split(arrays: dict) -> dict:
    """An embedding for each side, the output tied to the target's."""
    table = arrays.pop("Wemb")
    return {**arrays, "encoder_Wemb": table[::-1].copy(), "decoder_Wemb": table}


@pytest.fixture(scope="module")
def pieces(tmp_path_factory):
    path = tmp_path_factory.mktemp("student") / "vocab.ende.spm"
    return path, student_vocabulary(path, SENTENCES)


@pytest.fixture
def student(tmp_path, pieces):
    """Makes one of Firefox's folders: the file, and what its weights have become in int8."""

    def make(two=False, **options):
        settings = {**STUDENT, "tied-embeddings-all": not two, "tied-embeddings": two}
        arrays = arrays_of(1, pieces[1], settings)
        file = tmp_path / "firefox" / MODEL
        file.parent.mkdir()
        for name in ["srcvocab", "trgvocab"] if two else ["vocab"]:
            (file.parent / f"{name}.ende.spm").write_bytes(pieces[0].read_bytes())
        write_shortlist(file.parent / "lex.50.50.ende.s2t.bin", [[row % 7, 40 + row % 9] for row in range(pieces[1])])
        return file, write_int8(file, split(arrays) if two else arrays, settings, **options), settings

    return make


@pytest.mark.parametrize("two", [False, True], ids=["joint", "two embeddings"])
def test_weights_in_int8_are_those_of_their_steps(student, two, tmp_path):
    file, arrays, settings = student(two)
    (file.parent / "vocab.deen.spm").write_text("of another model")
    imported = import_model(file, tmp_path / "out")
    assert (imported.record["format"], imported.record["notes"]) == ("Marian bin", [])
    source, target = [5, 9, 300, 0], [7, 8, 40]
    expected = Reference(arrays, settings)(source, target)
    model, pad = imported.model, imported.model.config.pad_token_id
    with torch.no_grad():
        ids = {"input_ids": torch.tensor([source]), "decoder_input_ids": torch.tensor([[pad, *target]])}
        found = model.double()(**ids).logits[0]
    np.testing.assert_allclose(found[:, :pad], expected, atol=1e-5 * np.abs(expected).max())
    assert direction_of(imported.folder) == ("en", "de")
    assert (imported.folder / "shortlist.s2t").read_bytes() == (file.parent / "lex.50.50.ende.s2t.bin").read_bytes()
    assert TranslationPipeline.from_pretrained(imported.folder, device="cpu")(SENTENCES[:1], max_new_tokens=8) != [""]


def test_what_cannot_come_back_is_said(student):
    file, *_ = student(alphas=None)
    assert "calibrate it" in str(import_model(file.parent).record["notes"])


def test_a_name_that_says_no_languages(student):
    file, *_ = student()
    other = file.rename(file.with_name("model.base.intgemm.alphas.bin"))
    assert import_model(other).tokenizers.source.source_lang is None


def rewritten(file, change):
    write_items(file, change({x.name: (x.type, x.shape, x.payload) for x in read_items(file)}))


def with_items(file, **items):
    rewritten(file, lambda old: {**old, **items})


def turn_a_bit(file, at):
    content = bytearray(file.read_bytes())
    content[at] ^= 1
    file.write_bytes(content)


def renamed(file, old, new):
    rewritten(file, lambda items: {name.replace(old, new): item for name, item in items.items()})


UNFIT = {
    "cut off": (lambda f: f.write_bytes(f.read_bytes()[:-700]), "bytes end before none_QuantMultA does"),
    "cut off in its heads": (lambda f: f.write_bytes(f.read_bytes()[:300]), "not a whole model"),
    "empty": (lambda f: f.write_bytes(b""), "not a whole model"),
    "packed": (
        lambda f: f.write_bytes(b"\x1f\x8b" + f.read_bytes()),
        r"version 1 is expected. Is it packed \(gunzip\)",
    ),
    "of another release": (
        lambda f: with_items(f, encoder_l1_self_Wq=(0x10001, (64, 64), bytes(4352))),
        "type 0x10001",
    ),
    "rounded otherwise": (lambda f: with_items(f, Wemb=("int8", (304, 64), bytes(304 * 64))), "Wemb is of type 0x101"),
    "of unknown layers": (lambda f: renamed(f, "encoder_l2", "encoder_l9"), "encoder_l2_ffn_W1 is missing"),
    "with a further layer": (lambda f: with_items(f, encoder_l3_x=("float32", (1, 1), bytes(4))), "no place for"),
    "of another architecture": (
        lambda f: with_items(f, **{"special:model.yml": ("int8", (13,), b"type: s2s\n\0\0\0")}),
        "type: 's2s' is nothing",
    ),
    "without settings": (
        lambda f: rewritten(f, lambda items: {name: item for name, item in items.items() if ":" not in name}),
        "holds no special:model.yml",
    ),
    "an alpha is missing": (lambda f: renamed(f, "l1_rnn_Wf_Q", "l1_rnn_Wx_Q"), "l1_rnn_Wf_QuantMultA is missing"),
    "an alpha of zero": (
        lambda f: with_items(f, none_QuantMultA=("float32", (1, 1), bytes(4))),
        "none_QuantMultA is no number above 0",
    ),
    "of another vocabulary": (
        lambda f: student_vocabulary(f.parent / "vocab.ende.spm", [*SENTENCES, *map(str, range(999))], 320),
        "Wemb has 304 rows, the vocabulary 320",
    ),
    "of a smaller vocabulary": (
        lambda f: student_vocabulary(f.parent / "vocab.ende.spm", SENTENCES, 296),
        "Wemb has 304 rows, the vocabulary beside it 296 tokens: they are not of one model",
    ),
    "without a vocabulary": (lambda f: (f.parent / "vocab.ende.spm").unlink(), r"no vocab\.\*\.spm"),
    "a shortlist of other subwords": (
        lambda f: write_shortlist(f.parent / "lex.50.50.ende.s2t.bin", [[0]] * 99),
        "a shortlist of other subwords: it has 99 of the source",
    ),
    "a shortlist of other targets": (
        lambda f: write_shortlist(f.parent / "lex.50.50.ende.s2t.bin", [[304]] * 304),
        "targets up to 304",
    ),
    "a damaged shortlist": (
        lambda f: (f.parent / "lex.50.50.ende.s2t.bin").write_bytes(bytes(99)),
        "not a whole shortlist",
    ),
    "a shortlist with another number": (
        lambda f: turn_a_bit(f.parent / "lex.50.50.ende.s2t.bin", -1),
        "not a whole shortlist",
    ),
    "two shortlists": (lambda f: write_shortlist(f.parent / "lex.2.ende.s2t.bin", [[0]]), "beside it lie"),
}


@pytest.mark.parametrize("damage", UNFIT)
def test_firefoxs_folders_that_do_not_fit_are_refused(student, damage, tmp_path):
    break_it, message = UNFIT[damage]
    file, *_ = student()
    break_it(file)
    with pytest.raises(UserError, match=message):
        import_model(file, tmp_path / "out")
    assert not (tmp_path / "out").exists()
