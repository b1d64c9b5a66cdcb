"""What can be known of a model before there is a tokenizer: its config is right, and it fits in the memory."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from huggingface_hub.errors import StrictDataclassError
from transformers import PreTrainedConfig

from hf_mlnmt.data.tokenizer import SPECIAL_TOKENS
from hf_mlnmt.errors import UserError
from hf_mlnmt.memory import memory_of_machine
from hf_mlnmt.training.tasks import check_needs_of

if TYPE_CHECKING:
    from hf_mlnmt.recipe.schema import Recipe
    from hf_mlnmt.training.preparation import Preparation

GIB = 2**30
# Bytes of a weight with its gradient and the optimizer's state: float32, and two moments of Adam.
BYTES_OF_WEIGHT = {"adam": 16, "adamw": 16, "sgd": 8}


@dataclass
class ExpectedTokenizer:
    """Stands for a tokenizer that is still to be trained: its size, and ids as every tokenizer of ours has them."""

    size: int
    pad_token_id: int = SPECIAL_TOKENS.index("<pad>")
    eos_token_id: int = SPECIAL_TOKENS.index("</s>")
    bos_token_id: int = SPECIAL_TOKENS.index("<s>")
    mask_token_id: int = SPECIAL_TOKENS.index("<mask>")
    all_special_ids: tuple[int, ...] = tuple(range(len(SPECIAL_TOKENS)))

    def __len__(self) -> int:
        return self.size


@dataclass
class ExpectedTokenizers:
    """Stands for `Tokenizers`."""

    source: ExpectedTokenizer
    target: ExpectedTokenizer
    each: dict[str, ExpectedTokenizer] = field(default_factory=dict)

    @property
    def joint(self) -> bool:
        """True when both sides share one vocabulary."""
        return self.source is self.target and not self.each

    def language_ids(self) -> dict[str, int]:
        """None are known yet."""
        return {}

    def sizes(self) -> dict[str, int]:
        """As `Tokenizers.sizes`."""
        return {language: one.size for language, one in self.each.items()}

    def between(self, source: str | None, target: str | None) -> ExpectedTokenizers:
        """As `Tokenizers.between`."""
        return ExpectedTokenizers(self.each[str(source)], self.each[str(target)]) if self.each else self


def expected_tokenizers(recipe: Recipe, languages: Sequence[str] = ()) -> ExpectedTokenizers:
    """What the tokenizers will be if the corpus has words enough; `languages`: each of these has its own."""
    source = ExpectedTokenizer(recipe.tokenizer.vocab_size)
    if languages:
        return ExpectedTokenizers(source, source, {one: ExpectedTokenizer(source.size) for one in languages})
    return ExpectedTokenizers(source, source if recipe.tokenizer.joint else ExpectedTokenizer(source.size))


def check_model(preparation: Preparation, tokenizers: Any, processes: int, tokens: int) -> None:
    """Refuse a config that cannot be, and a model that this machine cannot train.

    Args:
        tokenizers: those of the run, or expected ones.
        processes: on this machine.
        tokens: of the largest batch there can be, on the side of the recipe's batch.side.

    Raises: UserError naming the recipe's key, or the estimate and what there is.
    """
    recipe = preparation.recipe
    try:
        config = preparation.config(tokenizers)
        with torch.device("meta"):  # shapes alone
            model = preparation.auto_class(config).from_config(config)
    except StrictDataclassError as error:
        raise UserError(f"{recipe.path}: {_in_words(str(error))}") from error
    except (ValueError, TypeError, KeyError, RuntimeError, OverflowError) as error:
        if isinstance(error, UserError):
            raise
        raise UserError(f"{recipe.path}: model: such a model cannot be made ({error!r}).") from error
    check_objectives(preparation, model, tokenizers)
    _check_memory(recipe, config, model.num_parameters(), processes, tokens)


def check_objectives(preparation: Preparation, model: Any, tokenizers: Any) -> None:
    """Refuse a model, or tokenizers, that an objective cannot train with.

    Raises: UserError naming the task and what is lacking.
    """
    with torch.device("meta"):
        objectives = {task.name: preparation.objective(task, model, tokenizers) for task in preparation.corpora.tasks}
    for name, objective in objectives.items():
        check_needs_of(name, objective, model)


def _in_words(text: str) -> str:
    """An error of a config as one of the recipe's keys.

    The text is "Class validation error for validator 'validate_rates':\\n ValueError: dropout=1.5: must be ..." or
    "Validation error for field 'd_model':\\n TypeError: Field 'd_model' expected int, got str (value: 'x')".
    """
    reason = re.sub(r"^\w+: ", "", text.strip().splitlines()[-1].strip())
    if field := re.search(r"Field '(\w+)' (expected [^;]*)", reason):
        hint = " Write it with a point, as in 1.0." if "expected float, got int" in reason else ""
        return f"model.settings.{field[1]}: {field[2]}.{hint}"
    named = re.match(r"(\w+)\s*=(.*)", reason)
    return f"model.settings.{named[1]}={named[2]}." if named else f"model: {reason}."


def _check_memory(recipe: Recipe, config: PreTrainedConfig, parameters: int, processes: int, tokens: int) -> None:
    state = parameters * BYTES_OF_WEIGHT[recipe.optimizer.name] / GIB
    step = _bytes_of_step(recipe, config, tokens) / GIB
    on_cpu = recipe.arguments.get("use_cpu") is True or not torch.accelerator.is_available()
    needed, there = (state + step) * (processes if on_cpu else 1), memory_of_machine(on_cpu) / GIB
    if needed > there:
        raise UserError(
            f"{recipe.path}: this training needs at least {needed:,.1f} GiB of memory, and this machine has "
            f"{there:,.1f}: {parameters:,} parameters with their gradients and the optimizer's state take "
            f"{state:,.1f} GiB"
            + (f", a step of {tokens:,} tokens at least {step:,.1f}" if tokens else "")
            + (f", each in {processes} processes" if on_cpu and processes > 1 else "")
            + ". Lower model.shape, the sizes under model.settings, tokenizer.vocab_size or batch.tokens."
        )


def _bytes_of_step(recipe: Recipe, config: Any, tokens: int) -> float:
    """A lower bound of what the backward pass reads: of each layer on the side that `tokens` are of, for each token.

    In self-attention the input, queries, keys, values and the context, in a decoder's cross-attention input, queries
    and context, in the feed-forward layer the input and what is inside; half of it in mixed precision. Of a
    checkpointed layer only the input is kept.
    """
    side, kept = ("encoder", 6) if recipe.batch.side == "source" else ("decoder", 9)
    layers, width, inner = (getattr(config, name, 0) for name in (f"{side}_layers", "d_model", f"{side}_ffn_dim"))
    numbers = width if recipe.precision.gradient_checkpointing else kept * width + inner
    return tokens * layers * numbers * (4 if recipe.precision.dtype == "float32" else 2)
