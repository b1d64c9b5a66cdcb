"""Any encoder-decoder and any causal language model of Transformers, as the loops of a search take it (decoder.py).

They are called as they are: a row for every beam, Transformers' own cache, its keys and values moved when beams change
places, as in Transformers' loops. Sentences leave as everywhere.
"""

from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import DynamicCache, EncoderDecoderCache

from hf_mlnmt.modeling.releases import CACHE
from hf_mlnmt.search.source import Source


class ModuleState:
    """The cache, rows (sentences x beams, ...) beam after beam; and of an encoder-decoder what it reads."""

    def __init__(self, cache: Any, source: Source | None):
        self.cache, self.source, self.width = cache, source, 1

    def expand(self, width: int) -> "ModuleState":
        self.width = width
        self.cache.batch_repeat_interleave(width)
        if self.source is not None:
            rows = torch.arange(len(self.source.real), device=self.source.real.device).repeat_interleave(width)
            self.source = self.source.select(rows)
        return self

    def reorder(self, parents: Tensor) -> "ModuleState":
        first = torch.arange(0, parents.numel(), self.width, device=parents.device).unsqueeze(-1)
        # What is kept of the source is the same for all beams of a sentence.
        cache = getattr(self.cache, "self_attention_cache", self.cache)
        cache.reorder_cache((parents + first).flatten())
        return self

    def select(self, sentences: Tensor, source_length: int) -> "ModuleState":
        beams = torch.arange(self.width, device=sentences.device)
        rows = (sentences.unsqueeze(-1) * self.width + beams).flatten()
        self.cache.batch_select_indices(rows)
        if self.source is not None:
            self.source = self.source.select(rows)
        return self


class ModuleDecoder:
    """`Decoder` of decoder.py for a model that this package knows nothing of."""

    normalized = False

    def __init__(self, model: Any, arguments: dict[str, Any]):
        """`arguments`: for the forward of every step."""
        self.model, self.arguments = model, arguments

    @staticmethod
    def why_not(model: Any, arguments: dict[str, Any]) -> str | None:
        """None: every model can be called."""
        return None

    def begin(self, prompt: Tensor, source: Source) -> tuple[Tensor, ModuleState]:
        config = self.model.config.get_text_config(decoder=True)
        cache: Any = DynamicCache(config=config)
        if self.model.config.is_encoder_decoder:
            cache = EncoderDecoderCache(cache, DynamicCache(config=config))
            state = ModuleState(cache, source)
        else:
            state = ModuleState(cache, None)
        return self.call(prompt, state)[:, -1:], state

    def step(self, tokens: Tensor, state: ModuleState) -> tuple[Tensor, ModuleState]:
        return self.call(tokens.reshape(-1, 1), state).view(*tokens.shape, -1), state

    def call(self, ids: Tensor, state: ModuleState) -> Tensor:
        """ids (rows, time) -> logits (rows, time, vocabulary), float32."""
        given: dict[str, Any] = {CACHE: state.cache, "use_cache": True, "return_dict": True}
        if state.source is None:
            given["input_ids"] = ids
        else:
            given |= {"decoder_input_ids": ids, "encoder_outputs": state.source.outputs}
            given["attention_mask"] = state.source.real.long()
        return self.model(**given, **self.arguments).logits.float()
