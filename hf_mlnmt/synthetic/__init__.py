"""Synthetic corpora: text of one language with another side that a model wrote (or that is a copy).

manifest = back_translate("runs/de-en/average", ["news.de.gz"], "synthetic", Method("sampling", seed=1), tag="<bt>")
manifest.pairs, manifest.content["counts"]      # read again with hf_mlnmt.data.synthetic.read_manifest
"""

from hf_mlnmt.synthetic.back_translation import Settings, Watcher, back_translate
from hf_mlnmt.synthetic.methods import METHODS, Method
from hf_mlnmt.synthetic.outputs import REASONS, USUAL

__all__ = ["METHODS", "REASONS", "USUAL", "Method", "Settings", "Watcher", "back_translate"]
