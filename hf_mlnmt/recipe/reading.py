"""Recipes read from YAML: names, `extends`, `--set`, `reverse`, types, `directions`, values.

`extends: multi30k-ende` names a setup, or a recipe beside this one, which then has only the keys that differ. Where a
few keys differ from a setup's base.yaml, that lists them under `variants`, name -> keys: a recipe without a file.
Sections are merged with the other recipe's key by key; all other values, lists and corpora too, replace the other's.
`null` removes a value that may be missing: `budget: {steps: null, epochs: 3}`. A model with fuse, add_to or record
replaces the other recipe's as a whole; `model: null` removes that, `settings: null` its settings.
"""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path
from typing import Any

import yaml

from hf_mlnmt.common.errors import UserError, suggest
from hf_mlnmt.common.keys import Lines, YAMLLoader, build
from hf_mlnmt.recipe.checks import check_recipe
from hf_mlnmt.recipe.schema import Directions, Languages, Recipe, TaskSection, fill_in, reads_text, truth
from hf_mlnmt.zoo.records import BASE, records_root, setups
from hf_mlnmt.zoo.systems import find_system, list_systems

EXTENDS, VARIANTS, REVERSE = "extends", "variants", "reverse"
PLACE = "<language>"
# Keys at the top of other toolkits' configurations; a recipe has at most one of each.
TOOLKITS = {
    "JoeyNMT": {"training", "testing", "name"},
    "fairseq": {"task", "optimization", "distributed_training", "common", "criterion", "dataset"},
    "Sockeye": {"prepared_data", "source", "validation_source", "batch_type", "num_layers", "transformer_model_size"},
    "OpenNMT or Eole": {"src_vocab", "save_model", "save_data", "train_steps", "world_size", "model_type"},
    "Marian": {"train-sets", "valid-sets", "mini-batch-fit", "vocabs", "dim-vocabs", "after-epochs"},
}
_SIDES = {"source": "target", "target": "source"}


def read_recipe(path: str | Path, settings: list[str] | tuple[str, ...] = (), seed: int | None = None) -> Recipe:
    """Reads and checks a recipe, a YAML file; `settings` ("key.sub=value", read as YAML) and `seed` replace its keys.

    Raises: UserError naming file, line and key, what was expected, and the nearest right key.
    """
    content, lines = read_content(path, settings, seed)
    turn_round(content)
    return recipe_of(content, Path(path), lines)


def read_content(
    path: str | Path, settings: list[str] | tuple[str, ...] = (), seed: int | None = None
) -> tuple[dict[str, Any], Lines]:
    """Returns the content of a recipe's YAML, with `settings` and `seed` set in it, and the line of each key."""
    content, lines = load(Path(path))
    for setting in settings:
        set_key(content, setting)
    if seed is not None:
        content["seed"] = seed
    return content, lines


def recipe_of(content: dict[str, Any], path: Path, lines: Lines | None = None) -> Recipe:
    """Builds and checks a recipe from the content of its YAML. path: its file, for messages and to find its records."""
    recipe = build(Recipe, content, str(_file_of(path)), lines=lines)
    recipe.path = path
    expand(recipe)
    fill_in(recipe, told=content)
    check_recipe(recipe)
    return recipe


def set_key(content: dict[str, Any], setting: str) -> None:
    """Sets the key of a "key.sub=value" of --set in a recipe's content. Raises: UserError naming the setting."""
    name, equals, text = setting.partition("=")
    if not equals or not name.strip():
        raise UserError(f"--set {setting}: expected key=value or key.sub=value, as in --set batch.tokens=2048.")
    *outer, last = name.strip().split(".")
    for key in outer:
        inner = content.setdefault(key, {})
        if not isinstance(inner, dict):
            raise UserError(f"--set {setting}: '{key}' is a value, not a section with keys of its own.")
        content = inner
    try:
        content[last] = parse_yaml(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise UserError(f"--set {setting}: the value is not valid YAML ({error}).") from error


# Names


def project_recipe(name: str | Path) -> Path | None:
    """Returns the path of this project's recipe <setup> or <setup>/<recipe>, with or without .yaml, else None."""
    path = records_root() / "training" / name
    places = (path / BASE, path, path.parent / f"{path.name}.yaml")
    return next(filter(is_recipe, places), None)


def find_recipe(name: str | Path, system: str | None = None) -> tuple[Path, list[str]]:
    """Returns the recipe of `hf-mlnmt train <name> --system <system>`, and the settings that it is read with.

    name: a recipe's file, a folder with a base.yaml, or one of this project's setups. system: the setup's own recipe or
    variant of that name where there is one, else a system of the zoo. Raises: UserError for unknown names.
    """
    path = next((place for place in (Path(name), Path(name) / BASE) if is_recipe(place)), None) or project_recipe(name)
    if path is None:
        known = setups()
        raise UserError(
            f"{name}: no such file, and no setup of that name{suggest(str(name), known)}. Setups: {', '.join(known)}."
        )
    if system is None:
        return path, []
    if path.name == BASE and system != path.stem and is_recipe(own := path.with_name(f"{system}.yaml")):
        return own, []
    try:
        find_system(system)
    except UserError as error:
        beside = recipes_beside(path) if path.name == BASE else []
        there = f" recipes of the setup: {', '.join(beside)};" if beside else ""
        raise UserError(
            f"{name}: system '{system}' is unknown{suggest(system, [*beside, *list_systems()])};{there} systems of the "
            f"zoo: {', '.join(list_systems())}, ms-<layers>"
        ) from error
    return path, [f"model.system={system}"]


def is_recipe(path: Path) -> bool:
    """Returns whether there is a recipe at a path: a file, or a variant of the base.yaml beside it."""
    return path.is_file() or (path.suffix == ".yaml" and path.stem in _variants(path)[0])


def recipes_beside(base: Path) -> list[str]:
    """Returns the names of a setup's recipes and variants beside its base."""
    files = [path.stem for path in base.parent.glob("*.yaml") if path.name != BASE]
    return sorted([*files, *_variants(base)[0]])


def _variants(path: Path) -> tuple[dict[str, dict[str, Any]], Lines]:
    """Returns the variants that the base.yaml beside a path lists, name -> keys, and the lines of that file."""
    base = path.with_name(BASE)
    if not base.is_file():
        return {}, {}
    content, lines = load_yaml(base)
    variants = content.get(VARIANTS, {})
    if not isinstance(variants, dict) or not all(isinstance(keys, dict) and keys for keys in variants.values()):
        raise UserError(f"{base}, line {lines[(VARIANTS,)]}: {VARIANTS}: expected names with the keys that differ.")
    return variants, lines


def _file_of(path: Path) -> Path:
    """Returns the file that holds a recipe: of a variant, the base.yaml beside its path."""
    return path if path.is_file() or not is_recipe(path) else path.with_name(BASE)


def _load_alone(path: Path) -> tuple[dict[str, Any], Lines]:
    """Returns the content of a recipe's file, or of its entry among the variants, and the line of each key."""
    if not path.is_file():
        variants, lines = _variants(path)
        if path.stem in variants:
            entry = (VARIANTS, path.stem)
            own = {at[2:]: line for at, line in lines.items() if at[:2] == entry}
            return {EXTENDS: BASE, **variants[path.stem]}, {(EXTENDS,): lines[entry], **own}
    content, lines = load_yaml(path)
    if path.name == BASE:
        content.pop(VARIANTS, None)
    return content, lines


# YAML


class _Loader(YAMLLoader):
    """A YAML loader whose booleans are true and false alone: no is Norwegian, and on and yes may be names."""


_BOOL = "tag:yaml.org,2002:bool"
_Loader.yaml_implicit_resolvers = {
    letter: [(tag, words) for tag, words in rules if tag != _BOOL]
    for letter, rules in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(_BOOL, re.compile("(?:[Tt]rue|TRUE|[Ff]alse|FALSE)$"), list("tTfF"))


def parse_yaml(text: str) -> Any:
    """Parses YAML as recipes are read (see _Loader). Raises: yaml.YAMLError, ValueError, RecursionError."""
    content = yaml.load(text, Loader=_Loader)
    json.dumps(content, default=str, skipkeys=True)  # raises ValueError for an alias that contains itself
    return content


def load_yaml(path: Path) -> tuple[dict[str, Any], Lines]:
    """Returns the content of a YAML file and the line of each key. UserError for an invalid file, a key given twice."""
    try:
        text = path.read_text(encoding="utf-8")
        tree = yaml.compose(text, Loader=YAMLLoader)
        content = parse_yaml(text)
    except (FileNotFoundError, IsADirectoryError) as error:
        what = "is a folder" if path.is_dir() else "no such file"
        raise UserError(
            f"{path}: {what}. A recipe is a YAML file; the project's are in the folder training/."
        ) from error
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not UTF-8 text (byte {error.start}).") from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark else ""
        raise UserError(f"{path}{line}: not valid YAML ({getattr(error, 'problem', error)}).") from error
    # ValueError: a date that does not exist; RecursionError: thousands of nested sections
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: not valid YAML ({error}). Mend the file.") from error
    if not isinstance(content, dict) or not isinstance(tree, yaml.MappingNode):
        what = "nothing" if content is None else "something else"
        raise UserError(f"{path}: expected keys and values, found {what}.")
    return content, _lines(tree, path)


def _lines(node: yaml.MappingNode, path: Path, outer: tuple[str, ...] = ()) -> Lines:
    lines: dict[tuple[str, ...], int] = {}
    for key, value in node.value:
        name, line = (*outer, str(key.value)), key.start_mark.line + 1
        if name in lines:
            raise UserError(f"{path}, line {line}: {'.'.join(name)} is given twice (first in line {lines[name]}).")
        lines[name] = line
        if isinstance(value, yaml.MappingNode):
            lines.update(_lines(value, path, name))
    return lines


# extends

# Keys replaced as a whole: two merged corpora would mix the files of the one with the data set of the other.
CORPORA = {("data", "train"), ("data", "dev"), ("data", "test"), ("objective",)}
OF_TASKS = ("data", "dev", "objective")  # keys of a task that are replaced as a whole
OTHER_MODELS = {"fuse", "add_to", "record"}  # a model with one of these keys is replaced as a whole
CLEARED = {("model",), ("model", "settings"), ("data", "placeholders")}  # keys that null removes


def load(path: Path, above: tuple[Path, ...] = ()) -> tuple[dict[str, Any], Lines]:
    """Returns a recipe's content merged over that of the recipe it extends, and the lines of the recipe's own keys.

    above: the recipes that extend this one. Raises: UserError for a circle, and for another toolkit's configuration.
    """
    content, lines = _load_alone(path)
    for toolkit, keys in TOOLKITS.items():
        if len(found := sorted(keys & content.keys())) > 1:
            known = "docs/coming-from.md says which keys say the same; `hf-mlnmt import` reads its trained models."
            raise UserError(f"{path}: is a configuration of {toolkit} ({', '.join(found)}), and no recipe. {known}")
    if EXTENDS not in content:
        return content, lines
    file = _file_of(path)
    named, where = content.pop(EXTENDS), f"{file}, line {lines[(EXTENDS,)]}: {EXTENDS}"
    base = _extended(named, path, where)
    chain = (*above, path.resolve())
    if base.resolve() in chain:
        raise UserError(f"{where}: {named} extends this recipe in turn. Let one of them hold all keys.")
    below, base_lines = load(base, chain)
    # checks the extended recipe by itself, so that errors name the lines of its file
    build(Recipe, below, str(_file_of(base)), lines=base_lines)
    return lay_over(below, content, str(file), lines=lines), lines


def _extended(named: Any, path: Path, where: str) -> Path:
    """Returns the path of the recipe `named` beside `path`, else of the project's. UserError for an unknown name."""
    if not isinstance(named, str):
        raise UserError(f"{where}: expected the name of a recipe beside this one, or of a setup; not {named!r}.")
    beside = path.parent / named
    if (place := beside if is_recipe(beside) else project_recipe(named)) is not None:
        return place
    known = [*(other.name for other in sorted(path.parent.glob("*.yaml")) if other != path), *setups()]
    raise UserError(
        f"{where}: there is no {beside}, and no setup of that name{suggest(named, known)}. "
        "Give the name of a recipe beside this one, or of a setup."
    )


def lay_over(
    below: dict[str, Any],
    content: dict[str, Any],
    file: str,
    of: tuple[str, ...] = (),
    at: tuple[str, ...] = (),
    lines: Lines | None = None,
) -> dict[str, Any]:
    """Returns `below` merged with `content`, whose values replace those of `below`, as one recipe extends another.

    file, of, lines: for messages: the file of `content`, the keys that lead to it, the line of each key. Raises:
        UserError for an empty section, which would change nothing.
    """
    merged = dict(below)
    for key, value in content.items():
        inner, here = merged.get(key), (*at, key)
        whole = here in CORPORA or (here[0] == "tasks" and len(here) == 3 and key in OF_TASKS)
        whole = whole or (here == ("model",) and value is not None and bool(OTHER_MODELS & value.keys()))
        if here in CLEARED and value is None:
            merged.pop(key, None)
        elif isinstance(inner, dict) and isinstance(value, dict) and not whole:
            if inner and not value:
                line = f", line {lines[here]}" if lines and here in lines else ""
                raise UserError(
                    f"{file}{line}: {'.'.join((*of, *here))}: {{}} changes nothing of what it is laid over. Name the "
                    "keys that are different, or leave it out."
                )
            merged[key] = lay_over(inner, value, file, of, here, lines)
        else:
            merged[key] = value
    return merged


# reverse


def turn_round(content: dict[str, Any]) -> None:
    """Carries out the key `reverse` of a recipe's content in place: the content then describes the other direction.

    Languages and text processing change sides, every corpus of pairs is read the other way round, and text that names
    a side gets the other one. Values of wrong types are left for `build` to refuse. UserError beside `directions`.
    """
    if truth(content.get(REVERSE)) is not True:
        return
    if content.get("directions") is not None:
        raise UserError(
            "reverse: turns the one direction of a recipe round, and directions names several: leave it out."
        )
    content[REVERSE] = False
    _exchange(content.get("languages"))
    _exchange((content.get("tokenizer") or {}).get("processing"))
    data = content.get("data") or {}
    for corpora in (data.get("train"), data.get("dev"), *(data.get("test") or {}).values()):
        _turn_corpora(corpora, content.get("objective"))
    for task in (content.get("tasks") or {}).values():
        if isinstance(task, dict):
            _exchange(task.get("languages"))
            for name in ("data", "dev"):
                _turn_corpora(task.get(name), task.get("objective"))


def _turn_corpora(corpora: Any, objective: Any) -> None:
    for corpus in corpora if isinstance(corpora, list) else [corpora]:
        if not isinstance(corpus, dict):
            continue
        if reads_text(objective):
            if corpus.get("side") in _SIDES:
                corpus["side"] = _SIDES[corpus["side"]]
            continue
        corpus[REVERSE] = not truth(corpus.get(REVERSE, False))
        _exchange(corpus.get("languages"))


def _exchange(sides: Any) -> None:
    """Swaps the values that a mapping has for source and target."""
    if isinstance(sides, dict):
        turned = {_SIDES.get(side, side): value for side, value in sides.items()}
        sides.clear()
        sides.update({side: turned[side] for side in (*_SIDES, *turned) if side in turned})


# directions


def expand(recipe: Recipe) -> None:
    """Replaces `directions` of a recipe by the tasks and test sets that it stands for. UserError naming the field."""
    directions, where = recipe.directions, f"{recipe.path}: directions"
    if directions is None:
        return
    if recipe.tasks is not None or recipe.data.train is not None:
        raise UserError(f"{where}: takes the place of tasks and data.train: give one or the other.")
    if len(set(directions.between)) < max(2, len(directions.between)):
        raise UserError(f"{where}.between: give at least two languages, each once, not {directions.between}.")
    if bad := [code for code in directions.between if "-" in code or not code.isalnum()]:
        raise UserError(f"{where}.between: {bad[0]!r}: a code of letters and digits is expected, as in task names.")
    for key, pattern in {"train": directions.train, "dev": directions.dev, **directions.test}.items():
        if pattern is not None and PLACE not in pattern:
            raise UserError(f"{where}: {key}: {pattern!r} has no {PLACE}, which stands for the language.")
    trained = trained_pairs(directions, where)
    copied = list(dict.fromkeys(itertools.chain(*trained))) if directions.copies else []
    recipe.tasks = {}
    for source, target in [*trained, *((language, language) for language in copied)]:
        name = f"{source}-{target}"
        recipe.tasks[name] = TaskSection(
            _files(directions.train, source, target),
            share=directions.shares.get(name, 1.0),
            languages=Languages(source, target),
            dev=_files(directions.dev, source, target) if directions.dev and source != target else None,
        )
    if unknown := [name for name in directions.shares if name not in recipe.tasks]:
        raise UserError(f"{where}.shares: there is no task {unknown[0]}{suggest(unknown[0], recipe.tasks)}.")
    sources, targets = (dict.fromkeys(task.split("-")[side] for task in recipe.tasks) for side in (0, 1))
    for name, pattern in directions.test.items():
        for source, target in itertools.product(sources, targets):
            if source != target:
                languages = {"source": source, "target": target}
                corpus = {**_files(pattern, source, target), "languages": languages}
                recipe.data.test[f"{name}.{source}-{target}"] = corpus
    recipe.directions = None


def trained_pairs(directions: Directions, where: str) -> list[tuple[str, str]]:
    """Returns the (source, target) pairs of languages that are trained. UserError for unknown languages, or no pair."""
    every = list(itertools.permutations(directions.between, 2))
    kind = directions.pairs
    if isinstance(kind, list):
        pairs = [_pair(name, directions, f"{where}.pairs") for name in kind]
    elif kind == "all":
        pairs = every
    else:
        how, _, language = kind.partition("-")
        if how not in ("to", "from", "with") or language not in directions.between:
            raise UserError(
                f"{where}.pairs: {kind!r} is none of all, to-X, from-X and with-X, X one of "
                f"{', '.join(directions.between)}, and no list of pairs."
            )
        sides = {"to": (1,), "from": (0,), "with": (0, 1)}[how]
        pairs = [pair for pair in every if any(pair[side] == language for side in sides)]
    left = {frozenset(_pair(name, directions, f"{where}.leave_out")) for name in directions.leave_out}
    pairs = [pair for pair in pairs if frozenset(pair) not in left]
    if not pairs:
        raise UserError(f"{where}: no pair of languages is left to train.")
    return pairs


def _pair(name: str, directions: Directions, where: str) -> tuple[str, str]:
    source, _, target = name.partition("-")
    if source == target or not {source, target} <= set(directions.between):
        raise UserError(
            f"{where}: {name!r}: expected two of {', '.join(directions.between)}, as "
            f"{directions.between[0]}-{directions.between[1]}."
        )
    return source, target


def _files(pattern: str, *sides: str) -> dict[str, Any]:
    return {"files": {side: pattern.replace(PLACE, language) for side, language in zip(_SIDES, sides)}}
