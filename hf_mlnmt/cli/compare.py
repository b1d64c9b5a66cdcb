"""`hf-mlnmt compare`: scores of systems on one or more test sets, each tested against the first system."""

from functools import partial
from pathlib import Path
from typing import Any

from hf_mlnmt.cli import options
from hf_mlnmt.cli.evaluate import Language, Metrics, Protocols, Resamples, Seed, Tokenize, Trials
from hf_mlnmt.cli.options import TRANSLATION, NamedPath, decoding_options, named_argument, named_option, option
from hf_mlnmt.cli.terminal import Progress, finish, print_rows, show, tell
from hf_mlnmt.common.errors import UserError
from hf_mlnmt.generation.translating.options import DecodingOptions

PANEL = "Score"
_of_look, _named_look = (partial(of, rich_help_panel="What is said of translations") for of in (option, named_option))


@decoding_options(*TRANSLATION)
def compare(
    systems: list[NamedPath] = named_argument(
        ..., "Files, models, runs, results, comparisons, the baseline first; NAME again: a seed; {test}: the test set."
    ),
    reference: list[NamedPath] | None = named_option(
        None, "References of a test set; again for more.", "--reference", "-r", metavar="[TEST=]FILE"
    ),
    source: list[NamedPath] | None = named_option(
        None, "Sources: what models translate, and for lengths.", "--source", "-s", metavar="[TEST=]FILE"
    ),
    output: Path | None = options.output_folder(None, "Folder of the comparison, new or to be added to."),
    html: Path | None = option(None, "Write one page here: tables, plots, every sentence with differences marked."),
    language: Language = None,
    protocol: Protocols = None,
    metric: Metrics = None,
    tokenize: Tokenize = None,
    bootstrap: Resamples = 1000,
    trials: Trials = 10_000,
    seed: Seed = 12345,
    data: options.DataFolder = Path(),
    methods: bool = option(False, "The runs are ways to train: recipe, data and budget may differ."),
    groups: str = _of_look("iwslt", "Lengths of sources: wmt, iwslt, or where groups begin, 10,20.", "--groups", "-g"),
    tokenizer: str | None = _of_look(None, "Count lengths in this model's source subwords, not in words."),
    language_text: list[NamedPath] | None = _named_look(
        None, "Text of a language that outputs may be in.", metavar="XX=FILE"
    ),
    differences: int = _of_look(20, "Sentences to show each way, of each system.", min=0),
    lm: list[NamedPath] | None = _named_look(
        None, "Perplexity of the references by this language model.", metavar="NAME=PATH"
    ),
    *,
    decoding: DecodingOptions,
    device: options.Device = None,
) -> None:
    """Compare systems: scores with 95 % intervals or over seeds, each system tested against the first.

    Examples: two files of translations, two models, which first translate the source, and training runs:

        hf-mlnmt compare base.de new.de --reference test.de
        hf-mlnmt compare base=runs/a/best new=runs/b/best --source test.en --reference test.de --html page.html
        hf-mlnmt compare runs/transformer.seed* runs/m-10.seed* --data DIR -o results/my-comparison

    --output saves the comparison; the same command later adds runs that were not finished. What can be compared, seeds,
    test sets, what each test is worth: docs/scores.md. With --source: lengths, faults, differences: docs/analysis.md.
    """
    from hf_mlnmt.analysis.outputs import analyses_of, domain_study, read_starts, sentences_of
    from hf_mlnmt.common.files import check_file, write_text
    from hf_mlnmt.evaluation import comparison_tables, read_comparison
    from hf_mlnmt.evaluation.outputs import read_systems, read_texts, text_files
    from hf_mlnmt.evaluation.scores import scoring_options
    from hf_mlnmt.reports.comparison import PAGE, add_runs
    from hf_mlnmt.reports.comparison_page import html_page

    files = text_files(
        [(file.name, file.path) for file in reference or ()], [(file.name, file.path) for file in source or ()]
    )
    paths = [path for texts in files.values() for path in texts.references]
    resampling: dict[str, Any] = {"bootstrap": bootstrap, "seed": seed}
    scoring = dict(resampling)
    if paths:
        scoring |= scoring_options(protocol, metric, language, decoding.target_language, Path(paths[0]), tokenize)
    further = {file.name: file.path for file in language_text or ()}
    if "" in further:
        raise UserError(f"--language-text {further['']}: expected XX=FILE, a language and a file of its sentences.")
    language_texts = {name: read_texts(path) for name, path in further.items()}
    starts = read_starts(groups)
    if html:
        check_file(html)
    elif not (output and source):
        named = {"--tokenizer": tokenizer, "--language-text": language_text}
        options.refuse(named, "is of the look at translations: give --html, or --source with --output.")
    given = [(system.name, system.label, system.path) for system in systems]
    with Progress() as bars:
        scoring |= {"progress": bars.begin}
        runs = read_systems(given, files, output, scoring, decoding, device)
    texts: dict[Path, Any] = {}
    if isinstance(runs, Path):
        comparison, runs = read_comparison(runs), []
    else:
        comparison = add_runs(runs, output, data, tell, methods, known_texts=texts, trials=trials, **resampling)
    show(*comparison_tables(comparison))
    perplexities = _perplexities(options.by_name(lm or []), texts, device)
    domains = None
    if lm or html or (output and len(files) > 1):
        domains = domain_study(comparison, comparison.places[0][1], perplexities)
    look = (bool(output) and bool(source)) or html
    about = {"starts": starts, "tokenizer": tokenizer, "languages": language_texts, "shown": differences, **resampling}
    analyses = analyses_of(comparison, runs, texts, **about) if look else {}
    studies = []
    for test, analysis in analyses.items():
        for study in analysis.studies:
            study.note = " ".join(filter(None, [f"{len(analysis.references):,} sentences of {test}.", study.note]))
            studies.append(study.of(test) if len(analyses) > 1 else study)
    if output:
        settings = {"systems": list(map(str, systems)), "groups": starts, **resampling}
        settings |= {"source": list(map(str, source or ())), "references": paths}
        settings |= {"unit": f"subwords of {tokenizer}" if tokenizer else "words", "language_texts": further}
        for study in [*(studies if source else ()), *([domains] if domains else ())]:
            finish(study, output, settings)
        tell(f"written to {output / PAGE} and the files beside it")
    elif domains and lm:
        print_rows(domains.stem, domains.summary)
    if html and domains:
        names = list(comparison.runs)
        title = f"{', '.join(names[:4])}{' …' if len(names) > 4 else ''} on {', '.join(comparison.first['scores'])}"
        page = html_page(comparison, title=title, studies=[domains, *studies], sentences=sentences_of(analyses))
        print(f"Written to {write_text(html, page)}")


def _perplexities(models: dict[str, str], texts: dict[Path, Any], device: str | None) -> dict[str, dict[str, Any]]:
    """Computes {test set: {language model: Perplexity}} of the first references of each test set."""
    from hf_mlnmt.common.errors import naming
    from hf_mlnmt.evaluation.perplexity import perplexity
    from hf_mlnmt.generation.translating.loading import load_scored

    references = {test: outputs.references[0] for tests in texts.values() for test, outputs in tests.items()}
    by_test: dict[str, dict[str, Any]] = {test: {} for test in references}
    for name, path in models.items():
        network, tokenizers = load_scored(path, device)
        if network.config.is_encoder_decoder:
            raise UserError(f"--lm {path}: a translation model; for its perplexity: hf-mlnmt evaluate --perplexity.")
        for test, lines in references.items():
            tell(f"{test}: {name}")
            with naming(f"{test}: {name}"):
                by_test[test][name] = perplexity(network, tokenizers, lines)
    return by_test
