"""Constraints on translations: prefixes, glossary terms, phrases, parts of the source that are kept."""
