"""The checks before a training, in the order of `check_before`, then what is known only when the data are encoded.

Once the data are encoded: `check_budget` (recipe/checks.py), `check_lengths`. folder.py checks the folder of a run.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations, islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from huggingface_hub.errors import StrictDataclassError

from hf_mlnmt.common.errors import UserError, naming, suggest
from hf_mlnmt.common.memory import memory_of_machine
from hf_mlnmt.data.corpus import CorpusSpec, TextSpec, is_of_units, read_pairs, read_text
from hf_mlnmt.data.filters import Overlap
from hf_mlnmt.data.lines import count_text
from hf_mlnmt.data.processing import TextProcessing
from hf_mlnmt.data.subwords import SPECIAL_TOKENS
from hf_mlnmt.data.tables import check_together
from hf_mlnmt.data.tokenizer import Tokenizers, languages_of
from hf_mlnmt.data.words import spoken
from hf_mlnmt.recipe.checks import check_recipe
from hf_mlnmt.recipe.schema import Recipe
from hf_mlnmt.training import dev, folder
from hf_mlnmt.training.arguments import training_arguments
from hf_mlnmt.training.init_from import check_sources, embeddings_of, initialise, read_sources
from hf_mlnmt.training.model_making import speaks_many
from hf_mlnmt.training.preparation import Preparation, Spec, key_of_dev
from hf_mlnmt.training.tasks import check_needs
from hf_mlnmt.zoo.systems import positions_of

LINES = 200  # number of lines of each side on which Moses's tokenization is tried


def check_before(preparation: Preparation, processes: int = 1) -> Iterator[str]:
    """Checks all that can be known before a training begins; yields warnings. What takes long comes last."""
    checks: tuple[Callable[[Preparation], Iterable[str] | None], ...]
    checks = (keys, arguments, metrics, partial(model, processes=processes), weights, languages, corpora)
    for check in (*checks, processing, overlaps):
        yield from check(preparation) or ()


def keys(training: Preparation) -> Iterator[str]:
    """Checks the recipe's keys again, since Python may have changed them; warns of temperatures without effect."""
    recipe, tasks = training.recipe, training.corpora.tasks
    check_recipe(recipe)
    if recipe.data.temperature is not None and all(len(task.specs) == 1 for task in tasks):
        yield "data.temperature has no effect: it is for several corpora of a task. Of tasks: batch.temperature."
    if recipe.batch.temperature is not None and len(tasks) == 1:
        yield "batch.temperature has no effect: it is for several tasks. Of several corpora: data.temperature."


def arguments(training: Preparation) -> None:
    """Checks that the arguments of Transformers' trainer can be made of the recipe."""
    training_arguments(training.recipe, training.output)


def metrics(training: Preparation) -> None:
    """Checks that the metrics of the development sets can be loaded."""
    for name in training.recipe.evaluation.metrics:
        with naming(f"{training.recipe.path}: evaluation.metrics"):
            dev.metric(name)


def model(training: Preparation, processes: int = 1) -> None:
    """Checks that the model can be made, and that its training by `processes` processes fits in the memory."""
    if training.trains_tokenizer:  # the check needs only the size of the tokenizer
        joint, training = training.recipe.tokenizer.joint, copy.copy(training)
        of_each = not joint and speaks_many(training.recipe, training.root)
        codes = dict.fromkeys(language for _, _, language in training.corpora.sides()) if of_each else ()
        training.tokenizers = expected_tokenizers(training.recipe, list(codes))
    made = checked_model(training)
    frozen = {id(table): table.numel() for table in embeddings_of(made)} if training.recipe.freeze else {}
    check_memory(training.recipe, made.num_parameters(), processes, sum(frozen.values()))


def weights(training: Preparation) -> None:
    """Checks that the models of init_from exist and, if the tokenizer is known, fit; nothing if the run has begun."""
    recipe = training.recipe
    if recipe.init_from is None or folder.has_begun(training.output):
        return
    sources = read_sources(recipe.init_from)
    check_sources(sources, training.root, str(recipe.path))
    if not training.trains_tokenizer:
        initialise(training.model(), sources, training.root, training.tokenizers, str(recipe.path))


def languages(training: Preparation) -> Iterator[str]:
    """Warns if no code says which of several target languages is wanted. UserError for a target language without a
    code in a tokenizer that has codes."""
    recipe = training.recipe
    codes = recipe.tokenizer.languages if training.trains_tokenizer else languages_of(training.tokenizers.source)
    train = [spec for task in training.corpora.tasks for spec in task.specs]
    for spec in (*train, *training.corpora.scored.values()):
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


def corpora(training: Preparation) -> Iterator[str]:
    """Reads the scored sets and the beginning of training text; warns of corpora that are equal on both sides."""
    scored = training.corpora.scored
    for key, spec in {**training.corpora.train, **scored}.items():
        items = _look_at(key, spec, training.root, key in scored, training.check)
        if isinstance(spec, CorpusSpec) and spec.is_two_files and all(source == target for source, target in items):
            yield f"{key}: source and target are the same text. Check the file names."


# largest shares of lines with a cut word, and with any change; Moses changes a few lines with / or %
CUT, CHANGED = 0.01, 0.2


def processing(training: Preparation) -> None:
    """Raises UserError if joining Moses's tokens changes too many lines: its rules cut words of some scripts in two."""
    made = training.processing() if training.trains_tokenizer else training.tokenizers.processing
    moses: dict[str | None, TextProcessing] = {side: each for side, each in made.items() if each.moses}
    for key, spec in training.corpora.train.items() if moses else ():
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


def overlaps(training: Preparation) -> Iterator[str]:
    """Yields messages about sentences that two scored sets share; none if the run has begun."""
    if folder.has_begun(training.output):
        return
    for key, other in combinations(sets := training.corpora.scored_pairs(), 2):
        if training.corpora.scored[key] != training.corpora.scored[other]:
            overlap = Overlap({other: sets[other]})
            list(overlap.watched(sets[key]))
            yield from (f"{key} {message}" for message in overlap.messages())


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
    """Returns tokenizers of the expected sizes, untrained. languages: those with a tokenizer of their own."""
    made: list[Any] = [ExpectedTokenizer(recipe.tokenizer.vocab_size) for _ in (*languages, "source", "target")]
    *each, source, target = made
    if languages or recipe.tokenizer.joint:
        target = source
    return ExpectedTokenizers(source, target, each=dict(zip(languages, each)))


def checked_model(preparation: Preparation) -> Any:
    """Returns the model with shapes but without numbers. UserError if the model or an objective cannot be made."""
    recipe = preparation.recipe
    try:
        config = preparation.config()
        with torch.device("meta"):  # makes shapes without numbers
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
    return made


def _in_words(text: str) -> str:
    """Rewrites an error of a config as one of the recipe's keys.

    The text is "Class validation error for validator 'validate_fields':\\n ValueError: dropout=1.5: must be ..." or
    "Validation error for field 'd_model':\\n TypeError: Field 'd_model' expected int, got str (value: 'x')".
    """
    reason = re.sub(r"^\w+: ", "", text.strip().splitlines()[-1].strip())
    if field := re.search(r"Field '(\w+)' (expected [^;]*)", reason):
        hint = " Write it with a point, as in 1.0." if "expected float, got int" in reason else ""
        return f"model.settings.{field[1]}: {field[2]}.{hint}"
    named = re.match(r"(\w+)\s*=(.*)", reason)
    return f"model.settings.{named[1]}={named[2]}." if named else f"model: {reason}."


SMALLER = "Lower model.shape, the sizes under model.settings or tokenizer.vocab_size."


def check_memory(recipe: Recipe, parameters: int, processes: int, frozen: int = 0) -> None:
    """Raises UserError if weights, gradients and optimizer's state alone need more than this machine's memory.

    frozen: how many of the parameters have neither gradients nor a state of the optimizer.
    """
    # with an adapter 4: its own weights are few, all others have no gradients
    bytes_of_weight = 4 if recipe.adapter else BYTES_OF_WEIGHT[recipe.optimizer.name]
    on_cpu = recipe.arguments.get("use_cpu") is True or not torch.accelerator.is_available()
    of_all = (parameters - frozen) * bytes_of_weight + frozen * 4
    needed = of_all * (processes if on_cpu else 1) / GIB
    if needed > (there := memory_of_machine(on_cpu) / GIB):
        each = f", each in {processes} processes" if on_cpu and processes > 1 else ""
        raise UserError(
            f"{recipe.path}: {parameters:,} parameters with their gradients and the optimizer's state take "
            f"{needed:,.1f} GiB of memory{each}, and this machine has {there:,.1f}. "
            + ("Train an adapter, or cut the vocabulary first: hf-mlnmt model trim." if recipe.init_from else SMALLER)
        )


# The corpora

READ = 1 << 26  # a training text is read up to this many bytes (with `check`, whole)
FIRST_PAIRS = 100  # items of a training corpus that are read, to see that columns and fields are right


def _look_at(key: str, spec: Spec, root: Path, scored: bool, check: bool) -> list[Any]:
    """Returns the items of a scored set, or the first of a training corpus; reads READ bytes of it (`check`: all).

    Raises: UserError for what is missing, broken or empty, for sides of different lengths, and for a scored set in
        which one side is blank throughout.
    """
    with naming(key):
        if (gone := next((path for path in spec.local_files(root) if not path.exists()), None)) is not None:
            where = f"Corpora are looked for in --data, now {root}; where the setups' come from: docs/install.md."
            raise UserError(f"{gone}: no such file. {where}")
        pairs = isinstance(spec, CorpusSpec)
        items: Any = read_pairs(spec, root) if isinstance(spec, CorpusSpec) else read_text(spec, root)
        items = list(islice(items, None if scored and pairs else FIRST_PAIRS))
        units = spec.path is not None and is_of_units(root / spec.path)
        paths = [path for path in spec.local_files(root) if path.suffix != ".parquet" and not units]
        files = [count_text(path, None if scored or check else READ) for path in paths]
        if isinstance(spec, CorpusSpec) and spec.is_two_files and all(file.whole for file in files):
            check_together(paths, [file.lines for file in files])
    if not pairs and not any(sentence.strip() for sentence in items):
        raise UserError(f"{key}: {spec}: there is no text at its beginning.")
    if not items:
        raise UserError(f"{key}: {spec}: no pairs: there is nothing, or a header alone, or blank and dropped lines.")
    for side, name in enumerate(("source", "target") if scored and pairs else ()):
        if not any(pair[side].strip() for pair in items):
            raise UserError(f"{key}: {spec}: every {name} sentence is blank, so that nothing can be scored.")
    return items


def _first_lines(spec: Spec, root: Path) -> dict[Any, Sequence[str]]:
    """Returns side -> the first LINES items of a corpus."""
    if isinstance(spec, TextSpec):
        return {spec.side: list(islice(read_text(spec, root), LINES))}
    return dict(zip(("source", "target"), zip(*islice(read_pairs(spec, root), LINES))))


def check_lengths(training: Preparation, config: Any) -> None:
    """Raises UserError for a sentence, of a development set or of text to be scored, longer than the model can read."""
    if (limit := positions_of(config)) is None:
        return
    sets = {key_of_dev(each.name): each.dataset for each in training.dev_sets}
    texts = [name for name, spec in training.corpora.test.items() if isinstance(spec, TextSpec)]
    # in test sets of pairs the pipeline splits long sentences
    sets |= {f"data.test.{name}": training.encoded_test(name) for name in texts}
    for key, data in sets.items():
        for side, lengths in (("source", data.source_lengths), ("target", data.target_lengths)):
            if len(long := np.flatnonzero(np.asarray(lengths) > limit)):
                raise UserError(
                    f"{training.recipe.path}: {key}: sentence {long[0] + 1} has on the {side} side "
                    f"{lengths[long[0]]} subwords, and the model reads {limit}: split or leave out its pair, or raise "
                    "model.settings.max_position_embeddings."
                )
