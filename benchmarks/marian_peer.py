"""Marian's own engine for `base_shape.py --marian PYTHON`, run by that Python: `marian_peer.py "--models FILE ..."`.

A line of standard input is a list of sentences in JSON; the answer is a line with the seconds and the translations. It
needs pymarian alone.
"""

import json
import os
import sys
import time


def serve(options: str) -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what the engine itself says
    from pymarian import Translator

    translator = Translator(options)
    for line in sys.stdin:
        sentences = json.loads(line)
        start = time.perf_counter()
        found = translator.translate(sentences)
        seconds = time.perf_counter() - start
        lines = found.splitlines() if isinstance(found, str) else list(found)
        answers.write(json.dumps({"seconds": seconds, "lines": lines}) + "\n")
        answers.flush()


if __name__ == "__main__":
    serve(sys.argv[1])
