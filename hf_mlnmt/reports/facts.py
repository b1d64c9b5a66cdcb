"""Facts that a card or a description states, gathered from a model folder or results files.

`results` are results files (evaluation/results.py) as they were written: a key that is not there was not recorded.
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
    """Returns BibTeX of a class's `citation`, which is that, or keys of papers.bib; None where it has none."""
    said = str(getattr(model_class, "citation", None) or "").strip()
    if not said or said.startswith("@"):
        return said or None
    entries = Path(__file__).with_name("papers.bib").read_text("utf-8").strip().split("\n\n")
    papers = {entry.partition("{")[2].partition(",")[0]: entry for entry in entries}
    return "\n\n".join(papers[key] for key in said.split())


@dataclass(frozen=True)
class Facts:
    """What the card knows of a model; unknown fields are None or empty."""

    name: str
    """What a reader loads it by: a Hub name, a folder's name; of what is not published, its run's name."""
    config: Any
    """Its PreTrainedConfig."""
    model_class: type
    results: Sequence[Mapping[str, Any]] = ()
    """One results file for each seed; none before training."""
    generation: Mapping[str, Any] = field(default_factory=dict)
    """generation_config.json, cleaned."""
    languages: tuple[str | None, str | None] = (None, None)
    """Source and target of a bilingual model."""
    codes: tuple[str, ...] = ()
    """Target language codes of a multilingual tokenizer."""
    told: Mapping[str, Any] = field(default_factory=dict)
    """How a class of Transformers' own is told `languages`: src_lang, front (text), generate (name: token)."""
    licence: str | None = None
    """Of the weights, as the Hub spells it."""
    own_budget: Mapping[str, Any] | None = None
    """Of its recipe; a comparison may have had another."""
    separate_tokenizers: bool = False
    language_tokenizers: bool = False
    """Whether every language has one of its own, in tokenizers/."""
    domain: str | None = None
    """The kind of text that it translates, as "image captions"."""
    datasets: tuple[str, ...] = ()
    """Data sets of the Hub that hold the text that it was trained and tested on."""
    base_models: tuple[str, ...] = ()
    """Models of the Hub that it was made of."""
    relation: str | None = None
    """The way that it was made of them, in the Hub's words: finetune, merge or adapter."""
    emissions: Mapping[str, Any] | None = None
    """The numbers that CodeCarbon measured, under the Hub's names."""
    processing: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """text_processing.json."""
    comparisons: Mapping[str, Comparison] = field(default_factory=dict)
    """Comparisons with other systems, by their names under results/."""
    curves: Path | None = None
    """The picture of its training, which goes beside the card."""
    space: str | None = None
    """The Space of the Hub that shows it."""
    rounded: str | None = None
    """The type that its weights were rounded to when it was published."""
    train: str | None = None
    """Of what is not published, the command that trains it: there is nothing to load by its name yet."""

    @property
    def carries_code(self) -> bool:
        """Returns whether the model's code travels with it: it is not one of Transformers' own classes."""
        return needs_code(self.model_class)

    @property
    def citation(self) -> str | None:
        """Returns BibTeX of the papers, where the class has it."""
        return citation_of(self.model_class)

    def languages_of_test(self, test_set: str) -> tuple[str | None, str | None]:
        """Returns (source, target) of a test set: a multilingual model is scored in several directions."""
        tested = languages_of_test(self.results[0] if self.results else {}, test_set)
        return tested["source"] or self.languages[0], tested["target"] or self.languages[1]

    def recorded(self, key: str) -> Any:
        """Returns a key of the results; None where it is missing or differs between them (as the seed does)."""
        values = [result.get(key) for result in self.results]
        return values[0] if values and all(value == values[0] for value in values) else None

    @property
    def data(self) -> Mapping[str, Any]:
        """Returns the training data, as the results say it."""
        data = self.recorded("data")
        return data if isinstance(data, Mapping) else {"name": data} if data else {}


def load_results(path: Path) -> dict[str, Any]:
    """Reads a results file as it stands, with the machine's paths shortened. Raises: UserError when it is none."""
    content: dict[str, Any] = hide_paths(results_content(path))
    return content


def front_matter(card: Path) -> dict[str, Any]:
    """Returns the YAML metadata at the top of a card, {} where there is none."""
    try:
        return (metadata_load(card) if card.is_file() else None) or {}
    except (ValueError, yaml.YAMLError):  # no UTF-8 is a ValueError too
        return {}


def languages_of_results(results: Mapping[str, Any]) -> tuple[str | None, str | None]:
    """Returns (source, target) as the results say."""
    pair = results.get("languages") or {}
    return (pair.get("source"), pair.get("target")) if isinstance(pair, Mapping) else (None, None)
