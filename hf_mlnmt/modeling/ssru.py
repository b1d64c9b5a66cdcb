"""The simpler simple recurrent unit (SSRU): replaces the decoder's self-attention by a gated recurrence of one state.

Reference: Kim, Junczys-Dowmunt, Hassan, Fikri Aji, Heafield, Grundkiewicz and Bogoychev 2019, "From Research to
Production and Back: Ludicrously Fast Neural Machine Translation", section 4.3; the decoder of Firefox's models and of
Marian's with transformer-decoder-autoreg: rnn and dec-cell: ssru.

| value | class |
| --- | --- |
| ssru | SSRU in the decoder's layers |
| self-attention | the baseline's |

x is the sublayer's input, (batch, target, d_model).
(1) f_t = sigmoid(W_f x_t + b_f)      (2) c_t = f_t c_{t-1} + (1 - f_t) W x_t, c_0 = 0      (3) h_t = relu(c_t)

h is the sublayer's output, without a further projection, and W has no bias. In decoding c is the whole state of a
layer. All products are outside the scan, which is in float32 at least. Padding of the target leaves the state
unchanged. As in Marian the decoder's first input is zeros: the embedding of decoder_start_token_id is initialised with
zeros and, while it is zeros, gets no gradient (but in a torch.compile of the whole decoder).
Departs: Marian's dropout-rnn, dropout on the unit's inputs (0 by default), is missing; there is the sublayer's dropout.
"""

from typing import Any, Literal, cast
from weakref import ref

import torch
from huggingface_hub.dataclasses import strict
from torch import Tensor, nn
from transformers.cache_utils import Cache

from .attention import SelfAttention
from .caches import RecurrentCacheLayer, count_positions, real_positions, slot_of
from .configuration import TransformerConfig
from .layers import DecoderLayer
from .linear import faster
from .transformer import Decoder, TransformerForConditionalGeneration, TransformerModel


@strict
class SSRUConfig(TransformerConfig):
    """The config of a model with SSRU: the baseline's fields, some with Marian's defaults, and those below.

    Args:
        decoder_autoregression: how a decoder layer reads the earlier positions of the target.
    """

    model_type = "mlnmt-ssru"

    decoder_autoregression: Literal["self-attention", "ssru"] = "ssru"
    attention_bias: bool = True
    output_bias: bool = True
    layer_norm_eps: float = 1e-6
    position_embedding: Literal["interleaved", "halves", "tensor2tensor", "learned"] = "tensor2tensor"

    def cache_slots(self) -> list[str]:
        slots = super().cache_slots()
        return [RecurrentCacheLayer._layer_type] * len(slots) if self.decoder_autoregression == "ssru" else slots


class SSRU(nn.Module):
    """The recurrent unit, equations 1 to 3. It has no heads; its states in the cache are (batch, steps, 1, d_model)."""

    def __init__(self, config: SSRUConfig, heads: int, layer_idx: int = 0, is_causal: bool = True):
        super().__init__()
        self.layer_idx = layer_idx  # index of its states in the cache
        self.forget_proj = nn.Linear(config.d_model, config.d_model)  # W_f, b_f
        self.input_proj = nn.Linear(config.d_model, config.d_model, bias=False)  # W

    def forward(
        self, hidden_states: Tensor, attention_mask: Tensor | None = None, cache: Cache | None = None, **kwargs
    ) -> tuple[Tensor, None]:
        """Computes h from x (batch, target, d_model), the same shape; returns h and None, as there are no weights.

        attention_mask: as of a self-attention; only its padding is used.
        """
        cache = getattr(cache, "self_attention_cache", cache)
        length, slot, start, before = hidden_states.shape[1], cast(Any, None), None, None
        real = real_positions(attention_mask, 0 if cache is None else cache.get_seq_length(self.layer_idx), length)
        if cache is not None:
            slot = slot_of(cache, self.layer_idx, "append_states")
            start, before, real = slot.last_state(), slot.states_before(length), slot.real_positions(real)
            count_positions(slot, hidden_states)
        inputs, forget = self.input_proj(hidden_states), self.forget_proj(hidden_states)
        exact = torch.promote_types(inputs.dtype, torch.float32)
        inputs, forget = inputs.to(exact), torch.sigmoid(forget.to(exact))  # (1)
        if real is not None:
            forget = forget.masked_fill(~real.unsqueeze(-1), 1.0)
        added = (1 - forget) * inputs
        if before is not None or length == 1:  # all previous states are known, as in a search
            states = added if before is None else torch.addcmul(added, forget, before.squeeze(1).to(exact))
        else:
            states = recur(added, forget, None if start is None else start.squeeze(1).to(exact))  # (2)
        if slot is not None:
            slot.append_states(states.unsqueeze(2))
        return torch.relu(states).to(hidden_states.dtype), None  # (3)


def recur(added: Tensor, decay: Tensor, start: Tensor | None) -> Tensor:
    """Computes c_t = a_t c_{t-1} + b_t from b (`added`) and a (`decay`), each (batch, target, width), and c_0 (batch,
    width), None: zeros."""
    found = faster("linear_scan", added, decay, start)
    if found is not None:
        return found
    states, before = [], torch.zeros_like(added[:, 0]) if start is None else start
    for new, kept in zip(added.unbind(1), decay.unbind(1)):
        before = torch.addcmul(new, kept, before)
        states.append(before)
    return torch.stack(states, dim=1)


class SSRUDecoderLayer(DecoderLayer):
    """The baseline's decoder layer, with SSRU for self-attention where the config says so."""

    def __init__(self, config: SSRUConfig, layer_idx: int):
        self.attention_class = SSRU if config.decoder_autoregression == "ssru" else SelfAttention
        super().__init__(config, layer_idx)


class KeepZeros:
    """A hook on the gradient of an embedding's weight: sets a row's gradient to 0 while the row itself is all zeros."""

    def __init__(self, weight: Tensor, row: int):
        self.weight, self.row = ref(weight), row
        # A copy of the weight for one step (half precision) may be freed before backward: look at the row now.
        self.learns = None if weight.is_leaf else weight.detach()[row].any()

    def __call__(self, gradient: Tensor) -> Tensor:
        weight: Any = self.weight()
        gradient = gradient.clone()
        gradient[self.row] *= weight[self.row].any() if self.learns is None else self.learns
        return gradient


class SSRUDecoder(Decoder):
    """The baseline's decoder with `SSRUDecoderLayer`s."""

    config: SSRUConfig
    layer_class = SSRUDecoderLayer

    @torch.no_grad()
    def _init_weights(self, module: nn.Module):
        super()._init_weights(module)
        if module is self.embed_tokens and not getattr(module.weight, "_is_hf_initialized", False):
            module.weight[self.config.decoder_start_token_id] = 0.0

    def look_up(self, input_ids: Tensor | None, inputs_embeds: Tensor | None) -> Tensor:
        """Looks up embeddings as the baseline does, and in training registers `KeepZeros` for the start token's row."""
        weight: Any = self.embed_tokens.weight
        hooks = weight._backward_hooks or {}  # a copied or loaded model has no hooks
        if self.training and weight.requires_grad and not any(isinstance(x, KeepZeros) for x in hooks.values()):
            weight.register_hook(KeepZeros(weight, self.config.decoder_start_token_id))
        return super().look_up(input_ids, inputs_embeds)


class SSRUModel(TransformerModel):
    """Encoder and decoder, without the output projection."""

    config: SSRUConfig
    decoder_class = SSRUDecoder


class SSRUForConditionalGeneration(TransformerForConditionalGeneration):
    """The translation model with SSRU in the decoder."""

    config: SSRUConfig
    model_class = SSRUModel
    citation = "kim2019research"
