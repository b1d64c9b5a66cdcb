"""Makes a student of the shape of Firefox's engines that begins with its teacher's weights and subwords.

    python -m studies.software.student published/software-en-de student/source.txt student/target.txt -o begun

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
from collections import Counter, defaultdict
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hf_mlnmt.common.errors import UserError
from hf_mlnmt.common.files import read_json, write_json
from hf_mlnmt.common.model_folder import load_model
from hf_mlnmt.data.lines import read_lines
from hf_mlnmt.data.subwords import BYTES, SPECIAL_TOKENS
from hf_mlnmt.data.tokenizer import Tokenizers, load_tokenizers
from hf_mlnmt.modeling.ssru import SSRUConfig, SSRUForConditionalGeneration

LINES = 256  # so many lines of the text tell the deviations
UNSEEN = -20.0  # the score of a character or byte that the text is never cut into
NORM = "_sublayer.layer_norm"
# Of each stack's layers the sublayers, with the matrices that read the states and that write into them.
SUBLAYERS: dict[str, dict[str, tuple[str, str]]] = {
    "encoder": {"self_attn": ("qkv_proj", "out_proj"), "feed_forward": ("fc1", "fc2")},
    "decoder": {
        "self_attn": ("qkv_proj", "out_proj"),
        "source_attn": ("q_proj", "out_proj"),
        "feed_forward": ("fc1", "fc2"),
    },
}
# What a teacher's config must have.
NEEDED = {"norm_position": "pre", "position_embedding": "interleaved", "attention_bias": False}
NEEDED |= {"share_encoder_decoder_embeddings": True, "tie_word_embeddings": True}
# Fields that the student's config has of its teacher's.
SAME = ["d_model", "dropout", "pad_token_id", "bos_token_id", "eos_token_id"]
SAME += [f"{side}_{field}" for side in SUBLAYERS for field in ("layers", "attention_heads", "ffn_dim")]


def unigram(tokenizer: dict[str, Any], counts: Counter[int]) -> dict[str, Any]:
    """Returns tokenizer.json of the student by that of the teacher and counts of its ids, of source and target."""

    def plain(steps: dict[str, Any], name: str) -> dict[str, Any]:
        return {**steps, name: [step for step in steps[name] if not private(json.dumps(step, ensure_ascii=False))]}

    def private(text: str) -> bool:
        """Returns whether a private character, which stands for a placeholder (data/subwords.py), is in a text, itself
        or as a regular expression writes it."""
        return max(text) >= "\U000f0000" or "{F0000}" in text

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
    found = defaultdict[str, list[Tensor]](list)

    def note(name: str) -> Any:
        return lambda module, inputs, output: found[name].append(inputs[0][0].std(-1, unbiased=False))

    norms = {name: each for name, each in teacher.named_modules() if name.endswith(NORM)}
    hooks = [each.register_forward_hook(note(name.removesuffix(NORM))) for name, each in norms.items()]
    for source, target in zip(*texts):
        (one,), (other,) = tokenizers.encode_source([source]), tokenizers.encode_target([target])
        teacher(input_ids=torch.as_tensor(one)[None], labels=torch.as_tensor(other)[None])
    for hook in hooks:
        hook.remove()
    return {name: float(torch.cat(values).mean()) for name, values in found.items()}


@torch.no_grad()
def begin(teacher: Any, scales: dict[str, float], kept: list[int]) -> SSRUForConditionalGeneration:
    """Returns the student. scales: of `deviations`. kept: the teacher's number of each subword of the student.

    Raises: UserError for a teacher of another shape.
    """
    config, state = teacher.config, teacher.state_dict()
    for field, value in NEEDED.items():
        if (found := getattr(config, field)) != value:
            raise UserError(f"the teacher: {field} is {found!r}; only one with {value!r} becomes such a student.")
    fields = {name: getattr(config, name) for name in SAME}
    student = SSRUForConditionalGeneration(SSRUConfig(vocab_size=len(kept), **fields))
    width, new = config.d_model, student.state_dict()
    order = torch.cat([torch.arange(0, width, 2), torch.arange(1, width, 2)])  # sines first, then cosines
    for side, sublayers in SUBLAYERS.items():
        names = [
            (f"model.{side}.layers.{layer}.{name}", read, write)
            for layer in range(getattr(config, f"{side}_layers"))
            for name, (read, write) in sublayers.items()
        ]
        for number, (name, read, write) in enumerate(names):
            norm, scale, weight = f"{name}{NORM}", scales[name], state[f"{name}.{read}.weight"]
            bias = state.get(f"{name}.{read}.bias", 0.0) + weight @ state[f"{norm}.bias"]
            weight = weight * state[f"{norm}.weight"]
            if number == 0:
                weight, scale = (weight - weight.mean(1, keepdim=True)) / scale, 1.0
            weight, out = weight[:, order], (state[f"{name}.{write}.weight"] / scale)[order]
            if f"{name}.input_proj.weight" in new:
                new[f"{name}.input_proj.weight"].copy_(out @ weight[2 * width :])
                continue
            for key, values in (("weight", weight), ("bias", bias)):
                new[f"{name}.{read}.{key}"].copy_(values)
            new[f"{name}.{write}.weight"].copy_(out)
            new[f"{name}.{write}.bias"].copy_(state.get(f"{name}.{write}.bias", torch.zeros(width))[order] / scale)
            if (key := f"{name}.kv_proj.weight") in new:
                new[key].copy_(state[key][:, order])
        for key in ("weight", "bias"):  # the norm that ends the teacher's stack is that of the last sublayer
            new[f"{names[-1][0]}{NORM}.{key}"].copy_(state[f"model.{side}.layer_norm.{key}"][order])
    table = new["model.decoder.embed_tokens.weight"]  # shared with the encoder and the output projection
    table.copy_(state["model.decoder.embed_tokens.weight"][kept][:, order])
    table[student.config.decoder_start_token_id] = 0.0
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
    numbers = known.source.get_vocab()
    torch.manual_seed(1)  # for the SSRU's gates
    begin(teacher, scales, [numbers[token] for token, _ in content["model"]["vocab"]]).save_pretrained(asked.output)


if __name__ == "__main__":
    main()
