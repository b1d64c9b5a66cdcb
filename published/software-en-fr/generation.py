"""generate() of all models: two variables for a faster search's functions, and corrections of Transformers' loops.

`hf_mlnmt.search` computes what Transformers' loops compute, in less time. A model calls it only through the slots
`faster_search` and `generate_again`: code beside published weights works without that package, by Transformers' loops.
"""

import copy
import functools
from collections.abc import Callable
from typing import Any

from torch import Tensor
from transformers import GenerationMixin

from .configuration import kept_up

_as_of_transformers: Any = functools.wraps(GenerationMixin.generate)  # copies Transformers' signature and help
Generation: Any = GenerationMixin  # Any: mypy must not check the models against its types
NO_TOKEN = -1


def refuse_for_transformers(config: Any) -> None:
    """Raises ValueError if a generation config sets an option of this package that Transformers' loops do not have."""
    names = {"recombine": "recombine", "groups": "num_beam_groups", "draws": "draws"}
    for key, name in {**names, "without_replacement": "without_replacement"}.items():
        if (asked := getattr(config, key, None)) not in (None, False, "batch"):
            raise ValueError(
                f"{name}={asked}: Transformers' loop does not know it. Have hf_mlnmt installed, and ask for nothing "
                "that needs that loop (output_scores, a streamer, use_cache=False ...)"
            )


class TranslationGenerationMixin(Generation):
    """Adds `generate()` to a model: by a faster search where there is one; source and target vocabularies may differ.

    "GenerationMixin" must stay in the name: Transformers looks for it in the names of a model's base classes.
    """

    # Whether a search sums up the logits of `forward` (True: a fused model's, which are not normalised) or the
    # log-softmax of them (False).
    logits_are_scores: bool = False

    def prepare_decoder_input_ids_from_labels(self, labels: Tensor | None) -> Tensor:
        """Shifts labels right by one, beginning with the decoder's start token; -100 becomes padding.

        Raises: ValueError for None, as in a call with neither labels nor inputs of the decoder.
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
        # Transformers infers no mask for an encoder's input, so padding would be read as text: make the mask here.
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
        if pad is not None:  # if padding has id 0, Transformers would fill shorter hypotheses with </s>
            generation_config = copy.copy(generation_config)
            generation_config._pad_token_tensor = pad.new_full((), NO_TOKEN)
        found = search(input_ids, processors, stopping_criteria, generation_config, **kwargs)
        if pad is not None:
            sequences = getattr(found, "sequences", found)
            sequences.masked_fill_(sequences == NO_TOKEN, pad.to(sequences.device))
        return found

    def compute_transition_scores(self, sequences, scores, beam_indices=None, normalize_logits=False) -> Tensor:
        """Computes transition scores as Transformers does, also where source and target have different vocabularies.

        `normalize_logits` has no effect where `logits_are_scores`.
        """
        normalize_logits = normalize_logits and not self.logits_are_scores
        compute = super(TranslationGenerationMixin, for_outputs(self)).compute_transition_scores
        return compute(sequences, scores, beam_indices, normalize_logits)

    def _expand_inputs_for_generation(
        self, expand_size: int = 1, is_encoder_decoder: bool = False, input_ids: Tensor | None = None, **model_kwargs
    ):
        # A copy: Transformers repeats tensors for the beams in the caller's object, which may be used again.
        if model_kwargs.get("encoder_outputs") is not None:
            model_kwargs["encoder_outputs"] = copy.copy(model_kwargs["encoder_outputs"])
        return super()._expand_inputs_for_generation(expand_size, is_encoder_decoder, input_ids, **model_kwargs)


# A function of (model, arguments of Transformers' loop, keyword arguments as a dictionary) that searches and returns
# the loop's result, or None where Transformers' loop must search. `import hf_mlnmt` sets hf_mlnmt.search.run; where a
# model runs from the code published with its weights, without the package, `faster_search` stays None.
faster_search: Callable[..., Any] | None = None

# A function of (model, Transformers' generate(), its arguments by keyword) that returns its result. For options that
# were prepared in an earlier call it runs only the search. `import hf_mlnmt` sets hf_mlnmt.search.prepare.generate.
generate_again: Callable[..., Any] | None = None


def normalization_undone(model: Any, processors: Any) -> Any:
    """Returns logits processors that undo the log-softmax of Transformers' beam search where `logits_are_scores`.

    The first processor adds log sum exp of the last position's logits, which the log-softmax has subtracted.

    Args:
        model: a copy for one call (`for_outputs`): it gets a hook.
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
    """Returns a copy of the model for one call, with the same weights: hooks and config of the original stay unchanged.

    The copy's `config.vocab_size` is the decoder's, as compute_transition_scores and 5.17's beam search read the number
    of logits there; in the original it is the source's, as in Marian's.
    """
    model = copy.copy(model)
    model._forward_hooks = copy.copy(model._forward_hooks)
    model.config = copy.copy(model.config)
    model.config.vocab_size = model.config.decoder_vocab_size
    return model
