"""The zoo: a table with an entry for each system; builds systems' configs, finds this project's recipes and records."""

from hf_mlnmt.zoo.systems import config_for, find_system, list_systems

__all__ = ["config_for", "find_system", "list_systems"]
