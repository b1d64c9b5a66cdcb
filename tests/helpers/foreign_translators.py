"""Tiny random systems of the families of Transformers that translate, with tokenizers trained here."""

import json

from helpers.toy_translators import SENTENCES, random_weights
from transformers import (
    M2M100Config,
    M2M100ForConditionalGeneration,
    M2M100Tokenizer,
    MarianConfig,
    MarianMTModel,
    MarianTokenizer,
    MBart50Tokenizer,
    MBartConfig,
    MBartForConditionalGeneration,
    MBartTokenizer,
    NllbTokenizer,
    T5Config,
    T5ForConditionalGeneration,
    T5Tokenizer,
)

# What each family is told of its languages.
FAMILIES = {
    "marian": {},
    "m2m100": {"source_language": "en", "target_language": "de"},
    "nllb": {"source_language": "eng_Latn", "target_language": "deu_Latn"},
    "mbart": {"source_language": "en_XX", "target_language": "de_DE"},
    "mbart50": {"source_language": "en_XX", "target_language": "de_DE"},
    "t5": {"source_language": "en", "target_language": "de"},
}
_BART = {"d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2, "dropout": 0.0}
_BART |= {"decoder_attention_heads": 2, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16, "max_position_embeddings": 64}
_FAIRSEQ = {"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2, "decoder_start_token_id": 2}


def sentencepiece_model(folder):
    """The file of a model trained on SENTENCES, and its pieces with their scores."""
    import sentencepiece

    (folder / "text.txt").write_text("\n".join(SENTENCES))
    sentencepiece.SentencePieceTrainer.train(
        input=str(folder / "text.txt"),
        model_prefix=str(folder / "spm"),
        vocab_size=100,
        hard_vocab_limit=False,
        minloglevel=9,
    )
    model = sentencepiece.SentencePieceProcessor(model_file=str(folder / "spm.model"))
    return str(folder / "spm.model"), [(model.id_to_piece(i), model.get_score(i)) for i in range(3, len(model))]


def marian(scratch, spm, pieces, codes=()):
    entries = ["</s>", "<unk>", *codes, *[token for token, _ in pieces], "<pad>"]
    pad = len(entries) - 1
    vocabulary = scratch / f"marian{len(codes)}.json"
    vocabulary.write_text(json.dumps({token: i for i, token in enumerate(entries)}))
    tokenizer = MarianTokenizer(source_spm=spm, target_spm=spm, vocab=str(vocabulary), model_max_length=64)
    special = {"pad_token_id": pad, "eos_token_id": 0, "decoder_start_token_id": pad, "forced_eos_token_id": 0}
    model = random_weights(MarianMTModel(MarianConfig(vocab_size=len(entries), **special, **_BART)))
    model.generation_config.bad_words_ids = [[pad]]
    return tokenizer, model


def m2m100(scratch, spm, pieces):
    entries = ["<s>", "<pad>", "</s>", "<unk>", *[token for token, _ in pieces]]
    (scratch / "m2m.json").write_text(json.dumps({token: i for i, token in enumerate(entries)}))
    tokenizer = M2M100Tokenizer(vocab_file=str(scratch / "m2m.json"), spm_file=spm, model_max_length=64)
    config = M2M100Config(vocab_size=len(entries) + 108, **_FAIRSEQ, **_BART)
    return tokenizer, random_weights(M2M100ForConditionalGeneration(config))


def nllb():
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    backend = Tokenizer(models.BPE(unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    specials = ["<s>", "<pad>", "</s>", "<unk>"]
    trainer = trainers.BpeTrainer(vocab_size=150, special_tokens=specials, show_progress=False)
    backend.train_from_iterator(SENTENCES, trainer)
    bpe_model = json.loads(backend.to_str())["model"]
    codes = ["eng_Latn", "deu_Latn", "fra_Latn"]
    merges = [tuple(merge) for merge in bpe_model["merges"]]
    tokenizer = NllbTokenizer(
        vocab=bpe_model["vocab"], merges=merges, extra_special_tokens=codes, src_lang="fra_Latn", model_max_length=64
    )
    config = M2M100Config(vocab_size=len(tokenizer), **_FAIRSEQ, **_BART)
    return tokenizer, random_weights(M2M100ForConditionalGeneration(config))


def mbart(kind, pieces):
    specials = [("<s>", 0.0), ("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0)]
    vocabulary = [*specials, *pieces, *[(code, 0.0) for code in kind().lang_code_to_id], ("<mask>", 0.0)]
    tokenizer = kind(vocab=vocabulary, model_max_length=64)
    config = MBartConfig(vocab_size=len(tokenizer), forced_eos_token_id=2, **_FAIRSEQ, **_BART)
    return tokenizer, random_weights(MBartForConditionalGeneration(config))


def t5(pieces):
    vocabulary = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), *pieces]
    tokenizer = T5Tokenizer(vocab=vocabulary, extra_ids=2, model_max_length=64)
    sizes = {"vocab_size": len(tokenizer), "d_model": 16, "d_kv": 8, "d_ff": 16, "num_layers": 1, "num_heads": 2}
    config = T5Config(**sizes, dropout_rate=0.0, decoder_start_token_id=0, eos_token_id=1, pad_token_id=0)
    config.task_specific_params = {"translation_en_to_de": {"prefix": "translate English to German: "}}
    return tokenizer, random_weights(T5ForConditionalGeneration(config))


def madlad(pieces):
    """T5 with gated feed-forward layers and an output of its own, told by an entry of the vocabulary: <2de>."""
    codes = [(f"<2{code}>", 0.0) for code in ("en", "de", "fra")]
    vocabulary = [("<unk>", 0.0), ("<s>", 0.0), ("</s>", 0.0), *codes, *pieces]
    tokenizer = T5Tokenizer(vocab=vocabulary, extra_ids=0, pad_token="<s>", model_max_length=64)
    sizes = {"vocab_size": len(tokenizer), "d_model": 16, "d_kv": 8, "d_ff": 16, "num_layers": 1, "num_heads": 2}
    config = T5Config(**sizes, feed_forward_proj="gated-gelu", tie_word_embeddings=False, dropout_rate=0.0)
    config.decoder_start_token_id, config.pad_token_id, config.eos_token_id = 1, 1, 2
    return tokenizer, random_weights(T5ForConditionalGeneration(config))


def every_family(scratch, codes):
    """Returns {family: (tokenizer, model)}; codes: of Marian's target languages."""
    spm, pieces = sentencepiece_model(scratch)
    made = {"marian": marian(scratch, spm, pieces, codes), "m2m100": m2m100(scratch, spm, pieces), "nllb": nllb()}
    made |= {"mbart": mbart(MBartTokenizer, pieces), "mbart50": mbart(MBart50Tokenizer, pieces)}
    return made | {"t5": t5(pieces), "madlad": madlad(pieces)}
