"""The page in a browser: typing, languages, n-best lists, terms; what is shown is text, never HTML."""

from __future__ import annotations

import asyncio
import copy
import json
import logging
import re
import shutil
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from helpers.model_folders import SENTENCES, small_model

from hf_mlnmt.common.errors import UserError
from hf_mlnmt.data.tokenizer import save_tokenizers, train_tokenizer
from hf_mlnmt.generation import Hypothesis
from hf_mlnmt.serving import page as serving_page
from hf_mlnmt.serving.batcher import Batcher, Translations
from hf_mlnmt.serving.limits import Limits
from hf_mlnmt.serving.models import ServedModels
from hf_mlnmt.serving.page import LIVE, page, purpose_of, terms_of
from hf_mlnmt.serving.service import Api

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
QUIET = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]
QUIET += ["--disable-component-update", "--disable-sync"]
BAD = "<img src=x onerror='window.broken=1'>"
MARKUP = ["<script>window.broken=1</script>", BAD, "${window.broken=1} {{value}} `</textarea>"]
OUT = "#out textarea"


@pytest.fixture(scope="module")
def served(tmp_path_factory) -> ServedModels:
    """Two models of three languages each, told by codes; the second one's name is HTML."""
    folder = tmp_path_factory.mktemp("models") / "first"
    tokenizer = train_tokenizer(
        [*SENTENCES, *MARKUP], vocab_size=400, languages=("en", "de", "ar"), byte_fallback=False
    )
    model = small_model(len(tokenizer))
    model.generation_config.max_new_tokens = 12
    model.generation_config.no_repeat_ngram_size = 1  # a model that knows nothing repeats one token
    model.save_pretrained(folder)
    save_tokenizers(folder, tokenizer)
    shutil.copytree(folder, folder.parent / "second")
    models = ServedModels([str(folder), str(folder.parent / "second")])
    with torch.no_grad():
        for weight in models.models[1].pipeline.model.parameters():
            weight.copy_(weight.roll(1, 0))
    models.models[1].name = BAD
    return models


@pytest.fixture(scope="module")
def batcher(served) -> Iterator[Batcher]:
    batcher = Batcher(served)
    yield batcher
    batcher.close_now(5)


@pytest.fixture(scope="module")
def address(batcher) -> Iterator[str]:
    """Of a server with the page at /, mounted as any FastAPI application mounts it."""
    gradio = pytest.importorskip("gradio", reason="needs the extra serve")
    fastapi, uvicorn = pytest.importorskip("fastapi"), pytest.importorskip("uvicorn")
    app = gradio.mount_gradio_app(fastapi.FastAPI(), page(Api(batcher)), path="/")
    server = uvicorn.Server(uvicorn.Config(app, log_level="error", timeout_graceful_shutdown=1))
    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}/"
        server.should_exit = True
        thread.join(10)


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    api = pytest.importorskip("playwright.sync_api", reason="needs playwright")
    if CHROMIUM is None:
        pytest.skip("needs Chromium")
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=QUIET)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def window(chromium) -> Iterator[Any]:
    """Whose tabs load scripts once."""
    window = chromium.new_context()
    yield window
    window.close()


@pytest.fixture
def tab(window, address) -> Iterator[Any]:
    """The page, opened; whatever it asks of another machine, and every error in it, fails the test."""
    yield from opened(window, address)


def opened(window: Any, address: str) -> Iterator[Any]:
    tab = window.new_page()
    tab.set_default_timeout(60_000)
    elsewhere, errors = [], []
    tab.on(
        "request",
        lambda request: None if request.url.startswith((address, "data:", "blob:")) else elsewhere.append(request.url),
    )
    tab.on("pageerror", lambda error: errors.append(str(error)))
    tab.goto(address)
    tab.wait_for_selector("#source textarea")
    yield tab
    assert tab.evaluate("window.broken") is None
    assert not elsewhere
    assert not errors
    tab.close()


def type_and_wait(tab: Any, text: str, expected: str) -> None:
    tab.locator("#source textarea").press_sequentially(text)
    shows(tab, expected)


def shows(tab: Any, expected: str, place: str = OUT) -> None:
    """Wait until a place shows this text."""
    tab.wait_for_function("([place, text]) => document.querySelector(place)?.value === text", arg=[place, expected])


def says(tab: Any, expected: str) -> None:
    """Wait until the note says something."""
    tab.wait_for_function("text => document.querySelector('#note').textContent.includes(text)", arg=expected)


def choose(tab: Any, label: str, option: str) -> None:
    tab.get_by_label(label, exact=True).click()
    tab.get_by_role("option", name=option, exact=True).click()
    tab.wait_for_selector("[role=option]", state="detached")  # a list fades out, and the next one may name the same


def best(batcher: Batcher, text: str, source: str = "en", target: str = "de", **options: Any) -> str:
    return batcher.translate_now([text], source, target, split="sentences", **options).texts[0][0].text


def test_typing_translates_once_the_keys_rest_and_the_last_text_wins(tab, batcher, monkeypatch):
    text, longer = SENTENCES[0], f"{SENTENCES[0]} {SENTENCES[1]}"
    first, second, asked, real = best(batcher, text), best(batcher, longer), [], batcher.translate
    monkeypatch.setattr(batcher, "translate", lambda texts, *a, **o: asked.append(texts[0]) or real(texts, *a, **o))
    type_and_wait(tab, text, first)
    assert len(asked) < len(text) / 4
    assert asked[-1] == text
    type_and_wait(tab, longer[len(text) :], second)
    tab.get_by_role("button", name="Clear").click()
    shows(tab, "")
    shows(tab, "", "#source textarea")
    tab.get_by_text("A man rides a bicycle.").click()  # an example
    shows(tab, best(batcher, "A man rides a bicycle."))


def test_languages_are_chosen_and_change_places(tab, batcher):
    text = SENTENCES[2]
    type_and_wait(tab, text, best(batcher, text))
    choose(tab, "To", "Arabic")
    first = best(batcher, text, "en", "ar")
    assert first != best(batcher, text)
    shows(tab, first)
    tab.get_by_role("button", name="Swap").click()
    shows(tab, best(batcher, first, "ar", "en"))
    shows(tab, first, "#source textarea")
    shows(tab, "Arabic", "[aria-label=From]")
    shows(tab, "English", "[aria-label=To]")
    choose(tab, "From", "English")  # which no model translates into itself
    tab.wait_for_function("document.querySelector('[aria-label=To]').value !== 'English'")
    choose(tab, "From", "Detect language")
    text = "Ein Mann fährt mit dem Fahrrad durch die alte Stadt."
    tab.locator("#source textarea").fill(text)
    choose(tab, "To", "Arabic")
    shows(tab, best(batcher, text, "de", "ar"))
    says(tab, "Detected: German")
    choose(tab, "To", "German")
    shows(tab, text)


def test_the_best_translations_stand_with_scores(tab, batcher):
    text, options = SENTENCES[3], {"num_return_sequences": 5, "num_beams": 7}
    type_and_wait(tab, text, best(batcher, text))
    tab.get_by_text("Search", exact=True).click()
    tab.get_by_label("number input for Translations, the best first").fill("5")
    choose(tab, "Beams", "7")
    for each in batcher.translate_now([text], "en", "de", **options).texts[0]:
        for shown in (each.text, f"{each.score:.3f}"):
            tab.wait_for_function("text => document.querySelector('#ranked').textContent.includes(text)", arg=shown)


@pytest.mark.parametrize("text", MARKUP, ids=["script", "image", "template"])
def test_markup_is_shown_as_text(tab, batcher, monkeypatch, text):
    """What a model writes, and what it is called (BAD)."""

    async def same(*given: Any, **options: Any) -> Translations:
        return Translations([[Hypothesis(text, float(n), 0.0, 1) for n in range(2)]], None, ["first"])

    monkeypatch.setattr(batcher, "translate", same)
    tab.locator("#source textarea").fill(text)
    shows(tab, text)
    tab.get_by_text(f"{BAD}: ").wait_for()
    assert not tab.locator("#out script, #out img, #ranked img, #ranked script, p img").count()


def test_the_keyboard_reaches_everything_in_order(tab):
    name = """() => {
        const one = document.activeElement, label = one.closest("label");
        return one.getAttribute("aria-label") || one.textContent.trim() || label?.textContent.trim();
    }"""
    expected, reached = ["From", "⇄ Swap", "To", "Model", "Text", "Translate", "Clear", "Translation"], []
    tab.get_by_label("From").focus()
    for _ in range(14):
        reached.append(tab.evaluate(name))
        tab.keyboard.press("Tab")
    order = [next((i for i, one in enumerate(reached) if one and one.startswith(name)), None) for name in expected[:7]]
    assert None not in order, reached
    assert order == sorted(order), reached


def test_a_beginning_and_terms(tab, batcher):
    text, begin, (_, term, *_) = SENTENCES[7], SENTENCES[3].split()[0], SENTENCES[5].split()
    word = text.split()[2]
    tab.get_by_text("Terms and a beginning").click()
    tab.locator("#source textarea").fill(text)
    tab.locator("#beginning input, #beginning textarea").fill(begin)
    expected = best(batcher, text, target_prefix=begin)
    assert expected.startswith(begin)
    shows(tab, expected)
    tab.locator("#terms textarea").fill(f"{word} = {term}")
    asked = {"target_prefix": begin, "terms": {word: [term]}, "num_beams": 5}  # of a model whose own search is greedy
    constrained = best(batcher, text, **asked)
    assert term in constrained.split()
    assert term not in expected.split()
    shows(tab, constrained)
    tab.locator("#keep").get_by_label("Numbers").check()
    tab.locator("#source textarea").fill(numbered := f"{text[:-1]} 24.")
    kept = best(batcher, numbered, **asked, keep=["number"])
    assert "24" in kept
    shows(tab, kept)
    tab.locator("#terms textarea").fill(word)
    tab.wait_for_selector("#note [role=alert]")
    says(tab, "terms, line 1")


def test_long_text_waits_for_the_button(tab, batcher):
    text = " ".join(SENTENCES)[: LIVE + 1].strip(" ") + "!!"
    tab.locator("#source textarea").fill(text)
    says(tab, "waits for the button")
    shows(tab, "")
    tab.get_by_role("button", name="Translate").click()
    shows(tab, best(batcher, text))


def test_a_phone(chromium, address, batcher):
    window = chromium.new_context(viewport={"width": 390, "height": 844}, color_scheme="dark")
    for tab in opened(window, address):
        tab.locator("#source textarea").fill(SENTENCES[7])
        shows(tab, best(batcher, SENTENCES[7]))
        assert tab.evaluate("document.documentElement.scrollWidth") == 390
        assert tab.locator("#source textarea").evaluate("one => getComputedStyle(one).unicodeBidi") == "plaintext"


def test_the_button_can_be_read(tab):
    """Contrast of WCAG 2: 4.5 for text."""
    colours = tab.get_by_role("button", name="Translate").evaluate(
        "one => [getComputedStyle(one).color, getComputedStyle(one).backgroundColor]"
    )

    def luminance(colour: str) -> float:
        parts = [int(part) / 255 for part in re.findall(r"\d+", colour)[:3]]
        red, green, blue = (part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    dark, light = sorted(map(luminance, colours))
    assert (light + 0.05) / (dark + 0.05) >= 4.5


# Without a browser


EMPTY = {"source": "en", "target": "de", "model": -1, "count": 1, "beams": 0, "penalty": ""}
EMPTY |= {"beginning": "", "terms": "", "keep": []}


def answered(api: Api, **given: Any) -> list[Any]:
    """The translation, the note and the list for what is set on the page."""
    made = serving_page._Page(pytest.importorskip("gradio"), api)
    with ThreadPoolExecutor(1) as thread:  # playwright has an event loop in this one
        given = {**EMPTY, "asked": (given["text"], 1), **given}
        return thread.submit(asyncio.run, made.answer("1.2.3.4", given)).result()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"text": "x" * 31}, "characters of a text: 31; the limit (text_characters) is 30"),
        ({"text": "a", "beams": 7}, "the limit (beams) is 4"),
        ({"text": "a \ud800"}, "U+D800"),
        ({"text": "a", "beginning": "\ud800"}, "U+D800"),
        ({"text": "a", "terms": "a = \ud800"}, "U+D800"),
        ({"text": "a", "keep": ["(a"]}, "no regular expression"),
        ({"text": "a \ud800", "source": "de"}, "U+D800"),
    ],
)
def test_the_limits_of_the_api_hold(batcher, given, said, caplog):
    caplog.set_level(logging.INFO, "hf_mlnmt.serving")
    _, note, _ = answered(Api(batcher, Limits(text_characters=30, beams=4, n_best=3)), **given)
    assert said in note
    assert "alert" in note
    line = json.loads(caplog.messages[-1])
    assert line["status"] in (400, 413)
    assert line["characters"] == len(given["text"])


def test_translations_of_the_page_are_counted_and_logged_like_others(batcher, caplog):
    caplog.set_level(logging.INFO, "hf_mlnmt.serving")
    api = Api(batcher, Limits(requests=2, beams=4, n_best=3))
    secret = "Secret " + SENTENCES[0]
    assert len(answered(api, text=secret, count=10)[2].value["data"]) == 3
    line = json.loads(caplog.messages[-1])
    assert (line["path"], line["status"], line["pair"], line["models"]) == ("/", 200, "en-de", ["first"])
    assert (line["texts"], line["characters"]) == (1, len(secret))
    assert "too many" not in answered(api, text=secret)[1]
    assert "too many requests; the limit (requests) is 2 a minute" in answered(api, text=secret)[1]
    assert json.loads(caplog.messages[-1])["status"] == 429
    assert api.rate.wait(b"1.2.3.4") > 0
    assert "Secret" not in caplog.text
    assert "1.2.3.4" not in caplog.text
    api.ending.set()
    assert "too much to do" in answered(api, text=secret)[1]


def test_what_a_model_is_for(served, tmp_path):
    model = copy.copy(served.models[0])
    model.pairs = {("en", "de"): (None, None)}
    assert purpose_of(model) == "first: English into German."
    model.pipeline = SimpleNamespace(name=str(tmp_path))
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "results.json").write_text(json.dumps({"data": {"name": "Captions", "licence": "CC-0"}}))
    assert purpose_of(model).endswith("Made for text like that which it was trained on: Captions (data under CC-0).")
    said = {"data": {"name": "Captions"}, "recipe": {"data": {"domain": "image captions"}}}
    (tmp_path / "results.json").write_text(json.dumps(said))
    expected = "For image captions, and nothing else: other text may come out as nonsense. Trained on Captions."
    assert purpose_of(model).endswith(expected)


def test_terms():
    assert terms_of("kernel = Kern | Kernel\n\nbus=Bus\n") == {"kernel": ["Kern", "Kernel"], "bus": ["Bus"]}
    for lines, place in (("kernel", "line 1"), ("a=b\n=c", "line 2"), ("a = |", "line 1")):
        with pytest.raises(UserError, match=place):
            terms_of(lines)
    with pytest.raises(UserError, match="at most 100"):
        terms_of("\n".join(f"{number}=x" for number in range(101)))
    for where in ("target_prefix", "target_prefix of line 1"):  # no name that stands nowhere on the page
        assert serving_page._said(UserError(f"{where}: takes 9")) == "The translation begins with: takes 9"


def test_the_examples_of_a_card(tmp_path, served):
    from hf_mlnmt.serving.page import examples_of

    folder = Path(shutil.copytree(served.models[0].pipeline.name, tmp_path / "model"))
    assert examples_of(str(folder)) == []
    (folder / "README.md").write_text("---\nwidget:\n- text: A red house.\n- text: [1]\n- 5\n---\n")
    assert examples_of(str(folder)) == ["A red house."]
    (folder / "README.md").write_text("---\nwidget: {a: [\n---\n")
    assert examples_of(str(folder)) == []


def test_examples_are_those_of_the_language(batcher, monkeypatch):
    """Of several models; what a model reads before the text is no part of it."""
    gradio = pytest.importorskip("gradio")
    cards = {name: ["A man."] if number else ["<2ar> Two dogs run on the grass.", "<2xx> A cat sleeps on the sofa."]
             for number, name in enumerate(model.pipeline.name for model in batcher.models.models)}  # fmt: skip
    monkeypatch.setattr(serving_page, "examples_of", cards.__getitem__)
    made = serving_page._Page(gradio, Api(batcher))
    texts = [text for (text,) in made._samples("en")]
    assert texts[:2] == ["Two dogs run on the grass.", "A cat sleeps on the sofa."]
    assert made._samples("cs") == [[serving_page.example("cs")]]
