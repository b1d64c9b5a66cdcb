"""Analyses of trained models: attention, scores with parts masked, probing of states, faults of translations, costs.

Each file has a statistic, and a function that computes it for several systems and returns a `Study` with rows and
figures. The commands `hf-mlnmt analyse ...` write these to files.
"""
