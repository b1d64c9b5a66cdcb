"""Translation memories beside any model: an index (index.py), matches (matching.py), the words of a match's translation
that fit a text (lexicon.py), and a search that is steered by them (steering.py)."""
