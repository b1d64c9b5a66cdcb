"""Fixtures for the tests of training."""

from __future__ import annotations

import pytest
from training_helpers import Pairs


@pytest.fixture
def pairs() -> Pairs:
    """60 pairs of 2 to 12 tokens."""
    return Pairs()
