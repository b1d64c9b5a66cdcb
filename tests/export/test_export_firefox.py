"""Firefox's format: what was imported comes back to the byte, and our students run in its engine as computed here."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import unicodedata
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import sentencepiece
import torch
from helpers.export_toys import joint_tokenizer, toy_model, write_folder
from helpers.marian_files import STUDENT, arrays_of, student_vocabulary, write_int8, write_shortlist
from helpers.model_folders import SENTENCES
from torch import nn
from transformers import AutoModelForSeq2SeqLM

from hf_mlnmt import UserError, config_for, import_model
from hf_mlnmt.convert.marian_binary import SETTINGS, read_items, values_of
from hf_mlnmt.data.processing import TextProcessing
from hf_mlnmt.data.tokenizer import Tokenizers, train_tokenizer
from hf_mlnmt.export import export
from hf_mlnmt.export.check import until_end
from hf_mlnmt.export.firefox import EngineLinear, as_engine, calibrated, exportable, lexical_shortlist
from hf_mlnmt.export.unigram import _normalisation as unigram_rules
from hf_mlnmt.export.unigram import check_cut, vocabulary_of
from hf_mlnmt.generation.translating.batches import pad
from hf_mlnmt.generation.translating.loading import Parts
from hf_mlnmt.hub import publish
from hf_mlnmt.training.quantisation_aware import RoundedProducts, calibrate

NAME = "model.ende.intgemm.alphas.bin"


@pytest.fixture(scope="module")
def tokenizers():
    return Tokenizers(*[train_tokenizer(SENTENCES, "unigram", 350, keep=["digits"])] * 2)


def refused(*arguments, **files):
    with pytest.raises(UserError) as error:
        export(*arguments, **files)
    return str(error.value)


def numbers_of(file):
    return {item.name: values_of(item)[0] for item in read_items(file) if item.name != SETTINGS}


def student(tokenizers, **fields):
    sizes = {"encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "d_model": 64, "max_position_embeddings": 128}
    sizes |= {"encoder_layers": 1, "decoder_layers": 2, "vocab_size": len(tokenizers.source), "dropout": 0.0}
    torch.manual_seed(1)
    return AutoModelForSeq2SeqLM.from_config(config_for("ssru", "tiny", **{**sizes, **fields})).eval()


@pytest.fixture(scope="module")
def ours(tokenizers, tmp_path_factory):
    """It has learnt to repeat its source, a little: with random weights a model says one word for ever."""
    model = student(tokenizers, attention_bias=False).train()
    optimizer = torch.optim.Adam(model.parameters(), lr=6e-3)
    encoded = [ids.tolist() for ids in tokenizers.encode_source(SENTENCES)]
    for step in range(50):
        input_ids, mask = pad(encoded[step * 16 % 192 :][:16], 0)
        labels = input_ids.masked_fill(mask == 0, -100)
        model(input_ids=input_ids, attention_mask=mask, labels=labels).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return write_folder(tmp_path_factory.mktemp("student") / "ours", tokenizers, model.eval())


@pytest.fixture(scope="module")
def dev(tmp_path_factory):
    file = tmp_path_factory.mktemp("dev") / "dev.en"
    file.write_text("\n".join(SENTENCES[:20]))
    return file


@pytest.fixture(scope="module")
def exported(ours, dev, tmp_path_factory):
    return export(ours, tmp_path_factory.mktemp("exported") / "out", "firefox", calibration=dev, shortlist_text=dev)


@pytest.fixture(scope="module", params=[False, True], ids=["joint", "two vocabularies"])
def theirs(request, tmp_path_factory):
    """One of Firefox's folders; with two vocabularies an embedding for each."""
    folder, two = tmp_path_factory.mktemp("firefox"), request.param
    settings = {**STUDENT, "tied-embeddings-all": not two, "tied-embeddings": two}
    sizes = [student_vocabulary(folder / f"{'trg' * two}vocab.ende.spm", SENTENCES)] * 2
    arrays = arrays_of(1, sizes[1], settings)
    if two:
        sizes[0] = student_vocabulary(folder / "srcvocab.ende.spm", [x[::-1] for x in SENTENCES], 296)
        table = arrays.pop("Wemb")
        arrays |= {"decoder_Wemb": table, "encoder_Wemb": table[: sizes[0]] * 2}
    write_int8(folder / NAME, arrays, settings)
    write_shortlist(folder / "lex.50.50.ende.s2t.bin", [[row % 7, 40 + row % 9] for row in range(sizes[0])])
    return folder


def test_an_import_comes_back_to_the_byte(theirs, tmp_path, monkeypatch):
    """Also when it was published in between."""
    monkeypatch.setattr(publish, "check_loading", lambda *arguments: None)
    imported = import_model(theirs / NAME, tmp_path / "ours").folder
    built = publish.build_folder(imported, tmp_path / "published", licence="mpl-2.0").folder
    exported = export(built, tmp_path / "back", "firefox").folder
    assert {path.name for path in exported.iterdir()} == {*(path.name for path in theirs.iterdir()), "export.json"}
    for path in theirs.iterdir():
        assert path.read_bytes() == (exported / path.name).read_bytes(), path.name


def test_an_import_that_was_trained_is_calibrated_anew(theirs, tmp_path, dev):
    folder = import_model(theirs / NAME, tmp_path / "ours").folder
    model = AutoModelForSeq2SeqLM.from_pretrained(folder)
    with torch.no_grad():
        model.model.encoder.layers[0].feed_forward.fc1.weight[3] *= 3
    model.save_pretrained(folder)
    assert "give some hundred sentences" in refused(folder, tmp_path / "out", "firefox")
    file = export(folder, tmp_path / "out", "firefox", calibration=dev).folder / NAME
    before, after = (numbers_of(each) for each in (theirs / NAME, file))
    assert before.keys() == after.keys()
    changed = {name for name in before if not np.allclose(before[name], after[name], rtol=1e-6, atol=0)}
    assert {"encoder_l1_ffn_W1", "encoder_l1_ffn_W1_QuantMultA"} < changed
    assert {name for name in changed if "Mult" not in name} == {"encoder_l1_ffn_W1"}


def test_a_student_of_ours(ours, exported, tokenizers):
    """Rows of what no text is made of are gone, and of what fills the vocabulary up to a multiple of 8 never chosen."""
    items = numbers_of(exported.folder / "model.intgemm.alphas.bin")
    model, rows = AutoModelForSeq2SeqLM.from_pretrained(ours), len(items["Wemb"])
    names = arrays_of(1, rows, {**STUDENT, "enc-depth": 1})
    assert {name for name in items if "Mult" not in name} == names.keys()
    assert rows % 8 == 0
    kept = [1, 2, *range(5, len(tokenizers.source))]
    table, bias = model.lm_head.weight.detach().numpy(), items["decoder_ff_logit_out_b"][0]
    bound = np.abs(table[kept]).max() / 254 * 1.001
    assert np.abs(items["Wemb"][: len(kept)] - table[kept]).max() <= bound
    assert (bias[len(kept) :] == -100).all()
    np.testing.assert_array_equal(bias[: len(kept)], model.lm_head.bias.detach()[kept])
    again = import_model(exported.folder / "model.intgemm.alphas.bin").tokenizers
    texts = ["A man sees 12 dogs.", "ein Hund! 🙂"]
    pieces = [[t.source.convert_ids_to_tokens(ids) for ids in t.encode_source(texts)] for t in (tokenizers, again)]
    assert pieces[0] == pieces[1]
    found = exported.record["compared_with_generate"]
    assert found["greedy"]["same_tokens"] > 0.3
    assert found["largest_difference_of_log_probabilities"] < 3


def greedy(folder, scratch, texts, saturated, more):
    """The engine's search, in its own int8: the pieces of each text, 2 for each subword and `more` at most."""
    imported = import_model(next(folder.glob("model*")), scratch)
    model = as_engine(imported.model, json.loads((scratch / "marian.json").read_text()), saturated)
    sources = [ids.tolist() for ids in imported.tokenizers.encode_source(texts)]
    (input_ids, mask), longest = pad(sources, model.config.pad_token_id), max(map(len, sources))
    options = {"num_beams": 1, "do_sample": False, "max_new_tokens": 2 * longest + more, "max_length": None}
    found = []
    for ids, output in zip(sources, model.generate(input_ids=input_ids, attention_mask=mask, **options).tolist()):
        output = until_end(output[1 : 1 + 2 * len(ids) + more], [0])
        pieces = imported.tokenizers.target.convert_ids_to_tokens(output)
        found.append([piece for piece in pieces if piece not in ("</s>", "<unk>")])
    return found


def test_the_engine_computes_what_is_computed_here(exported, tmp_path):
    engine = pytest.importorskip("fxtranslate", reason="Firefox's engine is not installed: pip install fxtranslate")
    folder = exported.folder
    content, vocabulary, lists = (next(folder.glob(name)).read_bytes() for name in ("model*", "vocab*", "lex*"))
    translator = engine.Translator(model=content, src_vocab=vocabulary, trg_vocab=vocabulary)
    texts = SENTENCES[:16]
    expected = [translator.translate(text) for text in texts]
    assert len(set(expected)) > 8
    rules = [True] if translator.backend() == "avx2" else [True, False]
    each = [greedy(folder, tmp_path / str(rule), texts, rule, 4) for rule in rules]
    found = [["".join(pieces).replace("▁", " ").lstrip() for pieces in outputs] for outputs in each]
    # Where a sum lies between two steps, rounding decides.
    assert max(sum(map(str.__eq__, outputs, expected)) for outputs in found) >= 13
    narrowed = engine.Translator(model=content, src_vocab=vocabulary, trg_vocab=vocabulary, shortlist=lists)
    assert sum(narrowed.translate(text) == whole for text, whole in zip(texts, expected)) >= 12  # its own text


def test_bergamot_computes_what_is_computed_here(exported, tmp_path):
    """Its sums are exact where the processor multiplies in int8 by itself (VNNI); its release is for Python 3.10."""
    python, helper = os.environ.get("BERGAMOT_PYTHON"), Path(__file__).parents[1] / "helpers" / "bergamot_engine.py"
    if not python:
        pytest.skip("BERGAMOT_PYTHON names no Python 3.10 with bergamot 0.4.5 (pip install --no-deps)")
    texts = SENTENCES[:16]
    engine = sentencepiece.SentencePieceProcessor(model_file=str(next(exported.folder.glob("vocab*"))))
    found = [greedy(exported.folder, tmp_path / str(rule), texts, rule, 0) for rule in (False, True)]
    found = [list(map(engine.decode_pieces, each)) for each in found]
    for options, least in ([], 13), (["shortlist"], 10):
        command = [python, str(helper), str(exported.folder), *options]
        done = subprocess.run(command, input="\n".join(texts), capture_output=True, text=True, timeout=120)
        expected = done.stdout.splitlines()
        assert len(expected) == len(texts), done.stderr
        assert max(sum(map(str.__eq__, each, expected)) for each in found) >= least


@pytest.mark.parametrize(("inputs", "saturated"), [(64, True), (64, False), (33, True)])
def test_products_are_the_engines(inputs, saturated):
    draw = torch.Generator().manual_seed(1)
    rows, steps = torch.randn(3, inputs, generator=draw), torch.randint(-127, 128, (5, inputs), generator=draw).char()
    linear = nn.Linear(inputs, 10)
    parts = [(steps, 50.0, 60.0), (steps.flip(0), 40.0, 200.0)]
    found = EngineLinear(linear, parts, saturated)(rows[None])[0]
    expected, overflowed = np.zeros((3, 10)), False
    for row, out in np.ndindex(3, 10):
        matrix, multiplier, alpha = parts[out // 5]
        a = [max(-127, min(127, round(x * alpha))) + 127 for x in rows[row].tolist()]
        products = [x * w for x, w in zip(a, matrix[out % 5].tolist())]
        if saturated and inputs % 32 == 0:
            pairs = [products[at] + products[at + 1] for at in range(0, inputs, 2)]
            overflowed |= any(not -(2**15) <= pair < 2**15 for pair in pairs)
            products = [max(-(2**15), min(2**15 - 1, pair)) for pair in pairs]
        total = sum(products) - 127 * sum(matrix[out % 5].tolist())
        expected[row, out] = total / (alpha * multiplier) + linear.bias[out].item()
    np.testing.assert_allclose(found.detach(), expected, rtol=1e-5, atol=1e-3)
    assert overflowed == (saturated and inputs == 64)


def test_training_in_int8_computes_as_the_engine(ours, exported, dev, tokenizers, tmp_path):
    """But where a number lies between two steps; alphas are those of the export."""
    model = AutoModelForSeq2SeqLM.from_pretrained(ours).eval()
    alphas = calibrate(Parts(model, tokenizers), dev.read_text().splitlines())
    imported = import_model(next(exported.folder.glob("model*")), tmp_path / "again")
    kept = json.loads((tmp_path / "again" / "marian.json").read_text())
    engine = as_engine(imported.model, kept)
    without = as_engine(
        imported.model, {**kept, "alphas": {k: v for k, v in kept["alphas"].items() if "none" not in k}}
    )
    assert without.lm_head.parts[0][0] == pytest.approx(engine.lm_head.parts[0][0], rel=1e-6)
    sides = []
    for own in (tokenizers, imported.tokenizers):
        batch = [own.encode_source([text])[0][None].astype(int) for text in SENTENCES[:8]]
        sides.append([{"input_ids": torch.tensor(ids), "labels": torch.tensor(ids)} for ids in batch])
    with torch.no_grad():
        plain = [model(**batch).loss for batch in sides[0]]
        with RoundedProducts(model, alphas).computing():
            rounded = [model(**batch).loss for batch in sides[0]]
        theirs = [engine(**batch).loss for batch in sides[1]]
    near, far = (sum(abs(a - b) for a, b in zip(each, theirs)) for each in (rounded, plain))
    assert near < 0.2 * far


def test_alphas_are_of_the_largest_inputs(tokenizers):
    """In the encoder of a sentence, in the decoder of a step."""
    model = student(tokenizers)
    texts = SENTENCES[:5]
    alphas = calibrated(Parts(model, tokenizers), texts)
    largest = {"encoder_l1_self_Wk": [], "decoder_l1_rnn_Wf": [], "decoder_l2_context_Wv": [], "": []}
    largest["encoder_l1_ffn_W1"] = inner = []
    layer = model.model.encoder.layers[0].feed_forward.fc1
    for ids in tokenizers.encode_source(texts):
        source = torch.tensor(ids[None].tolist())
        limit = {"num_beams": 1, "max_new_tokens": 2 * max(map(len, tokenizers.encode_source(texts))) + 4}
        target = model.generate(input_ids=source, **limit)[:, :-1]
        hook = layer.register_forward_pre_hook(lambda _, inputs: inner.append(inputs[0].abs().max().item()))
        with torch.no_grad():
            output = model(input_ids=source, decoder_input_ids=target, output_hidden_states=True)
        hook.remove()
        largest["encoder_l1_self_Wk"].append(output.encoder_hidden_states[0].abs().max().item())
        largest["decoder_l2_context_Wv"].append(output.encoder_last_hidden_state.abs().max().item())
        largest["decoder_l1_rnn_Wf"] += output.decoder_hidden_states[0].abs().amax(-1)[0].tolist()
        largest[""] += output.decoder_hidden_states[-1].abs().amax(-1)[0].tolist()
    for name, sizes in largest.items():
        assert alphas[name] == pytest.approx(127 / (np.mean(sizes) + 1.1 * np.std(sizes)), rel=1e-4), name


def test_the_vocabulary_cuts_as_the_tokenizer_does(tokenizers):
    vocabulary = vocabulary_of("it", tokenizers.source)
    assert tempfile.gettempdir().encode() not in vocabulary.model
    texts = ["  two  spaces ", "tab\there", "e\u0301 \u00fcber", "\u200ezero width", "日本 🙂", "a</s>b <0x41>", "▁a▁b"]
    texts += ["1,234.56€", "\u1112\u1161\u11ab국", "don't stop-it!!??...", "no\u00a0break", *SENTENCES[:50]]
    assert check_cut("it", vocabulary, texts, tokenizers.encode_source(texts)) == 1.0
    with pytest.raises(UserError, match=r"cuts 100\.0% otherwise"):
        check_cut("it", vocabulary, texts[-50:], [ids[1:] for ids in tokenizers.encode_source(texts[-50:])])


def test_a_shortlist_is_what_translations_attend_to(tokenizers):
    model = student(tokenizers)
    vocabulary = vocabulary_of("it", tokenizers.source)
    lists = lexical_shortlist(Parts(model, tokenizers), SENTENCES[:1], [vocabulary] * 2)
    ids = tokenizers.encode_source(SENTENCES[:1])[0]
    output = model.generate(input_ids=torch.tensor(ids[None].tolist()), num_beams=1, max_new_tokens=2 * len(ids) + 4)
    translated = {vocabulary.ids.index(index) for index in output[0, 1:].tolist() if index in vocabulary.ids}
    read = {vocabulary.ids.index(index) for index in ids.tolist()}
    assert (lists.first, lists.best, len(lists.translations)) == (50, 50, len(vocabulary.ids))
    assert all(set(lists.translations[row]) <= translated for row in read)
    assert all(not lists.translations[row] for row in range(len(vocabulary.ids)) if row not in read)
    # By a teacher that links the last subword alone, to all of the translation.
    teacher = SimpleNamespace(of_subwords=lambda own, sources, targets: [last_of(*x) for x in zip(sources, targets)])
    last_of = lambda source, target: torch.arange(len(source)).eq(len(source) - 2).repeat(len(target), 1)  # noqa: E731
    lists = lexical_shortlist(Parts(model, tokenizers), SENTENCES[:1], [vocabulary] * 2, teacher)
    last = vocabulary.ids.index(ids.tolist()[-2])
    assert [row for row, found in enumerate(lists.translations) if found] == [last]
    assert set(lists.translations[last]) <= translated


def test_what_an_export_cannot_use(ours, dev, tmp_path):
    out, empty, blank = tmp_path / "out", tmp_path / "empty", tmp_path / "blank"
    empty.write_text("")
    blank.write_text("\n \n")
    lists = tmp_path / "lex.bin"
    write_shortlist(lists, [[0]] * 99)
    for files, message in (
        ({}, "give some hundred sentences of the source"),
        ({"calibration": empty}, "the file is empty"),
        ({"calibration": blank}, "every line is empty"),
        ({"calibration": tmp_path / "no"}, "no such file"),
        ({"calibration": dev, "shortlist": lists}, "a shortlist of other subwords: it has 99"),
        ({"calibration": dev, "shortlist": dev}, "not a whole shortlist in Marian's binary form"),
        ({"calibration": dev, "shortlist": tmp_path / "no"}, "cannot be read"),
        ({"shortlist": lists, "shortlist_text": dev}, "both say which words are candidates"),
        ({"calibration": dev, "shortlist_teacher": "teacher"}, "says how --shortlist-text is aligned"),
        ({"dtype": "float16"}, "firefox is exported in int8"),
    ):
        assert message in refused(ours, out, "firefox", **files)
        assert not out.exists()
    assert "--calibrate: is for --format firefox" in refused(ours, out, "marian", calibration=dev)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"decoder_autoregression": "self-attention"},
            "fxtranslate, one of its engines, knows no decoder but the SSRU",
        ),
        ({"norm_position": "pre"}, "norm_position='pre'"),
        ({"activation_function": "gelu"}, "activation_function='gelu'"),
        ({"position_embedding": "interleaved"}, "position_embedding='interleaved'"),
        ({"tie_word_embeddings": False}, "tie_word_embeddings=False"),
        ({"decoder_ffn_dim": 128}, "decoder_ffn_dim=128: cannot"),
        ({"d_model": 32}, "d_model=32: Firefox's engines multiply 64 numbers at once"),
    ],
)
def test_models_that_the_engines_lack(tokenizers, fields, message):
    with pytest.raises(UserError, match=message):
        exportable(student(tokenizers, **fields), tokenizers)


def test_a_start_that_is_not_zero_and_other_systems_are_refused(tokenizers):
    with pytest.raises(UserError, match="is not zero"):
        exportable(toy_model(tokenizers, "ssru", d_model=64, encoder_ffn_dim=64), tokenizers)
    with pytest.raises(UserError, match="Train a student of system ssru"):
        exportable(toy_model(tokenizers), tokenizers)


def test_text_that_no_engine_makes_is_refused(tokenizers):
    several = train_tokenizer(SENTENCES, "unigram", 350, languages=["de", "fr"])
    moses = Tokenizers(tokenizers.source, tokenizers.source, {"target": TextProcessing("de", moses=True)})
    for others, message in ((moses, "its text is processed"), (Tokenizers(several, several), r"languages \(de, fr\)")):
        with pytest.raises(UserError, match=message):
            exportable(student(others), others)
    names = Tokenizers(*[train_tokenizer(SENTENCES, "unigram", 350, keep=["{name}"])] * 2)
    with pytest.raises(UserError, match="has placeholders that are kept whole"):
        vocabulary_of("it", names.source)


def test_bpe_is_refused_by_name(dev, tmp_path):
    tokenizers = joint_tokenizer()
    folder = write_folder(tmp_path / "bpe", tokenizers, student(tokenizers))
    said = refused(folder, tmp_path / "out", "firefox", calibration=dev)
    assert "is of kind BPE, which Firefox's engines cut otherwise" in said
    assert "tokenizer: {kind: unigram}" in said
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("sign", ["é", "ǖ", "ấ", "각"])
def test_every_form_of_a_letter_is_read_as_one(sign):
    rules, apart = unigram_rules(), unicodedata.normalize("NFD", sign)
    assert rules[apart] == sign
    first = unicodedata.normalize("NFC", apart[:2])  # a letter with one of its marks, two of a syllable's three
    assert len(apart) == 2 or rules[first + apart[2:]] == sign
