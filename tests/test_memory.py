"""keep_memory: what is freed stays with the process, and nothing else changes; else a search hands memory back."""

import os
import platform
from pathlib import Path

import pytest
from helpers import fresh
from helpers.searching import decode, sources, toy

from hf_mlnmt.common import memory
from hf_mlnmt.common.memory import keep_memory
from hf_mlnmt.search import cache

ROOT = str(Path(__file__).resolve().parents[1])
glibc = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the C library is not glibc")

# Pages that are asked for anew when 2 x 48 MiB are taken, written and freed once more, after fifteen times. (Pieces of
# more than 32 MiB are always handed back, unless the C library is told otherwise.)
PROGRAM = """
import resource, torch
from hf_mlnmt.common.memory import keep_memory
print(keep_memory() if {keep} else None)
def use():
    pieces = [torch.ones(12 * 2**20) for _ in range(2)]
for _ in range(15):
    use()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
use()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def run(keep: bool, **environment: str) -> tuple[str, int]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_"))}
    done = fresh.python("-c", PROGRAM.format(keep=keep), env={**kept, "PYTHONPATH": ROOT, **environment})
    assert done.returncode == 0, done.stderr
    answer, faults = done.stdout.split()
    return answer, int(faults)


@glibc
def test_freed_memory_is_not_asked_for_again():
    _, without = run(keep=False)
    answer, faults = run(keep=True)
    assert answer == "True"
    assert faults < 100 < without


@glibc
@pytest.mark.parametrize(
    ("name", "value"), [("MALLOC_TRIM_THRESHOLD_", "100000"), ("GLIBC_TUNABLES", "glibc.malloc.check=0")]
)
def test_settings_of_the_environment_hold(name, value):
    assert run(keep=True, **{name: value})[0] == "False"


def test_another_c_library_is_left_alone(monkeypatch):
    monkeypatch.setattr(platform, "libc_ver", lambda *args: ("musl", "1.2"))
    assert keep_memory() is False


@pytest.fixture
def trims(monkeypatch):
    """How often memory was handed back."""
    calls = []

    class Library:
        malloc_trim = staticmethod(calls.append)

    decode(toy(), **sources((3, 2)), num_beams=2)  # what a search loads is loaded now
    monkeypatch.setattr(memory.ctypes, "CDLL", lambda name: Library)
    monkeypatch.setattr(memory.os, "name", "posix")
    monkeypatch.setattr(memory, "_kept", False)
    return calls


def test_memory_is_handed_back_unless_it_is_kept(trims, monkeypatch):
    memory.return_memory()
    assert trims == [0]
    monkeypatch.setattr(memory, "_kept", True)
    memory.return_memory()
    assert trims == [0]


def test_a_search_hands_back_the_old_places_of_large_buffers(trims, monkeypatch):
    decode(toy(), **sources((6, 1, 4)), num_beams=4, max_new_tokens=40)
    assert not trims
    monkeypatch.setattr(cache, "LARGE", 1)
    decode(toy(), **sources((6, 1, 4)), num_beams=4, max_new_tokens=40)
    assert len(trims) > 1
