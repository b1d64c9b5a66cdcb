"""Synthetic parallel text: corpora in which a model wrote one side (back-translation, forward translation, copies)."""
