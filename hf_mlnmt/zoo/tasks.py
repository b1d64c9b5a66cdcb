"""The tasks that the project keeps records of, and `write_records`, which makes the records of a task.

A record's name is <system>.<corpus>-<source><target>. The baseline's recipe of each task is written by hand; those of
the other systems extend it. After a change here:
python -c "from hf_mlnmt.zoo.tasks import write_records; write_records()"
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hf_mlnmt.files import write_json, write_text
from hf_mlnmt.modeling import TransformerConfig
from hf_mlnmt.zoo.published import PUBLISHED
from hf_mlnmt.zoo.records import records_root
from hf_mlnmt.zoo.systems import config_for, find_system, list_systems

BASELINE = "transformer"


@dataclass(frozen=True)
class Task:
    """`corpus` and `direction` as the recipes' first lines say them; `fields`: config fields beyond the shape's.

    `systems`: None: every system of the zoo; else those that have a record. `by_system`: fields of some systems only,
    by the beginning of their config's model_type.
    """

    corpus: str
    direction: str
    shape: str
    fields: Mapping[str, Any]
    systems: tuple[str, ...] | None = None
    by_system: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


# Thesis, table 5.1: the dual-context systems have a smaller feed-forward sublayer on the IWSLT tasks.
_SMALL_DC = {"mlnmt-dual-context": {"encoder_ffn_dim": 512, "decoder_ffn_dim": 512}}


_COMPARED = (*list_systems(), "transformer-wide", "transformer-deep")


def _of_the_papers(task: str) -> tuple[str, ...]:
    return tuple(PUBLISHED[task])


TASKS: dict[str, Task] = {
    "multi30k-ende": Task("Multi30k", "English-German", "tiny", {"vocab_size": 8000}),
    # The settings of the best score. Systems are compared with the other task's recipe, which is less work.
    "multi30k-ende-long": Task(
        "Multi30k", "English-German", "tiny", {"vocab_size": 10000, "norm_position": "pre", "dropout": 0.2}, (BASELINE,)
    ),
    # What all systems are compared with: the settings of the long recipe, as much work as a few epochs are.
    "multi30k-ende-short": Task(
        "Multi30k", "English-German", "tiny", {"vocab_size": 10000, "norm_position": "pre"}, _COMPARED
    ),
    # 32k merges; 33.4k entries is what the papers' parameter counts fit.
    "wmt14-ende": Task("WMT'14", "English-German", "base", {"vocab_size": 33400}, _of_the_papers("wmt14-ende")),
    "iwslt-envi": Task(
        "IWSLT'15", "English-Vietnamese", "small", {"vocab_size": 21200}, _of_the_papers("iwslt-envi"), _SMALL_DC
    ),
    "iwslt-esen": Task(
        "IWSLT'14", "Spanish-English", "small", {"vocab_size": 34000}, _of_the_papers("iwslt-esen"), _SMALL_DC
    ),
    "iwslt-deen": Task(
        "IWSLT'14", "German-English", "small", {"vocab_size": 31000}, _of_the_papers("iwslt-deen"), _SMALL_DC
    ),
}

# The paper's name of a system, and what it is in one clause.
SUMMARIES: dict[str, tuple[str, str]] = {
    "transformer": ("The Transformer", "the baseline of all"),
    "transformer-pre-norm": ("The pre-norm Transformer", "the baseline of extended cross-attention"),
    "transformer-wide": ("The wider Transformer", "the baseline with twice the feed-forward width"),
    "transformer-deep": ("The deeper Transformer", "the baseline with seven layers a side"),
    "s-agg": ("S-Agg", "the decoder reads a learnt sum of all encoder layers"),
    "iter-s-agg": ("Iter-S-Agg", "the decoder reads encoder layers that were summed one after the other"),
    "c-agg": ("C-Agg", "the decoder reads all encoder layers merged by one feed-forward network"),
    "iter-c-agg": ("Iter-C-Agg", "the decoder reads encoder layers merged two by two by feed-forward networks"),
    "transparent": ("Transparent attention", "each decoder layer reads its own weighted sum of the encoder layers"),
    "m-00": ("M-00", "each decoder layer attends to all encoder layers, weights shared, contexts concatenated"),
    "m-01": ("M-01", "each decoder layer attends to all encoder layers, weights shared, contexts summed"),
    "m-10": ("M-10", "each decoder layer attends to every encoder layer, contexts concatenated"),
    "m-11": ("M-11", "each decoder layer attends to every encoder layer, contexts summed"),
    "enc-dc": ("Enc-DC", "the encoder attends to the sentence and to its local context"),
    "dec-dc": ("Dec-DC", "the decoder attends to the target prefix and to its local context"),
    "full-dc": ("Full-DC", "encoder and decoder attend to their sentence and to its local context"),
    "source-embedding": ("Source embedding", "attention over the source also sees the source words' embeddings"),
    "target-embedding": ("Target embedding", "attention over the source also sees the last target word's embedding"),
    "both-embeddings": ("Both embeddings", "attention over the source also sees embeddings of source and target words"),
    "previous-context-head": ("Previous context, by head", "source attention sees each head's last context vector"),
    "previous-context-full": ("Previous context, of all heads", "source attention sees its last context vector"),
    "previous-weight": ("Previous weight", "attention over the source sees its last weights"),
    "accumulated-weight": ("Accumulated weight", "attention over the source sees the sum of its weights so far"),
    "fertility": ("Fertility", "attention over the source sees how much of each word it has used up"),
    "key-value-head": ("Key-value context, by head", "source attention may choose each head's last context vector"),
    "key-value-full": ("Key-value context, of all heads", "source attention may choose its last context vector"),
}

# Records that are a system with other fields.
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "transformer-pre-norm": ("transformer", {"norm_position": "pre"}),
    # Baselines of about the size of the larger systems, as B1 and B2 of the thesis (table 3.4), at the tiny shape.
    "transformer-wide": ("transformer", {"encoder_ffn_dim": 512, "decoder_ffn_dim": 512}),
    "transformer-deep": ("transformer", {"encoder_layers": 7, "decoder_layers": 7}),
}


def summary(system: str) -> tuple[str, str]:
    """The paper's name of a system and what it is, in one clause; of an unknown one, where to look."""
    if match := re.fullmatch(r"ms-([1-9]+)(-aif)?", system):
        one = len(match[1]) == 1
        layers = " and ".join(filter(None, [", ".join(match[1][:-1]), match[1][-1]]))
        text = (
            f"{'an auxiliary decoder' if one else 'auxiliary decoders'} on encoder layer{'' if one else 's'} {layers}"
        )
        use = ", read by the main decoder" if match[2] else ", in training only"
        return f"MS-{match[1]}{' + AIF' if match[2] else ''}", text + use
    if system in SUMMARIES:
        return SUMMARIES[system]
    return system, f"see hf_mlnmt.config_for({system!r})"


def record_systems(task: str) -> list[str]:
    """The systems, and variants of systems, that have a record of a task."""
    return list(TASKS[task].systems or [*list_systems(), *VARIANTS])


def record_config_of(system: str, task: str) -> Any:
    """The config of modeling/<system>.<task>.json."""
    about = TASKS[task]
    system, more = VARIANTS.get(system, (system, {}))
    model_type = find_system(system)[0].model_type
    for beginning, fields in about.by_system.items():
        if model_type.startswith(beginning):
            more = {**more, **fields}
    return config_for(system, about.shape, **{**about.fields, **more})


def record_json(system: str, task: str) -> dict[str, Any]:
    """The content of modeling/<system>.<task>.json: every field of our configs, and the model's class."""
    from transformers import AutoModelForSeq2SeqLM

    config = record_config_of(system, task)
    ours = [kind for kind in type(config).__mro__ if issubclass(kind, TransformerConfig)]
    names = sorted({name for kind in ours for name in inspect.get_annotations(kind)})
    content = {name: value for name, value in config.to_dict().items() if name in [*names, "model_type"]}
    model_class: Any = AutoModelForSeq2SeqLM._model_mapping[type(config)]
    return {**{name: content[name] for name in sorted(content)}, "architectures": [model_class.__name__]}


def recipe_text(system: str, task: str) -> str:
    """The content of training/<system>.<task>.yaml for a system that is trained like the baseline."""
    name, clause = summary(system)
    about, stem = TASKS[task], f"{system}.{task}"
    return (
        f"# {name} for {about.direction}: {clause}.\n"
        f"# Trained on {about.corpus} like the baseline; the model itself is modeling/{stem}.json.\n"
        f"extends: {BASELINE}.{task}.yaml\n"
    )


def write_records(tasks: list[str] | None = None, root: str | Path | None = None) -> list[Path]:
    """Write modeling/ and training/ of all systems of the tasks (default: all); the baseline's recipes are left alone.

    The cards are `write_cards`'. Returns the files.
    """
    root, written = Path(root) if root is not None else records_root(), []
    for task in tasks or TASKS:
        for system in record_systems(task):
            stem = f"{system}.{task}"
            written.append(write_json(root / "modeling" / f"{stem}.json", record_json(system, task)))
            if system != BASELINE:
                written.append(write_text(root / "training" / f"{stem}.yaml", recipe_text(system, task)))
    return written
