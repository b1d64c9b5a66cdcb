"""The card of a record, made from its files in modeling/ and training/ and from results/."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hf_mlnmt.errors import UserError, suggest
from hf_mlnmt.evaluation.comparison import comparisons_of_record
from hf_mlnmt.reports.card import build_card
from hf_mlnmt.reports.facts import Facts, languages_of_results, load_results
from hf_mlnmt.reports.parameters import model_of_config, parameters_by_part
from hf_mlnmt.table import Table
from hf_mlnmt.zoo.records import records_root, stems


def card_for_record(stem: str, root: str | Path | None = None, papers: Table | None = None) -> str:
    """The card of a record: before training the plan with "No results yet", after it the results.

    Args:
        stem: the name that modeling/<stem>.json, training/<stem>.yaml and model_cards/<stem>.md share. Scores come from
            results/<stem>.json and, with several seeds, results/<stem>.seed<n>.json, as far as these are there.
        root: the folder that holds modeling/ and the others; default: this project's own.
        papers: what papers report of the system; a section of the card.

    Raises: UserError when the record is missing or broken.
    """
    return build_card(facts_of_record(stem, root, papers))


def facts_of_record(stem: str, root: str | Path | None = None, papers: Table | None = None) -> Facts:
    """What is known of a record."""
    from hf_mlnmt.recipe.reading import read_recipe

    root = _root(root)
    config = record_config(root / "modeling" / f"{stem}.json")
    recipe_path = root / "training" / f"{stem}.yaml"
    recipe: dict[str, Any] = read_recipe(recipe_path).to_dict() if recipe_path.is_file() else {}
    results = [load_results(path) for path in results_of_record(stem, root)]
    model = model_of_config(config)
    return Facts(
        name=stem,
        config=config,
        model_class=type(model),
        results=results,
        languages=languages_of_results(results[0] if results else {}, recipe),
        codes=tuple(recipe.get("tokenizer", {}).get("languages", ())),
        recipe=recipe,
        parameters=parameters_by_part(model),
        comparisons=comparisons_of_record(stem, root),
        papers=papers,
        published=False,
    )


def record_config(path: Path) -> Any:
    """The config of modeling/<stem>.json. UserError when it is missing or broken."""
    from huggingface_hub.errors import StrictDataclassError
    from transformers import AutoConfig

    if not path.is_file():
        known = stems(path.parent.parent)
        raise UserError(f"{path}: no such record{suggest(path.stem, known)}; there are: {', '.join(known) or 'none'}.")
    try:
        return AutoConfig.from_pretrained(path)
    except (StrictDataclassError, ValueError, TypeError, OSError) as error:
        raise UserError(f"{path}: not the config of a model: {error}") from error


def results_of_record(stem: str, root: str | Path | None = None) -> list[Path]:
    """The results files of a record: the plain one, then those of the seeds, by number."""
    folder = _root(root) / "results"
    plain = folder / f"{stem}.json"
    seeds = sorted(folder.glob(f"{stem}.seed*.json"), key=lambda path: (len(path.name), path.name))
    return [*([plain] if plain.is_file() else []), *seeds]


def _root(root: str | Path | None) -> Path:
    return Path(root) if root is not None else records_root()
