"""Helpers for the other folders of the package: files, keys, errors, tables, languages; imports only modeling."""
