"""`hf-mlnmt`, also as `python -m hf_mlnmt`: the form that `accelerate launch -m hf_mlnmt train ...` needs."""

import sys


def main() -> None:
    """Run the command. Ctrl-C while it is being imported ends it as later, without a traceback."""
    try:
        from hf_mlnmt.cli import main as run

        run()
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
