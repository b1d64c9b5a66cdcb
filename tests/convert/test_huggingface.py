"""Imports from Transformers: logits, searches and translations are the original's; what is not whole is refused."""

from __future__ import annotations

import json
import pickle
import shutil

import pytest
import torch
from helpers.contract import assert_same
from helpers.originals import MAKERS
from helpers.tiny_run import run, write_corpus, write_recipe
from helpers.toy_translators import SENTENCES
from safetensors.torch import load_file, save_file
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from hf_mlnmt import UserError, import_model, search
from hf_mlnmt.convert import huggingface, importing
from hf_mlnmt.generation import TranslationPipeline
from hf_mlnmt.training import TwoFiles, train_pair

TEXTS = SENTENCES[:9]


@pytest.fixture(scope="session")
def imported(original, tmp_path_factory):
    """name -> the folder of the imported model."""
    made = {}

    def folder(name):
        if name not in made:
            made[name] = import_model(original(name), tmp_path_factory.mktemp("imported") / name).folder
        return made[name]

    return folder


@pytest.fixture(params=MAKERS)
def both(request, original, imported):
    """A model as it was and as it is here, and a batch of texts."""
    theirs = AutoModelForSeq2SeqLM.from_pretrained(original(request.param)).eval()
    ours = AutoModelForSeq2SeqLM.from_pretrained(imported(request.param)).eval()
    assert type(ours).__name__ == "TransformerForConditionalGeneration"
    return theirs, ours, batch_of(imported(request.param))


def batch_of(folder):
    return AutoTokenizer.from_pretrained(folder)(TEXTS, return_tensors="pt", padding=True)


def test_searches_find_the_same_and_logits_are_the_originals(both, monkeypatch):
    """With the generation settings of the folder: forced tokens, bad words, lengths; only the beams are given."""
    theirs, ours, batch = both
    run = search.run
    for beams in (1, 4):
        calls = []
        monkeypatch.setattr(search, "run", lambda *a, calls=calls: (calls.append(1), run(*a))[1])
        options = {"num_beams": beams, "num_return_sequences": beams, "return_dict_in_generate": True}
        a, b = theirs.generate(**batch, **options, output_scores=True), ours.generate(**batch, **options)
        assert calls, "not the fast search"
        assert a.sequences.tolist() == b.sequences.tolist()
        if beams > 1:
            assert_same(b.sequences_scores, a.sequences_scores, 1e-5)
        assert len(set(map(tuple, a.sequences.tolist()))) > 2
    generator = torch.Generator().manual_seed(1)
    target = torch.randint(4, theirs.lm_head.weight.shape[0] - 1, (len(TEXTS), 20), generator=generator)
    for dtype, bound in ((torch.float32, 1e-5), (torch.float64, 1e-12)):
        with torch.no_grad():
            a, b = (model.to(dtype)(**batch, decoder_input_ids=target).logits for model in (theirs, ours))
        assert_same(b, a, bound * a.abs().max().item())
        assert a.std() > 0.5


def test_an_import_by_itself_is_said_in_one_line(original, caplog):
    for fast, lines in ((True, 1), (False, 0)):
        caplog.clear()
        with caplog.at_level("WARNING", logger="hf_mlnmt"):
            TranslationPipeline.from_pretrained(original("marian"), device="cpu", fast=fast)
        said = [record.getMessage() for record in caplog.records if "imported as" in record.getMessage()]
        assert len(said) == lines
        assert all("fast=False" in line for line in said)


def test_generation_settings_are_taken_over(original, imported):
    theirs, ours = (json.loads((f("marian") / "generation_config.json").read_text()) for f in (original, imported))
    for key in ("bad_words_ids", "forced_eos_token_id", "decoder_start_token_id", "max_length", "pad_token_id"):
        assert ours[key] == theirs[key] is not None, key
    theirs, ours = (json.loads((f("marian") / "config.json").read_text()) for f in (original, imported))
    for key in ("dropout", "attention_dropout", "activation_dropout"):
        assert ours[key] == theirs[key], key


def test_settings_of_an_old_folder_are_taken_from_its_config(original, tmp_path):
    """Models of before 2023 have no generation_config.json: generate() reads the same keys in config.json."""
    folder = copied(original("marian"), tmp_path / "old")
    (folder / "generation_config.json").unlink()
    edit(folder, num_beams=6, max_length=512, bad_words_ids=[[7]])
    imported = import_model(folder, tmp_path / "new")
    ours = AutoModelForSeq2SeqLM.from_pretrained(imported.folder).generation_config
    theirs = AutoModelForSeq2SeqLM.from_pretrained(folder).generation_config
    for key in ("num_beams", "max_length", "bad_words_ids", "forced_eos_token_id"):
        assert getattr(ours, key) == getattr(theirs, key), key


def test_the_record_accounts_for_every_tensor(original, imported):
    record = json.loads((imported("marian") / "import.json").read_text())
    tensors = AutoModelForSeq2SeqLM.from_pretrained(original("marian")).state_dict()
    named = {name for names in record["parameters"].values() for name in names} | set(record["left_out"])
    assert named == set(tensors)
    assert record["format"] == "marian"
    assert record["largest_difference_of_logits"] < 1e-5
    assert str(original("marian")) not in json.dumps(record)


def test_what_earlier_versions_saved_too_is_left_out_and_said(original, tmp_path):
    """The layout's version, and tables of sines."""
    folder = tmp_path / "old"
    shutil.copytree(original("nllb"), folder)
    weights = load_file(folder / "model.safetensors")
    for side in ("encoder", "decoder"):
        weights |= {
            f"model.{side}.version": torch.tensor([3.0]),
            f"model.{side}.embed_positions.weights": torch.ones(9, 8),
        }
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    old, new = (import_model(name) for name in (folder, original("nllb")))
    assert all(torch.equal(x, y) for x, y in zip(old.model.parameters(), new.model.parameters(), strict=True))
    assert "left out, as nothing reads it: model.decoder.embed_positions.weights" in str(old.record)
    weights["model.decoder.other"] = torch.ones(1)
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(UserError, match=r"has tensors: model\.decoder\.other"):
        import_model(folder)


def test_weights_stay_in_their_type(original, tmp_path):
    folder = tmp_path / "half"
    AutoModelForSeq2SeqLM.from_pretrained(original("nllb"), dtype=torch.float16).save_pretrained(folder)
    AutoTokenizer.from_pretrained(original("nllb")).save_pretrained(folder)
    imported = import_model(folder, tmp_path / "out")
    saved = load_file(imported.folder / "model.safetensors")
    assert {tensor.dtype for tensor in saved.values()} == {torch.float16}


def copied(folder, target):
    target.mkdir()
    for file in folder.iterdir():
        (target / file.name).write_bytes(file.read_bytes())
    return target


def edit(folder, **fields):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **fields}))


def generation(folder, **settings):
    content = json.loads((folder / "generation_config.json").read_text())
    (folder / "generation_config.json").write_text(json.dumps({**content, **settings}))


def vocabulary(folder, change):
    vocabulary = json.loads((folder / "vocab.json").read_text())
    (folder / "vocab.json").write_text(json.dumps(change(vocabulary)))


def tensors(folder, change):
    state = load_file(folder / "model.safetensors")
    save_file(change(state), folder / "model.safetensors", metadata={"format": "pt"})


class Evil:
    def __reduce__(self):
        return (print, ("run",))


def replaced_by_a_pickle(folder):
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps({"model.shared.weight": Evil()}))


def rounded_pickle(folder):
    state = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    torch.save({**state, FIRST: state[FIRST].int()}, folder / "pytorch_model.bin")


def damaged_pickle(folder):
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(b"PK\x03\x04 and no more")


FIRST = "model.encoder.layers.0.fc1.weight"
DAMAGES = {
    "lacks tensors": (lambda f: tensors(f, lambda s: {k: v for k, v in s.items() if k != FIRST}), "lacks tensors.*fc1"),
    "has others": (lambda f: tensors(f, lambda s: {**s, "adapter.weight": torch.ones(3)}), "has tensors.*adapter"),
    "misshapen": (lambda f: tensors(f, lambda s: {**s, FIRST: torch.ones(3, 16)}), "cannot be loaded|misshapen"),
    "other positions": (
        lambda f: tensors(f, lambda s: {**s, "model.encoder.embed_positions.weight": torch.ones(64, 16)}),
        "embed_positions.weight holds other numbers",
    ),
    "a pickle": (replaced_by_a_pickle, r"bin: not a checkpoint of weights alone.* Code in a checkpoint is never run"),
    "a damaged pickle": (damaged_pickle, r"pytorch_model\.bin: not a checkpoint of weights alone, or a damaged one"),
    "rounded": (
        lambda f: tensors(f, lambda s: {**s, FIRST: s[FIRST].int()}),
        r"model\.safetensors: weights are of whole numbers \(\S+fc1\.weight\)",
    ),
    "rounded, a pickle": (rounded_pickle, "fc1.weight is int32: import the model in float32"),
    "a dtype of no weights": (lambda f: edit(f, dtype="int32"), "dtype.*int32"),
    "beams": (lambda f: generation(f, num_beams=-2), "num_beams: a whole number of at least 1 is expected, not -2"),
    "beams of an old folder": (
        lambda f: ((f / "generation_config.json").unlink(), edit(f, num_beams=-2)),
        r"config\.json: num_beams: a whole number of at least 1 is expected, not -2",
    ),
    "penalty": (
        lambda f: generation(f, length_penalty="x"),
        "length_penalty: a number from -10 to 10 is expected, not 'x'",
    ),
    "not a number": (
        lambda f: tensors(f, lambda s: {**s, FIRST: torch.full_like(s[FIRST], float("nan"))}),
        r"model\.safetensors: weights hold values that are not finite numbers \(\S+fc1\.weight\)",
    ),
    "no weights": (lambda f: (f / "model.safetensors").unlink(), "cannot be loaded"),
    "no tokenizer": (
        lambda f: [p.unlink() for p in f.iterdir() if "token" in p.name or p.suffix == ".spm"],
        "the tokenizer cannot be loaded .a file of it is missing",
    ),
    "a list of types": (
        lambda f: edit(f, model_type=["marian"]),
        r'config\.json: model_type: expected a text, not \["marian"\]',
    ),
    "no type of numbers": (lambda f: edit(f, dtype="floaty"), r"config.json: dtype: .*floaty"),
    "text for a number": (lambda f: edit(f, d_model="sixteen"), "d_model.*sixteen"),
    "an end outside": (lambda f: edit(f, eos_token_id=4444), "config.json: eos_token_id: 4444 is no number of a token"),
    "an end outside, generation": (
        lambda f: (f / "generation_config.json").write_text('{"eos_token_id": 4444}'),
        "eos_token_id: 4444 is no number of a token",
    ),
    "a list of settings": (lambda f: (f / "generation_config.json").write_text("[1]"), "expected a JSON object"),
    "unknown type": (lambda f: edit(f, model_type="nonsense"), r"config\.json: not the config of a model: .*nonsense"),
    "mixture of experts": (lambda f: edit(f, model_type="nllb-moe"), "type nllb-moe cannot be imported"),
    "another vocabulary": (
        lambda f: (f / "vocab.json").write_text(json.dumps({**json.loads((f / "vocab.json").read_text()), "new": 99})),
        "tokenizer has",
    ),
    "many ends": (lambda f: edit(f, eos_token_id=[0, 1]), "eos_token_id=\\[0, 1\\]"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_what_is_not_whole_is_refused(original, damage, tmp_path, capsys):
    break_it, message = DAMAGES[damage]
    folder = copied(original("marian"), tmp_path / "broken")
    break_it(folder)
    with pytest.raises(UserError, match=message):
        import_model(folder, tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["broken"], "something was half-written"
    assert "run" not in capsys.readouterr().out.split()


def test_a_vocabulary_of_fewer_tokens_than_rows_is_refused(original, tmp_path, monkeypatch):
    """A few rows more are padding; <pad> gets a number where it has none."""
    folder = copied(original("marian"), tmp_path / "cut")
    vocabulary(folder, lambda v: dict(list(v.items())[:39]))
    monkeypatch.setattr(importing, "_PADDING", 50)
    assert import_model(folder).folder is None
    vocabulary(folder, lambda v: dict(list(v.items())[:38]))
    with pytest.raises(UserError, match=r"90 rows of embeddings, but only 39 tokens in the vocabulary beside it"):
        import_model(folder, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_difference_is_refused(original, tmp_path, monkeypatch):
    monkeypatch.setitem(huggingface.KNOWN["marian"], "layer_norm_eps", 0.5)
    with pytest.raises(UserError, match="logits differ by"):
        import_model(original("marian"), tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_output_folders(original, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("all of it")
    with pytest.raises(UserError, match="holds no earlier import"):
        import_model(original("marian"), tmp_path / "mine")
    with pytest.raises(UserError, match="is a file"):
        import_model(original("marian"), tmp_path / "mine" / "thesis.tex")


@pytest.mark.parametrize("name", ["m2m100", "nllb", "mbart50"])
def test_an_imported_model_whose_tokenizer_tells_languages_is_not_trained_by_a_recipe(original, tmp_path, name):
    """By neither door; nothing is made. The original is: tests/training/test_pretrained.py."""
    data = write_corpus(tmp_path / "data", {"train": 260, "val": 8, "test": 8})
    import_model(original(name), tmp_path / "imported")
    folder = tmp_path / "imported"
    message = f"{folder}: its tokenizer puts codes of languages around a text.*Begin with that model"
    with pytest.raises(UserError, match=message):
        train_pair(TwoFiles(("train.en", "train.de"), init_from=str(folder)), data, tmp_path / "run")
    recipe = write_recipe(tmp_path / "recipe.yaml", init_from=str(folder), tokenizer={"path": str(folder)})
    with pytest.raises(UserError, match=message):
        run(recipe, data, tmp_path / "run")
    assert not (tmp_path / "run").exists() or {path.name for path in (tmp_path / "run").iterdir()} <= {".lock"}
