"""The baseline's layers: the residual sublayer, feed-forward, encoder layer and decoder layer.

Reference: Vaswani et al. 2017, "Attention Is All You Need", section 3. The notation table is in transformer.py.

(3) sublayer: post LN(x + dropout(f(x))), pre x + dropout(f(LN(x)))
(4) FFN(x) = W_2 relu(W_1 x + b_1) + b_2
"""

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn
from transformers.activations import ACT2FN
from transformers.cache_utils import Cache
from transformers.modeling_layers import GradientCheckpointingLayer

from .attention import CrossAttention, SelfAttention
from .configuration import StackConfig, TransformerConfig
from .linear import faster, project


def normed(norm: nn.Module, states: Tensor) -> Tensor:
    """Returns norm(states); in training on a GPU by a kernel where possible, in the dtype of `states`."""
    found = faster("residual", states, None, 0.0, norm) if norm.training else None
    return norm(states) if found is None else found


class Sublayer(nn.Module):
    """The residual connection, dropout and layer norm around a computation, equation 3.

    `compute` must be a function, not a module: Accelerate's hooks would move a module to another device.
    """

    def __init__(self, config: StackConfig):
        super().__init__()
        self.layer_norm = nn.LayerNorm(config.d_model, config.layer_norm_eps)
        self.dropout = nn.Dropout(config.dropout)
        self.pre = config.norm_position == "pre"

    def forward(self, hidden_states: Tensor, compute: Callable[[Tensor], Tensor]) -> Tensor:
        computed = compute(normed(self.layer_norm, hidden_states) if self.pre else hidden_states)
        if self.training:  # in a search even a call without effect costs time
            norm = None if self.pre else self.layer_norm
            whole = faster("residual", hidden_states, computed, self.dropout.p, norm)
            if whole is not None:
                return whole
            computed = self.dropout(computed)
        hidden_states = hidden_states + computed
        return hidden_states if self.pre else self.layer_norm(hidden_states)


class FeedForward(nn.Module):
    """The feed-forward network, equation 4, of inner width `width`; its input is `inputs` concatenated states."""

    def __init__(self, config: StackConfig, width: int, inputs: int = 1):
        super().__init__()
        self.fc1 = nn.Linear(inputs * config.d_model, width)
        self.fc2 = nn.Linear(width, config.d_model)
        self.activation = ACT2FN[config.activation_function]
        self.dropout = nn.Dropout(config.activation_dropout)

    def forward(self, hidden_states: Tensor) -> Tensor:
        inner = None
        if self.training and isinstance(self.activation, nn.ReLU):
            inner = faster("relu_of", self.fc1, hidden_states)
        if inner is None:
            inner = self.activation(project(self.fc1, hidden_states))
        return project(self.fc2, self.dropout(inner) if self.training else inner)


class EncoderLayer(GradientCheckpointingLayer):
    """An encoder layer: self-attention, then the feed-forward network."""

    attention_class: type[nn.Module] = SelfAttention

    def __init__(self, config: TransformerConfig, layer_idx: int):
        super().__init__()
        self.self_attn = self.attention_class(config, config.encoder_attention_heads, layer_idx)
        self.self_attn_sublayer = Sublayer(config)
        self.feed_forward = FeedForward(config, config.encoder_ffn_dim)
        self.feed_forward_sublayer = Sublayer(config)

    def forward(self, hidden_states: Tensor, mask: Tensor | None, **kwargs) -> Tensor:
        """Applies self-attention and feed-forward network to (batch, source, d_model); returns the same shape."""
        hidden_states = self.attend_self(hidden_states, mask, **kwargs)
        return self.feed_forward_sublayer(hidden_states, lambda x: self.feed_forward(x))

    def attend_self(self, hidden_states: Tensor, mask: Tensor | None, **kwargs) -> Tensor:
        """Applies self-attention with its residual connection and norm."""
        return self.self_attn_sublayer(hidden_states, lambda x: self.self_attn(x, mask, **kwargs)[0])


class DecoderLayer(GradientCheckpointingLayer):
    """A decoder layer: causal self-attention, attention over the source, then the feed-forward network.

    The attention over the source is left out where `source_attention_class` is None (language_model.py), and in calls
    without memory.
    """

    attention_class: type[nn.Module] = SelfAttention
    source_attention_class: type[nn.Module] | None = CrossAttention

    def __init__(self, config: StackConfig, layer_idx: int):
        super().__init__()
        heads = config.decoder_attention_heads
        self.self_attn = self.attention_class(config, heads, layer_idx, is_causal=True)
        self.self_attn_sublayer = Sublayer(config)
        if self.source_attention_class is not None:
            self.source_attn: Any = self.source_attention_class(config, heads, layer_idx)
            self.source_attn_sublayer = Sublayer(config)
        self.feed_forward = FeedForward(config, config.decoder_ffn_dim)
        self.feed_forward_sublayer = Sublayer(config)

    def forward(
        self,
        hidden_states: Tensor,
        memory: Tensor | None,
        mask: Tensor | None,
        source_mask: Tensor | None,
        *extras: Tensor,
        names: tuple[str, ...] = (),
        cache: Cache | None = None,
        **kwargs,
    ) -> Tensor:
        """Applies the layer to hidden_states (batch, target, d_model), attending to memory (batch, source, ...).
        `extras`: the tensors that the decoder's `extend` returned, by their `names`; the baseline has none."""
        named = dict(zip(names, extras, strict=True))
        hidden_states = self.attend_self(hidden_states, mask, cache, named, **kwargs)
        if memory is not None:
            hidden_states = self.attend_source(hidden_states, memory, source_mask, cache, named, **kwargs)
        return self.feed_forward_sublayer(hidden_states, lambda x: self.feed_forward(x))

    def attend_self(
        self, hidden_states: Tensor, mask: Tensor | None, cache: Cache | None, extras: dict[str, Tensor], **kwargs
    ) -> Tensor:
        """Applies self-attention with its residual connection and norm."""
        return self.self_attn_sublayer(hidden_states, lambda x: self.self_attn(x, mask, cache, **kwargs)[0])

    def attend_source(
        self,
        hidden_states: Tensor,
        memory: Tensor,
        mask: Tensor | None,
        cache: Cache | None,
        extras: dict[str, Tensor],
        **kwargs,
    ) -> Tensor:
        """Applies the attention over the source with its residual connection and norm."""
        return self.source_attn_sublayer(hidden_states, lambda x: self.source_attn(x, memory, mask, cache, **kwargs)[0])
