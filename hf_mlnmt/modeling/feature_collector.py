"""The Source Feature Collector: an encoder that returns the outputs of its top n layers, not of the last one only.

Reference: thesis on joint attention, section 3.2 and figure 3.1; section 3.5.4 for the masks.

F = [f^1 .. f^n], f^1 the lowest collected layer and f^n = f^L the last; as one tensor (batch, source, n, d_model),
batch first so that beams can repeat it. A family merges F (`merge`, aggregation.py) or attends to all of it
(multi_layer_attention.py). To collect from another family's encoder: `class X(FeatureCollector, OtherEncoder)`.

Departs: with norm_position="pre" the layers' outputs are sums without a norm, while the papers are all post-norm. Here
the layer norm that ends the encoder is applied to every f^i, so that f^L is the state that the baseline's decoder
reads, and no parameter is added.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from transformers.utils.generic import can_return_tuple

from .layers import normed
from .outputs import EncoderOutput
from .transformer import Encoder


def check_feature_count(field: str, value: int | None, encoder_layers: int):
    """Raises ValueError, which names `field`, for a number of layers outside 1 .. `encoder_layers`; None is allowed."""
    if value is not None and not 1 <= value <= encoder_layers:
        raise ValueError(
            f"{field}={value}: must be from 1 to encoder_layers={encoder_layers}, or None for all of the layers"
        )


class FeatureCollector(Encoder):
    """An encoder that collects the last `config.feature_count` of its L + 1 states as F and makes memory of F."""

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        layer_mask: Tensor | Sequence[float] | None = None,
        **kwargs,
    ) -> EncoderOutput:
        """Encodes as the base class does; the output's memory is `merge` of the collected states F.

        Args:
            layer_mask: (features,), a factor for each f^i, lowest layer first: 0 replaces it by zeros (thesis, section
                3.5.4), 1 keeps it. Also an argument of the whole model's forward and of generate(), without effect
                where `encoder_outputs` are given.

        Raises: ValueError if `layer_mask` has another length than F.
        """
        kwargs["return_dict"] = True
        outputs = super().forward(input_ids, attention_mask, inputs_embeds, **kwargs)
        outputs.memory = self.merge(self.mask_features(outputs.memory, layer_mask))
        return outputs

    @property
    def hands_on(self) -> tuple[str, ...]:
        return ("memory",)

    def memory(self, states: list[Tensor]) -> Tensor:
        """Returns the collected states F (batch, source, features, d_model), which `forward` masks and merges."""
        collected = states[-self.config.feature_count : -1]
        return torch.stack([*(normed(self.layer_norm, x) for x in collected), states[-1]], dim=2)

    def mask_features(self, features: Tensor, layer_mask: Tensor | Sequence[float] | None) -> Tensor:
        """Returns F (batch, source, features, d_model), each layer's f^i multiplied by its factor in `layer_mask`."""
        if layer_mask is None:
            return features
        mask = torch.as_tensor(layer_mask, dtype=features.dtype, device=features.device)
        if mask.shape != features.shape[2:3]:
            raise ValueError(
                f"layer_mask has shape {tuple(mask.shape)}: expected ({features.shape[2]},), one number for each "
                "collected layer, lowest first"
            )
        return features * mask.unsqueeze(-1)

    def merge(self, features: Tensor) -> Tensor:
        """Returns the decoder's memory from F (batch, source, features, d_model); here F itself."""
        return features
