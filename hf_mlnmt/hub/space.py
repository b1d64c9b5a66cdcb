"""A Space of the Hub that shows a published model: the page of hf_mlnmt/serving, in a folder to upload.

README.md says what the Hub shall run, app.py is the page, requirements.txt pins what it was tried with. Where the
package is taken out of requirements.txt, app.py loads the model by the code beside its weights.
"""

from __future__ import annotations

from pathlib import Path

from huggingface_hub import SpaceCardData

from hf_mlnmt.errors import UserError
from hf_mlnmt.files import atomic_folder, check_folder_name, write_text
from hf_mlnmt.model_folder import CARD, LANGUAGE_TOKENIZERS, TARGET_TOKENIZER
from hf_mlnmt.reports.card import auto_class_of_facts
from hf_mlnmt.reports.facts import Facts
from hf_mlnmt.reports.tables import template

APP, REQUIREMENTS = "app.py", "requirements.txt"
GRADIO, PYTHON = "6.31.0", "3.12"
_TORCH = "https://download.pytorch.org/whl/cpu"


def check_space_folder(folder: str | Path) -> None:
    """Raises UserError for a folder that holds anything but an earlier Space."""
    folder = Path(folder)
    check_folder_name(folder)
    foreign = sorted({path.name for path in folder.iterdir()} - {CARD, APP, REQUIREMENTS}) if folder.is_dir() else []
    if foreign:
        raise UserError(f"{folder}: holds '{foreign[0]}', which no Space has and which would be deleted. Move it away.")


def build_space(facts: Facts, folder: str | Path, name: str) -> Path:
    """Writes the folder of the Space `name` (owner/name) for the model of `facts`, in place of an earlier one.

    Raises: UserError for a model that does not translate, or whose languages nothing says.
    """
    folder = Path(folder)
    check_space_folder(folder)
    if auto_class_of_facts(facts) != "AutoModelForSeq2SeqLM":
        raise UserError(f"--space {name}: {facts.name} does not translate, and a Space shows translations.")
    if facts.carries_code and not (all(facts.languages) or facts.codes or hasattr(facts.config, "source_languages")):
        raise UserError(f"--space {name}: the page asks which languages the model has. Say --from and --to.")
    with atomic_folder(folder) as new:
        write_text(new / CARD, _readme(facts, name))
        content = {"facts": facts, "modules": hasattr(facts.config, "source_languages") and not facts.config.is_pair}
        content |= {"sentence": "", "auto_class": "AutoModelForSeq2SeqLM", "tokenizers": LANGUAGE_TOKENIZERS}
        app = template("space_app.jinja").render(content, target_tokenizer=TARGET_TOKENIZER)
        write_text(new / APP, app)
        write_text(new / REQUIREMENTS, _requirements())
    return folder


def _readme(facts: Facts, name: str) -> str:
    on_hub = "/" in facts.name  # by itself it names a folder
    model = f"[{facts.name}](https://huggingface.co/{facts.name})" if on_hub else f"`{facts.name}`"
    licence, _, own = (facts.licence or "").lower().partition(":")
    head = SpaceCardData(
        title=name.split("/")[-1],
        sdk="gradio",
        sdk_version=GRADIO,
        python_version=PYTHON,
        app_file=APP,
        license=licence or None,
        license_name=own or None,
        models=[facts.name] if on_hub else None,
        tags=["translation", "hf_mlnmt"],
    )
    return f"""---
{head.to_yaml()}
---

# {name.split("/")[-1]}

Translates in the browser with the model {model}, whose card says what it was trained on, how good it is, and what it
may be used for. What is typed here is sent to this Space and nowhere else.

`{APP}` is the page of the package `hf_mlnmt`: translation as one types, the best translations with their scores, the
attention of any layer and head. Take the line of the package out of `{REQUIREMENTS}` and put `transformers` there, and
it runs by the code beside the model's weights instead, slower, without all but the translation.

```shell
pip install -r {REQUIREMENTS}
python {APP}
```
"""


def _requirements() -> str:
    import torch

    from hf_mlnmt import __version__

    torch_version = torch.__version__.partition("+")[0]
    return f"--extra-index-url {_TORCH}\ntorch=={torch_version}\nhf-mlnmt[serve]=={__version__}\n"
