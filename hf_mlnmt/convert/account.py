"""Which tensor of a checkpoint became which parameter of ours: every one must be used, and none may be missing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hf_mlnmt.errors import UserError, suggest


class Move(NamedTuple):
    """A parameter of ours, and the checkpoint's tensors that it is made of, one below the other."""

    ours: str
    theirs: tuple[str, ...]
    transposed: bool = False  # their matrices are (inputs, outputs)


class Account:
    """The tensors of a checkpoint, and what became of them.

    Args:
        source: the file or folder, for messages.
        tensors: name -> tensor.
    """

    def __init__(self, source: str, tensors: Mapping[str, Tensor]):
        self.source, self.tensors = source, dict(tensors)
        self.state: dict[str, Tensor] = {}
        self.origin: dict[str, list[str]] = {}  # of each parameter of ours, the tensors it was made of
        self.left_out: dict[str, str] = {}  # tensor -> why no parameter needs it

    def move(self, moves: Iterable[Move]) -> None:
        """Make parameters. Raises: UserError that names a tensor that is not there."""
        for ours, theirs, transposed in moves:
            parts = [self._tensor(name) for name in theirs]
            parts = [part.t() if transposed and part.dim() == 2 else part for part in parts]
            self.state[ours] = parts[0] if len(parts) == 1 else torch.cat(parts)
            self.origin[ours] = list(theirs)

    def set(self, ours: str, tensor: Tensor, theirs: Iterable[str]) -> None:
        """Give a parameter that was made from tensors otherwise than by stacking them; from none: a constant."""
        self.state[ours], self.origin[ours] = tensor, list(theirs)

    def leave_out(self, name: str, why: str) -> None:
        """Say that a tensor, if it is there, is not needed."""
        if name in self.tensors:
            self.left_out[name] = why

    def leave_out_copy(self, name: str, of: str) -> None:
        """Say that a tensor, if it is there, is the same as another one. Raises: UserError if it is not."""
        if name not in self.tensors:
            return
        one, other = self.tensors[name], self._tensor(of)
        if one.shape != other.shape or not torch.equal(one, other):
            raise UserError(
                f"{self.source}: {name} and {of} should be the same tensor, as the settings in the checkpoint say that "
                "they are shared, but their numbers differ. The checkpoint and its settings are not of one model."
            )
        self.left_out[name] = f"the same as {of}"

    def finish(self, model: Any) -> dict[str, Tensor]:
        """All parameters of `model` by name.

        Raises: UserError for tensors that nothing used, parameters that nothing became, and wrong shapes.
        """
        used = {name for names in self.origin.values() for name in names} | set(self.left_out)
        if others := sorted(self.tensors.keys() - used):
            raise UserError(
                f"{self.source}: holds {len(others)} tensors that this architecture has no place for: "
                f"{listed(others)}. It is another architecture than its settings say; nothing was imported."
            )
        expected = model.state_dict()
        if missing := sorted(expected.keys() - self.state.keys()):
            raise UserError(f"{self.source}: nothing there for {listed(missing)}; nothing was imported.")
        for name, parameter in expected.items():
            if parameter.shape != self.state[name].shape:
                raise UserError(
                    f"{self.source}: {' + '.join(self.origin[name])} is {tuple(self.state[name].shape)}, the settings "
                    f"in the checkpoint ask for {tuple(parameter.shape)} ({name}). They are not of one model."
                )
        return {name: self.state[name].contiguous() for name in expected}

    def record(self) -> dict[str, Any]:
        """What import.json says: where each parameter came from, and what was left out."""
        return {"parameters": self.origin, "left_out": self.left_out}

    def _tensor(self, name: str) -> Tensor:
        if name not in self.tensors:
            near = suggest(name, self.tensors)
            raise UserError(f"{self.source}: the tensor {name} is missing{near}. Give the whole, unchanged checkpoint.")
        return self.tensors[name]


def listed(names: list[str], most: int = 5) -> str:
    """The first names, and how many more there are, for a message."""
    rest = len(names) - most
    return ", ".join(names[:most]) + (f" and {rest} more" if rest > 0 else "")
