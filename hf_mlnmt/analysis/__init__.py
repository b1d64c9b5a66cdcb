"""Analyses of trained models: attention, the effect of parts, probing of states, faults of outputs, costs.

Each file has a statistic, and a function that computes it for several systems and returns a `Study` with rows and
figures. The commands `hf-mlnmt analyse ...` write these to files.
"""
