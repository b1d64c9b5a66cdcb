"""The page in a browser: typing, languages, n-best lists, attention, two models; what is shown is text, never HTML."""

from __future__ import annotations

import copy
import json
import logging
import re
import shutil
import socket
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from helpers.model_folders import SENTENCES, small_model

from hf_mlnmt.analysis.source_attention import Place
from hf_mlnmt.common.errors import UserError
from hf_mlnmt.data.tokenizer import save_tokenizers, train_tokenizer
from hf_mlnmt.generation import Hypothesis
from hf_mlnmt.generation.translating.alignments import attending_copy
from hf_mlnmt.serving import page as serving_page
from hf_mlnmt.serving.batcher import Batcher, Overloaded
from hf_mlnmt.serving.limits import Limits
from hf_mlnmt.serving.models import ServedModels
from hf_mlnmt.serving.page import LIVE, _Answer, page, purpose_of, terms_of
from hf_mlnmt.serving.service import Api
from hf_mlnmt.serving.views import attention_map, attention_of, differences, message, translation

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
QUIET = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]
QUIET += ["--disable-component-update", "--disable-sync"]
BAD = "<img src=x onerror='window.broken=1'>"
MARKUP = ["<script>window.broken=1</script>", BAD, "${window.broken=1} {{value}} `</textarea>"]
OUT, MAP = "#out .best", "figure.attention"


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


def type_and_wait(tab: Any, text: str, expected: str, place: str = OUT) -> None:
    tab.locator("#source textarea").press_sequentially(text)
    shows(tab, expected, place)


def shows(tab: Any, expected: str, place: str = OUT) -> None:
    """Wait until a place shows this text."""
    tab.wait_for_function(
        "([place, text]) => document.querySelector(place)?.textContent === text", arg=[place, expected]
    )


def choose(tab: Any, label: str, option: str) -> None:
    tab.get_by_label(label, exact=True).click()
    tab.get_by_role("option", name=option, exact=True).click()
    tab.wait_for_selector("[role=option]", state="detached")  # a list fades out, and the next one may name the same


def test_typing_translates_once_the_keys_rest_and_the_last_text_wins(tab, batcher, monkeypatch):
    asked = []
    real = batcher.translate_now
    monkeypatch.setattr(batcher, "translate_now", lambda texts, *a, **o: asked.append(texts[0]) or real(texts, *a, **o))
    text, longer = SENTENCES[0], f"{SENTENCES[0]} {SENTENCES[1]}"
    type_and_wait(tab, text, real([text], "en", "de").texts[0][0].text)
    assert len(asked) < len(text) / 4
    assert asked[-1] == text
    type_and_wait(tab, longer[len(text) :], real([longer], "en", "de", split="sentences").texts[0][0].text)
    tab.locator("#source textarea").fill("")
    tab.wait_for_selector(OUT, state="detached")


def test_languages_are_chosen_and_change_places(tab, batcher):
    def by(text: str, source: str, target: str) -> str:
        return batcher.translate_now([text], source, target).texts[0][0].text

    text = SENTENCES[2]
    type_and_wait(tab, text, by(text, "en", "de"))
    choose(tab, "To", "Arabic")
    first = by(text, "en", "ar")
    assert first != by(text, "en", "de")
    shows(tab, first)
    assert tab.get_attribute(OUT, "lang") == "ar"
    assert tab.get_attribute(OUT, "dir") == "auto"
    tab.get_by_role("button", name="Swap").click()
    shows(tab, by(first, "ar", "en"))
    assert tab.locator("#source textarea").input_value() == first
    assert (tab.get_by_label("From").input_value(), tab.get_by_label("To", exact=True).input_value()) == (
        "Arabic",
        "English",
    )
    choose(tab, "From", "English")  # which no model translates into itself
    tab.wait_for_function("document.querySelector('[aria-label=To]').value !== 'English'")


def test_the_best_translations_stand_with_scores_and_what_differs(tab, batcher):
    text = SENTENCES[3]
    ranked = batcher.translate_now([text], "en", "de", num_return_sequences=5).texts[0]
    type_and_wait(tab, text, batcher.translate_now([text], "en", "de").texts[0][0].text)
    assert not tab.locator(".ranked").count()
    tab.get_by_label("Other translations").check()
    tab.wait_for_selector(".ranked")
    rows = tab.locator(".ranked tbody tr").all()
    assert [row.locator("td").nth(2).inner_text() for row in rows] == [f"{one.score:.3f}" for one in ranked]
    tab.locator(".ranked del").evaluate_all("all => all.forEach((one) => one.remove())")
    assert [row.locator("td").nth(1).text_content() for row in rows] == [one.text for one in ranked]
    assert tab.locator(".ranked mark").count()
    tab.get_by_text("Search", exact=True).click()
    choose(tab, "Beams", "7")
    best = batcher.translate_now([text], "en", "de", num_return_sequences=5, num_beams=7).texts[0]
    shows(tab, f"{best[4].score:.3f}", ".ranked tbody tr:nth-child(5) td:nth-child(3)")


def lit(tab: Any) -> list[float]:
    """How bright each subword of the source is."""
    return tab.locator("[data-at]").evaluate_all("all => all.map((one) => Number(one.style.getPropertyValue('--w')))")


def test_a_word_under_the_pointer_lights_up_its_source(tab, batcher, served):
    text = SENTENCES[4]
    best = batcher.translate_now([text], "en", "de").texts[0][0].text
    type_and_wait(tab, text, best)
    tab.get_by_label("Attention", exact=True).check()
    words = tab.locator(f"{MAP} .target button")
    words.nth(1).hover()
    attention = attention_of(served.models[0].pipeline.parts, text, best, None, "de")
    positions = [at for at, word in enumerate(attention.target_words) if word == 1]
    expected = attention.weights[Place(1, 0, 0)][positions].mean(0)
    assert torch.allclose(torch.tensor(lit(tab)), expected, atol=6e-4)
    assert tab.locator(f"{MAP} .says").inner_text().startswith(f"{best.split()[1]}: ")
    choose(tab, "Head", "2")
    tab.wait_for_function(f"document.querySelector('{MAP} figcaption').textContent.includes('head 2')")
    words.nth(0).focus()  # and by the keyboard
    positions = [at for at, word in enumerate(attention.target_words) if word == 0]
    assert torch.allclose(torch.tensor(lit(tab)), attention.weights[Place(1, 0, 2)][positions].mean(0), atol=6e-4)
    tab.locator(f"{MAP} tbody tr").nth(2).locator("td").nth(1).hover()
    assert torch.allclose(torch.tensor(lit(tab)), attention.weights[Place(1, 0, 2)][2], atol=6e-4)


def test_two_models_stand_side_by_side(tab, batcher, served):
    """And no model beside itself."""
    text = SENTENCES[5]
    one, other = (batcher.translate_now([text], "en", "de", model=name).texts[0][0].text for name in served.names)
    assert one != other
    type_and_wait(tab, text, one)
    choose(tab, "Compare with", BAD)
    tab.wait_for_selector("#out article + article")
    assert tab.locator("#out h2").all_inner_texts() == ["first", BAD]
    assert tab.locator("#out article + article .best mark").count()
    tab.locator("#out del").evaluate_all("all => all.forEach((one) => one.remove())")
    assert tab.locator("#out article + article .best").text_content() == other
    choose(tab, "Compare with", "first")
    tab.wait_for_function("document.querySelector('#out').textContent.includes('choose another model')")
    assert tab.locator(OUT).count() == 1


def test_markup_is_shown_as_text(tab):
    tab.get_by_label("Attention", exact=True).check()
    tab.get_by_label("Other translations").check()
    for text in MARKUP:
        tab.locator("#source textarea").fill(text)
        tab.wait_for_function(
            "([place, text]) => document.querySelector(place)?.textContent.replace(/[ _]/g, '') === text",
            arg=[f"{MAP} .source", f"<2de>{text}</s>".replace(" ", "")],
        )
        assert not tab.locator(f"{MAP} script, {MAP} img, #out script, #out img").count()


def test_the_keyboard_reaches_everything_in_order(tab):
    tab.locator("#source textarea").fill(SENTENCES[6])
    tab.wait_for_selector(OUT)
    name = """() => {
        const one = document.activeElement, label = one.closest("label");
        return one.getAttribute("aria-label") || one.textContent.trim() || label?.textContent.trim();
    }"""
    expected = ["From", "⇄ Swap", "To", "Model", "Compare with", "Text", "Translate", "Clear", "Copy"]
    expected += ["Other translations"]
    reached = []
    tab.get_by_label("From").focus()
    for _ in range(14):
        reached.append(tab.evaluate(name))
        tab.keyboard.press("Tab")
    order = [next((i for i, one in enumerate(reached) if one and one.startswith(name)), None) for name in expected]
    assert None not in order, reached
    assert order == sorted(order), reached


def test_a_beginning_and_terms(tab, batcher):
    text, begin, (_, term, *_) = SENTENCES[7], SENTENCES[3].split()[0], SENTENCES[5].split()
    word = text.split()[2]
    tab.get_by_text("Terms and a beginning").click()
    tab.locator("#source textarea").fill(text)
    tab.locator("#beginning input, #beginning textarea").fill(begin)
    asked = {"split": "sentences", "target_prefix": begin}
    expected = batcher.translate_now([text], "en", "de", **asked).texts[0][0].text
    assert expected.startswith(begin)
    shows(tab, expected)
    tab.locator("#terms textarea").fill(f"{word} = {term}")
    asked |= {"terms": {word: [term]}, "num_beams": 5}  # of a model whose own search is greedy
    constrained = batcher.translate_now([text], "en", "de", **asked).texts[0][0].text
    assert term in constrained.split()
    assert term not in expected.split()
    shows(tab, constrained)
    tab.locator("#keep").get_by_label("Numbers").check()
    tab.locator("#source textarea").fill(numbered := f"{text[:-1]} 24.")
    kept = batcher.translate_now([numbered], "en", "de", **asked, keep=["number"]).texts[0][0].text
    assert "24" in kept
    shows(tab, kept)
    tab.locator("#terms textarea").fill(word)
    tab.wait_for_selector("#out [role=alert]")
    assert "terms, line 1" in tab.inner_text("#out")


def test_another_word_is_chosen_and_the_rest_searched_again(tab, batcher):
    """By the keyboard, on a phone, in the second of two sentences; then by the pointer, in the first."""
    texts = SENTENCES[8:10]

    def ask(number: int, prefix: str, **options: Any) -> Any:
        asked = {"target_prefix": prefix, **options}
        return batcher.translate_now([texts[number]], "en", "de", **asked).texts[0]

    def choose_second(number: int, prefix: str) -> str:
        """Waits for the list; chooses its second word; what the sentence is then."""
        tab.wait_for_selector("#words [role=option]")
        others = [best for best in ask(number, prefix, alternatives=8) if best.word]
        assert tab.locator("#words bdi").all_inner_texts() == [best.word for best in others]
        return others[1].text

    tab.set_viewport_size({"width": 390, "height": 844})
    first, second = (ask(number, "")[0].text for number in range(2))
    tab.locator("#source textarea").fill(" ".join(texts))
    shows(tab, f"{first} {second}")
    before = len(first.split())
    tab.locator(f"{OUT} .word").nth(0).focus()
    for _ in range(before + 2):
        tab.keyboard.press("ArrowRight")
    tab.keyboard.press("Enter")
    changed = choose_second(1, " ".join(second.split()[:2]) + " ")
    assert changed != second
    assert tab.evaluate("document.documentElement.scrollWidth") == 390
    tab.keyboard.press("Escape")
    tab.wait_for_selector("#words [role=option]", state="detached")
    assert tab.evaluate("document.activeElement.textContent") == second.split()[2]
    tab.keyboard.press("Enter")
    tab.wait_for_selector("#words [role=option]:focus")
    tab.keyboard.press("ArrowDown")
    tab.keyboard.press("Enter")
    shows(tab, f"{first} {changed}")
    tab.wait_for_function(
        "word => document.activeElement.textContent === word", arg=changed.split()[2]
    )  # the focus stays where it was
    tab.locator(f"{OUT} .word").nth(1).click()
    other = choose_second(0, f"{first.split()[0]} ")
    tab.locator("#words [role=option]").nth(1).click()
    shows(tab, f"{other} {changed}")
    tab.locator("#source textarea").fill(texts[0])  # another text is translated as ever
    shows(tab, first)


def test_long_text_waits_for_the_button(tab, batcher):
    text = " ".join(SENTENCES)[: LIVE + 1].strip(" ") + "!!"
    tab.locator("#source textarea").fill(text)
    tab.wait_for_function("document.querySelector('#out').textContent.includes('waits for the button')")
    assert not tab.locator(OUT).count()
    tab.get_by_role("button", name="Translate").click()
    shows(tab, batcher.translate_now([text], "en", "de", split="sentences").texts[0][0].text)


def test_a_busy_server_is_said(tab, batcher, monkeypatch):
    def refuse(*arguments: Any, **options: Any) -> None:
        raise Overloaded("queue", 1.0)

    monkeypatch.setattr(batcher, "translate_now", refuse)
    tab.locator("#source textarea").fill("A man.")
    tab.wait_for_selector("#out [role=alert]")
    assert "too much to do" in tab.inner_text("#out")


def test_a_phone_in_the_dark(chromium, address):
    window = chromium.new_context(viewport={"width": 390, "height": 844}, color_scheme="dark")
    for tab in opened(window, address):
        tab.locator("#source textarea").fill(SENTENCES[7])
        tab.get_by_label("Attention", exact=True).check()
        tab.get_by_label("Other translations").check()
        tab.wait_for_selector(f"{MAP} table")
        assert tab.evaluate("document.documentElement.scrollWidth") == 390
        text, behind = (
            tab.locator(place).evaluate(f"one => getComputedStyle(one).{name}.match(/[0-9]+/g).slice(0, 3)")
            for place, name in ((OUT, "color"), ("#out", "backgroundColor"))
        )
        assert sum(map(int, text)) - sum(map(int, behind)) > 400
        covered = """all => all.map((one) => {
            const arrow = one.closest(".wrap").querySelector(".icon-wrap").getBoundingClientRect();
            const box = one.getBoundingClientRect(), style = getComputedStyle(one);
            return box.right - parseFloat(style.paddingRight) > arrow.left + 1;
        })"""
        assert not any(tab.locator("[aria-label=From], [aria-label=To]").evaluate_all(covered))
        assert tab.locator("#source textarea").evaluate("one => getComputedStyle(one).unicodeBidi") == "plaintext"


def test_the_button_of_an_example(tab, batcher):
    tab.get_by_text("A man rides a bicycle.").click()
    shows(tab, batcher.translate_now(["A man rides a bicycle."], "en", "de").texts[0][0].text)


def test_what_is_empty_says_so(tab, batcher):
    assert "The translation appears here." in tab.inner_text("#out")
    tab.locator("#source textarea").fill(SENTENCES[0])
    tab.wait_for_selector(OUT)
    tab.get_by_role("button", name="Copy").click()
    tab.get_by_role("button", name="Copied").wait_for()
    tab.get_by_role("button", name="Clear").click()
    assert tab.locator("#source textarea").input_value() == ""
    tab.wait_for_function("document.querySelector('#out').textContent.includes('appears here')")


def test_a_beginning_belongs_to_its_language(tab, batcher):
    begin = SENTENCES[3].split()[0]
    tab.get_by_text("Terms and a beginning").click()
    place = tab.locator("#beginning input, #beginning textarea")
    place.fill(begin)
    type_and_wait(
        tab, SENTENCES[7], batcher.translate_now([SENTENCES[7]], "en", "de", target_prefix=begin).texts[0][0].text
    )
    choose(tab, "To", "Arabic")
    shows(tab, batcher.translate_now([SENTENCES[7]], "en", "ar").texts[0][0].text)
    assert place.input_value() == ""
    choose(tab, "To", "German")
    shows(tab, batcher.translate_now([SENTENCES[7]], "en", "de").texts[0][0].text)


def test_the_language_is_detected(tab, batcher):
    choose(tab, "From", "Detect language")
    text = "Ein Mann fährt mit dem Fahrrad durch die alte Stadt."
    tab.locator("#source textarea").fill(text)
    choose(tab, "To", "Arabic")
    shows(tab, batcher.translate_now([text], "de", "ar").texts[0][0].text)
    assert "Detected: German" in tab.inner_text("#out")
    choose(tab, "To", "German")
    shows(tab, text)


# Without a browser


EMPTY = {"source": "en", "target": "de", "begun": {}, "first": -1, "second": -1, "show": [], "count": 5, "layer": None}
EMPTY |= {"head": None, "beams": 0, "beginning": "", "terms": "", "keep": [], "best": ""}
EMPTY["offered"] = ((), ())


def answered(api: Api, **given: Any) -> str:
    """The right pane for what is set on the page."""
    state = {**EMPTY, "asked": (given["text"], 1), **given}
    return [*_Answer(api, state, "1.2.3.4").panels_so_far()][-1]


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
    api = Api(batcher, Limits(text_characters=30, beams=4, n_best=3))
    shown = answered(api, **given)
    assert said in shown
    assert "alert" in shown
    line = json.loads(caplog.messages[-1])
    assert line["status"] in (400, 413)
    assert line["characters"] == len(given["text"])


def test_translations_of_the_page_are_counted_and_logged_like_others(batcher, caplog):
    caplog.set_level(logging.INFO, "hf_mlnmt.serving")
    api = Api(batcher, Limits(requests=2, beams=4, n_best=3))
    secret = "Secret " + SENTENCES[0]
    assert answered(api, text=secret, show=["Other translations"], count=10).count("<tr>") == 1 + 3
    line = json.loads(caplog.messages[-1])
    assert (line["path"], line["status"], line["pair"], line["models"]) == ("/", 200, "en-de", ["first"])
    assert (line["texts"], line["characters"]) == (1, len(secret))
    assert "too many" not in answered(api, text=secret)
    assert "too many requests; the limit (requests) is 2 a minute" in answered(api, text=secret)
    assert json.loads(caplog.messages[-1])["status"] == 429
    assert api.rate.wait(b"1.2.3.4") > 0
    assert "Secret" not in caplog.text
    assert "1.2.3.4" not in caplog.text
    api.ending.set()
    assert "too much to do" in answered(api, text=secret)


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


@pytest.mark.parametrize(
    ("best", "other", "marked"),
    [
        ("Ein Mann fährt.", "Ein Mann fährt.", "Ein Mann fährt."),
        ("Ein Mann fährt.", "Ein Kerl fährt.", "Ein <mark>Kerl</mark> fährt."),
        ("Ein alter Mann", "Ein Mann", "Ein <del>alter </del>Mann"),
        ("a < b", "a <b> b", "a <mark>&lt;b&gt;</mark> b"),
        ("我很喜欢吃苹果", "我很喜欢吃香蕉", "我很喜欢吃<mark>香蕉</mark>"),
        ("a", "", "<del>a</del>"),
    ],
)
def test_differences(best, other, marked):
    assert differences(best, other) == marked


def test_everything_that_a_view_shows_is_escaped():
    one = Hypothesis(BAD, -1.0, -2.0, 3, finished=False, warnings=("loop", "lost"))
    for shown in (
        message(BAD, "error"),
        translation(None, [one], None),
        translation(BAD, [one, one], BAD, BAD, beside="x"),
    ):
        assert "<img" not in shown
        assert "&lt;img" in shown
        assert "onerror='" not in shown
    assert re.findall("probably wrong: it (.*?)<", translation(None, [one], None)) == [
        "repeats itself.",
        "lacks numbers or names of the text.",
    ]


def test_attention_of_what_has_none(served):
    parts = served.models[0].pipeline.parts
    other = parts._replace(model=SimpleNamespace(config=SimpleNamespace(model_type="t5")))
    with pytest.raises(UserError, match="another library"):
        attention_of(other, "A man.", "Ein Mann.", None, "de")
    with pytest.raises(UserError, match="subwords"):
        attention_of(parts, "A man. " * 100, "Ein Mann.", None, "de")


def test_the_copy_for_attention_shares_the_weights_and_nothing_else(served):
    model = served.models[0].pipeline.model
    before = model.config._attn_implementation
    other = attending_copy(model)
    assert {one.data_ptr() for one in other.parameters()} == {one.data_ptr() for one in model.parameters()}
    assert model.config._attn_implementation == before != "eager" == other.config._attn_implementation


def test_a_map_too_large_is_left_out(served):
    attention = attention_of(served.models[0].pipeline.parts, "a man. " * 14, "the dog. " * 14, None, "de")
    shown = attention_map(attention, Place(1, 0, 0))
    assert "<table" in shown
    sides = ("source", "target", "source_words", "target_words")
    weights = {Place(1, 0, 0): attention.weights[Place(1, 0, 0)].repeat(3, 3)}
    large = replace(attention, weights=weights, **{side: getattr(attention, side) * 3 for side in sides})
    shown = attention_map(large, Place(1, 0, 0))
    assert "too long" in shown
    assert "<table" not in shown


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


def test_examples_are_those_of_the_language_and_set_the_direction(batcher, monkeypatch):
    """Of several models; what a model reads before the text is no part of it."""
    gradio = pytest.importorskip("gradio")
    cards = {name: ["A man."] if number else ["<2ar> Two dogs run on the grass.", "<2xx> A cat sleeps on the sofa."]
             for number, name in enumerate(model.pipeline.name for model in batcher.models.models)}  # fmt: skip
    monkeypatch.setattr(serving_page, "examples_of", cards.__getitem__)
    made = serving_page._Page(gradio, Api(batcher))
    texts = [text for (text,) in made._samples("en")]
    assert texts[:2] == ["Two dogs run on the grass.", "A cat sleeps on the sofa."]
    assert made.directions["Two dogs run on the grass."] == "ar"
    assert made._samples("cs") == [[serving_page.example("cs")]]


def test_a_long_text_is_shown_as_far_as_it_is_done(batcher):
    text = "  " + "\n\n".join(" ".join(SENTENCES[10 * number :][:10]) for number in range(6)) + "\n"
    assert len(text) > LIVE
    parts = serving_page._parts(text)
    assert "".join(part.text + part.space for part in parts).strip() == text.strip()
    assert all(len(part.text) <= LIVE for part in parts)
    state = _Answer(Api(batcher, Limits(beams=4, n_best=3)), {**EMPTY, "text": text, "asked": (text, 1)}, "1.2.3.4")
    *partly, last = state.panels_so_far()
    assert len(partly) == len(parts) - 1 > 0
    assert all("of the text is still to come" in each for each in partly)
    assert "still to come" not in last
    assert state.best == batcher.translate_now([text], "en", "de", split="sentences").texts[0][0].text
