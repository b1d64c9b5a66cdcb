# /// script
# requires-python = ">=3.11"
# dependencies = []  # hf-mlnmt comes by --with, as long as no index has it
# ///
"""Trains a model and publishes it, as one job: here by `uv run`, on Hugging Face's machines by `hf jobs uv run`.

    pip wheel --no-deps --wheel-dir dist .
    uv run --with dist/WHEEL hub/train_job.py multi30k-ende --data DIR --output runs/first
    hf jobs uv run --flavor a10g-small --timeout 2h --secrets HF_TOKEN -v ./multi30k:/data -v ./dist:/dist \
        -v hf://buckets/ME/runs:/runs --with /dist/WHEEL hub/train_job.py \
        multi30k-ende --data /data --output /runs/first --push ME/MODEL --licence LICENCE

Local folders are copied to where the job sees them.

Every other word goes to `hf-mlnmt train`. Ended by its timeout, the same job goes on from the last whole checkpoint of
its output, which must therefore lie in a bucket.
"""

import argparse
import subprocess
import sys


def main(words: list[str] | None = None) -> int:
    """Runs the two commands; returns the exit code of the one that failed, 0 for none."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", required=True, help="the run's folder")
    parser.add_argument("--push", metavar="OWNER/NAME", help="publish the model there; default: only train")
    parser.add_argument("--licence", help="of the weights, as the Hub spells it")
    job, train = parser.parse_known_args(words)
    commands = [["train", *train, "--output", job.output]]
    if job.push:
        commands.append(["publish", f"{job.output}/average", "--push", job.push])
        commands[-1] += ["--licence", job.licence] if job.licence else []
    codes = (subprocess.call([sys.executable, "-m", "hf_mlnmt", *command]) for command in commands)
    return next(filter(None, codes), 0)


if __name__ == "__main__":
    sys.exit(main())
