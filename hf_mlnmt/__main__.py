"""`hf-mlnmt`, also as `python -m hf_mlnmt`: the form that `accelerate launch -m hf_mlnmt train ...` needs."""

import re
import signal
import sys
from typing import NoReturn


def main() -> None:
    """Run the command. Ctrl-C while it is being imported ends it as later, without a traceback."""
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
        if number is not None and signal.getsignal(number) is signal.SIG_DFL:  # nohup lets SIGHUP be ignored
            signal.signal(number, _stop)


def _stop(number: int, frame: object) -> NoReturn:
    name = signal.Signals(number).name
    print(f"stopped by {name}", file=sys.stderr)
    # Of a training that has not begun: what its options say is not read yet.
    asked = re.search(r" --requeue-code[= ](\d+) ", f" {' '.join(sys.argv)} ") if name != "SIGHUP" else None
    sys.exit(int(asked[1]) if asked else 128 + number)


if __name__ == "__main__":
    main()
