"""Sentence vectors of a frozen encoder: the mean of a layer's states over the real positions, kept on disk.

Reference: thesis on joint attention, section 4.5.4. Layers: 0 the embeddings, 1 .. L the encoder's layers as they hand
on their states, L after the layer norm that ends a pre-norm encoder; </s> is a position like the others.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from hf_mlnmt.analysis.reading import encode_sources, encoder_passes
from hf_mlnmt.errors import UserError
from hf_mlnmt.files import atomic_path
from hf_mlnmt.generation.languages import has_modules
from hf_mlnmt.generation.loading import Parts

CHUNK = 4096  # sentences in a file of the cache


def masked_mean(states: Tensor, real: Tensor) -> Tensor:
    """(batch, time, width), real (batch, time) -> (batch, width): the mean over real positions, float32."""
    kept = real.unsqueeze(-1)
    return states.float().masked_fill(~kept, 0.0).sum(1) / kept.sum(1)


def layer_count(model: Any) -> int:
    """L: layers of the encoder."""
    return int(getattr(model.config, "encoder_layers", None) or model.config.num_hidden_layers)


def check_layer(model: Any, layer: int | None) -> int:
    """The layer asked for, the last for None. Raises: UserError if it is not there."""
    last = layer_count(model)
    if layer is not None and not 0 <= layer <= last:
        raise UserError(f"layer {layer}: this encoder has 0 (embeddings) to {last}.")
    return last if layer is None else layer


def mean_states(
    parts: Parts, sources: Sequence[Sequence[int]], layers: Sequence[int], batch_tokens: int = 4096
) -> dict[int, Tensor]:
    """{layer: (sentences, width)} of token ids, on the CPU."""
    found: dict[int, dict[int, Tensor]] = {layer: {} for layer in layers}
    for one in encoder_passes(parts, sources, batch_tokens, output_hidden_states=True):
        for layer in layers:
            vectors = masked_mean(one.output.hidden_states[layer], one.source_real).cpu()
            found[layer].update(zip(one.indices, vectors, strict=True))
    return {layer: torch.stack([rows[i] for i in range(len(sources))]) for layer, rows in found.items()}


def fingerprint(model: Any) -> str:
    """A digest of the encoder's weights (of several, the model's) and of the config: what the vectors depend on."""
    digest = hashlib.sha256()
    fields = {key: value for key, value in model.config.to_dict().items() if key != "_name_or_path"}
    digest.update(json.dumps(fields, sort_keys=True, default=str).encode())
    encoder = model if has_modules(model) else model.get_encoder()
    for name, weight in sorted(encoder.state_dict().items()):
        digest.update(name.encode())
        digest.update(weight.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def cached_states(
    parts: Parts,
    texts: Sequence[str],
    layers: Sequence[int],
    cache: str | Path | None = None,
    batch_tokens: int = 4096,
    source_language: str | None = None,
    target_language: str | None = None,
) -> dict[int, Tensor]:
    """As `mean_states` of texts; with a folder `cache`, what is there is read, and what is not is computed and written.

    A file holds one layer of some thousand sentences, under a name made from the encoder's weights and the token ids;
    an interrupted run goes on behind the last one.
    """
    sources = encode_sources(parts, texts, source_language, target_language)
    if cache is None:
        return mean_states(parts, sources, layers, batch_tokens)
    of_model = fingerprint(parts.model)
    found: dict[int, list[Tensor]] = {layer: [] for layer in layers}
    for start in range(0, len(sources), CHUNK):
        chunk = sources[start : start + CHUNK]
        paths = {layer: Path(cache) / f"{_name(of_model, layer, chunk)}.safetensors" for layer in layers}
        known = {layer: _read(path) for layer, path in paths.items()}
        lacking = [layer for layer in layers if known[layer] is None]
        computed = mean_states(parts, chunk, lacking, batch_tokens) if lacking else {}
        for layer in lacking:
            with atomic_path(paths[layer]) as temporary:
                save_file({"states": computed[layer]}, temporary)
        for layer in layers:
            states = computed[layer] if layer in computed else known[layer]
            assert states is not None
            found[layer].append(states)
    return {layer: torch.cat(chunks) for layer, chunks in found.items()}


def _name(of_model: str, layer: int, chunk: Sequence[Sequence[int]]) -> str:
    return hashlib.sha256(f"{of_model} {layer} {chunk}".encode()).hexdigest()[:32]


def _read(path: Path) -> Tensor | None:
    """The file's vectors; None if there is none, or half a one."""
    try:
        return load_file(path)["states"]
    except (FileNotFoundError, SafetensorError, KeyError):
        return None
