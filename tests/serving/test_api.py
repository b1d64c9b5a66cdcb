"""The API in this process: what requests get, and what none may do. The translations are a stand-in's."""

import asyncio
import io
import json
import logging
import math
import random
import re
import sys
import threading
import time
import zipfile
from dataclasses import fields, replace
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from helpers.toy_translators import SENTENCES
from transformers import GenerationConfig

from hf_mlnmt.common.errors import UserError
from hf_mlnmt.generation import Hypothesis, TranslationPipeline
from hf_mlnmt.generation.translating import detection
from hf_mlnmt.generation.translating.call import TranslationCall
from hf_mlnmt.serving.batcher import Batcher, Overloaded, Statistics, TimedOut, Translations
from hf_mlnmt.serving.models import ServedModels

pytest.importorskip("fastapi", reason="needs the extra serve")
pytest.importorskip("py3langid", reason="needs the extra serve")

from starlette.testclient import TestClient

from hf_mlnmt.generation.translating.options import OF_TEXTS
from hf_mlnmt.serving.api import OPTIONS, make_app
from hf_mlnmt.serving.limits import Limits, RequestsAMinute
from hf_mlnmt.serving.service import Downloads, hashed, is_known

SECRET = "a sentence that is in no log"
ENGLISH = "The man rides a bicycle through the old town every morning."
GERMAN = "Der Mann fährt jeden Morgen mit dem Fahrrad durch die Altstadt."


@pytest.fixture(scope="module")
def toy(pair_folders):
    """A real Batcher over a toy."""
    batcher = Batcher(ServedModels([str(pair_folders["en-de"])]))
    yield batcher
    batcher.close_now(10)


class StandIn:
    """A Batcher that says what it was asked: n texts `target:text`, in which the rank is the number of !."""

    def __init__(self):
        pairs = [("en", "de"), ("de", "fr"), ("fr", "en")]
        languages = {"en": ["de", "fr"], "de": ["fr", "en"], "fr": ["en", "de"]}
        pipeline = SimpleNamespace(model=SimpleNamespace(generation_config=GenerationConfig()))
        model = SimpleNamespace(name="toy", pairs=dict.fromkeys(pairs), pipeline=pipeline)
        self.models = SimpleNamespace(languages=lambda: languages, models=[model], names=["toy"])
        self.statistics, self.calls, self.error, self.cancelled = Statistics(waiting=3), [], None, False
        self.gate, self.healthy = None, True

    async def translate(self, texts, source=None, target=None, *, model=None, timeout=None, **options):
        self.calls.append({"texts": list(texts), "source": source, "target": target, "model": model, **options})
        if self.gate:
            try:
                await self.gate.wait()
            except asyncio.CancelledError:
                self.cancelled = True
                raise
        if self.error:
            raise self.error
        for code in (source, target):
            if code not in (None, "en", "de", "fr"):
                raise UserError(f"'{code}' is not served")
        count = options.get("num_return_sequences") or 1
        rows = [
            [Hypothesis(f"{target}:{text}" + "!" * rank, -1.0 - rank, -2.0, 2) for rank in range(count)]
            for text in texts
        ]
        return Translations(rows, "de" if (source, target) == ("en", "fr") else None, ["toy"])


@pytest.fixture
def batcher():
    return StandIn()


@pytest.fixture
def client(batcher):
    return TestClient(make_app(batcher, page=False))


def test_translate_takes_json_forms_and_the_address(client):
    """As curl, libretranslatepy (a form) and deep-translator (the address of a POST) send it."""
    asked = {"q": "Hello.\nYou & I", "source": "en", "target": "de"}
    for answer in (
        client.post("/translate", json=asked),
        client.post("/translate", data=asked),
        client.post("/translate", params=asked),
        client.post("/translate", files={"unused": b""}, data=asked),
    ):
        assert answer.status_code == 200, answer.text
        assert answer.json() == {"translatedText": "de:Hello.\nYou & I"}
        assert answer.headers["x-content-type-options"] == "nosniff"


def test_a_list_is_answered_with_lists(client, batcher):
    asked = {"q": ["One.", "Two."], "source": "en", "target": "de", "alternatives": 2}
    assert client.post("/translate", json=asked).json() == {
        "translatedText": ["de:One.", "de:Two."],
        "alternatives": [["de:One.!", "de:One.!!"], ["de:Two.!", "de:Two.!!"]],
    }
    assert batcher.calls[0]["num_return_sequences"] == 3
    assert batcher.calls[0]["split"] == "sentences"


def test_auto_detects_the_language_of_each_text(client, batcher):
    answer = client.post("/translate", json={"q": [ENGLISH, GERMAN], "source": "auto", "target": "fr"}).json()
    assert [one["language"] for one in answer["detectedLanguage"]] == ["en", "de"]
    assert all(90 < one["confidence"] <= 100 for one in answer["detectedLanguage"])
    assert {call["source"]: call["texts"] for call in batcher.calls} == {"en": [ENGLISH], "de": [GERMAN]}
    assert answer["translatedText"] == [f"fr:{ENGLISH}", f"fr:{GERMAN}"]
    # What is in the target's language already stays.
    answer = client.post("/translate", json={"q": GERMAN, "source": "auto", "target": "de"}).json()
    assert (answer["translatedText"], answer["detectedLanguage"]["language"]) == (GERMAN, "de")


@pytest.mark.parametrize("served", [["en", "de"], ["en", "de", "fr", "cs"], ["en", "cs", "de"]])
def test_the_language_of_short_texts(served):
    """Of those that are served; what nothing tells is in the first one, and little is said of its confidence."""
    ranked = detection.rank("One.", served)
    assert sorted(each.language for each in ranked) == sorted(served)
    assert ranked[0].language == "en"
    assert ranked[0].confidence < detection.SURE
    for texts in (["One.", "Two."], ["One."], ["No."], ["12"], ["A man."]):
        assert {each.language for each in detection.languages(texts, served)} == {"en"}, texts
    assert {each.language for each in detection.languages(["Ein Mann.", "Ein Hund rennt."], served)} == {"de"}
    for text, code in ((ENGLISH, "en"), (GERMAN, "de")):
        (one,) = detection.languages([text], served, strict=True)
        assert one.language == code
        assert one.confidence > 90
    assert detection.languages([ENGLISH, "One."], ["de", "en"], strict=True)[1].language == "en"  # as the others
    assert detection.languages(["One."], ["de", "en"])[0].language == "de"
    with pytest.raises(UserError, match="the language of text 1 is not sure"):
        detection.languages(["One."], served, strict=True)


@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("pl", "Mężczyzna jedzie na rowerze przez stare miasto."),
        ("es", "Un hombre pasea en bicicleta por la ciudad vieja."),
        ("he", "איש רוכב על אופניים ברחבי העיר העתיקה."),
        ("ja", "男の人が毎朝自転車で古い町を走っています。"),
        ("sv", "En man cyklar genom den gamla staden varje morgon."),
    ],
)
def test_a_language_that_is_not_served_is_said(client, batcher, code, text):
    """A text that is surely in it; where `strict`, it is refused."""
    for served in (["en", "de", "fr", "cs"], ["en"]):
        (found,) = detection.languages([text], served)
        assert (found.language, found.taken_as in served, found.confidence > 90) == (code, True, True)
        with pytest.raises(UserError, match=f"text 1 looks like {code} .*not served; known: en"):
            detection.languages([text], served, strict=True)
    asked = {"q": text, "source": "auto", "target": "en"}
    answer = client.post("/translate", json=asked).json()["detectedLanguage"]
    assert (answer["language"], answer["taken_as"] in ("en", "de", "fr")) == (code, True)
    assert [call["source"] for call in batcher.calls] in ([], [answer["taken_as"]])
    assert f"looks like {code}" in client.post("/translate", json={**asked, "strict": True}).json()["error"]
    assert client.post("/detect", json={"q": text}).json()[0]["language"] == code


@pytest.mark.parametrize("text", ["Привет", "Мужчина едет на велосипеде.", "שלום"])
def test_a_text_surely_in_none_of_the_served_languages(text):
    """Though it is not sure in which other one."""
    with pytest.raises(UserError, match=r"text 1 looks like \w+ .*not served"):
        detection.languages([text], ["en"], strict=True)


def test_a_variety_or_a_language_within_is_served():
    norwegian, chinese = "Ein mann syklar gjennom den gamle byen kvar morgon.", "一个男人每天早上骑自行车穿过老城区。"
    for text, served, code in (
        *[(chinese, ["en", "zh-Hans", "zh-Hant"], "zh-Hans"), (chinese, ["en", "zh"], "zh")],
        *[(norwegian, ["en", "no"], "no"), (ENGLISH, ["pt-BR", "en-GB"], "en-GB")],
    ):
        assert [each[::2] for each in detection.languages([text], served, strict=True)] == [(code, None)]


def test_auto_of_what_is_not_sure(client, batcher):
    """The example of docs/serving.md."""
    asked = {"q": ["One.", "Two."], "source": "auto", "target": "de", "alternatives": 2}
    answer = client.post("/translate", json=asked).json()
    assert answer["translatedText"] == ["de:One.", "de:Two."]
    assert all(one["language"] == "en" and one["confidence"] < 40 for one in answer["detectedLanguage"])
    for path, body in (
        ("/translate", {"json": {**asked, "strict": True}}),
        ("/translate", {"data": {"q": "One.", "source": "auto", "target": "de", "strict": "true"}}),
        ("/v1/translate", {"json": {"texts": ["One."], "source": "auto", "target": "de", "strict": True}}),
    ):
        refused = client.post(path, **body)
        assert (refused.status_code, "not sure" in refused.json()["error"]) == (400, True)
    assert client.post("/translate", json={**asked, "q": ENGLISH, "strict": True}).status_code == 200


def test_the_variety_that_is_taken_is_said(batcher, client):
    target = batcher.translate

    async def first(*texts, **options):
        return (await target(*texts, **options))._replace(target="de-AT")

    batcher.translate = first
    asked = {"source": "en", "target": "de"}
    assert client.post("/translate", json={**asked, "q": ["a", "b"]}).json()["target"] == ["de-AT"] * 2
    assert client.post("/translate", json={**asked, "q": "<b>a</b>", "format": "html"}).json()["target"] == "de-AT"
    assert client.post("/v1/translate", json={**asked, "texts": "a"}).json()["target"] == "de-AT"


def test_detect(client):
    assert client.post("/detect", data={"q": GERMAN}).json()[0]["language"] == "de"
    assert client.post("/detect", json={"q": "12 😀"}).json() == [{"language": "en", "confidence": 0.0}]


def test_html(client, batcher):
    asked = {"q": "<p>The <b>man</b></p><script>x<y</script>", "source": "en", "target": "de", "format": "html"}
    answer = client.post("/translate", json=asked)
    assert batcher.calls[0]["texts"] == ["The man"]
    assert answer.json()["translatedText"] == "<p>de:The <b>man</b></p><script>x<y</script>"
    assert answer.headers["content-type"] == "application/json"
    several = client.post("/translate", json={**asked, "q": ["<p>a</p><p>b", "<br>", "c"], "alternatives": 1}).json()
    assert len(batcher.calls) == 2  # one call for the texts of all documents
    assert several["translatedText"] == ["<p>de:a</p><p>de:b", "<br>", "de:c"]
    assert several["alternatives"] == [["<p>de:a!</p><p>de:b!"], [], ["de:c!"]]


def test_languages_say_targets_that_are_no_source(client, batcher):
    """The npm client looks there for the target."""
    assert client.get("/languages").json()[0] == {"code": "en", "name": "English", "targets": ["de", "fr"]}
    assert client.post("/languages").json() == client.get("/languages").json()  # libretranslatepy 2.1.1 posts
    batcher.models.languages = lambda: {"en": ["de"]}
    assert client.get("/languages").json()[1] == {"code": "de", "name": "German", "targets": []}


def test_settings_health_models_and_the_page_without_gradio(client):
    settings = client.get("/frontend/settings").json()
    assert settings["language"]["source"]["code"] == "auto"
    # LibreTranslate's own, but for pdf.
    assert {".txt", ".odt", ".odp", ".docx", ".pptx", ".epub", ".html", ".srt"} <= {*settings["supportedFilesFormat"]}
    assert (settings["charLimit"], settings["keyRequired"]) == (Limits().text_characters, False)
    assert [client.get(path).json() for path in ("/health", "/healthz", "/readyz")] == [{"status": "ok"}] * 3
    assert client.get("/v1/models").json() == [{"name": "toy", "pairs": [["en", "de"], ["de", "fr"], ["fr", "en"]]}]
    assert "without a page" in client.get("/").text


def test_ours(client, batcher):
    asked = {"texts": "Hello.", "source": "en", "target": "fr", "num_beams": 4, "num_return_sequences": 2}
    answer = client.post("/v1/translate", json={**asked, "length_penalty": 1, "early_stopping": "never"}).json()
    assert [one["text"] for one in answer["translations"][0]] == ["fr:Hello.", "fr:Hello.!"]
    assert answer["translations"][0][1]["score"] == -2.0
    assert (answer["via"], answer["models"]) == ("de", ["toy"])
    assert batcher.calls[0]["num_beams"] == 4
    assert batcher.calls[0]["early_stopping"] == "never"


def test_next_words(toy, pair_folders, batcher, client, caplog):
    """/v1/complete says what the pipeline does, counted and logged as any request, under the same limits."""
    caplog.set_level(logging.INFO, "hf_mlnmt.serving")
    own = TestClient(make_app(toy, Limits(n_best=4), page=False))
    asked = {"text": SENTENCES[0], "prefix": "The ", "alternatives": 3, "max_new_tokens": 12}
    answer = own.post("/v1/complete", json=asked).json()
    pipeline = TranslationPipeline.from_pretrained(str(pair_folders["en-de"]), device="cpu")
    expected = pipeline(SENTENCES[0], target_prefix="The ", alternatives=3, max_new_tokens=12)
    assert [(best["word"], best["text"]) for best in answer["alternatives"]] == [(x.word, x.text) for x in expected]
    assert answer["alternatives"][0]["probability"] == pytest.approx(expected[0].probability, abs=1e-5)
    assert own.post("/v1/complete", json={"text": ""}).json()["alternatives"] == []
    for body, message in (
        ({**asked, "alternatives": 5}, "alternatives: the limit of this server is 4"),
        ({**asked, "prefix": ["The"]}, "prefix: "),
        ({**asked, "prefix": "The \0"}, "prefix: 'The \\x00' has a control character"),
        ({**asked, "prefix": "\u2122"}, "prefix of line 1: '\u2122' has characters that are not in"),
        ({**asked, "prefix": f"{SENTENCES[0]} " * 3}, "prefix of line 1: takes "),
        ({"prefix": "The"}, "missing text"),
        ({**asked, "do_sample": True}, "do_sample: "),
        ({**asked, "text": f"{SENTENCES[0]} {SENTENCES[1]}"}, "it has 2 sentences or parts"),
    ):
        refused = own.post("/v1/complete", json=body)
        assert refused.status_code == 400
        assert message in refused.json()["error"]
        assert "target_prefix" not in refused.json()["error"]
    assert own.post("/v1/complete", json={"text": "a" * 60_000}).status_code == 413
    metrics = own.get("/metrics").text
    assert 'hf_mlnmt_requests_total{method="POST",path="/v1/complete",status="200"} 2.0' in metrics
    assert SENTENCES[0] not in caplog.text
    client.post("/v1/complete", json={"text": "Hello.", "prefix": "Ha", "source": "en", "target": "de"})
    assert batcher.calls[0].items() >= {"target_prefix": "Ha", "alternatives": 5, "split": "sentences"}.items()
    schema = client.get("/openapi.json").json()["paths"]["/v1/complete"]["post"]
    body = schema["requestBody"]["content"]["application/json"]["schema"]["properties"]
    assert body["alternatives"]["maximum"] == 16
    assert not {"texts", "do_sample", "num_return_sequences"} & body.keys()


def test_translations_that_are_probably_wrong_are_marked(pair_folders, watched, monkeypatch, caplog):
    """Also those of the first of two models; counted in the log and for a file; a request may turn the watch off."""
    caplog.set_level(logging.INFO, "hf_mlnmt.serving")
    texts, names = ["A man.", "The dog is 4711."], ("copy", "lost")
    wrong = "hf_mlnmt.generation.translating.watching.warnings_of"
    monkeypatch.setattr(wrong, lambda source, *more: names if source == texts[1] else ())
    batcher = Batcher(ServedModels([str(pair_folders[pair]) for pair in ("en-de", "de-fr")]))
    try:
        client = TestClient(make_app(batcher, page=False))
        for asked in ({"source": "en", "target": "de"}, {"source": "en", "target": "fr"}):
            for body, expected in (
                ({}, [[], [*names]]),
                ({"watch": False}, [[], []]),
                ({"num_return_sequences": 2, "num_beams": 2}, [[], []] if asked["target"] == "de" else [[], [*names]]),
            ):
                answer = client.post("/v1/translate", json={**asked, **body, "texts": texts}).json()["translations"]
                assert [best["warnings"] for best, *_ in answer] == expected, (asked, body)
                assert json.loads(caplog.messages[-1]).get("doubtful", 0) == sum(map(bool, expected))
            files = {"file": ("a.txt", "\n".join(texts).encode())}
            assert client.post("/translate_file", files=files, data=asked).json()["doubtful"] == 1
    finally:
        batcher.close_now(10)


def test_the_page_has_its_place_and_reaches_no_file(batcher, monkeypatch):
    gradio = pytest.importorskip("gradio")

    def page(api):
        assert api.batcher is batcher
        with gradio.Blocks(analytics_enabled=False) as blocks:
            gradio.HTML("a page")
        return blocks

    monkeypatch.setitem(sys.modules, "hf_mlnmt.serving.page", SimpleNamespace(page=page))
    client = TestClient(make_app(batcher))
    assert "a page" in client.get("/").text
    assert client.post("/translate", json=GOOD).status_code == 200
    plain = TestClient(make_app(batcher, page=False))
    for method, path in (
        *(("GET", "/translate"), ("PUT", "/translate"), ("OPTIONS", "/translate"), ("OPTIONS", "/languages")),
        *(("HEAD", "/healthz"), ("HEAD", "/languages"), ("HEAD", "/translate"), ("HEAD", "/"), ("POST", "/healthz")),
        *(("GET", "/no/such"), ("POST", "/no/such"), ("HEAD", "/no/such")),
    ):  # as without the page
        answer, expected = client.request(method, path), plain.request(method, path)
        assert (answer.status_code, answer.headers.get("allow")) == (
            expected.status_code,
            expected.headers.get("allow"),
        )
        assert answer.content == expected.content
        assert answer.status_code < 400 or method == "HEAD" or answer.json().keys() == {"error"}
    assert client.head("/").content == b""
    for method, path in (
        ("POST", "/"),
        ("GET", "/gradio_api/x"),
        ("POST", "/gradio_api/queue/join"),
        ("OPTIONS", "/x"),
    ):
        answer = client.request(method, path)
        assert (answer.status_code >= 400, answer.json().keys()) == (True, {"error"}), (method, path)
    for origin in ("http://localhost:3000", "http://127.0.0.1:9", "null", "https://a.example"):
        for path in ("/", "/config", "/languages", "/gradio_api/info"):  # which gradio would let localhost's pages read
            answer = client.get(path, headers={"origin": origin, "host": "localhost:5000"})
            assert not [name for name in answer.headers if name.startswith("access-control")], (origin, path)
    for path in ("v1/x", "gradio_api/file=/etc/passwd", "file=README.md", "gradio_api/proxy=https://a.hf.space/"):
        assert client.get(f"/{path}").json() == {"error": "Not Found"}
    assert client.post("/gradio_api/upload", files={"files": b"a"}).status_code == 404


def test_terms_of_a_request_are_no_file_and_a_prefix_is_one(client, tmp_path):
    (tmp_path / "glossary.tsv").write_text("a\tb\n")
    body = {"texts": ["a", "b"], "source": "en", "target": "de", "num_beams": 2}
    many = {f"{number}": "x" for number in range(101)}
    for name, value in {"terms": str(tmp_path / "glossary.tsv"), **{key: ["a", "b"] for key in OF_TEXTS}}.items():
        answer = client.post("/v1/translate", json={**body, name: value})
        assert (answer.status_code, answer.json()["error"].split(":")[0]) == (400, name)
    answer = client.post("/v1/translate", json={**body, "terms": many})
    assert (answer.status_code, answer.json()["error"]) == (400, "terms: the limit of this server is 100")
    assert client.post("/v1/translate", json={**body, "terms": {"zzz": ["a"]}}).status_code == 200
    statuses = [
        client.post("/v1/translate", json={**body, "keep": keep}).status_code for keep in ("url", ["url", "a+"], 3)
    ]
    assert statuses == [200, 200, 400]


def test_openapi_says_the_options_of_the_search_and_their_limits(client):
    schema = client.get("/openapi.json").json()
    assert client.get("/docs").status_code == 404  # its scripts come from elsewhere
    body = schema["paths"]["/v1/translate"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert (
        {"texts", "num_beams", "num_beam_groups", "min_p", "force_phrases", "seed"}
        <= body["properties"].keys()
        <= {"texts", "source", "target", "model", "strict", *OPTIONS}
    )
    assert body["properties"]["num_beams"]["anyOf"][0] == {"type": "integer", "minimum": 1, "maximum": 16}
    assert "generate" not in body["properties"]
    assert "application/x-www-form-urlencoded" in schema["paths"]["/translate"]["post"]["requestBody"]["content"]


GOOD = {"q": "a", "source": "en", "target": "de"}
BAD = {
    "no text": ({"json": {**GOOD, "q": ""}}, "missing q"),
    "no target": ({"data": {"q": "a", "source": "en"}}, "missing target"),
    "number": ({"json": {**GOOD, "q": 5}}, "q: "),
    "numbers": ({"json": {**GOOD, "q": [1]}}, "q: "),
    "format": ({"json": {**GOOD, "format": "pdf"}}, "format: "),
    "language": ({"json": {**GOOD, "target": "xx"}}, "'xx' is not served"),
    "unknown twice": ({"json": {**GOOD, "source": "xx", "target": "xx"}}, "'xx' is not served"),
    "half a character": ({"content": b'{"q":"a \\ud800","source":"en","target":"de"}'}, r"q: U\+D800"),
    "half a character in a list": ({"content": b'{"q":["a","\\ud800"],"source":"en","target":"de"}'}, r"q: U\+D800"),
    "half a character that stays": ({"content": b'{"q":"\\udfff","source":"de","target":"de"}'}, r"q: U\+DFFF"),
    "half a character in a code": ({"content": b'{"q":"a","source":"\\ud800","target":"de"}'}, r"source: U\+D800"),
    "half a character in a key": ({"content": b'{"q":"a","source":"en","api_key":"\\ud800"}'}, r"api_key: U\+D800"),
    "half a character in a name": ({"content": b'{"q":"a","source":"en","\\ud800":"de"}'}, r"U\+D800"),
    "alternatives": ({"json": {**GOOD, "alternatives": 99}}, "n_best"),
    "no JSON": ({"content": b"{"}, "cannot be read"),
    "a list": ({"content": b"[]"}, "object is expected"),
    "NaN": ({"content": b'{"q": NaN}'}, "NaN"),
    "not UTF-8": ({"content": b'{"q": "\xff"}'}, "UTF-8"),
    "deep": ({"content": b'{"q": ' + b"[" * 100_000}, "nested too deeply"),
    "long number": ({"content": b'{"q": ' + b"9" * 10_000 + b"}"}, "cannot be read"),
    "form not UTF-8": ({"content": b"q=%ff&source=en", "headers": {"content-type": "x"}}, "UTF-8"),
    "half a form": (
        {"content": b"--x\r\nContent-Dis", "headers": {"content-type": "multipart/form-data; boundary=x"}},
        "missing q|multipart",
    ),
    "no boundary": ({"content": b"x", "headers": {"content-type": "multipart/form-data"}}, "boundary"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_wrong_is_said(client, name):
    how, message = BAD[name]
    if "content" in how and "headers" not in how:
        how = {**how, "headers": {"content-type": "application/json"}}
    answer = client.post("/translate", **how)
    assert answer.status_code == 400, answer.text
    assert answer.json().keys() == {"error"}
    assert re.search(message, answer.json()["error"])


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({}, "missing texts"),
        ({"texts": "a", "num_beams": 17}, "num_beams: the limit of this server is 16"),
        ({"texts": "a", "num_beams": "4"}, "num_beams"),
        ({"texts": "a", "max_new_tokens": 0}, "max_new_tokens"),
        ({"texts": "a", "generate": {"use_cache": False}}, "generate: extra inputs"),
        ({"texts": "a", "mbr": 65}, "mbr: the limit of this server is 64"),
        ({"texts": "a", "utility": "/bin/cat"}, "utility: "),
        ({"texts": "a", "batch_tokens": 10**9}, "batch_tokens: extra inputs"),
        ({"texts": "a", "source_language": "en"}, "source_language: extra inputs"),
    ],
)
def test_what_is_wrong_with_options_is_said(client, body, message):
    answer = client.post("/v1/translate", json=body)
    assert answer.status_code == 400
    assert message in answer.json()["error"]


@pytest.mark.parametrize(
    "field",
    ['"target_prefix":"\\ud800"', '"terms":{"\\ud800":"a"}', '"terms":{"a":["b","\\ud800"]}', '"model":"\\ud800"'],
)
def test_half_a_character_in_an_option(client, field):
    body = '{"texts":"a","source":"en","target":"de",' + field + "}"
    answer = client.post("/v1/translate", content=body.encode(), headers={"content-type": "application/json"})
    assert answer.status_code == 400
    assert re.match(rf"{field.split(chr(34))[1]}: U\+D800", answer.json()["error"])


def test_null_is_not_given(client):
    asked = {**GOOD, "format": None, "api_key": None, "alternatives": None, "strict": None}
    assert client.post("/translate", json=asked).json() == {"translatedText": "de:a"}
    assert client.post("/detect", json={"q": GERMAN, "api_key": None}).status_code == 200
    ours = {"texts": "a", "source": "en", "target": "de", "num_beams": None, "strict": None, "api_key": None}
    assert client.post("/v1/translate", json=ours).status_code == 200
    assert "missing q" in client.post("/translate", json={**GOOD, "q": None}).json()["error"]


def test_a_time_limit_is_named(batcher, monkeypatch):
    batcher.gate = SimpleNamespace(wait=partial(asyncio.sleep, 60))
    real = asyncio.timeout
    monkeypatch.setattr("asyncio.timeout", lambda seconds: real(0.05 if seconds == 77 else seconds))
    client = limited(batcher, seconds=77, file_seconds=77)
    for path, how, name in (
        ("/translate", {"json": GOOD}, "seconds"),
        ("/translate", {"json": {**GOOD, "format": "html"}}, "seconds"),
        ("/v1/translate", {"json": {"texts": "a", "target": "de"}}, "seconds"),
        (
            "/translate_file",
            {"files": {"file": ("a.txt", b"a")}, "data": {"source": "en", "target": "de"}},
            "file_seconds",
        ),
    ):
        answer = client.post(path, **how)
        assert answer.status_code == 504
        assert f"the limit ({name}) is 77 seconds" in answer.json()["error"]
        assert batcher.cancelled
        batcher.cancelled = False


@pytest.mark.parametrize(
    ("host", "status"),
    [
        *(("localhost:5000", 200), ("LOCALHOST", 200), ("127.0.0.1", 200), ("[::1]:5000", 200), ("a.example.org", 200)),
        *(("evil.test", 400), ("example.org", 400), ("127.0.0.1.evil.test", 400), ("localhost:x", 400), ("", 400)),
        *(("xexample.org", 400), ("[::1", 400), ("a b", 400)),
    ],
)
def test_the_name_of_the_host(batcher, host, status):
    client = TestClient(make_app(batcher, hosts=["localhost", "127.0.0.1", "::1", "*.example.org"], page=False))
    answer = client.post("/translate", json=GOOD, headers={"host": host})
    assert answer.status_code == status
    assert status == 200 or (answer.json().keys() == {"error"} and "--allow-host" in answer.text)
    for path in ("/healthz", "/readyz"):
        assert client.get(path, headers={"host": host}).status_code == 200


def test_a_worker_that_has_ended_is_seen(client, batcher):
    batcher.healthy = False
    for path in ("/health", "/healthz", "/readyz"):
        answer = client.get(path)
        assert (answer.status_code, "worker" in answer.json()["error"]) == (503, True)


@pytest.mark.parametrize("field", [field.name for field in fields(Limits)])
@pytest.mark.parametrize("value", [math.inf, math.nan, 1e300, 10**400, -1, 2.5, True, "1"])
def test_limits_are_whole_numbers_in_a_range(field, value):
    with pytest.raises(UserError, match=field):
        Limits(**{field: value})


def test_other_errors(client, batcher):
    for error, status in (
        (Overloaded("full", 2.5), 503),
        (TimedOut("late"), 504),
        (UserError("so not"), 400),
        (ValueError(SECRET), 500),
    ):
        batcher.error = error
        answer = client.post("/translate", json=GOOD)
        assert answer.status_code == status
        assert answer.json().keys() == {"error"}
        assert SECRET not in answer.text
        assert answer.headers.get("retry-after") == ("3" if status == 503 else None)
    assert client.get("/nothing").json() == {"error": "Not Found"}
    assert (client.get("/translate").status_code, client.get("/translate").json()) == (
        405,
        {"error": "Method Not Allowed"},
    )


def test_the_time_of_a_request_is_also_that_of_its_document(batcher, monkeypatch):
    """A document that is read without end: the thread that reads it ends with the request."""
    ended = threading.Event()

    def endless(text, ending, reading):
        try:
            while not reading.check():
                time.sleep(0.01)
        finally:
            ended.set()

    monkeypatch.setattr("hf_mlnmt.serving.service.read", endless)
    answer = limited(batcher, seconds=1).post("/translate", json={**GOOD, "format": "html", "q": "<p>Hello</p>"})
    assert answer.status_code == 504
    assert "(seconds)" in answer.json()["error"]
    assert ended.wait(60)


def limited(batcher, **changes):
    return TestClient(make_app(batcher, replace(Limits(), **changes), page=False))


def test_what_is_too_large_is_refused_with_the_limit(batcher):
    client = limited(batcher, texts=2, text_characters=10, characters=15, body_bytes=1_000, file_bytes=100)
    for q, name in ((["a"] * 3, "texts"), ("a" * 11, "text_characters"), (["a" * 10] * 2, "characters")):
        answer = client.post("/translate", json={**GOOD, "q": q})
        assert answer.status_code == 413
        assert f"({name})" in answer.json()["error"]
    for body in (b"x" * 1_001, iter([b"x" * 600] * 2)):  # with its length, and in chunks without
        answer = client.post("/translate", content=body)
        assert (answer.status_code, "(body_bytes)" in answer.text) == (413, True)
    answer = client.post(
        "/translate_file", files={"file": ("a.txt", b"a" * 101)}, data={"source": "en", "target": "de"}
    )
    assert (answer.status_code, "(file_bytes)" in answer.text) == (413, True)
    assert not batcher.calls


def test_a_key_is_asked_for(batcher):
    client = TestClient(make_app(batcher, keys=["one", "two"]))
    assert client.post("/translate", json=GOOD).status_code == 403
    assert client.post("/translate", json={**GOOD, "api_key": "onetwo"}).json() == {"error": "Invalid API key"}
    assert client.post("/v1/translate", json={"texts": "a"}).status_code == 403
    assert client.post("/detect", data={"q": "a"}).status_code == 403
    for how in (
        {"json": {**GOOD, "api_key": "one"}},
        {"data": {**GOOD, "api_key": "two"}},
        {"params": {**GOOD, "api_key": "two"}},
        {"json": GOOD, "headers": {"Authorization": "Bearer one"}},
    ):
        assert client.post("/translate", **how).status_code == 200
    for key, status in ((None, 403), ("three", 403), ("one", 200)):
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        assert client.get("/metrics", headers=headers).status_code == status
    client = TestClient(make_app(batcher, keys=["schlüssel-键"]))
    headers = {"Authorization": "Bearer schlüssel-键".encode()}
    assert client.post("/translate", json=GOOD, headers=headers).status_code == 200
    assert client.post("/translate", json=GOOD, headers={"Authorization": b"Bearer \xff"}).status_code == 403
    assert "no page" in client.get("/").text
    assert client.get("/frontend/settings").json()["keyRequired"]


def test_all_keys_are_compared(monkeypatch):
    compared = []
    monkeypatch.setattr("hmac.compare_digest", lambda one, other: compared.append(one) or one == other)
    keys = [hashed(key) for key in ("a", "b", "c")]
    assert is_known("a", keys)
    assert not is_known("\ud800", keys)
    assert len(compared) == 6


def test_requests_a_minute(batcher, monkeypatch):
    client = limited(batcher, requests=2)
    statuses = [client.post("/translate", json=GOOD).status_code for _ in range(3)]
    answer = client.post("/translate", json=GOOD)
    assert statuses == [200, 200, 429]
    assert 1 <= int(answer.headers["retry-after"]) <= 31
    now = 0.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    rate = RequestsAMinute(60)
    assert not any(rate.wait(b"a") for _ in range(60))
    assert rate.wait(b"a") == pytest.approx(1.0)
    assert rate.wait(b"b") == 0
    now = 1.0
    assert rate.wait(b"a") == 0
    assert rate.wait(b"a") == pytest.approx(1.0)  # one came back in that second


def test_wrong_keys_count_as_requests(batcher):
    """So that nobody tries many."""
    client = TestClient(make_app(batcher, Limits(requests=2), keys=["one"]))
    assert [client.post("/detect", data={"q": "a", "api_key": f"{n}"}).status_code for n in range(3)] == [403, 403, 429]
    assert client.post("/detect", data={"q": GERMAN, "api_key": "one"}).status_code == 200


FILES = {
    "a.txt": (b"Hello\r\n\r\nworld\n", b"de:Hello\r\n\r\nde:world\n"),
    "b.HTML": ("<p>Gr\u00fc\u00dfe</p>".encode(), "<p>de:Gr\u00fc\u00dfe</p>".encode()),
    "c.srt": (
        b"\xef\xbb\xbf1\n00:00:01,000 --> 00:00:02,000\nHello\n",
        b"\xef\xbb\xbf1\n00:00:01,000 --> 00:00:02,000\nde:Hello\n",
    ),
}


@pytest.mark.parametrize("name", FILES)
def test_files(client, name):
    before, after = FILES[name]
    answer = client.post(
        "/translate_file", files={"file": (f"../x/{name}", before)}, data={"source": "en", "target": "de"}
    )
    assert answer.json().keys() == {"translatedFileUrl"}
    url = answer.json()["translatedFileUrl"]
    file = client.get(url)
    assert file.content == after
    stem, ending = name.split(".")
    assert file.headers["content-disposition"] == f"attachment; filename*=UTF-8''{stem}_de.{ending}"
    assert "sandbox" in file.headers["content-security-policy"]
    assert client.get(url[:-1]).status_code == 404


@pytest.mark.parametrize("ending", ["po", "xliff"])
def test_messages_that_stay_untranslated_are_counted_in_the_answer_and_the_log(client, caplog, ending):
    caplog.set_level(logging.INFO, "hf_mlnmt.serving")
    texts = ["A dog", "You have {n, plural, one {# dog}} now", "{n, plural, one {a} other {b} is"]
    if ending == "po":
        content = "".join(f'msgid "{text}"\nmsgstr ""\n\n' for text in ["", *texts])
    else:
        units = "".join(f'<trans-unit id="{i}"><source>{text}</source></trans-unit>' for i, text in enumerate(texts))
        content = f'<xliff version="1.2"><file source-language="en"><body>{units}</body></file></xliff>'
    files = {"file": (f"a.{ending}", content.encode())}
    answer = client.post("/translate_file", files=files, data={"source": "en", "target": "de"})
    assert answer.json()["untranslated"] == 2
    assert json.loads(caplog.messages[-1])["untranslated"] == 2


def test_a_file_by_a_calibrated_model_has_a_projected_quality(client, monkeypatch):
    seen = []

    def quality_of(model, translations):
        seen.extend(best.text for best in translations)
        return SimpleNamespace(to_dict=lambda: {"projected_chrf": 61.5, "verdict": "usable"})

    monkeypatch.setattr("hf_mlnmt.serving.service.quality_of", quality_of)
    files = {"file": ("b.html", b"<p>Hello</p><p>world</p>")}
    answer = client.post("/translate_file", files=files, data={"source": "en", "target": "de"})
    assert answer.json()["quality"] == {"projected_chrf": 61.5, "verdict": "usable"}
    assert seen == ["de:Hello", "de:world"]


def test_documents_of_word(client, batcher):
    """An archive comes back as one, its language told by its text; the limit of bytes says what it may unpack to."""
    w = 'xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main"'
    text = f"<w:body {w}><w:p><w:r><w:t>{GERMAN}</w:t></w:r></w:p></w:body>"

    def post(text, client):
        file = io.BytesIO()
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("word/document.xml", text)
        asked = {"source": "auto", "target": "en"}
        return client.post("/translate_file", files={"file": ("a.docx", file.getvalue())}, data=asked)

    file = client.get(post(text, client).json()["translatedFileUrl"])
    assert zipfile.ZipFile(io.BytesIO(file.content)).read("word/document.xml").decode() == text.replace(
        f"<w:t>{GERMAN}", f'<w:t xml:space="preserve">en:{GERMAN}'
    )
    assert batcher.calls[-1]["source"] == "de"
    answer = post(text + " " * 20_000, limited(batcher, file_bytes=1_000))
    assert (answer.status_code, "unpacks to 20," in answer.json()["error"]) == (400, True)


@pytest.mark.parametrize("name", ["a.pdf", "txt", "a.txt/", "", "a.srt", "a.docx", "a.doc"])
def test_files_that_are_refused(client, name):
    answer = client.post("/translate_file", files={"file": (name, b"Hello")}, data={"source": "en", "target": "de"})
    assert answer.status_code == 400
    assert answer.json().keys() == {"error"}
    assert name != "a.pdf" or "Give the document that the PDF was made from" in answer.json()["error"]
    answer = client.post("/translate_file", files={"file": ("a.txt", b"\xff")}, data={"source": "en", "target": "de"})
    assert (answer.status_code, "UTF-8" in answer.text) == (400, True)


def test_translated_files_are_kept_for_a_while_and_up_to_a_size(monkeypatch):
    now = 0.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    files = Downloads(60, 10)
    first, second = files.add("a", b"12345"), files.add("b", b"12345")
    assert files.get(first)[1] == b"12345"
    third = files.add("c", b"1")
    for gone in (first, "", "../a"):
        with pytest.raises(Exception, match="no such file"):
            files.get(gone)
    assert files.get(second)[0] == "b"
    now = 60.0
    with pytest.raises(Exception, match="no such file"):
        files.get(third)


@pytest.mark.parametrize("path", ["/download_file/..%2f..%2fetc%2fpasswd", "/%2e%2e/%2e%2e/etc/passwd", "//etc/passwd"])
def test_no_path_reaches_the_disk(client, path):
    assert client.get(path).status_code == 404


def test_the_log_has_a_line_a_request_and_no_text(client, batcher, caplog):
    caplog.set_level(logging.INFO, "hf_mlnmt.serving")
    client.post("/translate", json={**GOOD, "q": SECRET})
    client.post("/translate", json={**GOOD, "source": SECRET, "target": SECRET})
    client.post("/translate", params={**GOOD, "q": SECRET}, json=[SECRET])
    client.get(f"/{SECRET}")
    batcher.error = ValueError(SECRET)
    client.post("/translate", json={**GOOD, "q": SECRET})
    lines = [
        json.loads(record.getMessage()) for record in caplog.records if record.name == "hf_mlnmt.serving.gate"
    ] or [json.loads(record.getMessage()) for record in caplog.records if record.name == "hf_mlnmt.serving"]
    requests = [line for line in lines if "path" in line]
    assert [line["status"] for line in requests] == [200, 400, 400, 404, 500]
    first = requests[0]
    assert first["path"] == "/translate"
    assert (first["texts"], first["characters"], first["pair"], first["models"]) == (1, len(SECRET), "en-de", ["toy"])
    assert any(line.get("failed") == "ValueError" for line in lines)
    assert SECRET not in caplog.text
    assert "testclient" not in caplog.text


def test_metrics_are_of_one_app(client, batcher):
    client.post("/translate", json=GOOD)
    client.get("/made/up")
    batcher.statistics.source_tokens = 17
    batcher.statistics.on_batch(5, 50, 0.01)
    text = client.get("/metrics").text
    for line in (
        'hf_mlnmt_requests_total{method="POST",path="/translate",status="200"} 1.0',
        'hf_mlnmt_requests_total{method="GET",path="other",status="404"} 1.0',
        'hf_mlnmt_request_seconds_count{path="/translate"} 1.0',
        "hf_mlnmt_waiting_sentences 3.0",
        'hf_mlnmt_tokens_total{side="source"} 17.0',
        'hf_mlnmt_batch_sentences_bucket{le="8.0"} 1.0',
    ):
        assert line in text
    assert "/translate" not in TestClient(make_app(StandIn(), page=False)).get("/metrics").text


def test_pages_of_other_origins_may_ask_only_where_it_is_allowed(client, batcher):
    headers = {"Origin": "https://example.org"}
    assert "access-control-allow-origin" not in client.post("/translate", json=GOOD, headers=headers).headers
    open_ = TestClient(make_app(batcher, Limits(body_bytes=100), cors=True, page=False))
    for q in ("a", "a" * 100):  # also where it is refused
        assert (
            open_.post("/translate", json={**GOOD, "q": q}, headers=headers).headers["access-control-allow-origin"]
            == "*"
        )


def test_at_the_end_no_new_work_is_taken(batcher):
    app = make_app(batcher, page=False)
    client = TestClient(app)
    app.state.end()
    assert client.get("/readyz").status_code == client.post("/translate", json=GOOD).status_code == 503
    assert client.get("/healthz").status_code == 200


def test_a_client_that_leaves_takes_its_work_along(batcher):
    async def scenario():
        batcher.gate, gone = asyncio.Event(), asyncio.Event()
        body = [{"type": "http.request", "body": json.dumps(GOOD).encode(), "more_body": False}]

        async def receive():
            if body:
                return body.pop()
            await gone.wait()
            return {"type": "http.disconnect"}

        async def send(message):
            raise AssertionError("nobody is there")

        headers = [(b"content-type", b"application/json")]
        scope = {"type": "http", "method": "POST", "path": "/translate", "raw_path": b"", "headers": headers}
        scope |= {"query_string": b"", "client": ("::1", 1), "scheme": "http", "server": ("a", 1), "root_path": ""}
        request = asyncio.create_task(make_app(batcher, page=False)(scope, receive, send))
        while not batcher.calls:
            await asyncio.sleep(0)
        gone.set()
        await request

    asyncio.run(scenario())
    assert batcher.cancelled


def test_out_of_memory_in_one_batch_is_no_one_s_fault(toy, monkeypatch):
    """Its halves are translated; a text for which alone there is too little memory is an error of its request."""
    client = TestClient(make_app(toy, page=False))
    asked = {"q": SENTENCES[:6], "source": "en", "target": "de"}
    before, sizes, room, search = client.post("/translate", json=asked).json(), [], 2, TranslationCall._rows

    def small(run, sequences, *more):
        sizes.append(len(sequences))
        if len(sequences) > room:
            raise torch.OutOfMemoryError("of the machine")
        return search(run, sequences, *more)

    monkeypatch.setattr(TranslationCall, "_rows", small)
    assert client.post("/translate", json=asked).json() == before
    assert max(sizes) > 2
    room = 0
    answer = client.post("/translate", json=asked)
    assert (answer.status_code, "out of memory" in answer.json()["error"]) == (400, True)
    room = 9
    assert client.post("/translate", json=asked).json() == before


def test_random_requests_are_answered_or_refused(batcher):
    """Nothing but 2xx, 4xx and 503, always JSON with the one field where it is an error."""
    draw = random.Random(3)
    client = limited(batcher, texts=5, text_characters=50)
    values = ["a", "", "auto", "en", "de", "xx", "\ud800", "\x00", "<b>x</b>", "html", "x" * 60, "never", None, True]
    values += [0, -1, 2**70, 1.5, 3, [], {}, ["a"], ["a", None], [[]], {"a": 1}, ["en"], {"x": ["y"]}]
    names = [*GOOD, "format", "alternatives", "api_key", "texts", "model", *OPTIONS, "generate", "x"]
    paths = [*(["/translate", "/v1/translate"] * 4), "/detect", "/translate_file", "/languages", "/x"]
    for number in range(400):
        given = dict(GOOD) if draw.random() < 0.5 else {"texts": "a"}
        given |= {draw.choice(names): draw.choice(values) for _ in range(draw.randint(0, 4))}
        path, method = draw.choice(paths), draw.choice(["POST"] * 5 + ["GET", "PUT"])
        how = draw.choice(["json", "form", "address", "broken", "multipart"])
        kind = {"content-type": "application/json"}
        if how == "json":
            request = {"content": json.dumps(given).encode(), "headers": kind}
        elif how == "broken":
            content = bytearray(json.dumps(given).encode())
            content[draw.randrange(len(content))] = draw.randrange(256)
            request = {"content": bytes(content), "headers": kind}
        else:
            flat = {name: str(value).encode(errors="replace").decode() for name, value in given.items()}
            file = draw.choice(["a.txt", "b.exe", "c.srt"]), b"\xffx"[draw.randint(0, 1) :]
            other = {"files": {draw.choice(["file", "q"]): file}, "data": flat}
            request = {"form": {"data": flat}, "address": {"params": flat}}.get(how, other)
        answer = client.request(method, path, **request)
        assert answer.status_code // 100 in (2, 4) or answer.status_code == 503, (number, path, request, answer.text)
        if answer.status_code // 100 != 2:
            assert answer.json().keys() == {"error"}


def test_a_memory_learns_by_one_request(pair_folders, tmp_path):
    (tmp_path / "a.tsv").write_text(f"{SENTENCES[0]}\t{GERMAN}\n", "utf-8")
    with pytest.raises(UserError, match="name its pair"):
        ServedModels([str(pair_folders["en-de"])], memory=[f"en-fr={tmp_path / 'a.tsv'}"])
    batcher = Batcher(ServedModels([str(pair_folders["en-de"])], memory=[str(tmp_path / "a.tsv")]))
    try:
        client = TestClient(make_app(batcher, keys=["one"]), headers={"Authorization": "Bearer one"})

        def translated(text):
            (best,) = client.post("/v1/translate", json={"texts": text}).json()["translations"][0]
            return best["text"], best["origin"]

        assert translated(SENTENCES[0]) == (GERMAN, "memory 100")
        assert translated(ENGLISH)[1] == "machine"
        unit = {"text": ENGLISH, "translation": "Neu."}
        for given, headers, status in (
            (unit, {"Authorization": "Bearer two"}, 403),
            ({"text": ENGLISH}, {}, 400),
            ({**unit, "translation": " "}, {}, 400),
            ({**unit, "target": "fr"}, {}, 400),
        ):
            answer = client.post("/v1/memory", json=given, headers=headers)
            assert (answer.status_code, answer.json().keys()) == (status, {"error"})
        assert translated(ENGLISH)[1] == "machine"
        assert client.post("/v1/memory", json=unit).json() == {"units": 2}
        assert translated(ENGLISH) == ("Neu.", "memory 100")
        assert TestClient(make_app(batcher)).post("/v1/memory", json=unit).status_code == 403
    finally:
        batcher.close_now(10)
