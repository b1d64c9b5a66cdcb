"""Translations that are probably wrong: what is seen, what is searched again, where it is written."""

from __future__ import annotations

import json
import logging
from functools import partial

import pytest
from helpers.toy_translators import SENTENCES
from typer.testing import CliRunner

from hf_mlnmt.cli import app
from hf_mlnmt.generation import DecodingOptions
from hf_mlnmt.generation.translating.call import TranslationCall
from hf_mlnmt.generation.translating.hypotheses import Hypothesis
from hf_mlnmt.generation.translating.searching import BatchSearch, Pending
from hf_mlnmt.generation.translating.watching import warnings_of

LONG = "A man in a blue shirt stands on a ladder and cleans a window of a tall house."
GOOD = "Ein Mann in einem blauen Hemd steht auf einer Leiter und putzt ein Fenster eines hohen Hauses."
CASES = [
    (LONG, GOOD, ""),
    ("", "", ""),
    ("No, no, no, no!", "Nein, nein, nein, nein!", ""),
    ("It is very, very good.", "Es ist sehr, sehr gut.", ""),
    (LONG, "Ein Mann in einem Hemd und ein Hemd und ein Hemd und ein Hemd putzt ein Fenster.", "loop"),
    (LONG, "Ein Mann steht steht steht steht auf einer Leiter und putzt ein Fenster eines Hauses.", "loop"),
    (LONG, "Ein Mann steht vor ein Haus steht vor ein Hund steht vor ein Rad steht vor ein Haus.", "loop"),
    (LONG, "Ein Mann in einem blauen Hemd putzt Fensterensterensterensterensterensterensterenster.", "loop"),
    ("二人の男が赤い家の前に立っている。", "两个男人站在一座红色的房子前面。", ""),
    ("二人の男が赤い家の前に立っている。", "两个人站在红的红的红的红的红的红的红的房子。", "loop"),
    ("Two men stand in front of a red house and talk.", "两个男人站在一座红色的房子前面谈话。", ""),
    (
        "A lady with tattoos takes a picture of a painting with her smartphone.",
        "Žena s tetováním fotí na mobil obraz.",
        "",
    ),
    (LONG, "Ein Mann in einem blauen Hemd.", "omission"),
    ("A man eats. A dog sleeps in the sun.", "Ein Mann isst.", "omission"),
    ("A man eats. A dog sleeps.", "Ein Mann isst, während ein Hund schläft.", ""),
    ("A dog.", "Ein Hund schläft auf dem Sofa und ein anderer Hund schläft daneben.", "length"),
    (LONG, LONG, "copy"),
    (LONG, LONG.replace("man", "Mann"), "copy"),
    ("Anna Maria Schmidt", "Anna Maria Schmidt", ""),
    *((path, path, "") for path in ("/var/lib/dpkg/info/name.prerm", "debi package_name-version.revision_arch.dsc")),
    ("stable-updates(bullseye-updates)", "stable-updates(bullseye-updates)", ""),
    ("der Hund schläft in Berlin", "der Hund schläft in Berlin", "copy"),
    ("它是一座红色的房子前面的人", "它是一座红色的房子前面的人", "copy"),
    ("There are 3 men.", "Da sind drei Männer.", ""),
    ("It cost 1,250.50 euros in 1999.", "Es kostete 1999 nur 1.250,50 Euro.", ""),
    ("It cost 1,250.50 euros in 1999.", "Es kostete nur 1.250,50 Euro.", "lost"),
    ("Hello {name}, you have mail.", "Hallo, du hast Post.", "lost"),
]


@pytest.mark.parametrize(("source", "text", "expected"), CASES)
def test_what_is_seen(source, text, expected):
    assert ",".join(warnings_of(source, _found(text), two_languages=True)) == expected


def _found(text, **more):
    return Hypothesis(text, 0.0, 0.0, len(text.split()), **more)


def test_what_else_is_known():
    """A copy may be meant within a language, what reached the limit is no omission, the model's own ratio and links of
    an alignment tell omissions."""
    assert not warnings_of(LONG, _found(LONG))
    assert not warnings_of(LONG, _found("Ein Mann.", finished=False))
    short = "Ein Mann in einem Hemd steht auf einer Leiter dort."  # .67 of the source's characters
    assert not warnings_of(LONG, _found(short))
    assert warnings_of(LONG, _found(short), ratio=1.2) == ("omission",)
    every = tuple((i, i) for i in range(17))
    assert not warnings_of(LONG, _found(GOOD, alignment=every))
    assert warnings_of(LONG, _found(GOOD, alignment=every[:11])) == ("omission",)
    assert warnings_of(LONG, _found(GOOD, alignment=())) == ("omission",)


def test_where_nothing_is_watched(watched):
    for usual in ({}, {"num_return_sequences": 1}):
        assert DecodingOptions().with_keywords(usual).is_watched
    others = [{"watch": False}, {"num_return_sequences": 2, "num_beams": 2}, {"do_sample": True}, {"mbr": 4}]
    for not_watched in [*others, {"target_prefix": "Ein"}, {"decoder_input_ids": 0}]:
        assert not DecodingOptions().with_keywords(not_watched).is_watched


class _Loops:
    """A search whose translations of texts with "dog" loop unless n-grams are blocked, with "cat" always; those with
    "bird" leave out all sentences but the first."""

    def __init__(self, monkeypatch):
        self.asked = []
        monkeypatch.setattr(
            BatchSearch, "search", lambda call, inputs, *more: Pending(partial(self.found, call, inputs))
        )

    def found(self, call, inputs):
        blocked = "no_repeat_ngram_size" in call.arguments
        self.asked += [(piece.text, blocked, call.arguments["num_beams"]) for piece in inputs]
        return [[_found(self.text(piece.text, blocked))] for piece in inputs]

    def text(self, text, blocked):
        if "cat" in text or ("dog" in text and not blocked):
            return f"{text} und so und so und so"
        return text.split(".")[0] + "." if "bird" in text else text


def test_a_marked_piece_is_searched_once_more(pipeline, monkeypatch, watched, caplog):
    caplog.set_level(logging.INFO)
    search, texts = _Loops(monkeypatch), ["A man.", "A dog.", "A cat.", "A bird. The house is red."]
    call = TranslationCall(pipeline, DecodingOptions(num_beams=2))
    results = [best for best, *_ in call.translate(texts, 1, lambda done: None)]
    assert [best.text for best in results] == ["A man.", "A dog.", "A cat. und so und so und so", texts[3]]
    assert [best.warnings for best in results[:2]] == [(), ()]
    assert results[2].warnings == ("loop", "length")
    assert results[3].warnings == ()
    assert sorted(search.asked) == sorted(
        [(text, False, 2) for text in texts]
        + [(text, True, 3) for text in texts[1:3]]
        + [("A bird.", False, 2), ("The house is red.", False, 2)]
    )
    call.report()
    assert "translations that are probably wrong: 1, the first is line 3; length, loop" in caplog.text.replace(
        "loop, length", "length, loop"
    )
    assert "searched once more, as what was found was probably wrong: 3" in caplog.text
    assert pipeline(texts, num_beams=2, watch=False)[1] == "A dog. und so und so und so"


def test_translate_writes_warnings(ours, monkeypatch, watched, tmp_path):
    def run(*arguments):
        return CliRunner().invoke(app, ["translate", str(ours), *map(str, arguments), "--device", "cpu"])

    _Loops(monkeypatch)
    (file := tmp_path / "a.en").write_text("A man.\nA cat.\n")
    looped = "A cat. und so und so und so"
    shown = run(file, "--jsonl", "--doubtful", tmp_path / "one.tsv").stdout
    records = [json.loads(line) for line in shown.splitlines()]
    assert records == [
        {"source": "A man.", "translation": "A man."},
        {"source": "A cat.", "translation": looped, "warnings": ["loop", "length"]},
    ]
    expected = f"2\tloop,length\tA cat.\t{looped}\n"
    assert (tmp_path / "one.tsv").read_text() == expected
    for name, source in (("b.de", file), ("c.md", tmp_path / "c.en.md")):
        source.write_text("A man.\n\nA cat.\n" if name == "c.md" else source.read_text())
        out, tsv = tmp_path / name, tmp_path / f"{name}.tsv"
        run(source, "-o", out, "--doubtful", tsv)
        assert tsv.read_text() == expected
        assert looped in out.read_text()
    refused = run(file, "--doubtful", tmp_path / "x.tsv", "--no-watch")
    assert "--doubtful: translations are not watched" in str(refused.exception or refused.stderr)


def test_what_is_not_marked_stays_to_the_bit(pipeline, watched):
    """Random weights loop often: some translations are searched again and are better, all others are as they were."""
    options = {"num_beams": 3, "num_return_sequences": 1}
    free = pipeline(SENTENCES[:60], watch=False, **options)
    call = TranslationCall(pipeline, DecodingOptions(**options))
    found = call.translate(SENTENCES[:60], 1, lambda done: None)
    marked = {i for i, (text, [best]) in enumerate(zip(SENTENCES, free)) if warnings_of(text, best)}
    assert 0 < len(marked) == call.watch.again < 60
    assert [found[i] for i in range(60) if i not in marked] == [free[i] for i in range(60) if i not in marked]
    assert any(found[i] != free[i] and not found[i][0].warnings for i in marked)
    others = pipeline(SENTENCES[:60], batch_tokens=50, **options)
    assert [(best.text, best.warnings) for [best] in others] == [(best.text, best.warnings) for [best] in found]
