"""CTranslate2 in the place of generate(), where it is asked for by name: token ids in, token ids out.

CTranslate2 searches by its own rules; what it cannot do is refused: nobody gets another engine than the one named.
`request_of` says in CTranslate2's words what generate() was asked for, or why it cannot be said in them. The rules of
CTranslate2 4.8 (tested against generate()): a search with n beams ends when n hypotheses are finished, which is
`early_stopping=True`; a finished one is scored by log P / L^a, a forced first token counted in L; tokens that are
forbidden get no probability, and the others share it, which is `renormalize_logits=True`; at the length limit no end of
sentence is forced. Any option that is not listed here and does not have its default value is refused.

Models are written for ctranslate2.specs.TransformerSpec revision 7: of this zoo CTranslate2 has the baseline, in both
norm positions, tied or not, with one vocabulary or two. They are kept in the user's cache (`files.cache_folder`), in
`ctranslate2/<hash>-<CTranslate2's version>-<LAYOUT>-<dtype>/`, made by one process at a time: the hash is of config,
weights and vocabularies.
"""

from __future__ import annotations

import copy
import importlib.metadata
import importlib.util
import logging
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from hf_mlnmt.common.errors import UserError
from hf_mlnmt.common.files import atomic_folder, cache_folder
from hf_mlnmt.common.made_from import Digest
from hf_mlnmt.common.matmul_backends import Fingerprint, fingerprint_of
from hf_mlnmt.data.tokenizer import Tokenizers
from hf_mlnmt.generation.translating.batches import Generated
from hf_mlnmt.generation.translating.loading import Parts
from hf_mlnmt.search import what_is_around
from hf_mlnmt.zoo.systems import system_of

logger = logging.getLogger(__name__)

ACTIVATIONS = {
    "relu": "RELU", "gelu": "GELU", "gelu_new": "GELUTanh", "gelu_fast": "GELUTanh", "gelu_pytorch_tanh": "GELUTanh",
    "silu": "SWISH", "swish": "SWISH", "quick_gelu": "GELUSigmoid", "tanh": "Tanh", "sigmoid": "Sigmoid",
}  # fmt: skip


def single_decoder(model: Any) -> Any:
    """Returns this model, or multi-level supervision without its auxiliary decoders, which computes the same."""
    config = model.config
    if getattr(config, "auxiliary_layers", None) and not config.information_fusion:
        return model.drop_auxiliaries()
    return model


def lacks(model: Any) -> str | None:
    """Returns what CTranslate2 lacks for this model; None if it is one that can be written."""
    config = model.config
    if config.model_type != "mlnmt-transformer":
        system = system_of(config)
        return f"{system.title}: {system.clause}" if system else "its parts beyond the baseline Transformer"
    if config.activation_function not in ACTIVATIONS:
        return f"activation_function={config.activation_function}; it has {', '.join(ACTIVATIONS)}"
    if not isinstance(config.eos_token_id, int):
        return f"several ends of a sentence, eos_token_id={config.eos_token_id}"
    return None


def write(model: Any, tokenizers: Tokenizers, folder: Path, dtype: str) -> None:
    """Saves weights, vocabularies and CTranslate2's config.json into `folder`.

    dtype: how the weights are kept: float32, float16, bfloat16 or int8.
    """
    specification = _specification(model)
    config, target = specification.config, tokenizers.target
    pieces, vocabulary = vocabularies_of(model, tokenizers)
    specification.register_source_vocabulary(pieces)
    specification.register_target_vocabulary(vocabulary)
    config.decoder_start_token = vocabulary[model.config.decoder_start_token_id]
    config.eos_token = vocabulary[model.config.eos_token_id]
    config.bos_token = target.bos_token or config.decoder_start_token
    config.unk_token = target.unk_token or config.unk_token
    config.layer_norm_epsilon = model.model.encoder.layers[0].self_attn_sublayer.layer_norm.eps
    specification.validate()
    specification.optimize(quantization=dtype)
    specification.save(str(folder))


def vocabularies_of(model: Any, tokenizers: Tokenizers) -> list[list[str]]:
    """Returns a token for each row of either side's embeddings, in the order of the ids; some are made up."""
    source, target = tokenizers.source, tokenizers.target
    # Marian's tokenizer may hold two vocabularies, and get_vocab gives the source's; M2M100's leaves languages out.
    written = target.target_encoder if getattr(target, "separate_vocabs", False) else target.get_vocab()
    sides = []
    for rows, known, tokenizer in (
        (model.config.vocab_size, source.get_vocab(), source),
        (model.config.decoder_vocab_size, written, target),
    ):
        tokens = {index: token for token, index in {**known, **getattr(tokenizer, "lang_token_to_id", {})}.items()}
        sides.append([tokens.get(row, f"<unused_{row}>") for row in range(rows)])
    return sides


def _specification(model: Any) -> Any:
    from ctranslate2.specs import TransformerSpec, common_spec
    from ctranslate2.specs.transformer_spec import TransformerDecoderSpec, TransformerEncoderSpec

    config = model.config
    options = {
        "pre_norm": config.norm_position == "pre",
        "activation": common_spec.Activation[ACTIVATIONS[config.activation_function]],
        "layernorm_embedding": config.normalize_embedding,
    }
    encoder = TransformerEncoderSpec(config.encoder_layers, config.encoder_attention_heads, **options)
    decoder = TransformerDecoderSpec(config.decoder_layers, config.decoder_attention_heads, **options)
    _stack(encoder, encoder.embeddings[0], model.model.encoder)
    _stack(decoder, decoder.embeddings, model.model.decoder)
    for specification, layer in zip(decoder.layer, model.model.decoder.layers, strict=True):
        attention = layer.source_attn
        _attention(specification.attention, attention.q_proj, attention.kv_proj, attention.out_proj)
        _layer_norm(specification.attention.layer_norm, layer.source_attn_sublayer.layer_norm)
    _linear(decoder.projection, model.lm_head)
    return TransformerSpec(encoder, decoder)


def _stack(specification: Any, embeddings: Any, stack: Any) -> None:
    """Fills what encoder and decoder share. CTranslate2 knows one kind of positions, so the table itself goes along."""
    embeddings.weight = _array(stack.embed_tokens.weight)
    specification.scale_embeddings = float(stack.embed_scale)
    specification.position_encodings.encodings = _array(stack.positions.table)
    if specification.pre_norm:
        _layer_norm(specification.layer_norm, stack.layer_norm)
    if isinstance(stack.embedding_norm, nn.LayerNorm):
        _layer_norm(specification.layernorm_embedding, stack.embedding_norm)
    for layer_specification, layer in zip(specification.layer, stack.layers, strict=True):
        attention = layer_specification.self_attention
        _attention(attention, layer.self_attn.qkv_proj, layer.self_attn.out_proj)
        _layer_norm(attention.layer_norm, layer.self_attn_sublayer.layer_norm)
        _linear(layer_specification.ffn.linear_0, layer.feed_forward.fc1)
        _linear(layer_specification.ffn.linear_1, layer.feed_forward.fc2)
        _layer_norm(layer_specification.ffn.layer_norm, layer.feed_forward_sublayer.layer_norm)


def _attention(specification: Any, *projections: nn.Module) -> None:
    for linear, projection in zip(specification.linear, projections, strict=True):
        _linear(linear, projection)


def _linear(specification: Any, module: Any) -> None:
    specification.weight = _array(module.weight)
    if module.bias is not None:
        specification.bias = _array(module.bias)


def _layer_norm(specification: Any, module: Any) -> None:
    specification.gamma, specification.beta = _array(module.weight), _array(module.bias)


def _array(tensor: torch.Tensor) -> Any:
    # A copy: CTranslate2 rounds to int8 in place, which must not reach the model.
    return tensor.detach().float().cpu().clone().numpy()


LAYOUT = 2  # to be raised when this file writes something else


def content_hash(model: Any, vocabularies: Sequence[Sequence[str]]) -> str:
    """Hashes what a converted model is made of: the config, every weight, the tokens of both sides."""
    settings = {name: value for name, value in model.config.to_dict().items() if not name.startswith(("_", "transf"))}
    return Digest().value([settings, *vocabularies]).weights(model.state_dict()).hex()


# What of a generation config `Request` expresses.
_EXPRESSED = {
    *("num_beams", "num_return_sequences", "length_penalty", "early_stopping", "max_length", "max_new_tokens"),
    *("bad_words_ids", "renormalize_logits", "forced_bos_token_id", "forced_eos_token_id", "do_sample"),
    *("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id"),
}
# What has no influence here: it acts on sampling alone, on memory or on the form of the result, or is a remark.
_IDLE = {
    *("temperature", "top_k", "top_p", "min_p", "typical_p", "epsilon_cutoff", "eta_cutoff", "use_cache"),
    *("transformers_version", "generation_kwargs", "length_normalization", "disable_compile", "compile_config"),
    "max_source_tokens",
    "confidence",
}
# Values that ask for nothing though they are not None.
_NEUTRAL = {
    "repetition_penalty": 1.0, "encoder_repetition_penalty": 1.0, "diversity_penalty": 0.0, "guidance_scale": 1.0,
    "no_repeat_ngram_size": 0, "encoder_no_repeat_ngram_size": 0, "min_length": 0, "min_new_tokens": 0,
    "num_beam_groups": 1,
}  # fmt: skip


class Request(NamedTuple):
    """A search that CTranslate2 can do."""

    beams: int
    returned: int  # hypotheses
    length_penalty: float
    limit: int  # generated tokens, end of sentence included
    forbidden: tuple[int, ...]  # tokens
    first: int | None  # the token that every translation begins with


def request_of(model: Any, arguments: dict[str, Any]) -> Request | str:
    """Returns the search that generation config and generate()'s arguments ask for, or what CTranslate2 lacks.

    Where `arguments` say nothing of `early_stopping`, the search ends as CTranslate2's do.
    """
    config = copy.deepcopy(model.generation_config)
    if others := config.update(**arguments):
        return f"what the argument {next(iter(others))} asks"
    limit = config.max_new_tokens or (config.max_length or 20) - 1
    if lacking := next(_lacking(model, config, limit, "early_stopping" in arguments), None):
        return lacking
    penalty = 1.0 if config.length_penalty is None else float(config.length_penalty)
    forbidden = tuple(word[0] for word in config.bad_words_ids or [])
    count = config.num_return_sequences or 1
    return Request(config.num_beams or 1, count, penalty, limit, forbidden, config.forced_bos_token_id)


def _lacking(model: Any, config: Any, limit: int, stopping: bool) -> Iterator[str]:
    """Yields what of a generation config CTranslate2 cannot do. `stopping`: the call itself says when searches end."""
    if config.do_sample:
        yield "do_sample"
    for name, value in vars(config).items():
        known = name.startswith("_") or name in _EXPRESSED or name in _IDLE
        if not known and value is not None and value is not False and value != _NEUTRAL.get(name):
            yield f"{name}={value!r}"
    for name in ("decoder_start_token_id", "eos_token_id"):
        if getattr(config, name) not in (None, getattr(model.config, name)):
            yield f"{name}={getattr(config, name)}, which is not the model's own"
    end, words, beams = model.config.eos_token_id, config.bad_words_ids or [], config.num_beams or 1
    if any(len(word) != 1 or word[0] == end for word in words):
        yield "bad_words_ids of several tokens"
    if config.forced_eos_token_id not in (None, end):
        yield f"forced_eos_token_id={config.forced_eos_token_id}"
    if beams > 1:
        if words and not config.renormalize_logits:
            yield "bad_words_ids without renormalize_logits (CTranslate2 shares their probability out)"
        if stopping and config.early_stopping is not True:
            yield f"early_stopping={config.early_stopping or False} (CTranslate2's searches end as with True)"
        formula = getattr(config.length_penalty, "normalization", "generate")
        if formula != "generate" and (formula != "length" or config.forced_bos_token_id is not None):
            yield f"length_normalization={formula}"
        if (config.num_return_sequences or 1) > 1 and float(config.length_penalty) == 0:
            yield "several translations with length_penalty=0 (CTranslate2 ends such searches early)"
    if limit > model.config.max_position_embeddings:
        yield f"max_new_tokens={limit}, more than the model's {model.config.max_position_embeddings}"


Rows = list[list[int]]


def why_not(model: Any, dtype: str) -> str | None:
    """Returns why CTranslate2 cannot run this model with these numbers, or None."""
    if model.device.type not in ("cpu", "cuda"):
        return f"device {model.device}"
    if model.device.type == "cpu" and dtype not in ("float32", "int8"):
        return f"{dtype} on a CPU (say float32 or int8)"
    if dtype not in ("float32", "float16", "bfloat16", "int8"):
        return dtype
    packages = {type(module).__module__.split(".")[0] for module in model.modules()}
    if others := sorted(packages - {"hf_mlnmt", "torch", "transformers"}):
        return f"parts of the package {others[0]}"
    lacking = lacks(single_decoder(model))
    return f"it lacks {lacking}" if lacking else what_is_around(model)


class CTranslate2Search:
    """Translation by CTranslate2. `parts` are in float32 if it shall round them to int8.

    Raises: UserError for a model that it cannot run.
    """

    def __init__(self, parts: Parts, rounded: bool = False, name: str = "the model"):
        self.parts, self.name = parts, name
        self.dtype = "int8" if rounded else str(parts.model.dtype).removeprefix("torch.")
        self.weights: list[Fingerprint] = []  # of the model when it was converted
        self.converted: Translator
        self.lock = threading.Lock()
        self.check()

    def check(self) -> None:
        """Raises UserError for a model that CTranslate2 cannot run, as it is now."""
        if reason := why_not(self.parts.model, self.dtype):
            raise UserError(f"engine 'ctranslate2' cannot run {self.name}: {reason}. Use the engine torch.")

    def __call__(
        self, sequences: list[list[int]], arguments: dict[str, Any], skipped: int, scored: bool
    ) -> list[list[Generated]]:
        """Translates as `generate` of batches.py. Raises: UserError for a search that CTranslate2 does not know."""
        self.check()
        request = request_of(self.parts.model, arguments)
        if isinstance(request, str):
            raise UserError(f"engine 'ctranslate2' cannot do {request}: leave that out, or use the engine torch.")
        try:
            translator = self.translator
            rows = translator.search(sequences, request)
        except RuntimeError as error:
            if "out of memory" in str(error):
                raise torch.OutOfMemoryError(str(error)) from error
            raise
        targets = [ids for row in rows for ids in row]
        sums = [0.0] * len(targets)
        if scored and targets:
            sources = [source for source, row in zip(sequences, rows, strict=True) for _ in row]
            first = int(request.first is not None)  # a forced first token counts nothing
            sums = [sum(logs[first:]) for logs in translator.log_probabilities(sources, targets)]
        following = iter(sums)
        return [[Generated(ids, next(following)) for ids in row] for row in rows]

    @property
    def translator(self) -> Translator:
        """Returns the converted model; it is made, or taken from the cache, when the model's weights have changed."""
        from filelock import FileLock

        weights = [fingerprint_of(weight) for weight in self.parts.model.parameters()]
        with self.lock:
            if len(weights) != len(self.weights) or not all(map(Fingerprint.equals, weights, self.weights)):
                model, tokenizers = single_decoder(self.parts.model), self.parts.tokenizers
                hashed = content_hash(model, vocabularies_of(model, tokenizers))
                name = f"{hashed}-{importlib.metadata.version('ctranslate2')}-{LAYOUT}-{self.dtype}"
                folder = cache_folder() / "ctranslate2" / name
                try:
                    if not folder.exists():
                        folder.parent.mkdir(parents=True, exist_ok=True)
                        with FileLock(f"{folder}.lock"):
                            if not folder.exists():  # no other process has made it meanwhile
                                logger.warning("%s: converted for CTranslate2, once, into %s", self.name, folder)
                                with atomic_folder(folder) as new:
                                    write(model, tokenizers, new, self.dtype)
                    self.converted = Translator(folder, model, tokenizers, self.dtype)
                except (OSError, RuntimeError, ValueError) as error:
                    raise UserError(
                        f"engine 'ctranslate2' cannot load {self.name}: {error} (the cache {folder} may be deleted)"
                    ) from error
                self.weights = weights
            return self.converted


def installed() -> bool:
    """Returns whether there is a CTranslate2 to call."""
    return importlib.util.find_spec("ctranslate2") is not None


class Translator:
    """A converted model that searches and scores; `dtype` is that of its weights and products."""

    def __init__(self, folder: Path, model: Any, tokenizers: Tokenizers, dtype: str):
        """Loads the folder that `model` was written to. Raises: RuntimeError from CTranslate2."""
        import ctranslate2

        self.pieces, self.tokens = vocabularies_of(model, tokenizers)
        self.ids = {token: index for index, token in enumerate(self.tokens)}
        self.end, device = model.config.eos_token_id, model.device
        # The number of threads is one of the whole process: CTranslate2 would choose its own for PyTorch too.
        where = {"device": device.type, "device_index": device.index or 0, "intra_threads": torch.get_num_threads()}
        self.engine: Any = ctranslate2.Translator(str(folder), compute_type=dtype, **where)

    def search(self, sources: Sequence[Sequence[int]], request: Request) -> list[Rows]:
        """Returns `request.returned` translations of each source, best first: generated ids and the end of sentence."""
        prefix = None if request.first is None else [[self.tokens[request.first]]] * len(sources)
        results = self.engine.translate_batch(
            self._pieces_of(sources),
            target_prefix=prefix,
            beam_size=request.beams,
            num_hypotheses=request.returned,
            length_penalty=request.length_penalty,
            suppress_sequences=[[self.tokens[index]] for index in request.forbidden] or None,
            return_end_token=True,
            max_input_length=0,
            max_decoding_length=request.limit,
            min_decoding_length=0,
        )
        return [[[self.ids[token] for token in tokens] for tokens in result.hypotheses] for result in results]

    def log_probabilities(self, sources: Sequence[Sequence[int]], targets: Rows) -> list[list[float]]:
        """Returns ln P of every token of the targets, given as `search` returns them."""
        tokens = [[self.tokens[index] for index in ids if index != self.end] for ids in targets]  # it adds the end
        results = self.engine.score_batch(self._pieces_of(sources), tokens, max_input_length=0)
        return [result.log_probs[: len(ids)] for ids, result in zip(targets, results, strict=True)]

    def _pieces_of(self, sources: Sequence[Sequence[int]]) -> list[list[str]]:
        return [[self.pieces[index] for index in ids] for ids in sources]
