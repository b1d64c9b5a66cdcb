"""Sines and cosines that a checkpoint saved: compared with ours, then left out."""

from __future__ import annotations

import torch

from hf_mlnmt.convert.account import Account
from hf_mlnmt.errors import UserError
from hf_mlnmt.modeling import TransformerConfig
from hf_mlnmt.modeling.positions import SinusoidalPositions


def leave_out_sines(account: Account, name: str, config: TransformerConfig) -> None:
    """Say that a table of positions, if it was saved, is computed anew.

    Raises: UserError if it holds other numbers than the config's positions.
    """
    table = account.tensors.get(name)
    if table is None:
        return
    kind, sizes = config.position_embedding, (config.max_position_embeddings, config.d_model)
    ours = SinusoidalPositions.compute(*sizes, kind, config.position_offset)
    theirs = table.double().flatten(0, -2)
    # They may have been kept in half precision.
    if theirs.shape != ours.shape or not torch.allclose(theirs, ours, atol=1e-3):
        raise UserError(f"{account.source}: {name} holds other numbers than this architecture's sines and cosines.")
    account.leave_out(name, "sines and cosines, computed anew")
