"""A model of five pieces that spell texts of a and b, and everything that it can generate, with its log P."""

from __future__ import annotations

import itertools

import torch
from helpers.toy_translators import our_model
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from hf_mlnmt.data.tokenizer import Tokenizers
from hf_mlnmt.generation import TranslationPipeline
from hf_mlnmt.generation.translating.loading import Parts

PIECES = {4: " a", 5: " b", 6: "a", 7: "b", 8: "ab"}
END, LONGEST = 1, 5
# Everything but the pieces and the end is forbidden; wide enough that nothing is lost.
EXACT = {
    "num_beams": 200, "early_stopping": "never", "max_new_tokens": LONGEST, "bad_words_ids": [[0], [2], [3], [9]],
}  # fmt: skip


def toy_tokenizer() -> PreTrainedTokenizerFast:
    tokens = ["<pad>", "</s>", "<unk>", "<s>", *(piece.replace(" ", "\u2581") for piece in PIECES.values()), "\u2581"]
    vocabulary = {token: number for number, token in enumerate(tokens)}
    model = models.BPE(vocabulary, [("\u2581", "a"), ("\u2581", "b"), ("a", "b")], unk_token="<unk>")
    backend = Tokenizer(model)
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    backend.decoder = decoders.Metaspace(prepend_scheme="always")
    backend.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", END)])
    special = {"pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>", "bos_token": "<s>"}
    return PreTrainedTokenizerFast(tokenizer_object=backend, model_max_length=64, **special)


def toy_pipeline(seed: int = 0) -> TranslationPipeline:
    tokenizer = toy_tokenizer()
    return TranslationPipeline(Parts(our_model(len(tokenizer), seed=seed), Tokenizers(tokenizer, tokenizer)))


def spelt(ids) -> str:
    """What pieces spell, from the space before the first word on."""
    return "".join(PIECES[one] for one in ids if one != END)


@torch.no_grad()
def everything(pipeline, text: str) -> list[tuple[float, tuple[int, ...]]]:
    """(ln P divided by the length, ids) of all that ends within the limit and all that is cut off there, best first."""
    bodies = [body for size in range(LONGEST) for body in itertools.product(PIECES, repeat=size)]
    rows = [(*body, END) for body in bodies] + list(itertools.product(PIECES, repeat=LONGEST))
    source = pipeline.parts.source(text, return_tensors="pt")["input_ids"]
    scored = []
    for size, group in itertools.groupby(rows, len):
        ids = torch.tensor(list(group))
        inputs = torch.cat([torch.full((len(ids), 1), 3), ids[:, :-1]], dim=1)
        logits = pipeline.model(input_ids=source.expand(len(ids), -1), decoder_input_ids=inputs).logits
        sums = logits.log_softmax(-1).gather(2, ids.unsqueeze(-1)).sum((1, 2)) / size
        scored += zip(sums.tolist(), map(tuple, ids.tolist()))
    return sorted(scored, reverse=True)
