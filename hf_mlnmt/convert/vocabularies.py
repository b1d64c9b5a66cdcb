"""Makes tokenizers of other toolkits' vocabularies: a MarianTokenizer of the files beside a Marian checkpoint
(decoder.yml, vocabularies, SentencePiece models); for other toolkits one that cuts text by subword-nmt's codes or a
SentencePiece model beside the checkpoint, or at spaces.
"""

import json
import re
import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from hf_mlnmt.common.errors import UserError
from hf_mlnmt.common.languages import pair_in
from hf_mlnmt.convert.checkpoint import Settings, how_to_cut, yaml_of
from hf_mlnmt.data.tokenizer import EXPECTS, Tokenizers


class Special(NamedTuple):
    """The special tokens of a toolkit's vocabularies. `start`: the token that the decoder begins with."""

    pad: str
    start: str
    end: str
    unknown: str


PAD, BOS, EOS, UNK = "<pad>", "<s>", "</s>", "<unk>"


class Side(NamedTuple):
    """The ids of a side's tokens, and the file that cuts its text: a SentencePiece model, or codes of subword-nmt."""

    ids: dict[str, int]
    cutter: Path


def numbered(where: str, tokens: Sequence[str], needed: Iterable[str] = ()) -> dict[str, int]:
    """Returns {token: its index}. Raises: UserError for a token that occurs twice, or is `needed` and missing."""
    ids = {token: index for index, token in enumerate(tokens)}
    if len(ids) < len(tokens):
        raise UserError(f"{where}: the token {Counter(tokens).most_common(1)[0][0]!r} stands there twice.")
    if missing := [token for token in needed if token not in ids]:
        raise UserError(f"{where}: has no {', '.join(missing)}.")
    return ids


def cut_tokenizers(
    where: Path,
    sides: Sequence[Mapping[str, int]],
    special: Special,
    by: Sequence[str] = ("", ""),
    ends: tuple[bool, bool] = (True, True),
    parts: str = "subwords",
) -> tuple[Tokenizers, list[str]]:
    """Makes a tokenizer for each side from {token: id} (one for both if equal); returns them and notes for the user.

    The file that cut the training data, codes of subword-nmt or a SentencePiece model, cuts text if it lies beside the
    checkpoint `where`. Otherwise text is split at white space, and outputs are tokens with a space between them. A
    piece that the vocabulary lacks, <unk> to the toolkit, gets an id after it (importing.py adds a row).

    Args:
        by: the name of each side's file, if the settings say it. ends: whether </s> is put after a side's text.
    """
    from tokenizers import processors
    from transformers import PreTrainedTokenizerFast

    files, made = [_cutter(where, ids, name) for ids, name in zip(sides, by, strict=True)], []
    names = ", ".join(dict.fromkeys(file.name if file else name for file, name in zip(files, by) if file or name))
    note = f"{names} cuts text, which must have the tokens and the case of the training data"
    for ids, end, file in zip(sides, ends, files, strict=True):
        backend = _backend(file, dict(ids), special)
        if end:
            token = (special.end, ids[special.end])
            backend.post_processor = processors.TemplateProcessing(single=f"$A {special.end}", special_tokens=[token])
        options: dict[str, Any] = {"pad_token": special.pad, "bos_token": special.start, "eos_token": special.end}
        options |= {"unk_token": special.unknown, "clean_up_tokenization_spaces": False}
        if file is None:
            options[EXPECTS] = note = how_to_cut(f" by {names}" if names else "", parts)
        made.append(PreTrainedTokenizerFast(tokenizer_object=backend, **options))
    same = sides[0] == sides[1] and ends[0] == ends[1] and files[0] == files[1]
    return Tokenizers(made[0], made[0] if same else made[1]), [note]


def _cutter(where: Path, ids: Mapping[str, int], name: str) -> Path | None:
    """Returns the codes or the SentencePiece model beside a checkpoint that cut text into such tokens, or None."""
    folder, marked = where if where.is_dir() else where.resolve().parent, any(token.endswith("@@") for token in ids)
    if not marked and not any(token.startswith("▁") for token in ids):
        return None  # the tokens are words, which no file cuts
    endings = ("code", "bpe") if marked else (".model", ".spm")
    found = [file for file in sorted(folder.iterdir()) if file.is_file() and any(part in file.name for part in endings)]
    found = [file for file in found if not marked or _merges(file)]
    if name:
        return next((file for file in found if file.name == name), None)
    if len(found) > 1:
        listed = ", ".join(file.name for file in found)
        raise UserError(f"{where}: {listed} lie beside it; leave the one that cut both sides.")
    return found[0] if found else None


def _merges(file: Path) -> list[tuple[str, str]]:
    """Returns the merges of subword-nmt 0.2 or later, or of fastBPE (which counts them); [] for another file."""
    try:
        lines = file.read_bytes().decode().removesuffix("\n").split("\n")
    except UnicodeDecodeError:
        return []
    columns = 2 if lines[0].startswith("#version: 0.2") else 3
    rows = [line.removesuffix("\r").split(" ") for line in lines[3 - columns :]]
    return list(dict.fromkeys((row[0], row[1]) for row in rows)) if {*map(len, rows)} == {columns} else []


def _backend(file: Path | None, ids: dict[str, int], special: Special) -> Any:
    """Returns a tokenizer of the tokenizers library that cuts text by `file`, or at white space without one."""
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

    if file is None or (merges := _merges(file)):
        model: Any = models.WordLevel(ids, unk_token=special.unknown)
        if file is not None:
            ids = {x if x in special else x[:-2] if x.endswith("@@") else f"{x}</w>": ids[x] for x in ids}
            _add(ids, (piece for pair in merges for piece in (*pair, "".join(pair))))
            model = models.BPE(ids, merges, unk_token=special.unknown, end_of_word_suffix="</w>")
        backend = Tokenizer(model)
        backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        if file is not None:
            backend.decoder = decoders.BPEDecoder("</w>")
        return backend
    _pieces(file)
    proto = sentencepiece_message(file.read_bytes())
    scores = {piece.piece: piece.score for piece in proto.pieces if piece.type in (1, 4)}
    _add(ids, scores)
    if proto.trainer_spec.model_type == 2:
        order = {piece: place for place, piece in enumerate(scores)}
        halves = ((x[:cut], x[cut:], x) for x in scores for cut in range(1, len(x)))
        ranked = sorted((-scores[x], order[x], a, b) for a, b, x in halves if a in scores and b in scores)
        model = models.BPE(ids, [pair[2:] for pair in ranked], unk_token=special.unknown, fuse_unk=True)
    else:
        lowest = min(scores.values()) - 100.0  # the score of tokens that text is never cut into
        listed = [(token, scores.get(token, lowest)) for token in sorted(ids, key=ids.__getitem__)]
        model = models.Unigram(listed, ids[special.unknown], False)
    backend, charsmap = Tokenizer(model), proto.normalizer_spec.precompiled_charsmap
    spaces = [normalizers.Strip(), normalizers.Replace(Regex(" {2,}"), " ")]
    backend.normalizer = normalizers.Sequence([*([normalizers.Precompiled(charsmap)] if charsmap else []), *spaces])
    backend.pre_tokenizer, backend.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    return backend


def _add(ids: dict[str, int], pieces: Iterable[str]) -> None:
    for piece in pieces:
        ids.setdefault(piece, len(ids))


def read_decoding(file: Path) -> Settings:
    """Returns decoder.yml's settings (vocabs, beam-size, normalize); without that file, vocabs found by their names.

    Raises: UserError for settings of another form, and if no vocabularies are found.
    """
    places = (file.with_name(f"{file.name}.decoder.yml"), file.with_name("decoder.yml"))
    path = next((path for path in places if path.is_file()), None)
    if path is None:
        for part, sides in product(parts_beside(file), (["vocab", "vocab"], ["srcvocab", "trgvocab"])):
            files = [[path for path in file.parent.glob(f"{side}*.spm") if part in path.name] for side in sides]
            if all(len(found) == 1 for found in files):
                return Settings(f"{file}: ", {"vocabs": [found[0].name for found in files]})
        raise UserError(
            f"{file}: there is no {places[0].name} or decoder.yml beside it, which names the vocabularies, and no "
            "vocab.*.spm, or srcvocab.*.spm and trgvocab.*.spm, that is the only one."
        )
    settings = Settings(f"{path}: ", yaml_of(path, path.read_bytes()))
    names = settings.get("vocabs")
    if not isinstance(names, list) or [type(name) for name in names] != [str, str]:
        raise UserError(f"{path}: vocabs must name two files, the source's and the target's.")
    settings.check_search("beam-size", "normalize")
    return settings


def parts_beside(file: Path) -> list[str]:
    """Returns what names of files beside a model may contain, best first: its languages (".ende."), or "" (any)."""
    pair = pair_in(file)
    return [*([f".{''.join(pair)}."] if pair else []), ""]


def read_vocabularies(file: Path, names: Sequence[str]) -> list[Side]:
    """Reads each side's vocabulary, and finds the file that cuts its text. Raises: UserError if a file is missing."""
    sides = []
    for name, side in zip(names, ("source", "target"), strict=True):
        path = next((x for x in (file.parent / name, file.parent / Path(name).name) if x.is_file()), None)
        if path is None:
            raise UserError(f"{file}: its vocabulary {Path(name).name} is not beside it.")
        spm = path if path.suffix == ".spm" else file.parent / f"{side}.spm"
        ids = (_pieces if path is spm else read_list)(path, EOS, UNK)
        codes = spm.with_suffix(".bpe")  # subword-nmt's codes, in earlier releases of OPUS-MT
        cutter = spm if spm.is_file() else _cutter(file, ids, codes.name if codes.is_file() else "")
        if cutter is None:
            raise UserError(f"{path}: a list of tokens, which says nothing of how text is cut: {spm.name} is missing.")
        sides.append(Side(ids, cutter))
    return sides


def sentencepiece_message(content: bytes) -> Any:
    """Parses a SentencePiece model to a protobuf message, which can be changed. Raises: UserError without protobuf."""
    from transformers.convert_slow_tokenizer import import_protobuf

    try:
        return import_protobuf().ModelProto.FromString(content)
    except ImportError as error:
        raise UserError("changing a SentencePiece model needs protobuf: pip install 'hf-mlnmt[spm]'.") from error


def _pieces(path: Path, *needed: str) -> dict[str, int]:
    try:
        import sentencepiece
    except ImportError as error:
        raise UserError(f"{path}: reading it needs SentencePiece: pip install 'hf-mlnmt[spm]'.") from error
    try:
        model = sentencepiece.SentencePieceProcessor(model_file=str(path))
    except (OSError, RuntimeError) as error:
        raise UserError(f"{path}: not a SentencePiece model ({error}).") from error
    return numbered(str(path), [model.id_to_piece(index) for index in range(len(model))], needed)


# A line `token: id` of Marian's vocabulary, YAML whose scalars are all read as text: on, 010 and ~ are tokens.
_ENTRY = re.compile(r"""("(?:[^"\\]|\\.)*"|'(?:[^']|'')*'|[^ \t"'].*?) *: *(\d+) *\r?""", re.DOTALL)
_ESCAPE = re.compile(r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|(.))", re.DOTALL)
_SHORT = {"0": "\0", "a": "\a", "b": "\b", "t": "\t", "n": "\n", "v": "\v", "f": "\f", "r": "\r", "e": "\x1b"}
_SHORT |= {"N": "\x85", "_": "\xa0", "L": "\u2028", "P": "\u2029"}


def read_list(path: Path, *needed: str) -> dict[str, int]:
    """Returns {token: id} of a .yml or .json file, whose lines end at \\n alone. Raises: UserError for other files."""
    try:
        entries = _entries(path.read_bytes().decode("utf-8-sig"))
    except (ValueError, RecursionError, yaml.YAMLError) as error:
        raise UserError(f"{path}: cannot be read: {error}") from error
    if not entries or sorted((number for _, number in entries), key=str) != sorted(range(len(entries)), key=str):
        raise UserError(f"{path}: a mapping of tokens to the numbers 0, 1, 2 ... is expected.")
    return numbered(str(path), [token for token, _ in sorted(entries, key=lambda entry: entry[1])], needed)


def _entries(text: str) -> list[tuple[str, Any]]:
    """Parses (token, number) pairs line by line; a file of another form as JSON, or as YAML without types."""
    lines = [line for line in text.split("\n") if line.strip(" \t\r") not in ("", "---")]
    matches = [_ENTRY.fullmatch(line) for line in lines]
    if all(matches):
        return [(_scalar(entry[1]), int(entry[2])) for entry in matches if entry]
    try:
        return list(json.loads(text, object_pairs_hook=list))
    except ValueError:
        content = yaml.load(text, yaml.BaseLoader)  # reads every scalar as text
    pairs = content.items() if isinstance(content, dict) else ()
    return [(token, int(number) if str(number).isdecimal() else number) for token, number in pairs]


def _scalar(text: str) -> str:
    """Returns the text that a one-line YAML scalar stands for."""
    if text[0] == "'":
        return text[1:-1].replace("''", "'")
    if text[0] != '"':
        return text

    def meant(match: re.Match) -> str:
        number = match[1] or match[2] or match[3]
        return chr(int(number, 16)) if number else _SHORT.get(match[4], match[4])

    return _ESCAPE.sub(meant, text[1:-1])


def read_sentencepiece(path: Path) -> Tokenizers:
    """Makes a tokenizer for both sides of a SentencePiece model, whose ids it keeps; adds <pad> if the model has none.

    Raises: UserError for another file, and for a model without <s>, </s> or <unk>.
    """
    ids = _pieces(path, BOS, EOS, UNK)
    made = tokenizers_of([Side(ids, path)] * 2, ids.get(PAD, len(ids)))
    made.source.bos_token = BOS
    return made


def tokenizers_of(sides: Sequence[Side], pad: int, languages: tuple[str, str] | None = None) -> Tokenizers:
    """Makes Transformers' tokenizer for Marian, with id `pad` for <pad> on both sides; languages: (source, target)."""
    from transformers import MarianTokenizer

    separate, cutters = sides[0].ids != sides[1].ids, [side.cutter for side in sides]
    if any(map(_merges, cutters)):
        special, names = Special(PAD, PAD, EOS, UNK), [cutter.name for cutter in cutters]
        return cut_tokenizers(cutters[0], [{**side.ids, PAD: pad} for side in sides], special, names)[0]
    with tempfile.TemporaryDirectory() as scratch:
        files = {}
        for name, side in zip(("vocab", "target_vocab_file"), sides, strict=True):
            files[name] = str(Path(scratch) / f"{name}.json")
            Path(files[name]).write_text(json.dumps({**side.ids, PAD: pad}), encoding="utf-8")
        tokenizer = MarianTokenizer(
            source_spm=str(cutters[0]),
            target_spm=str(cutters[1]),
            vocab=files["vocab"],
            target_vocab_file=files["target_vocab_file"] if separate else None,
            separate_vocabs=separate,
            source_lang=languages[0] if languages else None,
            target_lang=languages[1] if languages else None,
        )
    return Tokenizers(tokenizer, tokenizer)
