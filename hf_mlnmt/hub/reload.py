"""Run as a script by check_reload.py, in a process of its own: load a published folder and compute what it computes.

    python -P reload.py FOLDER PROBE.json OUT.safetensors package|remote-code

"remote-code": `hf_mlnmt` cannot be imported, as on a reader's machine, and the folder's own code is trusted.
"""

import json
import sys


def main(folder: str, probe: str, out: str, way: str) -> None:
    """Encode the probe's texts, score its target ids, translate; the tensors go to `out`."""
    if way == "remote-code":
        sys.modules["hf_mlnmt"] = None  # type: ignore[assignment]  # importing it now raises ImportError
    import torch
    import transformers
    from safetensors.torch import save_file
    from transformers import AutoTokenizer

    if way == "package":
        import hf_mlnmt  # noqa: F401
    with open(probe, encoding="utf-8") as stream:
        content = json.load(stream)
    trust = {"trust_remote_code": True} if way == "remote-code" else {}
    torch.set_num_threads(content["threads"])
    tokenizer = AutoTokenizer.from_pretrained(folder, subfolder=content["subfolder"], **trust)
    model = getattr(transformers, content["auto_class"]).from_pretrained(folder, **trust).eval()
    batch = tokenizer(content["texts"], return_tensors="pt", padding=True)
    inputs = {name: batch[name] for name in ("input_ids", "attention_mask")}
    names = content["names"]
    translates = content["auto_class"] == "AutoModelForSeq2SeqLM"
    target = {"decoder_input_ids": torch.tensor(content["target"])} if translates else {}
    with torch.no_grad():
        tensors = {"input_ids": inputs["input_ids"], "logits": model(**inputs, **target, **names).logits.float()}
        if model.can_generate():
            inputs = inputs if translates else {"input_ids": inputs["input_ids"][:1]}
            limit = {"do_sample": False, "max_new_tokens": content["max_new_tokens"]}
            tensors["generated"] = model.generate(**inputs, **limit, **names)
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, out)


if __name__ == "__main__":
    main(*sys.argv[1:])
