"""Choosing among translations: by a utility, by other models; how sure a model is."""
