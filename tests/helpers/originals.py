"""Random models of Transformers' own architectures, for import_model; no weight is like its neighbour."""

import json

import torch
from helpers.foreign_translators import m2m100, marian, mbart, nllb
from helpers.toy_translators import bpe
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    MarianConfig,
    MarianMTModel,
    MarianTokenizer,
    MBart50Tokenizer,
    MBartTokenizer,
)

SIZES = {"encoder_layers": 2, "decoder_layers": 1, "encoder_attention_heads": 2, "decoder_attention_heads": 4}
SIZES |= {"d_model": 16, "encoder_ffn_dim": 24, "decoder_ffn_dim": 32, "max_position_embeddings": 64, "dropout": 0.0}


def rebuilt(tokenizer, model, **fields):
    """The same tokenizer with a larger model of the same class; its generation settings stay."""
    config = type(model.config).from_dict({**model.config.to_dict(), **SIZES, **fields})
    new = varied(type(model)(config))
    new.generation_config = model.generation_config
    new.generation_config.max_new_tokens = None
    new.generation_config.max_length = 24
    return tokenizer, new


def varied(model):
    """Weights large enough that outputs depend on everything, norms and biases included."""
    torch.manual_seed(1)
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if tensor.dim() == 1 or (name == "final_logits_bias" and model.config.model_type == "marian"):
            tensor.data += 0.3 * torch.randn_like(tensor)
        elif tensor.requires_grad:  # more inside: else a tied model says its last token again
            scale = 1 if name.endswith("embed_tokens.weight") or "shared" in name else 3
            torch.nn.init.normal_(tensor, std=scale * tensor.shape[-1] ** -0.5)
    with torch.no_grad():  # some sentences end by themselves
        model.lm_head.weight[model.config.eos_token_id] *= 2.5
    return model.eval()


def separate(scratch, spm, pieces):
    """Marian's other layout: a vocabulary and an embedding for each side."""
    entries = {
        "vocab": ["</s>", "<unk>", *[token for token, _ in pieces], "<pad>"],
        "target_vocab_file": ["</s>", "<unk>", *[token for token, _ in reversed(pieces[:60])], "<pad>"],
    }
    files = {}
    for name, tokens in entries.items():
        files[name] = str(scratch / f"{name}.of.json")
        with open(files[name], "w") as file:
            json.dump({token: index for index, token in enumerate(tokens)}, file)
    tokenizer = MarianTokenizer(
        source_spm=spm, target_spm=spm, **files, separate_vocabs=True, model_max_length=64, pad_token="<pad>"
    )
    source, target = map(len, entries.values())
    special = {"pad_token_id": target - 1, "eos_token_id": 0, "decoder_start_token_id": target - 1}
    config = MarianConfig(
        vocab_size=source, decoder_vocab_size=target, share_encoder_decoder_embeddings=False, forced_eos_token_id=0,
        **special, **SIZES,
    )  # fmt: skip
    model = varied(MarianMTModel(config))
    model.generation_config.bad_words_ids = [[target - 1]]
    return tokenizer, model


def bart(scratch, spm, pieces):
    tokenizer = bpe()
    ids = {"pad_token_id": 0, "eos_token_id": 1, "bos_token_id": 3, "decoder_start_token_id": 1}
    config = BartConfig(vocab_size=len(tokenizer), **ids, forced_eos_token_id=1, forced_bos_token_id=3, **SIZES)
    return tokenizer, varied(BartForConditionalGeneration(config))


MAKERS = {
    "marian": lambda scratch, spm, pieces: rebuilt(*marian(scratch, spm, pieces), activation_function="swish"),
    "marian-codes": lambda scratch, spm, pieces: rebuilt(
        *marian(scratch, spm, pieces, [">>deu<<", ">>fra<<"]), scale_embedding=True
    ),
    "marian-separate": separate,
    "m2m100": lambda scratch, spm, pieces: rebuilt(*m2m100(scratch, spm, pieces)),
    "nllb": lambda scratch, spm, pieces: rebuilt(*nllb()),
    "mbart": lambda scratch, spm, pieces: rebuilt(*mbart(MBartTokenizer, pieces)),
    "mbart50": lambda scratch, spm, pieces: rebuilt(*mbart(MBart50Tokenizer, pieces), scale_embedding=True),
    "bart": bart,
}
LANGUAGES = {  # the pipeline's options
    "marian-codes": {"target_language": "fra"},
    "m2m100": {"source_language": "en", "target_language": "de"},
    "nllb": {"source_language": "eng_Latn", "target_language": "deu_Latn"},
    "mbart": {"source_language": "en_XX", "target_language": "ro_RO"},
    "mbart50": {"source_language": "en_XX", "target_language": "ro_RO"},
}


def save(folder, tokenizer, model):
    tokenizer.save_pretrained(folder)
    model.save_pretrained(folder)
    return folder
