"""The checks before a training, in order: `CHECKS`, then what is known only when the data are encoded.

| check | refuses, or warns of |
| --- | --- |
| keys | values outside their ranges, keys that do not go together (recipe/checks.py; also whenever a recipe is read) |
| arguments | fields that Seq2SeqTrainingArguments lacks, trackers and precision that this machine lacks |
| metrics | metrics that there are not |
| model | a config that cannot be, objectives that it cannot be trained with, too little memory for a step |
| weights | folders of init_from that are not there, or do not fit |
| languages | target languages that the tokenizer has no code of |
| corpora | files that are missing, broken, empty or do not go together; dev or test sets that are training data |
| processing | a side that Moses does not give back as it was |
| sides | synthetic corpora whose sides look exchanged |
| texts | text that looks as if it were in another language |

Behind these, with the data encoded: `check_budget` (recipe/checks.py), `check_lengths`. The folder of a run: folder.py.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from huggingface_hub.errors import StrictDataclassError
from transformers import PreTrainedConfig

from hf_mlnmt.common.errors import UserError, naming, suggest
from hf_mlnmt.common.memory import memory_of_machine
from hf_mlnmt.data.corpus import CorpusSpec, check_together, read_pairs
from hf_mlnmt.data.lines import count_text
from hf_mlnmt.data.processing import TextProcessing
from hf_mlnmt.data.subwords import SPECIAL_TOKENS
from hf_mlnmt.data.text import Overlap, TextSpec, read_text, word_overlap
from hf_mlnmt.data.tokenizer import Tokenizers, languages_of
from hf_mlnmt.data.words import spoken
from hf_mlnmt.generation.synthetic.methods import FEWEST, LINES, SHORT_PIECES, bytes_per_piece
from hf_mlnmt.modeling.fused import LOGITS, ROWS
from hf_mlnmt.recipe.checks import check_recipe
from hf_mlnmt.recipe.schema import MAIN_DEV, Recipe
from hf_mlnmt.training import dev, folder
from hf_mlnmt.training.arguments import is_sharded, training_arguments
from hf_mlnmt.training.init_from import check_sources, initialise, read_sources
from hf_mlnmt.training.model_making import speaks_many
from hf_mlnmt.training.preparation import Preparation
from hf_mlnmt.training.tasks import check_needs
from hf_mlnmt.zoo.systems import architecture_of, positions_of

if TYPE_CHECKING:
    from hf_mlnmt.training.sweep import Job

Spec = CorpusSpec | TextSpec


class Preflight:
    """The subject of the checks of one training, on so many processes; parts are made when first asked for."""

    def __init__(self, preparation: Preparation, processes: int = 1) -> None:
        self.given, self.processes = preparation, processes
        self.recipe, self.root, self.corpora = preparation.recipe, preparation.root, preparation.corpora
        self.trains_tokenizer = self.recipe.tokenizer.path is None

    @cached_property
    def preparation(self) -> Preparation:
        """Returns what makes the parts, with what the tokenizers that are trained here will be."""
        if not self.trains_tokenizer:
            return self.given
        of_each = not self.recipe.tokenizer.joint and speaks_many(self.recipe, self.root)
        languages = dict.fromkeys(language for _, _, language in self.corpora.sides()) if of_each else ()
        preparation = copy.copy(self.given)
        preparation.tokenizers = expected_tokenizers(self.recipe, list(languages))
        return preparation

    @cached_property
    def model(self) -> tuple[PreTrainedConfig, int]:
        return checked_model(self.preparation)

    @cached_property
    def seen(self) -> dict[str, Seen]:
        """Reads the sets that are scored; of training text the first sentences, and unless it is to be checked only as
        many bytes as tell it from these sets: the rest is read once, as it is encoded.

        Returns: key of the recipe -> what was seen. Raises: UserError for what is missing, broken or empty, for sides
            of different lengths, and for a set to be scored in which one side is blank throughout.
        """
        scored = {key: _look_at(key, spec, self.root, None, True) for key, spec in self.scored.items()}
        most = max([READ, *(seen.size + 1 for seen in scored.values())])
        limit = None if self.given.check else most
        return {key: _look_at(key, spec, self.root, limit) for key, spec in self.train.items()} | scored

    @cached_property
    def train(self) -> dict[str, Spec]:
        """Returns key of the recipe -> training corpus."""
        return {
            f"{'data.train' if self.recipe.tasks is None else f'tasks.{task.name}.data'} {spec}": spec
            for task in self.corpora.tasks
            for spec in task.specs
        }

    @cached_property
    def scored(self) -> dict[str, Spec]:
        """Returns key of the recipe -> development or test set."""
        sets: dict[str, Spec] = {
            "data.dev" if name == MAIN_DEV else f"tasks.{name}.dev": spec for name, spec in self.corpora.dev.items()
        }
        return sets | {f"data.test.{name}": spec for name, spec in self.corpora.test.items()}


def check_before(preparation: Preparation, processes: int = 1) -> Iterator[str]:
    """Checks all that can be known before a training begins; yields warnings. What takes long comes last."""
    training = Preflight(preparation, processes)
    for check in CHECKS:
        yield from check(training) or ()


def keys(training: Preflight) -> Iterator[str]:
    """Checks the recipe by itself, also one that was not read but made; warns of temperatures without effect."""
    recipe, tasks = training.recipe, training.corpora.tasks
    check_recipe(recipe)
    if recipe.data.temperature is not None and all(len(task.specs) == 1 for task in tasks):
        yield "data.temperature has no effect: it is for several corpora of a task. Of tasks: batch.temperature."
    if recipe.batch.temperature is not None and len(tasks) == 1:
        yield "batch.temperature has no effect: it is for several tasks. Of several corpora: data.temperature."


def arguments(training: Preflight) -> None:
    """Makes the arguments of Transformers' trainer."""
    training_arguments(training.recipe, training.given.output)


def metrics(training: Preflight) -> None:
    """Loads the metrics of the development sets."""
    for name in training.recipe.evaluation.metrics:
        with naming(f"{training.recipe.path}: evaluation.metrics"):
            dev.metric(name)


def model(training: Preflight) -> Iterator[str]:
    """Checks the model, and that a training of it fits in the memory, by the sizes of the files alone."""
    sizes = [_least_subwords(spec, training.root) for spec in training.train.values()]
    tokens = min(training.recipe.batch.tokens, sum(sizes))
    yield from check_memory(training.recipe, *training.model, training.processes, tokens)


def weights(training: Preflight) -> None:
    """Checks that what init_from names is there and, if it can be known, fits; not of a run that has begun."""
    recipe = training.recipe
    if recipe.init_from is None or folder.has_begun(training.given.output):
        return
    sources = read_sources(recipe.init_from)
    check_sources(sources, training.root, str(recipe.path))
    if not training.trains_tokenizer:
        preparation = training.given
        initialise(preparation.model(), sources, training.root, preparation.tokenizers, str(recipe.path))


def languages(training: Preflight) -> Iterator[str]:
    """Refuses pairs into a language that the tokenizer has no code of; warns where nothing says into which."""
    recipe = training.recipe
    codes = recipe.tokenizer.languages if training.trains_tokenizer else languages_of(training.given.tokenizers.source)
    train = [spec for task in training.corpora.tasks for spec in task.specs]
    for spec in (*train, *training.scored.values()):
        language = spec.languages["target"] if isinstance(spec, CorpusSpec) and spec.languages else None
        if codes and language is not None and language not in codes:
            raise UserError(
                f"{recipe.path}: {spec}: its target language is '{language}', and the tokenizer has codes of "
                f"{', '.join(codes)} alone{suggest(language, codes)}. Add it to tokenizer.languages, or mend languages."
            )
    pairs = [spec for spec in train if isinstance(spec, CorpusSpec) and spec.languages]
    several = list(dict.fromkeys(spec.languages["target"] for spec in pairs if spec.languages))
    if len(several) > 1 and not codes and not speaks_many(recipe, training.root):
        yield (
            f"the training pairs are into {' and '.join(several)}, and no code says into which: the model will guess "
            f"from the source. Set tokenizer.languages to [{', '.join(several)}]."
        )


def corpora(training: Preflight) -> Iterator[str]:
    """Reads the corpora; yields warnings about those that are another one, or equal on both sides."""
    for key, seen in training.seen.items():
        if seen.sides_are_equal:
            yield f"{key}: source and target are the same text. Check the file names."
    same: dict[tuple[object, ...], list[str]] = {}
    for key, seen in training.seen.items():
        same.setdefault(seen.identity, []).append(key)
    for keys in same.values():
        for key, other in combinations(keys, 2):
            known = key == "data.dev" and training.recipe.evaluation.before  # to see what the training gained on it
            if other in training.scored and not known:
                yield f"{key} and {other} are the same sentences: scores of these say nothing about other text."


CUT, CHANGED = 0.01, 0.2  # of the lines: words are cut; anything is changed, as Moses does to a few with / or %


def processing(training: Preflight) -> None:
    """Checks that Moses's tokens, put together, are the text: its rules cut some scripts in the middle of words."""
    preparation = training.given
    made = preparation.processing() if training.trains_tokenizer else preparation.tokenizers.processing
    moses: dict[str | None, TextProcessing] = {side: each for side, each in made.items() if each.moses}
    for key, spec in training.train.items() if moses else ():
        texts = _first_lines(spec, training.root)
        for side in (side for side in texts if side in moses):
            lines, own = texts[side], moses[side]
            kept = replace(own, moses=False)
            given = [" ".join(kept.apply(line).split()) for line in lines]
            pairs = [(line, own.undo(own.apply(line))) for line in given]
            changed = [number for number, (line, back) in enumerate(pairs) if line != back]
            cut = [number for number in changed if spoken(pairs[number][0]) != spoken(pairs[number][1])]
            if len(cut) > CUT * len(lines) or len(changed) > CHANGED * len(lines):
                number = (cut or changed)[0]
                raise UserError(
                    f"{key}: tokenizer.processing.{side}.moses: Moses's rules do not fit this language "
                    f"({own.language}): {len(changed)} of the first {len(lines)} lines do not come back as they were. "
                    f"Line {number + 1}: {pairs[number][0]:.80} becomes {pairs[number][1]:.80}. Leave moses out: the "
                    "tokenizer needs no words."
                )


def sides(training: Preflight) -> Iterator[str]:
    """Yields warnings, with evidence, about synthetic corpora whose sides look as if they were exchanged."""
    for task in training.corpora.tasks:
        parallel = next((spec for spec in task.pairs if not spec.synthetic), None)
        if parallel is None:
            continue
        sources, targets = zip(*islice(read_pairs(parallel, training.root), FIRST_PAIRS))
        for spec in (spec for spec in task.pairs if spec.synthetic):
            theirs = [target for _, target in islice(read_pairs(spec, training.root), FIRST_PAIRS)]
            own, other = word_overlap(theirs, targets), word_overlap(theirs, sources)
            if other.share > own.share:
                yield (
                    f"{task.name} {spec}: are its sides exchanged? Of its targets' words {other.share:.0%} stand in "
                    f"the source side of {parallel} ({', '.join(other.words)}) and {own.share:.0%} in its target side. "
                    "Text of the target language is translated backward, of the source language with --forward; "
                    "reverse: true turns a corpus round."
                )


def texts(training: Preflight) -> Iterator[str]:
    """Returns warnings about the languages of training texts (`doubts_about_texts`)."""
    of_one = {key: spec for key, spec in training.train.items() if isinstance(spec, TextSpec)}
    others = [spec for spec in (*training.scored.values(), *training.train.values()) if spec not in of_one.values()]
    tokenizers = None if training.trains_tokenizer else training.given.tokenizers
    return doubts_about_texts(of_one, others, training.root, tokenizers)


CHECKS: tuple[Callable[[Preflight], Iterable[str] | None], ...]
CHECKS = (keys, arguments, metrics, model, weights, languages, corpora, processing, sides, texts)


def check_points(jobs: Sequence[Job], data: Path, warn: Callable[[str], None] | None = None) -> None:
    """Checks a training of each point: all before it begins, or without `warn` the model alone. UserError naming it."""
    points: dict[tuple[Path, tuple[str, ...]], Job] = {}
    for job in jobs:  # seeds differ in nothing that is checked
        points.setdefault((job.path, job.settings), job)
    for job in points.values():
        with naming(job.name), folder.temporary() as output:
            preparation = Preparation(job.recipe(), data, output, lambda text: None)
            if warn is not None:
                for warning in check_before(preparation):
                    warn(f"{job.name}: {warning}")
            elif job.recipe().tokenizer.path is None:
                list(model(Preflight(preparation)))


# The model

GIB = 2**30
# Bytes of a weight with its gradient and the optimizer's state: float32, and two moments of Adam.
BYTES_OF_WEIGHT = {"adam": 16, "adamw": 16, "sgd": 8}


@dataclass
class ExpectedTokenizer:
    """The size of a tokenizer that is still to be trained, and the ids that every tokenizer of ours has."""

    size: int
    pad_token_id: int = SPECIAL_TOKENS.index("<pad>")
    eos_token_id: int = SPECIAL_TOKENS.index("</s>")
    bos_token_id: int = SPECIAL_TOKENS.index("<s>")
    mask_token_id: int = SPECIAL_TOKENS.index("<mask>")
    all_special_ids: tuple[int, ...] = tuple(range(len(SPECIAL_TOKENS)))

    def __len__(self) -> int:
        return self.size


class ExpectedTokenizers(Tokenizers):
    """The tokenizers of a run that are still to be trained; the ids of the languages' codes are not known yet."""

    def language_ids(self) -> dict[str, int]:
        return {}


def expected_tokenizers(recipe: Recipe, languages: Sequence[str] = ()) -> Tokenizers:
    """Returns what the tokenizers will be if the corpus has words enough; `languages`: each of these has its own."""
    made: list[Any] = [ExpectedTokenizer(recipe.tokenizer.vocab_size) for _ in (*languages, "source", "target")]
    *each, source, target = made
    if languages or recipe.tokenizer.joint:
        target = source
    return ExpectedTokenizers(source, target, each=dict(zip(languages, each)))


def checked_model(preparation: Preparation) -> tuple[PreTrainedConfig, int]:
    """Returns the model's config, and its number of parameters; of the model only the shapes are made."""
    recipe = preparation.recipe
    try:
        config = preparation.config()
        with torch.device("meta"):  # shapes alone
            made = preparation.auto_class(config).from_config(config)
    except StrictDataclassError as error:
        raise UserError(f"{recipe.path}: {_in_words(str(error))}") from error
    except (ValueError, TypeError, KeyError, RuntimeError, OverflowError) as error:
        if isinstance(error, UserError):
            raise
        raise UserError(f"{recipe.path}: model: such a model cannot be made ({error!r}).") from error
    with torch.device("meta"):
        objectives = {task.name: preparation.objective(task, made) for task in preparation.corpora.tasks}
    for name, objective in objectives.items():
        check_needs(name, objective, made)
    return config, made.num_parameters()


def _in_words(text: str) -> str:
    """Rewrites an error of a config as one of the recipe's keys.

    The text is "Class validation error for validator 'validate_rates':\\n ValueError: dropout=1.5: must be ..." or
    "Validation error for field 'd_model':\\n TypeError: Field 'd_model' expected int, got str (value: 'x')".
    """
    reason = re.sub(r"^\w+: ", "", text.strip().splitlines()[-1].strip())
    if field := re.search(r"Field '(\w+)' (expected [^;]*)", reason):
        hint = " Write it with a point, as in 1.0." if "expected float, got int" in reason else ""
        return f"model.settings.{field[1]}: {field[2]}.{hint}"
    named = re.match(r"(\w+)\s*=(.*)", reason)
    return f"model.settings.{named[1]}={named[2]}." if named else f"model: {reason}."


TIGHT = 0.75  # of the memory; what is computed here is the least that is needed


def check_memory(
    recipe: Recipe, config: PreTrainedConfig, parameters: int, processes: int, tokens: int
) -> Iterator[str]:
    """Refuses a training that this machine cannot hold; yields a warning of one that may not fit.

    tokens: of the largest batch, on the side of batch.side.
    """
    # Divided over the processes; while it is evaluated or saved each has all weights.
    bytes_of_weight = 4 if recipe.adapter else BYTES_OF_WEIGHT[recipe.optimizer.name]  # those of an adapter are few
    state = parameters * (bytes_of_weight / processes + 4 if is_sharded() else bytes_of_weight) / GIB
    on_cpu = recipe.arguments.get("use_cpu") is True or not torch.accelerator.is_available()
    layers, logits = bytes_of_step(recipe, config, tokens) / GIB, bytes_of_logits(recipe, config, tokens, on_cpu) / GIB
    needed = (state + layers + logits) * (processes if on_cpu else 1)
    there = memory_of_machine(on_cpu) / GIB
    if needed <= there * TIGHT:
        return
    says = (
        f"this training needs at least {needed:,.1f} GiB of memory, and this machine has {there:,.1f}: {parameters:,} "
        f"parameters with their gradients and the optimizer's state take {state:,.1f} GiB"
        + (
            f", a step of {tokens:,} tokens at least {layers:,.1f} in its layers and {logits:,.1f} of logits"
            * bool(tokens)
        )
        + (f", each in {processes} processes" if on_cpu and processes > 1 else "")
        + ". Lower model.shape, the sizes under model.settings, tokenizer.vocab_size or batch.tokens."
    )
    if needed > there:
        raise UserError(f"{recipe.path}: {says}")
    yield says


def bytes_of_step(recipe: Recipe, config: Any, tokens: int) -> float:
    """Returns a lower bound of what the backward pass reads, of the layers on the side that `tokens` are of.

    In self-attention the input, queries, keys, values and the context, in a decoder's cross-attention input, queries
    and context, in the feed-forward layer the input and what is inside; of a checkpointed layer the input.
    """
    side, kept = ("encoder", 6) if recipe.batch.side == "source" else ("decoder", 9)
    layers, width, inner = (getattr(config, name, 0) for name in (f"{side}_layers", "d_model", f"{side}_ffn_dim"))
    numbers = width if recipe.precision.gradient_checkpointing else kept * width + inner
    return tokens * layers * numbers * (4 if recipe.precision.dtype == "float32" else 2)


def bytes_of_logits(recipe: Recipe, config: Any, tokens: int, on_cpu: bool) -> float:
    """Returns a lower bound of the logits, and of what their loss is computed from, while `tokens` are of the target.

    Our models compute some positions at a time (modeling/loss.py); others all at once, in float32, with their
    softmax and gradients beside them (4.9 times were measured, 5.4 in half precision).
    """
    if recipe.batch.side == "source":
        return 0
    row = 4 * int(getattr(config, "target_vocab_size", None) or getattr(config, "vocab_size", None) or 0)
    if architecture_of(config) is None:
        return 4 * tokens * row
    return min(tokens, ROWS) * row if on_cpu else min(tokens * row / 2, LOGITS)


# The corpora

READ = 1 << 26  # bytes of a training text; more of it if a set that is scored is larger
FIRST_PAIRS = 100  # of a training corpus: that they are read shows that columns and fields are right


@dataclass(frozen=True)
class Seen:
    """The findings about a corpus. `identity` is equal for equal corpora alone; `size` is the bytes of the largest
    file's text."""

    identity: tuple[object, ...]
    size: int = 0
    sides_are_equal: bool = False


def _least_subwords(spec: Spec, root: Path) -> int:
    """Returns what the target side has at least, unread: one subword in ten bytes; 0 where that is not known."""
    files, share = [path for path in spec.local_files(root) if path.suffix != ".parquet" and path.is_file()], 10
    if isinstance(spec, CorpusSpec):
        files, share = (files[1:], 10) if spec.is_two_files else (files, 20)
    least = sum(path.stat().st_size for path in files) // share
    return least if spec.limit is None else min(least, spec.limit)


def _look_at(key: str, spec: Spec, root: Path, most: int | None, whole: bool = False) -> Seen:
    """Reads the first items, or the `whole` set, and counts the first `most` bytes of the files."""
    with naming(key):
        if (gone := next((path for path in spec.local_files(root) if not path.exists()), None)) is not None:
            where = f"Corpora are looked for in --data, now {root}; where the setups' come from: docs/install.md."
            raise UserError(f"{gone}: no such file. {where}")
        items: Any = read_pairs(spec, root) if isinstance(spec, CorpusSpec) else read_text(spec, root)
        items = list(islice(items, None if whole and isinstance(spec, CorpusSpec) else FIRST_PAIRS))
        paths = [path for path in spec.local_files(root) if path.suffix != ".parquet"]
        files = [count_text(path, most) for path in paths]
        if isinstance(spec, CorpusSpec) and spec.is_two_files and all(file.whole for file in files):
            check_together(paths, [file.lines for file in files])
    size = max((file.size for file in files), default=0)
    if isinstance(spec, TextSpec):
        if not any(sentence.strip() for sentence in items):
            raise UserError(f"{key}: {spec}: there is no text at its beginning.")
        return Seen((str(spec), spec.column, *files), size)
    if not items:
        raise UserError(f"{key}: {spec}: no pairs: there is nothing, or a header alone, or blank and dropped lines.")
    for side, name in enumerate(("source", "target") if whole else ()):
        if not any(pair[side].strip() for pair in items):
            raise UserError(f"{key}: {spec}: every {name} sentence is blank, so that nothing can be scored.")
    if spec.is_two_files:
        shown = (spec.reverse, spec.limit) if spec.reverse or spec.limit else ()
        return Seen((*files, *shown), size, files[0] == files[1])
    identity = (spec.path, spec.dataset, spec.config, spec.split, *sorted((spec.columns or {}).items()))
    return Seen(identity, size)


# The language of texts

# Of the running words; of 200 lines two languages share some 5 to 15 in 100, two domains of one language 40 and more.
FOREIGN = 0.2
SMALLEST = 2000  # entries of a tokenizer; a smaller one cuts its own languages into short pieces too


def doubts_about_texts(
    texts: Mapping[str, TextSpec], others: Sequence[Spec], root: Path, tokenizers: Tokenizers | None
) -> Iterator[str]:
    """Yields warnings with their evidence: words shared with the recipe's other corpora, pieces of a tokenizer.

    texts: key of the recipe -> training text of one language. others: the recipe's pairs, and its development and test
    sets. tokenizers: of tokenizer.path; those that are trained here learn from the very text.
    """
    known: list[tuple[str, str, Sequence[str]]] = []  # language, name, lines
    for spec in others if texts else ():
        for side, lines in _first_lines(spec, root).items():
            language = spec.language if isinstance(spec, TextSpec) else (spec.languages or {}).get(side)
            known += [(language, str(spec), lines)] if language else []
    for key, spec in texts.items():
        lines = [line for line in islice(read_text(spec, root), LINES) if line.split()]
        if len(lines) < FEWEST:
            continue
        found = sorted(
            ((word_overlap(lines, theirs), language, name) for language, name, theirs in known),
            key=lambda each: -each[0].share,
        )
        nothing = (Overlap(0.0, ()), "", "")
        own, _, there = next((each for each in found if each[1] == spec.language), nothing)
        other, its_language, its_name = next((each for each in found if each[1] != spec.language), nothing)
        signs = []
        if other.share > max(own.share, FOREIGN):
            signs.append(f"{other} stand in {its_name}, which is '{its_language}'")
        if there and (signs or own.share < FOREIGN):
            signs.append(f"{own} in {there}, which is '{spec.language}'")
        tokenizer = getattr(tokenizers, spec.side or "source", None)
        learnt = tokenizer is not None and len(tokenizer) >= SMALLEST
        if learnt and (size := bytes_per_piece(tokenizer, lines)) < SHORT_PIECES:
            signs.append(f"the tokenizer cuts them into pieces of {size:.1f} bytes")
        if signs:
            yield f"{key}: is it in '{spec.language}'? Of its first {len(lines)} lines {' and '.join(signs)}."


def _first_lines(spec: Spec, root: Path) -> dict[Any, Sequence[str]]:
    """Returns side -> the first lines of a corpus."""
    if isinstance(spec, TextSpec):
        return {spec.side: list(islice(read_text(spec, root), LINES))}
    return dict(zip(("source", "target"), zip(*islice(read_pairs(spec, root), LINES))))


def check_lengths(training: Preparation, config: Any) -> None:
    """Refuses a development set, or text to be scored, with a sentence that the model cannot read whole."""
    if (limit := positions_of(config)) is None:
        return
    sets = {
        "data.dev" if each.name == MAIN_DEV else f"tasks.{each.name}.dev": each.dataset for each in training.dev_sets
    }
    texts = [name for name, spec in training.corpora.test.items() if isinstance(spec, TextSpec)]
    sets |= {f"data.test.{name}": training.encoded_test(name) for name in texts}  # a pipeline splits those of pairs
    for key, data in sets.items():
        for side, lengths in (("source", data.source_lengths), ("target", data.target_lengths)):
            if len(long := np.flatnonzero(np.asarray(lengths) > limit)):
                raise UserError(
                    f"{training.recipe.path}: {key}: sentence {long[0] + 1} has on the {side} side "
                    f"{lengths[long[0]]} subwords, and the model reads {limit}: split or leave out its pair, or raise "
                    "model.settings.max_position_embeddings."
                )
