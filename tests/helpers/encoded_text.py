"""Text in the memory, encoded without a corpus's file."""

import os

import numpy as np

from hf_mlnmt.common.made_from import Origin
from hf_mlnmt.data.encoded import Encoded
from hf_mlnmt.data.encoding import grow
from hf_mlnmt.data.processing import Encoder
from hf_mlnmt.data.tokenizer import Tokenizers


def build(items, tokenizers: Tokenizers, folder, max_length=None, language=None, tag=None, side=None) -> Encoded:
    """Encodes pairs, or texts of a side."""
    sides = tokenizers.sides(language, tag)
    encoder = Encoder(list(sides.values()) if side is None else [sides[side]])
    return grow(folder, Origin(os.urandom(8).hex()), encoder, lambda *_: iter(items), np.uint16, max_length)
