"""The fields of every architecture's config, named as Marian's in Transformers, and `norm_position`.

`StackConfig` is for a decoder, with or without an encoder; `TransformerConfig` adds the encoder.

A family subclasses it, sets `model_type`, adds its fields and is decorated with `@strict`, which is not inherited.

`import hf_mlnmt` fills the slot `upkeep` with upkeep.py, which checks the fields; beside published weights it is empty.
"""

import os
from typing import Any, Literal

from huggingface_hub.dataclasses import strict
from transformers import PreTrainedConfig

from .releases import CACHE_NAMES

upkeep: Any = None  # the module hf_mlnmt/modeling/upkeep.py, set by `import hf_mlnmt`


def kept_up(name: str, *arguments: Any) -> Any:
    """Calls upkeep.py's function `name` and returns its result; None in code beside published weights, where upkeep.py
    is missing."""
    return None if upkeep is None else getattr(upkeep, name)(*arguments)


@strict
class StackConfig(PreTrainedConfig):
    """The config that translation and language models share; its defaults are the base shape of Vaswani et al. 2017.

    Args:
        vocab_size: entries of the vocabulary (of the source's, where there are two).
        d_model: width of every layer (the papers' d).
        decoder_layers: number of layers (L_d). decoder_attention_heads: heads (H); d_model must be a multiple.
        decoder_ffn_dim: inner width of the feed-forward sublayer (d_ff).
        norm_position: "post" LN(x + f(x)) as in the papers on joint attention; "pre" x + f(LN(x)), with one more layer
            norm after each stack, as in the thesis on monolingual data.
        dropout: on the embeddings and on every sublayer's output. attention_dropout: on the attention weights.
            activation_dropout: inside the feed-forward sublayer.
        activation_function: of the feed-forward sublayer, a name that Transformers knows.
        attention_bias: biases in the four attention projections.
        layer_norm_eps: added to the variance in every layer norm.
        scale_embedding: multiply embeddings by sqrt(d_model).
        normalize_embedding: a layer norm over embedding and position, before dropout (BART, mBART).
        position_embedding: the kind of position embeddings, see stack.py. position_offset: the number of the first
            position (fairseq, M2M100 and NLLB count sines from 2).
        max_position_embeddings: the longest sequence, in subwords.
        tie_word_embeddings: the output projection is the target embedding.
        output_bias: a bias, trained, for each entry of the target vocabulary (Marian).
        init_std: None: Xavier-uniform matrices, embeddings from N(0, 1/d_model); a number: all from N(0, init_std^2).
    """

    keys_to_ignore_at_inference = [*CACHE_NAMES, "losses"]

    vocab_size: int = 32768
    d_model: int = 512
    decoder_layers: int = 6
    decoder_attention_heads: int = 8
    decoder_ffn_dim: int = 2048
    norm_position: Literal["post", "pre"] = "post"
    dropout: float | int = 0.1
    attention_dropout: float | int = 0.0
    activation_dropout: float | int = 0.0
    activation_function: str = "relu"
    attention_bias: bool = False
    layer_norm_eps: float = 1e-5
    scale_embedding: bool = True
    normalize_embedding: bool = False
    position_embedding: Literal["interleaved", "halves", "tensor2tensor", "learned"] = "interleaved"
    position_offset: int = 0
    max_position_embeddings: int = 1024
    tie_word_embeddings: bool = True
    output_bias: bool = False
    init_std: float | None = None
    pad_token_id: int | None = 0
    eos_token_id: int | list[int] | None = 1
    bos_token_id: int | None = 3
    use_cache: bool = True
    is_encoder_decoder: bool = False

    @property
    def target_vocab_size(self) -> int:
        """Returns the size of the target vocabulary."""
        return getattr(self, "decoder_vocab_size", None) or self.vocab_size

    def save_pretrained(self, save_directory: str | os.PathLike, push_to_hub: bool = False, **kwargs: Any):
        """Saves the config, and the code that `auto_map` points to, if any, so that the saved model can be loaded.

        Models of published folders have an `auto_map`; saving a model in any way, also by Trainer, calls this method.
        """
        kept_up("copy_code_of", self, save_directory)
        return super().save_pretrained(save_directory, push_to_hub, **kwargs)

    def validate_fields(self):
        """Raises ValueError, which names the field, for values with which no model can be built."""
        kept_up("check_fields", self)


@strict
class TransformerConfig(StackConfig):
    """The config of the Transformer baseline: the fields of `StackConfig` and those below.

    Args:
        decoder_vocab_size: entries of the target vocabulary (None: one vocabulary for both sides).
        encoder_layers, encoder_attention_heads, encoder_ffn_dim: of the encoder (L), as those of the decoder.
        share_encoder_decoder_embeddings: one matrix embeds source and target (needs one vocabulary), also where
            `tie_word_embeddings` is False, which in Transformers unties both.
    """

    model_type = "mlnmt-transformer"
    attribute_map = {
        "hidden_size": "d_model",
        "num_hidden_layers": "encoder_layers",
        "num_attention_heads": "encoder_attention_heads",
    }

    decoder_vocab_size: int | None = None
    encoder_layers: int = 6
    encoder_attention_heads: int = 8
    encoder_ffn_dim: int = 2048
    share_encoder_decoder_embeddings: bool = True
    decoder_start_token_id: int = 3
    is_encoder_decoder: bool = True

    def __post_init__(self, **kwargs):
        # Transformers reads `decoder_vocab_size` as the decoder's vocab_size, so it must be a number.
        self.decoder_vocab_size = self.decoder_vocab_size or self.vocab_size
        super().__post_init__(**kwargs)

    def cache_slots(self) -> list[str]:
        """Returns the names of the types of cache layers in the decoder's cache, one for each decoder layer."""
        return ["full_attention"] * self.decoder_layers

    def get_text_config(self, decoder: bool | None = None, encoder: bool | None = None):
        """Returns Transformers' text config; a decoder's has the number and the types of its cache layers."""
        config = super().get_text_config(decoder, encoder)
        # A result has no decoder_ fields, so a second call, by a cache on the result of the first, changes nothing.
        if decoder and not encoder and self.is_encoder_decoder and "decoder_layers" in vars(self):
            config.layer_types = self.cache_slots()
            config.num_hidden_layers = len(config.layer_types)
        return config
