"""CTranslate2 as a format to export to: which systems it takes, and the check that it computes what generate() does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from hf_mlnmt.data.tokenizer import Tokenizers
from hf_mlnmt.errors import UserError
from hf_mlnmt.export.check import LENGTH, Search, Sentences, check_scores, compare_searches
from hf_mlnmt.generation.ctranslate2_model import lacks, single_decoder, vocabulary_of


def exportable(model: Any) -> Any:
    """The baseline's model to export: this one, or multi-level supervision without its auxiliary decoders.

    Raises: UserError that says what CTranslate2 lacks.
    """
    model = single_decoder(model)
    if reason := lacks(model):
        raise UserError(
            f"{type(model).__name__} cannot be exported to CTranslate2, which lacks {reason}. Use generate() or "
            "`hf-mlnmt translate`, which run every system, or export --format onnx."
        )
    return model


def check(folder: Path, model: Any, tokenizers: Tokenizers, dtype: str) -> dict[str, Any]:
    """Load the folder and compare with `model`: log probabilities of given targets, greedy and beam search.

    Returns: the differences, for the record. Raises: UserError if float32 differs; rounded weights are reported only.
    """
    import ctranslate2

    # A CPU has no float16 arithmetic: the rounded weights, computed in float32.
    compute_type = "int8" if dtype == "int8" else "float32"
    threads = torch.get_num_threads()  # of the whole process: CTranslate2 would set its own number for PyTorch too
    translator = ctranslate2.Translator(str(folder), device="cpu", compute_type=compute_type, intra_threads=threads)
    sentences = Sentences.of(model, tokenizers)
    pieces = vocabulary_of(tokenizers.source, model.config.vocab_size)
    sources = [[pieces[index] for index in ids] for ids in sentences.sources]
    vocabulary = vocabulary_of(tokenizers.target, model.config.decoder_vocab_size, target=True)
    # CTranslate2 adds the start token, and scores the end of sentence after each target by itself.
    targets = [[vocabulary[index] for index in ids[1:-1]] for ids in sentences.targets]
    scores = [torch.tensor(result.log_probs) for result in translator.score_batch(sources, targets)]
    difference = check_scores(scores, model, sentences, strict=dtype == "float32")
    ids = {token: index for index, token in enumerate(vocabulary)}

    def search(beams: int) -> list[list[int]]:
        lengths = {"min_decoding_length": 0, "max_decoding_length": LENGTH}  # its own least length is 1
        results = translator.translate_batch(sources, beam_size=beams, return_end_token=True, **lengths)
        return [[ids[token] for token in result.hypotheses[0]] for result in results]

    searches = [Search(name, beams, search(beams)) for name, beams in (("greedy", 1), ("beam 4", 4))]
    agreement = compare_searches(model, sentences, searches, strict=dtype == "float32")
    return {"largest_difference_of_log_probabilities": difference, **agreement}
