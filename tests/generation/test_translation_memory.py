"""A translation memory beside a model: its index, matches, what is put in, and how searches are steered."""

import json
import re
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import polib
import pytest
import torch
from helpers.toy_translators import best_of_lines, bpe, our_model
from transformers import LogitsProcessorList
from typer.testing import CliRunner

from hf_mlnmt import UserError, documents
from hf_mlnmt.cli import app
from hf_mlnmt.data.bilingual import pair_of_file
from hf_mlnmt.data.formats import in_xml
from hf_mlnmt.data.tokenizer import save_tokenizers
from hf_mlnmt.generation import DecodingOptions, Hypothesis, TranslationPipeline
from hf_mlnmt.generation.translating.lines import Style, TextFiles
from hf_mlnmt.generation.translating.remembered import WEIGHT
from hf_mlnmt.memory.index import TranslationMemory
from hf_mlnmt.memory.lexicon import Lexicon
from hf_mlnmt.memory.matching import BANDS, HOLE, Bands, Match, fitted
from hf_mlnmt.memory.steering import LONGEST, Steering

PAIRS = [
    ("Save all files", "Alle Dateien sichern"),
    ("Delete 3 files", "3 Dateien löschen"),
    ("Open the file now", "Öffne jetzt die Datei"),
    ("Close the window", "Fenster schließen"),
    ("Close the window", "Das Fenster schließen"),
]
TU = '<tu changedate="{}"><tuv xml:lang="en"><seg>{}</seg></tuv><tuv xml:lang="de"><seg>{}</seg></tuv></tu>'


def write(path, pairs=PAIRS):
    path.write_text("".join(f"{source}\t{target}\n" for source, target in pairs), "utf-8")
    return path


def write_tmx(path, *units):
    body = "".join(TU.format(*unit) for unit in units)
    path.write_text(f'<tmx version="1.4"><header srclang="en"/><body>{body}</body></tmx>', "utf-8")
    return path


@pytest.fixture
def memory(tmp_path):
    return TranslationMemory(write(tmp_path / "a.tsv"), source="en", target="de")


@pytest.mark.parametrize(
    ("source", "target", "text", "expected", "whole"),
    [
        ("Delete 3 files", "3 Dateien löschen", "Delete 17 files", "17 Dateien löschen", True),
        ("1 of 2", "1 von 2", "2 of 1", "2 von 1", True),
        ("1 of 1", "1 von 1", "2 of 3", f"{HOLE} von {HOLE}", False),  # which is which is not known
        ("2 files", "zwei Dateien", "3 files", "zwei Dateien", False),
        ("1,000.5 km", "1.000,5 km", "2,500.25 km", "2.500,25 km", True),
        ("10 km", "10 km", "2.5 km", f"{HOLE} km", False),  # how the translation writes 2.5 is not known
        ("{name} saved", "{name} gesichert", "{file} saved", "{file} gesichert", True),
        ("<b>Save</b> %s", "%s <b>sichern</b>", "<i>Save</i> %d", "%d <i>sichern</i>", True),
        ("Page 3 of {all}", "Seite 3 von {all}", "Page {all}", f"Seite {HOLE} von {{all}}", False),
        ("Save", "Sichern", "Load", "Sichern", True),
    ],
)
def test_numbers_and_placeholders_are_put_in(source, target, text, expected, whole):
    assert fitted(source, target, text) == (expected, whole)


@pytest.mark.parametrize(
    ("text", "percent", "target"),
    [
        ("Save all files", 100, "Alle Dateien sichern"),
        ("save all  files", 99, "Alle Dateien sichern"),
        ("Save the files", 66, None),
        ("Open the file", 75, None),
        ("Delete 21 files", 100, "21 Dateien löschen"),
        ("Close the window", 100, "Das Fenster schließen"),  # the newest
        ("Nothing like it", None, None),
        ("", None, None),
    ],
)
def test_matches(memory, text, percent, target):
    found = memory.matches(text)
    assert (found[0].percent if found else None) == percent
    assert target in (None, found[0].text if found else None)


def test_neighbours_and_dates_decide(tmp_path):
    units = [
        ("20200101T000000Z", "Edit", "x"),
        ("20260101T000000Z", "Open", "Offen"),
        ("20210101T000000Z", "Tools", "y"),
    ]
    units += [("20220101T000000Z", "Open", "Öffnen"), ("20230101T000000Z", "Close", "z")]
    memory = TranslationMemory(write_tmx(tmp_path / "a.tmx", *units), source="en", target="de")
    for around, expected in (
        (("Tools", "Close"), (101, "Öffnen")),
        (("x", "y"), (100, "Offen")),
        ((None, None), (100, "Offen")),
    ):
        found = memory.matches("Open", *around)[0]
        assert (found.percent, found.text) == expected
    assert memory.matches("Open", "Edit", "Tools")[0].origin == "memory 101"
    assert "unit 2" in memory.matches("Open")[0].place


def test_what_is_added_is_kept_and_counts_first(tmp_path, memory):
    memory.add("Print it", "Drucken")
    memory.add("Save all files", "Alles sichern")
    memory.add("Save all files", "Alles sichern!")
    assert memory.matches("Save all files")[0].text == "Alles sichern!"
    write(tmp_path / "a.tsv", [*PAIRS, ("Undo", "Rückgängig")])
    for again in (TranslationMemory(tmp_path / "a.tsv", source="en", target="de"), memory):
        assert [again.matches(text)[0].text for text in ("Print it", "Save all files")] == ["Drucken", "Alles sichern!"]
    assert not memory.matches("Undo")
    assert TranslationMemory(tmp_path / "a.tsv", source="eng_Latn", target="deu_Latn").matches("Undo")[0].percent == 100
    memory.add("Print it now", "Jetzt drucken")  # beside another that is open
    assert again.matches("Print it now")[0].percent == 100


def test_several_files_and_several_at_once(tmp_path):
    files = [write(tmp_path / f"{name}.tsv", [(f"Save {name}", name), ("Both", name)]) for name in "ab"]
    with ThreadPoolExecutor(4) as pool:  # all want to build it
        found = list(pool.map(lambda _: TranslationMemory(*files, source="en", target="de"), range(8)))
    assert {memory.matches("Both")[0].text for memory in found} == {"b"}
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda number: found[number % 8].add(f"Text number {number}x", "t"), range(20)))
    assert len(found[0]) == 24
    assert all(found[1].matches(f"Text number {number}x")[0].percent == 100 for number in range(20))
    assert not list(tmp_path.glob("*.part"))


def test_a_damaged_index_is_built_anew(tmp_path, memory):
    (tmp_path / "a.tsv.en-de.memory").write_bytes(b"no database at all" * 100)
    assert TranslationMemory(tmp_path / "a.tsv", source="en", target="de").matches("Save all files")[0].percent == 100


def test_many_units_are_found_in_blocks(tmp_path, monkeypatch):
    """Postings in several blocks, more of them than are read, give the same matches as all units compared."""
    monkeypatch.setattr("hf_mlnmt.memory.index._AT_ONCE", 500)
    monkeypatch.setattr("hf_mlnmt.memory.index._READ", 300)
    pairs = [(f"The word{n % 50} of thing{n % 70} and part{n} is good", f"t{n}") for n in range(1500)]
    memory = TranslationMemory(write(tmp_path / "a.tsv", pairs), source="en", target="de")
    connection = sqlite3.connect(tmp_path / "a.tsv.en-de.memory")
    assert connection.execute("SELECT max(key % 4096) FROM postings").fetchone()[0] > 10
    for n in range(0, 1500, 100):
        assert memory.matches(f"The word{n % 50} of thing{n % 70} and part{n} is bad")[0].target == f"t{n}"


def test_words_that_stand_for_others_are_taken_out():
    nouns, verbs = ["file", "page", "list", "name"], {"open": "öffne", "close": "schließe", "save": "sichere"}
    lexicon = Lexicon.of((f"{a} the {n} now", f"{b} jetzt die {n}xx") for a, b in verbs.items() for n in nouns)
    lexicon = Lexicon.read(lexicon.write())
    assert (
        lexicon.fitting(["open", "the", "list", "now"], "open the page now", "öffne jetzt die pagexx")
        == f"öffne jetzt die {HOLE}"
    )
    assert (
        lexicon.fitting(["save", "the", "page", "now"], "open the page now", "öffne jetzt die pagexx")
        == f"{HOLE}jetzt die pagexx"
    )


def rewards(pieces, history, end):
    """The reference: loops over n-grams; a token that is there as often as in a piece gets no more."""
    found = {}
    for ids, reward in pieces:
        for place, token in enumerate(ids):
            if history.count(token) >= max(some.count(token) for some, _ in pieces):
                continue
            for size in range(int(token == end), LONGEST):
                context = ids[place - size : place] if place >= size else None
                if context is not None and history[len(history) - size :] == context:
                    found.setdefault((size, token), []).append(reward)
    return {key: max(values) for key, values in found.items()}


def test_rewards_are_those_of_the_loops():
    torch.manual_seed(0)
    vocabulary, beams, end = 30, 3, 2
    pieces = [
        [([*torch.randint(3, 9, (n,)).tolist(), end], 1 / (1 + k)) for k, n in enumerate(sizes)]
        for sizes in ((7, 4), (), (9, 9, 1))
    ]
    rule = Steering(pieces, 0.5, [end])
    kept = torch.arange(9)
    for length in (1, 2, 3, 4, 9):
        history, scores = torch.randint(3, 9, (len(kept), length)), torch.randn(len(kept), vocabulary)
        expected = scores.clone()
        for row, tokens in enumerate(history.tolist()):
            for (_, token), reward in rewards(pieces[kept[row] // beams], tokens, end).items():
                expected[row, token] += 0.5 * reward
        torch.testing.assert_close(rule(history, scores), expected)
        if length == 4:
            rule.keep_rows(kept := torch.tensor([3, 4, 5, 6, 7, 8]))


def test_all_loops_are_steered_alike():
    """Beams and greedy, by our loop and by Transformers', with sentences that end at different steps."""
    model = our_model(60).eval()
    torch.manual_seed(1)
    ids, mask = torch.randint(4, 60, (4, 7)), torch.ones(4, 7, dtype=torch.long)
    plain = model.generate(input_ids=ids, attention_mask=mask, num_beams=1, max_new_tokens=12)
    target = torch.randint(4, 60, (5,)).tolist()
    pieces = [[([*target, model.config.eos_token_id], 1.0)], [(target[:2], 0.7)], [], [(target[::-1], 1.0)]]
    for beams in (1, 3):
        found = [
            model.generate(
                input_ids=ids,
                attention_mask=mask,
                num_beams=beams,
                max_new_tokens=12,
                **how,
                logits_processor=LogitsProcessorList([Steering(pieces, 30.0, [model.config.eos_token_id])]),
            )
            for how in ({}, {"return_dict_in_generate": True, "output_scores": True})
        ]
        assert torch.equal(found[0], found[1].sequences)
        tokens = found[0][0].tolist()
        start = tokens.index(target[1])
        assert tokens[start : start + 5] == [*target[1:], model.config.eos_token_id]
    assert not torch.equal(plain[:, 1:7], found[0][:, 1:7])


@pytest.fixture(scope="module")
def toy():
    tokenizer = bpe()
    return our_model(len(tokenizer)), tokenizer


def test_the_pipeline_puts_in_and_steers(toy, memory, caplog):
    pipeline = TranslationPipeline(*toy, memory=memory)
    texts = ["Save all files", "Delete 5 files", "Open the file", "Something else here", ""]
    found = best_of_lines(pipeline, texts, num_beams=2, memory_weight=50.0)
    assert [each.origin for each in found] == ["memory 100", "memory 100", "fuzzy 75", "machine", "machine"]
    assert [each.text for each in found[:2]] == ["Alle Dateien sichern", "5 Dateien löschen"]
    alone = best_of_lines(TranslationPipeline(*toy), texts, num_beams=2)
    assert [alone[n].text == found[n].text for n in (2, 3)] == [False, True]
    assert alone[0].origin is None
    off = best_of_lines(pipeline, texts, num_beams=2, memory_weight=0)
    assert [each.text for each in off[2:]] == [each.text for each in alone[2:]]
    two = pipeline(
        "Save all files. Delete 4 files", memory=memory, split="sentences", num_return_sequences=2, num_beams=2
    )
    assert [each.origin for each in two] == ["fuzzy 75"] * 2  # the full stop is another sign
    memory.add("Something else here", "Etwas anderes")
    assert pipeline(texts[3]) == "Etwas anderes"
    assert pipeline(texts[3], target_prefix="A", num_beams=2) != "Etwas anderes"  # a call's own wishes come first
    assert [each.confidence for each in pipeline(texts[:1], alignments=True)[0]] == [None]


def test_a_line_that_was_cut_is_as_known_as_its_least_known_piece(toy, tmp_path):
    memory = TranslationMemory(
        write(tmp_path / "a.tsv", [("Save it.", "Sichern."), ("Go. Stop.", "Los. Halt.")]), source="en", target="de"
    )
    pipeline = TranslationPipeline(*toy, memory=memory)
    texts = ["Save it. Something else is here.", "Go. Stop.", "Save it. Save it.", "Save it.\nSave it."]
    found = best_of_lines(pipeline, texts, num_beams=2, split="sentences")
    assert [each.origin for each in found] == ["machine", "memory 100", "memory 100", "memory 100"]
    assert found[0].text.startswith("Sichern. ")
    assert [each.text for each in found[1:]] == ["Los. Halt.", "Sichern. Sichern.", "Sichern.\nSichern."]


def test_the_weight_of_a_match_is_what_was_measured():
    assert (Match(50, "", "", "").reward, WEIGHT) == (0.5**6, 4.0)


UNITS = """<trans-unit id="1"><source>Save all files</source></trans-unit>
<trans-unit id="2"><source>Delete 5 files</source><note>n</note></trans-unit>
<trans-unit id="3"><source>Open the file</source><target state="new"/></trans-unit>
<trans-unit id="4"><source>Something else here</source></trans-unit>"""
FILES = {
    "a.xlf": f'<xliff version="1.2"><file source-language="en"><body>{UNITS}</body></file></xliff>',
    "b.xlf": '<xliff version="2.0" srcLang="en"><file id="f">{}</file></xliff>'.format(
        "".join(
            f'<unit id="{n}"><segment state="initial" subState="a:b"><source>{text}</source></segment></unit>'
            for n, text in enumerate(re.findall("<source>(.*?)</source>", UNITS))
        )
    ),
    "c.po": "".join(
        f'#: {n}.c\nmsgid "{text}"\nmsgstr ""\n\n' for n, text in enumerate(re.findall("e>(.*?)</s", UNITS))
    ),
    "d.txt": "\n".join(re.findall("<source>(.*?)</source>", UNITS)),
}


def test_of_segments_without_ids_only_one_that_is_named_gets_an_id():
    segments = "".join(f"<segment><source>{text}</source></segment>" for text in ("A dog.", "A cat."))
    unit = f'<xliff version="2.0" srcLang="en"><file id="f"><unit id="u"><notes/>{segments}</unit></file></xliff>'
    document = documents.read_bytes(unit.encode(), ".xlf")
    match = Match(80, "", "A pig.", "Ein Schwein.", "m.tmx, unit 1")
    found = [Hypothesis(text, 0.0, 0.0, 1, match=match) for text in document.texts]
    out = document.write(found).decode()
    assert out.count(' id="hf-mlnmt"') == 1
    assert re.search(r'<unit id="u"><mtc:matches .* ref="#hf-mlnmt" .*</mtc:matches><notes/><segment [^>]*hf-m', out)


@pytest.mark.parametrize("fuzzy", [False, True])
def test_results_say_where_each_segment_comes_from(toy, tmp_path, fuzzy):
    memory, folder = write(tmp_path / "memory.en-de.tsv"), tmp_path / "model"
    toy[0].save_pretrained(folder)
    save_tokenizers(folder, toy[1])
    for name, content in FILES.items():
        (tmp_path / name).write_text(content, "utf-8")
    out = {}
    for name in [*FILES][: 3 if fuzzy else 4]:
        output = tmp_path / ("out.tmx" if name == "d.txt" else f"out.{name}")
        given = ["translate", folder, tmp_path / name, "-o", output, "--memory", memory]
        given += ["--report", tmp_path / "r.json", *["--fuzzy"] * fuzzy, "--beams", 2]
        given += ["--from", "en", "--to", "de"] * (name == "c.po")
        ran = CliRunner().invoke(app, [*map(str, given)])
        assert ran.exit_code == 0, (ran.output, ran.exception)
        report, out[name] = json.loads((tmp_path / "r.json").read_text()), output.read_text("utf-8")
        bands = {band: one["segments"] for band, one in report["memory"].items() if one["segments"]}
        assert bands == {"100": 2, "75-84": 1, "none": 1}
    state = "needs-review-translation" if fuzzy else "translated"
    targets = re.findall("<target (.*?)>", out["a.xlf"])
    said = ("exact-match", "exact-match", "fuzzy-match", "mt-suggestion")
    assert targets == [f'state="{state}" state-qualifier="{name}"' for name in said]
    known = (("100%", 1, *PAIRS[0]), ("100%", 2, *PAIRS[1]), ("75%", 3, *PAIRS[2]))
    for quality, number, source, target in known:
        more = f'<alt-trans match-quality="{quality}" origin="memory.en-de.tsv, pair {number}">'
        assert f"</target>{more}<source>{source}</source><target>{target}</target></alt-trans>" in out["a.xlf"]
    states = re.findall("<segment (.*?)>", out["b.xlf"])
    state = "initial" if fuzzy else "translated"
    said = ("memory-100", "memory-100", "fuzzy-75", "machine")
    ids = ['id="hf-mlnmt" '] * 3 + [""]
    assert states == [f'state="{state}" {own}subState="hf-mlnmt:{name}"' for own, name in zip(ids, said)]
    matches = re.findall('<unit id=".">(?:<mtc:matches.*?><mtc:match (.*?)>.*?</mtc:matches>)?<segment', out["b.xlf"])
    assert matches == [
        f'ref="#hf-mlnmt" similarity="{n[:-1]}" origin="memory.en-de.tsv, pair {m}"' for n, m, *_ in known
    ] + [""]
    entries = polib.pofile(str(tmp_path / "out.c.po"))
    assert [entry.tcomment for entry in entries] == ["memory 100 %", "memory 100 %", "memory 75 %", "machine"]
    assert [entry.fuzzy for entry in entries] == [fuzzy] * 4
    assert [entry.msgstr for entry in entries][:2] == ["Alle Dateien sichern", "5 Dateien löschen"]
    if not fuzzy:
        props = re.findall('<tu><prop type="x-origin">(.*?)</prop><tuv', out["d.txt"])
        assert props == ["memory 100", "memory 100", "fuzzy 75", "machine"]


def test_a_message_of_several_sentences_is_looked_up_whole(toy, tmp_path):
    memory = TranslationMemory(write(tmp_path / "a.tsv", [("Stop. Go.", "Halt. Los.")]), source="en", target="de")
    document = documents.read('msgid "Stop. <b>Go.</b>"\nmsgstr ""\n\nmsgid "Stop. Going on."\nmsgstr ""\n', ".po")
    pipeline, rows = TranslationPipeline(*toy, memory=memory), []
    options = DecodingOptions(split="sentences", num_beams=2)
    written = documents.translate_document(
        pipeline, document, options, lambda done: None, lambda *row: rows.append((row[1], row[2].origin))
    )
    assert rows == [("Stop. Go.", "memory 100"), ("Stop. Going on.", "fuzzy 60")]
    assert 'msgstr "Halt. <b>Los.</b>"' in written


def test_a_translation_that_is_short_enough_is_taken(toy, caplog):
    pipeline, text, options = TranslationPipeline(*toy), "A man rides a bicycle", DecodingOptions(num_beams=2)
    best = [each.text for each in pipeline([text], num_beams=8, num_return_sequences=8, alignments=True)[0]]
    first = pipeline([text], options)[0]
    fits = next(each for each in best if len(each) < len(first))
    unit = '<trans-unit maxwidth="{}" size-unit="{}"><source>{}</source></trans-unit>'
    for limit, size, expected, long in (
        (len(first), "char", first, 0),
        (len(first) - 1, "char", fits, 0),
        (0, "char", first, 1),
        (0, "pixel", first, 0),
    ):
        units, counts = unit.format(limit, size, text) + unit.format("", "char", text), dict[str, Any]()
        document = documents.read(f'<xliff version="1.2"><file><body>{units}</body></file></xliff>', ".xlf")
        written = documents.translate_document(pipeline, document, options, lambda done: None, counts=counts)
        assert re.findall("<target.*?>(.*?)</target>", written) == [in_xml(expected), in_xml(first)]
        assert counts["too_long"] == long
        assert ("longer than their maxwidth" in caplog.text) == bool(long)
        caplog.clear()


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("a.tmx", f'<tmx><header srclang="de"/><body>{TU.format("", "a", "b")}</body></tmx>', ("de", "en")),
        ("a.tmx", f'<tmx><header srclang="*all*"/><body>{TU.format("", "a", "b")}</body></tmx>', ("en", "de")),
        ("a.tmx", f'<tmx><body>{TU.format("", "a", "b")}<tuv xml:lang="fr"/></body></tmx>', None),
        ("a.xlf", '<xliff version="2.0" srcLang="en-US" trgLang="de"><file/></xliff>', ("en-US", "de")),
        ("a.en-de.tsv", "a\tb\n", ("en", "de")),
        ("a.tsv", "a\tb\n", None),
    ],
)
def test_the_only_two_languages_of_a_file(tmp_path, name, content, expected):
    (tmp_path / name).write_text(content, "utf-8")
    assert pair_of_file(tmp_path / name) == expected


def test_bands_are_shown_without_translating(tmp_path):
    write(tmp_path / "a.tsv")
    (tmp_path / "t.en").write_text("Save all files\nOpen the file\nNothing is known of this\n", "utf-8")
    given = [str(tmp_path / "t.en"), "--memory", str(tmp_path / "a.tsv"), "--from", "en", "--to", "de"]
    ran = CliRunner().invoke(app, ["memory", "analyse", *given, "-o", str(tmp_path / "o.json")])
    assert ran.exit_code == 0, ran.output
    bands = json.loads((tmp_path / "o.json").read_text())["bands"]
    assert {name: (one["segments"], one["words"]) for name, one in bands.items() if one["segments"]} == {
        "100": (1, 3),
        "75-84": (1, 3),
        "none": (1, 5),
    }
    assert list(bands) == list(BANDS.values()) == [name for name, *_ in Bands().rows()][:-1]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.tmx", '<tmx version="1.4"><header/><body><tu>', "broken XML, or cut off"),
        ("a.tmx", '<!DOCTYPE tmx [<!ENTITY a "b">]><tmx><header/><body></body></tmx>', "entit"),
        ("a.tmx", f"<tmx><body>{TU}</body></tmx>".replace('"de"', '"fr"'), "no unit of en and de"),
        ("a.po", 'msgid ""\nmsgstr "Language: en\\n"\n\nmsgid "Datei"\nmsgstr "File"\n', "Exchange --from and --to"),
        ("a.docx", "x", "no bilingual file"),
        ("a.tsv", "\t\n", "a.tsv"),
    ],
)  # fmt: skip
def test_bad_files_are_refused_in_one_message(tmp_path, name, content, message):
    (tmp_path / name).write_text(content, "utf-8")
    with pytest.raises(UserError, match=message):
        TranslationMemory(tmp_path / name, source="en", target="de")
    assert {path.name for path in tmp_path.iterdir()} <= {name, f".{name}.en-de.memory.lock"}


@pytest.mark.parametrize(
    ("what", "message"),
    [
        (lambda memory: TranslationMemory("nowhere.tmx", source="en", target="de"), "no such file"),
        (lambda memory: TranslationMemory(), "name a bilingual file"),
        (lambda memory: TranslationMemory(*memory.files).matches("x"), "languages are not known"),
        (lambda memory: memory.add("Save", " "), "target: ' ' is no text"),
        (lambda memory: memory.add(None, "x"), "source: None is no text"),
    ],
)
def test_mistakes(memory, what, message):
    with pytest.raises(UserError, match=message):
        what(memory)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"memory_weight": float("nan")}, "memory_weight: nan is not a number"),
        ({"memory_weight": -1.0}, "memory_weight: must be at least 0"),
        ({"memory": 3}, "memory: 3 is neither"),
        ({"memory": []}, "memory: \\[\\] is neither"),
        ({"memory": "nowhere.tmx"}, "languages are not known"),
    ],
)
def test_options_that_cannot_be(toy, options, message):
    with pytest.raises(UserError, match=message):
        TranslationPipeline(*toy)("A man.", **options)


def test_an_output_that_was_begun_knows_its_memory(tmp_path):
    text = tmp_path / "t.en"
    text.write_text("Save all files\n", "utf-8")

    def made_from():
        options = DecodingOptions(memory=[str(tmp_path / "a.tsv")])
        return TextFiles([str(text)], options).made_from({}, Style())["settings"]["memories"]

    write(tmp_path / "a.tsv")
    before = made_from()
    TranslationMemory(tmp_path / "a.tsv", source="en", target="de")
    assert made_from() == before
    TranslationMemory(tmp_path / "a.tsv", source="en", target="de").add("New", "Neu")
    assert made_from() != before
