"""The outputs of encoder and translation model that hold more than Transformers' own."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from transformers.modeling_outputs import BaseModelOutput, Seq2SeqLMOutput
from transformers.utils import ModelOutput


@dataclass
class EncoderOutput(BaseModelOutput):
    """An encoder's last state and all else that it hands on, the batch first in each, so that beams can repeat them.

    `memory`, (batch, source, ...): what the decoder's attention over the source reads; None: the last state.
    `features`, (batch, ...): everything else that is handed on for the source positions, or for the whole sentence:
    the layers that auxiliary decoders read, 1 / phi of fertility; None: nothing.
    """

    memory: Tensor | None = None
    features: Tensor | None = None

    @classmethod
    def of(cls, outputs: BaseModelOutput | tuple, names: Sequence[str]) -> "EncoderOutput":
        """Makes it of any encoder output, or the tuple of one, whose fields `names` are filled beside the last state.

        Raises: ValueError if one of `names` is missing.
        """
        if isinstance(outputs, tuple | list):  # to_tuple leaves out what is None, and what was recorded are tuples
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
        # By attributes, not isinstance: published code is loaded once for each entry class, so equal classes differ.
        handed_on = {
            name: getattr(outputs, name, None) for name in ("hidden_states", "attentions", "memory", "features")
        }
        return cls(last_hidden_state=outputs.last_hidden_state, **handed_on)


@dataclass
class TranslationOutput(Seq2SeqLMOutput):
    """`losses` names the parts of `loss` (scalars), for logging, when there is more than one."""

    losses: dict[str, Tensor] | None = None

    @classmethod
    def passed_on(cls, outputs: ModelOutput) -> dict[str, Any]:
        """Returns the fields that this output has in common with that of the model without output projection."""
        return {name: value for name, value in outputs.items() if name in cls.__dataclass_fields__}
