"""The page: models tried in a browser. A server mounts it at `/`, a Space of the Hub runs it.

It is a gradio page that asks nothing of any other machine: no analytics, no fonts or scripts from elsewhere. What it
shows of translations is made in views.py.

One function, `answer`, makes everything that is shown from everything that is set. It runs a quarter of a second after
the last key, one call after the other, the latest state last: what is shown is never older than what was shown before.
A text of more than LIVE characters is translated when it is asked for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hf_mlnmt.errors import UserError
from hf_mlnmt.generation.options import DecodingOptions
from hf_mlnmt.model_folder import CARD, fetch_small_files
from hf_mlnmt.reports.language_names import example, language_name
from hf_mlnmt.serving.batcher import Batcher, Overloaded, TimedOut
from hf_mlnmt.serving.models import ServedModels
from hf_mlnmt.serving.views import Attention, attention_map, attention_of, message, translation

if TYPE_CHECKING:
    import gradio

LIVE = 1_000  # characters that are translated as they are typed
LONGEST = 20_000  # characters of a text
MOST_BEAMS, MOST_TERMS, MOST_EXAMPLES = 10, 100, 6
BEAMS_OF_TERMS = 5  # unless they are chosen
SECONDS = 60.0  # for a translation
PENALTIES = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0, 1.2, 1.5, 2.0)
N_BEST, ATTENTION, DEFAULT = "Other translations", "Attention", "As the model says"
_HERE = Path(__file__).parent
# The last of the calls of a quarter of a second goes on, with what is set then; the others are never answered.
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


def page(models: ServedModels | Batcher | Sequence[str], examples: Sequence[str] | None = None) -> gradio.Blocks:
    """A gradio page for these models: `page(["folder"]).launch()`, or gradio.mount_gradio_app.

    Args:
        models: what a server has loaded, or folders and Hub names.
        examples: sentences to try; default: those of the models' cards (`widget:`), else one of the language.

    Raises: UserError without gradio (the extra `serve`); for a model that cannot be loaded.
    """
    try:
        import gradio
    except ImportError as error:
        raise UserError("the page needs gradio: pip install 'hf-mlnmt[serve]'.") from error
    if not isinstance(models, Batcher):
        models = Batcher(models if isinstance(models, ServedModels) else ServedModels(list(models)))
    return _build(gradio, models, examples)


def _build(gradio: Any, batcher: Batcher, examples: Sequence[str] | None) -> gradio.Blocks:
    served = batcher.models
    pairs = served.languages()
    source = next(iter(pairs), None)
    several = len({(one, other) for one, others in pairs.items() for other in others}) > 1
    choices = [(name, number) for number, name in enumerate(served.names)]
    known = {one.name for one in fields(DecodingOptions)}
    shown: dict[str, Any] = {"show_progress": "hidden", "api_visibility": "private"}
    with gradio.Blocks(title="Translation", analytics_enabled=False) as blocks:
        gradio.HTML(_head(served.names), apply_default_css=False, elem_classes="mlnmt")
        with gradio.Row(visible=several):
            from_ = gradio.Dropdown(_named(pairs), value=source, label="From", min_width=100)
            swap = gradio.Button("⇄ Swap", elem_id="swap", min_width=48)
            to = gradio.Dropdown(**_targets(pairs, source, None), label="To", min_width=100)
        with gradio.Row(visible=len(choices) > 1):
            first = gradio.Dropdown([("Any", -1), *choices], value=-1, label="Model", min_width=140)
            second = gradio.Dropdown([("None", -1), *choices], value=-1, label="Compare with", min_width=140)
        with gradio.Row(equal_height=False):
            with gradio.Column(min_width=280):
                text = gradio.Textbox(
                    label="Text",
                    placeholder="Type or paste a text",
                    lines=5,
                    max_lines=20,
                    max_length=LONGEST,
                    autofocus=True,
                    elem_id="source",
                )
                button = gradio.Button("Translate", variant="primary", size="md")
            with gradio.Column(min_width=280):
                out = gradio.HTML(_panels([]), apply_default_css=False, elem_id="out", elem_classes="mlnmt")
        samples = gradio.Dataset(
            components=[gradio.Textbox(visible=False)],
            samples=_samples(examples, served, source),
            label="Examples",
            type="values",
        )
        show = gradio.CheckboxGroup([N_BEST, ATTENTION], label="Show")
        with gradio.Row(visible=False) as places:
            layer = gradio.Dropdown([], label="Layer", min_width=140)
            head = gradio.Dropdown([], label="Head", min_width=140)
        maps = gradio.HTML(
            "", apply_default_css=False, elem_classes="mlnmt", js_on_load=(_HERE / "page.js").read_text("utf-8")
        )
        with gradio.Accordion("Terms and a beginning", open=False, visible=bool(known & {"terms", "target_prefix"})):
            beginning = gradio.Textbox(
                label="The translation begins with",
                max_length=LIVE,
                elem_id="beginning",
                visible="target_prefix" in known,
            )
            terms = gradio.Textbox(
                label="Terms",
                info="A line each: a word of the text = its translation, or several with | between them.",
                placeholder="kernel = Kern | Kernel",
                lines=3,
                max_length=LONGEST,
                elem_id="terms",
                visible="terms" in known,
            )
        with gradio.Accordion("Search", open=False):
            count = gradio.Slider(2, MOST_BEAMS, value=5, step=1, label="Translations in the list")
            numbers = [(str(number), number) for number in range(1, MOST_BEAMS + 1)]
            beams = gradio.Dropdown([(DEFAULT, 0), *numbers], value=0, label="Beams")
            exponents = [(str(exponent), str(exponent)) for exponent in PENALTIES]
            penalty = gradio.Dropdown(
                [(DEFAULT, ""), *exponents], value="", label="Length penalty", info="Larger: longer translations."
            )
        asked = gradio.State(("", 0))  # the text last asked for, and how often one was
        best = gradio.State("")  # the translation that is shown
        offered = gradio.State(((), ()))  # the layers and heads to choose from

        def answer(*values: Any) -> list[Any]:
            """The translations, the attention, the places to choose from, the best translation."""
            given = dict(zip(names, values, strict=True))
            page_ = _Answer(batcher, known, given)
            out_, maps_ = page_.panels(), page_.maps()
            layers, heads = page_.layers, page_.heads
            new = (layers, heads) != given["offered"] and bool(layers)
            return [
                gradio.skip() if out_ is None else out_,
                maps_,
                gradio.Row(visible=bool(layers)),
                gradio.Dropdown(choices=list(layers), value=page_.layer) if new else gradio.skip(),
                gradio.Dropdown(choices=list(heads), value=page_.head) if new else gradio.skip(),
                page_.best,
                (layers, heads) if new else given["offered"],
            ]

        inputs = {
            **{"text": text, "source": from_, "target": to, "first": first, "second": second, "show": show},
            **{"layer": layer, "head": head, "count": count, "beams": beams, "penalty": penalty},
            **{"beginning": beginning, "terms": terms, "asked": asked, "best": best, "offered": offered},
        }
        names = list(inputs)
        typed = [text, beginning, terms]  # whose `input` only a key of a keyboard raises: not a paste, no phone
        chosen = [to, first, second, show, layer, head, count, beams, penalty]
        gradio.on(
            [*(one.change for one in typed), *(one.input for one in chosen), asked.change],
            answer,
            list(inputs.values()),
            [out, maps, places, layer, head, best, offered],
            js=_DEBOUNCE,
            trigger_mode="always_last",
            concurrency_limit=None,
            **shown,
        ).then(None, js=_DONE, **shown)
        gradio.on([button.click, text.submit], _again, [text, asked], asked, **shown)
        samples.click(
            lambda values, asked: (values[0], _again(values[0], asked)), [samples, asked], [text, asked], **shown
        )

        def choose(source: str, target: str, text: str, asked: Any) -> list[Any]:
            """Another source language: its targets, its examples."""
            targets = gradio.Dropdown(**_targets(pairs, source, target))
            return [targets, gradio.Dataset(samples=_samples(examples, served, source)), _again(text, asked)]

        def turn(source: str, target: str, text: str, best: str, asked: Any) -> list[Any]:
            """The languages change places, and the translation becomes the text."""
            if source not in pairs.get(target, []):
                gradio.Info(f"No model translates from {language_name(target)} into {language_name(source)}.")
                return [gradio.skip()] * 5
            targets = gradio.Dropdown(**_targets(pairs, target, source))
            others = gradio.Dataset(samples=_samples(examples, served, target))
            return [target, targets, others, best or text, _again(best or text, asked)]

        from_.input(choose, [from_, to, text, asked], [to, samples, asked], **shown)
        swap.click(turn, [from_, to, text, best, asked], [from_, to, samples, text, asked], **shown)
    return blocks


def _again(text: str, asked: tuple[str, int]) -> tuple[str, int]:
    return text, asked[1] + 1


def _named(codes: Sequence[str] | Mapping[str, Any]) -> list[tuple[str, str]]:
    return [(language_name(code), code) for code in codes]


def _targets(pairs: Mapping[str, Sequence[str]], source: str | None, target: str | None) -> dict[str, Any]:
    """Choices and value of the target language, which stays if the source language has it."""
    codes = pairs.get(source or "", [])
    return {"choices": _named(codes), "value": target if target in codes else next(iter(codes), None)}


def _samples(examples: Sequence[str] | None, served: ServedModels, source: str | None) -> list[list[str]]:
    """Sentences to try: those given, those of the models' cards, or one of the language."""
    if examples is None:
        examples = [text for model in served.models for text in examples_of(model.pipeline.name)] or [example(source)]
    return [[text] for text in dict.fromkeys(examples)][:MOST_EXAMPLES]


def examples_of(name: str) -> list[str]:
    """The texts under `widget:` of a model's card."""
    from huggingface_hub.repocard import metadata_load
    from yaml import YAMLError

    try:
        card = metadata_load(fetch_small_files(name) / CARD) or {}
    except (OSError, ValueError, YAMLError, UserError):  # a model need not have a card, nor a right one
        return []
    widget = card.get("widget")
    texts = [one.get("text") for one in widget if isinstance(one, dict)] if isinstance(widget, list) else []
    return [text for text in texts if isinstance(text, str) and text.strip()]


def _head(names: Sequence[str]) -> str:
    return f"<style>{(_HERE / 'page.css').read_text('utf-8')}</style><h1>Translation</h1>{message(', '.join(names))}"


def _panels(articles: Sequence[str], note: str = "") -> str:
    inside = f'<div class="panels">{"".join(articles)}</div>' if articles else ""
    return f'<section aria-label="Translation" aria-live="polite">{note}{inside}</section>'


class _Answer:
    """What is shown for one state of the page."""

    def __init__(self, batcher: Batcher, known: set[str], given: Mapping[str, Any]):
        self.batcher, self.known, self.given = batcher, known, given
        self.text = str(given["text"] or "")[:LONGEST]
        self.source, self.target = given["source"], given["target"]
        self.names = batcher.models.names
        self.layers: tuple[Any, ...] = ()
        self.heads: tuple[Any, ...] = ()
        self.layer, self.head = str(given["layer"] or "0/0"), int(given["head"] or 0)
        self.best = ""
        self.chosen = [int(given["first"])] + ([int(given["second"])] if int(given["second"]) >= 0 else [])
        self.translated: list[tuple[int, str]] = []  # (number of the model, -1 for any; its translation)

    def panels(self) -> str | None:
        """The translations by the chosen models; None: what is there stays."""
        if not self.text.strip():
            return _panels([])
        if len(self.text) > LIVE and self.given["asked"][0] != self.text:
            return _panels([], message(f"A text of more than {LIVE:,} characters waits for the button Translate."))
        articles, beside = [], None
        for number in self.chosen:
            try:
                name, ranked, note = self._translate(number)
            except (UserError, Overloaded, TimedOut) as error:
                articles.append(f"<article>{message(_said(error), 'error')}</article>")
                continue
            self.translated.append((number, ranked[0].text))
            articles.append(translation(name, ranked, self.target, note, beside))
            beside = ranked[0].text
        self.best = self.translated[0][1] if self.translated else ""
        return _panels(articles)

    def _translate(self, number: int) -> tuple[str | None, Any, str]:
        options = self._options()
        result = self.batcher.translate_now(
            [self.text], self.source, self.target, model=self._name(number), timeout=SECONDS, **options
        )
        by = ", then ".join(result.models)
        note = f"Through {language_name(result.via)}." if result.via else ""
        return by if len(self.names) > 1 else None, result.texts[0], note

    def _name(self, number: int) -> str | None:
        return self.names[number] if number >= 0 else None

    def _options(self) -> dict[str, Any]:
        """The decoding options that are set. Raises: UserError for a line of the terms that is none."""
        given, options = self.given, dict[str, Any](split="sentences")
        beams = int(given["beams"])
        if N_BEST in given["show"]:
            options["num_return_sequences"] = min(int(given["count"]), MOST_BEAMS)
            beams = max(beams, options["num_return_sequences"]) if beams else 0
        if beams:
            options["num_beams"] = beams
        if given["penalty"]:
            options["length_penalty"] = float(given["penalty"])
        if "target_prefix" in self.known and (given["beginning"] or "").strip():
            options["target_prefix"] = given["beginning"]
        if "terms" in self.known and (given["terms"] or "").strip():
            options["terms"] = terms_of(given["terms"])
            if not beams:  # a greedy search has no place for them
                options["num_beams"] = max(BEAMS_OF_TERMS, options.get("num_return_sequences", 0))
        return options

    def maps(self) -> str:
        """The attention of the translations that are shown."""
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
        route = self.batcher.models.route(self.source, self.target, self._name(number))
        if len(route.legs) > 1:
            raise UserError("Two models translated one after the other: there is no one attention to show.")
        leg = route.legs[0]
        attention = attention_of(leg.pipeline.parts, self.text, text, leg.source, leg.target)
        layer, over = (int(part) for part in self.layer.split("/"))
        place = attention.nearest(layer, over, self.head)
        if not self.layers:  # two models may have different ones: those of the first are offered
            self.layers, self.heads = _places(attention)
            self.layer, self.head = f"{place.layer}/{place.encoder_layer}", place.head
        return attention_map(attention, place, leg.name if len(self.translated) > 1 else None)


def _places(attention: Attention) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """(label, value) of the layers and of the heads of a model."""
    layers = sorted({(place.layer, place.encoder_layer) for place in attention.weights})
    heads = sorted({place.head for place in attention.weights})
    named = ((f"{layer}, encoder layer {over}" if over else str(layer), f"{layer}/{over}") for layer, over in layers)
    return tuple(named), tuple((str(head) if head else "Mean of heads", head) for head in heads)


def terms_of(lines: str) -> dict[str, list[str]]:
    """{word: its translations} of lines `word = one | another`. Raises: UserError with the line that is none."""
    terms: dict[str, list[str]] = {}
    for number, line in enumerate(lines.splitlines(), start=1):
        if not line.strip():
            continue
        word, equal, rest = (part.strip() for part in line.partition("="))
        translations = [one.strip() for one in rest.split("|") if one.strip()]
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
        return f"This took longer than {SECONDS:g} seconds and was stopped. Try a shorter text or fewer beams."
    return str(error)
