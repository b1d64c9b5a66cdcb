"""Decoding options: checks what a caller sets, and makes generate()'s keyword arguments of it.

The command line makes its options of the same fields (`cli/options.py`) with their names, help and ranges; so that it
starts fast, this file imports neither torch nor Transformers.

Length normalisation (thesis, section 2.5): a finished translation of Z target subwords (end-of-sentence counted) scores
log P(y|x) / divisor(Z), inside generate() too:

name        | divisor       | note
"generate"  | L^a           | Transformers' own; L counts everything generated, a forced language code included
"length"    | Z^a           | the same unless a language code is forced (NLLB, M2M100, mBART-50)
"length+1"  | (1+Z)^a       | also what OpenNMT-py's "avg" computes (a = 1)
"gnmt"      | ((5+Z)/6)^a   | Wu et al. 2016; JoeyNMT, Sockeye with beta = 5, OpenNMT-py's "wu" nearly

docs/decoding.md maps other toolkits' options to these.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from numbers import Integral, Real
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from hf_mlnmt.common.errors import OptionError, UserError, suggest
from hf_mlnmt.common.files import Form, misfit, read_json
from hf_mlnmt.common.keys import Range
from hf_mlnmt.common.languages import direction_of
from hf_mlnmt.data.placeholders import PATTERNS, checked_patterns
from hf_mlnmt.zoo.systems import positions_of

if TYPE_CHECKING:
    from hf_mlnmt.data.directions import Direction

LengthNormalization = Literal["generate", "length", "length+1", "gnmt"]
LENGTH_NORMALIZATIONS: tuple[str, ...] = get_args(LengthNormalization)
LARGEST_EXPONENT = 10.0  # of a length penalty: float32 holds 5,000 tokens to the power of 10
LARGEST_SEED = 2**64 - 1
OF_TEXTS = ("target_prefix", "force_phrases", "bad_phrases")  # options that may be lists, an entry for each text
CONSTRAINTS = ("terms", "force_phrases", "keep")  # options that demand something of a translation
ONE_BY_ONE = ("do_sample", "mbr", "rerank", "num_return_sequences")  # options that cannot go with `alternatives`
UTILITIES = ("chrf", "chrf-pairwise", "bleu")  # names of utilities (minimum_risk.py)
OF_TEXT_DRAWS = ("temperature", "top_k", "top_p", "top_n_sigma")  # the samplers that draws by text apply
SAMPLERS = ("temperature", "top_k", "top_p", "min_p", "typical_p", "epsilon_cutoff", "eta_cutoff", "top_n_sigma")
CONTROL = re.compile(r"[\0-\x08\x0e-\x1f\x7f]")  # control characters, refused in all texts
REPETITION = ("min_new_tokens", "no_repeat_ngram_size", "repetition_penalty")
OF_RERANKERS = (  # decoding options that a reranker's file may set
    *("num_beams", "do_sample", *SAMPLERS, "length_penalty", "length_normalization", "early_stopping"),
    *("alpha", "beta"),
)
# Names of features of a reranker (reranking.py); those in FEATURES_OF are written KIND=MODEL or command=COMMAND.
FEATURES_OF_FUSED = ("translation-models", "language-models")
FEATURES = ("model", "score", "length", "coverage", *FEATURES_OF_FUSED)
FEATURES_OF = ("translation", "reverse", "language-model", "command")
_IDENTITY: Form = {"name": str, "files": dict}
RERANKER: Form = {
    "features": {...: float},
    "samples?": int,
    "decoding?": dict,
    "made_from?": {"model?": (None, _IDENTITY), "models?": {...: _IDENTITY}},
}
WHOLE = ("top_k", "no_repeat_ngram_size", "encoder_no_repeat_ngram_size", "min_length", "min_new_tokens")
# Ranges of the numbers of a search, in DecodingOptions as in generation configs.
NUMBERS = {
    **dict.fromkeys(WHOLE, Range(0)),
    "length_penalty": Range(-math.inf),  # the class LengthPenalty checks the bounds
    "temperature": Range(1e-30, more=" (above 0: float32 holds logits divided by it)"),
    **dict.fromkeys(("repetition_penalty", "encoder_repetition_penalty"), Range(0.01, 100)),
    **dict.fromkeys(("top_p", "typical_p"), Range(0, 1, above=True)),
    **dict.fromkeys(("epsilon_cutoff", "eta_cutoff"), Range(0, 1, below=True)),
    "min_p": Range(0, 1),
    "top_n_sigma": Range(0, above=True),
    **dict.fromkeys(("alpha", "beta", "diversity_penalty", "memory_weight"), Range(0)),
    "length_ratio": Range(0.01, 100),  # a key of generation configs, no decoding option (watching.py)
    "guidance_scale": Range(1, 1),  # other values are only for models without an encoder
}


def problem_of_number(name: str, value: Any) -> str | None:
    """Returns an error message where `value` is out of the range of the option `name` of NUMBERS, else None."""
    kind = Integral if name in WHOLE else Real
    if isinstance(value, bool) or not isinstance(value, kind) or not math.isfinite(value):
        return f"{name}: {value!r} is not a {'whole ' if kind is Integral else ''}number."
    problem = NUMBERS[name].problem(value)  # type: ignore[arg-type]
    return problem and f"{name}:{problem}"


@dataclass(frozen=True)
class LengthPenalty:
    """A `length_penalty` for generate(): the exponent a and its formula.

    Beam search (`length_penalties` in search/hypotheses.py) computes `length ** length_penalty` twice: for the score of
    a finished hypothesis and for the bound that stops the search. With an object of this class that power, of a number
    or a tensor, is the formula's divisor, so that both places follow the formula without a copy of the search loop. The
    class is no subclass of float: code that needs a number fails, and does not silently drop the formula.

    In JSON it becomes the plain exponent: save the formula too, as `length_normalization`.
    Raises: UserError for an unknown formula, and for an exponent above 10 or below -10.
    """

    exponent: float
    normalization: str = "generate"
    uncounted: int = 0
    """Generated positions that Z leaves out (1 when the language code is forced)."""

    def __post_init__(self) -> None:
        if self.normalization not in LENGTH_NORMALIZATIONS:
            near = suggest(self.normalization, LENGTH_NORMALIZATIONS)
            known = ", ".join(LENGTH_NORMALIZATIONS)
            raise OptionError(
                f"length_normalization: unknown value {self.normalization!r}{near}. Choose one of {known}."
            )
        if not abs(self.exponent) <= LARGEST_EXPONENT:
            raise OptionError(
                f"length_penalty: {self.exponent!r} is not a number from {-LARGEST_EXPONENT:g} to "
                f"{LARGEST_EXPONENT:g}; 0.6 to 1.1 are usual."
            )

    def divisor(self, length: Any) -> Any:
        """Returns the divisor of the log probability; `length` (number or tensor) counts all generated positions."""
        if self.normalization == "generate":
            return length**self.exponent
        # The bound is also computed when only the forced language code is generated: Z is then set to 1.
        z = length - self.uncounted
        z = max(z, 1) if isinstance(z, int | float) else z.clamp(min=1)
        if self.normalization == "length+1":
            return (1 + z) ** self.exponent
        return ((5 + z) / 6) ** self.exponent if self.normalization == "gnmt" else z**self.exponent

    __rpow__ = divisor

    def __gt__(self, other: float) -> bool:  # beam search compares `length_penalty > 0`
        return self.exponent > other

    def __float__(self) -> float:
        return float(self.exponent)

    def to_dict(self) -> float:
        """Returns the exponent, which GenerationConfig writes to JSON."""
        return float(self)


SEARCH = "Search (unless given: as the model's generation_config.json says)"
LANGUAGES, SAMPLING, OUTPUT, SPEED = "Languages", "Sampling", "Output", "Speed and machine"
EARLY_STOPPING: dict[str, bool | str] = {"true": True, "false": False, "never": "never"}


def early_stopping_of(word: str) -> bool | str:
    """Returns the `early_stopping` that a word of the command line means. Raises: UserError for another word."""
    if word.lower() not in EARLY_STOPPING:
        near = suggest(word.lower(), EARLY_STOPPING)
        raise UserError(f"--early-stopping {word}: choose true, false or never{near}.")
    return EARLY_STOPPING[word.lower()]


def option(help: str, *names: str, panel: str = SEARCH, default: Any = None, **more: Any) -> Any:
    """Makes a field of DecodingOptions that is an option of the command line too, under the heading `panel`, named as
    the field with dashes unless `names` are given. `more`: min and max of a whole number, metavar, parser, choices."""
    return field(default=default, metadata={"help": help, "names": names, "panel": panel, **more})


def checked_terms(terms: Any, languages: Sequence[str | None] = (None, None)) -> dict[str, Any]:
    """Returns {source term: its translations} of a dict or a glossary's file, {"use": ..., "not": ...} where some are
    forbidden; languages: source and target to read from a file with several. Raises: UserError for other values."""
    if isinstance(terms, str | Path):
        from hf_mlnmt.data.bilingual import read_terms

        return read_terms(Path(terms), languages[0], languages[1])
    if not isinstance(terms, Mapping):
        raise OptionError(f"terms: {terms!r} is neither a dict of terms nor the name of a file.")
    checked: dict[str, Any] = {}
    for source, targets in terms.items():
        parts = targets if isinstance(targets, Mapping) and {*targets} == {"use", "not"} else {"use": targets}
        several = {name: [some] if isinstance(some, str) else some for name, some in parts.items()}
        lists = all(isinstance(some, list | tuple) for some in several.values())
        given = [text for some in several.values() for text in some] if lists else []
        texts = [source, *given] if given else [None]
        if not all(isinstance(text, str) and text.strip() and not CONTROL.search(text) for text in texts):
            raise OptionError(
                f"terms: {source!r}: {targets!r}: expected a term and its translation, or a list of some."
            )
        checked[source] = {n: list(some) for n, some in several.items()} if len(several) > 1 else list(several["use"])
    return checked


MOST_WEIGHT = 1e6  # largest weight of a feature: larger weights would make sums inexact or infinite


def checked_reranker(given: Any) -> dict[str, Any]:
    """Returns the checked content of a reranker's file, or of a mapping of the same form.

    Raises: UserError for a missing file, another content, or an unknown feature.
    """
    where = str(given) if isinstance(given, str | Path) else "rerank"
    if isinstance(given, str | Path) and not Path(given).is_file():
        raise UserError(f"{where}: no such file. hf-mlnmt model reranker makes one.")
    content = read_json(Path(given)) if isinstance(given, str | Path) else given
    if problem := misfit(content, RERANKER):
        raise UserError(f"{where}: {problem} Expected a file of hf-mlnmt model reranker.")
    for name, weight in content["features"].items():
        check_feature(name, where)
        if abs(weight) > MOST_WEIGHT:
            raise UserError(f"{where}: features: {name}: {weight:g} is no weight: at most {MOST_WEIGHT:g} is expected.")
    if not content["features"]:
        raise UserError(f"{where}: expected one of 'features' or more.")
    return dict(content)


def check_feature(name: str, where: str) -> None:
    """Raises UserError for a name that is no feature of a reranker."""
    kind, equal, what = name.partition("=")
    if kind not in (FEATURES_OF if equal else FEATURES) or (equal and not what.strip()):
        known = [*FEATURES, *(f"{other}=..." for other in FEATURES_OF)]
        raise UserError(f"{where}: no feature {name!r}{suggest(name, known)}. There are: {', '.join(known)}.")


@dataclass(frozen=True)
class DecodingOptions:
    """Options of one translation call. None means: as the model's generation_config.json says.

    Raises: UserError for a value that is not allowed, or options that exclude each other.
    """

    source_language: str | None = option(
        "Code of the language to read, where the model needs one.", "--from", panel=LANGUAGES
    )
    target_language: str | None = option(
        "Code of the language to translate into, where the model needs one.", "--to", panel=LANGUAGES
    )
    prefix: str | None = option(
        'Put before every source as it is (T5: "translate English to German: ").', panel=LANGUAGES
    )
    # A str for all texts, or a list with an entry for each text: a str, or a tuple with a str for each sentence.
    target_prefix: str | Sequence[Any] | None = option(
        "The translation begins with this, also in the middle of a word; a space at its end ends the word.",
        metavar="TEXT",
        parser=str,
    )
    terms: Mapping[str, Any] | str | None = option(
        "Glossary: .tbx, or .tsv or .csv with a source term on each line and the translations that it may have. Where "
        "a text has the term (as words, the longest), its translation has one of these. Needs --beams.",
        metavar="FILE",
        parser=str,
    )
    terms_ignore_case: bool = option("Find terms in a text in capitals and small letters alike.", default=False)
    # A str for all texts, or a list with an entry for each text; lexical_constraints.py.
    force_phrases: str | Sequence[Any] | None = option(
        "The translation has this; several phrases have tabs between them, alternatives |||. Needs --beams.",
        "--must",
        metavar="TEXT",
        parser=str,
    )
    bad_phrases: str | Sequence[Any] | None = option(
        "The translation does not have this as words; several phrases have tabs between them.",
        "--must-not",
        metavar="TEXT",
        parser=str,
    )
    keep: str | Sequence[str] | None = option(
        "What stays as the source has it: url, email, number, tag, placeholder (commas between several), or a "
        "regular expression. Give it again for more. Needs --beams.",
        metavar="NAME",
        parser=list,
        choices=tuple(PATTERNS),
    )
    num_beams: int | None = option("Beam size; 1 is greedy.", "--beams", "-b", min=1)
    # If given, a call returns for each text a list of Hypothesis, with scores.
    num_return_sequences: int | None = option(
        "An n-best list of so many translations of each text, with their scores.", "--n-best", "-n", panel=OUTPUT, min=1
    )
    # If given, a call returns for each text a list of Alternative.
    alternatives: int | None = option(
        "Of each text the so many likeliest next words behind --target-prefix, with their probabilities, and the "
        "translation with each; with --jsonl.",
        panel=OUTPUT,
        min=1,
    )
    # If True, a call returns lists of Hypothesis, each with its alignment (alignments.py).
    alignments: bool = option(
        "Which word of the source each word of the translation is linked to: '0-0 1-2', words counted from 0, behind "
        "the translation.",
        "--alignments",
        panel=OUTPUT,
        default=False,
    )
    # If True, a call returns lists of Hypothesis, each with its confidence and those of its words (confidence.py).
    confidence: bool = option(
        "How sure the model is of each translation and word, 0 to 1, with --jsonl. The model must be calibrated.",
        panel=OUTPUT,
        default=False,
    )
    length_penalty: float | None = option("Exponent a of the length normalisation: more is longer.")
    length_normalization: str | None = option(
        "What the score of a translation of Z subwords is divided by: generate (Transformers' own), length: Z^a, "
        "length+1: (1+Z)^a, gnmt: ((5+Z)/6)^a; a is --length-penalty.",
        choices=LENGTH_NORMALIZATIONS,
    )
    early_stopping: bool | str | None = option(
        "When a sentence's search ends: true (enough finished), false (a guess that no better one will come), never "
        "(certain of it).",
        parser=early_stopping_of,
        choices=tuple(EARLY_STOPPING),
    )
    max_new_tokens: int | None = option("Longest translation in tokens.", min=1)
    min_new_tokens: int | None = option("Shortest translation in tokens; 0: as it comes.", min=0)
    no_repeat_ngram_size: int | None = option(
        "No sequence of so many tokens is in a translation twice; 0: any may be.", "--no-repeat-ngram", min=0
    )
    repetition_penalty: float | None = option(
        "What scores of tokens that are in the translation already are divided by, or times which if negative (CTRL); "
        "above 1: fewer repetitions, 1: none of this."
    )
    max_source_tokens: int | None = option(
        "Split longer lines into sentences. Default: the longest that the model was trained on, else what it takes.",
        min=1,
    )
    split: Literal["long", "sentences"] = option(
        "What is cut into sentences, each translated alone: long (lines that the model does not take) or sentences "
        "(every line).",
        default="long",
    )
    case: Literal["auto", "as-is"] = option(
        "Lines in CAPITALS or Title Case that cost the model more subwords: auto (searched in sentence case, the "
        "translation is written as the line was) or as-is.",
        default="auto",
    )
    watch: bool = option(
        "Search once more where a translation is probably wrong (a loop, an omission, a copy, lost numbers), and mark "
        "what stays so; not with n-best lists, samples and beginnings.",
        default=True,
    )
    split_long: bool = option("Split lines that are too long; otherwise cut them off.", default=True)
    alpha: float | None = option("Of a fused model: scale of the translation models.")
    beta: float | None = option("Of a fused model: scale of the language models.")
    recombine: int | None = option(
        "Before each step join the beams that share their last K tokens: probabilities are added up, the better one "
        "stands for all.",
        metavar="K",
        min=0,
    )
    num_beam_groups: int | None = option(
        "Diverse beams: so many groups of beams that differ from each other; see --diversity-penalty.",
        "--beam-groups",
        min=1,
    )
    diversity_penalty: float | None = option(
        "Of --beam-groups: a token loses this for each time that the groups before chose it in the same step."
    )
    do_sample: bool = option("Sample instead of searching the best.", "--sample", panel=SAMPLING, default=False)
    temperature: float | None = option("Above 0; above 1: more varied.", panel=SAMPLING)
    top_k: int | None = option("Sample from the k likeliest tokens. Default, or 0: from all.", panel=SAMPLING, min=0)
    top_p: float | None = option(
        "Sample from the likeliest tokens that together have this probability.", panel=SAMPLING
    )
    min_p: float | None = option("Sample from the tokens with this share of the likeliest one's.", panel=SAMPLING)
    typical_p: float | None = option(
        "Sample from the tokens whose information is nearest to the expected, together of this probability.",
        panel=SAMPLING,
    )
    epsilon_cutoff: float | None = option("Sample from the tokens above this probability.", panel=SAMPLING)
    eta_cutoff: float | None = option(
        "Sample from the tokens above this probability, lowered where all are unlikely.", panel=SAMPLING
    )
    top_n_sigma: float | None = option(
        "Sample from the tokens with logits at most so many standard deviations below the largest.", panel=SAMPLING
    )
    without_replacement: bool = option(
        "With --sample and --n-best: no translation is drawn twice (stochastic beam search).",
        panel=SAMPLING,
        default=False,
    )
    seed: int | None = option("Seed of the sampling.", panel=SAMPLING, min=0, max=LARGEST_SEED)
    draws: Literal["batch", "row", "text"] = option(
        "What draws follow from: batch (the seed, and all drawn before, as Transformers draw), row (the same by other "
        "numbers, in less time) or text (the seed and the line's number alone).",
        panel=SAMPLING,
        default="batch",
    )
    mbr: int | None = option(
        "Minimum Bayes risk: of so many samples of each sentence (with --beams: beams), take the one that is most like "
        "the others. 64 is usual.",
        "--mbr",
        metavar="SAMPLES",
        min=2,
        max=10_000,
    )
    # The name of a utility, a command or a function (minimum_risk.py).
    utility: str | Callable[..., Any] | None = option(
        "Of --mbr, what is likeness: chrf, chrf-pairwise, bleu, embeddings=MODEL (cosines of sentence embeddings), or "
        "a command that reads lines of source, candidate and reference with tabs between them and writes numbers.",
        metavar="NAME",
        parser=str,
        choices=UTILITIES,
    )
    # The name of a reranker's file, or its content as a dict (reranking.py).
    rerank: Mapping[str, Any] | str | None = option(
        "Score the candidates, all beams or samples, anew by the features and weights of this file, of hf-mlnmt model "
        "reranker. It says how many there are, unless --beams or --sample does.",
        metavar="FILE",
        parser=str,
    )
    # A TranslationMemory, or names of files; remembered.py.
    memory: Any = option(
        "Translation memory: a .tmx, .xliff, .po, .mo, .tsv or .csv file, or a folder or zip of such. What it has is "
        "put in, what is similar steers the search. Give it again for more.",
        metavar="FILE",
        parser=list,
    )
    memory_weight: float | None = option(
        "Of --memory: what an n-gram of a similar text's translation adds to the score, times similarity^6. "
        "Default: 4; 0: nothing."
    )
    batch_tokens: int = option("Source tokens in a batch, padding included.", panel=SPEED, default=4096, min=1)
    progress: bool = option("Progress bar on stderr, where that is a terminal.", panel=OUTPUT, default=False)
    generate: dict[str, Any] = field(default_factory=dict)  # further arguments of generate()

    def with_keywords(self, keywords: Mapping[str, Any]) -> DecodingOptions:
        """Returns a copy of these options with values replaced by `keywords`; those that name no field are added to
        `generate`, for model.generate(), which refuses unknown names."""
        own = {item.name: keywords[item.name] for item in fields(self) if item.name in keywords}
        rest = {name: value for name, value in keywords.items() if name not in own}
        return replace(self, **{**own, "generate": {**own.get("generate", self.generate), **rest}})

    def with_languages_of(self, model: str) -> DecodingOptions:
        """Returns these options; `terms` that still name a glossary of several languages are read for the languages
        that the folder `model` records. Raises: UserError where it records none."""
        if not isinstance(self.terms, str | Path):
            return self
        return replace(self, terms=checked_terms(self.terms, direction_of(model) or self.told))

    @property
    def told(self) -> list[str | None]:
        """Returns the codes of source and target; None where no code is given, or one for each text."""
        return [code if isinstance(code, str) else None for code in (self.source_language, self.target_language)]

    @property
    def given(self) -> dict[str, Any]:
        """Returns the fields that have another value than the default."""
        usual = DecodingOptions()
        values = {item.name: getattr(self, item.name) for item in fields(self)}
        return {name: value for name, value in values.items() if value != getattr(usual, name)}

    def __post_init__(self) -> None:
        if self.terms is not None:
            from hf_mlnmt.data.bilingual import WhichLanguages

            with suppress(WhichLanguages):  # `with_languages_of` reads the glossary later
                object.__setattr__(self, "terms", checked_terms(self.terms, self.told))
        if self.keep is not None:
            object.__setattr__(self, "keep", checked_patterns(self.keep, "keep"))
        if self.rerank is not None:
            self._take_reranker()
        if problem := next(self._problems(), None):
            raise OptionError(problem)
        LengthPenalty(self.length_penalty or 0.0, self.length_normalization or "generate")
        for name in (item.name for item in fields(self) if "min" in item.metadata):
            if (number := getattr(self, name)) is not None:
                object.__setattr__(self, name, int(number))  # numpy's integers become int
        if self.repetition_penalty is not None:
            object.__setattr__(self, "repetition_penalty", float(self.repetition_penalty))  # generate() refuses int

    def _take_reranker(self) -> None:
        """Reads the reranker's file and, unless num_beams or do_sample is given, sets the options it was made with."""
        object.__setattr__(self, "rerank", content := checked_reranker(self.rerank))
        for name, value in content.get("decoding", {}).items() if self.num_beams is None and not self.do_sample else ():
            if name not in OF_RERANKERS:
                raise OptionError(f"rerank: decoding: {name!r} is none of {', '.join(OF_RERANKERS)}.")
            if getattr(self, name) in (None, False):
                object.__setattr__(self, name, value)

    def _first_given(self, *names: str) -> str | None:
        return next((name for name in names if getattr(self, name)), None)

    def _problems(self) -> Iterator[str]:
        yield from self._problems_of_numbers()
        for name in CONSTRAINTS:
            if getattr(self, name) and (self.do_sample or self.recombine is not None or self.num_beam_groups):
                yield f"{name}: need a beam search without sampling, recombine and groups of beams; leave these out."
        prefixes = [self.target_prefix] if isinstance(self.target_prefix, str) else self.target_prefix
        listed = prefixes if isinstance(prefixes, list | tuple) else [prefixes]
        parts = [part for each in listed for part in (each if isinstance(each, tuple) else [each])]
        if prefixes is not None and not all(isinstance(part, str) for part in parts):
            yield f"target_prefix: {prefixes!r} is neither a text for all nor a list of texts, one for each."
        for name, texts in (("target_prefix", parts), ("prefix", [self.prefix])):
            if wrong := next((text for text in texts if isinstance(text, str) and CONTROL.search(text)), None):
                yield f"{name}: {wrong!r} has a control character; leave it out."
        for name in ("source_language", "target_language"):
            value = getattr(self, name)
            for code in value if isinstance(value, list | tuple) else [value]:
                if code is not None and not isinstance(code, str):
                    yield f"{name}: {code!r} is no code of a language, which is text."
        for name in ("force_phrases", "bad_phrases"):
            value = getattr(self, name)
            if value is not None and not isinstance(value, str | list | tuple):
                yield f"{name}: {value!r} is neither a text for all nor a list, one for each text."
        if self.terms_ignore_case and not self.terms:
            yield "terms_ignore_case (--terms-ignore-case): is of terms (--terms), a glossary: give one, or leave it."
        files = [self.memory] if isinstance(self.memory, str | Path) else self.memory
        named = isinstance(files, list | tuple) and bool(files) and all(isinstance(x, str | Path) for x in files)
        if not (files is None or named or hasattr(files, "matches")):
            yield f"memory: {files!r} is neither a TranslationMemory nor names of bilingual files."
        if self.early_stopping not in (None, True, False, "never"):
            yield f"early_stopping: {self.early_stopping!r} is neither True nor False nor 'never'."
        words = {"split": ("long", "sentences"), "case": ("auto", "as-is"), "draws": ("batch", "row", "text")}
        for name, choices in words.items():
            if (value := getattr(self, name)) not in choices:
                yield f"{name}: {value!r} is none of {', '.join(choices)}."
        sampling = [name for name in SAMPLERS if getattr(self, name) is not None]
        sampling += ["draws"] * (self.draws != "batch")
        if sampling and not (self.do_sample or self.mbr):
            yield f"{sampling[0]} only acts when sampling: add do_sample=True (--sample), or leave it out."
        if self.without_replacement and (not self.do_sample or self.mbr or (self.num_return_sequences or 1) < 2):
            yield (
                "without_replacement: needs do_sample (--sample) and num_return_sequences (--n-best) of 2 or more, "
                "and no mbr."
            )
        if self.utility is not None and not self.mbr:
            yield "utility: is of mbr (--mbr), minimum Bayes risk; say how many samples, 64, or leave it out."
        if self.mbr and (other := self._first_given("do_sample", "rerank", *CONSTRAINTS)):
            yield f"mbr: chooses by likeness among {self.mbr} samples, or beams, of each sentence: leave {other} out."
        if self.mbr and 1 < (self.num_beams or 1) < self.mbr:
            yield f"mbr: {self.mbr} of {self.num_beams} beams (num_beams): raise that, or leave it out, for samples."
        if self.alternatives and (other := self._first_given(*ONE_BY_ONE)):
            yield f"alternatives: each is one search for the best translation: leave {other} out."
        if self.mbr and (self.num_return_sequences or 1) > self.mbr:
            yield f"num_return_sequences: {self.num_return_sequences} of {self.mbr} candidates (mbr); lower it."
        if self.draws == "text" and (self.mbr or self.num_return_sequences or 1) * (self.num_beams or 1) > 1:
            yield "draws by text are of one translation: leave num_return_sequences, num_beams and mbr out."
        others = [name for name in sampling if name not in (*OF_TEXT_DRAWS, "draws")]
        if self.draws == "text" and others:
            yield f"{others[0]}: draws by text know {', '.join(OF_TEXT_DRAWS)}: leave it or draws out."
        if self.rerank:
            yield from self._problems_of_reranking()

    def _problems_of_reranking(self) -> Iterator[str]:
        several, beams = self.num_return_sequences or 1, self.num_beams
        if self.draws == "text":
            yield "draws by text are of one translation, and rerank wants several: leave draws out."
        if self.do_sample and (beams or 1) > 1:
            yield "rerank: of beams or of samples: leave num_beams or do_sample out."
        if several > ((self.samples if self.do_sample else beams) or several):
            yield f"num_return_sequences: {several} is more than there are candidates for rerank; lower it."

    def _problems_of_numbers(self) -> Iterator[str]:
        for item in fields(self):
            value, least = getattr(self, item.name), item.metadata.get("min")
            if value is None or least is None:
                continue
            if isinstance(value, bool) or not isinstance(value, Integral) or value < least:
                yield f"{item.name}: {value!r} is not a whole number of at least {least}."
            if value > item.metadata.get("max", math.inf):
                yield f"{item.name}: {value} is too large: at most {item.metadata['max']}."
        for name in NUMBERS:
            if (value := getattr(self, name, None)) is not None and (problem := problem_of_number(name, value)):
                yield problem
        if self.min_new_tokens and self.max_new_tokens and self.min_new_tokens > self.max_new_tokens:
            yield f"min_new_tokens: {self.min_new_tokens} is more than max_new_tokens, {self.max_new_tokens}; lower it."

    @property
    def in_lists(self) -> bool:
        """Returns whether a call returns a list of Hypothesis for each text, instead of a string."""
        return bool(self.num_return_sequences or self.alternatives) or self.alignments or self.confidence

    @property
    def is_watched(self) -> bool:
        """Returns whether translations are watched (watching.py): with `watch`, without options that ask for several
        candidates or a beginning, and without further arguments of generate()."""
        asked = self._first_given("do_sample", "mbr", "rerank", "alternatives", "target_prefix", "generate")
        return self.watch and not asked and (self.num_return_sequences or 1) == 1

    @property
    def draws_by_text(self) -> bool:
        """Returns whether tokens are drawn by `TextDraws` (searching.py)."""
        return self.do_sample and self.draws == "text"

    @property
    def samples(self) -> int | None:
        """Returns how many samples of a sentence mbr or rerank chooses among; None where it chooses among beams."""
        if isinstance(self.rerank, Mapping) and self.do_sample:  # __post_init__ replaced a file's name by its content
            return int(self.rerank.get("samples", 64))
        return self.mbr if (self.num_beams or 1) == 1 else None

    @property
    def depends_on_all_before(self) -> bool:
        """Returns whether a translation depends on the random draws of earlier texts."""
        return bool(self.samples) or (self.do_sample and self.draws != "text")

    def beams(self, model: Any) -> int:
        """Returns the beam size: num_beams, else 1 for sampling and mbr, else the model's own, at least
        num_return_sequences. With without_replacement it is num_beams, at least num_return_sequences."""
        if self.without_replacement:
            return max(self.num_beams or 1, self.num_return_sequences or 1)
        if self.num_beams or self.do_sample or self.mbr:
            return self.num_beams or 1
        return max(model.generation_config.num_beams or 1, self.num_return_sequences or 1)

    def penalty(self, model: Any, direction: Direction) -> LengthPenalty:
        """Returns the length penalty, exponent and formula: as given, else as the model's generation config says."""
        config = model.generation_config
        exponent = self.length_penalty if self.length_penalty is not None else config.length_penalty
        formula = self.length_normalization or getattr(config, "length_normalization", None) or "generate"
        return LengthPenalty(1.0 if exponent is None else exponent, formula, int(forced_first(model, direction)))

    def generation_arguments(self, model: Any, direction: Direction) -> dict[str, Any]:
        """Returns the keyword arguments for model.generate(). Raises: UserError for options that do not go together."""
        beams = self.beams(model)
        n = self.samples or self.mbr or (beams if self.rerank else None) or self.num_return_sequences or 1
        if (several := self.num_return_sequences or 1) > n:
            raise OptionError(f"num_return_sequences: {several} of {n} candidates for rerank; raise num_beams.")
        if n > beams and not (self.do_sample or self.samples):
            raise OptionError(f"num_return_sequences={n} needs num_beams of at least {n}, not {beams}.")
        for name in CONSTRAINTS:
            if getattr(self, name) and beams == 1:
                raise OptionError(f"{name}: need a beam search; say num_beams (--beams) too, of 4 or more.")
        # With draws by text generate() searches greedily: TextDraws makes the drawn token's score infinite.
        sampled = bool(self.samples) or (self.do_sample and not self.draws_by_text)
        arguments: dict[str, Any] = {"num_beams": beams, "num_return_sequences": n, "do_sample": sampled}
        if beams > 1:
            arguments["length_penalty"] = self.penalty(model, direction)
        if self.early_stopping is not None:
            arguments["early_stopping"] = self.early_stopping
        if sampled and model.generation_config.top_k is None:
            arguments["top_k"] = 0  # all tokens; Transformers' default is the 50 likeliest
        for name in SAMPLERS:
            if sampled and name != "top_n_sigma" and getattr(self, name) is not None:
                arguments[name] = getattr(self, name)
        # Only this package's search can draw by row: candidates for mbr and rerank are drawn so where the model has it.
        if self.draws == "row" or (self.samples and hasattr(model, "logits_are_scores")):
            arguments["draws"] = "row"
        if self.without_replacement:
            arguments["without_replacement"] = True
        of_groups = {name: getattr(self, name) for name in ("num_beam_groups", "diversity_penalty")}
        arguments |= {name: value for name, value in of_groups.items() if value is not None}
        config = model.generation_config
        groups, penalty = (arguments.get(name) or getattr(config, name, None) for name in of_groups)
        if problem := next(self._problems_of_groups(beams, groups, penalty, sampled), None):
            raise OptionError(problem)
        arguments |= {name: getattr(self, name) for name in REPETITION if getattr(self, name) is not None}
        arguments |= self.scales(model)
        if self.recombine is not None:
            if beams == 1:
                raise OptionError("recombine: joins beams that share their last tokens; say num_beams (--beams) too.")
            arguments["recombine"] = self.recombine
        return {**arguments, **self._length_limit(model), **direction.generate, **self.generate}

    def _problems_of_groups(self, beams: int, groups: Any, penalty: Any, sampled: bool) -> Iterator[str]:
        if groups in (None, 1) and penalty:
            yield "diversity_penalty: acts between groups of beams: say num_beam_groups too, or leave it out."
        if groups in (None, 1):
            return
        if not isinstance(groups, int) or beams % groups or beams == 1:
            yield f"num_beam_groups: {groups} groups of {beams} beams (num_beams): choose a number that divides these."
        if sampled or self.recombine is not None:
            yield "num_beam_groups: are of a beam search: leave do_sample, mbr and recombine out."
        if not penalty:
            yield "num_beam_groups: say diversity_penalty too, above 0 (0.5), or all groups find the same."

    def scales(self, model: Any) -> dict[str, float]:
        """Returns alpha and beta of a fused model: as given, else as in its generation config; {} for other models.

        Raises: UserError where they are given for another model, or are out of their range.
        """
        asked = {name: getattr(self, name) for name in ("alpha", "beta") if getattr(self, name) is not None}
        if not hasattr(model, "factors"):
            if asked:
                raise OptionError(
                    f"{next(iter(asked))}: {type(model).__name__} is no fused model; make one with hf-mlnmt model fuse."
                )
            return {}
        kept = {name: getattr(model.generation_config, name, None) for name in ("alpha", "beta")}
        scales = {**{name: value for name, value in kept.items() if value is not None}, **asked}
        try:
            model.factors(**scales)
        except ValueError as error:
            raise OptionError(f"{error}.") from error
        return scales

    def _length_limit(self, model: Any) -> dict[str, int]:
        """Returns max_new_tokens as an argument: as given; {} where the generation config has a limit within the
        model's positions; else the model's positions less one, since Transformers' default is 20 tokens.

        Raises: UserError for more tokens than positions, or a min_new_tokens above the limit."""
        config, positions, asked = model.generation_config, positions_of(model.config), self.max_new_tokens
        usual = config.max_new_tokens or (None if config.max_length is None else config.max_length - 1)
        limit = {"max_new_tokens": (getattr(model.config, "max_position_embeddings", None) or 513) - 1}
        if asked is not None:
            if positions is not None and asked > positions:
                raise OptionError(f"max_new_tokens: {asked} is more than the model's {positions} positions; lower it.")
            limit = {"max_new_tokens": asked}
        elif usual is not None and (positions is None or usual <= positions):
            limit = {}
        most = limit.get("max_new_tokens", usual) or 0
        if (self.min_new_tokens or 0) > most:
            longest = f"is more than the longest translation of this model, {most}"
            raise OptionError(f"min_new_tokens: {self.min_new_tokens} {longest}; lower it, or raise max_new_tokens.")
        return limit


def of_texts(options: DecodingOptions) -> dict[str, Any]:
    """Returns the options named in OF_TEXTS, whose values may be lists with an entry for each text."""
    return {name: getattr(options, name) for name in OF_TEXTS}


def longest_translation(model: Any, arguments: dict[str, Any]) -> int:
    """Returns the largest number of tokens that generate() generates with these arguments, forced tokens included."""
    config = model.generation_config
    limit = arguments.get("max_new_tokens") or config.max_new_tokens
    return limit or arguments.get("max_length", config.max_length) - 1


def forced_first(model: Any, direction: Direction) -> bool:
    """Returns whether the first generated token is forced: a language code, which is no part of the translation."""
    forced = direction.generate.get("forced_bos_token_id", model.generation_config.forced_bos_token_id)
    return forced is not None
