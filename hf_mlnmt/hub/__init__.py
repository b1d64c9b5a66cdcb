"""Model cards, publishing to a folder or the Hub, descriptions. See docs/publishing.md."""

from hf_mlnmt.hub.card import build_card
from hf_mlnmt.hub.checks import check_folder
from hf_mlnmt.hub.cleaning import clean_generation_config
from hf_mlnmt.hub.description import describe
from hf_mlnmt.hub.facts import Facts
from hf_mlnmt.hub.parts import parameters_by_part
from hf_mlnmt.hub.publish import Published, build_folder
from hf_mlnmt.hub.records import card_for_record, stale_cards, write_cards
from hf_mlnmt.hub.tasks import write_records
from hf_mlnmt.hub.upload import push

__all__ = [
    "Facts",
    "Published",
    "build_card",
    "build_folder",
    "card_for_record",
    "check_folder",
    "clean_generation_config",
    "describe",
    "parameters_by_part",
    "push",
    "stale_cards",
    "write_cards",
    "write_records",
]
