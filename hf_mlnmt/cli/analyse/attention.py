"""`hf-mlnmt analyse attention`: what the attention of one or several models looks at, as numbers and figures."""

from enum import StrEnum
from pathlib import Path
from typing import Any, Literal

from hf_mlnmt.cli import options
from hf_mlnmt.cli.options import decoding_options, option
from hf_mlnmt.cli.terminal import finish, load_systems, tell
from hf_mlnmt.common.errors import UserError
from hf_mlnmt.generation.translating.options import DecodingOptions

What = StrEnum("What", ["distance", "entropy", "divergence", "dependency", "alignments", "maps", "coverage"])


@decoding_options(num_beams=5)
def attention(
    models: options.Models,
    source: options.Source,
    output: options.OutputFolder,
    what: list[What] = option(..., "The question; give it again for more.", "--what", "-w"),
    target: Path | None = option(None, "Translations to look at. Default: the model's greedy ones.", "--target", "-t"),
    side: Literal["encoder", "decoder", "source"] | None = option(
        None, "Self-attention of encoder or decoder; for maps also the attention over the source."
    ),
    sample: int = option(1000, "Sentences to draw from the file; 0: all.", min=0),
    seed: int = option(1, "Seed of the sample.", min=0),
    layer: int | None = option(None, "alignments, maps, coverage: one decoder layer, from 1.", min=1),
    head: int | None = option(None, "alignments, maps, coverage: one head, from 1; else the mean.", min=1),
    gold: Path | None = option(None, "alignments: those made by people, i-j sure, i?j possible."),
    one_based: bool = option(False, "The gold alignments count words from 1.", "--one-based"),
    sentence: int | None = option(None, "maps, coverage, dependency: the line of the sentence to draw.", min=1),
    source_language: options.From = None,
    target_language: options.To = None,
    *,
    decoding: DecodingOptions,
    device: options.Device = None,
) -> None:
    """Measure and draw what attention looks at: JSON, csv, png and svg in the folder --output.

    - distance, entropy: of every self-attention head, by layer; several models in one figure
    - divergence: between the two units of the dual contextual module (enc-dc, dec-dc, full-dc)
    - dependency: of the main decoder on its auxiliaries (ms-<layers>-aif)
    - alignments: words linked by the attention over the source, and their error rate
    - maps: the weights of one sentence
    - coverage: how much attention each source subword of one sentence has had, and the fertilities of the system
      fertility; of a search with --beams unless --target is given

    docs/analysis.md has the equations.

    Example:

        hf-mlnmt analyse attention runs/a/average runs/b/average -s test.en -o analysis --what distance --what entropy
    """
    from hf_mlnmt.analysis import self_attention, source_attention
    from hf_mlnmt.analysis.reading import between, draw_sample
    from hf_mlnmt.common.languages import check_files
    from hf_mlnmt.evaluation.outputs import read_texts

    if side == "source" and set(what) != {"maps"}:
        raise UserError("--side source: for --what maps only; the others are of self-attention, or have no side.")
    for model in models:
        check_files(model.path, [source], [target] if target else [], (source_language, target_language))
    sources, targets = read_texts(source), read_texts(target) if target else None
    golden = source_attention.read_gold(read_texts(gold), gold, one_based) if gold else None
    systems = between(load_systems(models, device), source_language, target_language)
    for name, parts in systems.items():
        if (used := parts.model.config._attn_implementation) != "eager":
            tell(f"{name}: attention is computed by 'eager' here, as {used!r} returns no weights")
    languages = (source_language, target_language)
    drawn = draw_sample(systems, sources, targets, sample or None, seed, languages)
    classes = {name: type(parts.model).__name__ for name, parts in systems.items()}
    of: Any = side or "encoder"
    for question in dict.fromkeys(what):
        used = drawn
        if question in ("distance", "entropy"):
            study = self_attention.heads_study(systems, used, question, of)
        elif question == "divergence":
            study = self_attention.divergence_study(systems, used, of)
        elif question == "dependency":
            study = self_attention.dependency_study(systems, used, sentence)
        elif question == "alignments":
            if golden is not None and len(golden) != len(sources):
                raise UserError(f"{gold}: {len(golden)} lines for {len(sources)} sentences: expected the same.")
            used = draw_sample(systems, sources, targets, None, seed, languages)
            chosen = [golden[line - 1] for line in used.lines] if golden is not None else None
            study = source_attention.alignment_study(systems, used, chosen, layer, head)
        else:
            line = sentence or drawn.lines[0]
            if line > len(sources):
                raise UserError(f"--sentence {line}: {source} has {len(sources)} lines.")
            pair = [sources[line - 1]], [targets[line - 1]] if targets else None
            used = draw_sample(systems, *pair, None, seed, languages)
            if question == "maps":
                study = source_attention.map_study(systems, used, side or "source", layer, head)
            else:
                study = source_attention.coverage_study(systems, used, layer, head, decoding.num_beams or 1)
        settings = {"source": str(source), "seed": seed}
        settings |= {"beams": decoding.num_beams} if question == "coverage" else {}
        shown = f"line {line}" if question in ("maps", "coverage") else f"{len(used.sources):,} sentences"
        study.note = f"{shown} of {source.name}"
        finish(study, output, {**settings, **used.settings(), "systems": classes})
