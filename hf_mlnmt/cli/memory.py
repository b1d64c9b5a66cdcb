"""Translation memories (translate --memory): the share of a text that they contain, and the weight they should get."""

from pathlib import Path
from typing import Annotated, Any

from hf_mlnmt.cli import options
from hf_mlnmt.cli.options import TRANSLATION, argument, decoding_options, option
from hf_mlnmt.common.errors import UserError
from hf_mlnmt.generation.translating.options import LANGUAGES, DecodingOptions

PANEL = "Translate"
Memory = Annotated[
    list[str],
    option(..., "A memory: .tmx, .xliff, .po, .mo, .tsv, .csv, a folder or zip of such; again for more.", "--memory"),
]
Output = Annotated[Path | None, options.output(..., "Write the numbers here, as JSON.")]


def analyse(
    files: list[str] = argument(..., "Text files, one text a line, or documents (.po, .xliff, .docx...)."),
    *,
    memory: Memory,
    source: str = option(..., "Code of the texts' language.", "--from", rich_help_panel=LANGUAGES),
    target: str = option(..., "Code of the translations' language.", "--to", rich_help_panel=LANGUAGES),
    output: Output = None,
) -> None:
    """Count the segments and words of texts by their best matches in a translation memory, without translating.

    101 is the same text between the same neighbours, 100 the same text (numbers and placeholders may differ), others
    are similar in so many per cent of the words.

    Example:

        hf-mlnmt memory analyse messages.po --memory project.tmx --from en --to de
    """
    from hf_mlnmt import documents
    from hf_mlnmt.common.files import write_json
    from hf_mlnmt.common.table import Number, Table
    from hf_mlnmt.memory.index import TranslationMemory
    from hf_mlnmt.memory.matching import Bands

    opened, bands = TranslationMemory(*memory, source=source, target=target), Bands()
    for file in files:
        texts = ["", *documents.read_file(file).texts, ""]
        for before, text, after in zip(texts, texts[1:], texts[2:]):
            if text.strip():
                matches = opened.matches(text, before, after, most=1)
                bands.add(text, matches[0].percent if matches else 0)
    print(Table(["match", Number("segments"), Number("words"), Number("share")], bands.rows()))
    if output:
        write_json(output, {"files": files, "memory": memory, "units": len(opened), "bands": bands.to_dict()})


@decoding_options(*TRANSLATION, split="sentences")
def tune(
    model: options.Model,
    *,
    memory: Memory,
    source: options.Source,
    reference: Annotated[Path, option(..., "Their references.", "--reference", "-r")],
    weight: list[float] = option([0.0, 1.0, 2.0, 4.0, 8.0, 12.0], "Weights to try; again for each.", min=0),
    output: Output = None,
    device: options.Device = None,
    decoding: DecodingOptions,
) -> None:
    """Choose the weight of a translation memory in the search (--memory-weight) by BLEU on a development set.

    The set must not be in the memory itself, or its own translations are put in.

    Example:

        hf-mlnmt memory tune MODEL --memory project.tmx -s dev.en -r dev.de
    """
    from dataclasses import replace

    from hf_mlnmt.common.files import write_json
    from hf_mlnmt.common.languages import check_files
    from hf_mlnmt.common.table import Number, Table
    from hf_mlnmt.data.lines import read_lines
    from hf_mlnmt.evaluation.scores import score
    from hf_mlnmt.generation import TranslationCall, TranslationPipeline

    check_files(model, [source], [reference], decoding.told)
    options.use_machine()
    texts, right = (list(read_lines(path)) for path in (source, reference))
    if len(texts) != len(right):
        raise UserError(f"{source} has {len(texts):,} lines and {reference} has {len(right):,}: give one for each.")
    pipeline = TranslationPipeline.from_pretrained(model, device=device)
    rows: list[dict[str, Any]] = []
    for value in sorted(set(weight)):
        told = replace(decoding, memory=memory, memory_weight=value)
        ranked = TranslationCall(pipeline, told).translate(texts, 1, lambda done: None)
        found = score([best[0].text for best in ranked], right, bootstrap=0)
        rows.append({"weight": value, "BLEU": found["BLEU"], "chrF": found["chrF"]})
    best = max(rows, key=lambda row: row["BLEU"])
    print(
        Table([Number("weight"), Number("BLEU"), Number("chrF")], [[f"{x:.2f}" for x in row.values()] for row in rows])
    )
    print(f"--memory-weight {best['weight']:g}")
    if output:
        write_json(output, {"model": model, "memory": memory, "source": str(source), "best": best, "tried": rows})
