"""Fuses translation and language models (folders, Hub names or loaded) with equal vocabularies into one model."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple

import torch
from huggingface_hub.errors import StrictDataclassError
from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM, PreTrainedModel

from hf_mlnmt.common.errors import UserError
from hf_mlnmt.common.files import atomic_folder
from hf_mlnmt.common.languages import check_same_direction, direction_of, keep_direction, same_language
from hf_mlnmt.common.model_folder import (
    CONFIG,
    GENERATION_CONFIG,
    auto_class_of,
    auto_class_of_config,
    copy_text_files,
    fetch_small_files,
    load_model,
    read_config,
)
from hf_mlnmt.data.tokenizer import Tokenizers, load_tokenizers
from hf_mlnmt.modeling.fusion import (
    FusionConfig,
    FusionForConditionalGeneration,
    check_scales,
    check_vocabulary,
    start_token,
)

SHOWN = 3  # how many differing entries an error names

Given = str | Path | PreTrainedModel


class Member(NamedTuple):
    """A model to be fused, with its name and the tokenizers of its folder (None for a model that was given loaded)."""

    name: str
    model: Any
    tokenizers: Tokenizers | None


def fuse(
    translation: Given | Sequence[Given],
    language_model: Given | Sequence[Given] = (),
    alpha: float = 1.0,
    beta: float = 0.1,
    normalization: str = "sequence",
    *,
    translation_weights: Sequence[float] | None = None,
    language_weights: Sequence[float] | None = None,
    **options: Any,
) -> FusionForConditionalGeneration:
    """Makes one model whose probabilities are p_TM^alpha p_LM^beta (thesis on monolingual data, section 4.1).

    Args:
        translation: a seq2seq model, or several (an ensemble): folders, Hub names or loaded models. Of a fused model
            only its translation models are used; its language models are left out.
        language_model: a causal language model, several, or none, of the same target vocabulary.
        alpha, beta: scales of the translation and the language models; saved in generation_config, and options of
            generate() too.
        normalization: "symbol" (4.2) or "sequence" (4.4).
        translation_weights, language_weights: weights within a kind; default: 1 / the number of members.
        options: from_pretrained's: revision, trust_remote_code and so on.

    Returns: a model in evaluation mode that is saved, published and used like any other.

    Raises: UserError when a model cannot be loaded, is not of its kind, or has another vocabulary than the first: names
        the first entries that differ. Of loaded models only the sizes of the vocabularies can be compared.
    """
    if normalization not in ("symbol", "sequence"):
        raise UserError(f"normalization {normalization!r}: choose symbol or sequence.")
    try:
        check_scales(alpha, beta, normalization)
    except ValueError as error:
        raise UserError(f"{error}.") from error
    members = [member for given in _several(translation) for member in _translation_members(given, options)]
    languages = [_member(given, AutoModelForCausalLM, options) for given in _several(language_model)]
    if not members:
        raise UserError("fuse: no translation model was given; a fused model needs at least one.")
    _check_languages(_several(translation), _several(language_model))
    for member in (*members[1:], *languages):
        check_same_vocabulary(members[0], member)
    settings: dict[str, Any] = {"alpha": alpha, "beta": beta, "normalization": normalization}
    settings["translation_weights"] = None if translation_weights is None else list(translation_weights)
    settings["language_weights"] = None if language_weights is None else list(language_weights)
    fused = _assemble(_config(members, languages, settings), members, languages)
    try:
        fused.factors()
    except ValueError as error:
        raise UserError(f"fuse: {error}. Give one above 0.") from error
    return fused


def fuse_folders(
    models: Sequence[str | Path], output: str | Path, tell: Callable[[str], None], **settings: Any
) -> Path:
    """Fuses translation and language models (folders or Hub names, in any order) and writes the fused model, with the
    first translation model's tokenizers, to the folder `output`, which is returned.

    `settings`: those of `fuse`, and `weights`, one number for each of `models`. Raises: UserError as `fuse`.
    """
    weights = settings.pop("weights", None)
    if weights is not None and len(weights) != len(models):
        raise UserError(f"{len(weights)} weights for {len(models)} models: give one for each model, or none.")
    names: dict[bool, list[str]] = {True: [], False: []}
    of_kind: dict[bool, list[float]] = {True: [], False: []}
    for name, weight in zip(models, weights or [1.0] * len(models)):
        folder = fetch_small_files(name)
        if not (folder / CONFIG).is_file():
            raise UserError(f"{name}: no {CONFIG} there. Give a model folder, such as a run's average/, or a Hub name.")
        seq2seq = bool(getattr(read_config(folder), "is_encoder_decoder", False))
        names[seq2seq].append(str(name))
        of_kind[seq2seq].append(weight)
        tell(f"{name}: a {'translation' if seq2seq else 'language'} model")
    if weights is not None:
        settings |= {"translation_weights": of_kind[True], "language_weights": of_kind[False]}
    fused = fuse(names[True], names[False], **settings)
    with atomic_folder(output) as new:
        try:
            fused.save_pretrained(new)
        except ValueError as error:  # Transformers refuses to write some settings that it reads
            raise UserError(f"{names[True][0]}: {GENERATION_CONFIG} cannot be taken over: {error}") from error
        copy_text_files(fetch_small_files(names[True][0]), new)
        folders, made_of = [fetch_small_files(name) for name in names[True]], [*names[True], *names[False]]
        keep_direction(folders, new, Path(output).name, made_of)
    return Path(output)


def _check_languages(translation: Sequence[Given], language: Sequence[Given]) -> None:
    """Raises UserError for translation models of several directions, or a language model not of the target language."""
    folders = [name for name in translation if isinstance(name, str | Path)]
    check_same_direction(folders, "Only models of one direction can be fused.")
    target = next((pair[1] for pair in map(direction_of, folders) if pair), None)
    for name in (name for name in language if isinstance(name, str | Path)):
        if (own := direction_of(name)) and not same_language(own[1], target):
            raise UserError(f"{name}: a language model of {own[1]}, and {folders[0]} writes {target}.")


def check_same_vocabulary(first: Member, other: Member) -> None:
    """Raises UserError, naming the first entries that differ, where `other` has other target tokens than `first`, or,
    as a translation model, other source tokens."""
    sources = other.model.config.is_encoder_decoder
    if first.tokenizers is not None and other.tokenizers is not None:
        for side in ("source", "target") if sources else ("target",):
            ours, theirs = (_entries(getattr(member.tokenizers, side)) for member in (first, other))
            if different := list(_differences(ours, theirs)):
                raise UserError(
                    f"{other.name}: its {f'{side} ' if sources else ''}vocabulary is not that of {first.name} "
                    f"({len(theirs):,} entries there, {len(ours):,} here): the same ids would mean other words. "
                    f"{'; '.join(different[:SHOWN])}. Train it with the tokenizer of {first.name} "
                    f"(tokenizer.path: {first.name})."
                )
    try:
        check_vocabulary(other.model, check_vocabulary(first.model, None))
    except ValueError as error:
        raise UserError(f"{other.name}: {error}. Train it with the tokenizer of {first.name}.") from error


def _entries(tokenizer: Any) -> list[str | None]:
    """Returns the token of each id, None for an unused id; of the target vocabulary where there are two (Marian)."""
    encoder = tokenizer.target_encoder if getattr(tokenizer, "separate_vocabs", False) else tokenizer.get_vocab()
    entries: list[str | None] = [None] * (max(encoder.values(), default=-1) + 1)
    for token, number in encoder.items():
        entries[number] = token
    return entries


def _differences(ours: list[str | None], theirs: list[str | None]) -> Iterator[str]:
    for number, pair in enumerate(zip_longest(ours, theirs)):
        if pair[0] != pair[1]:
            here, there = ("missing" if token is None else repr(token) for token in pair)
            yield f"entry {number} is {there} there and {here} here"


def _several(given: Given | Sequence[Given]) -> list[Given]:
    return [given] if isinstance(given, str | Path | PreTrainedModel) else list(given)


def _member(given: Given, head: Any, options: dict[str, Any]) -> Member:
    if isinstance(given, PreTrainedModel):
        name = type(given).__name__
        _refuse_masked(name, auto_class_of_config({"architectures": [name]}))
        return Member(name, copy.deepcopy(given), None)  # a copy: the fused model freezes its language models
    small = fetch_small_files(given, **options)
    if (small / CONFIG).is_file():
        _refuse_masked(str(given), auto_class_of(small))
    model = load_model(given, head, **options)
    if type(model).__module__.startswith("transformers_modules."):
        raise UserError(f"{given}: has code of its own, which a fused model cannot take along.")
    return Member(str(given), model, load_tokenizers(small))


def _refuse_masked(name: str, auto_class: str) -> None:
    if auto_class == "AutoModelForMaskedLM":
        raise UserError(f"{name}: a masked language model predicts no next token: give a causal one (decoder-lm).")


def _translation_members(given: Given, options: dict[str, Any]) -> list[Member]:
    """Returns a translation model; of a fused model its translation models, the first with the fused one's settings."""
    member = _member(given, AutoModelForSeq2SeqLM, options)
    if hasattr(member.model.config, "source_languages"):
        raise UserError(f"{member.name}: has modules of single languages, and a fused model has none.")
    if not isinstance(member.model, FusionForConditionalGeneration):
        return [member]
    member.model.translation_models[0].generation_config = member.model.generation_config
    return [Member(member.name, model, member.tokenizers) for model in member.model.translation_models]


def _config(members: list[Member], languages: list[Member], settings: dict[str, Any]) -> FusionConfig:
    first = members[0].model
    configs = [member.model.config for member in (*members, *languages)]
    positions = [getattr(config, "max_position_embeddings", None) for config in configs]
    names = ("pad_token_id", "eos_token_id", "bos_token_id")
    ids: dict[str, Any] = {name: getattr(first.config, name, None) for name in names}
    starts = [getattr(kept, "decoder_start_token_id", None) for kept in (first.generation_config, first.config)]
    starts.append(ids["bos_token_id"])
    ids["decoder_start_token_id"] = next((start for start in starts if start is not None), None)
    try:
        config = FusionConfig(
            translation_models=configs[: len(members)],
            language_models=configs[len(members) :],
            vocab_size=first.get_input_embeddings().weight.shape[0],
            decoder_vocab_size=check_vocabulary(first, None),
            max_position_embeddings=min((number for number in positions if isinstance(number, int)), default=None),
            **ids,
            **settings,
        )
        config.start_token_ids = [start_token(member, config) for member in configs]
    except (ValueError, StrictDataclassError) as error:
        last = str(error).strip().splitlines()[-1].strip()
        raise UserError(f"fuse: {last.removeprefix('ValueError: ')}.") from error
    return config


def _assemble(config: FusionConfig, members: list[Member], languages: list[Member]) -> FusionForConditionalGeneration:
    """Builds the fused model of the members, with generation settings, precision and device of the first."""
    first = members[0].model
    with torch.device("meta"):  # allocates no weights: the members' modules replace all below
        fused = FusionForConditionalGeneration(config)
    for kind, several in (("translation", members), ("language", languages)):
        for number, member in enumerate(several):
            setattr(fused, f"{kind}_{number}", member.model.to(dtype=first.dtype, device=first.device))
        object.__setattr__(config, f"{kind}_models", [member.model.config for member in several])
    fused.generation_config = settings = copy.deepcopy(first.generation_config)
    settings._from_model_config = False  # else generate() would derive the settings from the config again
    settings.alpha, settings.beta = config.alpha, config.beta
    settings.decoder_start_token_id = config.decoder_start_token_id
    return fused.eval()
