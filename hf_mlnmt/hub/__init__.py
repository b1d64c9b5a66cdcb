"""Publishes models to a folder or the Hub. See docs/publishing.md."""

from hf_mlnmt.hub.checks import check_folder, clean_generation_config
from hf_mlnmt.hub.publish import Published, build_folder, build_space
from hf_mlnmt.hub.upload import push

__all__ = ["Published", "build_folder", "build_space", "check_folder", "clean_generation_config", "push"]
