"""Makes a student of the shape of Firefox's engines that begins with its teacher's weights and subwords.

    python -m studies.software.begin published/software-en-de student/source.txt student/target.txt -o begun

The teacher is a pre-norm Transformer with a BPE tokenizer; the student is post-norm, with SSRU in its decoder and a
unigram tokenizer, which is what the engines read. The files are the student's training text.

**Weights.** Let x be a teacher's states before a sublayer, s their deviation over the width, z = (x - mean) / s, and f
the sublayer, which reads a z + b (a, b: the layer norm's weights). The next sublayer sees x + f(a z + b) through its
own norm, for which neither length nor mean count:

    z' = norm(z + f(a z + b) / s)

That is a post-norm sublayer whose norm has no weights. Only s differs from word to word; here it is the mean over some
texts. a, b and 1 / s become part of the matrices; those of the first sublayer, which reads x itself, also subtract the
mean and divide by s. The SSRU has no counterpart: its W is output times value matrix, as if the teacher attended to all
earlier words alike. Sines and cosines are put in the engines' order; their rates differ a little.

**Subwords.** The BPE's pieces that the text is cut into, and all single characters and bytes; a piece's score is the
logarithm of its share. Pieces that stand for placeholders are left out.
"""

import argparse
import json
import math
import shutil
from collections import Counter
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hf_mlnmt.common.files import read_json, write_json
from hf_mlnmt.common.model_folder import load_model
from hf_mlnmt.data.lines import read_lines
from hf_mlnmt.data.subwords import BYTES, SPECIAL_TOKENS
from hf_mlnmt.data.tokenizer import Tokenizers, load_tokenizers
from hf_mlnmt.modeling.ssru import SSRUConfig, SSRUForConditionalGeneration

LINES = 256  # of the text, by which deviations are measured
UNSEEN = -20.0  # the score of a character or byte that the text is never cut into
_PLACEHOLDERS = range(0xF0000, 0xFFFFE)  # private characters that stand for them (hf_mlnmt/data/subwords.py)
SUBLAYERS = {"encoder": ("self_attn", "feed_forward"), "decoder": ("self_attn", "source_attn", "feed_forward")}
SAME = ("d_model", "encoder_layers", "decoder_layers", "encoder_attention_heads", "decoder_attention_heads")
SAME += ("encoder_ffn_dim", "decoder_ffn_dim", "dropout", "pad_token_id", "bos_token_id", "eos_token_id")


def unigram(tokenizer: dict[str, Any], counts: Counter[int]) -> dict[str, Any]:
    """Returns tokenizer.json of the student by that of the teacher and counts of its ids, of source and target."""

    def plain(steps: dict[str, Any], name: str) -> dict[str, Any]:
        return {**steps, name: [step for step in steps[name] if not private(json.dumps(step, ensure_ascii=False))]}

    def private(text: str) -> bool:
        return any(ord(sign) in _PLACEHOLDERS for sign in text) or "{F0000}" in text

    fixed, vocabulary = {*SPECIAL_TOKENS, *BYTES}, []
    for token, number in sorted(tokenizer["model"]["vocab"].items(), key=lambda entry: entry[1]):
        if not private(token) and (counts[number] or token in fixed or len(token.removeprefix("▁")) < 2):
            share = math.log(counts[number] / counts.total()) if counts[number] else UNSEEN
            vocabulary.append([token, 0.0 if token in SPECIAL_TOKENS else round(share, 5)])
    model = {"type": "Unigram", "unk_id": SPECIAL_TOKENS.index("<unk>"), "vocab": vocabulary, "byte_fallback": True}
    steps = {"normalizer": "normalizers", "pre_tokenizer": "pretokenizers", "decoder": "decoders"}
    return {**tokenizer, **{key: plain(tokenizer[key], name) for key, name in steps.items()}, "model": model}


def deviations(teacher: Any, tokenizers: Tokenizers, texts: list[list[str]]) -> dict[str, float]:
    """Returns {name of a sublayer: the mean deviation of the states that it reads}, over the words of the texts."""
    found = dict[str, list[Tensor]]()

    def note(name: str, shown: Tensor) -> Any:
        def hook(module: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
            found.setdefault(name, []).append(inputs[0][shown].std(-1, unbiased=False))

        return hook

    for source, target in zip(*texts):
        ids = [
            torch.as_tensor(one)[None]
            for one in (tokenizers.encode_source([source])[0], tokenizers.encode_target([target])[0])
        ]
        hooks = [
            module.register_forward_hook(note(name, torch.ones(ids[name.startswith("model.decoder")].shape).bool()))
            for name, module in teacher.named_modules()
            if name.endswith("_sublayer.layer_norm")
        ]
        teacher(input_ids=ids[0], labels=ids[1])
        for hook in hooks:
            hook.remove()
    return {
        name.removesuffix("_sublayer.layer_norm"): float(torch.cat(values).mean()) for name, values in found.items()
    }


def rows(teacher: Tensor, theirs: dict[str, int], ours: dict[str, int]) -> Tensor:
    """Returns a row for each of our subwords: theirs, or the mean of the longest of theirs that spell it."""
    made = torch.zeros(len(ours), teacher.shape[1])
    for token, number in ours.items():
        parts, rest = list[int](), token
        while rest:
            part = next((rest[:size] for size in range(len(rest), 0, -1) if rest[:size] in theirs), None)
            parts += [] if part is None else [theirs[part]]
            rest = rest[len(part or rest[0]) :]
        made[number] = teacher[parts].mean(0) if parts else teacher.mean(0)
    return made


@torch.no_grad()
def begin(
    teacher: Any, scales: dict[str, float], theirs: dict[str, int], ours: dict[str, int]
) -> SSRUForConditionalGeneration:
    """Returns the student. scales: of `deviations`. theirs, ours: the numbers of the subwords."""
    config, state = teacher.config, teacher.state_dict()
    width = config.d_model
    fields = {name: getattr(config, name) for name in SAME}
    student = SSRUForConditionalGeneration(SSRUConfig(vocab_size=len(ours), norm_position="post", **fields))
    order = torch.cat([torch.arange(0, width, 2), torch.arange(1, width, 2)])  # sines first, then cosines
    new = dict[str, Tensor]()
    for side, sublayers in SUBLAYERS.items():
        last = ""
        for layer in range(getattr(config, f"{side}_layers")):
            for number, sublayer in enumerate(sublayers):
                name = f"model.{side}.layers.{layer}.{sublayer}"
                norm, scale = f"{name}_sublayer.layer_norm", scales[name]
                inner = ("fc1", "fc2") if sublayer == "feed_forward" else ("qkv_proj", "out_proj")
                inner = ("q_proj", "out_proj") if sublayer == "source_attn" else inner
                read, write = (f"{name}.{one}" for one in inner)
                bias = state.get(f"{read}.bias", torch.zeros(len(state[f"{read}.weight"])))
                bias = bias + state[f"{read}.weight"] @ state[f"{norm}.bias"]
                weight = state[f"{read}.weight"] * state[f"{norm}.weight"]
                first = layer == number == 0
                if first:
                    weight, scale = (weight - weight.mean(1, keepdim=True)) / scale, 1.0
                weight = weight[:, order]
                out = (state[f"{write}.weight"] / scale)[order]
                out_bias = (state.get(f"{write}.bias", torch.zeros(width)) / scale)[order]
                if (side, sublayer) == ("decoder", "self_attn"):
                    new[f"{name}.input_proj.weight"] = out @ weight[2 * width :]
                else:
                    new |= {f"{read}.weight": weight, f"{read}.bias": bias}
                    new |= {f"{write}.weight": out, f"{write}.bias": out_bias}
                if sublayer == "source_attn":
                    new[f"{name}.kv_proj.weight"] = state[f"{name}.kv_proj.weight"][:, order]
                last = norm
        # The norm that ends the teacher's stack is that of the student's last sublayer.
        new |= {f"{last}.{part}": state[f"model.{side}.layer_norm.{part}"][order] for part in ("weight", "bias")}
    table = rows(state["model.decoder.embed_tokens.weight"][:, order], theirs, ours)
    table[student.config.decoder_start_token_id] = 0.0
    new |= {f"model.{side}.embed_tokens.weight": table for side in SUBLAYERS}
    own = student.state_dict()
    for name, values in new.items():
        own[name].copy_(values)
    return student


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("teacher", "source", "target"):
        parser.add_argument(name, type=Path)
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="FOLDER")
    asked = parser.parse_args()
    teacher, known = load_model(asked.teacher, dtype=torch.float32).eval(), load_tokenizers(asked.teacher)
    files = asked.source, asked.target
    ids = [number for file in files for one in known.encode_source(list(read_lines(file))) for number in one.tolist()]
    asked.output.mkdir(parents=True, exist_ok=True)
    shutil.copy(asked.teacher / "tokenizer_config.json", asked.output)
    content = unigram(read_json(asked.teacher / "tokenizer.json"), Counter(ids))
    write_json(asked.output / "tokenizer.json", content)
    with torch.no_grad():
        scales = deviations(teacher, known, [list(islice(read_lines(file), LINES)) for file in files])
    student = begin(teacher, scales, known.source.get_vocab(), load_tokenizers(asked.output).source.get_vocab())
    student.save_pretrained(asked.output)


if __name__ == "__main__":
    main()
