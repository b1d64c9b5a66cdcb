"""Runs scripts one after the other, each in a fork of this process, which has imported what takes seconds.

A line of standard input is the keywords of `run` in JSON; the answer is a line with the exit status.
"""

from __future__ import annotations

import gc
import json
import os
import runpy
import signal
import sys
from pathlib import Path

import transformers.trainer  # noqa: F401

import hf_mlnmt.training  # noqa: F401


def run(script: str, options: list[str], folder: str, seconds: int) -> None:
    """The script, in this process; what it prints goes to the files 1 and 2 of the folder."""
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for stream in (1, 2):
        os.dup2(os.open(f"{folder}/{stream}", os.O_CREAT | os.O_WRONLY), stream)
    sys.argv, sys.path[0] = [script, *options], str(Path(script).parent)
    signal.alarm(seconds)  # which ends the process
    runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    gc.freeze()  # or every fork, when it ends, takes a second to collect what was imported
    for line in sys.stdin:
        if not (child := os.fork()):
            run(**json.loads(line))
            break
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
