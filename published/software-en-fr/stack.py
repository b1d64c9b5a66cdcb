"""The base of the baseline's encoder and decoder (transformer.py): embeddings with positions, the norm that ends a
pre-norm stack, and the initialisation of weights. The equation numbers are those of transformer.py.

(1) embedding = dropout(sqrt(d_model) E[x] + PE)
(2) PE: a row for each position t, counted from `position_offset`: sines and cosines, or a learned table.

Reference: Vaswani et al. 2017, "Attention Is All You Need", section 3.5.

| position_embedding | dimension 2i | dimension 2i+1 | r_i | used by |
| --- | --- | --- | --- | --- |
| interleaved | sin(t r_i) | cos(t r_i) | 10000^(-2i/d) | the paper, OpenNMT-py, JoeyNMT |
| halves | sines in the first half of the dimensions, cosines in the second | | 10000^(-2i/d) | Marian in Transformers |
| tensor2tensor | the same | | 10000^(-i/(d/2-1)) | tensor2tensor, fairseq, M2M100, NLLB, Marian's own engine |
| learned | a table that is trained | | | BART, mBART |
"""

import math
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers import initialization as init

from .configuration import StackConfig, TransformerConfig, kept_up
from .layers import normed
from .releases import CACHE_NAMES


class Positions(nn.Module):
    """The base of position embeddings: a table (max_position_embeddings, d_model) with a row for each position."""

    table: Tensor

    def forward(self, length: int, past: int | Tensor = 0) -> Tensor:
        """Returns the table's rows for `length` positions from `past` on. Raises: ValueError beyond the table's end."""
        if isinstance(past, Tensor):  # a static cache returns its length as a tensor
            return self.table[torch.arange(length, device=self.table.device) + past]
        if past + length > len(self.table):
            raise ValueError(
                f"a sequence of {past + length} subwords is longer than max_position_embeddings={len(self.table)}: "
                "split or truncate it"
            )
        return self.table[past : past + length]

    def at(self, positions: Tensor) -> Tensor:
        """Returns the table's rows (..., d_model) for the given positions (...)."""
        return nn.functional.embedding(positions.to(self.table.device), self.table)


class SinusoidalPositions(Positions):
    """Position embeddings of sines and cosines: a buffer that `compute` fills; it is neither trained nor saved."""

    def __init__(self, positions: int, width: int, kind: str = "interleaved", offset: int = 0):
        super().__init__()
        self.kind, self.offset = kind, offset
        table = self.compute(positions, width, kind, offset).to(torch.get_default_dtype())
        self.register_buffer("table", table, persistent=False)

    def begin_weights(self, config) -> None:
        """Computes the table anew, since checkpoints do not hold it."""
        positions, width = self.table.shape
        init.copy_(self.table, self.compute(positions, width, self.kind, self.offset))

    def _apply(self, *args, **kwargs):
        """Moves or casts the module, for Module.to(); after a cast the table is computed anew, not rounded twice."""
        before = self.table.dtype
        super()._apply(*args, **kwargs)
        if self.table.dtype != before and not self.table.is_meta:
            positions, width = self.table.shape
            self.table.copy_(self.compute(positions, width, self.kind, self.offset))
        return self

    @staticmethod
    def compute(positions: int, width: int, kind: str = "interleaved", offset: int = 0) -> Tensor:
        """Computes the table (positions, width) of sines and cosines of a kind (`position_embedding`), in float64.

        "interleaved" is exact in float64. The others are rounded to float32, as the toolkits do, and "tensor2tensor" is
        computed in float32: at t = 1000 the difference is some 1e-5, and models were trained with it.
        """
        dtype = torch.float32 if kind == "tensor2tensor" else torch.float64
        if kind == "tensor2tensor":
            rates = torch.exp(torch.arange(width // 2, dtype=dtype) * -(math.log(10000.0) / max(width // 2 - 1, 1)))
        else:
            rates = torch.exp(torch.arange(0, width, 2, dtype=dtype) * (-math.log(10000.0) / width))
        angles = torch.arange(offset, offset + positions, dtype=dtype).unsqueeze(1) * rates
        if kind == "interleaved":
            return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1).double()
        return torch.cat([angles.sin(), angles.cos()], dim=1).float().double()


class LearnedPositions(Positions):
    """Position embeddings that are trained, initialised like the token embeddings."""

    def __init__(self, positions: int, width: int):
        super().__init__()
        self.table = nn.Parameter(torch.empty(positions, width))  # type: ignore[assignment]

    def begin_weights(self, config) -> None:
        init.normal_(self.table, std=config.init_std or config.d_model**-0.5)


def shown_positions(mask: Tensor | None, length: int) -> Tensor | None:
    """Returns positions (batch, length) of the last `length` tokens, counted from the first token whose mask (batch,
    time) is 1, so that padding on the left changes nothing. Returns None for a mask of other dimensions or none."""
    if mask is None or mask.dim() != 2:
        return None
    return (mask.cumsum(1) - 1).clamp(min=0)[:, -length:]


class TransformerPreTrainedModel(PreTrainedModel):
    """The base of all models: has flags for Transformers, ties, saves and initialises weights.

    `_init_weights` initialises linear layers, embeddings and norms; other modules define `begin_weights(config)`.
    """

    config: TransformerConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _no_split_modules = ["EncoderLayer", "DecoderLayer"]
    _skip_keys_device_placement = list(CACHE_NAMES)
    _supports_sdpa = True
    _supports_flash_attn = True
    _supports_attention_backend = True
    _can_compile_fullgraph = True

    @torch.no_grad()
    def _init_weights(self, module: nn.Module):
        if self.config.init_std is not None:
            super()._init_weights(module)
        elif isinstance(module, nn.Linear):
            init.xavier_uniform_(module.weight)
            if module.bias is not None:
                init.zeros_(module.bias)
        elif isinstance(module, nn.Embedding):
            init.normal_(module.weight, std=self.config.d_model**-0.5)
        elif isinstance(module, nn.LayerNorm):
            init.ones_(module.weight)
            init.zeros_(module.bias)
        # Define `begin_weights` only in modules that own weights: in code from the Hub Transformers skips others.
        begin: Any = getattr(module, "begin_weights", None)
        if begin is not None:
            begin(self.config)

    @staticmethod
    def field_of_tie(key: str) -> str:
        """Returns the config's field that decides whether the weight `key` (encoder embeddings or output) is tied."""
        return "share_encoder_decoder_embeddings" if "encoder.embed_tokens." in key else "tie_word_embeddings"

    def get_expanded_tied_weights_keys(self, all_submodels: bool = False) -> dict[str, str]:
        """Returns the names of all tied weights, target -> source. Encoder embeddings are tied if the config says
        `share_encoder_decoder_embeddings`, outputs if `tie_word_embeddings`, by which Transformers ties both."""
        if all_submodels:
            return super().get_expanded_tied_weights_keys(all_submodels)
        tied = (self._tied_weights_keys or {}).items()
        return {key: source for key, source in tied if getattr(self.config, self.field_of_tie(key), False)}

    def tie_weights(self, missing_keys: set[str] | None = None, recompute_mapping: bool = True):
        super().tie_weights(missing_keys, recompute_mapping)
        kept_up("note_ties", self)  # weights that the checkpoint holds apart are not tied: tell the config

    def save_pretrained(  # type: ignore[override]
        self, save_directory: Any, is_main_process: bool = True, state_dict: Any = None, **options: Any
    ):
        state_dict = kept_up("state_to_save", self, state_dict) or state_dict
        return super().save_pretrained(save_directory, is_main_process, state_dict, **options)

    def resize_token_embeddings(self, *sizes: Any, **options: Any) -> nn.Embedding:
        """Resizes the embeddings that source and target share. Raises: ValueError where they share none."""
        kept_up("check_resizing", self)
        embeddings = super().resize_token_embeddings(*sizes, **options)
        if getattr(self.config, "share_encoder_decoder_embeddings", False):
            self.config.decoder_vocab_size = embeddings.num_embeddings
        return embeddings


class Stack(TransformerPreTrainedModel):
    """The base of encoder and decoder: embeddings (equation 1), layers, and the last layer norm of a pre-norm stack."""

    layer_class: type[nn.Module]

    def __init__(self, config: StackConfig, vocab_size: int, layers: int):
        super().__init__(config)
        self.embed_tokens = nn.Embedding(vocab_size, config.d_model)
        self.embed_scale = config.d_model**0.5 if config.scale_embedding else 1.0
        sizes = config.max_position_embeddings, config.d_model
        if config.position_embedding == "learned":
            self.positions: Positions = LearnedPositions(*sizes)
        else:
            self.positions = SinusoidalPositions(*sizes, config.position_embedding, config.position_offset)
        self.embedding_norm = self._norm() if config.normalize_embedding else nn.Identity()
        self.dropout = nn.Dropout(config.dropout)
        self.layers = nn.ModuleList([self.layer_class(config, index) for index in range(layers)])
        self._no_split_modules = [self.layer_class.__name__]
        self.layer_norm = self._norm() if config.norm_position == "pre" else nn.Identity()
        self.gradient_checkpointing = False

    def _norm(self) -> nn.Module:
        return nn.LayerNorm(self.config.d_model, self.config.layer_norm_eps)

    def look_up(self, input_ids: Tensor | None, inputs_embeds: Tensor | None) -> Tensor:
        """Returns the embeddings of input_ids, E[x] (batch, time, d_model), or `inputs_embeds`. Raises: ValueError
        unless one of the two is given."""
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("give input_ids or inputs_embeds, not both and not neither")
        return self.embed_tokens(input_ids) if inputs_embeds is None else inputs_embeds

    def embed(self, embeds: Tensor, past: int | Tensor = 0, position_ids: Tensor | None = None) -> Tensor:
        """Computes equation 1, scaled embeddings plus positions, from E[x]; positions count from `past` on or are
        `position_ids` (1 or batch, time)."""
        if position_ids is None:
            positions = self.positions(embeds.shape[1], past).to(embeds.dtype)
        else:
            positions = self.positions.at(position_ids).to(embeds.dtype)
        embeds = torch.add(positions.to(embeds.device), embeds, alpha=self.embed_scale)
        return self.dropout(normed(self.embedding_norm, embeds))
