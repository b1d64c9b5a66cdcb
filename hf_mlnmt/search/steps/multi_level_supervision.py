"""Multi-level supervision in a search; equation numbers are those of multi_level_supervision.py."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from hf_mlnmt.modeling.multi_level_supervision import FusionDecoderLayer, MultiLevelSupervisionModel
from hf_mlnmt.search.steps.baseline import DecoderStep, StepContext


class MultiLevelSupervisionStep(DecoderStep):
    """The baseline's step of the main decoder; with AIF the auxiliary decoders run before it."""

    family = (MultiLevelSupervisionModel, FusionDecoderLayer)

    @staticmethod
    def decoders(model: Any) -> list[Any]:
        auxiliaries = model.auxiliary_decoders if model.config.information_fusion else ()
        return [model.decoder, *auxiliaries]

    @classmethod
    def weights_of(cls, layer: Any) -> list[nn.Module]:
        fusion = getattr(layer, "fusion", None)  # only the main decoder's layers can have it
        return super().weights_of(layer) + ([] if fusion is None else [fusion])

    @classmethod
    def sources(cls, model: Any, outputs: Any) -> list[tuple[Any, Tensor]]:
        """The main decoder's as the baseline's; every auxiliary decoder reads its encoder layer."""
        found = super().sources(model, outputs)
        if model.config.information_fusion:
            for decoder, memory in zip(model.auxiliary_decoders, outputs.features.unbind(2)):
                found += [(layer.source_attn, memory) for layer in decoder.layers]
        return found

    def begin(self, embeds: Tensor, context: StepContext) -> dict[str, Tensor]:
        if not self.model.config.information_fusion:
            return {}
        states = [self.run(decoder, embeds.clone(), context) for decoder in self.model.auxiliary_decoders]
        return {"auxiliary_states": torch.cat(states, dim=-1)}  # (sentences x width, auxiliaries x d_model)

    def after_self_attention(self, layer: Any) -> Callable | None:
        fusion = getattr(layer, "fusion", None)
        return None if fusion is None else partial(self.fuse, fusion)

    def fuse(self, fusion: nn.Module, states: Tensor, context: StepContext) -> Tensor:
        """Equations 4.2 and 4.3."""
        return self.linear(fusion, context.extras["auxiliary_states"], states)
