"""The search of generate() for this package's models: `run` chooses its implementation, and `explain` names that.

A call of generate() goes through prepare.py, which lists its steps, and then to `run`, which searches with the first
of these implementations, called floors, that supports the call:

| floor | file | runs for |
| --- | --- | --- |
| one sentence in compiled code | cpu/one_sentence.py, search.c | one sentence without padding, greedy or beams |
| steps of static shapes | gpu/static_shapes.py | greedy, draws or beams on a GPU |
| the loop | loop.py | all search strategies; the reference; a beam's step is in strategies.py |
| Transformers' loop | | what `why_not` names |

Each step of loop.py calls `TransformerDecoder` (transformer.py): on a CPU the compiled step of cpu/step.py, for a
decoder of the baseline's layers or SSRU, without dropout, adapters or autocast; else the model's own modules.
A step of a beam search is implemented four times, its parts numbered as in strategies.py:

| part | strategies.py | gpu/static_shapes.py | gpu/kernels.py | cpu/search.c |
| --- | --- | --- | --- | --- |
| (1) candidates | `candidates` | `Stage.choose_beams` | `_read_kernel`, `_beams_kernel` | `choose_next` |
| (2) finish | `finish` | `Stage.choose_beams` | `_beams_kernel` | `finish`, `take_beams` |
| (3) go on | `go_on` | `Stage.choose_beams` | `_beams_kernel` | `take_beams` |
| (4) close | `close` | `Stage.choose_beams` | `_beams_kernel` | `take_beams` |

The parts that all loops share:

| part | file | interface |
| --- | --- | --- |
| search strategies | strategies.py; those beside it: the table there | `SearchStrategy`; of beams `candidates` |
| hypotheses that go on, finished ones, length penalties | hypotheses.py | `Hypotheses`, `Chains`, `Record` |
| logits processors, ends, limits | rules.py | `Rules` |
| a model's decoder | decoder.py; decoders.py lists them | `begin`, `step` |
| its state | the same | `expand`, `reorder`, `select` |
| a decoder step in compiled code | cpu/step.py, cpu/native.py, cpu/search.c | `CompiledStep` |
| what is kept between calls of a model, and of options | known.py, prepare.py | `known`, `Prepared` |

The search is fast because the beams of a sentence are neighbouring positions of one sequence (cache.py), so that no
keys and values are copied; sentences that have ended leave the batch (rules.py); and the best tokens are found by one
call of compiled code for each step, which looks into few blocks of the vocabulary (search.c).
"""

import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers.generation.stopping_criteria import EosTokenCriteria, MaxLengthCriteria
from transformers.utils import ModelOutput, logging

from hf_mlnmt.modeling.releases import CACHE
from hf_mlnmt.search import loop
from hf_mlnmt.search.constraints import Constrained
from hf_mlnmt.search.decoder import HANDLED, SourceBatch, SourceTokens
from hf_mlnmt.search.decoders import decoder_of
from hf_mlnmt.search.gpu import static_shapes
from hf_mlnmt.search.known import known, what_is_around
from hf_mlnmt.search.prepare import UnencodedSources, stop_if_preparing
from hf_mlnmt.search.recombination import Recombined
from hf_mlnmt.search.rules import BetweenSteps, Rules
from hf_mlnmt.search.strategies import (
    BeamSearch,
    Draws,
    DrawsByRow,
    Greedy,
    Grouped,
    SampledBeams,
    SearchStrategy,
    WithoutReplacement,
)

__all__ = ["decoder_of", "explain", "run", "what_is_around", "why_not"]
logger = logging.get_logger(__name__)
_OF_THREAD = threading.local()  # `explains`: while `explain` runs, `run` raises `_Explained` instead of searching


class Floor(NamedTuple):
    """One implementation of the search, for one call: its name, why it is chosen, and the function that searches, which
    returns None where it cannot."""

    name: str
    reason: str
    search: Callable[[], Any]

    def __str__(self) -> str:
        return f"{self.name}: {self.reason}"


class _Explained(Exception):
    """Ends the call of generate() that `explain` makes; the one argument is the floor that would have searched."""


def explain(model: Any, sentences: int = 1, **options: Any) -> str:
    """Returns the name of the implementation by which generate(**options) would search for this number of sentences,
    and why.

    Nothing is searched. The answer is that of `run` itself, and does not depend on earlier calls.
    """
    ids = torch.full((sentences, 2), model.config.eos_token_id, device=model.device)
    _OF_THREAD.explains = True
    try:
        model.generate(**{"input_ids": ids, "attention_mask": torch.ones_like(ids), **options})
    except _Explained as found:
        return str(found.args[0])
    finally:
        _OF_THREAD.explains = False
    return "Transformers' loop: its class does not ask this package"


def run(
    model: Any, input_ids: Any, processors: Any, criteria: Any, config: Any, arguments: Any, sources: Any = None
) -> Any:
    """Searches by the first implementation (floor) that can. Returns generate()'s result; None if Transformers' own
    loop must search.

    Args:
        input_ids ... arguments: what generate() passes to its loop, the keyword arguments in `arguments`.
        sources: `UnencodedSources` of a call whose options were prepared before; input_ids is None then.
    """
    given = processors, criteria, config, arguments
    floors = floors_of_call(model, input_ids, *given) if sources is None else floors_of_text(model, sources, *given)
    for floor in floors:
        logger.debug("generate(): %s", floor)
        if getattr(_OF_THREAD, "explains", False):
            raise _Explained(floor)
        if (found := floor.search()) is not None:
            return found
    return None


def floors_of_call(model: Any, input_ids: Any, *given: Any) -> Iterator[Floor]:
    """Yields the only implementation of the search for a call that Transformers has prepared and encoded; the arguments
    are those of `run`."""
    processors, criteria, config, arguments = given
    known(model)  # compares the model with its kept state, once a call; for a prepared call prepare.py has done it
    if other := why_not(model, criteria, config, arguments):
        stop_if_preparing(None, None, input_ids, *given)
        yield Floor("Transformers' loop", f"because of {other}", lambda: None)
        return
    rules = Rules(processors, criteria)
    decoder, strategy = decoder_of(model)(model, arguments), strategy_of(rules, config)
    stop_if_preparing(decoder, strategy, input_ids, *given)
    copies = max(config.num_beams, config.num_return_sequences)  # equal rows that Transformers made of a sentence
    prompt = input_ids[::copies]
    encoded = partial(SourceBatch.take, arguments["encoder_outputs"], arguments.get("attention_mask"), copies)
    slow = static_shapes.why_not(decoder, strategy, rules, prompt) or "options that are no plain values"
    yield _loop_floor(decoder, strategy, rules, config, prompt, encoded, slow)


def floors_of_text(model: Any, sources: UnencodedSources, *given: Any) -> Iterator[Floor]:
    """Yields the implementations of the search for a call prepared by prepare.py, fastest first; a later one is tried
    where those before have returned None."""
    (_, criteria, config, arguments), (ids, mask, _, wanted, rules) = given, sources
    if (ready := sources.ready(model)) is not None:
        reason = "one sentence without padding on a CPU, of a family and options that search.c knows"
        yield Floor("one sentence in compiled code", reason, partial(ready.translate, model, ids, wanted))
    arguments = {**arguments, "encoder_outputs": ModelOutput(), "attention_mask": mask}
    if other := why_not(model, criteria, config, arguments):
        yield Floor("Transformers' loop", f"because of {other}", lambda: None)
        return
    decoder, strategy, prompt = decoder_of(model)(model, arguments), strategy_of(rules, config), sources.prompt()
    if not (slow := static_shapes.why_not(decoder, strategy, rules, prompt)):
        by_steps = partial(static_shapes.search, decoder, strategy, SourceTokens(ids, mask), prompt, rules, config)
        yield Floor("steps of static shapes", "a device that Python runs ahead of", by_steps)
    encoded = lambda: SourceBatch.take(sources.encode(model), mask, 1)  # noqa: E731
    yield _loop_floor(decoder, strategy, rules, config, prompt, encoded, slow)


def _loop_floor(
    decoder: Any,
    strategy: Any,
    rules: Rules,
    config: Any,
    prompt: Tensor,
    encoded: Callable[[], SourceBatch],
    slow: Any,
) -> Floor:
    """Returns the floor of loop.py. encoded: returns the encoded sources; slow: why static shapes do not serve."""

    def search() -> Any:  # holds no reference to the sources, so that those of sentences that leave the batch are freed
        batch = loop.SearchBatch(decoder, encoded(), max(config.num_beams, config.num_return_sequences))
        return loop.search(batch, prompt, strategy(batch, prompt, rules, config))

    step = "the model's modules" if getattr(decoder, "compiled", None) is None else "compiled code (cpu/step.py)"
    return Floor("the loop", f"{strategy.__name__}, steps by {step}; not of static shapes: {slow}", search)


def strategy_of(rules: Rules, config: Any) -> type[SearchStrategy]:
    """Returns the search strategy that the generation config and the constraints among the rules ask for."""
    if rules.constraints is not None:
        return Constrained
    if config.num_beams == 1:
        drawn = DrawsByRow if getattr(config, "draws", None) == "row" else Draws
        return drawn if config.do_sample else Greedy
    if config.do_sample:
        return WithoutReplacement if getattr(config, "without_replacement", None) else SampledBeams
    if getattr(config, "groups", None) is not None:
        return Grouped
    return BeamSearch if getattr(config, "recombine", None) is None else Recombined


def why_not(model: Any, criteria: Any, config: Any, arguments: dict[str, Any]) -> str | None:
    """Names an option or property of the call that this package's loops do not support, or returns None."""
    decoder = decoder_of(model)
    if decoder is None:
        return f"the class {type(model).__name__} from {type(model).__module__}"
    if around := what_is_around(model, again=False):
        return around
    if config.return_dict_in_generate:
        for name in ("output_scores", "output_logits", "output_attentions", "output_hidden_states"):
            if getattr(config, name):
                return name
    for criterion in criteria:
        if type(criterion) not in (MaxLengthCriteria, EosTokenCriteria, BetweenSteps):
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
        return "a source that is masked altogether"  # of which implementations of attention compute different numbers
    if not isinstance(arguments.get("encoder_outputs"), ModelOutput):
        return "encoder_outputs that are no output of an encoder"
    if others := [name for name, value in arguments.items() if isinstance(value, Tensor) and name not in HANDLED]:
        return f"the argument {others[0]}"
    return decoder.why_not(model, arguments)
