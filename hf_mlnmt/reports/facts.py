"""Facts about a model for its card or description, read from a model folder or results files.

`results` are contents of results files (evaluation/results.py): a missing key was not recorded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from huggingface_hub import metadata_load

from hf_mlnmt.common.model_folder import needs_code
from hf_mlnmt.evaluation.results import languages_of_test, results_content
from hf_mlnmt.reports.paths import hide_paths

if TYPE_CHECKING:
    from hf_mlnmt.evaluation.comparison import Comparison


def citation_of(model_class: Any) -> str | None:
    """Returns the BibTeX of a class's `citation` (BibTeX, or keys of papers.bib); None for a class without one."""
    said = str(getattr(model_class, "citation", None) or "").strip()
    if not said or said.startswith("@"):
        return said or None
    entries = Path(__file__).with_name("papers.bib").read_text("utf-8").strip().split("\n\n")
    papers = {entry.partition("{")[2].partition(",")[0]: entry for entry in entries}
    return "\n\n".join(papers[key] for key in said.split())


@dataclass(frozen=True)
class Facts:
    """All facts about a model that its card is made of; unknown fields are None or empty."""

    name: str  # the name to load the model by: a Hub name or a folder's name; for an unpublished model its run's name
    config: Any  # the model's PreTrainedConfig
    model_class: type
    results: Sequence[Mapping[str, Any]] = ()  # the content of a results file for each seed; empty before training
    # The content of generation_config.json, cleaned (hub/checks.py).
    generation: Mapping[str, Any] = field(default_factory=dict)
    languages: tuple[str | None, str | None] = (None, None)  # source and target language of a bilingual model
    codes: tuple[str, ...] = ()  # target language codes of a multilingual tokenizer
    # How the card's code sets `languages` of a class of Transformers: src_lang, front (text), generate (name: token).
    told: Mapping[str, Any] = field(default_factory=dict)
    licence: str | None = None  # the licence of the weights, as the Hub spells it
    own_budget: Mapping[str, Any] | None = None  # the budget in the model's recipe; a comparison may have had another
    separate_tokenizers: bool = False
    language_tokenizers: bool = False  # whether every language has a tokenizer of its own, in tokenizers/
    domain: str | None = None  # the kind of text that the model translates, as "image captions"
    datasets: tuple[str, ...] = ()  # Hub data sets with the text that the model was trained and tested on
    base_models: tuple[str, ...] = ()  # Hub models that the model was made from
    # How the model was made from base_models, in the Hub's words: finetune, merge or adapter.
    relation: str | None = None
    emissions: Mapping[str, Any] | None = None  # the numbers that CodeCarbon measured, under the Hub's names
    processing: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # the content of text_processing.json
    # {folder under results/: the comparison in it}.
    comparisons: Mapping[str, Comparison] = field(default_factory=dict)
    curves: Path | None = None  # the figure of the training's curves, which is copied beside the card
    space: str | None = None  # Hub name of the Space that shows the model
    rounded: str | None = None  # the type that the weights were rounded to when the model was published
    train: str | None = None  # for an unpublished model the command that trains it, as its name cannot be loaded yet

    @property
    def carries_code(self) -> bool:
        """Returns whether the model's code is saved beside its weights: its class is none of Transformers' own."""
        return needs_code(self.model_class)

    @property
    def citation(self) -> str | None:
        """Returns the BibTeX of the model class's papers, if any."""
        return citation_of(self.model_class)

    def languages_of_test(self, test_set: str) -> tuple[str | None, str | None]:
        """Returns a test set's languages (source, target) from the results; where they are unknown, the model's."""
        tested = languages_of_test(self.results[0] if self.results else {}, test_set)
        return tested["source"] or self.languages[0], tested["target"] or self.languages[1]

    def recorded(self, key: str) -> Any:
        """Returns the value of a key in the results; None where it is missing, or seeds have different values."""
        values = [result.get(key) for result in self.results]
        return values[0] if values and all(value == values[0] for value in values) else None

    @property
    def data(self) -> Mapping[str, Any]:
        """Returns the description of the training data in the results; {} if not recorded."""
        data = self.recorded("data")
        return data if isinstance(data, Mapping) else {"name": data} if data else {}


def load_results(path: Path) -> dict[str, Any]:
    """Reads the content of a results file, with local paths hidden. Raises: UserError for another file."""
    content: dict[str, Any] = hide_paths(results_content(path))
    return content


def front_matter(card: Path) -> dict[str, Any]:
    """Returns the YAML metadata at the top of a card; {} without card or metadata, and where it cannot be read."""
    try:
        return (metadata_load(card) if card.is_file() else None) or {}
    except (ValueError, yaml.YAMLError):  # ValueError: also for invalid UTF-8
        return {}


def languages_of_results(results: Mapping[str, Any]) -> tuple[str | None, str | None]:
    """Returns (source, target) of the key "languages" in results; None where unknown."""
    pair = results.get("languages") or {}
    return (pair.get("source"), pair.get("target")) if isinstance(pair, Mapping) else (None, None)
