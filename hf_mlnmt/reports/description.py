"""Describes a model: system, parameters by part, config, tokenizer, scores; as JSON or tables.

The model is given by a model folder, a Hub name, a record's name, or a config file as in modeling/. Parameters are
counted on a model without allocated weights; the names and shapes of saved weights are checked against that model.
"""

import importlib
import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hf_mlnmt.common.errors import UserError, suggest
from hf_mlnmt.common.model_folder import (
    CONFIG,
    GENERATION_CONFIG,
    LANGUAGE_TOKENIZERS,
    RESULTS,
    TARGET_TOKENIZER,
    TEXT_PROCESSING,
    auto_class_of_config,
    fetch_small_files,
    load_model,
    needs_code,
    read_config,
    read_part,
)
from hf_mlnmt.common.table import Number, Table
from hf_mlnmt.evaluation.scores import with_arrow
from hf_mlnmt.reports.facts import citation_of, load_results
from hf_mlnmt.reports.parameters import model_of_config, of_a_pair, parameters_by_part
from hf_mlnmt.reports.tables import MISSING, Score, score_tables, scores_of, show, title
from hf_mlnmt.zoo.records import records_root, results_of, trained
from hf_mlnmt.zoo.systems import find_system, system_of

FEW = 4  # largest number of test sets, or training corpora, that are shown in full
_HIDDEN = {"transformers_version", "auto_map", "architectures", "model_type", "dtype", "torch_dtype", "tokenizers"}
_ACCENTS = {"'": "\u0301", '"': "\u0308", "`": "\u0300", "^": "\u0302", "~": "\u0303"}


def describe(target: str | Path, revision: str | None = None) -> dict[str, Any]:
    """Returns the description as JSON: name, architecture, system, parameters, config, tokenizers, results and so on.

    target: a model folder, a Hub name (at `revision`), a record's name <setup>/<system>, or a config file. Raises:
    UserError for anything else.
    """
    path, results = Path(target), []
    if not path.exists():
        if str(target) in trained():
            path = records_root() / "modeling" / f"{target}.json"
            results = [load_results(file) for file in results_of(path.parent.name, path.stem)]
        elif near := suggest(str(target), trained()):
            raise UserError(f"{target}: no such folder or record{near}.")
    if path.is_file() and path.suffix == ".json":
        return {"name": str(target), **_architecture(read_config(path)), **_training(results)}
    folder = fetch_small_files(target, revision=revision)
    if not (folder / CONFIG).is_file():
        inside = next((f", as {path}" for path in sorted(folder.glob("*/")) if (path / CONFIG).is_file()), "")
        raise UserError(f"{target}: no config.json there. Give a model folder{inside}, a Hub name, or a record.")
    results = [load_results(folder / RESULTS)] if (folder / RESULTS).is_file() else []
    config = read_config(folder)
    return {
        "name": str(target),
        **_architecture(config),
        **_problem(folder, config),
        "tokenizers": _tokenizers(folder),
        "processing": read_part(folder, TEXT_PROCESSING),
        "generation": _without(read_part(folder, GENERATION_CONFIG)),
        **_training(results),
    }


def _architecture(config: Any) -> dict[str, Any]:
    model = model_of_config(config)
    return {
        "architecture": type(model).__name__,
        "model_type": config.model_type,
        "needs_package_or_remote_code": needs_code(type(model)),
        **_system(config, type(model)),
        "parameters": parameters_by_part(model),
        "parameters_of_a_pair": of_a_pair(model),
        "config": _without(config.to_diff_dict()),
    }


def _system(config: Any, model_class: type) -> dict[str, Any]:
    """Returns {"system": name, title, papers, equations, code} of the zoo's system that a config is; {} if none."""
    if (system := system_of(config)) is None:
        return {}
    modules = dict.fromkeys(find_system(name).architecture.module for name in system.name.split("+"))
    lines = [line for module in modules for line in re.findall(r"^\(\w+(?:\.\d+)?\) .*", _docstring(module), re.M)]
    numbered = [equation for line in lines for equation in re.split(r"\s{2,}(?=\()", line)]
    return {
        "system": {
            "name": system.name,
            "title": system.title,
            "what it is": system.clause,
            "paper": [line.replace("*", "") for line in papers_of(model_class)],
            "equations": [*filter(None, [equation_of(system.name)]), *numbered],
            "code": [f"hf_mlnmt/modeling/{module}.py" for module in modules],
        }
    }


def papers_of(model_class: Any) -> list[str]:
    """Returns the references of a model class, a readable line for each paper."""
    lines = []
    for entry in (citation_of(model_class) or "").split("\n\n"):
        text = re.sub(r"\{\\(\W)(\w)\}", lambda found: found[2] + _ACCENTS[found[1]], " ".join(entry.split()))
        field = dict(re.findall(r"(\w+) = \{([^{}]*)\}", unicodedata.normalize("NFC", text)))
        *others, last = (name.partition(",")[0] for name in field["author"].split(" and "))
        authors = f"{', '.join(others)} and {last}" if others else last
        where = [field[key] for key in ("booktitle", "school", "note") if key in field]
        if "journal" in field:
            where.append(" ".join(field[key] for key in ("journal", "volume", "number") if key in field))
        lines.append(f"{authors} {field.get('year', '')}".rstrip() + f": *{field['title']}*. {', '.join(where)}.")
    return lines


def equation_of(system: str) -> str:
    """Returns a system's equation from the table in its module's docstring; "" where there is no such table."""
    if "+" in system:
        return ", over ".join(map(equation_of, system.split("+")))
    _, _, table = _docstring(find_system(system).architecture.module).partition("| value | class | equation |\n")
    rows = [line[2:-2].split(" | ", 2) for line in table.partition("\n\n")[0].splitlines()[1:]]
    said = {value.lower(): equation for value, _, equation in rows}
    if system.startswith("ms-"):
        plain, fused = said.values()
        return f"{plain}, {fused}" if system.endswith("-aif") else plain
    return said.get(system, "")


def _docstring(module: str) -> str:
    return importlib.import_module(f"hf_mlnmt.modeling.{module}").__doc__ or ""


def _problem(folder: Path, config: Any) -> dict[str, str]:
    """Returns {"problem": message} if a folder has weights that do not fit its config, else {}."""
    import transformers

    head = getattr(transformers, auto_class_of_config(config.to_dict()))
    try:
        if any(folder.glob("*.safetensors")):
            load_model(folder, head, device_map="meta")  # "meta": reads weights' names and shapes only
    except UserError as error:
        return {"problem": str(error)}
    return {}


def _training(results: Any) -> dict[str, Any]:
    """Returns {"results": the keys of each results file that are shown, if recorded}."""
    keys = ("system", "data", "seed", "budget", "command", "parameters", "steps_per_second", "decoding", "scores")
    return {"results": [{key: result[key] for key in (*keys, "perplexity") if result.get(key)} for result in results]}


def _tokenizers(folder: Path) -> dict[str, Any]:
    from hf_mlnmt.data.tokenizer import languages_of, load_tokenizers

    try:
        tokenizers = load_tokenizers(folder)
    except UserError:
        return {}  # a folder without a tokenizer is described too
    sides = {"joint": tokenizers.source}
    if not tokenizers.joint:
        sides = {"source": tokenizers.source, "target": tokenizers.target}
    folders = {"target": TARGET_TOKENIZER, **{code: f"{LANGUAGE_TOKENIZERS}/{code}" for code in tokenizers.each}}
    return {
        side: {
            "class": type(tokenizer).__name__,
            "kind": _kind(folder / folders.get(side, "")),
            "entries": len(tokenizer),
            "special_tokens": {
                str(token): tokenizer.convert_tokens_to_ids(str(token)) for token in tokenizer.all_special_tokens
            },
            "languages": languages_of(tokenizer),
            "longest_input": tokenizer.model_max_length,
        }
        for side, tokenizer in (tokenizers.each or sides).items()
    }


def _kind(folder: Path) -> str | None:
    """Returns a tokenizer's kind from its tokenizer.json, as "BPE with byte fallback"; None without such a file."""
    model = read_part(folder, "tokenizer.json").get("model", {})
    if not model:
        return None
    return f"{model.get('type', 'unknown kind')}{' with byte fallback' if model.get('byte_fallback') else ''}"


def _without(content: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in content.items() if key not in _HIDDEN and not key.startswith("_")}


def describe_machine() -> dict[str, Any]:
    """Returns processor, torch, threads, the measured speed of each kind of matrix product by PyTorch and by oneDNN
    and in bfloat16 ("gigaflops"), and the kinds that oneDNN computes here ("onednn"; matmul_backends.py)."""
    from hf_mlnmt.common.matmul_backends import measured, record

    return {**measured(), **record()}


def render_machine(machine: Mapping[str, Any]) -> list[Table]:
    """Returns the result of `describe_machine` as tables."""
    speeds = dict(machine["gigaflops"])
    facts = {name: machine[name] for name in ("processor", "torch", "threads")}
    if of_types := speeds.pop("bfloat16", None):
        facts["bfloat16"] = "{1:,.0f} GFLOP/s in a training, in float32 {0:,.0f}".format(*of_types)
    rows = [
        [kind, f"{own:,.0f}", f"{onednn:,.0f}", "oneDNN" if kind in machine["onednn"] else "PyTorch"]
        for kind, (own, onednn) in speeds.items()
    ]
    columns = ["product", Number("PyTorch's own"), Number("oneDNN"), "computed by"]
    return [_pairs("machine", facts), Table(columns, rows, "products of linear layers, GFLOP/s")]


def render(description: Mapping[str, Any]) -> list[Table]:
    """Returns the tables of a description. For more than FEW training corpora shows only their number; for more test
    sets, or several results, a short table of scores by protocol."""
    needs = "needs the package or remote code" if description["needs_package_or_remote_code"] else "in Transformers"
    kind = f"{description['architecture']} ({description['model_type']}), {needs}"
    problem = {key: description[key] for key in ("problem",) if key in description}
    tokenizers = {f"tokenizer ({side})": facts for side, facts in description.get("tokenizers", {}).items()}
    if "tokenizers" in description:
        tokenizers = tokenizers or {"tokenizer": {"": "none in this folder"}}
    other = {name: description[name] for name in ("processing", "generation") if description.get(name)}
    return [
        _pairs(description["name"], {**_about(description.get("system")), "architecture": kind, **problem}),
        _parameters(description),
        _pairs("config", description["config"]),
        *(_pairs(name, facts) for name, facts in (tokenizers | other).items()),
        *_results(description["results"]),
    ]


def _about(system: Mapping[str, Any] | None) -> dict[str, str]:
    """Returns {fact: text} of a system for a table, with each entry of a list on a line of its own."""
    if system is None:
        return {}
    lines = {key: "\n".join(system[key]) for key in ("paper", "equations", "code")}
    return {"system": f"{system['name']} ({system['title']})", "what it is": system["what it is"], **lines}


def _results(results: list[Mapping[str, Any]]) -> Iterator[Table]:
    if not results:
        yield _pairs("results", {"": MISSING})
        return
    trainings = [{key: value for key, value in result.items() if key != "scores"} for result in results]
    for facts in trainings:
        data = facts.get("data")
        if isinstance(data, Mapping) and len(corpora := data.get("train") or ()) > FEW:
            facts["data"] = {**data, "train": f"{len(corpora)} corpora"}
    keys = dict.fromkeys(key for facts in trainings for key in facts)
    said = {key: dict.fromkeys(show(facts.get(key)) for facts in trainings) for key in keys}
    yield _pairs(
        "training" + "s, a line each where they differ" * (len(results) > 1), {k: "\n".join(v) for k, v in said.items()}
    )
    if len(results) > 1 or len(results[0].get("scores", {})) > FEW:
        yield from _short_scores(list(scores_of(results)))
        return
    for table in score_tables(results):
        rows = [[cell.strip("`") for cell in row] for row in table.rows]
        yield Table(table.columns, rows, f"scores, {table.title}")


def _short_scores(scores: Sequence[Score]) -> Iterator[Table]:
    """Yields a table for each protocol, with a row for each test set and seed, and a column for each metric."""
    for protocol in dict.fromkeys(score.protocol for score in scores):
        own = [score for score in scores if score.protocol == protocol]
        metrics = list(dict.fromkeys(score.metric for score in own))
        rows: dict[tuple[str, Any], dict[str, str]] = {}
        for score in own:
            rows.setdefault((score.test_set, score.seed), {})[score.metric] = f"{score.score:.2f}"
        cells = [[test, show(seed), *(row.get(metric, "") for metric in metrics)] for (test, seed), row in rows.items()]
        columns = ["test set", "seed", *(Number(with_arrow(metric)) for metric in metrics)]
        yield Table(columns, cells, f"scores, {title(protocol, own)}", "with signatures: --json")


def _parameters(description: Mapping[str, Any]) -> Table:
    parts, of_a_pair = description["parameters"], description["parameters_of_a_pair"]
    shown = [(part, number) for part, number in parts.items() if number or part == "total"]
    rows = [[part, f"{number:,}", f"{number / max(parts['total'], 1):.1%}"] for part, number in shown]
    total = [index for index, (part, _) in enumerate(shown) if part == "total"]
    if of_a_pair != parts["total"]:
        rows.append(["used by one pair of languages", f"{of_a_pair:,}", f"{of_a_pair / parts['total']:.1%}"])
    columns = ["part", Number("number"), Number("share")]
    return Table(columns, rows, "parameters", bold=total)


def _pairs(heading: str, facts: Mapping[str, Any]) -> Table:
    shown = {name: value if isinstance(value, str) else show(value, "none") for name, value in facts.items()}
    return Table(["", ""], [[str(name), text] for name, text in shown.items()], heading)
