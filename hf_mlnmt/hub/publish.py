"""Builds a complete Hub-style folder from a trained model folder, checked before it replaces an earlier one; and the
folder of a Space of the Hub, a web page (that of hf_mlnmt/serving) on which the model translates.

A Space's README.md tells the Hub what to run, app.py is the page, requirements.txt pins the versions it was tried with.
"""

import csv
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from huggingface_hub import SpaceCardData, hf_hub_download

from hf_mlnmt.common.errors import UserError, suggest
from hf_mlnmt.common.files import atomic_folder, read_json, write_json, write_text
from hf_mlnmt.common.languages import check_direction
from hf_mlnmt.common.model_folder import (
    ADAPTER,
    ADAPTER_WEIGHTS,
    CARD,
    CONFIG,
    CURVES,
    GENERATION_CONFIG,
    LANGUAGE_TOKENIZERS,
    MODELS_OF_A_RUN,
    RESULTS,
    TARGET_TOKENIZER,
    TEXT_PROCESSING,
    auto_class_of,
    check_model_folder,
    copy_files,
    is_adapter,
    is_path,
    load_model,
    read_part,
)
from hf_mlnmt.convert.importing import RECORD
from hf_mlnmt.convert.marian import KEPT, SHORTLIST
from hf_mlnmt.data.directions import direction, has_modules, is_told
from hf_mlnmt.data.tokenizer import Tokenizers, languages_of, load_tokenizers
from hf_mlnmt.evaluation.results import inside
from hf_mlnmt.hub.check_reload import check_loading
from hf_mlnmt.hub.checks import check_folder, check_replaceable, clean_generation_config
from hf_mlnmt.recipe.schema import LICENCES
from hf_mlnmt.reports.card import EVAL_RESULTS, auto_class_of_facts, build_card, eval_results, is_hub_name
from hf_mlnmt.reports.facts import Facts, front_matter, languages_of_results, load_results
from hf_mlnmt.reports.parameters import parameters_by_part
from hf_mlnmt.reports.paths import hide_paths
from hf_mlnmt.reports.tables import template
from hf_mlnmt.training.adapters import parameters_of_adapter
from hf_mlnmt.zoo.systems import architecture_of

_OURS = {CONFIG, GENERATION_CONFIG, CARD, CURVES, RESULTS, TEXT_PROCESSING, TARGET_TOKENIZER, LANGUAGE_TOKENIZERS}
_OURS |= {EVAL_RESULTS, SHORTLIST}
APP, REQUIREMENTS = "app.py", "requirements.txt"
GRADIO, PYTHON = "6.31.0", "3.12"
_TORCH = "https://download.pytorch.org/whl/cpu"
_OUR_SUFFIXES = {".safetensors", ".py", ".json", ".spm", ".model", ".txt"}


class Published(NamedTuple):
    """A built folder, warnings for its publisher, and the facts of its card."""

    folder: Path
    warnings: list[str]
    facts: Facts


def build_folder(
    model: str | Path,
    target: str | Path,
    *,
    name: str | None = None,
    licence: str | None = None,
    languages: tuple[str, str] | None = None,
    space: str | None = None,
    dtype: str | None = None,
    confirm_licence: bool = False,
    base_models: Sequence[str] = (),
    tell: Callable[[str], None] = lambda text: None,
) -> Published:
    """Writes everything that a Hub repository of the model needs into `target`; leaves nothing behind if a check fails.

    The same input gives the same bytes, so that an interrupted upload can be continued.

    Args:
        model: a model folder: a run's average/ or best/, or any folder of a Transformers encoder-decoder; or the
            adapter/ in one of these, for which its base model is to be on the Hub.
        target: the folder to make; an earlier publication there is replaced, anything else is refused.
        name: what the card calls the model, and loads in its examples; default: the name of `target`.
        licence: of the weights, as the Hub spells it (apache-2.0 ...), or other:NAME; default: not recorded.
        languages: default: those of results.json in the model folder.
        space: the Space that shows the model, as owner/name; the card links to it.
        dtype: "bfloat16" or "float16": weights are rounded to it and stored in it. Default: as they are.
        confirm_licence: accept a licence that permits more than that of the data or of the model begun with.
        base_models: Hub names of the models that this one was made of; default: those in results and import.json.

    Raises: UserError when the model is not complete, its licence permits more than the data's, it does not load again,
        or something in it must not be published.
    """
    source, target = Path(model), Path(target)
    alone = is_adapter(source)  # an adapter's results and card are beside the merged model, in the folder around it
    home = source.resolve().parent if alone else source
    if not alone:
        check_model_folder(source)
    if languages:
        check_direction(home, languages, str(source), "Leave --from and --to out, or exchange them.")
    _check_licence(licence)
    if licence and not confirm_licence:
        _check_rights(home, licence, base_models)
    check_target(source, target)
    tell(f"loading {source}")
    network, tokenizers = _load(source)
    weights = _round(network, dtype) if dtype else None
    path = home / RESULTS
    recorded = load_results(path) if path.is_file() else {}
    folders = [home, *([home.resolve().parent] if home.resolve().name in MODELS_OF_A_RUN else [])]
    emissions = (_emissions(place) for folder in folders for place in (folder, folder / "checkpoints"))
    said = inside(recorded, "recipe", "data")
    made_of, relation = _origins(source, recorded, base_models)
    if alone and len(made_of) != 1:
        raise UserError(
            f"{source}: nobody can use an adapter without its base model, which is on this machine alone. Publish "
            "that, and name it here: --base-model OWNER/NAME."
        )
    facts = Facts(
        name=name or target.resolve().name,
        config=network.config,
        model_class=type(network),
        results=[recorded] if recorded else [],
        generation=network.generation_config.to_diff_dict() if network.can_generate() else {},
        languages=languages or languages_of_results(recorded),
        codes=tuple(languages_of(tokenizers.source)),
        told=_told(network, tokenizers.source, languages or languages_of_results(recorded)),
        licence=licence,
        domain=said.get("domain"),
        datasets=tuple(said.get("datasets") or ()),
        base_models=made_of,
        relation="adapter" if alone else relation,
        emissions=next(filter(None, emissions), None),
        separate_tokenizers=not tokenizers.joint,
        language_tokenizers=bool(tokenizers.each),
        processing=hide_paths(read_part(source, TEXT_PROCESSING)),
        curves=next((folder / CURVES for folder in folders if (folder / CURVES).is_file()), None),
        space=space,
        rounded=dtype,
    )
    with atomic_folder(target) as new:
        if alone:
            copy_files(source, new, (ADAPTER_WEIGHTS,))
            write_json(new / ADAPTER, {**read_part(source, ADAPTER), "base_model_name_or_path": made_of[0]})
            network.generation_config.save_pretrained(new)
        else:
            _write_model(network, new, weights)
        tokenizers.save(new, code=facts.carries_code)
        if facts.results:
            write_json(new / RESULTS, facts.results[0])
        if facts.curves:
            shutil.copyfile(facts.curves, new / CURVES)
        for file in (source / KEPT, source / SHORTLIST):  # with these an export writes the imported file again
            if file.is_file():
                shutil.copyfile(file, new / file.name)
        write_text(new / CARD, build_card(facts))
        for name_of, content in eval_results(facts).items():
            write_text(new / EVAL_RESULTS / name_of, content)
        check_folder(new, source, target)
        ways = ("package", "remote-code") if type(network).__module__.startswith("hf_mlnmt.") else ("own-code",)
        ways = ways if facts.carries_code else ("package",)
        if not alone:  # loading an adapter needs its base, which may not be on the Hub yet
            tell(f"loading the new folder again in a fresh process ({' and '.join(ways)})")
            check_loading(new, network, tokenizers, ways)
    parameters = parameters_by_part(network)["total"] - parameters_of_adapter(network)
    return Published(target, list(_warnings(facts, path, parameters)), facts)


def _told(model: Any, tokenizer: Any, languages: Sequence[str | None]) -> dict[str, Any]:
    """Returns `Facts.told`: {} for a class of this package, one pair, or languages that are not known."""
    known = [code for code in languages if code]
    if languages_of(tokenizer) or has_modules(model) or len(known) != 2 or not is_told(model, tokenizer):
        return {}
    way, tokens = direction(model, tokenizer, *known), tokenizer.convert_ids_to_tokens
    front = way.prefix_text or "".join(f"{token} " for token in tokens(list(way.prefix_ids)))
    generate = {name: tokens(number) for name, number in way.generate.items()}
    return {"src_lang": way.source, "front": front, "generate": generate}


def _origins(source: Path, recorded: Mapping[str, Any], given: Sequence[str]) -> tuple[tuple[str, ...], str | None]:
    """Returns the Hub names of the models that a model was made of, and the relation to them in the Hub's words."""
    began, corpora = inside(recorded, "recipe").get("init_from"), inside(recorded, "data").get("train")
    taught = [inside(entry, "synthetic").get("model") for entry in (corpora if isinstance(corpora, list) else [])]
    ways: dict[str, list[Any]] = {
        "finetune": [began] if isinstance(began, str) else list(began.values()) if isinstance(began, dict) else [],
        "merge": list(recorded.get("made_of") or ()),
        "taught": taught,
        "imported": [read_json(source / RECORD).get("source")],
    }
    for name in given:
        if is_path(name):
            raise UserError(
                f"--base-model {name}: no name on the Hub, which is owner/name. Name the model as it is there."
            )
    way = next((way for way, names in ways.items() if any(names)), "imported")
    names = given or [name for name in ways[way] if isinstance(name, str) and is_hub_name(name)]
    return tuple(dict.fromkeys(names)), way if way in ("finetune", "merge") else None


def _emissions(folder: Path) -> dict[str, Any] | None:
    """Returns the emissions that CodeCarbon recorded (logging.trackers: [codecarbon]), for the card; else None."""
    if not (folder / "emissions.csv").is_file():
        return None
    with (folder / "emissions.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    try:
        grams = round(1000 * sum(float(row["emissions"]) for row in rows), 3)
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(f"{folder / 'emissions.csv'}: no column emissions of numbers. Take the file away.") from error
    places = {"geographical_location": ("country_name",), "hardware_used": ("gpu_model", "cpu_model")}
    found = {key: next(filter(None, map(rows[-1].get, names)), None) for key, names in places.items()} if rows else {}
    return {"emissions": grams, "source": "codecarbon", **{key: text for key, text in found.items() if text}}


def _check_licence(licence: str | None) -> None:
    name, colon, own = (licence or "other").lower().partition(":")
    if name not in LICENCES or (colon and (name != "other" or not re.fullmatch(r"[\w.+-]+", own))):
        raise UserError(
            f"licence {licence!r} is none of the names of the Hub{suggest(name, LICENCES)}, which refuses others. All "
            "names: https://huggingface.co/docs/hub/repositories-licenses; for one without a name there give "
            "other:NAME, of letters, digits and . + -."
        )


_FREE, _COPYLEFT = ("cc0", "pddl", "unlicense", "wtfpl"), ("gpl", "agpl", "lgpl", "gfdl", "odbl", "osl", "eupl", "mpl")
_PERMISSIVE = ("apache", "mit", "bsd", "isc", "zlib", "odc", "etalab", "afl", "artistic", "bsl", "ncsa", "postgresql")
_CLAUSES = {"by": "attribution", "sa": "share-alike", "nc": "non-commercial use", "nd": "no derivatives"}


def _demands(licence: str) -> set[str] | None:
    """Returns what a licence demands of those who use something under it; None for a licence not known here."""
    family, *parts = licence.lower().split("-")
    if family == "cc":
        return {_CLAUSES[part] for part in parts if part in _CLAUSES} or None
    if family == "cdla" and parts:
        return {"attribution", "share-alike"} if parts[0] == "sharing" else {"attribution"}
    known = {_FREE: set(), _PERMISSIVE: {"attribution"}, _COPYLEFT: {"attribution", "share-alike"}}
    return next((asked for families, asked in known.items() if family in families), None)


def _check_rights(source: Path, licence: str, base_models: Sequence[str]) -> None:
    """Raises UserError for a licence that lacks demands of the data's licence, or of that of a model begun with."""
    given, seen = _demands(licence), set[Path]()
    for where, other in chain.from_iterable(_licences_of(x, seen) for x in (source, *map(_home_of, base_models))):
        if other.lower() == licence.lower():
            continue
        asked = _demands(other)
        lacks = sorted(asked - given) if asked is not None and given is not None else ["what is not known here"]
        if lacks:
            raise UserError(
                f"licence {licence} may give more than {other} of {where} does, which asks for {', '.join(lacks)}. "
                "Give that one; or, if you hold the rights, say so: --confirm-licence, in Python confirm_licence=True."
            )


def _licences_of(folder: Path, seen: set[Path]) -> Iterator[tuple[Path, str]]:
    """Yields (file, licence) for a model's data and its card, and for those of the models that it began with."""
    if folder.resolve() in seen:
        return
    seen.add(folder.resolve())
    recorded = read_json(folder / RESULTS)
    data, recipe = inside(recorded, "data"), inside(recorded, "recipe")
    card = front_matter(folder / CARD)
    if not card and folder.name.startswith("nllb-200"):
        card = {"license": "cc-by-nc-4.0"}  # Meta's licence for NLLB, where the folder has no card
    for file, content, key in ((folder / RESULTS, data, "licence"), (folder / CARD, card, "license")):
        if isinstance(licence := content.get(key), str):
            yield file, (content.get("license_name") or licence) if licence == "other" else licence
    begun, imported = recipe.get("init_from") or {}, read_json(folder / RECORD).get("source")
    names = [begun] if isinstance(begun, str) else begun.values() if isinstance(begun, dict) else ()
    for name in (*names, *([imported] if imported else [])):
        yield from _licences_of(_home_of(str(name)), seen)


def _home_of(name: str) -> Path:
    """Returns the folder of a model, of one of the Hub with its card where that can be had."""
    if is_hub_name(name):
        with suppress(Exception):  # there is no network, or the model has no card
            return Path(hf_hub_download(name, CARD)).parent
    return Path(name)


def check_target(source: Path, target: Path) -> None:
    """Raises UserError for a folder that a publication must not replace."""
    here, there = source.resolve(), target.resolve()
    if here == there or there in here.parents or here in there.parents:
        raise UserError(f"{target}: lies in or around the model folder {source}. Choose another folder for --output.")
    check_replaceable(target, "publication", _OURS, _OUR_SUFFIXES)
    if target.is_dir() and any(target.iterdir()) and not ((target / CONFIG).is_file() or is_adapter(target)):
        raise UserError(f"{target}: is not empty and holds no model. Choose a new or empty folder for --output.")


def _load(source: Path) -> tuple[Any, Tokenizers]:
    """Loads the model, ready to be published, and its tokenizers; checks that their vocabularies fit."""
    import transformers

    from hf_mlnmt.generation.translating.loading import load

    auto_class = "AutoModelForSeq2SeqLM" if is_adapter(source) else auto_class_of(source)
    if auto_class == "AutoModelForSeq2SeqLM":
        model = load(str(source), device="cpu").model.eval()
    else:
        model = load_model(source, getattr(transformers, auto_class)).eval()
    model.config.use_cache = True
    if model.can_generate():
        model.generation_config = clean_generation_config(model.generation_config, model.config)
    return model, load_tokenizers(source)


def _round(model: Any, dtype: str) -> dict[str, Any]:
    """Rounds the weights to `dtype` in place, and returns them in it; a weight with several names stays one tensor."""
    import torch

    named = model.state_dict()
    stored: dict[int, Any] = {}  # {memory address of a weight: the rounded weight}
    for name, weight in named.items():
        weight.copy_(stored.setdefault(weight.data_ptr(), weight.to(getattr(torch, dtype))))
        if not weight.isfinite().all():
            raise UserError(f"{name} has values that {dtype} does not hold: say bfloat16, or store it as it is.")
    return {name: stored[weight.data_ptr()] for name, weight in named.items()}


def _warnings(facts: Facts, path: Path, parameters: int) -> Iterator[str]:
    if not facts.results:
        yield f"{path}: no results file; the card says that scores and training are not recorded."
    elif facts.recorded("parameters") not in (None, parameters):
        recorded = facts.recorded("parameters")
        yield f"{path}: says {recorded:,} parameters, the model has {parameters:,}: are these its results?"
    if facts.licence is None:
        yield "no licence is given (--licence); without one nobody may use the weights."
    for code in filter(None, facts.languages):
        if not re.fullmatch(r"[a-z]{2,3}([-_][A-Za-z0-9]+)*", code):
            yield f"language {code!r} is no code such as de, deu or pt-BR; the Hub finds models by codes."
    if not any(facts.languages) and not facts.codes:
        yield "the languages are not recorded (--from, --to); the Hub finds models by them."


def _point_to_code(config: Any, model_class: Any = None) -> None:
    """Sets `auto_map` to the code of a model of this package; without `model_class` to that of one with a head."""
    if architecture := architecture_of(config):
        config.auto_map = architecture.pointers(model_class)


def _write_model(model: Any, folder: Path, weights: dict[str, Any] | None = None) -> None:
    """Writes weights, config and generation config; the model's code too where Transformers lacks the model."""
    from transformers.utils import logging

    _point_to_code(model.config, type(model))
    for config in model.config.members() if hasattr(model.config, "members") else ():
        _point_to_code(config)
    logging.disable_progress_bar()
    model.save_pretrained(folder, state_dict=weights)


# A Space


def check_space_folder(folder: str | Path) -> None:
    """Raises UserError for a folder that holds anything but an earlier Space."""
    check_replaceable(Path(folder), "Space", (CARD, APP, REQUIREMENTS))


def check_translates(facts: Facts, name: str) -> None:
    """Raises UserError for a model that does not translate, and so cannot be shown by the Space `name`."""
    if auto_class_of_facts(facts) != "AutoModelForSeq2SeqLM":
        raise UserError(f"--space {name}: {facts.name} does not translate, and a Space shows translations.")


def space_head(facts: Facts, name: str, tags: Sequence[str] = (), **runs: Any) -> SpaceCardData:
    """Returns the metadata of a Space's README.md. runs: keys by which the Hub runs it, as `sdk`, `app_file`."""
    licence, _, own = (facts.licence or "").lower().partition(":")
    return SpaceCardData(
        title=name.split("/")[-1],
        **runs,
        license=licence or None,
        license_name=own or None,
        models=[facts.name] if "/" in facts.name else None,  # a name without owner is no model of the Hub
        tags=["translation", "hf_mlnmt", *tags],
    )


def build_space(facts: Facts, folder: str | Path, name: str) -> Path:
    """Writes the folder of the Space `name` (owner/name) for the model of `facts`; replaces an earlier one.

    Raises: UserError for a model that does not translate, or whose languages are not recorded.
    """
    import torch

    from hf_mlnmt import __version__

    folder = Path(folder)
    check_space_folder(folder)
    check_translates(facts, name)
    if facts.carries_code and not (all(facts.languages) or facts.codes or hasattr(facts.config, "source_languages")):
        raise UserError(f"--space {name}: the page asks which languages the model has. Say --from and --to.")
    head = space_head(facts, name, sdk="gradio", sdk_version=GRADIO, python_version=PYTHON, app_file=APP)
    files = {"app": APP, "requirements": REQUIREMENTS}
    modules = hasattr(facts.config, "source_languages") and not facts.config.is_pair
    content = {"facts": facts, "modules": modules, "sentence": "", "auto_class": "AutoModelForSeq2SeqLM"}
    content |= {"tokenizers": LANGUAGE_TOKENIZERS, "target_tokenizer": TARGET_TOKENIZER}
    with atomic_folder(folder) as new:
        write_text(new / CARD, template("space_card.md.jinja").render(facts=facts, head=head, name=head.title, **files))
        write_text(new / APP, template("space_app.jinja").render(content))
        pinned = f"torch=={torch.__version__.partition('+')[0]}\nhf-mlnmt[serve]=={__version__}"
        write_text(new / REQUIREMENTS, f"--extra-index-url {_TORCH}\n{pinned}\n")
    return folder
