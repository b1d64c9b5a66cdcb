"""The page, on which models are tried in a browser. A server mounts it at `/`, a Space of the Hub runs it.

It is made of gradio's components and asks nothing of any other machine. `answer` makes everything that is shown from
everything that is set, a quarter of a second after the last key; limits, the count of requests and the log are those of
the API (service.py).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

from starlette.exceptions import HTTPException

from hf_mlnmt.common.errors import UserError
from hf_mlnmt.common.files import read_json
from hf_mlnmt.common.model_folder import CARD, RESULTS, fetch_small_files
from hf_mlnmt.data.placeholders import PATTERNS
from hf_mlnmt.generation import check_characters, detection
from hf_mlnmt.reports.facts import front_matter, inside
from hf_mlnmt.reports.tables import example, language_name
from hf_mlnmt.serving.batcher import Batcher, Overloaded, TimedOut
from hf_mlnmt.serving.gate import Record, client_of, error_response
from hf_mlnmt.serving.models import ServedModel, ServedModels
from hf_mlnmt.serving.service import AUTO, MOST_TERMS, Api

if TYPE_CHECKING:
    import gradio

LIVE = 1_000  # characters that are translated as they are typed
MOST_BEAMS, MOST_EXAMPLES = 10, 6
BEAMS_OF_TERMS = 5  # unless they are chosen
PENALTIES = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0, 1.2, 1.5, 2.0)
DEFAULT = "As the model says"
REFUSED = (UserError, Overloaded, TimedOut, HTTPException)
# Directions follow the text, and the button can be read.
_STYLE = """<style>footer { display: none !important }
textarea, input { unicode-bidi: plaintext; text-align: start }
.gradio-container button.primary { background: #c2410c; color: #fff }</style>"""
# The last of the calls of a quarter of a second goes on, with what is set then; the others are never answered.
_DEBOUNCE = """(...values) => new Promise((go) => {
  clearTimeout(window.mlnmtWaiting);
  window.mlnmtWaiting = setTimeout(() => go(values), 250);
})"""


def page(models: Api | Sequence[str]) -> gradio.Blocks:
    """Returns a gradio page for these models: `page(["folder"]).launch()`, or gradio.mount_gradio_app.

    models: folders and Hub names, or what a server has loaded. Sentences to try are those of the models' cards
    (`widget:`), else one of the language.
    Raises: UserError without gradio (the extra `serve`); for a model that cannot be loaded.
    """
    try:
        import gradio
    except ImportError as error:
        raise UserError("the page needs gradio: pip install 'hf-mlnmt[serve]'.") from error
    return _Page(gradio, models if isinstance(models, Api) else Api(Batcher(ServedModels(list(models))))).blocks


class _Page:
    """The components; `set` has those that `answer` gets, by their names there."""

    def __init__(self, gradio: Any, api: Api) -> None:
        self.gradio, self.api = gradio, api
        self.served, self.pairs = api.batcher.models, api.batcher.models.languages()
        self.source = next(iter(self.pairs), None)
        self.set: dict[str, Any] = {}
        with gradio.Blocks(title="Translation", analytics_enabled=False) as self.blocks:
            purposes = "".join(f"<p>{escape(purpose_of(model))}</p>" for model in self.served.models)
            gradio.HTML(f"{_STYLE}<h1>Translation</h1>{purposes}")
            self._languages()
            self._texts()
            self._terms()
            self._search()
            self._connect()

    def _languages(self) -> None:
        choose, several = self.gradio.Dropdown, sum(map(len, self.pairs.values())) > 1
        detected = [("Detect language", AUTO)] if len(self.pairs) > 1 else []
        models = [("Any", -1), *((name, number) for number, name in enumerate(self.served.names))]
        with self.gradio.Row(visible=several):
            self.set["source"] = choose([*_named(self.pairs), *detected], value=self.source, label="From")
            self.swap = self.gradio.Button("⇄ Swap", min_width=48)
            self.set["target"] = choose(**_targets(self.pairs, self.source, None), label="To")
            self.set["model"] = choose(models, value=-1, label="Model", visible=len(models) > 2)

    def _texts(self) -> None:
        gradio, most = self.gradio, self.api.limits.text_characters
        with gradio.Row(equal_height=False):
            with gradio.Column(min_width=280):
                told = {"label": "Text", "placeholder": "Type or paste a text", "elem_id": "source"}
                self.set["text"] = gradio.Textbox(lines=5, max_lines=20, max_length=most, autofocus=True, **told)
                with gradio.Row():
                    self.button = gradio.Button("Translate", variant="primary", size="md")
                    self.clear = gradio.Button("Clear", size="md")
            with gradio.Column(min_width=280):
                self.out = gradio.Textbox(lines=5, max_lines=20, label="Translation", elem_id="out", buttons=["copy"])
                self.note = gradio.HTML("", elem_id="note")
        self.ranked = gradio.Dataframe(headers=["translation", "score"], visible=False, elem_id="ranked", wrap=True)
        hidden, samples = [gradio.Textbox(visible=False)], self._samples(self.source)
        self.samples = gradio.Dataset(components=hidden, samples=samples, label="Examples", type="values")
        self.set["asked"] = gradio.State(("", 0))  # the text last asked for by the button, and how often one was

    def _terms(self) -> None:
        with self.gradio.Accordion("Terms and a beginning", open=False):
            label = "The translation begins with"
            self.set["beginning"] = self.gradio.Textbox(label=label, max_length=LIVE, elem_id="beginning")
            self.set["terms"] = self.gradio.Textbox(
                label="Terms",
                info="A line each: a word of the text = its translation, or several with | between them.",
                placeholder="kernel = Kern | Kernel",
                lines=3,
                max_length=self.api.limits.text_characters,
                elem_id="terms",
            )
            kinds = [(f"{kind.capitalize()}s", kind) for kind in PATTERNS]
            self.set["keep"] = self.gradio.CheckboxGroup(kinds, label="Kept as they are", elem_id="keep")

    def _search(self) -> None:
        limits, choose = self.api.limits, self.gradio.Dropdown
        numbers = [(str(number), number) for number in range(1, min(MOST_BEAMS, limits.beams) + 1)]
        exponents = [(DEFAULT, ""), *((str(exponent), str(exponent)) for exponent in PENALTIES)]
        with self.gradio.Accordion("Search", open=False):
            label, most = "Translations, the best first", max(2, min(MOST_BEAMS, limits.n_best, limits.beams))
            self.set["count"] = self.gradio.Slider(1, most, value=1, step=1, label=label)
            self.set["beams"] = choose([(DEFAULT, 0), *numbers], value=0, label="Beams")
            info = "Larger: longer translations."
            self.set["penalty"] = choose(exponents, value="", label="Length penalty", info=info)

    def _connect(self) -> None:
        """Says what happens when something is set."""
        on, shown = self.gradio.on, {"show_progress": "hidden", "api_visibility": "private"}
        get = self.set
        text, asked, source, target = (get[name] for name in ("text", "asked", "source", "target"))

        async def answer(request: Any, *values: Any) -> list[Any]:
            client = request.client.host if request and request.client else ""
            return await self.answer(client, dict(zip(get, values, strict=True)))

        answer.__annotations__["request"] = self.gradio.Request  # by which gradio knows what is to be given
        typed = [text, get["beginning"], get["terms"]]  # whose `input` only a key raises: not a paste, no phone
        chosen = [get[name].input for name in ("target", "model", "count", "beams", "penalty", "keep")]
        on(
            [*(box.change for box in typed), *chosen, asked.change],
            answer,
            list(get.values()),
            [self.out, self.note, self.ranked],
            js=_DEBOUNCE,
            trigger_mode="always_last",
            concurrency_limit=None,
            **shown,
        )
        self.clear.click(None, None, text, js="() => ''", **shown)
        on([self.button.click, text.submit], _again, [text, asked], asked, **shown)
        self.samples.click(
            lambda sample, asked: (sample[0], _again(sample[0], asked)), [self.samples, asked], [text, asked], **shown
        )
        source.input(self.choose, [source, target, text, asked], [target, self.samples, asked], **shown)
        turned = [source, target, self.samples, text, asked]
        self.swap.click(self.turn, [source, target, text, self.out, asked], turned, **shown)

    async def answer(self, address: str, given: Mapping[str, Any]) -> list[Any]:
        """Returns the best translation, a note, and the list of the best ones, for all that is set."""
        text, nothing = str(given["text"] or ""), self.gradio.Dataframe(visible=False)
        if not text.strip():
            return ["", "", nothing]
        if len(text) > LIVE and given["asked"][0] != text:
            return ["", f"A text of more than {LIVE:,} characters waits for the button Translate.", nothing]
        client, record = client_of({"client": (address, 0)}), Record("POST", "/")
        try:
            ranked, note = await self._translated(text, given, client, record)
            record.status = 200
        except REFUSED as error:
            record.status = error_response(error).status_code
            return ["", f'<p role="alert">{escape(_said(error))}</p>', nothing]
        finally:
            self.api.log.write(record, client)
        rows = [[hypothesis.text, f"{hypothesis.score:.3f}"] for hypothesis in ranked]
        listed = self.gradio.Dataframe(value=rows, visible=True) if len(rows) > 1 else nothing
        return [ranked[0].text, escape(note), listed]

    async def _translated(
        self, text: str, given: Mapping[str, Any], client: str, record: Record
    ) -> tuple[list[Any], str]:
        """Returns the translations of a text, the best first, and what there is to say of them."""
        api, notes = self.api, []
        api.check_ending()
        api.count(client.encode())
        api.check([text], record)
        check_characters(text, "text")
        async with api.within("seconds"):
            sources, detected = await api.languages_of([text], given["source"])
            name = self.served.names[given["model"]] if given["model"] >= 0 else None
            options = options_of(given, api)
            done = await api.translate(record, [text], sources, given["target"], model=name, **options)
        for found in detected or ():
            sure = "Detected" if found.confidence >= detection.SURE else "The language is not sure, it is taken to be"
            taken = f"; no model reads it, it is taken for {language_name(found.taken_as)}" if found.taken_as else ""
            notes.append(f"{sure}: {language_name(found.language)}, {found.confidence:g} %{taken}.")
        notes += [f"Through {language_name(done.via)}."] if done.via else []
        notes += ["The translation reached the length limit and is cut there."] * (not done.texts[0][0].finished)
        return done.texts[0], " ".join(notes)

    def choose(self, source: str, target: str, text: str, asked: Any) -> list[Any]:
        """Returns another source language's targets and examples."""
        targets = self.gradio.Dropdown(**_targets(self.pairs, source, target))
        return [targets, self.gradio.Dataset(samples=self._samples(source)), _again(text, asked)]

    def turn(self, source: str, target: str, text: str, best: str, asked: Any) -> list[Any]:
        """Lets the languages change places; the translation becomes the text."""
        if source == AUTO or source not in self.pairs.get(target, []):
            none = f"No model translates from {language_name(target)} into {language_name(source)}."
            self.gradio.Info("Choose the language of the text first." if source == AUTO else none)
            return [self.gradio.skip()] * 5
        text = best or text
        targets, samples, asked = self.choose(target, source, text, asked)
        return [target, targets, samples, text, asked]

    def _samples(self, source: str | None) -> list[list[str]]:
        """Returns sentences to try: those of the models' cards, or one of the language."""
        cards = []
        for model in self.served.models:
            sources = list(dict.fromkeys(pair[0] for pair in model.pairs))
            for text in examples_of(model.pipeline.name):
                text = re.sub(r"^<2[^>\s]+> ", "", text)  # what the model reads, and no reader
                known = detection.rank(text, sources)[0].language if len(sources) > 1 else sources[0]
                cards += [text] if source in (AUTO, known) else []
        texts = cards or [example(self.source if source == AUTO else source)]
        return [[text] for text in dict.fromkeys(texts)][:MOST_EXAMPLES]


def _again(text: str, asked: tuple[str, int]) -> tuple[str, int]:
    return text, asked[1] + 1


def _named(codes: Sequence[str] | Mapping[str, Any]) -> list[tuple[str, str]]:
    return [(language_name(code), code) for code in codes]


def _targets(pairs: Mapping[str, Sequence[str]], source: str | None, target: str | None) -> dict[str, Any]:
    """Returns choices and value of the target language, which stays if the source language has it."""
    every = list(dict.fromkeys(code for codes in pairs.values() for code in codes))
    codes = every if source == AUTO else pairs.get(source or "", [])
    return {"choices": _named(codes), "value": target if target in codes else next(iter(codes), None)}


def examples_of(name: str) -> list[str]:
    """Returns the texts under `widget:` of a model's card."""
    try:
        widget = front_matter(fetch_small_files(name) / CARD).get("widget")
    except (OSError, UserError):  # a model need not have a card
        return []
    texts = [item.get("text") for item in widget if isinstance(item, dict)] if isinstance(widget, list) else []
    return [text for text in texts if isinstance(text, str) and text.strip()]


def purpose_of(model: ServedModel) -> str:
    """Returns the name of a model, what it translates, and, as far as is known, which texts it is for."""
    languages = [list(dict.fromkeys(language_name(pair[side]) for pair in model.pairs)) for side in (0, 1)]
    sources, targets = (", ".join(names) if len(names) < 6 else f"{len(names)} languages" for names in languages)
    try:
        results = fetch_small_files(model.pipeline.name) / RESULTS
        said = read_json(results) if results.is_file() else {}
    except (OSError, UserError):  # what a model was trained on need not be known
        said = {}
    name, licence = map(inside(said, "data").get, ("name", "licence"))
    domain = inside(said, "recipe", "data").get("domain")
    about = f" For {domain}, and nothing else: other text may come out as nonsense." if domain else ""
    if name:
        about += " Trained on" if domain else " Made for text like that which it was trained on:"
        about += f" {name}{f' (data under {licence})' if licence else ''}."
    return f"{model.name}: {sources} into {targets}.{about}"


def options_of(given: Mapping[str, Any], api: Api) -> dict[str, Any]:
    """Returns the decoding options that are set. Raises: UserError for a line of the terms that is none."""
    options, limits, beams = dict[str, Any](split="sentences"), api.limits, int(given["beams"])
    if (count := int(given["count"])) > 1:
        options["num_return_sequences"] = min(count, limits.n_best, limits.beams)
        beams = max(beams, options["num_return_sequences"]) if beams else 0
    if beams > limits.beams:
        raise UserError(f"beams: {beams}; the limit (beams) is {limits.beams}.")
    if given["penalty"]:
        options["length_penalty"] = float(given["penalty"])
    if (given["beginning"] or "").strip():
        options["target_prefix"] = given["beginning"]
    if (given["terms"] or "").strip():
        options["terms"] = terms_of(given["terms"])
    if given["keep"]:
        options["keep"] = given["keep"]
    if options.keys() & {"terms", "keep"} and not beams:  # a greedy search has no place for them
        beams = max(min(BEAMS_OF_TERMS, limits.beams), count)
    return options | ({"num_beams": beams} if beams else {})


def terms_of(lines: str) -> dict[str, list[str]]:
    """Returns {word: its translations} of lines `word = first | second`. Raises: UserError for a line that is none."""
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
