"""What generate() gives in every way there is to ask; run as a script, of published folders without the package.

    python -I generating.py INPUTS.pt FOLDER:AutoClass ...

Each folder gets a result.json. Nothing of this package is imported here.
"""

from __future__ import annotations

import json
import sys
from typing import Any

# What is asked of each batch, by its name.
SEARCHES = {"padded": ("beams", {"num_beams": 3, "num_return_sequences": 2}), "not padded": ("greedy", {})}
WAYS: dict[str, dict[str, Any]] = {
    "with a cache": {},
    "by Transformers' own loop": {"output_scores": True},
    "without a cache": {"use_cache": False},
}
# No token twice, and no end at once: a random model otherwise repeats one token for ever, or ends every sentence.
SETTINGS = {"do_sample": False, "min_new_tokens": 4, "max_new_tokens": 5, "no_repeat_ngram_size": 1}


def sequences(model: Any, batches: dict[str, dict[str, Any]]) -> dict[str, dict[str, list]]:
    """Token ids by what was asked ("beams, padded"), then by the way it was asked."""
    found: dict[str, dict[str, list]] = {}
    if not model.can_generate():
        return found
    for name, inputs in batches.items():
        search, options = SEARCHES[name]
        asked = found.setdefault(f"{search}, {name}", {})
        for way, told in WAYS.items():
            out = model.generate(**inputs, **SETTINGS, **options, **told, return_dict_in_generate=True)
            asked[way] = out.sequences.tolist()
    return found


def main(inputs: str, *folders: str) -> None:
    """Load every folder by its own code and write what it gives beside it."""
    sys.modules["hf_mlnmt"] = None  # type: ignore[assignment]  # an editable install is on every process's path
    import torch
    import transformers

    batches = torch.load(inputs, weights_only=True)
    for pair in folders:
        folder, _, auto_class = pair.rpartition(":")
        model = getattr(transformers, auto_class).from_pretrained(folder, trust_remote_code=True).eval()
        with torch.no_grad():
            logits = model(**batches[auto_class]["forced"]).logits
        asked = {name: batch for name, batch in batches[auto_class].items() if name != "forced"}
        result = {"module": type(model).__module__, "logits": logits.tolist(), "sequences": sequences(model, asked)}
        with open(f"{folder}/result.json", "w", encoding="utf-8") as file:
            json.dump(result, file)


if __name__ == "__main__":
    main(*sys.argv[1:])
