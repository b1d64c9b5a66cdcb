"""A training that is cut off."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from hf_mlnmt.training.callbacks import ShowProgress


@contextmanager
def power_cut(monkeypatch: pytest.MonkeyPatch, step: int) -> Iterator[None]:
    """Cuts the training in the block off at the end of this step, and takes the error."""
    show = ShowProgress.on_step_end

    def stop(self, args, state, control, **kwargs):
        if state.global_step == step:
            raise RuntimeError("power cut")
        show(self, args, state, control, **kwargs)

    with monkeypatch.context() as patch, pytest.raises(RuntimeError, match="power cut"):
        patch.setattr(ShowProgress, "on_step_end", stop)
        yield
