"""What a command is asked to score with: language, protocols and metrics, checked before anything is translated."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hf_mlnmt.data.processing import moses_languages
from hf_mlnmt.errors import UserError
from hf_mlnmt.evaluation.protocols import METRICS, Protocol, choose_protocols, metric_named

log = logging.getLogger(__name__)


def scoring_options(
    protocols: Sequence[str] | None,
    metrics: Sequence[str] | None,
    language: str | None,
    target_language: str | None,
    reference: Path,
) -> dict[str, Any]:
    """score_protocols()' arguments from a command's options; their errors are UserErrors.

    language: as asked for; None: see `scored_language`.
    """
    language = language or scored_language(target_language, reference)
    if language:
        Protocol("classic", language)
    chosen = [how.name for how in choose_protocols(protocols, language)]
    if "classic" in chosen and language not in moses_languages():
        log.warning("language %r: Moses has no rules of its own for it; its general ones cut the text", language)
    return {"protocols": chosen, "language": language, "metrics": [metric_named(name) for name in metrics or METRICS]}


def scored_language(target_language: str | None, reference: Path) -> str | None:
    """The two-letter code of what is scored: of the language translated into, else of the reference's name.

    Raises UserError when the two are not the same: nobody but the user knows which is right.
    """
    named = language_of(reference)
    # "de_DE" and "pt-BR" begin with it; "deu_Latn" and "deu" do not tell.
    told = re.fullmatch(r"([a-z]{2})([_-]\w+)?", target_language or "")
    if told and named and told[1] != named:
        raise UserError(
            f"{reference}: its name says the language is {named!r}, but it is translated into {target_language!r}. "
            "Say which of them to score as, by --language."
        )
    return told[1] if told else named


def language_of(path: str | Path) -> str | None:
    """The two-letter code in a file's name: 'de' for 'test.de.gz' and 'test.de'; None where there is none."""
    return next((part for part in reversed(Path(path).name.split(".")[1:]) if part in moses_languages()), None)
