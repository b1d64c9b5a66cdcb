"""The zoo: the systems and their configs, the numbers that the papers report, and the records of this project."""

from hf_mlnmt.zoo.systems import config_for, find_system, list_systems

__all__ = ["config_for", "find_system", "list_systems"]
