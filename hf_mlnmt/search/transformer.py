"""The `Decoder` (decoder.py) of this package's Transformers, and that of its language models.

The decoder reads one position for each beam in a step (cache.py), with a mask of each beam's history and the position
in the target. On a CPU compiled code computes the step where cpu/step.py supports all sublayers; else the model's own
modules are called, with the beams as positions, a mask of four dimensions and position ids.
"""

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers.cache_utils import DynamicCache
from transformers.modeling_outputs import BaseModelOutput

from hf_mlnmt.modeling.extended_cross_attention import PreviousWeightAttention
from hf_mlnmt.modeling.outputs import EncoderOutput
from hf_mlnmt.modeling.releases import CACHE
from hf_mlnmt.modeling.rnn_layers import additive_mask
from hf_mlnmt.search.cache import BEAM_LAYERS, BeamCache, whole_blocks
from hf_mlnmt.search.cpu.step import CompiledStep, Family, find_family
from hf_mlnmt.search.decoder import HANDLED, SourceBatch, gather_beams, rows_of_beams
from hf_mlnmt.search.known import known


class TransformerState:
    """The state of a `TransformerDecoder`: encoded sources, cache, and a mask of the slots each beam attends to."""

    def __init__(self, cache: BeamCache, source: SourceBatch, in_blocks: bool):
        self.cache, self.in_blocks = cache, in_blocks
        self.dtype = source.outputs.last_hidden_state.dtype
        self.hidden = torch.finfo(self.dtype).min  # value of hidden positions in additive masks
        self.length = self.slots = 0  # number of target positions read, and of slots in use
        self.history_mask: Tensor  # (sentences, 1, prompt or width, slots in whole blocks)
        # Sources are padded in known families alone: other encoders' outputs may have another length than the source.
        self._change_source(source.select(None, whole_blocks(source.real.shape[1])) if in_blocks else source)

    def _change_source(self, source: SourceBatch) -> None:
        self.source = source
        self.source_mask: Any = additive_mask(source.real, source.outputs.last_hidden_state)

    def add_prompt(self, sentences: int, length: int) -> None:
        """Makes the mask of the prompt's slots: each position sees itself and those before it."""
        self.length, self.slots, shape = length, length, (length, whole_blocks(length))
        mask = torch.full(shape, self.hidden, dtype=self.dtype, device=self.source.real.device)
        self.history_mask = mask.triu(1).expand(sentences, 1, -1, -1)

    def add_step(self, width: int) -> None:
        """Adds a slot for each beam after those in use, visible to that beam alone."""
        start = self.slots
        self.length, self.slots = self.length + 1, start + width
        if missing := whole_blocks(self.slots) - self.history_mask.shape[-1]:
            self.history_mask = nn.functional.pad(self.history_mask, (0, missing), value=self.hidden)
        self.history_mask[..., start : self.slots].diagonal(dim1=2, dim2=3).zero_()  # shows each beam its new slot

    def expand(self, width: int) -> "TransformerState":
        for layer in self.cache.target_layers:
            layer.expand(width)
        self.history_mask = self.history_mask[:, :, -1:].repeat(1, 1, width, 1)
        return self

    def reorder(self, parents: Tensor) -> "TransformerState":
        self.history_mask = gather_beams(self.history_mask.squeeze(1), parents).unsqueeze(1)
        rows = rows_of_beams(parents)
        for layer in self.cache.target_layers:
            layer.reorder(rows)
        return self

    def select(self, sentences: Tensor, source_length: int) -> "TransformerState":
        length = whole_blocks(source_length) if self.in_blocks else None
        self._change_source(self.source.select(sentences, length))
        self.history_mask = self.history_mask[sentences]
        for layer in (*self.cache.target_layers, *self.cache.source_layers):
            layer.select(sentences, self.source.real.shape[1])
        return self


class TransformerDecoder:
    """The `Decoder` of `TransformerForConditionalGeneration` and its subclasses."""

    positions = "decoder_position_ids"  # forward's argument for position ids
    widened = True  # whether scores are converted to float32

    def __init__(self, model: Any, arguments: dict[str, Any]):
        """Prepares the decoder; `arguments`: generate()'s keyword arguments, those not in HANDLED for the forward."""
        self.model, self.kinds = model, kinds_of_layers(model, arguments)
        self.arguments = {name: value for name, value in arguments.items() if name not in HANDLED}
        self.normalized = getattr(model, "logits_are_scores", False)
        self.family: Family | None = known(model, again=False).fact("family", partial(find_family, model))
        self.compiled: CompiledStep | None = None
        self.forward = model
        if model.device.type == "cpu":
            self.compiled = None if self.arguments else CompiledStep.of(model, self.family)
            self.arguments["attention_function"] = attend
            # A search on a CPU computes in the weights' precision: it calls the class's forward, without the autocast
            # that Accelerate may have put around it. A hook of Accelerate's that fetches weights is kept.
            if not hasattr(model, "_hf_hook"):
                self.forward = partial(type(model).forward, model)

    @staticmethod
    def why_not(model: Any, arguments: dict[str, Any]) -> str | None:
        """Names a class of the model's cache layers that the search does not support, or returns None."""
        unknown = set(kinds_of_layers(model, arguments)) - BEAM_LAYERS.keys()
        return f"cache slots of the kind {next(iter(unknown)).__name__}" if unknown else None

    def read(self, source: SourceBatch) -> SourceBatch:
        """Returns the encoded source with its encoder's outputs as `EncoderOutput`; unchanged for an unknown family."""
        if self.family is None:
            return source
        return source._replace(outputs=EncoderOutput.of(source.outputs, self.model.get_encoder().hands_on))

    def mark_over_source(self, layers: list[Any]) -> None:
        """Sets `over_source` in cache layers whose state has a number for each position of the source."""
        for module in self.model.model.modules():
            if isinstance(module, PreviousWeightAttention):
                layers[module.layer_idx].over_source = True

    def begin(self, prompt: Tensor, source: SourceBatch) -> tuple[Tensor, TransformerState]:
        source, cache = self.read(source), BeamCache(self.kinds)
        state = TransformerState(cache, source, self.family is not None)
        if self.family is not None:
            self.mark_over_source(cache.target_layers)
        state.add_prompt(*prompt.shape)
        if self.compiled is not None and prompt.shape[1] == 1:
            self.compiled.prepare_first(cache, state.source.outputs)
            return self.compiled(prompt, 0, cache, state.history_mask.contiguous(), state.source_mask).float(), state
        return self.call_modules(prompt, state, logits_to_keep=1), state

    def step(self, tokens: Tensor, state: TransformerState) -> tuple[Tensor, TransformerState]:
        state.add_step(tokens.shape[1])
        if self.compiled is not None:
            masks = state.history_mask, state.source_mask
            return self.compiled(tokens, state.length - 1, state.cache, *masks).float(), state
        positions = torch.full((1, 1), state.length - 1, device=tokens.device)
        return self.call_modules(tokens, state, **{self.positions: positions}), state

    def call_modules(self, tokens: Tensor, state: TransformerState, **inputs: Any) -> Tensor:
        """Computes the logits (sentences, 1 or width, vocabulary) of tokens (sentences, prompt or width)."""
        inputs |= {"cache": state.cache, "use_cache": True, "return_dict": True, **self.arguments}
        logits = self.forward(**self.inputs_of(tokens, state), **inputs).logits
        return logits.float() if self.widened else logits

    def inputs_of(self, tokens: Tensor, state: TransformerState) -> dict[str, Any]:
        """Returns encoder outputs, masks and tokens under the names of forward's arguments."""
        return {
            "encoder_outputs": state.source.outputs,
            "attention_mask": state.source_mask,
            "decoder_attention_mask": state.history_mask,
            "decoder_input_ids": tokens,
        }


class LanguageModelDecoder(TransformerDecoder):
    """The `Decoder` of `DecoderOnlyForCausalLM`, a member of a fused model: it ignores the source."""

    positions = "position_ids"

    def begin(self, prompt: Tensor, source: SourceBatch) -> tuple[Tensor, TransformerState]:
        blank = torch.zeros(len(prompt), 1, 1, dtype=self.model.dtype, device=prompt.device)
        source = SourceBatch(BaseModelOutput(last_hidden_state=blank), blank[..., 0] == 0)
        return super().begin(prompt, source)

    def inputs_of(self, tokens: Tensor, state: TransformerState) -> dict[str, Any]:
        return {"input_ids": tokens, "attention_mask": state.history_mask}


def attend(module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scaling: float, **kwargs):
    """Computes attention as modeling/attention.py does, but faster for the few queries of a step on a CPU."""
    heads = query.shape[1]
    masks = mask.expand(-1, heads, -1, -1).flatten(0, 1)
    keys = key.transpose(2, 3).flatten(0, 1)  # a view: caches store keys transposed
    energies = torch.baddbmm(masks, query.flatten(0, 1), keys, alpha=scaling)
    weights = energies.to(torch.promote_types(energies.dtype, torch.float32)).softmax(-1).to(value.dtype)
    return torch.bmm(weights, value.flatten(0, 1)).unflatten(0, (-1, heads)).transpose(1, 2), None


def kinds_of_layers(model: Any, arguments: dict[str, Any]) -> list[type]:
    """Returns the class of each decoder layer's cache layer: as in generate()'s empty cache, or else by the config."""
    cache = getattr(arguments.get(CACHE), "self_attention_cache", None)
    return [type(layer) for layer in getattr(cache, "layers", None) or DynamicCache(config=model.config).layers]
