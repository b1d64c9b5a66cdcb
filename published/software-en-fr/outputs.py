"""The output classes of encoder and translation model, with fields beyond those of Transformers'."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from transformers.modeling_outputs import BaseModelOutput, Seq2SeqLMOutput
from transformers.utils import ModelOutput


@dataclass
class EncoderOutput(BaseModelOutput):
    """An encoder's output; the batch is the first dimension of each tensor, so that beams can repeat it.

    `memory`, (batch, source, ...): the states that the decoder's attention over the source reads; None: the last state.
    `features`, (batch, ...): further output for the decoder, for each source position or for the whole sentence: states
    that auxiliary decoders read, 1 / phi of fertility; None: none.
    """

    memory: Tensor | None = None
    features: Tensor | None = None

    @classmethod
    def of(cls, outputs: BaseModelOutput | tuple, names: Sequence[str]) -> "EncoderOutput":
        """Returns an encoder's output or its tuple as `EncoderOutput`; needs the last state and the fields `names`.

        Raises: ValueError if one of `names` is missing.
        """
        if isinstance(outputs, tuple | list):  # the fields `names` are its only tensors beside the last state
            last, *others = outputs
            tensors: list[Any] = [value for value in others if isinstance(value, Tensor)]
            outputs = cls(last_hidden_state=last, **dict(zip(names, tensors)))
        if missing := [name for name in names if getattr(outputs, name, None) is None]:
            raise ValueError(
                f"encoder_outputs has no {' and no '.join(missing)}, which this model's decoder reads: give the whole "
                "output of this model's own encoder, model.get_encoder()(input_ids, attention_mask), in the same mode "
                "(training or evaluation)"
            )
        if isinstance(outputs, cls):
            return outputs
        # Read attributes: published code may be loaded twice, so that isinstance fails for a class of the same name.
        handed_on = {
            name: getattr(outputs, name, None) for name in ("hidden_states", "attentions", "memory", "features")
        }
        return cls(last_hidden_state=outputs.last_hidden_state, **handed_on)


@dataclass
class TranslationOutput(Seq2SeqLMOutput):
    """The translation model's output. `losses`: the summands of `loss` by name, for logging; None for a single one."""

    losses: dict[str, Tensor] | None = None

    @classmethod
    def passed_on(cls, outputs: ModelOutput) -> dict[str, Any]:
        """Returns the fields of `outputs` (of the model without output projection) whose names this class also has."""
        return {name: value for name, value in outputs.items() if name in cls.__dataclass_fields__}
