"""generate() of these models: a slot for a faster search, and what Transformers' loops lack.

`hf_mlnmt.search` computes what Transformers' loops compute, in less time. A model knows no more of it than the slot
`faster_search`: code beside published weights works without that package, by Transformers' own loops.
"""

import copy
import functools
from collections.abc import Callable
from typing import Any

from torch import Tensor
from transformers import GenerationMixin

from .configuration import kept_up

_as_of_transformers: Any = functools.wraps(GenerationMixin.generate)  # with its signature and help
Generation: Any = GenerationMixin  # Any, or mypy would hold every model to the types that this mixin asks for
NO_TOKEN = -1


def refuse_for_transformers(config: Any) -> None:
    """Raises ValueError for an option of a generation config that Transformers' loops do not know (upkeep.py)."""
    names = {"recombine": "recombine", "groups": "num_beam_groups", "draws": "draws"}
    for key, name in {**names, "without_replacement": "without_replacement"}.items():
        if (asked := getattr(config, key, None)) not in (None, False, "batch"):
            raise ValueError(
                f"{name}={asked}: Transformers' loop does not know it. Have hf_mlnmt installed, and ask for nothing "
                "that needs that loop (output_scores, a streamer, use_cache=False ...)"
            )


class TranslationGenerationMixin(Generation):
    """`generate()` by a faster loop if there is one, for two vocabularies, and leaving the caller's objects alone.

    A class that has this as a base can generate: Transformers looks for "GenerationMixin" in the names of the bases.
    """

    # Whether a search adds up what `forward` returns as logits. False: their log-softmax. True: themselves, as for the
    # product of two models' probabilities that is not normalised anew; then nothing passes them through a softmax.
    logits_are_scores: bool = False

    def prepare_decoder_input_ids_from_labels(self, labels: Tensor | None) -> Tensor:
        """Shifts labels right by one, beginning with the decoder's start token; -100 becomes padding.

        Raises: ValueError for None, which a call without decoder's inputs and labels comes to.
        """
        if labels is None:
            raise ValueError(
                "decoder_input_ids are missing, and labels, of which they would be made: give one of them. Where the "
                "loss is computed outside the model (label_smoothing_factor of Trainer), it is "
                "DataCollatorForSeq2Seq(tokenizer, model=model) that adds decoder_input_ids"
            )
        kept_up("warn_of_labels", labels, self.config)
        shifted = labels.new_full(labels.shape, self.config.decoder_start_token_id)
        shifted[:, 1:] = labels[:, :-1]
        return shifted.masked_fill(shifted == -100, self.config.pad_token_id or 0)

    @_as_of_transformers
    def generate(self, *args, **kwargs):
        generate = super().generate
        return generate(*args, **kwargs) if args or generate_again is None else generate_again(self, generate, kwargs)

    def _prepare_generation_config(self, generation_config, *args, **kwargs):
        own = kept_up("take_options", kwargs, generation_config, self.generation_config)
        prepared, model_kwargs = super()._prepare_generation_config(generation_config, *args, **kwargs)
        if own is not None:
            vars(prepared).update(own)
            kept_up("check_options", prepared)
        return prepared, model_kwargs

    def _prepare_model_inputs(self, *args, **kwargs):
        # Of an encoder's input Transformers infer no mask, and padding would be read as text.
        inputs, name, model_kwargs = super()._prepare_model_inputs(*args, **kwargs)
        pad, eos = self.config.pad_token_id, self.config.eos_token_id
        known = pad is not None and pad not in (eos if isinstance(eos, list) else [eos])
        if self.config.is_encoder_decoder and name == "input_ids" and known:
            real = inputs != pad
            if model_kwargs.get("attention_mask") is None and not bool(real.all()):
                model_kwargs["attention_mask"] = (real | ~real.any(dim=1, keepdim=True)).long()
        if self.config.is_encoder_decoder:
            kept_up("warn_of_sources", model_kwargs.get("attention_mask"))
        return inputs, name, model_kwargs

    def _sample(self, input_ids, logits_processor, stopping_criteria, generation_config, **kwargs):
        given = input_ids, logits_processor, stopping_criteria, generation_config
        found = None if faster_search is None else faster_search(self, *given, kwargs)
        if found is None:
            refuse_for_transformers(generation_config)
            return super()._sample(*given, **kwargs)
        return found

    def _beam_search(self, input_ids, logits_processor, stopping_criteria, generation_config, **kwargs):
        given = input_ids, logits_processor, stopping_criteria, generation_config
        found = None if faster_search is None else faster_search(self, *given, kwargs)
        if found is not None:
            return found
        refuse_for_transformers(generation_config)
        model = for_outputs(self)
        processors = normalization_undone(model, logits_processor)
        search, pad = super(TranslationGenerationMixin, model)._beam_search, generation_config._pad_token_tensor
        if pad is not None:  # behind shorter hypotheses; with id 0 Transformers would put </s> there
            generation_config = copy.copy(generation_config)
            generation_config._pad_token_tensor = pad.new_full((), NO_TOKEN)
        found = search(input_ids, processors, stopping_criteria, generation_config, **kwargs)
        if pad is not None:
            sequences = getattr(found, "sequences", found)
            sequences.masked_fill_(sequences == NO_TOKEN, pad.to(sequences.device))
        return found

    def compute_transition_scores(self, sequences, scores, beam_indices=None, normalize_logits=False) -> Tensor:
        """Computes what GenerationMixin's does, also where source and target have vocabularies of their own.

        `normalize_logits` does nothing where `logits_are_scores`.
        """
        normalize_logits = normalize_logits and not self.logits_are_scores
        compute = super(TranslationGenerationMixin, for_outputs(self)).compute_transition_scores
        return compute(sequences, scores, beam_indices, normalize_logits)

    def _expand_inputs_for_generation(
        self, expand_size: int = 1, is_encoder_decoder: bool = False, input_ids: Tensor | None = None, **model_kwargs
    ):
        # Transformers repeats its tensors for the beams in place: the caller's object, which may be used again.
        if model_kwargs.get("encoder_outputs") is not None:
            model_kwargs["encoder_outputs"] = copy.copy(model_kwargs["encoder_outputs"])
        return super()._expand_inputs_for_generation(expand_size, is_encoder_decoder, input_ids, **model_kwargs)


# Searches in the place of Transformers' loop: (model, what that is called with, its arguments by keyword) -> what that
# returns, or None: Transformers' loop shall. `import hf_mlnmt` fills this slot with hf_mlnmt.search.run; in code beside
# published weights it stays empty.
faster_search: Callable[..., Any] | None = None

# Calls generate() of Transformers, or, for options that it has prepared before, the search alone: (model, generate(),
# its arguments by keyword) -> what that returns. Filled with hf_mlnmt.search.prepare.generate in the same way.
generate_again: Callable[..., Any] | None = None


def normalization_undone(model: Any, processors: Any) -> Any:
    """Returns logits processors for Transformers' beam search, which takes a log-softmax of all that a model returns.

    Where `logits_are_scores` the first of them gives back what that took away, log sum exp of the last position.

    Args:
        model: of one call alone (`for_outputs`): it gets a hook.
    """
    if not model.logits_are_scores:
        return processors
    taken: list[Tensor] = []

    def remember(module: Any, inputs: Any, outputs: Any) -> None:
        taken[:] = [outputs.logits[:, -1].float().logsumexp(-1, keepdim=True)]

    def give_back(input_ids: Tensor, scores: Tensor) -> Tensor:
        return scores + taken[0].to(scores.device)

    model.register_forward_hook(remember)
    return type(processors)([give_back, *processors])


def for_outputs(model: Any) -> Any:
    """Returns the model for one call: another object with the same weights, so that nothing is set on what others call.

    Its `config.vocab_size` is the decoder's, because Transformers looks there for the number of logits: in
    compute_transition_scores, and in 5.17's beam search. Ours is the source's size, as Marian's.
    """
    model = copy.copy(model)
    model._forward_hooks = copy.copy(model._forward_hooks)
    model.config = copy.copy(model.config)
    model.config.vocab_size = model.config.decoder_vocab_size
    return model
