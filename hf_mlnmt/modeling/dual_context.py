"""Dual contextual module (DC): replaces self-attention by attention over the sentence and over its local context.

Reference: Ampomah et al. 2021, "Dual contextual module for neural machine translation", Machine Translation 35, section
4; thesis on joint attention, section 5.3 (its equation numbers are used here).

| value | class | equation |
| --- | --- | --- |
| Enc-DC | DualContextAttention in the encoder's layers | (5.4)-(5.7), window [r_{t-f//2} .. r_{t+(f-1)//2}] |
| Dec-DC | DualContextAttention in the decoder's layers | (5.4)-(5.7), window [r_{t-f+1} .. r_t] |
| Full-DC | both | (5.4)-(5.7), both windows |

r is the sublayer's input, (batch, time, d_model); f the kernel size.
(5.4) l_c = LN(GLU(window_t(r) W^r + b^r) + r), W^r in R^{f d x 2d}
(5.5) h_l = FI(r, l_c), h_g = FI(r, r); FI(A, B) = concat_h softmax(A W_q (B W_k)^T / sqrt(d_h)) B W_v
(5.6) z = [h_l ; h_g] W_z + b_z, W_z in R^{2d x d}          (5.7) z_f = LN(z + r), the baseline's sublayer

Both attentions compute queries from r and use one mask, so they are one call with 2 H heads. Attention weights
(attn_implementation="eager") are (batch, 2, H, time, keys): of h_l, then of h_g. W_z = [0 ; W_o] is the baseline's
self-attention. In decoding, the last f - 1 inputs of the convolution stay in the cache.

Departs:
- (5.4) prints f + 1 positions for an even f, but W^r has rows for f. Here there are f, in the encoder with the odd one
  on the left (f = 2 is r_{t-1}, r_t, as in the decoder). Positions outside the sentence, and masked ones, are zeros.
- Parameters: the tables' 73.9, 73.9 and 86.5 million beside 61.2 hold to the last digit with biases in the projections
  (attention_bias=True) and 33.4k subwords; without them Enc-DC adds 12.598 million and Full-DC 25.197.
- norm_position="pre": r is the normalised input, and z is added to the sublayer's input as any pre-norm sublayer's.
"""

from typing import Literal

import torch
from huggingface_hub.dataclasses import strict
from torch import Tensor, nn
from transformers.cache_utils import Cache
from transformers.utils.output_capturing import OutputRecorder

from .attention import Attention, SelfAttention, split_heads
from .caches import KeptStates, SlotState, StaticStates, real_positions, slot_of
from .configuration import TransformerConfig
from .encoder_models import encoder_heads
from .layers import DecoderLayer, EncoderLayer, normed
from .linear import project
from .transformer import Decoder, Encoder, TransformerForConditionalGeneration, TransformerModel


def windows(extended: Tensor, length: int) -> Tensor:
    """Concatenates the f inputs in the window of each of `length` positions, (batch, length, f d_model); `extended`
    (batch, length + f - 1, d_model) holds the inputs of all windows."""
    kernel = extended.shape[1] - length + 1
    return torch.cat([extended[:, i : i + length] for i in range(kernel)], dim=-1)


class ConvolutionState(SlotState):
    """The methods by which a dual contextual module uses its cache layer, which keeps the convolution's last inputs."""

    def extend(self, inputs: Tensor, kept: int) -> Tensor:
        """Returns inputs (batch, time, d_model) with the `kept` last inputs of earlier calls (at first zeros) in front,
        and stores the new last ones."""
        raise NotImplementedError

    def windows(self, inputs: Tensor, kept: int) -> Tensor:
        """Concatenates each input (batch, time, d_model) with the `kept` inputs before it, also those of earlier calls:
        (batch, time, (kept + 1) d_model)."""
        return windows(self.extend(inputs, kept), inputs.shape[1])


class ConvolutionCacheLayer(ConvolutionState, KeptStates):
    """A dynamic cache layer with keys, values and `states`: the convolution's last inputs (batch, f - 1, d_model)."""

    _layer_type = "mlnmt_convolution"
    what = "inputs of the convolution"

    def extend(self, inputs: Tensor, kept: int) -> Tensor:
        if self.states is None:
            self.states, self.kept = inputs.new_zeros(inputs.shape[0], kept, inputs.shape[2]), kept
        extended = torch.cat([self.states, inputs], dim=1)
        self.states = extended if self.record_past else extended[:, -kept:]
        return extended[:, -kept - inputs.shape[1] :]


class StaticConvolutionCacheLayer(ConvolutionState, StaticStates):
    """The static cache layer of a dual contextual module; the last inputs (batch, f - 1, d_model) change in place."""

    _layer_type = "mlnmt_convolution"

    def extend(self, inputs: Tensor, kept: int) -> Tensor:
        states = self.states
        if states is None:
            states = self.begin(inputs.new_zeros(inputs.shape[0], kept, inputs.shape[2]))
        extended = torch.cat([states, inputs], dim=1)
        states.copy_(extended[:, -kept:])
        return extended


@strict
class DualContextConfig(TransformerConfig):
    """The config of a model with the dual contextual module: the baseline's fields and those below.

    Args:
        dual_context: where the module replaces self-attention, named as in the thesis.
        dual_layers: [i, j], the layers from i to j (counted from 1) have the module, the others self-attention, on each
            side that `dual_context` names; None: all layers.
        kernel_size: the paper's f, 2 to 8.
    """

    model_type = "mlnmt-dual-context"

    dual_context: Literal["Enc-DC", "Dec-DC", "Full-DC"] = "Enc-DC"
    dual_layers: list[int] | None = None
    kernel_size: int = 2

    def is_dual(self, side: str, layer_idx: int) -> bool:
        """Returns whether layer `layer_idx` (from 0) of the "encoder" or "decoder" has the dual contextual module."""
        if self.dual_context == ("Dec-DC" if side == "encoder" else "Enc-DC"):
            return False
        return self.dual_layers is None or self.dual_layers[0] <= layer_idx + 1 <= self.dual_layers[1]

    def cache_slots(self) -> list[str]:
        slots = super().cache_slots()
        return [ConvolutionCacheLayer._layer_type if self.is_dual("decoder", i) else x for i, x in enumerate(slots)]

    def validate_dual_context(self):
        """Raises ValueError for a kernel size outside 2 .. 8 or a wrong range of layers."""
        if not 2 <= self.kernel_size <= 8:
            raise ValueError(f"kernel_size={self.kernel_size}: must be from 2 to 8")
        for side, without in (("encoder", "Dec-DC"), ("decoder", "Enc-DC")):
            layers = getattr(self, f"{side}_layers")
            if self.dual_layers is None or self.dual_context == without:
                continue
            if len(self.dual_layers) != 2 or not 1 <= self.dual_layers[0] <= self.dual_layers[1] <= layers:
                raise ValueError(
                    f"dual_layers={self.dual_layers}: must be None or [i, j], 1 <= i <= j <= {side}_layers={layers}"
                )


class DualContextAttention(Attention):
    """The dual contextual module: attention over the sentence and over its local context, equations 5.4 to 5.6."""

    def __init__(self, config: DualContextConfig, heads: int, layer_idx: int = 0, is_causal: bool = False):
        super().__init__(config, heads, layer_idx, is_causal)
        self.width = width = config.d_model
        self.kernel = config.kernel_size
        self.before = self.kernel - 1 if is_causal else self.kernel // 2  # positions of the window before t
        self.convolution = nn.Linear(self.kernel * width, 2 * width)  # W^r, b^r
        self.convolution_norm = nn.LayerNorm(width, config.layer_norm_eps)
        bias = config.attention_bias
        self.global_proj = nn.Linear(width, 4 * width, bias)  # r to queries of h_l and h_g, keys and values of h_g
        self.local_proj = nn.Linear(width, 2 * width, bias)  # l_c to keys and values of h_l
        self.out_proj = nn.Linear(2 * width, width)  # W_z, b_z

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        cache: Cache | None = None,
        is_causal: bool | None = None,
        **kwargs,
    ) -> tuple[Tensor, Tensor | None]:
        """Computes z from r (batch, time, d_model), the same shape; returns it and, if eager, weights (batch, 2, heads,
        time, keys). is_causal: True for an encoder that must not see later positions: in its windows they are zeros."""
        cache = getattr(cache, "self_attention_cache", cache)
        local = self.local_context(hidden_states, attention_mask, cache, bool(is_causal))
        kwargs |= {} if is_causal is None else {"is_causal": is_causal}
        sizes = 2 * self.width, self.width, self.width
        query, key, value = project(self.global_proj, hidden_states).split(sizes, dim=-1)
        local_key, local_value = project(self.local_proj, local).chunk(2, dim=-1)
        key, value = torch.cat([local_key, key], dim=-1), torch.cat([local_value, value], dim=-1)
        query, key, value = (split_heads(x, 2 * self.heads) for x in (query, key, value))
        if cache is not None:
            key, value = cache.update(key, value, self.layer_idx)
        output, weights = self.attend(query, key, value, attention_mask, **kwargs)  # (5.5)
        if weights is not None:
            output, weights = self.in_groups(weights, value, 2)
        return project(self.out_proj, output), weights  # (5.6)

    def local_context(
        self, inputs: Tensor, mask: Tensor | None, cache: Cache | None, hide_later: bool = False
    ) -> Tensor:
        """Computes equation 5.4: l_c from r (`inputs`); `hide_later` replaces a window's later positions by zeros."""
        length = inputs.shape[1]
        slot = None if cache is None else slot_of(cache, self.layer_idx, "windows")
        past = 0 if cache is None else cache.get_seq_length(self.layer_idx)
        real = real_positions(mask, past, length)
        real = real if slot is None else slot.real_positions(real)
        visible = inputs if real is None else inputs.masked_fill(~real.unsqueeze(-1), 0.0)
        later = self.kernel - 1 - self.before  # positions of the window after t
        if slot is None:
            window = windows(nn.functional.pad(visible, (0, 0, self.before, later)), length)
        else:
            window = slot.windows(visible, self.before)
        if hide_later:
            hidden = later * self.width
            window = nn.functional.pad(window[..., : window.shape[-1] - hidden], (0, hidden))
        return normed(self.convolution_norm, nn.functional.glu(project(self.convolution, window)) + inputs)


ATTENTIONS = [OutputRecorder(SelfAttention, index=1), OutputRecorder(DualContextAttention, index=1)]


class DualContextEncoderLayer(EncoderLayer):
    """The baseline's encoder layer, whose self-attention is DualContextAttention where the config has the module."""

    def __init__(self, config: DualContextConfig, layer_idx: int):
        if config.is_dual("encoder", layer_idx):
            self.attention_class = DualContextAttention
        super().__init__(config, layer_idx)


class DualContextDecoderLayer(DecoderLayer):
    """The baseline's decoder layer, whose self-attention is DualContextAttention where the config has the module."""

    def __init__(self, config: DualContextConfig, layer_idx: int):
        if config.is_dual("decoder", layer_idx):
            self.attention_class = DualContextAttention
        super().__init__(config, layer_idx)


class DualContextEncoder(Encoder):
    """The baseline's encoder with `DualContextEncoderLayer`s."""

    config: DualContextConfig
    layer_class = DualContextEncoderLayer
    _can_record_outputs = {**Encoder._can_record_outputs, "attentions": ATTENTIONS}


class DualContextDecoder(Decoder):
    """The baseline's decoder with `DualContextDecoderLayer`s."""

    config: DualContextConfig
    layer_class = DualContextDecoderLayer
    _can_record_outputs = {**Decoder._can_record_outputs, "attentions": ATTENTIONS}


class DualContextModel(TransformerModel):
    """Encoder and decoder, without the output projection."""

    config: DualContextConfig
    encoder_class = DualContextEncoder
    decoder_class = DualContextDecoder


class DualContextForConditionalGeneration(TransformerForConditionalGeneration):
    """The translation model with the dual contextual module."""

    config: DualContextConfig
    model_class = DualContextModel
    citation = "ampomah2021dual"


DualContextForMaskedLM, DualContextForCausalLM = encoder_heads(DualContextModel)
