"""Marian itself, in a process of its own: `train CLI`, `convert CLI` or `translate CLI FILE`, for test_marian.py."""

import json
import sys


def main(what: str, options: str, file: str = "") -> None:
    from pymarian import Trainer, Translator

    if what == "train":
        Trainer(options).train()
        return
    if what == "convert":
        import _pymarian

        sys.exit(_pymarian.main([what, *options.split()]))
    with open(file, encoding="utf-8") as lines:
        found = Translator(options).translate(lines.read().splitlines())
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
