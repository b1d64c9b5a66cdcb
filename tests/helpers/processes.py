"""Two processes: by `accelerate launch`, or forks that find what it would tell them in their environment."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from pathlib import Path

from helpers import fresh

ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def two_processes(*arguments: str, code: int = 0) -> list[str]:
    """Run a script in two forks of a process that has imported the package; both must end with `code`. Their stderr."""
    common = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    ranks = [{"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(2)]
    environments = [{**os.environ, **ENVIRONMENT, **common, **rank} for rank in ranks]
    done = fresh.side_by_side(arguments, environments, "package", ROOT)
    assert {one.returncode for one in done} == {code}, "".join(one.stderr[-3000:] for one in done)
    return [one.stderr for one in done]


# How `accelerate launch` says "several processes"; without a GPU they take the CPU and gloo.
MULTI_GPU = ("--multi_gpu", "--num_processes", "2", "--num_machines", "1", "--mixed_precision", "no")


def launch(*arguments: str, options: Sequence[str] = MULTI_GPU) -> str:
    """The same by `accelerate launch`, which a user may do; also it, and its processes, are forks. Its stderr."""
    options = [*options, "--dynamo_backend", "no", "--main_process_port", str(free_port())]
    options += [fresh.__file__, "package", *arguments]
    environment = {**os.environ, **ENVIRONMENT}
    result = fresh.package("-m", "accelerate.commands.launch", *options, env=environment, cwd=ROOT)
    assert result.returncode == 0, result.stderr[-3000:]
    return result.stderr
