"""`hf-mlnmt analyse embed`: a sentence embedding for every line of a text."""

from pathlib import Path

import typer

from hf_mlnmt.cli import options
from hf_mlnmt.cli.options import argument
from hf_mlnmt.common.errors import UserError


def embed(
    model: options.Model,
    file: Path = argument(..., "Text, a sentence a line; also .gz."),
    output: Path = options.output(..., "An array of NumPy, .npy: float32 (lines, width)."),
    source_language: options.From = None,
    target_language: options.To = None,
    pooling: options.Pooling = None,
    device: options.Device = None,
) -> None:
    """Write a vector for every line of a text: what the encoder and, if there is one, the attention bridge make of it.

    --from is the language of the text, for a model of several languages. --to is for a model that is told the target
    by a token before the source (tagged): the token is put before every text.

    Example:

        hf-mlnmt analyse embed runs/bridge/average test.de.gz --from de -o test.de.npy
    """
    import numpy as np

    from hf_mlnmt.analysis.embeddings import embed_file
    from hf_mlnmt.cli.terminal import silence
    from hf_mlnmt.common.files import atomic_path, check_file
    from hf_mlnmt.common.languages import check_files
    from hf_mlnmt.generation.choosing.embedding import check_told
    from hf_mlnmt.generation.translating.loading import load

    if output.suffix != ".npy":
        raise UserError(f"--output {output}: expected a name that ends in .npy.")
    check_file(output)
    silence()
    check_files(model, [file], told=(source_language, target_language))
    parts = load(model, device)
    check_told(parts, source_language, target_language)
    vectors = embed_file(parts, file, source_language, pooling, target_language)
    with atomic_path(output) as path, path.open("wb") as handle:
        # numpy.save into a file passes over what the system says as C's buffer is written out.
        np.lib.format.write_array_header_1_0(handle, np.lib.format.header_data_from_array_1_0(vectors))
        handle.write(vectors.data)
    typer.echo(f"{output}: {vectors.shape[0]} sentences, {vectors.shape[1]} numbers each", err=True)
