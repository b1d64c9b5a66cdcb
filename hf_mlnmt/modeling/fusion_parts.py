"""What the members of a fused model (fusion.py) have in one: their encoders, what those give, and their caches."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from transformers.cache_utils import Cache
from transformers.utils import ModelOutput

from .outputs import EncoderOutput


@dataclass(init=False)
class FusedEncoderOutput(ModelOutput):
    """The encoders' outputs in one, (batch, ...) each, so that beams can repeat them.

    The first member's tensors have the names that they have in its own output, those of member i a prefix "member<i>_".
    """

    last_hidden_state: Tensor | None = None

    def __init__(self, **tensors: Tensor | None):
        for name, value in tensors.items():
            if value is not None:
                self[name] = value

    def __post_init__(self):
        pass  # ModelOutput's looks for the fields that a dataclass was made with

    def __reduce__(self):
        return _encoder_output, (dict(self),)  # ModelOutput's would lose what is no field

    @classmethod
    def of(cls, outputs: Sequence[Any]) -> "FusedEncoderOutput":
        """From the members' outputs, translation models in their order."""
        names = ("last_hidden_state", "memory", "features")
        found: dict[str, Tensor | None] = {}
        for number, output in enumerate(outputs):
            prefix = f"member{number}_" if number else ""
            found |= {prefix + name: getattr(output, name, None) for name in names}
        return cls(**found)

    def member(self, number: int) -> EncoderOutput:
        """What the encoder of a translation model gave."""
        prefix = f"member{number}_" if number else ""
        fields = ("last_hidden_state", "memory", "features")
        return EncoderOutput(**{name: self[prefix + name] for name in fields if prefix + name in self})


def _encoder_output(tensors: dict[str, Tensor]) -> FusedEncoderOutput:
    return FusedEncoderOutput(**tensors)


class FusedEncoder(nn.Module):
    """The encoders of all translation models; it owns none of them, and is made when it is asked for."""

    main_input_name = "input_ids"

    def __init__(self, encoders: Sequence[Any]):
        super().__init__()
        self.encoders = tuple(encoders)

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None, **kwargs) -> FusedEncoderOutput:
        """input_ids and attention_mask (batch, source) -> states of every member."""
        kwargs["return_dict"] = True
        outputs = [encoder(input_ids=input_ids, attention_mask=attention_mask, **kwargs) for encoder in self.encoders]
        return FusedEncoderOutput.of(outputs)


class FusedCache(Cache):
    """The members' caches, translation models first."""

    def __init__(self, members: Sequence[Cache]):
        super().__init__(layers=[])
        self.members = list(members)

    def __len__(self) -> int:
        return len(self.members[0])

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Of the members that are used: one whose scale is 0 reads nothing."""
        return max(int(member.get_seq_length(layer_idx)) for member in self.members)

    def get_max_length(self, layer_idx: int | None = None) -> int:
        return -1

    def reorder_cache(self, beam_idx: Tensor) -> None:
        for member in self._in_use():
            member.reorder_cache(beam_idx)  # type: ignore[arg-type]

    def batch_repeat_interleave(self, repeats: int) -> None:
        for member in self._in_use():
            member.batch_repeat_interleave(repeats)

    def batch_select_indices(self, indices: Tensor) -> None:
        for member in self._in_use():
            member.batch_select_indices(indices)

    def crop(self, tokens_to_remove: int) -> None:
        for member in self._in_use():
            member.crop(tokens_to_remove)

    def reset(self) -> None:
        for member in self._in_use():
            member.reset()

    def _in_use(self) -> list[Cache]:
        return [member for member in self.members if member.get_seq_length()]

    @property
    def is_linear(self) -> list[bool]:
        """False for each member: all have keys and values, whose number is the prefix's length. Asked since 5.24."""
        return [False] * len(self.members)

    @property
    def is_compileable(self) -> bool:
        return False

    @property
    def is_croppable(self) -> bool:
        return all(getattr(member, "is_croppable", True) for member in self.members)

    def activate_past_recording(self) -> None:
        for member in self.members:
            member.activate_past_recording()


def part_of(encoded: Any, number: int) -> EncoderOutput:
    """A member's encoder output; what is no `FusedEncoderOutput` is that of an only translation model."""
    return encoded.member(number) if hasattr(encoded, "member") else encoded
