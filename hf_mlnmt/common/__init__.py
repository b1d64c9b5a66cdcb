"""Helpers for all other folders of the package: files, keys, errors, tables, model folders, languages and memory.

Of the package's other folders it imports only modeling.
"""
