"""The web page for trying models in a browser, which a server mounts at `/` and a Space of the Hub runs.

It is a gradio page that loads nothing from other machines: no analytics, fonts or scripts. The HTML of translations is
made in views.py.

The method `answer` computes everything that is shown from all settings. It is called a quarter of a second after the
last key, one call at a time and for the latest state last, so that no result is replaced by an older one. A text of
more than LIVE characters is translated at the button Translate. Limits, rate limit and log are the API's (api.py).
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from starlette.exceptions import HTTPException

from hf_mlnmt.common.errors import UserError
from hf_mlnmt.common.files import read_json
from hf_mlnmt.common.model_folder import CARD, RESULTS, fetch_small_files
from hf_mlnmt.data.placeholders import PATTERNS
from hf_mlnmt.data.words import is_unspaced
from hf_mlnmt.evaluation.results import inside
from hf_mlnmt.generation import (
    Alternative,
    DecodingOptions,
    Hypothesis,
    TranslationCall,
    check_characters,
    split_sentences,
)
from hf_mlnmt.generation.translating.detection import SURE, rank
from hf_mlnmt.generation.translating.segments import TextPiece, join
from hf_mlnmt.reports.facts import front_matter
from hf_mlnmt.reports.tables import example, language_name
from hf_mlnmt.serving.batcher import Batcher, Overloaded, TimedOut, Translations
from hf_mlnmt.serving.gate import Record, client_of, error_response
from hf_mlnmt.serving.models import ServedModel, ServedModels
from hf_mlnmt.serving.service import AUTO, MOST_TERMS, Api
from hf_mlnmt.serving.views import Attention, attention_map, attention_of, message, next_words, translation

if TYPE_CHECKING:
    import gradio

LIVE = 1_000  # characters up to which a text is translated while it is typed
MOST_BEAMS, MOST_EXAMPLES = 10, 6
BEAMS_OF_TERMS = 5  # beam size with terms or kept placeholders, unless the user chooses one
# Names of all settings and states of the page, in the order of their values in a request from the browser.
SET = ["text", "source", "target", "first", "second", "show", "layer", "head", "count", "beams"]
SET += ["beginning", "terms", "keep", "asked", "best", "offered", "begun"]
WORDS = 8  # most words that are offered to replace a word of the translation
N_BEST, ATTENTION, DEFAULT = "Other translations", "Attention", "As the model says"
EMPTY = "The translation appears here."
REFUSED = (UserError, Overloaded, TimedOut, HTTPException)
_HERE = Path(__file__).parent
# JavaScript that delays each call by 250 ms, and drops the call if another comes in that time.
_DEBOUNCE = """(...values) => new Promise((go) => {
  clearTimeout(window.mlnmtWaiting);
  window.mlnmtWaiting = setTimeout(() => {
    const out = document.querySelector("#out");
    out?.classList.add("busy"); out?.setAttribute("aria-busy", "true");
    go(values);
  }, 250);
})"""
_DONE = """() => {
  const out = document.querySelector("#out");
  out?.classList.remove("busy"); out?.removeAttribute("aria-busy");
}"""


def page(models: Api | Sequence[str]) -> gradio.Blocks:
    """Returns a gradio page for these models: `page(["folder"]).launch()`, or gradio.mount_gradio_app.

    models: folders and Hub names, or the Api of a server. Example sentences are those of the models' cards (`widget:`),
    else one sentence of the language.
    Raises: UserError without gradio (the extra `serve`); for a model that cannot be loaded.
    """
    try:
        import gradio
    except ImportError as error:
        raise UserError("the page needs gradio: pip install 'hf-mlnmt[serve]'.") from error
    return _Page(gradio, models if isinstance(models, Api) else Api(Batcher(ServedModels(list(models))))).blocks


class _Page:
    """Builds the page. Its methods add components to `set` {name: component}; `answer` gets their values by name."""

    def __init__(self, gradio: Any, api: Api) -> None:
        self.gradio, self.api = gradio, api
        self.served, self.pairs = api.batcher.models, api.batcher.models.languages()
        self.source = next(iter(self.pairs), None)
        self.directions = dict[str, str]()  # {example sentence: target language that is chosen with it}
        self.set: dict[str, Any] = dict.fromkeys(SET)
        with gradio.Blocks(title="Translation", analytics_enabled=False) as self.blocks:
            gradio.HTML(_head(self.served.models), apply_default_css=False, elem_classes="mlnmt")
            self._languages()
            self._models()
            self._texts()
            self._attention()
            self._terms()
            self._search()
            state = gradio.State
            self.set["asked"] = state(("", 0))  # the text when Translate was last pressed, and how often it was
            self.set["best"] = state("")  # the best translation that is shown
            self.set["offered"] = state(((), ()))  # the choices in the lists Layer and Head
            self.set["begun"] = state({})  # {"key": `_key` of the settings, sentence number: chosen beginning}
            self._connect()

    def _languages(self) -> None:
        several = len({(source, target) for source, targets in self.pairs.items() for target in targets}) > 1
        detected = [("Detect language", AUTO)] if len(self.pairs) > 1 else []
        choose, choices = self.gradio.Dropdown, [*_named(self.pairs), *detected]
        with self.gradio.Row(visible=several, elem_id="languages"):
            self.set["source"] = choose(choices, value=self.source, label="From", min_width=100)
            self.swap = self.gradio.Button("⇄ Swap", elem_id="swap", min_width=48)
            self.set["target"] = choose(**_targets(self.pairs, self.source, None), label="To", min_width=100)

    def _models(self) -> None:
        choices = [(name, number) for number, name in enumerate(self.served.names)]
        choose = partial(self.gradio.Dropdown, value=-1, min_width=140)
        with self.gradio.Row(visible=len(choices) > 1):
            self.set["first"] = choose([("Any", -1), *choices], label="Model")
            self.set["second"] = choose([("None", -1), *choices], label="Compare with")

    def _texts(self) -> None:
        gradio, most = self.gradio, self.api.limits.text_characters
        html = partial(gradio.HTML, apply_default_css=False, elem_classes="mlnmt")
        text: dict[str, Any] = {"label": "Text", "placeholder": "Type or paste a text", "elem_id": "source"}
        with gradio.Row(equal_height=False):
            with gradio.Column(min_width=280):
                self.set["text"] = gradio.Textbox(lines=5, max_lines=20, max_length=most, autofocus=True, **text)
                with gradio.Row():
                    self.button = gradio.Button("Translate", variant="primary", size="md", min_width=120)
                    self.clear = gradio.Button("Clear", size="md", min_width=80)
            with gradio.Column(min_width=280):
                self.out = html(_panels([], message(EMPTY)), elem_id="out")
                script = (_HERE / "words.js").read_text("utf-8")
                self.words = html("", elem_id="words", js_on_load=script)
        samples, hidden = self._samples(self.source), [gradio.Textbox(visible=False)]
        self.samples = gradio.Dataset(components=hidden, samples=samples, label="Examples", type="values")

    def _attention(self) -> None:
        self.set["show"] = self.gradio.CheckboxGroup([N_BEST, ATTENTION], label="Show")
        with self.gradio.Row(visible=False) as self.places:
            self.set["layer"] = self.gradio.Dropdown([], label="Layer", min_width=140)
            self.set["head"] = self.gradio.Dropdown([], label="Head", min_width=140)
        script = (_HERE / "page.js").read_text("utf-8")
        self.maps = self.gradio.HTML("", apply_default_css=False, elem_classes="mlnmt", js_on_load=script)

    def _terms(self) -> None:
        with self.gradio.Accordion("Terms and a beginning", open=False):
            label = "The translation begins with"
            self.set["beginning"] = self.gradio.Textbox(label=label, max_length=LIVE, elem_id="beginning")
            info = "A line each: a word of the text = its translation, or several with | between them."
            box = {"placeholder": "kernel = Kern | Kernel", "lines": 3, "max_length": self.api.limits.text_characters}
            self.set["terms"] = self.gradio.Textbox(label="Terms", info=info, elem_id="terms", **box)
            kinds = [(f"{kind.capitalize()}s", kind) for kind in PATTERNS]
            self.set["keep"] = self.gradio.CheckboxGroup(kinds, label="Kept as they are", elem_id="keep")

    def _search(self) -> None:
        limits = self.api.limits
        longest = max(2, min(MOST_BEAMS, limits.n_best))
        numbers = [(str(number), number) for number in range(1, min(MOST_BEAMS, limits.beams) + 1)]
        shown = {"value": min(5, longest), "step": 1, "label": "Translations in the list"}
        with self.gradio.Accordion("Search", open=False):
            self.set["count"] = self.gradio.Slider(2, longest, **shown)
            self.set["beams"] = self.gradio.Dropdown([(DEFAULT, 0), *numbers], value=0, label="Beams")

    def _connect(self) -> None:
        """Connects events of the components with the functions that handle them."""
        on, shown = self.gradio.on, {"show_progress": "hidden", "api_visibility": "private"}
        get = self.set
        text, asked, source, target = (get[name] for name in ("text", "asked", "source", "target"))

        def answer(request: Any, *values: Any) -> Iterator[list[Any]]:
            yield from self.answer(request, dict(zip(get, values, strict=True)))

        def offer(event: Any, request: Any, *values: Any) -> str:
            return self.offer(event.at, request, dict(zip(get, values, strict=True)))

        def take(event: Any, *values: Any) -> dict[Any, Any]:
            given = dict(zip(get, values, strict=True))
            before = given["begun"] if given["begun"].get("key") == _key(given) else {}
            return {**before, "key": _key(given), int(event.sentence): str(event.begins)}

        for function in (answer, offer, take):  # gradio passes arguments by their annotations
            function.__annotations__ |= {"request": self.gradio.Request, "event": self.gradio.EventData}
        typed = [text, get["beginning"], get["terms"]]  # event `change`: pasting raises no `input`
        chosen = ["target", "first", "second", "show", "layer", "head", "count", "beams", "keep"]
        on(
            [*(box.change for box in typed), *(get[name].input for name in chosen), asked.change, get["begun"].change],
            answer,
            list(get.values()),
            [self.out, self.maps, self.places, get["layer"], get["head"], get["best"], get["offered"]],
            js=_DEBOUNCE,
            trigger_mode="always_last",
            concurrency_limit=None,
            **shown,
        ).then(None, js=_DONE, **shown)
        self.words.select(offer, list(get.values()), self.words, trigger_mode="always_last", **shown)
        self.words.submit(take, list(get.values()), get["begun"], **shown)
        self.out.change(lambda: "", None, self.words, **shown)
        self.clear.click(None, None, text, js="() => ''", **shown)
        on([self.button.click, text.submit], _again, [text, asked], asked, **shown)
        self.samples.click(
            lambda sample, target, asked: (sample[0], self.directions.get(sample[0], target), _again(sample[0], asked)),
            [self.samples, target, asked],
            [text, target, asked],
            **shown,
        )
        target.change(None, None, [get["beginning"], get["terms"]], js="() => ['', '']", **shown)
        source.input(self.choose, [source, target, text, asked], [target, self.samples, asked], **shown)
        turned = [source, target, self.samples, text, asked]
        self.swap.click(self.turn, [source, target, text, get["best"], asked], turned, **shown)

    def answer(self, request: Any, given: Mapping[str, Any]) -> Iterator[list[Any]]:
        """Translates the text; yields lists of new values of the page's outputs, in the order in `_connect`: HTML of
        translations and of attention maps, whether layers and heads are shown, their choices, the best translation,
        the choices as a state. For a long text a list comes after each part, with the HTML so far alone."""
        gradio, skip = self.gradio, self.gradio.skip
        state = _Answer(self.api, given, request.client.host if request and request.client else "")
        panels = ""
        for panels in state.panels_so_far():
            yield [panels, *[skip()] * 6]
        maps = state.maps()
        offered = state.layers, state.heads
        new = offered != given["offered"] and bool(state.layers)
        yield [
            panels,
            maps,
            gradio.Row(visible=bool(state.layers)),
            gradio.Dropdown(choices=list(state.layers), value=state.layer) if new else skip(),
            gradio.Dropdown(choices=list(state.heads), value=state.head) if new else skip(),
            state.best,
            offered if new else given["offered"],
        ]

    def offer(self, at: int, request: Any, given: Mapping[str, Any]) -> str:
        """Returns the HTML list of words that can replace the word at offset `at` of the translation."""
        return _Answer(self.api, given, request.client.host if request and request.client else "").offer(int(at))

    def choose(self, source: str, target: str, text: str, asked: Any) -> list[Any]:
        """Returns updates for a new source language: targets, examples, and `asked` as if Translate was pressed."""
        targets = self.gradio.Dropdown(**_targets(self.pairs, source, target))
        return [targets, self.gradio.Dataset(samples=self._samples(source)), _again(text, asked)]

    def turn(self, source: str, target: str, text: str, best: str, asked: Any) -> list[Any]:
        """Returns updates that swap source and target language, with the translation as the new text; changes nothing
        where no model translates that direction."""
        if source == AUTO or source not in self.pairs.get(target, []):
            none = f"No model translates from {language_name(target)} into {language_name(source)}."
            self.gradio.Info("Choose the language of the text first." if source == AUTO else none)
            return [self.gradio.skip()] * 5
        text = best or text
        targets, samples, asked = self.choose(target, source, text, asked)
        return [target, targets, samples, text, asked]

    def _samples(self, source: str | None) -> list[list[str]]:
        """Returns example sentences of a source language: those of the models' cards, else one of our own."""
        cards = []
        for model in self.served.models:
            sources = list(dict.fromkeys(pair[0] for pair in model.pairs))
            for text in examples_of(model.pipeline.name):
                code = next(iter(re.findall(r"^<2([^>\s]+)> ", text)), "")  # the target code in a prefix <2de>
                text = text[len(code) + 4 if code else 0 :]
                if source != AUTO and source != (rank(text, sources)[0].language if len(sources) > 1 else sources[0]):
                    continue
                targets = {pair[1] for pair in model.pairs if source in (pair[0], AUTO)}
                if code in targets or len(targets) == 1:
                    self.directions[text] = code if code in targets else next(iter(targets))
                cards.append(text)
        texts = cards or [example(self.source if source == AUTO else source)]
        return [[text] for text in dict.fromkeys(texts)][:MOST_EXAMPLES]


def _key(given: Mapping[str, Any]) -> tuple[Any, ...]:
    """Returns the settings for which chosen words are valid: after a change of one, the words are dropped."""
    return given["text"], given["source"], given["target"], given["first"]


def _again(text: str, asked: tuple[str, int]) -> tuple[str, int]:
    return text, asked[1] + 1


def _named(codes: Sequence[str] | Mapping[str, Any]) -> list[tuple[str, str]]:
    return [(language_name(code), code) for code in codes]


def _targets(pairs: Mapping[str, Sequence[str]], source: str | None, target: str | None) -> dict[str, Any]:
    """Returns choices and value of the list of target languages; `target` stays if the source has it."""
    every = list(dict.fromkeys(code for codes in pairs.values() for code in codes))
    codes = every if source == AUTO else pairs.get(source or "", [])
    return {"choices": _named(codes), "value": target if target in codes else next(iter(codes), None)}


def examples_of(name: str) -> list[str]:
    """Returns the example texts under `widget:` in the front matter of a model's card; [] without a card."""
    try:
        widget = front_matter(fetch_small_files(name) / CARD).get("widget")
    except (OSError, UserError):  # the model has no card, or none that can be read
        return []
    texts = [item.get("text") for item in widget if isinstance(item, dict)] if isinstance(widget, list) else []
    return [text for text in texts if isinstance(text, str) and text.strip()]


def _head(models: Sequence[ServedModel]) -> str:
    """Returns the HTML of the title, with style sheet and the purpose of each model."""
    style = (_HERE / "page.css").read_text("utf-8")
    return f"<style>{style}</style><h1>Translation</h1>{''.join(message(purpose_of(model)) for model in models)}"


def purpose_of(model: ServedModel) -> str:
    """Returns a sentence with a model's name and languages and, if known, its domain, training data and licence."""
    languages = [list(dict.fromkeys(language_name(pair[side]) for pair in model.pairs)) for side in (0, 1)]
    sources, targets = (", ".join(names) if len(names) < 6 else f"{len(names)} languages" for names in languages)
    try:
        results = fetch_small_files(model.pipeline.name) / RESULTS
        said = read_json(results) if results.is_file() else {}
    except (OSError, UserError):  # without results.json the sentence does not name the training data
        said = {}
    name, licence = map(inside(said, "data").get, ("name", "licence"))
    domain = inside(said, "recipe", "data").get("domain")
    about = f" For {domain}, and nothing else: other text may come out as nonsense." if domain else ""
    if name:
        about += " Trained on" if domain else " Made for text like that which it was trained on:"
        about += f" {name}{f' (data under {licence})' if licence else ''}."
    return f"{model.name}: {sources} into {targets}.{about}"


def _panels(articles: Sequence[str], note: str = "") -> str:
    inside = f'<div class="panels">{"".join(articles)}</div>' if articles else ""
    return f'<section aria-label="Translation" aria-live="polite">{note}{inside}</section>'


class _Answer:
    """Computes the page's outputs for one state of its settings."""

    def __init__(self, api: Api, given: Mapping[str, Any], address: str):
        self.api, self.models, self.given = api, api.batcher.models, given
        self.client, self.text = client_of({"client": (address, 0)}), str(given["text"] or "")
        self.source, self.target = given["source"], given["target"]
        self.names = self.models.names
        self.layers: tuple[Any, ...] = ()
        self.heads: tuple[Any, ...] = ()
        self.layer, self.head = str(given["layer"] or "0/0"), int(given["head"] or 0)
        self.best = ""
        self.chosen = [int(given["first"])] + ([int(given["second"])] if int(given["second"]) >= 0 else [])
        self.translated: list[tuple[int, str]] = []  # (model's number or -1 for any, translation)

    def panels_so_far(self) -> Iterator[str]:
        """Yields the HTML of the translations by the chosen models: of a long text part by part, at last the whole."""
        if not self.text.strip():
            yield _panels([], message(EMPTY))
            return
        if len(self.text) > LIVE and self.given["asked"][0] != self.text:
            yield _panels([], message(f"A text of more than {LIVE:,} characters waits for the button Translate."))
            return
        articles, beside, detected, asked = list[Any](), None, "", list[Any]()
        for number in self.chosen:
            try:
                with self._counted() as record:
                    detected = detected or self._detect()
                    for step in self._translate(number):
                        name, ranked, note, models, left = step
                        if left:
                            done = translation(name, ranked, self.target, f"{left} is still to come.", beside)
                            yield _panels([*articles, done], detected)
                    record.said |= {"pair": f"{self.source}-{self.target}", "models": models}
            except REFUSED as error:
                articles.append(f"<article>{message(_said(error), 'error')}</article>")
                continue
            if models in asked:
                articles.append(f"<article>{message(f'{name} is on both sides: choose another model.')}</article>")
                continue
            asked.append(models)
            self.translated.append((number, ranked[0].text))
            articles.append(translation(name, ranked, self.target, note, beside))
            beside = ranked[0].text
        self.best = self.translated[0][1] if self.translated else ""
        yield _panels(articles, detected)

    @contextmanager
    def _counted(self) -> Iterator[Record]:
        """Context manager that counts, checks and logs its body as a request; raises the errors of REFUSED."""
        record = Record("POST", "/")
        try:
            self.api.check_ending()
            self.api.count(self.client.encode())
            self.api.check([self.text], record)
            check_characters(self.text, "text")
            yield record
            record.status = 200
        except REFUSED as error:
            record.status = error_response(error).status_code
            raise
        finally:
            self.api.log.write(record, self.client)

    def offer(self, at: int) -> str:
        """Returns the HTML list of words to replace the word at offset `at` of the first translation, or a message."""
        try:
            with self._counted() as record:
                self._detect()
                listed, record.said["models"] = self._offer(at)
                return listed
        except REFUSED as error:
            return message(_said(error), "error")

    def _offer(self, at: int) -> tuple[str, list[str]]:
        legs = self.models.route(self.source, self.target, self._name(self.chosen[0])).legs
        if len(legs) > 1:
            raise UserError("Two models translate one after the other: other words can be chosen where one does.")
        options = {**self._options(), "num_return_sequences": None}
        codes: dict[str, Any] = {"source_language": legs[0].source, "target_language": legs[0].target}
        (text,) = TranslationCall(legs[0].pipeline, DecodingOptions(split="sentences", **codes)).cut([self.text], 1)
        begun = options.pop("target_prefix", "")
        begun = (begun,) if isinstance(begun, str) else begun[0]
        sources = [piece.text for piece in text.pieces]
        begun = [*begun, *[""] * len(sources)][: len(sources)]
        ask: Any = partial(self._ask, self.chosen[0], **options)
        translated = [best[0].text for best in ask(sources, target_prefix=begun).texts]
        starts = [len(join([*translated[:i], ""], text.pieces[: i + 1])) for i in range(len(sources))]
        sentence = max((i for i, start in enumerate(starts) if start <= at), default=0)
        prefix, rest = translated[sentence][: at - starts[sentence]], translated[sentence][at - starts[sentence] :]
        asked = {"target_prefix": prefix, "alternatives": min(WORDS, self.api.limits.n_best)}
        done = ask([sources[sentence]], **asked)
        offered = []
        for best in (best for best in done.texts[0] if isinstance(best, Alternative) and best.word):
            begins = f"{prefix}{best.word}"
            goes_on = best.text[len(begins) : len(begins) + 1].isspace()  # whether a space follows the word
            offered.append((best, sentence, f"{begins} " if goes_on else begins))
        return next_words(rest[:1] if is_unspaced(rest) else rest.split()[0] if rest else "", offered), done.models

    def _ask(self, number: int, texts: Sequence[str], **options: Any) -> Translations:
        """Translates texts by the model of this number; -1: by any model that has the pair."""
        options = {"timeout": self.api.limits.seconds, **options}
        return self.api.batcher.translate_now(texts, self.source, self.target, model=self._name(number), **options)

    def _detect(self) -> str:
        """Detects the source language if it is not chosen, sets it, and returns a message (HTML) about it."""
        if self.source != AUTO:
            return ""
        (found,) = self.api.detect([self.text])
        self.source = found.taken_as or found.language
        if found.taken_as:
            read = f"which no model reads; it is taken for {language_name(found.taken_as)}"
            return message(f"Detected: {language_name(found.language)}, {found.confidence:g} %, {read}.")
        said = "Detected" if found.confidence >= SURE else "The language is not sure, it is taken to be"
        return message(f"{said}: {language_name(found.language)}, {found.confidence:g} %.")

    def _translate(self, number: int) -> Iterator[tuple[str | None, Any, str, list[str], str]]:
        """Translates the text, a long one part by part; yields (model, hypotheses, note, models, share of the text that
        is left, "" at last) after each part."""
        if self.source == self.target:
            yield None, [Hypothesis(self.text, 0.0, 0.0, 0)], "This is the language of the text.", [], ""
            return
        options, until = self._options(), time.monotonic() + self.api.limits.seconds
        whole = len(self.text) <= LIVE or options.keys() & {"num_return_sequences", "target_prefix"}
        parts = [TextPiece(self.text, "")] if whole else _parts(self.text)
        done, warnings = list[str](), dict[str, None]()
        for part in parts:
            result = self._ask(number, [part.text], **options, timeout=max(0.0, until - time.monotonic()))
            ranked = result.texts[0]
            done.append(ranked[0].text)
            warnings.update(dict.fromkeys(ranked[0].warnings))
            if not whole:
                ranked = [Hypothesis(join(done, parts[: len(done)]), 0.0, 0.0, 0, warnings=tuple(warnings))]
            by = ", then ".join(result.models) if len(self.names) > 1 else None
            note = f"Through {language_name(result.via)}." if result.via else ""
            share = 1 - len(done) / len(parts)
            yield by, ranked, note, result.models, f"{share:.0%} of the text" if share else ""

    def _name(self, number: int) -> str | None:
        return self.names[number] if number >= 0 else None

    def _options(self) -> dict[str, Any]:
        """Returns the decoding options of the settings. Raises: UserError for a bad line of terms, too many beams."""
        given, options = self.given, dict[str, Any](split="sentences")
        limits, beams = self.api.limits, int(given["beams"])
        if N_BEST in given["show"]:
            options["num_return_sequences"] = min(int(given["count"]), limits.n_best, limits.beams)
            beams = max(beams, options["num_return_sequences"]) if beams else 0
        if beams > limits.beams:
            raise UserError(f"beams: {beams}; the limit (beams) is {limits.beams}.")
        if beams:
            options["num_beams"] = beams
        begun = dict(given["begun"]) if given["begun"].get("key") == _key(given) else {}
        numbers = sorted(begun.keys() - {"key"})
        if (given["beginning"] or "").strip():
            options["target_prefix"] = given["beginning"]
        if numbers:
            begun = {0: options.get("target_prefix", ""), **begun}
            options["target_prefix"] = [tuple(begun.get(number, "") for number in range(numbers[-1] + 1))]
        if (given["terms"] or "").strip():
            options["terms"] = terms_of(given["terms"])
        if given["keep"]:
            options["keep"] = given["keep"]
        if options.keys() & {"terms", "keep"} and not beams:  # terms and placeholders need beam search
            options["num_beams"] = max(min(BEAMS_OF_TERMS, limits.beams), options.get("num_return_sequences", 0))
        return options

    def maps(self) -> str:
        """Returns the HTML of the attention maps of the translations; "" unless the user has ticked Attention."""
        if ATTENTION not in self.given["show"]:
            return ""
        shown = []
        for number, text in self.translated:
            try:
                shown.append(self._map(number, text))
            except UserError as error:
                shown.append(message(str(error)))
        return f'<div class="panels">{"".join(shown)}</div>'

    def _map(self, number: int, text: str) -> str:
        route = self.models.route(self.source, self.target, self._name(number))
        if len(route.legs) > 1:
            raise UserError("Two models translated one after the other: there is no one attention to show.")
        leg = route.legs[0]
        attention = attention_of(leg.pipeline.parts, self.text, text, leg.source, leg.target)
        layer, over = (int(part) for part in self.layer.split("/"))
        place = attention.nearest(layer, over, self.head)
        if not self.layers:  # with two models the lists show the layers and heads of the first
            self.layers, self.heads = _places(attention)
            self.layer, self.head = f"{place.layer}/{place.encoder_layer}", place.head
        return attention_map(attention, place, leg.name if len(self.translated) > 1 else None)


def _parts(text: str) -> list[TextPiece]:
    """Cuts a text into parts of whole sentences, each of at most LIVE characters unless a sentence alone is longer."""
    parts: list[TextPiece] = []
    for piece in split_sentences(text):
        if parts and len(parts[-1].text) + len(parts[-1].space) + len(piece.text) <= LIVE:
            piece = TextPiece(f"{parts[-1].text}{parts.pop().space}{piece.text}", piece.space)
        parts.append(piece)
    return parts


def _places(attention: Attention) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Returns the choices (label, value) of layers, and those of heads, for a model's attention."""
    layers = sorted({(place.layer, place.encoder_layer) for place in attention.weights})
    heads = sorted({place.head for place in attention.weights})
    named = ((f"{layer}, encoder layer {over}" if over else str(layer), f"{layer}/{over}") for layer, over in layers)
    return tuple(named), tuple((str(head) if head else "Mean of heads", head) for head in heads)


def terms_of(lines: str) -> dict[str, list[str]]:
    """Reads {word: its translations} from lines `word = first | second`. Raises: UserError for any other line, and for
    more than MOST_TERMS words."""
    terms: dict[str, list[str]] = {}
    for number, line in enumerate(lines.splitlines(), start=1):
        if not line.strip():
            continue
        word, equal, rest = (part.strip() for part in line.partition("="))
        translations = [part.strip() for part in rest.split("|") if part.strip()]
        if not (word and equal and translations):
            raise UserError(f"terms, line {number}: expected a word = its translation, not {line.strip()!r}.")
        terms.setdefault(word, []).extend(translations)
    if len(terms) > MOST_TERMS:
        raise UserError(f"terms: {len(terms)} lines; at most {MOST_TERMS} can be asked for.")
    return terms


def _said(error: Exception) -> str:
    if isinstance(error, Overloaded):
        return "The server has too much to do at the moment. Try again soon."
    if isinstance(error, TimedOut):
        return f"{error}. The work was stopped: try a shorter text or fewer beams."
    said = str(error.detail) if isinstance(error, HTTPException) else str(error)
    return re.sub("^target_prefix( of line 1)?", "The translation begins with", said)
