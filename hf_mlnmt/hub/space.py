"""A Space of the Hub that shows a published model: the page of hf_mlnmt/serving, in a folder to upload.

README.md says what the Hub shall run, app.py is the page, requirements.txt pins what it was tried with.
"""

from pathlib import Path

from huggingface_hub import SpaceCardData

from hf_mlnmt.common.errors import UserError
from hf_mlnmt.common.files import atomic_folder, write_text
from hf_mlnmt.common.model_folder import CARD, LANGUAGE_TOKENIZERS, TARGET_TOKENIZER
from hf_mlnmt.hub.checks import check_replaceable
from hf_mlnmt.reports.card import auto_class_of_facts
from hf_mlnmt.reports.facts import Facts
from hf_mlnmt.reports.tables import template

APP, REQUIREMENTS = "app.py", "requirements.txt"
GRADIO, PYTHON = "6.31.0", "3.12"
_TORCH = "https://download.pytorch.org/whl/cpu"


def check_space_folder(folder: str | Path) -> None:
    """Raises UserError for a folder that holds anything but an earlier Space."""
    check_replaceable(Path(folder), "Space", (CARD, APP, REQUIREMENTS))


def build_space(facts: Facts, folder: str | Path, name: str) -> Path:
    """Writes the folder of the Space `name` (owner/name) for the model of `facts`, in place of an earlier one.

    Raises: UserError for a model that does not translate, or whose languages nothing says.
    """
    import torch

    from hf_mlnmt import __version__

    folder = Path(folder)
    check_space_folder(folder)
    if auto_class_of_facts(facts) != "AutoModelForSeq2SeqLM":
        raise UserError(f"--space {name}: {facts.name} does not translate, and a Space shows translations.")
    if facts.carries_code and not (all(facts.languages) or facts.codes or hasattr(facts.config, "source_languages")):
        raise UserError(f"--space {name}: the page asks which languages the model has. Say --from and --to.")
    licence, _, own = (facts.licence or "").lower().partition(":")
    head = SpaceCardData(
        title=name.split("/")[-1],
        sdk="gradio",
        sdk_version=GRADIO,
        python_version=PYTHON,
        app_file=APP,
        license=licence or None,
        license_name=own or None,
        models=[facts.name] if "/" in facts.name else None,  # by itself it names a folder
        tags=["translation", "hf_mlnmt"],
    )
    files = {"app": APP, "requirements": REQUIREMENTS}
    modules = hasattr(facts.config, "source_languages") and not facts.config.is_pair
    content = {"facts": facts, "modules": modules, "sentence": "", "auto_class": "AutoModelForSeq2SeqLM"}
    content |= {"tokenizers": LANGUAGE_TOKENIZERS, "target_tokenizer": TARGET_TOKENIZER}
    with atomic_folder(folder) as new:
        write_text(new / CARD, template("space_card.md.jinja").render(facts=facts, head=head, name=head.title, **files))
        write_text(new / APP, template("space_app.jinja").render(content))
        pinned = f"torch=={torch.__version__.partition('+')[0]}\nhf-mlnmt[serve]=={__version__}"
        write_text(new / REQUIREMENTS, f"--extra-index-url {_TORCH}\n{pinned}\n")
    return folder
