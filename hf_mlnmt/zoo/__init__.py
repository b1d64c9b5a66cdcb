"""The zoo: one entry a system with its config, and where the recipes and records of this project are."""

from hf_mlnmt.zoo.systems import config_for, find_system, list_systems

__all__ = ["config_for", "find_system", "list_systems"]
