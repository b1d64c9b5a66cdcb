"""The study of decoding: its rows, made of toy models; that it goes on; glossary, shares and tables."""

import gzip
import json
import shutil

import pytest
from helpers.toy_translators import SENTENCES, bpe, our_model

STUDY = "decoding"


def test_words_that_go_together_are_a_glossary(study_module):
    sources = ["The blue house stands", "The blue child", "The house", "Green house"] * 10
    targets = ["Das blaue Haus steht", "Das blaue Kind", "Das Haus", "Gruenes Haus"] * 10
    assert study_module.glossary(sources, targets, least=20, dice=0.9) == {"blue": "blaue", "house": "Haus"}


def test_shares_are_of_words_at_a_beginning(study_module):
    assert study_module.share([["Haus"], [], ["Baum", "rot"]], ["Haushalt", "x", "ein rotes Wort"]) == 66.67
    assert study_module.share([[]], ["x"]) == 0


def test_rows_are_kept_and_not_made_again(study_module, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(study_module, "SAMPLES", 4)
    monkeypatch.setattr(study_module, "COSTS", dict.fromkeys(("beam-5", "must", "terms", "mbr-bleu"), 1.0))
    for number, name in enumerate(("en-de", "de-en")):
        our_model(len(tokenizer := bpe()), seed=number).save_pretrained(f"published/{name}")
        tokenizer.save_pretrained(f"published/{name}")
    shutil.copytree("published/en-de", "published/many")
    (tmp_path / "data").mkdir()
    for name, count in (("train", 60), ("val", 110), ("test_2016_flickr", 6)):
        for code in ("en", "de"):
            text = "".join(f"{line}\n" for line in SENTENCES[:count])
            (tmp_path / "data" / f"{name}.{code}.gz").write_bytes(gzip.compress(text.encode()))
    words = ["--data", "data", "--directions", "en-de", "--sentences", "4"]
    monkeypatch.setattr(study_module, "CHOSEN_ON", 4)
    assert study_module.main(words) == 0, capsys.readouterr()
    kept = json.loads((tmp_path / "results" / study_module.STUDY_FOLDER / "en-de.json").read_text())
    assert list(kept["rows"]) == ["beam-5", "must", "terms", "mbr-bleu"]
    row = kept["rows"]["must"]
    assert row["met_by_beam-5"] == 0 < row["met"]
    assert row["met_by_reference"] == 100
    assert kept["rows"]["mbr-bleu"]["decoding"]["mbr"] == 4
    assert kept["rows"]["mbr-bleu"]["scores"]["BLEU"]["ci"]
    said = capsys.readouterr().out
    assert said.count("en-de ") == 4
    monkeypatch.setattr(study_module.Study, "row", lambda *given: pytest.fail("made again"))
    assert study_module.main(words) == 0
    assert study_module.main([*words[:-1], "5"]) == 1
    assert "Choose another --results" in capsys.readouterr().err
    table = study_module.study_tables(tmp_path / "results" / study_module.STUDY_FOLDER)["decoding-en-de"]
    assert [cells[0] for cells in table.rows] == ["`beam-5`", "`must`", "`terms`", "`mbr-bleu`"]
    assert table.rows[1][-1].endswith("% (0.0 %)")
    # Rows that are there do not depend on an ensemble that is asked for later; those of another ensemble do.
    words += ["--ensemble", *(f"en-de={shutil.copytree('published/en-de', name)}" for name in ("seed1", "seed2"))]
    assert study_module.main(words) == 0
    kept["rows"]["ensemble"] = kept["rows"]["beam-5"]
    (tmp_path / "results" / study_module.STUDY_FOLDER / "en-de.json").write_text(json.dumps(kept))
    assert study_module.main(words) == 1
