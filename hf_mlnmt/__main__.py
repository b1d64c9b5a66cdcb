"""Runs the command `hf-mlnmt`, also as `python -m hf_mlnmt`, as `accelerate launch -m hf_mlnmt train ...` does."""

import re
import signal
import sys
from typing import NoReturn


def main() -> None:
    """Runs the command line. Ctrl-C ends it with exit code 130 and no traceback, also while modules are imported."""
    try:
        _end_in_order()
        from hf_mlnmt.cli import main as run

        run()
    except KeyboardInterrupt:
        sys.exit(130)


def _end_in_order() -> None:
    """Let SIGTERM, SIGHUP and SIGUSR1 end the program as Ctrl-C does, so that nothing half-written is left."""
    for name in ("SIGTERM", "SIGHUP", "SIGUSR1"):
        number = getattr(signal, name, None)
        if number is not None and signal.getsignal(number) is signal.SIG_DFL:  # False where nohup ignores SIGHUP
            signal.signal(number, _stop)


def _stop(number: int, frame: object) -> NoReturn:
    name = signal.Signals(number).name
    print(f"stopped by {name}", file=sys.stderr)
    # A training that has not begun has not parsed its options: --requeue-code is read from the arguments here.
    asked = re.search(r" --requeue-code[= ](\d+) ", f" {' '.join(sys.argv)} ") if name != "SIGHUP" else None
    sys.exit(int(asked[1]) if asked else 128 + number)


if __name__ == "__main__":
    main()
