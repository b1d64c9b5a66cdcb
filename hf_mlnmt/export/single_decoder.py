"""A model with multi-level supervision as a model with one decoder: the main one, or an auxiliary by itself."""

from __future__ import annotations

from pathlib import Path

from hf_mlnmt.errors import UserError
from hf_mlnmt.files import atomic_folder
from hf_mlnmt.model_folder import check_model_folder, copy_text_files


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

    folder = check_model_folder(model)
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
        copy_text_files(folder, new)
    return Path(output)
