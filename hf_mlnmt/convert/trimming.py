"""Cuts a vocabulary to what texts use: fewer rows in embeddings and output, the same translations of such texts.

| tokenizer | families | what is cut |
| --- | --- | --- |
| tokenizer.json | NLLB, mBART, T5, MADLAD, models of this package | entries, merges, the ids of special tokens |
| vocab.json and SentencePiece models | Marian (OPUS-MT), M2M100 | entries of the one, pieces of the others |

These stay: every subword that the texts are cut into, and those it is merged from; special tokens, codes of languages,
single characters, bytes, digits and punctuation, which spell everything else. Entries that stay keep their order, and
so ids that belong to a layout (M2M100's codes after the vocabulary) keep their place.

A text of kept subwords is cut into the same subwords: the best path of a unigram model stays the best among fewer, and
merges that led to a subword are all kept, in their order. Logits of kept subwords are products with the same rows, so
greedy search finds the same translation if its subwords are kept; log-probabilities are over fewer subwords and a
little higher, by which a search with several beams may choose another of nearly equal hypotheses.
"""

from __future__ import annotations

import copy
import math
import re
import time
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoTokenizer

from hf_mlnmt.common.errors import UserError, suggest
from hf_mlnmt.common.files import read_json, write_json
from hf_mlnmt.common.model_folder import TARGET_TOKENIZER, load_model
from hf_mlnmt.convert.importing import RECORD
from hf_mlnmt.data.directions import code_tokens, language_codes
from hf_mlnmt.data.lines import read_lines

TOKENIZER, VOCABULARY, SETTINGS = "tokenizer.json", "vocab.json", "tokenizer_config.json"
_BATCH = 1000
_TABLES = re.compile(r"(^|\.)(shared|embed_tokens|lm_head)\.(weight|bias)$")
_PREFIXED = re.compile(r"<[^<>]+>|>>[^<>]+<<|__\w+__")  # codes, bytes, markers: <2de>, <0x0A>, >>deu<<, __de__


@dataclass(frozen=True)
class Trimmed:
    """The result of `trim`: the cut model and its tokenizer, and how much smaller and faster it is.

    entries, parameters, seconds: before and after: rows, all weights, time of a forward pass of a small batch.
    shares: {text: share of its lines that both tokenizers cut alike}.
    """

    model: Any
    tokenizer: Any
    entries: tuple[int, int]
    parameters: tuple[int, int]
    seconds: tuple[float, float]
    shares: Mapping[str, float]


def trim(
    name: str | Path, texts: Sequence[Path], output: Path, languages: Sequence[str] | None = None, least: int = 1
) -> Trimmed:
    """Cuts a model's vocabulary and writes model and tokenizer into a new folder.

    Args:
        name: a folder or Hub name of a model with one vocabulary.
        texts: one sentence a line, plain or packed, of every language that is to be translated from or to.
        languages: codes to keep, if the tokenizer allows leaving some out; None: all.
        least: how often a subword must occur in all texts together.

    Raises: UserError for no text, an unknown code, a model with two vocabularies, a tokenizer of another kind.
    """
    model = load_model(name)
    tokenizer = AutoTokenizer.from_pretrained(str(name))
    if getattr(tokenizer, "separate_vocabs", False) or (Path(name) / TARGET_TOKENIZER).is_dir():
        raise UserError(f"{name}: has a vocabulary for each side; only one that both share can be cut.")
    counts = count(tokenizer, texts)
    if not counts:
        raise UserError(f"{', '.join(map(str, texts))}: no text in them. Give text of every language to be kept.")
    if languages and hasattr(tokenizer, "src_lang"):
        tokenizer.src_lang = languages[0]  # saved, and put around every text
    tokenizer.save_pretrained(output)
    used = {token for token, number in counts.items() if number >= least}
    kept = _cut_files(output, tokenizer, used, languages, model.config.vocab_size)
    new = _with_rows(model, kept)
    new.save_pretrained(output)
    write_json(output / RECORD, {"source": str(name)})  # whose licence counts
    trimmed = AutoTokenizer.from_pretrained(output)
    shares = {str(text): same_lines(tokenizer, trimmed, text, kept) for text in texts}
    parameters = (model.num_parameters(), new.num_parameters())
    seconds = (_seconds(model), _seconds(new))
    return Trimmed(new, trimmed, (model.config.vocab_size, len(kept)), parameters, seconds, shares)


@torch.no_grad()
def _seconds(model: Any) -> float:
    """Returns the time of a forward pass of 8 pairs of 16 subwords, the best of three."""
    ids = torch.full((8, 16), model.config.eos_token_id)
    times = []
    for _ in range(3):
        begun = time.perf_counter()
        model(input_ids=ids, decoder_input_ids=ids)
        times.append(time.perf_counter() - begun)
    return min(times)


def count(tokenizer: Any, texts: Iterable[Path]) -> dict[str, int]:
    """Counts each subword in the texts; in both sides' subwords if each side has a SentencePiece model of its own."""
    counts: dict[str, int] = {}
    for lines in (lines for path in texts for lines in batches(read_lines(path))):
        for target in (False, True) if hasattr(tokenizer, "spm_target") else (False,):
            for sentence in cut(tokenizer, lines, target):
                for token in sentence:
                    counts[token] = counts.get(token, 0) + 1
    return counts


def batches(lines: Iterable[str]) -> Iterator[list[str]]:
    """Yields the lines in lists of a thousand."""
    lines = iter(lines)
    while batch := list(islice(lines, _BATCH)):
        yield batch


def cut(tokenizer: Any, lines: Sequence[str], target: bool = False) -> Iterator[list[str]]:
    """Yields the subwords of each line; of SentencePiece models all pieces, also those that the vocabulary lacks."""
    if (backend := getattr(tokenizer, "backend_tokenizer", None)) is not None:
        yield from (each.tokens for each in backend.encode_batch(lines, add_special_tokens=False))
    elif (model := getattr(tokenizer, "spm_target" if target else "spm_source", None)) is not None:
        yield from model.encode([tokenizer.normalize(line) for line in lines], out_type=str)
    else:
        yield from tokenizer.sp_model.encode(list(lines), out_type=str)


def same_lines(before: Any, after: Any, text: Path, kept: Sequence[int]) -> float:
    """Returns the share of a text's lines that both tokenizers cut alike; kept: the old id of each new id."""
    same = lines = 0
    for batch in batches(read_lines(text)):
        old, new = (each(batch, truncation=False, verbose=False)["input_ids"] for each in (before, after))
        same += sum(ids == [kept[index] for index in own] for ids, own in zip(old, new, strict=True))
        lines += len(batch)
    return same / max(1, lines)


def spells(token: str) -> bool:
    """Returns whether a subword must stay to spell other text: one character, no letters, or a byte or marker."""
    text = token.removeprefix("▁")
    letters = [unicodedata.category(sign)[0] not in "NPSZ" for sign in text]
    return len(text) < 2 or not any(letters) or bool(_PREFIXED.fullmatch(token))


def _cut_files(folder: Path, tokenizer: Any, used: set[str], languages: Sequence[str] | None, rows: int) -> list[int]:
    """Cuts a saved tokenizer's files; returns the old ids that stay, in the order of their new ids."""
    left_out = _codes_left_out(tokenizer, languages)
    if (folder / TOKENIZER).is_file():
        return _cut_tokenizer_json(folder, used, left_out)
    models = sentencepiece_files(folder)
    if not models or not (folder / VOCABULARY).is_file():
        raise UserError(f"{type(tokenizer).__name__}: neither {TOKENIZER} nor {VOCABULARY} and SentencePiece models.")
    used = set.union(*(_cut_sentencepiece(file, used) for file in models))
    entries = read_json(folder / VOCABULARY)
    special = {*tokenizer.all_special_tokens, tokenizer.pad_token, tokenizer.eos_token, tokenizer.unk_token}
    stay = {token: number for token, number in entries.items() if token in used | special or spells(token)}
    stay = {token: number for token, number in stay.items() if token not in left_out}
    ids = sorted(stay.values())
    new = {number: place for place, number in enumerate(ids)}
    write_json(folder / VOCABULARY, {token: new[number] for token, number in stay.items()})
    ids += range(len(entries), rows) if hasattr(tokenizer, "lang_code_to_id") else ()  # ids of M2M100's codes follow
    settings = read_json(folder / SETTINGS)
    named = {ids.index(int(number)): token for number, token in settings.get("added_tokens_decoder", {}).items()}
    write_json(folder / SETTINGS, {**settings, "added_tokens_decoder": named})
    return ids


def _codes_left_out(tokenizer: Any, languages: Sequence[str] | None) -> set[str]:
    """Returns the tokens of the codes that are left out. Raises: UserError for an unknown language."""
    if languages is None:
        return set()
    tokens = dict(zip(language_codes(tokenizer), code_tokens(tokenizer), strict=True))
    for language in languages:
        if language not in tokens:
            raise UserError(f"--languages: {language}: the model's are {', '.join(tokens)}{suggest(language, tokens)}.")
    return {token for code, token in tokens.items() if code not in languages}


# tokenizer.json


def _cut_tokenizer_json(folder: Path, used: set[str], left_out: set[str]) -> list[int]:
    content = read_json(folder / TOKENIZER)
    model = content["model"]
    is_bpe, added = "merges" in model, {token["content"]: token["id"] for token in content["added_tokens"]}
    entries = model["vocab"] if is_bpe else {token: number for number, (token, _) in enumerate(model["vocab"])}
    if is_bpe:
        merges = [tuple(merge.split(" ")) if isinstance(merge, str) else tuple(merge) for merge in model["merges"]]
        ranks = {pair: rank for rank, pair in enumerate(merges)}
        used = used | _merged_from(used, lambda left, right: ranks.get((left, right), math.inf))
    gone = left_out if _takes_codes_from(folder) else set()
    stay = {token for token in entries if token in used or token in added or spells(token)} | added.keys()
    stay -= gone
    numbers = {**entries, **added}
    ids = sorted({numbers[token] for token in stay})
    new = {number: place for place, number in enumerate(ids)}
    if is_bpe:
        model["vocab"] = {token: new[number] for token, number in entries.items() if token in stay}
        model["merges"] = [list(pair) for pair in merges if {*pair, "".join(pair)} <= stay]
    else:
        model["vocab"] = [entry for entry in model["vocab"] if entry[0] in stay]
        if model.get("unk_id") is not None:
            model["unk_id"] = new[model["unk_id"]]
    content["added_tokens"] = [
        {**token, "id": new[token["id"]]} for token in content["added_tokens"] if token["content"] not in gone
    ]
    for place in _templates(content.get("post_processor")):
        place["ids"] = [new[number] for number in place["ids"]]
    write_json(folder / TOKENIZER, content)
    settings = read_json(folder / SETTINGS)
    for key in ("extra_special_tokens", "additional_special_tokens"):
        if isinstance(settings.get(key), list):
            settings[key] = [token for token in settings[key] if token not in gone]
    settings.pop("added_tokens_decoder", None)  # tokenizer.json has their new ids
    write_json(folder / SETTINGS, settings)
    return ids


def _takes_codes_from(folder: Path) -> bool:
    """Returns whether the tokenizer's class reads its codes from the folder; mBART's classes have a fixed list."""
    return "MBart" not in read_json(folder / SETTINGS).get("tokenizer_class", "")


def _templates(processor: Any) -> Iterator[dict[str, Any]]:
    """Yields the entries of a post-processor's special tokens, whose "ids" are ids of the vocabulary."""
    for each in (processor or {}).get("processors", [processor or {}]):
        yield from each.get("special_tokens", {}).values() if isinstance(each.get("special_tokens"), dict) else ()


def _merged_from(tokens: Iterable[str], rank: Callable[[str, str], float]) -> set[str]:
    """Returns all parts that tokens are merged from. rank: of a pair of parts; lowest is merged first, inf never."""
    found = set()
    for token in tokens:
        parts = list(token)
        while len(parts) > 1:
            first, place = min((rank(*pair), place) for place, pair in enumerate(pairwise(parts)))
            if first == math.inf:
                break
            parts[place : place + 2] = [parts[place] + parts[place + 1]]
            found.add(parts[place])
        found.update(parts)
    return found


# SentencePiece


def sentencepiece_files(folder: Path) -> list[Path]:
    """Returns the SentencePiece models of a saved tokenizer."""
    return [file for file in sorted(folder.iterdir()) if file.suffix in (".spm", ".model")]


def sentencepiece_message(file: Path) -> Any:
    """Returns a SentencePiece model as a protobuf message, which can be changed and written."""
    try:
        from sentencepiece import sentencepiece_model_pb2
    except ImportError as error:
        raise UserError(f"{file.name}: needs protobuf: pip install 'hf-mlnmt[spm]'.") from error
    model: Any = sentencepiece_model_pb2.ModelProto()  # type: ignore[attr-defined]
    model.ParseFromString(file.read_bytes())
    return model


def is_bpe(model: Any) -> bool:
    """Returns whether a SentencePiece model is BPE: it merges the neighbours whose joined piece has the best score."""
    return bool(model.trainer_spec.model_type == model.trainer_spec.BPE)


def _cut_sentencepiece(file: Path, used: set[str]) -> set[str]:
    """Cuts the pieces of a SentencePiece model's file; returns those that stay."""
    model = sentencepiece_message(file)
    if is_bpe(model):
        ranks = {piece.piece: -piece.score for piece in model.pieces if piece.type == piece.NORMAL}
        used = used | _merged_from(used, lambda left, right: ranks.get(left + right, math.inf))
    stay = [piece for piece in model.pieces if piece.type != piece.NORMAL or piece.piece in used or spells(piece.piece)]
    del model.pieces[:]
    model.pieces.extend(stay)
    file.write_bytes(model.SerializeToString())
    return {piece.piece for piece in stay}


# The model


def _with_rows(model: Any, kept: Sequence[int]) -> Any:
    """Returns a model of the same class with the rows `kept` of its vocabulary's tables, its settings' ids
    renumbered."""
    new = {number: place for place, number in enumerate(kept)}
    config = copy.deepcopy(model.config)
    rows, config.vocab_size = config.vocab_size, len(kept)
    if getattr(config, "decoder_vocab_size", None) is not None:
        config.decoder_vocab_size = len(kept)
    _renumber(config, new)
    index = torch.tensor(kept)
    state = {name: _rows_of(name, tensor, index, rows) for name, tensor in model.state_dict().items()}
    made = type(model)(config).to(model.dtype)
    made.load_state_dict(state)
    made.generation_config = copy.deepcopy(model.generation_config)
    _renumber(made.generation_config, new)
    made.tie_weights()
    return made.eval()


def _rows_of(name: str, tensor: Tensor, index: Tensor, rows: int) -> Tensor:
    if name.endswith("final_logits_bias"):
        return tensor[:, index]
    if _TABLES.search(name) and tensor.shape[0] == rows:
        return tensor[index]
    return tensor


def _renumber(settings: Any, new: Mapping[int, int]) -> None:
    """Replaces old ids in a config or generation config by new ones; lists of ids lose those that were cut."""
    for name, value in list(vars(settings).items()):
        if name.endswith("_token_id") and isinstance(value, int):
            setattr(settings, name, new.get(value, value) if value is not None else None)
        elif name.endswith("_token_id") and isinstance(value, list):
            setattr(settings, name, [new[number] for number in value if number in new])
        elif name in ("suppress_tokens", "begin_suppress_tokens") and value:
            setattr(settings, name, [new[number] for number in value if number in new] or None)
        elif name == "bad_words_ids" and value:
            words = [[new[number] for number in word] for word in value if all(number in new for number in word)]
            setattr(settings, name, words or None)
        elif name == "sequence_bias" and value:
            raise UserError("generation_config.json: sequence_bias names ids of the vocabulary: take it out first.")
