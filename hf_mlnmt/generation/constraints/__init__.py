"""Constraints on translations: prefixes, glossaries, phrases, parts of the source that are kept."""
