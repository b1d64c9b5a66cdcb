"""What encoder and translation model return, where it is more than Transformers' own outputs hold."""

from dataclasses import dataclass

from torch import Tensor
from transformers.modeling_outputs import BaseModelOutput, Seq2SeqLMOutput


@dataclass
class EncoderOutput(BaseModelOutput):
    """`memory` is what the decoder reads when it is not the last state: batch first, so that beams can repeat it."""

    memory: Tensor | None = None

    @classmethod
    def from_tuple(cls, outputs: tuple) -> "EncoderOutput":
        """The inverse of `to_tuple`, which leaves out what is None: only the last state and `memory` are tensors."""
        last, *others = outputs
        return cls(last_hidden_state=last, memory=next((x for x in others if isinstance(x, Tensor)), None))


@dataclass
class TranslationOutput(Seq2SeqLMOutput):
    """`losses` names the parts of `loss` (scalars), for logging, when there is more than one."""

    losses: dict[str, Tensor] | None = None
