"""After the training: the best and the average model as complete folders, their translations and their scores.

What is unchanged is not done again. On test sets of text: the perplexity of language models, of other models the loss
of their objective.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import transformers
from accelerate import Accelerator
from transformers import GenerationConfig

from hf_mlnmt.data.tokenizer import Tokenizers
from hf_mlnmt.errors import UserError
from hf_mlnmt.evaluation import Results, read_results, score_protocols, versions
from hf_mlnmt.evaluation.perplexity import perplexity
from hf_mlnmt.evaluation.scores import with_arrow
from hf_mlnmt.files import write_text
from hf_mlnmt.made_from import MadeFrom, digest
from hf_mlnmt.model_folder import RESULTS, WEIGHTS, auto_class_of, load_model
from hf_mlnmt.recipe.schema import Recipe
from hf_mlnmt.table import Number, Table
from hf_mlnmt.training import checkpoints
from hf_mlnmt.training.arguments import precision
from hf_mlnmt.training.dev import DevSet
from hf_mlnmt.training.folder import digest_of_model, made_from
from hf_mlnmt.training.objectives import Objective
from hf_mlnmt.training.tasks import lasting_parameters

if TYPE_CHECKING:
    from hf_mlnmt.training.preparation import RawPairs
    from hf_mlnmt.training.trainer import TranslationTrainer


def facts_of(
    recipe: Recipe, state: Mapping[str, Any], trainer: TranslationTrainer, train: list[dict[str, Any]], command: str
) -> dict[str, Any]:
    """The fields of `Results` that say how a model was trained, and further ones for the file.

    Args:
        state: of the last checkpoint, see checkpoints.read_state.
        train: what was read of each training corpus, see Preparation.reports.
    """
    meter, steps, content = state["meter"], state["global_step"], recipe.to_dict()
    seconds = max(meter["seconds"], 1e-9)
    return {
        "data": {"name": recipe.data.name, "licence": recipe.data.licence, "train": train},
        "seed": recipe.seed,
        "budget": {
            "steps": steps,
            "epochs": round(state["epoch"], 3),
            "seconds": round(meter["seconds"], 1),
            # The meter is the main process's; the others do as much.
            "cpu_minutes": round(meter["cpu_seconds"] * trainer.args.world_size / 60, 2),
            "target_tokens": meter["tokens"],
            "processes": trainer.args.world_size,
            "device": str(trainer.args.device),
            "precision": precision(trainer.args),
        },
        "command": command,
        "parameters": lasting_parameters(trainer.model),
        "steps_per_second": round(steps / seconds, 3),
        "target_tokens_per_second": round(meter["tokens"] / seconds, 1),
        "decoding": content["decoding"],
        "languages": content["languages"],
        "dev": [entry for entry in state["log_history"] if "eval_loss" in entry],
        "recipe": content,
    }


def best_and_average(
    saved: Path, steps: Sequence[int], best: int, output: Path, generation: GenerationConfig | None
) -> dict[str, Path]:
    """Write output/best and output/average, unless they are there as they would be; from the checkpoints in `saved`.

    steps: what to average. best: the step with the best dev score.

    Raises: UserError for a checkpoint that is not whole.
    """
    folder = {step: saved / f"checkpoint-{step}" for step in [*steps, best]}
    for path in folder.values():
        if problem := checkpoints.what_is_wrong(path):
            raise UserError(f"{path}: {problem}. Delete this folder and run the same command again: it is made anew.")
    made = made_from(output)
    for name, averaged in (("best", [best]), ("average", steps)):
        weights_of = [folder[step] for step in averaged]
        product, made_of = f"model/{name}", digest_of_model(weights_of, generation)
        if not (output / name / WEIGHTS).is_file() or not made.same(product, made_of):
            checkpoints.write_model(output / name, weights_of[-1], weights_of, generation)
            made.note(product, made_of)
    return {name: output / name for name in ("best", "average")}


class Scoring:
    """Translates and scores the test sets with one model after the other.

    Args:
        output: the run's folder, in which the model folders lie; outputs are kept in its translations/.
        tell: hears what is being done.
    """

    def __init__(self, output: Path, made: MadeFrom, tell: Callable[[str], None]) -> None:
        self.output, self.made, self.tell = output, made, tell

    def score(self, model: Path, tests: Sequence[RawPairs], name: str, facts: Mapping[str, Any]) -> Results:
        """Write model/results.json: every test set under both protocols. `facts`: the other fields of Results."""
        file = model / RESULTS
        before = read_results(file) if file.is_file() else None
        results = new_results(name, facts)
        for test in tests:
            outputs = self._outputs(model, test)
            product = f"scores/{test.name}.{model.name}"
            made_of = digest(outputs, test.references, test.language, versions())
            if before is not None and self.made.same(product, made_of) and test.name in before.scores:
                results.scores[test.name] = before.scores[test.name]
                results.outputs[test.name] = before.outputs[test.name]
            else:
                results.add_scores(test.name, score_protocols(outputs, test.references, language=test.language))
            results.write(file)
            self.made.note(product, made_of)
        return results

    def _outputs(self, model: Path, test: RawPairs) -> list[str]:
        """The translations: those of before if nothing that they depend on changed."""
        from hf_mlnmt.generation import TranslationPipeline

        kept = self.output / "translations" / f"{test.name}.{model.name}.{test.language}"
        made_of = self.made.digests.get(f"model/{model.name}")
        made_of = digest(made_of, test.sources, *asked(test).values(), test.language, versions())
        if kept.is_file():
            outputs = kept.read_text(encoding="utf-8").split("\n")[:-1]
            if self.made.same(f"translations/{kept.name}", digest(made_of, outputs)):
                return outputs
        self.tell(f"translating {test.name} ({len(test.sources)} sentences) with {model}")
        translate = TranslationPipeline.from_pretrained(str(model))
        options = {name: language for name, language in asked(test).items() if language}
        if not options and translate.languages:  # the recipe names no codes, but its tokenizer.path has them
            options = {"target_language": test.language}
        outputs = [" ".join(line.splitlines()) for line in translate(test.sources, **options)]
        write_text(kept, "".join(line + "\n" for line in outputs))
        self.made.note(f"translations/{kept.name}", digest(made_of, outputs))
        return outputs


def asked(test: RawPairs) -> dict[str, str | None]:
    """What a model of several languages is told."""
    names = {"target_language": test.target_language}
    return {**names, "source_language": test.source_language} if test.source_language else names


def new_results(name: str, facts: Mapping[str, Any]) -> Results:
    """Results (see evaluation/results.py) without scores; fields that it does not know go to the end."""
    known = {"data", "seed", "budget", "command", "parameters", "steps_per_second", "decoding"}
    extra = {key: value for key, value in facts.items() if key not in known}
    return Results(name, **{key: value for key, value in facts.items() if key in known}, extra=extra)


def table_of(results: Mapping[str, Results]) -> Table:
    """One row for each model and test set, with the scores of both protocols; signatures are in the results files."""
    scored = list(
        dict.fromkeys(
            (protocol, metric)
            for each in results.values()
            for protocols in each.scores.values()
            for protocol, metrics in protocols.items()
            for metric in metrics
        )
    )
    rows = []
    for test in dict.fromkeys(test for each in results.values() for test in each.scores):
        for model, each in results.items():
            scores = each.scores.get(test, {})
            cells = [scores.get(protocol, {}).get(metric, {}).get("score") for protocol, metric in scored]
            rows.append([test, model, *("" if score is None else f"{score:.2f}" for score in cells)])
    numbers = [Number(f"{protocol}\n{with_arrow(metric)}") for protocol, metric in scored]
    return Table(["test set", "model", *numbers], rows, "scores", CAPTION)


CAPTION = (
    "cased: detokenised text as it is, sacreBLEU 13a; classic: lower-cased, Moses-normalised and -tokenised. "
    "95 % intervals and signatures: results.json."
)

SHOWN = ("per_subword", "per_word", "bits_per_byte", "loss", "per_predicted_token")


def score_texts(
    folders: Mapping[str, Path],
    results: Mapping[str, Results],
    objective: Objective,
    tokenizers: Tokenizers,
    tests: Sequence[RawPairs],
    encode: Callable[[str], Any],
) -> Table:
    """Write the key "perplexity" of each model's results.json: test set -> its numbers. Returns them as a table.

    Args:
        folders, results: of each finished model.
        objective: that they were trained with.
        encode: the encoded test set of a name.
    """
    rows = []
    for name, folder in folders.items():
        results[name].extra["perplexity"] = measured = _score(folder, objective, tokenizers, tests, encode)
        results[name].write(folder / RESULTS)
        rows += [(test, name, numbers) for test, numbers in measured.items()]
    shown = [number for number in SHOWN if any(number in numbers for _, _, numbers in rows)]
    cells = [
        [test, name, *(f"{numbers[one]:.3f}" if one in numbers else "" for one in shown)]
        for test, name, numbers in rows
    ]
    return Table(["test set", "model", *(Number(one.replace("_", " ")) for one in shown)], sorted(cells), "perplexity")


def _score(
    folder: Path, objective: Objective, tokenizers: Tokenizers, tests: Sequence[RawPairs], encode: Callable[[str], Any]
) -> dict[str, dict[str, float]]:
    """Perplexity (evaluation/perplexity.py) of a language model; of others loss and exp(loss) per predicted token."""
    auto_class = auto_class_of(folder)
    model = load_model(folder, getattr(transformers, auto_class)).eval()
    if auto_class == "AutoModelForCausalLM":
        return {test.name: perplexity(model, tokenizers, test.sources).to_dict() for test in tests}
    measured = {}
    for test in tests:
        scores = DevSet(encode(test.name), objective=objective.measured()).evaluate(model, Accelerator(cpu=True))
        measured[test.name] = {"loss": scores["loss"], "per_predicted_token": math.exp(scores["loss"])}
    return measured
