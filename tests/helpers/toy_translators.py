"""Parts of the toy systems that conftest.py builds: text, random weights, our tokenizer, our model."""

import random

import torch
from transformers import PreTrainedTokenizerFast

from hf_mlnmt import TransformerConfig, TransformerForConditionalGeneration
from hf_mlnmt.generation import DecodingOptions, TranslationCall

_TEXT = "a the man woman dog child ball house street green red old sees takes rides plays with in on under and two men"
WORDS = _TEXT.split()


def sentence(seed: int, words: int = 0) -> str:
    draw = random.Random(seed)
    text = " ".join(draw.choice(WORDS) for _ in range(words or draw.randint(3, 12)))
    return text.capitalize() + "."


SENTENCES = [sentence(seed) for seed in range(300)]


def random_weights(model, std=0.4, seed=0):
    """Weights large enough that outputs depend on everything (at Transformers' 0.02 they hardly do)."""
    torch.manual_seed(seed)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=std)
    model.generation_config.max_new_tokens = 20
    return model.eval()


def bpe(codes=()):
    """Our own kind of tokenizer: byte-level BPE, `$A </s>`."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

    backend = Tokenizer(models.BPE(unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=["<pad>", "</s>", "<unk>", "<s>", "<mask>", *codes], show_progress=False
    )
    backend.train_from_iterator(SENTENCES, trainer)
    backend.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token="<pad>",
        eos_token="</s>",
        unk_token="<unk>",
        bos_token="<s>",
        mask_token="<mask>",
        extra_special_tokens=list(codes),
        model_max_length=64,
    )


def our_model(vocabulary, seed=0, **config):
    sizes = {"vocab_size": vocabulary, "d_model": 16, "max_position_embeddings": 64, "dropout": 0.0}
    for side in ("encoder", "decoder"):
        sizes |= {f"{side}_layers": 1, f"{side}_attention_heads": 2, f"{side}_ffn_dim": 16}
    return random_weights(TransformerForConditionalGeneration(TransformerConfig(**(sizes | config))), seed=seed)


def best_of_lines(pipeline, texts, first_line=1, **options):
    """The best hypothesis of each text, the lines `first_line` and so on of a longer text."""
    call = TranslationCall(pipeline, DecodingOptions().with_keywords(options), first_line)
    return [best[0] for best in call.translate(texts, first_line, lambda done: None)]
