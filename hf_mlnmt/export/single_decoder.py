"""A model with multi-level supervision as a model with one decoder: the main one, or an auxiliary by itself."""

from __future__ import annotations

import shutil
from pathlib import Path

from hf_mlnmt.errors import UserError
from hf_mlnmt.files import atomic_folder

# What goes on as it is: tokenizers, and what is done to text before and after them.
_COPIED = ["tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "text_processing.json"]
_COPIED += ["target_tokenizer"]


def write_single_decoder(model: str | Path, output: str | Path, auxiliary: int | None = None) -> Path:
    """Write a plain model folder with one decoder of a model with auxiliary decoders.

    Args:
        model: folder of the model.
        output: folder to write; one that is there is replaced.
        auxiliary: the encoder layer whose auxiliary decoder to take, with the encoder up to there (thesis on joint
            attention, table 4.7); None: the main decoder, whose outputs stay the same.

    Raises: UserError for other models, an auxiliary that there is not, and the main decoder of a model with AIF.
    """
    from hf_mlnmt.generation.loading import load
    from hf_mlnmt.modeling import MultiLevelSupervisionForConditionalGeneration

    folder = Path(model)
    if not (folder / "config.json").is_file():
        raise UserError(f"{folder}: no config.json there. Give a model folder, such as a run's average/ or best/.")
    if folder.resolve() == Path(output).resolve():
        raise UserError(f"{output}: is the model itself. Choose another --output.")
    loaded = load(str(folder), device="cpu").model
    if not isinstance(loaded, MultiLevelSupervisionForConditionalGeneration):
        raise UserError(f"{folder}: {type(loaded).__name__} has no auxiliary decoders.")
    try:
        single = loaded.drop_auxiliaries() if auxiliary is None else loaded.auxiliary_translator(auxiliary)
    except ValueError as error:
        hint = "" if auxiliary is not None else " One of them can translate by itself (--auxiliary LAYER)."
        raise UserError(f"{folder}: {error}.{hint}") from error
    with atomic_folder(output) as new:
        single.save_pretrained(new)
        for name in _COPIED:
            if (folder / name).is_dir():
                shutil.copytree(folder / name, new / name)
            elif (folder / name).is_file():
                shutil.copyfile(folder / name, new / name)
    return Path(output)
