"""What can be known of a sweep before its first run: every point is a model that can be, and its data are there."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from hf_mlnmt.errors import UserError
from hf_mlnmt.training import folder
from hf_mlnmt.training.model_checks import check_model, expected_tokenizers
from hf_mlnmt.training.preflight import check_before
from hf_mlnmt.training.preparation import Preparation
from hf_mlnmt.training.sweep import Job


def check_models(jobs: Sequence[Job], data: Path) -> None:
    """Refuse a config that cannot be, and a model that this machine cannot train. UserError naming the run."""
    for job in _one_a_point(jobs):
        with folder.temporary() as output, _naming(job):
            recipe = job.recipe()
            preparation = Preparation(recipe, data, output, lambda text: None)
            if recipe.tokenizer.path is None:
                check_model(preparation, expected_tokenizers(recipe), 1, tokens=0)


def check_everything(jobs: Sequence[Job], data: Path, warn: Callable[[str], None]) -> None:
    """All that a training checks before it begins, once for each point. UserError naming the run."""
    for job in _one_a_point(jobs):
        with folder.temporary() as output, _naming(job):
            for warning in check_before(Preparation(job.recipe(), data, output, lambda text: None)):
                warn(f"{job.name}: {warning}")


def _one_a_point(jobs: Sequence[Job]) -> Iterator[Job]:
    """Seeds differ in nothing that is checked."""
    found: dict[tuple[Path, tuple[str, ...]], Job] = {}
    for job in jobs:
        found.setdefault((job.path, job.settings), job)
    yield from found.values()


@contextmanager
def _naming(job: Job) -> Iterator[None]:
    """The same UserError, saying which run it is about."""
    try:
        yield
    except UserError as error:
        raise UserError(f"{job.name}: {error}") from error
