"""JoeyNMT, OpenNMT-py 3 and Eole: logits are those of the toolkits' own code; what does not fit is refused.

Where a toolkit is installed (pip install joeynmt, OpenNMT-py, eole), its own code computes the logits of the same
files. Everywhere, they are compared with numbers that it computed before: JoeyNMT 2.3.0, OpenNMT-py 3.5.1, Eole 0.6.4.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from helpers import toolkit_checkpoints
from helpers.contract import assert_same
from helpers.cut_text import CODES, CUT, TOKENS
from helpers.toolkit_checkpoints import IDS, TARGET, VARIANTS, eole, joeynmt, opennmt

from hf_mlnmt import UserError, import_model
from hf_mlnmt.generation import TranslationPipeline

ENGINE = Path(__file__).parents[1] / "helpers" / "toolkit_engine.py"
PACKAGES = {"joeynmt": "joeynmt", "opennmt": "onmt", "eole": "eole"}
KNOWN = {  # logits of the second sentence's last position, tokens 3 to 8
    "joeynmt pre": [7.1189, 11.6048, 13.3413, 11.917, 7.6692, 1.6045],
    "joeynmt post": [-1.5362, -1.3385, -0.8238, -0.1138, 0.6231, 1.2124],
    "opennmt": [-0.1987, -1.979, -3.2802, -3.8008, -3.4253, -2.2494],
    "opennmt biases": [11.9381, 7.2927, 0.9298, -5.65, -10.8956, -13.5708],
    "eole": [0.2374, -0.4267, -0.9793, -1.2967, -1.3111, -1.026],
    "eole biases": [-0.1571, -6.5078, -11.3063, -13.4228, -12.3634, -8.386],
}


def logits(folder):
    model = import_model(folder).model
    with torch.no_grad():
        return model(input_ids=IDS, attention_mask=(IDS != 1).long(), decoder_input_ids=TARGET).logits


@pytest.mark.parametrize("name", VARIANTS)
def test_logits_are_what_the_toolkit_computed(name, tmp_path):
    found = logits(VARIANTS[name](tmp_path / "x"))
    assert_same(found[1, -1, 3:9], torch.tensor(KNOWN[name]), 2e-4)  # written with four digits


@pytest.mark.parametrize("name", VARIANTS)
def test_logits_are_the_toolkits(name, tmp_path):
    toolkit = name.split()[0]
    if importlib.util.find_spec(PACKAGES[toolkit]) is None:
        pytest.skip(f"{toolkit} is not installed")
    folder = VARIANTS[name](tmp_path / "x")
    command = [sys.executable, str(ENGINE), toolkit, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    expected = torch.load(folder / "logits.bin", weights_only=True)
    assert_same(logits(folder), expected, 2e-6 * expected.abs().max().item())


@pytest.mark.parametrize("name", ["joeynmt post", "opennmt", "eole"])
def test_a_folder_translates_and_says_what_to_do(name, tmp_path):
    imported = import_model(VARIANTS[name](tmp_path / "x"), tmp_path / "out")
    end = [3] if name.startswith("joeynmt") else []  # the others put none behind the source
    assert imported.tokenizers.encode_source(["w3 w0 what"])[0].tolist() == [7, 4, 0, *end]
    assert imported.tokenizers.encode_target(["w3 w0"])[0].tolist() == [7, 4, 3]
    assert any("give text that is" in note for note in imported.record["notes"])
    translate = TranslationPipeline.from_pretrained(imported.folder, device="cpu")
    found = translate(["w3 w0 w9", "", "w30"], max_new_tokens=5)
    assert found[1] == ""
    assert set(" ".join(found).split()) <= {f"w{n}" for n in range(40)} | {f"averyunlikelytoken{n}" for n in range(4)}


def test_a_search_of_joeynmt_is_taken_over(tmp_path):
    """Beams, and their scores divided by ((5 + length) / 6)^alpha; in greedy search nothing of it."""
    settings = import_model(joeynmt(tmp_path / "x"), tmp_path / "out").model.generation_config
    assert (settings.num_beams, settings.length_penalty, settings.length_normalization) == (5, 1.0, "gnmt")
    assert settings.bad_words_ids == [[1], [2]]
    saved = json.loads((tmp_path / "out" / "generation_config.json").read_text())
    assert saved["length_normalization"] == "gnmt"
    greedy = import_model(joeynmt(tmp_path / "y", testing__beam_size=1)).model.generation_config
    assert greedy.num_beams == 1 or greedy.num_beams is None
    plain = import_model(joeynmt(tmp_path / "z", testing__beam_alpha=-1)).model.generation_config
    unsaid = import_model(joeynmt(tmp_path / "u", testing__beam_alpha=None)).model.generation_config
    assert plain.length_penalty == unsaid.length_penalty == 0.0


RATES = ("dropout", "attention_dropout", "activation_dropout")
NONE = {"dropout": None, "attention_dropout": None}
DROPOUT = {  # rates as RATES lists them; what a file does not say is the toolkit's own default
    "joeynmt": (lambda f: joeynmt(f, model__encoder__dropout=0.3), (0.3, 0.3, 0.3)),
    "joeynmt, unsaid": (lambda f: joeynmt(f, model__encoder__dropout=None), (0.1, 0.1, 0.1)),
    "opennmt": (lambda f: opennmt(f, dropout=[0.3, 0.4]), (0.4, 0.2, 0.4)),
    "opennmt, unsaid": (lambda f: opennmt(f, **NONE), (0.1, 0.1, 0.1)),
    "eole": (lambda f: eole(f, training__dropout=0.3), (0.3, 0.2, 0.3)),
}


@pytest.mark.parametrize("name", DROPOUT)
def test_rates_of_dropout_are_taken_over(name, tmp_path):
    make, expected = DROPOUT[name]
    config = import_model(make(tmp_path / "x")).model.config
    assert tuple(getattr(config, rate) for rate in RATES) == expected


def test_text_of_joeynmt_is_lower_cased_where_it_says_so(tmp_path):
    tokenizers = import_model(joeynmt(tmp_path / "x", data__src__lowercase=True)).tokenizers
    assert tokenizers.encode_source(["W3"])[0].tolist() == [7, 3]
    assert tokenizers.encode_target(["W3"])[0].tolist() == [0, 3]


def test_sentencepiece_of_joeynmt_cuts_raw_text(tmp_path):
    from helpers.foreign_translators import sentencepiece_model

    spm, pieces = sentencepiece_model(tmp_path)
    settings = {
        "level": "bpe",
        "tokenizer_type": "sentencepiece",
        "tokenizer_cfg": {"model_file": "somewhere/joint.spm"},
    }
    changes = {f"data__{side}__{name}": value for side in ("src", "trg") for name, value in settings.items()}
    folder = joeynmt(tmp_path / "x", **changes)
    tokens = [token for token, _ in pieces if not token.startswith("<")][:40]
    for name in ("src_vocab.txt", "trg_vocab.txt"):
        (folder / name).write_text("".join(f"{token}\n" for token in ("<unk>", "<pad>", "<s>", "</s>", *tokens)))
    assert "was by joint.spm, subwords separated by spaces" in import_model(folder).record["notes"][0]
    (folder / "joint.spm").write_bytes(Path(spm).read_bytes())
    imported = import_model(folder)
    ids = imported.tokenizers.encode_source(["the dog"])[0].tolist()
    assert ids[-1] == 3
    assert imported.tokenizers.source.convert_ids_to_tokens(ids)[0].startswith("▁")
    assert imported.record["notes"] == [
        "joint.spm cuts text, which must have the tokens and the case of the training data"
    ]
    vocabulary = {"<unk>": 0, "<pad>": 1, "<s>": 2, "</s>": 3, **{token: 4 + n for n, token in enumerate(tokens)}}
    import sentencepiece

    model = sentencepiece.SentencePieceProcessor(model_file=str(spm))
    for line in ("the dog", "  two   dogs run", "The Dog is here.", "ﬁne", "", "a house by the sea"):
        (ids,) = imported.tokenizers.encode_source([line])
        read_as = [number if number < len(vocabulary) else 0 for number in ids.tolist()]  # a row of <unk>
        assert read_as == [*(vocabulary.get(piece, 0) for piece in model.encode(line, out_type=str)), 3], line


SUBWORD_NMT = {"level": "bpe", "tokenizer_type": "subword-nmt", "tokenizer_cfg": {"codes": "/x/codes.bpe"}}
CUTTING = {
    "joeynmt": lambda folder: joeynmt(folder, data__src=SUBWORD_NMT, data__trg=SUBWORD_NMT),
    "opennmt": lambda folder: opennmt(folder, tied=True, src_subword_model="/x/codes.bpe"),
    "opennmt, two tables": lambda folder: opennmt(folder, src_subword_model=""),
    "eole": lambda folder: eole(folder, tied=True),
}
FORMS = {
    "subword-nmt": CODES,
    "fastBPE": "".join(f"{merge} 7\n" for merge in CODES.splitlines()[1:]),
    "with a count of merges": f"{CODES.splitlines()[0]}\r\n" + "\r\n".join(CODES.splitlines()[1:]),
}


@pytest.mark.parametrize(
    ("name", "form"), [*((name, "subword-nmt") for name in CUTTING), *(("eole", form) for form in list(FORMS)[1:])]
)
def test_codes_beside_a_checkpoint_cut_text_as_they_do_there(name, form, tmp_path, monkeypatch, caplog):
    """A piece that the vocabulary lacks is <unk> to the toolkit: it gets another number here, and its row."""
    monkeypatch.setattr(toolkit_checkpoints, "WORDS", TOKENS)
    folder = CUTTING[name](tmp_path / "x")
    before = import_model(folder, tmp_path / "without")
    (folder / "codes.bpe").write_bytes(FORMS[form].encode())
    imported = import_model(folder, tmp_path / "with")
    known = before.tokenizers.source.get_vocab()
    for line, cut in CUT.items():
        expected = [known.get(token, 0) for token in cut.split()]
        ids = imported.tokenizers.encode_target([line])[0].tolist()
        assert [number if number < len(known) else 0 for number in ids] == [*expected, 3], line
        source = imported.tokenizers.encode_source([line])[0]
        assert source.tolist() == ids[: len(source)]
        if 0 not in expected:
            assert imported.tokenizers.decode_target([ids]) == [line]
    rows, new = (model.get_encoder().embed_tokens.weight for model in (before.model, imported.model))
    assert len(new) == len(imported.tokenizers.source) > len(known)
    assert torch.equal(new[: len(known)], rows)
    assert torch.equal(new[len(known) :], rows[:1].expand(len(new) - len(rows), -1))
    batch = {"input_ids": IDS, "attention_mask": (IDS != 1).long(), "decoder_input_ids": TARGET}
    ours, theirs = (model(**batch).logits.softmax(-1) for model in (imported.model, before.model))
    assert_same(ours[..., : len(known)], theirs, 1e-6)
    said = {}
    for folder in ("with", "without"):
        pipeline = TranslationPipeline.from_pretrained(tmp_path / folder, device="cpu")
        for _ in range(2):
            caplog.clear()
            pipeline(["the lower river"], max_new_tokens=2)
            said.setdefault(folder, []).append("expects" in caplog.text)
    assert said == {"with": [False, False], "without": [True, True]}


def test_codes_of_another_kind_are_no_codes(tmp_path, monkeypatch):
    monkeypatch.setattr(toolkit_checkpoints, "WORDS", TOKENS)
    folder = CUTTING["eole"](tmp_path / "x")
    for content in (b"", b"\xff\xfe", b"#version: 0.1\nt h\n", b"t h\no w\n", b"#version: 0.2\na b c\n", b"one line\n"):
        (folder / "codes.bpe").write_bytes(content)
        assert "cut already" in import_model(folder).record["notes"][0], content
    for name in ("codes.bpe", "codes.de"):
        (folder / name).write_text(CODES)
    with pytest.raises(UserError, match=r"codes\.bpe, codes\.de lie beside it; leave the one that cut both sides"):
        import_model(folder)


def test_weights_of_opennmt_may_lie_beside_the_options(tmp_path):
    from safetensors.torch import save_file

    plain = logits(opennmt(tmp_path / "x"))
    kept = {}

    def without_weights(content):
        generator = {f"generator.{name}": value for name, value in content.pop("generator").items()}
        kept.update({**content.pop("model"), **generator})
        return content

    folder = opennmt(tmp_path / "y", change=without_weights)
    with pytest.raises(UserError, match=r"holds no weights, and model_step_10\.safetensors"):
        import_model(folder)
    save_file({name: value.clone() for name, value in kept.items()}, folder / "model_step_10.safetensors")
    assert torch.equal(logits(folder), plain)


def test_the_output_of_opennmt_in_version_2_has_a_number(tmp_path):
    def numbered(content):
        return content | {"generator": {f"0.{name}": value for name, value in content["generator"].items()}}

    assert torch.equal(logits(opennmt(tmp_path / "x", change=numbered)), logits(opennmt(tmp_path / "y")))


def tensors(key, **changes):
    """A change of a checkpoint's tensors; None takes one away."""

    def change(content):
        found = {name: value for name, value in {**content[key], **changes}.items() if value is not None}
        return {**content, key: found}

    return change


NO_NORM = {"model__encoder__layer_norm": None, "model__decoder__layer_norm": None}
REFUSED = {
    "recurrent": (lambda f: joeynmt(f, model__encoder__type="recurrent"), r"model\.encoder\.type: 'recurrent'"),
    "residuals": (lambda f: joeynmt(f, model__decoder__alpha=1.5), r"model\.decoder\.alpha: 1\.5"),
    "prompts": (lambda f: joeynmt(f, data__special_symbols={"sep_token": "<sep>"}), "sep_token: prompts"),
    "two norms": (lambda f: joeynmt(f, model__decoder__layer_norm="post"), "layer_norm is pre in the encoder, post"),
    "no norm": (lambda f: joeynmt(f, "post", **NO_NORM), "versions of JoeyNMT mean different things"),
    "characters": (lambda f: joeynmt(f, data__src__level="char"), "level: char"),
    "sizes": (lambda f: joeynmt(f, model__encoder__ff_size=99), r"encoder\.layers\.0\S*fc1\.weight"),
    "decoder's sizes": (lambda f: joeynmt(f, model__decoder__ff_size=99), r"decoder\.layers\.0\S*fc1\.weight"),
    "lacks": (lambda f: joeynmt(f, change=tensors("model_state", **{"encoder.layer_norm.bias": None})), "is missing"),
    "others": (lambda f: joeynmt(f, change=tensors("model_state", ctc=torch.ones(2))), "no place for: ctc"),
    "untied": (
        lambda f: joeynmt(f, change=tensors("model_state", **{"trg_embed.lut.weight": torch.ones(44, 16)})),
        "should be the same tensor",
    ),
    "rotary": (lambda f: opennmt(f, max_relative_positions=-1), "max_relative_positions: -1"),
    "gates": (lambda f: opennmt(f, pos_ffn_activation_fn="silu"), "pos_ffn_activation_fn: 'silu'"),
    "copies": (lambda f: opennmt(f, copy_attn=True), "copy_attn: True"),
    "language model": (lambda f: opennmt(f, model_task="lm"), "model_task: 'lm'"),
    "positions": (lambda f: opennmt(f, position_encoding_type="Learned"), "position_encoding_type: 'Learned'"),
    "other sines": (
        lambda f: opennmt(
            f, change=tensors("model", **{"encoder.embeddings.make_embedding.pe.pe": torch.ones(5000, 1, 16)})
        ),
        "holds other numbers",
    ),
    "options": (lambda f: opennmt(f, heads=None), "nothing is said of heads"),
    "specials": (
        lambda f: opennmt(f, change=lambda c: {**c, "vocab": {"src": ["a"], "tgt": ["b"]}}),
        "vocab: src: has no <blank>, <s>",
    ),
    "rms": (lambda f: eole(f, model__encoder__layer_norm="rms", model__decoder__layer_norm="rms"), "layer_norm: 'rms'"),
    "few keys": (lambda f: eole(f, model__decoder__heads_kv=2), r"model\.decoder\.heads_kv: 2"),
    "estimator": (lambda f: eole(f, model__add_estimator=True), "add_estimator: True"),
    "scalar": (
        lambda f: eole(f, change=lambda t: {**t, "decoder.transformer_layers.0.layer_scalar": torch.ones(1) * 2}),
        "no place for: decoder.transformer_layers.0.layer_scalar",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_fit_is_refused_by_field_and_value(name, tmp_path):
    make, message = REFUSED[name]
    make(tmp_path / "x")
    with pytest.raises(UserError, match=message):
        import_model(tmp_path / "x", tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["x"], "something was half-written"


def test_what_is_not_beside_a_checkpoint(tmp_path):
    folder = joeynmt(tmp_path / "x")
    (folder / "trg_vocab.txt").write_text("<unk>\n<pad>\n<s>\n</s>\nw1\n")
    with pytest.raises(UserError, match="decoder_vocab_size=5"):
        import_model(folder)
    (folder / "trg_vocab.txt").unlink()
    with pytest.raises(UserError, match=r"trg_vocab\.txt is not beside it"):
        import_model(folder)
    (folder / "config.yaml").unlink()
    with pytest.raises(UserError, match=r"config\.yaml that training put beside it"):
        import_model(folder)
    (eole(tmp_path / "y") / "vocab.json").unlink()
    with pytest.raises(UserError, match=r"its vocab\.json is not there"):
        import_model(tmp_path / "y")


def rounded_or_broken(how):
    """A change of one weight in a checkpoint's content."""

    def change(content):
        weights = content.get("model_state", content.get("model", content))
        name = next(name for name in weights if name.endswith("0.weight") or "layers.0" in name)
        tensor = weights[name]
        weights[name] = tensor.int() if how == "int32" else tensor.clone().fill_(float(how))
        return content

    return change


@pytest.mark.parametrize("how", ["int32", "nan", "inf"])
@pytest.mark.parametrize("make", [joeynmt, opennmt, eole], ids=lambda make: make.__name__)
def test_weights_that_are_none(make, how, tmp_path):
    folder = make(tmp_path / "x", change=rounded_or_broken(how))
    message = "is int32: import the model in float32" if how == "int32" else r"holds numbers that are none \(NaN or inf"
    with pytest.raises(UserError, match=message):
        import_model(folder)


def without_output(content):
    """No output projection, though the settings say that it is not the embeddings."""
    parts = [content, *(value for value in content.values() if isinstance(value, dict))]
    for part in parts:
        for name in [name for name in part if "generator" in name]:
            del part[name]
    return content


@pytest.mark.parametrize("make", [opennmt, eole], ids=lambda make: make.__name__)
def test_a_missing_output_projection_is_not_the_embeddings(make, tmp_path):
    with pytest.raises(UserError, match=r"the tensor generator\.weight is missing"):
        import_model(make(tmp_path / "x", change=without_output))


@pytest.mark.parametrize("missing", ["encoder", "decoder"])
@pytest.mark.parametrize("make", [opennmt, eole], ids=lambda make: make.__name__)
def test_a_missing_embedding_is_not_the_other_sides(make, missing, tmp_path):
    """Unless the settings say that both sides share it."""
    name = {"encoder": ("src_emb", "encoder.embed"), "decoder": ("tgt_emb", "decoder.embed")}[missing]

    def change(content):
        tensors = content.get("model", content)
        for tensor in [tensor for tensor in tensors if tensor.startswith(name) and "pe.pe" not in tensor]:
            del tensors[tensor]
        return content

    with pytest.raises(UserError, match=r"the tensor (src|tgt|encoder|decoder)\S+ is missing"):
        import_model(make(tmp_path / "x", change=change))
    if missing == "decoder":
        shared = {"share_embeddings": True} if make is opennmt else {"model__share_embeddings": True}
        model = import_model(make(tmp_path / "y", change=change, **shared)).model
        source, target = model.get_encoder().embed_tokens.weight, model.get_decoder().embed_tokens.weight
        assert torch.equal(source, target)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("specials", "x", "specials: settings below it are expected, not 'x'"),
        ("decoder_start_token", ["<s>"], r"decoder_start_token: \['<s>'\] is not in the target's vocabulary"),
    ],
)
def test_what_a_vocabulary_of_eole_cannot_say(field, value, message, tmp_path):
    file = eole(tmp_path / "x") / "vocab.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), field: value}))
    with pytest.raises(UserError, match=message):
        import_model(tmp_path / "x")


@pytest.mark.parametrize("part", ["model", "generator"])
@pytest.mark.parametrize("odd", [[1], "weights", {3: torch.ones(2)}], ids=["list", "text", "number"])
def test_weights_that_are_no_mapping(part, odd, tmp_path):
    folder = opennmt(tmp_path / "x", change=lambda content: {**content, part: odd})
    with pytest.raises(UserError, match=rf"{part}: a mapping of names to tensors is expected"):
        import_model(folder)


@pytest.mark.parametrize(
    ("make", "settings", "message"),
    [
        (
            joeynmt,
            {"model__encoder__num_heads": "two"},
            r"model\.encoder\.num_heads: a whole number is expected, not 'two'",
        ),
        (opennmt, {"heads": [4]}, r"pt: heads: a whole number is expected, not \[4\]"),
        (joeynmt, {"testing__beam_size": "five"}, "beam_size: a whole number of at least 1 is expected, not 'five'"),
        (joeynmt, {"testing__beam_size": -2}, "beam_size: a whole number of at least 1 is expected, not -2"),
        (joeynmt, {"testing__beam_alpha": "x"}, "beam_alpha: a number from -10 to 10 is expected, not 'x'"),
        (
            joeynmt,
            {"data__special_symbols": ["<pad>"]},
            r"data\.special_symbols: settings below it are expected, not \[",
        ),
        (joeynmt, {"data__special_symbols__lang_tags": 3}, r"special_symbols\.lang_tags: a list of texts is expected"),
        (joeynmt, {"data__special_symbols__pad_token": 3}, r"special_symbols\.pad_token: a text is expected, not 3"),
        (joeynmt, {"data__src__tokenizer_cfg": "x"}, r"data\.src\.tokenizer_cfg: settings below it are expected"),
        (joeynmt, {"testing": "x"}, "testing: settings below it are expected"),
        (joeynmt, {"model__encoder__embeddings__scale": "false"}, r"embeddings\.scale: 'false'"),
        (joeynmt, {"model__tied_softmax": "false"}, r"model\.tied_softmax: 'false'"),
        (joeynmt, {"model__decoder__num_layers": 10**12}, r"num_layers is 1,000,000,000,000, which the weights cannot"),
        (opennmt, {"share_embeddings": "false"}, "share_embeddings: 'false'"),
        (eole, {"training": [1]}, r"config\.json: training: settings below it are expected, not \[1\]"),
        (eole, {"model__decoder__layers": 10**12}, "dec_layers is 1,000,000,000,000, which the weights cannot have"),
        (opennmt, {"enc_layers": None}, "pt: nothing is said of enc_layers"),
        (opennmt, {"transformer_ff": True}, "transformer_ff: a whole number is expected, not True"),
    ],
)
def test_settings_that_are_no_numbers(make, settings, message, tmp_path):
    with pytest.raises(UserError, match=message):
        import_model(make(tmp_path / "x", **settings))
