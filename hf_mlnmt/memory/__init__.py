"""Translation memories for any model: an index (index.py), matches (matching.py), which words of a match's translation
fit a text (lexicon.py), and a logits processor that steers a search by these words (steering.py)."""
