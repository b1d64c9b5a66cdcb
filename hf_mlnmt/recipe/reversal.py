"""A recipe turned round by one key: `reverse: true` makes of a training from en to de the one from de to en."""

from __future__ import annotations

from typing import Any

from hf_mlnmt.errors import UserError
from hf_mlnmt.training.objective_making import OBJECTIVES

KEY = "reverse"
_SIDES = {"source": "target", "target": "source"}


def turn_round(content: dict[str, Any]) -> None:
    """Carry out the key `reverse` of a recipe's content, in place; what is left says the other direction itself.

    Languages and text processing change sides, every corpus of pairs is read the other way round, and text that names
    a side gets the other one. Model, settings and names stay. What is not as a recipe has it is left for others to say.

    Raises: UserError where there are several directions.
    """
    if content.get(KEY) is not True:
        return
    if content.get("directions") is not None:
        raise UserError(
            "reverse: turns the one direction of a recipe round, and directions names several: leave it out."
        )
    content[KEY] = False
    _exchange(content.get("languages"))
    _exchange((content.get("tokenizer") or {}).get("processing"))
    data = content.get("data") or {}
    text = _reads_text(content.get("objective"))
    for corpora in (data.get("train"), data.get("dev"), *(data.get("test") or {}).values()):
        _turn_corpora(corpora, text)
    for task in (content.get("tasks") or {}).values():
        if isinstance(task, dict):
            _exchange(task.get("languages"))
            for name in ("data", "dev"):
                _turn_corpora(task.get(name), _reads_text(task.get("objective")))


def _reads_text(objective: Any) -> bool:
    name = objective.get("name") if isinstance(objective, dict) else objective
    return name in OBJECTIVES and OBJECTIVES[name].kind.reads == "text"


def _turn_corpora(corpora: Any, text: bool = False) -> None:
    for corpus in corpora if isinstance(corpora, list) else [corpora]:
        if not isinstance(corpus, dict):
            continue
        if text:
            if corpus.get("side") in _SIDES:
                corpus["side"] = _SIDES[corpus["side"]]
            continue
        corpus[KEY] = not corpus.get(KEY, False)
        _exchange(corpus.get("languages"))


def _exchange(sides: Any) -> None:
    """Exchange what a mapping has under source and target."""
    if isinstance(sides, dict):
        turned = {_SIDES.get(side, side): value for side, value in sides.items()}
        sides.clear()
        sides.update({side: turned[side] for side in (*_SIDES, *turned) if side in turned})
