"""The HTTP API of `hf-mlnmt serve`: LibreTranslate's, so that its clients work unchanged, and our own under /v1.

`make_app` returns a FastAPI app that translates by a Batcher; server.py or Ray Serve runs it (docs/serving.md). Every
request passes gate.py first. No request can name a file of the server: translated files are kept in memory.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict, fields
from functools import partial
from typing import Annotated, Any, Literal, get_type_hints
from urllib.parse import parse_qs, quote

from fastapi import APIRouter, Depends, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.middleware.cors import CORSMiddleware
from fastapi.responses import JSONResponse, PlainTextResponse
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily
from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model
from starlette.exceptions import HTTPException

from hf_mlnmt import __version__
from hf_mlnmt.common.errors import UserError
from hf_mlnmt.documents import FORMATS, check_format
from hf_mlnmt.generation import (
    OF_TEXTS,
    SAMPLERS,
    Alternative,
    DecodingOptions,
    Hypothesis,
    check_characters,
    detection,
)
from hf_mlnmt.reports.tables import language_name
from hf_mlnmt.serving.batcher import Batcher, texts_in
from hf_mlnmt.serving.gate import FILES, Gate, LimitPassed, Record, RequestLog, error_response
from hf_mlnmt.serving.limits import Limits
from hf_mlnmt.serving.service import AUTO, MOST_TERMS, Api, all_languages

_KNOWN = {field.name: field for field in fields(DecodingOptions)}
# The fields of DecodingOptions that a request to /v1/translate may set.
OPTIONS = [
    *("num_beams", "num_return_sequences", "max_new_tokens", "length_penalty", "length_normalization"),
    *("early_stopping", "recombine", "num_beam_groups", "diversity_penalty", "split", "split_long", "case", "watch"),
    *("do_sample", *SAMPLERS, "without_replacement", "seed", "alignments", "target_prefix", "terms"),
    *("force_phrases", "bad_phrases", "keep", "no_repeat_ngram_size"),
    *("repetition_penalty", "mbr", "utility"),
]
# The fields of DecodingOptions that a request to /v1/complete may set.
OF_COMPLETIONS = [
    *("num_beams", "max_new_tokens", "length_penalty", "length_normalization", "early_stopping", "terms"),
    *("bad_phrases", "no_repeat_ngram_size", "repetition_penalty"),
]
_STRICT = "With auto: refuse a text whose language is not sure, instead of taking the first served one."


class TranslateRequest(BaseModel):
    """LibreTranslate's request for translations."""

    q: str | list[str] = Field(description="A text, or several.")
    source: str = Field(description="Language code, or auto.")
    target: str = Field(description="Language code.")
    format: Literal["text", "html"] = "text"
    alternatives: int = Field(0, ge=0, description="So many other translations.")
    strict: bool = Field(False, description=_STRICT)
    api_key: str = ""


class DetectRequest(BaseModel):
    """LibreTranslate's request for the language of a text."""

    q: str | list[str]
    api_key: str = ""


class Detection(BaseModel):
    """A detected language and its confidence in percent; `taken_as`: for a language that is not served, the served
    language that its text is translated as."""

    confidence: float
    language: str
    taken_as: str | None = None


class TranslateResponse(BaseModel):
    """LibreTranslate's answer; if `q` was a list of texts, every field is a list."""

    translatedText: str | list[str]
    detectedLanguage: Detection | list[Detection] | None = None
    alternatives: list[str] | list[list[str]] | None = None
    target: str | list[str] | None = Field(None, description="Where only a variety is served: zh-Hans for zh.")


class Language(BaseModel):
    """A language and the languages that it can be translated into."""

    code: str
    name: str
    targets: list[str]


class FileResponse(BaseModel):
    """The address from which a translated file can be fetched for a limited time."""

    translatedFileUrl: str
    untranslated: int = Field(0, description="Messages that stay as they are (docs/documents.md).")
    doubtful: int = Field(0, description="Texts whose translation is probably wrong (docs/decoding.md).")
    quality: dict[str, Any] = Field({}, description="Projected chrF and a verdict, from a model that is calibrated.")


class Error(BaseModel):
    """An error message."""

    error: str


class UnitRequest(BaseModel):
    """A request to add a text and its translation to the translation memory of a pair of languages."""

    text: str = Field(description="The source.")
    translation: str = Field(description="Its translation, which counts from the next request on.")
    source: str | None = Field(None, description="Language code; none: where only one is possible.")
    target: str | None = Field(None, description="Language code; none: where only one is possible.")


class Searched(BaseModel):
    """The fields that the answers of /v1/translate and /v1/complete share: languages, detected languages and models."""

    source: str | None
    target: str | None
    detected: list[Detection] | None = None
    via: str | None = Field(description="The language between, where two models translate.")
    models: list[str]


class Answer(Searched):
    """Translations of each text, the best first."""

    translations: list[list[Hypothesis]]


class Completions(Searched):
    """The likeliest next words after a prefix, each with its probability and the best translation with that word."""

    alternatives: list[Alternative]


class Model(BaseModel):
    """A served model and its language pairs (source, target)."""

    name: str
    pairs: list[tuple[str, str]]


class Metrics:
    """Counts the requests and batches of an app, for the metrics that /metrics returns to Prometheus."""

    def __init__(self, batcher: Batcher) -> None:
        self.registry = CollectorRegistry()
        self._requests = Counter("hf_mlnmt_requests", "Requests.", ["method", "path", "status"], registry=self.registry)
        self._seconds = Histogram("hf_mlnmt_request_seconds", "Latency.", ["path"], registry=self.registry)
        sizes = (1, 2, 4, 8, 16, 32, 64, 128, 256)
        self._sizes = Histogram("hf_mlnmt_batch_sentences", "Of a batch.", buckets=sizes, registry=self.registry)
        self._batch_seconds = Histogram("hf_mlnmt_batch_seconds", "For a batch.", registry=self.registry)
        self._statistics = batcher.statistics
        batcher.statistics.on_batch = self._on_batch
        self.registry.register(self)

    def on_request(self, record: Record, seconds: float) -> None:
        """Counts a finished request and its seconds."""
        method = record.method if record.method in ("GET", "POST", "HEAD", "OPTIONS") else "other"
        self._requests.labels(method, record.path, str(record.status)).inc()
        self._seconds.labels(record.path).observe(seconds)

    def _on_batch(self, pieces: int, tokens: int, seconds: float) -> None:
        self._sizes.observe(pieces)
        self._batch_seconds.observe(seconds)

    def collect(self) -> Iterable[Any]:
        """Yields the batcher's statistics as Prometheus metrics."""
        now = self._statistics
        yield GaugeMetricFamily("hf_mlnmt_waiting_sentences", "In the queue.", value=now.waiting)
        yield CounterMetricFamily("hf_mlnmt_sentences", "Translated.", value=now.pieces)
        tokens = CounterMetricFamily("hf_mlnmt_tokens", "Read and written.", labels=["side"])
        tokens.add_metric(["source"], now.source_tokens)
        tokens.add_metric(["target"], now.target_tokens)
        yield tokens


def body_models(limits: Limits) -> tuple[type[BaseModel], type[BaseModel]]:
    """Returns the pydantic models that validate bodies of requests: of /v1/translate (texts, languages, OPTIONS) and of
    /v1/complete (a sentence, a prefix of its translation, OF_COMPLETIONS). `limits`: the largest values of options."""
    texts = {"texts": (str | list[str], Field(description="A text, or several."))}
    many = Field(min(5, limits.n_best), ge=1, le=limits.n_best, description="So many of the likeliest next words.")
    sentence = {
        "text": (str, Field(description="A sentence.")),
        "prefix": (str, Field("", description=_KNOWN["target_prefix"].metadata["help"])),
        "alternatives": (int, many),
    }
    return (
        _body_model("TextsToTranslate", "Texts to translate", limits, texts, OPTIONS),
        _body_model("SentenceToComplete", "A sentence whose translation is to go on", limits, sentence, OF_COMPLETIONS),
    )


def _body_model(
    name: str, title: str, limits: Limits, given: dict[str, Any], option_names: Sequence[str]
) -> type[BaseModel]:
    """Makes the pydantic model of a request's body: the fields `given`, languages, model, and these options."""
    ceilings = {"num_beams": limits.beams, "num_return_sequences": limits.n_best, "max_new_tokens": limits.new_tokens}
    ceilings["mbr"] = limits.samples
    types = get_type_hints(DecodingOptions)
    # Some options have other types than in DecodingOptions: `terms` as a string would name a file of the server.
    # Options that may be lists with an entry for each text are strings: texts are translated in groups by language.
    types |= dict.fromkeys(OF_TEXTS, str)
    types |= {"utility": Literal["chrf", "chrf-pairwise", "bleu"]}  # `utility` could name a command or a model
    types |= {"terms": Annotated[dict[str, str | list[str]], Field(max_length=MOST_TERMS)]}
    types |= {"keep": str | list[str]}
    options: dict[str, Any] = {}
    for option in option_names:
        about = Field(ge=_KNOWN[option].metadata.get("min"), le=ceilings.get(option))
        default = Field(None, description=_KNOWN[option].metadata.get("help"))
        options[option] = Annotated[types[option], about] | None, default
    return create_model(
        name,
        __config__=ConfigDict(extra="forbid", strict=True, title=title),
        **given,
        source=(str | None, Field(None, description="Language code, or auto; none: where only one is possible.")),
        target=(str | None, Field(None, description="Language code; none: where only one is possible.")),
        model=(str | None, Field(None, description="The name of the model that shall translate.")),
        strict=(bool, Field(False, description=_STRICT)),
        **options,
    )


async def given_by(request: Request) -> dict[str, Any]:
    """Reads a request's parameters from its JSON body, or from its query string and form.

    Raises: HTTPException 400 for a request that cannot be read; UserError for a text with invalid characters.
    """
    kind = request.headers.get("content-type", "").split(";")[0].strip().lower()
    body = await request.body()
    try:
        if kind == "application/json" or kind.endswith("+json"):
            given = json.loads(body, parse_constant=_no_number)
            if not isinstance(given, dict):
                raise HTTPException(400, "Invalid JSON format: an object is expected")
            given = {name: value for name, value in given.items() if value is not None}
            for name, value in given.items():
                for text in texts_in([name, value]):
                    check_characters(text, name)
            return given
        values = parse_qs(request.scope["query_string"].decode("ascii"), True, errors="strict", max_num_fields=5_000)
        if kind == "multipart/form-data":
            form = await request.form(max_files=1, max_fields=20)
            return {**{name: list_[0] for name, list_ in values.items()}, **dict(form)}
        values |= parse_qs(body.decode(), True, errors="strict", max_num_fields=5_000)
    except RecursionError as error:
        raise HTTPException(400, "JSON: nested too deeply") from error
    except UnicodeDecodeError as error:
        raise HTTPException(400, "the request is not UTF-8") from error
    except UserError:
        raise
    except ValueError as error:
        raise HTTPException(400, f"the request cannot be read: {error}"[:200]) from error
    return {name: some if name == "q" and len(some) > 1 else some[0] for name, some in values.items()}


def _no_number(name: str) -> float:
    raise ValueError(f"{name} is no number of JSON")


async def _admitted(request: Request, api: Api, *needed: str) -> dict[str, Any]:
    """Reads the parameters of a request and admits it. Raises: as `Api.admit`, Overloaded if the server is ending,
    HTTPException 400 for a parameter `needed` that is missing or empty."""
    given = await given_by(request)
    api.check_ending()
    api.admit(request, given)
    if missing := next((name for name in needed if not given.get(name)), None):
        raise HTTPException(400, f"Invalid request: missing {missing} parameter")
    return given


def _said(errors: Sequence[Any]) -> str:
    first = errors[0]
    name = str(first["loc"][0]) if first["loc"] else "request"
    if first["type"] == "missing":
        return f"Invalid request: missing {name} parameter"
    if (limit := first.get("ctx", {}).get("le" if first["type"] == "less_than_equal" else "max_length")) is not None:
        return f"{name}: the limit of this server is {limit}"
    return f"{name}: {first['msg'][0].lower()}{first['msg'][1:]}"


def _body(schema: dict[str, Any], *kinds: str) -> dict[str, Any]:
    """Returns the OpenAPI description of a request body with this JSON schema, for these media types."""
    return {"requestBody": {"required": True, "content": {kind: {"schema": schema} for kind in kinds}}}


def _body_of(model: type[BaseModel]) -> dict[str, Any]:
    return _body(model.model_json_schema(), "application/json", "application/x-www-form-urlencoded")


_FILE_FORM = {
    "type": "object",
    "required": ["file", "source", "target"],
    "properties": {
        "file": {"type": "string", "format": "binary", "description": f"One of {', '.join(FORMATS)}."},
        **{name: {"type": "string"} for name in ("source", "target", "api_key")},
    },
}
# Paths that are answered with 404: unknown paths under /v1, and routes of gradio that the page does not need.
_CLOSED = [
    "/v1/{rest:path}",
    *(f"/gradio_api/{what}" for what in ("upload", "deep_link", "component_server")),
    *(f"{base}/{what}{{rest:path}}" for base in ("", "/gradio_api") for what in ("file", "proxy", "stream")),
]
_ERRORS: dict[int | str, dict[str, Any]] = {status: {"model": Error} for status in (400, 403, 413, 429, 503, 504)}


async def _api_of(request: Request) -> Api:  # async: FastAPI runs functions that are not async in a thread
    return request.app.state.api


Served = Annotated[Api, Depends(_api_of)]
_router = APIRouter()
_get = partial(_router.get, tags=["LibreTranslate"])
_post = partial(_router.post, responses=_ERRORS, tags=["LibreTranslate"])
_operation = partial(_router.get, responses={503: {"model": Error}}, tags=["operation"])


async def _asked(request: Request, api: Api, model: type[BaseModel], *needed: str) -> tuple[Any, list[str]]:
    """Reads, admits and validates a request; returns its parameters by the model, and its texts, within the limits."""
    given = await _admitted(request, api, *needed)
    try:
        asked: Any = model.model_validate({name: value for name, value in given.items() if name != "api_key"})
    except ValidationError as error:
        raise HTTPException(400, _said(error.errors(include_url=False, include_input=False))) from error
    texts = next(getattr(asked, name) for name in ("texts", "text", "q") if name in model.model_fields)
    texts = [texts] if isinstance(texts, str) else texts
    api.check(texts, request.scope["record"])
    return asked, texts


@_post("/translate", response_model=TranslateResponse, openapi_extra=_body_of(TranslateRequest))
async def translate(request: Request, api: Served) -> Response:
    """Translate a text or several, plain or HTML."""
    asked, texts = await _asked(request, api, TranslateRequest, "q", "source", "target")
    if asked.alternatives >= api.limits.n_best:
        raise HTTPException(400, f"alternatives: the limit (n_best) is {api.limits.n_best - 1}")
    record = request.scope["record"]
    async with api.within("seconds"):
        options: dict[str, Any] = {"num_return_sequences": asked.alternatives + 1} if asked.alternatives else {}
        if asked.format == "html":
            ranked, detected = await api.documents(
                record, texts, ".html", asked.source, asked.target, asked.strict, **options
            )
        else:
            sources, detected = await api.languages_of(texts, asked.source, asked.strict)
            done = await api.translate(record, texts, sources, asked.target, **options, split="sentences")
            ranked = [[hypothesis.text for hypothesis in hypotheses] for hypotheses in done.texts]
    parts: dict[str, list[Any]] = {"translatedText": [some[0] for some in ranked]}
    if detected is not None:
        parts["detectedLanguage"] = [found.to_dict() for found in detected]
    if "target" in record.said:
        parts["target"] = [record.said["target"]] * len(texts)
    if asked.alternatives:
        parts["alternatives"] = [list(dict.fromkeys(text for text in some if text != some[0])) for some in ranked]
    return JSONResponse({name: value if isinstance(asked.q, list) else value[0] for name, value in parts.items()})


@_post("/detect", response_model=list[Detection], openapi_extra=_body_of(DetectRequest))
async def detect(request: Request, api: Served) -> Response:
    """Detect the language of a text (several texts are joined).

    Returns served languages with a confidence above 0, the likeliest first; before them a language that is not served,
    where the text is surely in that language.
    """
    _, texts = await _asked(request, api, DetectRequest, "q")
    ranked = await asyncio.to_thread(detection.rank, " ".join(texts), list(api.batcher.models.languages()))
    return JSONResponse([found.to_dict() for found in ranked if found.confidence > 0] or [ranked[0].to_dict()])


@_router.post("/languages", include_in_schema=False)  # the client libretranslatepy 2.1 sends POST
@_get("/languages")
async def languages(api: Served) -> list[Language]:
    """List the languages, and the languages that each can be translated into."""
    return [Language(code=code, name=language_name(code), targets=to) for code, to in all_languages(api.batcher)]


@_get("/frontend/settings")
async def settings(api: Served) -> dict[str, Any]:
    """Return the settings that LibreTranslate's page asks its server for."""
    targets = next(iter(api.batcher.models.languages().values()))
    return {
        "apiKeys": bool(api.keys),
        "charLimit": api.limits.text_characters,
        "filesTranslation": True,
        "frontendTimeout": 500,
        "keyRequired": bool(api.keys),
        "language": {
            "source": {"code": AUTO, "name": "Auto Detect"},
            "target": {"code": targets[0], "name": language_name(targets[0])},
        },
        "suggestions": False,
        "supportedFilesFormat": list(FORMATS),
    }


@_post(FILES, response_model=FileResponse, openapi_extra=_body(_FILE_FORM, "multipart/form-data"))
async def translate_file(request: Request, api: Served) -> Response:
    """Translate a file: plain text, web pages, subtitles, Office documents, e-books, message catalogues."""
    given = await _admitted(request, api, "file", "source", "target")
    record, limits = request.scope["record"], api.limits
    if isinstance(given["file"], str) or not all(isinstance(given[name], str) for name in ("source", "target")):
        raise HTTPException(400, "Invalid request: file is to be a file, source and target are to be codes")
    stem, dot, ending = (given["file"].filename or "").replace("\\", "/").split("/")[-1].rpartition(".")
    check_format(given["file"].filename or "", suffix := dot + ending.lower())
    content = await given["file"].read()
    if len(content) > limits.file_bytes:
        raise LimitPassed("file_bytes", len(content), limits.file_bytes, "bytes of the file")
    async with api.within("file_seconds"):
        ((best, *_),), _ = await api.documents(record, [content], suffix, given["source"], given["target"])
    token = api.downloads.add(f"{stem}_{given['target']}.{ending}", best)
    host = request.headers.get("host", "")
    counts = {name: record.said[name] for name in ("untranslated", "doubtful", "quality") if name in record.said}
    return JSONResponse({"translatedFileUrl": f"{request.scope['scheme']}://{host}/download_file/{token}", **counts})


@_get("/download_file/{token}", response_class=Response)
async def download_file(token: str, api: Served) -> Response:
    """Fetch a translated file."""
    name, content = api.downloads.get(token)
    headers = {
        "Content-Disposition": f"attachment; filename*=UTF-8''{quote(name, errors='replace')}",
        "Content-Security-Policy": "sandbox; default-src 'none'",
        "Cache-Control": "no-store",
    }
    return Response(content, media_type="application/octet-stream", headers=headers)


@_get("/health", responses={503: {"model": Error}})
@_operation("/healthz")
async def healthz(api: Served) -> dict[str, str]:
    """Answer 200 as long as the worker thread runs, else 503."""
    if not api.batcher.healthy:
        raise HTTPException(503, "the worker that translates has ended; start the server again")
    return {"status": "ok"}


@_operation("/readyz")
async def readyz(api: Served) -> dict[str, str]:
    """Answer 200 as long as the server accepts new requests, else 503."""
    api.check_ending()
    return await healthz(api)


@_router.get("/metrics", response_class=Response, tags=["operation"])
async def say_metrics(request: Request, api: Served) -> Response:
    """Return metrics for Prometheus: requests, latencies, queue, batches, tokens. If the server has keys, needs one."""
    if api.keys:
        api.admit(request, {})
    metrics = request.app.state.metrics
    return Response(generate_latest(metrics.registry), headers={"Content-Type": CONTENT_TYPE_LATEST})


async def translate_v1(request: Request, api: Served) -> Response:
    """Translate texts with decoding options; returns n-best lists with scores."""
    asked, texts = await _asked(request, api, request.app.state.options_model)
    ranked, answer = await _searched(request, api, asked, texts, OPTIONS, num_return_sequences=1)
    return JSONResponse({"translations": [[asdict(hypothesis) for hypothesis in some] for some in ranked], **answer})


async def complete_v1(request: Request, api: Served) -> Response:
    """List the likeliest next words after a prefix of a translation, and the best translation with each word.

    Raises: UserError, answered with status 400, for options that do not fit.
    """
    asked, texts = await _asked(request, api, request.app.state.completions_model)
    told = {"target_prefix": asked.prefix, "alternatives": asked.alternatives}
    try:
        (found,), answer = await _searched(request, api, asked, texts, OF_COMPLETIONS, **told)
    except UserError as error:
        # The request's field for the option target_prefix is `prefix`.
        raise UserError(re.sub("^target_(?=prefix)", "", str(error))) from error
    # A text that is in the target language already has a Hypothesis, and no Alternative.
    listed = [asdict(best) for best in found if isinstance(best, Alternative)]
    return JSONResponse({"alternatives": listed, **answer})


async def _searched(
    request: Request, api: Api, asked: Any, texts: list[str], names: Sequence[str], **usual: Any
) -> tuple[list[list[Hypothesis]], dict[str, Any]]:
    """Translates texts with the request's options of these names; returns each text's hypotheses, and the other fields
    of the answer. usual: options that the request may override."""
    options = {name: value for name in names if (value := getattr(asked, name, None)) is not None}
    options = {"split": "sentences", **usual, **options, "model": asked.model}
    async with api.within("seconds"):
        sources, detected = await api.languages_of(texts, asked.source, asked.strict)
        done = await api.translate(request.scope["record"], texts, sources, asked.target, **options)
    answer = {"source": asked.source, "target": done.target or asked.target, "via": done.via, "models": done.models}
    return done.texts, answer | ({"detected": [found.to_dict() for found in detected]} if detected else {})


@_router.post("/v1/memory", responses=_ERRORS, tags=["ours"], openapi_extra=_body_of(UnitRequest))
async def remember(request: Request, api: Served) -> dict[str, int]:
    """Add a translation to the memory of a pair; needs an API key. The memory's file is written before the answer."""
    asked, texts = await _asked(request, api, UnitRequest, "text", "translation")
    api.check([*texts, asked.translation], request.scope["record"])
    if not api.keys:
        raise HTTPException(403, "only who has an API key adds to a memory, and this server has none (--api-key-file)")
    route = api.batcher.models.route(asked.source, asked.target)
    memory = route.legs[0].pipeline.memory if len(route.legs) == 1 else None
    if memory is None:
        raise HTTPException(400, "this pair has no memory: the server is started with --memory FILE")
    await asyncio.to_thread(memory.add, asked.text, asked.translation)
    return {"units": await asyncio.to_thread(len, memory)}


@_router.get("/v1/models", tags=["ours"])
async def models(api: Served) -> list[Model]:
    """List the models and their language pairs."""
    return [Model(name=model.name, pairs=list(model.pairs)) for model in api.batcher.models.models]


def make_app(
    batcher: Batcher,
    limits: Limits | None = None,
    *,
    keys: Collection[str] = (),
    hosts: Collection[str] = (),
    page: bool = True,
    cors: bool = False,
) -> FastAPI:
    """Builds the FastAPI app. After a call of its `state.end()` it refuses new requests.

    Args:
        batcher: the Batcher of the served models.
        limits: default: those of Limits.
        keys: API keys, one of which a request must have; none: no key is needed. With keys there is no page.
        hosts: names that the header Host of a request may have, also as *.example.org; none: any.
        page: mount the page at /, where gradio is installed.
        cors: allow requests from pages of any origin in a browser.
    """
    metrics = Metrics(batcher)
    api = Api(batcher, limits, keys, RequestLog(metrics.on_request))
    app = FastAPI(
        title="hf-mlnmt serve",
        version=__version__,
        description="Machine translation: the API of LibreTranslate, and more under /v1.",
        docs_url=None,  # FastAPI's pages would load scripts from another machine
        redoc_url=None,
        separate_input_output_schemas=False,
    )
    app.state.api, app.state.metrics, app.state.end = api, metrics, api.ending.set
    app.state.options_model, app.state.completions_model = body_models(api.limits)
    app.add_middleware(Gate, limits=api.limits, log=api.log, hosts=hosts, ending=api.ending)
    if cors:
        headers = ["Authorization", "Content-Type"]
        app.add_middleware(CORSMiddleware, allow_origins=["*"], allow_methods=["GET", "POST"], allow_headers=headers)
    app.include_router(_router)
    for path, endpoint, answer, body in (
        ("/v1/translate", translate_v1, Answer, app.state.options_model),
        ("/v1/complete", complete_v1, Completions, app.state.completions_model),
    ):
        schema = _body(body.model_json_schema(), "application/json")
        app.post(path, response_model=answer, responses=_ERRORS, openapi_extra=schema, tags=["ours"])(endpoint)
    _add_page(app, api, page)
    _answer_errors(app)
    return app


def _answer_errors(app: FastAPI) -> None:
    """Registers handlers that answer an app's HTTP and validation errors with {"error": message}."""

    async def answer(request: Request, error: Any) -> Response:
        invalid = isinstance(error, RequestValidationError)
        return error_response(HTTPException(400, _said(error.errors())) if invalid else error)

    app.add_exception_handler(HTTPException, answer)
    app.add_exception_handler(RequestValidationError, answer)


def _add_page(app: FastAPI, api: Api, wanted: bool) -> None:
    """Mounts the page at /, or a plain page that tells why there is none."""
    reason = "It asks for an API key, so there is no page." if api.keys else "It was started without a page."
    if wanted := wanted and not api.keys:
        try:
            import gradio

            from hf_mlnmt.serving.page import page
        except ImportError:
            wanted, reason = False, "For a page to translate in: pip install 'hf-mlnmt[serve]'."
    if not wanted:
        text = f"This server speaks LibreTranslate's API: POST /translate; see /languages, /openapi.json.\n{reason}\n"

        @app.get("/", response_class=PlainTextResponse, include_in_schema=False)
        async def plain() -> str:
            return text

        return

    async def other_method(request: Request) -> None:
        raise HTTPException(405, "Method Not Allowed", {"Allow": allowed[request.scope["route"].path]})

    async def no_such_path() -> None:
        raise HTTPException(404, "Not Found")

    # Answers other methods of known paths with 405: the page at / would answer them. gate.py turns HEAD into GET.
    every, allowed = {"GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"}, dict[str, str]()
    for route in [*_router.routes, *app.routes]:
        path, methods = getattr(route, "path", ""), getattr(route, "methods", None) or every
        allowed.setdefault(path, ", ".join(sorted(methods)))
        if every - methods:
            app.add_api_route(path, other_method, methods=sorted(every - methods), include_in_schema=False)
    for path in _CLOSED:
        app.add_api_route(path, no_such_path, methods=sorted(every), include_in_schema=False)
    gradio.mount_gradio_app(app, page(api), path="/", show_error=False, max_file_size=1, enable_monitoring=False)
    _answer_errors(app.routes[-1].app)  # type: ignore[attr-defined]
