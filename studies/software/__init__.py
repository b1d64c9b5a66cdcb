"""A parallel corpus out of the translations of free software, which lie in Debian's packages (README.md).

`packages.py` fetches, `readers.py`, `bundles.py` and `manuals.py` read, `clean.py` says what is kept, `sets.py` divides
by project, `__main__.py` is the command.
"""
