"""The model that a recipe trains: its config, fitted to the tokenizers, fused models, models with added languages.

Languages can be added to a trained model of many languages: a recipe says `model: {add_to: FOLDER}`, and its tasks name
the languages; those that the model lacks are added, with new weights. The bridge and the modules of all other languages
stay as they are, bit for bit.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from transformers import AutoConfig, PreTrainedConfig

from hf_mlnmt.common.errors import UserError, naming, suggest
from hf_mlnmt.common.languages import check_direction
from hf_mlnmt.common.model_folder import GENERATION_CONFIG, load_model, read_config, read_part
from hf_mlnmt.data.tokenizer import Tokenizers
from hf_mlnmt.generation.translating.fusing import fuse
from hf_mlnmt.modeling.fusion import FusionForConditionalGeneration
from hf_mlnmt.recipe.schema import Recipe
from hf_mlnmt.training.init_from import local_folder, read_sources
from hf_mlnmt.zoo.records import records_root
from hf_mlnmt.zoo.systems import architecture_of, config_for, find_system

SIDES = ("source", "target")


def extended_config(folder: Path, languages: Mapping[str, Sequence[str]], where: str, sizes: Mapping[str, int]) -> Any:
    """Returns the config of the model in `folder` with the tasks' languages added. UserError where none can be added.

    where: the recipe, for messages. sizes: {language: size of its vocabulary}, for a model of a vocabulary for each.
    """
    config = read_config(folder)
    if not hasattr(config, "source_languages"):
        raise UserError(f"{where}: model.add_to: {folder} has no modules of single languages ({config.model_type}).")
    before = {f"{side}_languages": getattr(config, f"{side}_languages") for side in SIDES}
    for name, known in before.items():
        if config.vocab_sizes is not None:
            config.vocab_sizes = dict(sizes)
        setattr(config, name, list(dict.fromkeys([*known, *languages[name]])))
    if before == {name: getattr(config, name) for name in before}:
        raise UserError(
            f"{where}: model.add_to: {folder} has all languages of the tasks already ({', '.join(config.languages)}): "
            "there is nothing to add."
        )
    return config


def with_languages(recipe: Recipe, root: Path, config: Any) -> Any:
    """Loads the model of model.add_to and adds the languages of `config`; freezes the weights it had."""
    model = load_model(local_folder(str(recipe.model.add_to), root, f"{recipe.path}: model.add_to"), dtype="float32")
    known = {name for name, _ in model.named_parameters()}
    wanted, there = ([set(getattr(each, f"{side}_languages")) for side in SIDES] for each in (config, model.config))
    sides = [new - old for new, old in zip(wanted, there)]
    for language in config.languages:
        source, target = (language in new for new in sides)
        if source or target:
            size = None if config.vocab_sizes is None else config.vocab_sizes[language]
            model.add_language(language, source=source, target=target, vocab_size=size)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name not in known)
    return model


TOKEN_RULES = ("bad_words_ids", "renormalize_logits", "forced_bos_token_id", "forced_eos_token_id", "suppress_tokens")


def token_rules(recipe: Recipe, root: Path, begun: Path | None) -> dict[str, Any]:
    """Returns forced and forbidden tokens, the fields TOKEN_RULES, of the generation config of init_from's whole model.

    begun: a checkpoint of this run, if any, which has these fields too; the folder of `init_from` may be gone by then.
    """
    name = read_sources(recipe.init_from or {}).get("all")
    if name is None:
        return {}
    stored = read_part(begun or local_folder(name, root), GENERATION_CONFIG)
    return {rule: stored[rule] for rule in TOKEN_RULES if stored.get(rule) is not None}


def config_of_recipe(
    recipe: Recipe, tokenizers: Tokenizers, root: Path, tell: Callable[[str], None]
) -> PreTrainedConfig:
    """Returns the model's config for the tokenizers' sizes and ids. UserError where settings do not fit together."""
    config = _config(recipe, tokenizers, root, tell)
    longest = max(recipe.data.max_length, recipe.decoding.max_new_tokens + 1)
    positions = getattr(config, "max_position_embeddings", None)
    if positions is not None and positions < longest:
        raise UserError(
            f"{recipe.path}: data.max_length and decoding.max_new_tokens ask for {longest} positions, but the "
            f"model's max_position_embeddings is {positions}: raise it under model.settings, or lower the others."
        )
    return config


def fused_model(recipe: Recipe, root: Path) -> FusionForConditionalGeneration:
    """Loads the models that model.fuse names, and fuses them with their weights."""
    settings = dataclasses.asdict(recipe.model.fuse)  # type: ignore[arg-type]
    named: dict[str, Any] = {}
    for kind in ("translation", "language_model"):
        names, where = settings.pop(kind), f"{recipe.path}: model.fuse.{kind}"
        names = [names] if isinstance(names, str) else names
        named[kind] = [local_folder(name, root, where) for name in names]
        for folder in named[kind]:
            source = recipe.languages.source if kind == "translation" else None
            check_direction(folder, (source, recipe.languages.target), f"{where}: {folder}")
    return fuse(**named, **settings)


def config_of_base(recipe: Recipe, root: Path) -> PreTrainedConfig | None:
    """Returns the config of init_from's model if that is an encoder-decoder of Transformers which the recipe trains
    unchanged; else None."""
    settings, name = recipe.model, read_sources(recipe.init_from or {}).get("all")
    if name is None or settings.system or settings.record or settings.add_to or settings.fuse:
        return None
    config: PreTrainedConfig = read_config(local_folder(name, root))
    return config if architecture_of(config) is None and config.is_encoder_decoder else None


def speaks_many(recipe: Recipe, root: Path) -> bool:
    """Returns whether the model has separate modules for each language."""
    settings = recipe.model
    if settings.add_to is not None or settings.fuse is not None:
        return settings.add_to is not None
    if settings.system is not None:
        return "source_languages" in find_system(settings.system).architecture.config_class.__dataclass_fields__
    return hasattr(read_config(_config_path(recipe, root)[0]), "source_languages")


def languages_of_tasks(recipe: Recipe) -> dict[str, list[str]]:
    """Returns source_languages and target_languages of a config: the languages of the tasks, in their order."""
    tasks = [section.languages or recipe.languages for section in recipe.sections().values()]
    every = dict.fromkeys(code for task in tasks for code in (task.source, task.target))
    sources, targets = {task.source for task in tasks}, {task.target for task in tasks}
    return {
        "source_languages": [code for code in every if code in sources],
        "target_languages": [code for code in every if code in targets],
    }


def _config(recipe: Recipe, tokenizers: Tokenizers, root: Path, tell: Callable[[str], None]) -> PreTrainedConfig:
    settings = recipe.model
    if settings.fuse is not None:
        return fused_model(recipe, root).config
    if settings.add_to is not None:
        folder = local_folder(settings.add_to, root, f"{recipe.path}: model.add_to")
        return extended_config(folder, languages_of_tasks(recipe), str(recipe.path), tokenizers.sizes())
    ids = {name: getattr(tokenizers.target, name) for name in ("pad_token_id", "eos_token_id", "bos_token_id")}
    path, ours = (None, True) if settings.system is not None else _config_path(recipe, root)
    if ours and (lacking := [name.removesuffix("_id") for name, number in ids.items() if number is None]):
        raise UserError(
            f"{recipe.path}: tokenizer: it has no {lacking[0]}, which the model needs. Name one in the tokenizer's "
            f"tokenizer_config.json ({lacking[0]}: a token of its vocabulary), or train a tokenizer (leave "
            "tokenizer.path out)."
        )
    alone = {"vocab_size": len(tokenizers.target), **ids}  # a language model has the target's vocabulary alone
    both = {**ids, **_fields_of_both_sides(recipe, tokenizers, root)}
    for name in settings.settings.keys() & both.keys() - {"share_encoder_decoder_embeddings"}:
        raise UserError(
            f"{recipe.path}: model.settings.{name}: this is as the tokenizer says ({both[name]}). Leave it out; the "
            "size of the vocabulary is tokenizer.vocab_size."
        )
    if settings.system is not None:
        with naming(f"{recipe.path}: model"):
            fixed = alone if find_system(settings.system).architecture.kind == "language-model" else both
            return config_for(settings.system, settings.shape, **{**settings.settings, **fixed})
    assert path is not None
    config = read_config(path)
    known = {item.name for item in dataclasses.fields(config)}
    for name in settings.settings:
        if name not in known:
            kind = type(config).__name__
            raise UserError(f"{recipe.path}: model.settings.{name}: {kind} has no such field{suggest(name, known)}.")
    architecture = architecture_of(config)
    is_language_model = architecture is not None and architecture.kind == "language-model"
    # the config of init_from's model; if that is a part (an encoder alone), becomes the config of a whole model
    if not ours:
        whole = {} if architecture is None else {"is_encoder_decoder": not is_language_model}
        return AutoConfig.from_pretrained(str(path), **{**settings.settings, **whole})
    if config.vocab_size != (entries := len(tokenizers.source)):
        tell(f"the tokenizer has {entries} entries, {path.name} says {config.vocab_size}: the tokenizer's count")
    config = AutoConfig.from_pretrained(str(path), **{**settings.settings, **(alone if is_language_model else both)})
    config.validate()  # Transformers sets given fields after the checks of the config's class
    return config


def _fields_of_both_sides(recipe: Recipe, tokenizers: Tokenizers, root: Path) -> dict[str, Any]:
    """Returns the fields of a translation model's config that follow from its tokenizers and tasks."""
    fields: dict[str, Any] = {
        "vocab_size": len(tokenizers.source),
        "decoder_vocab_size": len(tokenizers.target),
        "decoder_start_token_id": tokenizers.target.bos_token_id,
    }
    if not tokenizers.joint:
        fields["share_encoder_decoder_embeddings"] = False
    if not speaks_many(recipe, root):
        return fields
    languages, sizes = languages_of_tasks(recipe), tokenizers.sizes()
    settings = recipe.tokenizer
    for key in () if settings.joint or settings.path is not None else ("languages", "processing"):
        if getattr(settings, key):
            raise UserError(
                f"{recipe.path}: tokenizer.{key} is for one vocabulary of all languages, and tokenizer.joint is false: "
                "here each language has its own. Use one of the two."
            )
    missing = [code for codes in languages.values() for code in codes if code not in sizes]
    if sizes and missing:
        raise UserError(
            f"{recipe.path}: tokenizer.path: {recipe.tokenizer.path} has no tokenizer of {missing[0]}, only of "
            f"{', '.join(sizes)}."
        )
    told = {"vocab_sizes": sizes, "language_codes": tokenizers.language_ids()}
    return fields | languages | {name: value for name, value in told.items() if value}


def _config_path(recipe: Recipe, root: Path) -> tuple[Path, bool]:
    """Returns the path of the model's config, and whether it is a record, a config that goes with any tokenizer.

    A record is beside the recipe's folder, or one of the project's own; else the config is that of `init_from`.
    """
    sources = read_sources(recipe.init_from or {})
    if recipe.model.record is None and "all" in sources:
        return local_folder(sources["all"], root, f"{recipe.path}: init_from"), False
    if recipe.model.record is None:
        raise UserError(f"{recipe.path}: model: nothing says what is trained. Give model.system, or model.record.")
    name = f"{recipe.model.record}.json"
    beside = (recipe.path.parent.parent if recipe.path else Path()) / "modeling" / name
    for path in (beside, records_root() / "modeling" / name):
        if path.is_file():
            return path, True
    raise UserError(
        f"{recipe.path}: model.record: there is no {beside}. Name a record that exists, or give model.system and "
        "model.shape."
    )
