"""Stand-ins for what the pages name, made once for all tests of the pages."""

from __future__ import annotations

import pytest
from helpers.docs import StandIns


@pytest.fixture(scope="session")
def stand_ins(tmp_path_factory) -> StandIns:
    return StandIns(tmp_path_factory.mktemp("stand-ins"))
