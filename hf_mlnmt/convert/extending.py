"""Adds languages, characters or pieces to a trained model of many languages: new rows; old ids stay as they were.

A code becomes a token of the tokenizer's own kind: `gag_Latn` (NLLB), `gag_XX` (mBART-50), `>>gag<<` (Marian of several
targets), `<2gag>` (MADLAD). Its row begins as a copy of a near language's. Characters of a text that the vocabulary
lacks, and pieces learnt from the text, get ids after all others. A character's row begins as its base letter's, or as
the mean of all single characters'; a piece's as the mean of its parts'.

Pieces are learnt as merges (byte pair encoding) of the subwords that the text is cut into. A piece replaces its parts
wherever they are neighbours, so text without such neighbours is cut and translated as before.

Transformers' own code keeps M2M100's codes as a fixed list after its vocabulary: to that model nothing can be added.
"""

from __future__ import annotations

import json
import unicodedata
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer

from hf_mlnmt.common.errors import UserError, suggest
from hf_mlnmt.common.files import read_json, write_json
from hf_mlnmt.common.model_folder import load_model
from hf_mlnmt.convert.importing import RECORD
from hf_mlnmt.convert.trimming import (
    SETTINGS,
    TOKENIZER,
    VOCABULARY,
    batches,
    cut,
    is_bpe,
    sentencepiece_files,
    sentencepiece_message,
)
from hf_mlnmt.data.directions import code_tokens, language_codes
from hf_mlnmt.data.lines import read_lines

_RARE = 5  # occurrences below which no piece is learnt
_SHOWN = 3  # words with a missing character, as examples
_GAP = "<unused{}>"  # names of tokenizer entries for rows of the model without one
_PRIVATE = 0xF0000  # where Unicode leaves 131,068 characters free: one stands for each subword while pieces are learnt


@dataclass
class Extended:
    """The result of `add_languages`: model and tokenizer with new rows, and what was added.

    codes: {token: id}. characters: of the text, lacking in the vocabulary -> how often, and words that have them.
    entries: characters and pieces that were added, in the order of their ids.
    """

    model: Any
    tokenizer: Any
    codes: dict[str, int] = field(default_factory=dict)
    characters: dict[str, tuple[int, list[str]]] = field(default_factory=dict)
    entries: list[str] = field(default_factory=list)


def add_languages(
    name: str | Path,
    output: Path,
    codes: Mapping[str, str],
    text: Path | None = None,
    characters: bool = False,
    pieces: int = 0,
) -> Extended:
    """Adds codes, and what a text needs, to a model of many languages; writes model and tokenizer into a new folder.

    Args:
        name: a folder or Hub name.
        codes: new code -> code of the model, whose row the new one begins as a copy of.
        text: of the new languages, one sentence a line: its characters are counted, and pieces learnt from it.
        characters: add those that the vocabulary lacks. pieces: add at most so many pieces, learnt from the text.

    Raises: UserError for a code that the model has or cannot get, an unknown near language, nothing to add.
    """
    model, tokenizer = load_model(name), AutoTokenizer.from_pretrained(str(name))
    if hasattr(tokenizer, "lang_code_to_token"):
        raise UserError(f"{name}: Transformers' M2M100Tokenizer has its codes as a fixed list: take NLLB or mBART-50.")
    if getattr(tokenizer, "separate_vocabs", False):
        raise UserError(f"{name}: has a vocabulary for each side; only to one that both share can be added.")
    if (characters or pieces) and text is None:
        raise UserError("--characters and --pieces come from a text: give it with --text.")
    tokens = _tokens(tokenizer, codes)
    lines = list(read_lines(text)) if text else []
    missing = lacking(tokenizer, lines)
    table = model.get_input_embeddings().weight.detach()
    rows = {each: _row_of_character(tokenizer, table, each) for each in missing} if characters else {}
    near = {token: table[tokenizer.convert_tokens_to_ids(other)] for token, other in tokens.items()}
    if not (rows or near or pieces):
        raise UserError("nothing to add: give --code; or, for text that needs them, --characters or --pieces.")
    tokenizer.save_pretrained(output)
    numbers = _grow(model, {**rows, **near})
    _add_to_files(output, numbers, [*near], [])
    added = [*rows]
    if pieces:
        cutter = AutoTokenizer.from_pretrained(output)
        merges = learn(cutter, lines, pieces)
        table, rows = model.get_input_embeddings().weight.detach(), {}
        for left, right in merges:
            parts = [
                rows[part] if part in rows else table[cutter.convert_tokens_to_ids(part)] for part in (left, right)
            ]
            rows[left + right] = torch.stack(parts).mean(0)
        _add_to_files(output, _grow(model, rows), [], merges)
        added += rows
    model.save_pretrained(output)
    write_json(output / RECORD, {"source": str(name)})  # whose licence counts
    ids = {token: numbers[token] for token in near}
    return Extended(model, AutoTokenizer.from_pretrained(output), ids, missing, added)


def _grow(model: Any, rows: Mapping[str, torch.Tensor]) -> dict[str, int]:
    """Appends rows to a model's embeddings and output; returns the id of each."""
    size = model.config.vocab_size
    if rows:
        model.resize_token_embeddings(size + len(rows), mean_resizing=False)
        with torch.no_grad():
            for module in (model.get_input_embeddings(), model.get_output_embeddings()):
                module.weight[size:] = torch.stack([*rows.values()]).to(module.weight.dtype)
    return {entry: size + place for place, entry in enumerate(rows)}


def _tokens(tokenizer: Any, codes: Mapping[str, str]) -> dict[str, str]:
    """Returns {token of a new code: token of the near language}."""
    known = dict(zip(language_codes(tokenizer), code_tokens(tokenizer), strict=True))
    if codes and not known:
        raise UserError("the model is told no languages, or by words (T5): there is no code to add.")
    tokens = {}
    for code, near in codes.items():
        if code in known:
            raise UserError(f"--code: the model has {code} already.")
        if near not in known:
            raise UserError(f"--like: {near}: the model's are {', '.join(known)}{suggest(near, known)}.")
        token = known[near].replace(near, code)
        if not code.isascii() or not code.replace("_", "").isalnum() or token == known[near]:
            raise UserError(f"--code: {code!r}: letters, digits and _ are expected, as in {near}.")
        tokens[token] = known[near]
    return tokens


def lacking(tokenizer: Any, lines: Sequence[str]) -> dict[str, tuple[int, list[str]]]:
    """Returns characters that the vocabulary lacks, most frequent first -> how often, and some words that have them."""
    counts = Counter(sign for line in lines for sign in line if not sign.isspace())
    unknown = tokenizer.unk_token_id
    signs = [sign for sign, _ in counts.most_common()]
    encoded = tokenizer(signs, add_special_tokens=False)["input_ids"] if signs else []
    found = [sign for sign, ids in zip(signs, encoded, strict=True) if unknown in ids]
    words: dict[str, list[str]] = {sign: [] for sign in found}
    for word in dict.fromkeys(word for line in lines for word in line.split()) if found else ():
        for sign in words.keys() & {*word}:
            if len(words[sign]) < _SHOWN:
                words[sign].append(word)
    return {sign: (counts[sign], words[sign]) for sign in found}


def _row_of_character(tokenizer: Any, table: torch.Tensor, sign: str) -> torch.Tensor:
    """Returns the first values of a character's row: its base letter's row, or the mean over all single characters."""
    for base in (unicodedata.normalize("NFD", sign)[0], sign.lower(), sign.upper()):
        number = tokenizer.convert_tokens_to_ids(base)
        if number not in (None, tokenizer.unk_token_id):
            return table[number]
    singles = [number for token, number in tokenizer.get_vocab().items() if len(token) == 1 and number < len(table)]
    return table[singles].mean(0)


def learn(tokenizer: Any, lines: Sequence[str], count: int) -> list[tuple[str, str]]:
    """Learns merges of the subwords that a text is cut into, the most frequent first; at most `count`."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    known, signs, words = tokenizer.get_vocab().keys() - {tokenizer.unk_token}, dict[str, str](), Counter[str]()
    for batch in batches(lines):
        for sentence in cut(tokenizer, batch):
            word = ""
            for piece in (*sentence, "▁"):
                if piece.startswith("▁") or piece not in known:
                    words[word] += 1
                    word = ""
                if piece in known:
                    word += signs.setdefault(piece, chr(_PRIVATE + len(signs)))
    names = {sign: piece for piece, sign in signs.items()}
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    trainer = trainers.BpeTrainer(vocab_size=len(signs) + count, min_frequency=_RARE, show_progress=False)
    backend.train_from_iterator((f"{word} " * number for word, number in words.items() if word), trainer)
    merges = json.loads(backend.to_str())["model"]["merges"]
    spelt = [("".join(names[sign] for sign in left), "".join(names[sign] for sign in right)) for left, right in merges]
    return [(left, right) for left, right in spelt if left + right not in known]


# Files


def _add_to_files(
    folder: Path, numbers: Mapping[str, int], codes: Sequence[str], merges: Sequence[tuple[str, str]]
) -> None:
    """Adds entries to a saved tokenizer, codes as special tokens."""
    if not numbers:
        return
    joined = {left + right: (left, right) for left, right in merges}
    if not (folder / TOKENIZER).is_file():
        write_json(folder / VOCABULARY, read_json(folder / VOCABULARY) | dict(numbers))
        for file in sentencepiece_files(folder):
            model = sentencepiece_message(file)
            scores = {piece.piece: piece.score for piece in model.pieces}
            for entry in (entry for entry in numbers if entry not in codes and entry not in scores):
                scores[entry] = _score(scores, joined.get(entry), is_bpe(model))
                model.pieces.add(piece=entry, score=scores[entry], type=model.SentencePiece.NORMAL)
            file.write_bytes(model.SerializeToString())
        return
    content = read_json(folder / TOKENIZER)
    model, added = content["model"], {token["id"]: token["content"] for token in content["added_tokens"]}
    if "merges" in model:  # with added tokens too, or loading would give new entries their ids
        model["vocab"] |= {**{token: number for number, token in added.items()}, **numbers}
        model["merges"] += [list(pair) for pair in merges]
    else:
        scores = dict(model["vocab"])
        for number in range(len(model["vocab"]), min(numbers.values())):
            model["vocab"].append([added.get(number, _GAP.format(number)), _NEVER])
        for entry in numbers:
            scores[entry] = _NEVER if entry in codes else _score(scores, joined.get(entry), False)
            model["vocab"].append([entry, scores[entry]])
    usual = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    content["added_tokens"] += [{"id": numbers[code], "content": code, **usual} for code in codes]
    write_json(folder / TOKENIZER, content)
    settings = read_json(folder / SETTINGS)
    settings["extra_special_tokens"] = [*(settings.get("extra_special_tokens") or []), *codes]
    write_json(folder / SETTINGS, settings)


_NEVER = -1e6  # the score of an entry that no text is cut into


def _score(scores: Mapping[str, float], parts: tuple[str, str] | None, merging: bool) -> float:
    """Returns a new entry's score: just above the sum of its parts', or below all others if scores are ranks."""
    lowest = min((score for score in scores.values() if score > _NEVER), default=0.0)
    if parts is None or merging:
        return lowest - 1
    return scores[parts[0]] + scores[parts[1]] + 1e-3
