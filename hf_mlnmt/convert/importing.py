"""Imports checkpoints that the baseline can compute as model folders of this package; checks them, refuses others."""

import importlib.metadata
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch

from hf_mlnmt.common.errors import UserError
from hf_mlnmt.common.files import atomic_folder, check_made_before, write_json
from hf_mlnmt.common.model_folder import CONFIG
from hf_mlnmt.convert.checkpoint import NEVER, Checkpoint, load
from hf_mlnmt.data.tokenizer import Tokenizers, check_vocabulary, size_of

RECORD = "import.json"
_MARIAN = (".npz", ".bin")
_PICKLES = (".pt", ".ckpt")  # .pt: of fairseq and OpenNMT-py; .ckpt: of JoeyNMT
_FILES = _MARIAN + _PICKLES
_PADDING = 128  # most rows of embeddings that may have no token
_TOLERANCE = 1e-4  # largest difference of logits allowed, relative to the largest logit; rounding makes about 1e-6


class Imported(NamedTuple):
    """Holds an imported model, its tokenizers, the content of import.json, and the folder if one was written."""

    model: Any
    tokenizers: Tokenizers
    record: dict[str, Any]
    folder: Path | None


def import_model(
    name_or_folder: str | Path,
    output: str | Path | None = None,
    *,
    tell: Callable[[str], None] = lambda _: None,
    **options: Any,
) -> Imported:
    """Imports a model of another format as this package's baseline, with tokenizer and generation settings.

    Formats: MarianMT, M2M100, NLLB, BART, mBART of Transformers (a folder or a Hub name), Marian's own .npz and .bin
    (Firefox's, in int8), the Transformers of fairseq, JoeyNMT, OpenNMT-py and Eole. docs/opus-mt.md has the details.

    Args:
        output: the folder to make; an earlier import there is replaced, anything else is refused. None: write nothing.
        options: for the Hub: revision, token, cache_dir.

    Raises: UserError for an unknown architecture, a pickle that holds more than weights, a checkpoint that lacks
        tensors or has others, a vocabulary of another size, or outputs that are not the original's.
    """
    if output is not None:
        check_made_before(Path(output), RECORD, "hf_mlnmt.import/", "import")
    name = str(name_or_folder)
    tell(f"reading {name}")
    checkpoint = _read(name, options)
    model = _build(checkpoint)
    placement = checkpoint.placement
    tell(f"{len(placement.origin)} parameters from {len(placement.tensors)} tensors of {checkpoint.format}")
    packages = ("hf-mlnmt", "torch", "transformers")
    record = {
        "schema": "hf_mlnmt.import/1",
        "source": Path(name).name if Path(name).exists() else name,
        "format": checkpoint.format,
        "versions": {package: importlib.metadata.version(package) for package in packages},
        "largest_difference_of_logits": _compare(name, model, checkpoint),
        "notes": checkpoint.notes,
        "parameters": placement.origin,
        "left_out": placement.left_out,
    }
    model.to(getattr(torch, checkpoint.dtype))
    if output is None:
        return Imported(model, checkpoint.tokenizers, record, None)
    with atomic_folder(output) as new:
        try:
            model.save_pretrained(new)
        except ValueError as error:  # Transformers refuses to write some settings that it reads
            raise UserError(f"{name}: generation_config.json cannot be taken over: {error}") from error
        checkpoint.tokenizers.save(new)
        for file, content in checkpoint.files.items():
            (new / file).write_bytes(content)
        write_json(new / RECORD, record)
    return Imported(model, checkpoint.tokenizers, record, Path(output))


def _read(name: str, options: dict[str, Any]) -> Checkpoint:
    """Reads a checkpoint; the names and contents of its files tell the format."""
    from hf_mlnmt.convert import huggingface, marian, opennmt

    path = Path(name)
    if os.path.lexists(path) and not (path.is_file() or path.is_dir()):
        raise UserError(f"{path}: is no file and no folder (a pipe, a device, or a link to nothing).")
    if not path.exists() and (path.suffix in _FILES or path.is_absolute() or name.startswith(".")):
        raise UserError(f"{path}: there is no such file or folder. Give a model folder or a Hub name.")
    of_transformers = not path.exists() or (path / CONFIG).is_file()
    inside = [path] if path.is_file() else [] if of_transformers else sorted(filter(Path.is_file, path.iterdir()))
    if any(file.suffix in _MARIAN for file in inside):
        return marian.read(path)
    if pickles := [file for file in inside if file.suffix in _PICKLES]:
        pickles = [file for file in pickles if file.name == "best.ckpt"] or pickles  # JoeyNMT's link to the best file
        if len(pickles) > 1:
            raise UserError(f"{path}: holds {', '.join(file.name for file in pickles)}. Name the one to import.")
        return _read_pickle(pickles[0])
    if any(path.glob(opennmt.EOLE_WEIGHTS)):
        return opennmt.read_eole(path)
    if not of_transformers:
        raise UserError(
            f"{path}: no checkpoint that can be read. A folder with config.json (Transformers, Eole), or a file "
            f"{', '.join(_FILES)} with what its toolkit put beside it is expected (docs/opus-mt.md)."
        )
    return huggingface.read(name, options)


def _read_pickle(path: Path) -> Checkpoint:
    """Reads a checkpoint of PyTorch; its keys tell the format: fairseq, JoeyNMT or OpenNMT-py."""
    from hf_mlnmt.convert import fairseq, joeynmt, opennmt

    content = load(path)
    if "model" in content and ("args" in content or "cfg" in content):
        return fairseq.read(path, content)
    if isinstance(content.get("model_state"), dict):
        return joeynmt.read(path, content)
    if {"vocab", "opt"} <= content.keys():
        return opennmt.read(path, content)
    raise UserError(f"{path}: a checkpoint of unknown layout ({', '.join(map(str, list(content)[:6]))}).")


def _build(checkpoint: Checkpoint) -> Any:
    """Makes our model with the checkpoint's weights, in float32 and evaluation mode. UserError if they do not fit."""
    from hf_mlnmt.zoo.systems import architecture_of

    if checkpoint.original is None:
        _add_rows(checkpoint)
    config, placement, tokenizers = checkpoint.config, checkpoint.placement, checkpoint.tokenizers
    architecture = architecture_of(config)
    assert architecture is not None
    kind = architecture.head_class
    with torch.device("meta"):
        empty = kind(config)
    check_vocabulary(placement.where, config, tokenizers.source, tokenizers.target)
    for side, rows in ((tokenizers.source, config.vocab_size), (tokenizers.target, config.decoder_vocab_size)):
        if rows - len({*side.get_vocab().values()}) > _PADDING:
            raise UserError(
                f"{placement.where}: {rows:,} rows of embeddings, but only {len({*side.get_vocab().values()}):,} "
                "tokens in the vocabulary beside it. They are not of one model: copy its own vocabulary."
            )
    model = kind.from_pretrained(None, config=config, state_dict=placement.finish(empty), dtype=torch.float32)
    model.generation_config = checkpoint.generation_config
    return model.eval()


def _add_rows(checkpoint: Checkpoint) -> None:
    """Adds a copy of the row of <unk> for each piece whose id is beyond the model's rows (vocabularies.py)."""
    config, state = checkpoint.config, checkpoint.placement.state
    sides = [checkpoint.tokenizers.source, checkpoint.tokenizers.target]
    before = [config.vocab_size, config.decoder_vocab_size]
    sizes = [max(map(size_of, sides))] * 2 if config.share_encoder_decoder_embeddings else [*map(size_of, sides)]
    sizes = [max(pair) for pair in zip(sizes, before)]
    if sizes == before:
        return
    state.setdefault("lm_head.bias", torch.zeros(before[1]))
    checkpoint.placement.origin.setdefault("lm_head.bias", [])
    names = ("model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight", "lm_head.weight", "lm_head.bias")
    for name, side in zip(names, (0, 1, 1, 1)):
        row = state[name][sides[side].unk_token_id] if name != names[-1] else torch.tensor(NEVER)
        state[name] = torch.cat([state[name], row.expand(sizes[side] - before[side], *row.shape)])
    fields = {"vocab_size": sizes[0], "decoder_vocab_size": sizes[1], "output_bias": True}
    checkpoint.config = type(config).from_dict({**config.to_dict(), **fields})


@torch.no_grad()
def _compare(name: str, model: Any, checkpoint: Checkpoint) -> float | None:
    """Returns the largest difference of logits from the original's on random tokens and padding, None without one."""
    if checkpoint.original is None:
        return None
    config, generator = checkpoint.config, torch.Generator().manual_seed(1)
    special = {config.pad_token_id, config.eos_token_id, config.bos_token_id, config.decoder_start_token_id}
    rows = min(config.vocab_size, config.decoder_vocab_size or config.vocab_size)
    ordinary = torch.tensor([index for index in range(rows) if index not in special])
    length = min(config.max_position_embeddings - 1, 40)
    drawn = ordinary[torch.randint(len(ordinary), (2, 2, length), generator=generator)]
    mask = torch.ones_like(drawn[0])
    mask[1, length // 2 :] = 0
    ids = {"input_ids": drawn[0].masked_fill(mask == 0, config.pad_token_id or 0), "decoder_input_ids": drawn[1]}
    ours, theirs = (each(**ids, attention_mask=mask).logits for each in (model, checkpoint.original))
    difference = (ours - theirs).abs().max().item()
    if not difference <= _TOLERANCE * max(1.0, theirs.abs().max().item()):
        raise UserError(
            f"{name}: the imported model's logits differ by {difference:g} from the original's. Nothing was imported; "
            "report this with the versions of torch and transformers."
        )
    return difference
