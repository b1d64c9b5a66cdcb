"""Search made fast: the loops behind generate() for the models of this package.

Preparation, arguments, processors and results stay Transformers'. Of the loops the first runs that fits:

| what is asked for | loop |
| --- | --- |
| one sentence on a CPU, options seen before, and nothing that search.c does not know (prepare.py asks) | single.py |
| something that `why_not` names; a debug line of this file's logger says what | Transformers', the tests' reference |
| phrases that must be there: `Constraints` among the logits processors | constraints.py |
| nothing that `fixed.why_not` names, on a device that Python runs ahead of (a GPU) | fixed.py |
| several beams | loops.beam_search |
| greedy search, sampling | loops.sample |

What makes them fast:
- the beams of a sentence are neighbouring positions of one sequence (cache.py): no copies of the source's keys
  and values, and none of the caches when beams change places;
- sentences that have ended leave the batch, with their keys, values and padding;
- one pass over the vocabulary: log-softmax, then the maxima of blocks, then the few best blocks;
- tokens and parents are kept, not sequences; the sequences are read off at the end.
"""

from collections.abc import Callable
from typing import Any

from torch import Tensor
from transformers import LogitsProcessorList
from transformers.generation.stopping_criteria import EosTokenCriteria, MaxLengthCriteria
from transformers.utils import ModelOutput, logging

from hf_mlnmt.modeling.linear import runs_ahead
from hf_mlnmt.modeling.releases import CACHE
from hf_mlnmt.search import fixed
from hf_mlnmt.search.constraints import Constraints, constrained_beam_search
from hf_mlnmt.search.decoder import HANDLED, SourceBatch
from hf_mlnmt.search.decoders import decoder_of
from hf_mlnmt.search.loops import SearchBatch, beam_search, sample
from hf_mlnmt.search.prepare import record, what_is_around
from hf_mlnmt.search.rules import Abandon, Rules

__all__ = ["decoder_of", "loop_for", "run", "what_is_around", "why_not"]
logger = logging.get_logger(__name__)


def loop_for(model: Any, criteria: Any, config: Any, arguments: dict[str, Any]) -> Callable | None:
    """Returns the loop to call in the place of `GenerationMixin._sample` or `_beam_search`, or None: theirs.

    Args:
        criteria, config, arguments: what generate() hands to its loop; arguments by keyword in `arguments`.

    Returns: a function of model, input_ids, logits_processor, criteria, config and arguments.
    """
    reason = why_not(model, criteria, config, arguments)
    if reason:
        logger.debug("generate(): Transformers' own loop, because of %s", reason)
        return None
    return run


def run(model: Any, input_ids: Tensor, logits_processor: Any, criteria: Any, config: Any, arguments: dict) -> Any:
    """Runs the search that the config asks for, and returns what generate() returns."""
    width = max(config.num_beams, config.num_return_sequences)
    decoder = decoder_of(model)(model, arguments)
    source = SourceBatch.take(arguments["encoder_outputs"], arguments.get("attention_mask"), width)
    constraints = [processor for processor in logits_processor if isinstance(processor, Constraints)]
    others = LogitsProcessorList(processor for processor in logits_processor if processor not in constraints)
    rules = Rules(others, criteria)
    if not constraints:
        record(decoder, input_ids, logits_processor, criteria, config, arguments)
        if runs_ahead(input_ids) and fixed.why_not(decoder, rules, config) is None:
            return fixed.search(decoder, source, input_ids, rules, config)
    batch = SearchBatch(decoder, source, width)
    del source  # so that sentences that leave the batch leave the memory too
    if constraints:
        return constrained_beam_search(batch, input_ids, rules, config, constraints[0])
    return (beam_search if config.num_beams > 1 else sample)(batch, input_ids, rules, config)


def why_not(model: Any, criteria: Any, config: Any, arguments: dict[str, Any]) -> str | None:
    """Names something that was asked for and that the loops of this package do not know, or returns None."""
    decoder = decoder_of(model)
    if decoder is None:
        return f"the class {type(model).__name__} from {type(model).__module__}"
    if around := what_is_around(model):
        return around
    if config.num_beams > 1 and config.do_sample:
        return "do_sample with several beams"
    if config.return_dict_in_generate:
        for name in ("output_scores", "output_logits", "output_attentions", "output_hidden_states"):
            if getattr(config, name):
                return name
    for criterion in criteria:
        if type(criterion) not in (MaxLengthCriteria, EosTokenCriteria, Abandon):
            return type(criterion).__name__
    if config.is_assistant or config.low_memory or config.prefill_chunk_size is not None:
        return "is_assistant, low_memory or prefill_chunk_size"
    if model.config._attn_implementation not in ("sdpa", "eager"):
        return f"attn_implementation={model.config._attn_implementation}"
    if arguments.get("streamer") is not None:
        return "a streamer"
    if arguments.get("synced_gpus"):
        return "synced_gpus"
    if not arguments.get("use_cache") or config.cache_implementation not in (None, "dynamic"):
        return "the cache that was asked for"
    cache = arguments.get(CACHE)
    if cache is not None and cache.get_seq_length() > 0:
        return "a cache that was given"
    mask = arguments.get("attention_mask")
    if mask is not None and not bool(mask.any(dim=1).all()):
        return "a source that is masked altogether"  # what attention over nothing is depends on its implementation
    if not isinstance(arguments.get("encoder_outputs"), ModelOutput):
        return "encoder_outputs that are no output of an encoder"
    if others := [name for name, value in arguments.items() if isinstance(value, Tensor) and name not in HANDLED]:
        return f"the argument {others[0]}"
    return decoder.why_not(model, arguments)
