"""`hf-mlnmt analyse cost`: parameters, operations, memory and speed of systems as multiples of a baseline's."""

from pathlib import Path
from typing import Annotated, Any

from hf_mlnmt.cli import options
from hf_mlnmt.cli.options import NamedPath, OutputFolder, by_name, decoding_options, named_argument, option, use_machine
from hf_mlnmt.cli.terminal import finish, tell
from hf_mlnmt.common.errors import UserError
from hf_mlnmt.generation.translating.options import DecodingOptions


@decoding_options(num_beams=1)
def cost(
    systems: Annotated[
        list[NamedPath],
        named_argument(..., "Systems of the zoo, model folders or Hub names; NAME=... names one. First: the baseline."),
    ],
    output: OutputFolder,
    shape: str = option("small", "Of systems: tiny, small or base; a folder has its own."),
    vocabulary: int = option(8000, "Of systems; a folder has its own.", min=10),
    tokens: int = option(1024, "Target tokens of a training step.", min=1),
    length: int = option(20, "Subwords of a sentence.", min=2),
    batch: int = option(32, "Sentences that are decoded at once.", min=1),
    steps: int = option(2, "Training steps of a turn.", min=1),
    rounds: int = option(5, "Turns that count; medians are shown.", min=1),
    threads: options.Threads = 1,
    device: str = options.machine("cpu", "cpu or cuda."),
    *,
    decoding: DecodingOptions,
) -> None:
    """Measure what systems cost beside the first: JSON, csv, png and svg in the folder --output.

    Parameters, operations and peak memory of a training step, training steps/s, decoding tokens/s; in brackets as a
    multiple of the baseline's, whose turn is right before each (docs/analysis.md). Weights and sentences are random.

    Example:

        hf-mlnmt analyse cost transformer m-10 enc-dc -o analysis
    """
    import torch

    from hf_mlnmt.analysis.cost import Work, cost_study
    from hf_mlnmt.zoo.systems import positions_of

    if device != "cpu" and not torch.cuda.is_available():
        raise UserError(f"--device {device}: there is no such GPU here.")
    configs = {name: _config(path, shape, vocabulary) for name, path in by_name(systems).items()}
    for name, config in configs.items():
        if not config.is_encoder_decoder:
            raise UserError(f"{name}: is no translation model; only the costs of translation models are measured.")
        if not getattr(config, "is_pair", True):
            raise UserError(f"{name}: has modules of several languages; save one pair of them (model.pair) first.")
        if (positions := positions_of(config)) and positions < length:
            raise UserError(f"--length {length}: {name} reads {positions} tokens (max_position_embeddings) at most.")
    drawn = min([vocabulary, *(config.vocab_size for config in configs.values())])
    work = Work(drawn, tokens, length, batch, decoding.num_beams or 1, steps, rounds, device)
    use_machine(threads)  # as our trainer does
    study = cost_study(configs, work, tell)
    finish(study, output, {"shape": shape, "threads": threads, "systems": list(map(str, systems))})
    tell(f"measured on: {study.rows[0]['machine']}")


def _config(name: str, shape: str, vocabulary: int) -> Any:
    from hf_mlnmt.zoo.systems import config_for

    if "/" not in name and not Path(name).exists():
        return config_for(name, shape, vocab_size=vocabulary)
    from hf_mlnmt.common.model_folder import fetch_small_files, read_config

    return read_config(fetch_small_files(name))
