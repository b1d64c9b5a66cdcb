"""Fusion: made of the folders of other models (`hf_mlnmt.fuse`), so there is no system to give `config_for`."""

from hf_mlnmt.zoo.entry import Architecture

FUSION = Architecture("mlnmt-fusion", "fusion", "Fusion", "several models")
