"""Changes the vocabulary of a trained model: `trim` cuts it to what texts use, `add_languages` adds languages,
characters and pieces.

| tokenizer | families | what is changed |
| --- | --- | --- |
| tokenizer.json | NLLB, mBART, T5, MADLAD, models of this package | entries, merges, the ids of special tokens |
| vocab.json and SentencePiece models | Marian (OPUS-MT), M2M100 | entries of the one, pieces of the others |

**Cut.** These stay: every subword that the texts are cut into, and those it is merged from; special tokens, codes of
languages, single characters, bytes, digits and punctuation, which spell everything else. Entries that stay keep their
order, and so ids that belong to a layout (M2M100's codes after the vocabulary) keep their place. A text of kept
subwords is cut into the same subwords: the best path of a unigram model stays the best among fewer, and merges that led
to a subword are all kept, in their order. Logits of kept subwords are products with the same rows, so greedy search
finds the same translation if its subwords are kept; log-probabilities are over fewer subwords and a little higher, by
which a search with several beams may choose another of nearly equal hypotheses.

**Added.** A code becomes a token of the tokenizer's own kind: `gag_Latn` (NLLB), `gag_XX` (mBART-50), `>>gag<<` (Marian
of several targets), `<2gag>` (MADLAD). Its row begins as a copy of a near language's. Characters of a text that the
vocabulary lacks, and pieces learnt from the text, get ids after all others; old ids stay. A character's row begins as
its base letter's, or as the mean of all single characters'; a piece's as the mean of its parts'. Pieces are learnt as
merges (byte pair encoding) of the subwords that the text is cut into. A piece replaces its parts wherever they are
neighbours, so text without such neighbours is cut and translated as before. To M2M100 nothing can be added:
Transformers' own code keeps its codes as a fixed list after its vocabulary.
"""

from __future__ import annotations

import copy
import json
import math
import re
import time
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice, pairwise
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import AutoTokenizer

from hf_mlnmt.common.errors import UserError, suggest
from hf_mlnmt.common.files import read_json, write_json
from hf_mlnmt.common.model_folder import TARGET_TOKENIZER, load_model
from hf_mlnmt.convert.importing import RECORD
from hf_mlnmt.convert.vocabularies import sentencepiece_message
from hf_mlnmt.data.directions import code_tokens, language_codes
from hf_mlnmt.data.lines import read_lines

TOKENIZER, VOCABULARY, SETTINGS = "tokenizer.json", "vocab.json", "tokenizer_config.json"
_BATCH = 1000
_TABLES = re.compile(r"(^|\.)(shared|embed_tokens|lm_head)\.(weight|bias)$")
_PREFIXED = re.compile(r"<[^<>]+>|>>[^<>]+<<|__\w+__")  # tokens of codes and bytes: <2de>, <0x0A>, >>deu<<, __de__
_RARE = 5  # a piece that occurs fewer times in the text is not learnt
_SHOWN = 3  # most words shown as examples of a character that the vocabulary lacks
_GAP = "<unused{}>"  # the name of a tokenizer entry made for a row of the model that had none
_PRIVATE = 0xF0000  # first of 131,068 private characters of Unicode: while pieces are learnt, each subword is one
_NEVER = -1e6  # the score of an entry that no text is cut into


class Trimmed(NamedTuple):
    """Holds what `trim` saved: rows, parameters and seconds of a small batch's forward pass, each (before, after); and
    {text: share of its lines that both tokenizers cut alike}."""

    entries: tuple[int, int]
    parameters: tuple[int, int]
    seconds: tuple[float, float]
    shares: Mapping[str, float]


def trim(name: str | Path, texts: Sequence[Path], output: Path, languages: Sequence[str] | None = None) -> Trimmed:
    """Cuts a model's vocabulary to what `texts` use; writes model and tokenizer into a new folder.

    Args:
        name: a folder or Hub name of a model with one vocabulary.
        texts: one sentence a line, plain or packed, of every language that is to be translated from or to.
        languages: codes to keep, if the tokenizer allows leaving some out; None: all.

    Raises: UserError for no text, an unknown code, a model with two vocabularies, a tokenizer of another kind.
    """
    model, tokenizer = load_model(name), AutoTokenizer.from_pretrained(str(name))
    _check_shared(name, tokenizer)
    used = subwords_of(tokenizer, texts)
    if not used:
        raise UserError(f"{', '.join(map(str, texts))}: no text in them. Give text of every language to be kept.")
    if languages and hasattr(tokenizer, "src_lang"):
        tokenizer.src_lang = languages[0]  # the code that is saved, and put around every text
    tokenizer.save_pretrained(output)
    kept = _cut_files(output, tokenizer, used, languages, model.config.vocab_size)
    new = _with_rows(model, kept)
    new.save_pretrained(output)
    write_json(output / RECORD, {"source": str(name)})  # records whose licence holds for the new model
    trimmed = AutoTokenizer.from_pretrained(output)
    shares = {str(text): same_lines(tokenizer, trimmed, text, kept) for text in texts}
    parameters, seconds = (model.num_parameters(), new.num_parameters()), (_seconds(model), _seconds(new))
    return Trimmed((model.config.vocab_size, len(kept)), parameters, seconds, shares)


def _check_shared(name: str | Path, tokenizer: Any) -> None:
    """Raises UserError for a model with a vocabulary for each side."""
    if getattr(tokenizer, "separate_vocabs", False) or (Path(name) / TARGET_TOKENIZER).is_dir():
        raise UserError(f"{name}: has a vocabulary for each side; only one that both share can be changed.")


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


def subwords_of(tokenizer: Any, texts: Iterable[Path]) -> set[str]:
    """Returns the subwords that the texts are cut into, by both sides' SentencePiece models if each has its own."""
    sides = (False, True) if hasattr(tokenizer, "spm_target") else (False,)
    lines = (batch for path in texts for batch in batches(read_lines(path)))
    return {token for batch in lines for side in sides for line in cut(tokenizer, batch, side) for token in line}


def batches(lines: Iterable[str]) -> Iterator[list[str]]:
    """Yields the lines in lists of a thousand."""
    lines = iter(lines)
    while batch := list(islice(lines, _BATCH)):
        yield batch


def cut(tokenizer: Any, lines: Sequence[str], target: bool = False) -> Iterator[list[str]]:
    """Yields the subwords that each line is cut into; of a SentencePiece model also pieces that vocab.json lacks."""
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
    """Returns whether a subword must stay to spell other text: a character, one without letters, a byte or a marker."""
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
    # The ids of M2M100's codes come after those in vocab.json; all of these stay.
    ids += range(len(entries), rows) if hasattr(tokenizer, "lang_code_to_id") else ()
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


# Functions that cut the vocabulary in tokenizer.json


def _cut_tokenizer_json(folder: Path, used: set[str], left_out: set[str]) -> list[int]:
    content = read_json(folder / TOKENIZER)
    model = content["model"]
    merging, added = "merges" in model, {token["content"]: token["id"] for token in content["added_tokens"]}
    entries = model["vocab"] if merging else {token: number for number, (token, _) in enumerate(model["vocab"])}
    if merging:
        merges = [tuple(merge.split(" ")) if isinstance(merge, str) else tuple(merge) for merge in model["merges"]]
        ranks = {pair: rank for rank, pair in enumerate(merges)}
        used = used | _merged_from(used, lambda left, right: ranks.get((left, right), math.inf))
    settings = read_json(folder / SETTINGS)
    # The tokenizer classes of mBART have a fixed list of codes: none can be left out.
    gone = set() if "MBart" in settings.get("tokenizer_class", "") else left_out
    stay = {token for token in entries if token in used or token in added or spells(token)} | added.keys()
    stay -= gone
    numbers = {**entries, **added}
    ids = sorted({numbers[token] for token in stay})
    new = {number: place for place, number in enumerate(ids)}
    if merging:
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
    for key in ("extra_special_tokens", "additional_special_tokens"):
        if isinstance(settings.get(key), list):
            settings[key] = [token for token in settings[key] if token not in gone]
    settings.pop("added_tokens_decoder", None)  # tokenizer.json now has the new ids
    write_json(folder / SETTINGS, settings)
    return ids


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


# Functions for SentencePiece models


def sentencepiece_files(folder: Path) -> list[Path]:
    """Returns the files of SentencePiece models in the folder of a saved tokenizer."""
    return [file for file in sorted(folder.iterdir()) if file.suffix in (".spm", ".model")]


def is_bpe(model: Any) -> bool:
    """Returns whether a SentencePiece model is BPE: it merges the neighbours whose joined piece has the best score."""
    return bool(model.trainer_spec.model_type == model.trainer_spec.BPE)


def _cut_sentencepiece(file: Path, used: set[str]) -> set[str]:
    """Cuts the pieces of a SentencePiece model's file; returns those that stay."""
    model = sentencepiece_message(file.read_bytes())
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
    """Returns a model of the same class whose vocabulary has the rows `kept`; renumbers the ids in its settings."""
    new = {number: place for place, number in enumerate(kept)}
    config = copy.deepcopy(model.config)
    rows, config.vocab_size = config.vocab_size, len(kept)
    if getattr(config, "decoder_vocab_size", None) is not None:
        config.decoder_vocab_size = len(kept)
    _renumber(config, new)
    state = model.state_dict()
    for name, tensor in state.items():
        if name.endswith("final_logits_bias"):
            state[name] = tensor[:, kept]
        elif _TABLES.search(name) and len(tensor) == rows:
            state[name] = tensor[kept]
    made = type(model)(config).to(model.dtype)
    made.load_state_dict(state)
    made.generation_config = copy.deepcopy(model.generation_config)
    _renumber(made.generation_config, new)
    made.tie_weights()
    return made.eval()


def _renumber(settings: Any, new: Mapping[int, int]) -> None:
    """Replaces old ids in a config or generation config by new ones; lists of ids lose those that were cut."""
    for name, value in list(vars(settings).items()):
        if name.endswith("_token_id") and isinstance(value, int):
            setattr(settings, name, new.get(value, value))
        elif isinstance(value, list) and (name.endswith("_token_id") or name.endswith("suppress_tokens")):
            setattr(settings, name, [new[number] for number in value if number in new] or None)
        elif name == "bad_words_ids" and value:
            words = [[new[number] for number in word] for word in value if all(number in new for number in word)]
            setattr(settings, name, words or None)


# Functions that add languages, characters and pieces to a model


class Extended(NamedTuple):
    """Holds what `add_languages` added. codes: {token of a code: its id}. entries: characters and pieces, by their ids.
    characters: {character that the vocabulary lacked: (how often it occurs in the text, words that have it)}."""

    codes: dict[str, int]
    characters: dict[str, tuple[int, list[str]]]
    entries: list[str]


def add_languages(
    name: str | Path,
    output: Path,
    codes: Mapping[str, str],
    text: Path | None = None,
    characters: bool = False,
    pieces: int = 0,
) -> Extended:
    """Adds language codes, and a text's characters and pieces, to a multilingual model; writes it into a new folder.

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
    _check_shared(name, tokenizer)
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
    write_json(output / RECORD, {"source": str(name)})  # records whose licence holds for the new model
    return Extended({token: numbers[token] for token in near}, missing, added)


def _grow(model: Any, rows: Mapping[str, Tensor]) -> dict[str, int]:
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
    """Returns {character of the lines that the vocabulary lacks: (count, some words with it)}, most frequent first."""
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


def _row_of_character(tokenizer: Any, table: Tensor, sign: str) -> Tensor:
    """Returns the first values of a character's row: its base letter's row, or the mean over all single characters."""
    for base in (unicodedata.normalize("NFD", sign)[0], sign.lower(), sign.upper()):
        number = tokenizer.convert_tokens_to_ids(base)
        if number not in (None, tokenizer.unk_token_id):
            return table[number]
    singles = [number for token, number in tokenizer.get_vocab().items() if len(token) == 1 and number < len(table)]
    return table[singles].mean(0)


def learn(tokenizer: Any, lines: Sequence[str], count: int) -> list[tuple[str, str]]:
    """Learns at most `count` merges of neighbouring subwords of a text, the most frequent first; returns the pairs."""
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
            model = sentencepiece_message(file.read_bytes())
            scores = {piece.piece: piece.score for piece in model.pieces}
            for entry in (entry for entry in numbers if entry not in codes and entry not in scores):
                scores[entry] = _score(scores, joined.get(entry), is_bpe(model))
                model.pieces.add(piece=entry, score=scores[entry], type=model.SentencePiece.NORMAL)
            file.write_bytes(model.SerializeToString())
        return
    content = read_json(folder / TOKENIZER)
    model, added = content["model"], {token["id"]: token["content"] for token in content["added_tokens"]}
    if "merges" in model:  # enters added tokens too, or loading would give their ids to new entries
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


def _score(scores: Mapping[str, float], parts: tuple[str, str] | None, merging: bool) -> float:
    """Returns a new entry's score: just above the sum of its parts', or below all others if scores are ranks."""
    lowest = min((score for score in scores.values() if score > _NEVER), default=0.0)
    if parts is None or merging:
        return lowest - 1
    return scores[parts[0]] + scores[parts[1]] + 1e-3
