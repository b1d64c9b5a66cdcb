"""Translation memories beside any model: an index, matches, and what the search gets of them."""
