"""Checks the files of Multi30k in a folder, which pages and recipes call DIR, and fetches those that are missing.

    python studies/multi30k.py DIR
    python studies/multi30k.py DIR --fetch

From the authors' repository at one commit: task 1 as it lies there, English translated into German, French and Czech,
and of task 2, for monolingual/, the distinct captions by other writers of the training images. Elliott et al. 2016,
2017; Barrault et al. 2018. Licence: CC-BY-NC-SA-4.0; the captions are derived from Flickr30k, which is for
non-commercial research and education only.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from hf_mlnmt.common.errors import UserError
from hf_mlnmt.common.files import atomic_path

SOURCE = "https://raw.githubusercontent.com/multi30k/dataset/a3d2e0d26b56f3846f66a952536ffed4e401d05a/data"
# Lines, and SHA-256 of the text.
FILES = {
    "train.en.gz": (29000, "460a15fbd157e34a7a9957ee388c1ca247fe47af3ef25fb50442af6c274e0fc6"),
    "train.de.gz": (29000, "2c2b73fd2b548fbcde3a875e0a78d6ee94d498bfdee6bd3eae3945779e9ddf72"),
    "train.fr.gz": (29000, "5925a3c18f1587b6b54b87743106e6e8ab93618edb6f65d19eac0621f853a10d"),
    "train.cs.gz": (29000, "2be68b38c8d586ff4f54eb13cc6e1baaaa053695b3f070d3038303a47f2268da"),
    "val.en.gz": (1014, "1f2a23d992769b5b3d209b0a10dd0b77c08cceb1f20dfb97ed0aafa49d107227"),
    "val.de.gz": (1014, "660e09eb7e1da2f856ea13ee5ad3cf6d36b3d5b0b733c857e94c5747a3dfc660"),
    "val.fr.gz": (1014, "5304e444d842e962b2dda4d816b70b22a1765b15401642b7ca37a67477e708dc"),
    "val.cs.gz": (1014, "d53827e469b0a1ca8d57e9e26b2b64c4bc4b33f5479c7b03ae87ae5c882c3e33"),
    "test_2016_flickr.en.gz": (1000, "399a4382932c1aadd3ceb9bef1008d388a64c76d4ae4e9d4728c6f4301cac182"),
    "test_2016_flickr.de.gz": (1000, "4be6b5b3236b79c25475c6bb829800a7ce559e9ba7a1f6c2394fe4d40be46d16"),
    "test_2016_flickr.fr.gz": (1000, "cb3160d69b002bb638e66cc7612fcd56cb0af82eadc9c142dedc438afb885ef6"),
    "test_2016_flickr.cs.gz": (1000, "45adb85f688de8407fddcbe1b36dca15d12aab868149b337e2576f2d6d2ff8d8"),
    "monolingual/train.en.gz": (144546, "243b9cbac0d0f669938cd00ad2d5f5be754ff37716afd18cee7923d842ec24e5"),
    "monolingual/train.de.gz": (141634, "15c33e06dc77695db06202ec9296a08f3f83421431a08cb2e7c52e26253aa1d2"),
}


def problem(path: Path, lines: int, digest: str) -> str | None:
    """Returns what is wrong with a file, None if it is the one that all results here are of."""
    if not path.is_file():
        return "is missing"
    try:
        text = gzip.decompress(path.read_bytes())
    except (OSError, EOFError) as error:
        return f"is no gzip file, or a broken one ({error})"
    if hashlib.sha256(text).hexdigest() == digest:
        return None
    there = len(text.splitlines())
    return f"is another text: {there:,} lines, where {lines:,} are expected"


def check(folder: Path) -> dict[str, str]:
    """Returns {file: what is wrong with it} of a folder."""
    found = {name: problem(folder / name, *expected) for name, expected in FILES.items()}
    return {name: text for name, text in found.items() if text}


def sources(name: str) -> list[str]:
    """Returns the addresses below SOURCE that a file is made of."""
    part, file = name.rpartition("/")[::2]
    split, language, ending = file.split(".")
    if not part:
        return [f"task1/raw/{name}"]
    return [f"task2/raw/{split}.{number}.{language}.{ending}" for number in range(1, 6)]


def fetch(folder: Path, name: str) -> None:
    """Downloads a file. Raises: UserError without a network, and for a text that is not the expected one."""
    packed = [_read(f"{SOURCE}/{source}") for source in sources(name)]
    if len(packed) > 1:
        lines = (line for part in packed for line in gzip.decompress(part).splitlines(keepends=True))
        packed = [gzip.compress(b"".join(_distinct(lines)), mtime=0)]
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    with atomic_path(folder / name) as path:
        path.write_bytes(packed[0])
        if text := problem(path, *FILES[name]):
            raise UserError(f"{SOURCE}/{sources(name)[0]} {text}. Nothing was written; get the file by hand.")


def _read(address: str) -> bytes:
    try:
        with urllib.request.urlopen(address, timeout=60) as answer:
            return answer.read()  # type: ignore[no-any-return]
    except OSError as error:
        raise UserError(f"{address}: cannot be fetched ({error}). Check the network and run this again.") from error


def _distinct(lines: Iterator[bytes]) -> Iterator[bytes]:
    seen: set[bytes] = set()
    return (line for line in lines if not (line in seen or seen.add(line)))  # type: ignore[func-returns-value]


def run(folder: Path, fetching: bool) -> None:
    """Checks the folder, after fetching what is wrong. Raises: UserError that names the files that are wrong."""
    for name in check(folder) if fetching else ():
        print(f"fetching {name}")
        fetch(folder, name)
    if wrong := check(folder):
        listed = "\n".join(f"  {name} {text}" for name, text in wrong.items())
        raise UserError(f"{folder}: not all of Multi30k is there:\n{listed}\nAdd --fetch to download these.")
    print(f"{folder}: all {len(FILES)} files of Multi30k are there (CC-BY-NC-SA-4.0).")


def main(words: list[str] | None = None) -> int:
    """The command; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, metavar="DIR")
    parser.add_argument("--fetch", action="store_true", help="download what is missing or is another text")
    options = parser.parse_args(words)
    try:
        run(options.folder, options.fetch)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
