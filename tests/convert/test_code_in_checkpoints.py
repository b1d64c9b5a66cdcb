"""A checkpoint that would run code is called that, whatever protocol its pickle has, and nothing else is said."""

from __future__ import annotations

import pickle
import warnings
from pathlib import Path

import pytest

from hf_mlnmt import UserError
from hf_mlnmt.convert.checkpoint import load


class Touches:
    """Makes a file when it is loaded."""

    def __init__(self, path: Path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_code_in_a_pickle_is_named_and_never_run(tmp_path, protocol):
    (tmp_path / "model.pt").write_bytes(pickle.dumps({"model": Touches(tmp_path / "ran")}, protocol=protocol))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UserError, match=r"holds more than weights and plain settings, .* never run"):
            load(tmp_path / "model.pt")
    assert not (tmp_path / "ran").exists()
