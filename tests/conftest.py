"""Puts this folder on sys.path (for `helpers` and `reference`) and gives the zoo's tests their models.

A test that names `member` or `model` runs over every system of the zoo, some over every variant of it (contract.py).
"""

from __future__ import annotations

import functools
import gc
import os
import signal
import sys

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import pytest
import typer.testing
from hypothesis import HealthCheck, settings

# Of a command with all its verbs parameters and help are made once, not at each call, which takes a tenth of a second.
typer.testing._get_command = functools.cache(typer.testing._get_command)
gc.set_threshold(50_000, 20, 20)  # the collector need not look as often as it does by itself
pytest_plugins = ["helpers.fixtures"]


def pytest_configure(config: pytest.Config):
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a suite that runs in the background ignores it
    if hasattr(os, "fork") and not hasattr(config, "workerinput"):  # the process whose children are xdist's workers
        from helpers import fresh

        started = fresh.begin()
        config.add_cleanup(lambda: fresh.end(started))
    # No test is timed: another processor, or another load, would fail it.
    settings.register_profile("suite", deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.load_profile("suite")
    config.addinivalue_line("markers", "slow: more than about 20 seconds on one core; runs in CI like the others")
    config.addinivalue_line("markers", "versions: run by `make test-versions` and by `pytest -m ''` alone")


def pytest_collection_finish(session: pytest.Session):
    keep_what_is_there()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item):
    if sys.getallocatedblocks() > 100_000 + kept:
        keep_what_is_there()


kept = 0  # pieces of memory


def keep_what_is_there():
    """What was collected, imported and made for many tests stays: the collector, which a Trainer calls, skips it."""
    global kept
    gc.collect()
    gc.freeze()
    kept = sys.getallocatedblocks()


def pytest_generate_tests(metafunc: pytest.Metafunc):
    if "member" in metafunc.fixturenames:
        from helpers.contract import members_for

        metafunc.parametrize("member", members_for(metafunc.function.__name__), ids=str)


@pytest.fixture
def model(member):
    """The member's float64 model with large random weights, the same one for all tests that change none of them."""
    from helpers.contract import lent

    with lent(member) as model:
        yield model


@pytest.fixture
def full(member):
    """The logits of forced decoding of `batch`, without a cache."""
    from helpers.contract import forced_logits

    return forced_logits(member)


@pytest.fixture
def batch():
    from helpers.contract import Batch

    return Batch.draw()


@pytest.fixture(autouse=True, scope="session")
def unwatched():
    """The toys' random weights loop, and tests compare their translations with those of generate(): nothing is searched
    again (watching.py) but where a test says so (`watched`)."""
    from hf_mlnmt.generation.translating.options import DecodingOptions

    kept, DecodingOptions.is_watched = DecodingOptions.is_watched, False
    yield kept
    DecodingOptions.is_watched = kept


@pytest.fixture
def watched(monkeypatch, unwatched):
    """Translations are watched, as they are outside of this suite."""
    from hf_mlnmt.generation.translating.options import DecodingOptions

    monkeypatch.setattr(DecodingOptions, "is_watched", unwatched)
