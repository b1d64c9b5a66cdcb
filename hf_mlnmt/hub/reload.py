"""Computes a model's outputs for a probe; check_reload.py runs this file as a script, for the model of a folder.

    python -P reload.py FOLDER PROBE.json OUT.safetensors package|remote-code|own-code

"remote-code": `hf_mlnmt` cannot be imported, as on a reader's machine, and code in the folder is trusted. "own-code":
code in the folder is trusted, and may import the package.
"""

import json
import sys
from typing import Any


def main(folder: str, probe_file: str, out: str, way: str) -> None:
    """Loads the folder and writes what `compute` returns for the probe to `out`."""
    if way == "remote-code":
        sys.modules["hf_mlnmt"] = None  # type: ignore[assignment]  # importing hf_mlnmt now raises ImportError
    import torch
    import transformers
    from safetensors.torch import save_file

    if way == "package":
        import hf_mlnmt  # noqa: F401
    with open(probe_file, encoding="utf-8") as stream:
        probe = json.load(stream)
    trust = {"trust_remote_code": True} if way != "package" else {}
    torch.set_num_threads(probe["threads"])
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, subfolder=probe["subfolder"], **trust)
    model = getattr(transformers, probe["auto_class"]).from_pretrained(folder, **trust).eval()
    save_file({name: tensor.contiguous() for name, tensor in compute(model, tokenizer, probe).items()}, out)


def compute(model: Any, tokenizer: Any, probe: dict[str, Any]) -> dict[str, Any]:
    """Returns the token ids of the probe's texts, the logits (of a translation model for the probe's target ids, else
    for the texts) and, of a model that can generate, the ids that it generates."""
    import torch

    batch = tokenizer(probe["texts"], return_tensors="pt", padding=True)
    inputs = {name: batch[name] for name in ("input_ids", "attention_mask")}
    translates = probe["auto_class"] == "AutoModelForSeq2SeqLM"
    target = {"decoder_input_ids": torch.tensor(probe["target"])} if translates else {}
    with torch.no_grad():
        logits = model(**inputs, **target, **probe["names"]).logits.float()
        tensors = {"input_ids": inputs["input_ids"], "logits": logits}
        if model.can_generate():
            inputs = inputs if translates else {"input_ids": inputs["input_ids"][:1]}
            limit = {"do_sample": False, "max_new_tokens": probe["max_new_tokens"]}
            tensors["generated"] = model.generate(**inputs, **limit, **probe["names"])
    return tensors


if __name__ == "__main__":
    main(*sys.argv[1:])
