"""Two processes by `accelerate launch`."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path


def launch(*arguments: str) -> None:
    """Run with two processes; the test fails when they do."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    # --multi_gpu is how `accelerate launch` says "several processes"; without a GPU they take the CPU and gloo.
    options = ["--multi_gpu", "--num_processes", "2", "--num_machines", "1", "--mixed_precision", "no"]
    options += ["--dynamo_backend", "no", "--main_process_port", str(port)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}
    result = subprocess.run(
        [sys.executable, "-m", "accelerate.commands.launch", *options, *arguments],
        capture_output=True,
        text=True,
        timeout=300,
        env=environment,
        cwd=Path(__file__).resolve().parents[2],
    )
    assert result.returncode == 0, result.stderr[-3000:]
