"""The zoo: one entry a system with its config and what its papers report, and the records of this project."""

from hf_mlnmt.zoo.systems import config_for, find_system, list_systems

__all__ = ["config_for", "find_system", "list_systems"]
