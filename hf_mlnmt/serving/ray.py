"""The server as a Ray Serve application: replicas on one machine or many, behind Ray's own proxy (extra `ray`).

    serve run hf_mlnmt.serving.ray:app models=runs/demo/average replicas=2

Each replica loads the models and batches its own requests. Ray restarts a replica that dies, and sends no new requests
to a replica that is ending.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import yaml
from ray import serve

from hf_mlnmt.common.errors import UserError
from hf_mlnmt.common.keys import Section, build
from hf_mlnmt.serving.limits import check_range, check_settings

_WAITING = 1000  # requests that a replica may work on at once: Ray's default, 5, is too few to fill a batch


@dataclass(frozen=True)
class Settings(Section):
    """The settings of `serve run`, as key=value, or in a config file under `args`.

    models: folders or Hub names, also as en-de=MODEL; a list, or joined by commas. On several machines a folder must be
        on a disk that all machines share.
    replicas: their number. cpus, gpus: what Ray reserves for each; PyTorch uses as many threads as cpus.
    device, dtype: as of hf-mlnmt serve. batch_tokens, max_wait, max_queue: of the Batcher.
    """

    models: tuple[str, ...] = ()
    replicas: int = 2
    cpus: float = 1.0
    gpus: float = 0.0
    device: str | None = None
    dtype: str = "auto"
    batch_tokens: int = 4096
    max_wait: float = 0.005
    max_queue: int = 10_000

    @classmethod
    def of(cls, arguments: Mapping[str, Any]) -> Settings:
        """Builds settings from arguments. Raises: UserError for an unknown key, a bad value, or no models."""
        content: dict[str, Any] = {}
        for name, value in arguments.items():
            if isinstance(value, str):
                value = value.split(",") if name == "models" else yaml.safe_load(value)
            content[name] = value
        settings = build(cls, content, "serve run")
        if not settings.models:
            raise UserError("no model: say models=FOLDER.")
        for name, least in (("replicas", 1), ("cpus", 0), ("gpus", 0)):
            check_range(name, getattr(settings, name), least)
        check_settings(settings.batch_tokens, settings.max_wait, settings.max_queue)
        return replace(settings, models=tuple(map(_absolute, settings.models)))


def app(arguments: dict[str, Any]) -> serve.Application:
    """Builds the Ray Serve application for `serve run` and `serve deploy`. Raises: UserError as `Settings.of`."""
    settings = Settings.of(arguments)

    def of_replica() -> Any:
        from hf_mlnmt.serving.api import make_app
        from hf_mlnmt.serving.batcher import Batcher
        from hf_mlnmt.serving.models import ServedModels

        told = asdict(settings)
        models = ServedModels(settings.models, **{name: told[name] for name in ("device", "dtype")})
        return make_app(Batcher(models, **{name: told[name] for name in ("batch_tokens", "max_wait", "max_queue")}))

    deployment = serve.deployment(
        name="translate",
        num_replicas=settings.replicas,
        max_ongoing_requests=_WAITING,
        ray_actor_options={"num_cpus": settings.cpus, "num_gpus": settings.gpus},
    )
    return deployment(serve.ingress(of_replica)()).bind()


def _absolute(given: str) -> str:
    """Returns a model's name with its folder as an absolute path, since replicas run in other folders; a name that is
    no folder as it is."""
    pair, equal, place = ("", "", given) if Path(given).is_dir() else given.strip().rpartition("=")
    return f"{pair}{equal}{Path(place).resolve()}" if Path(place).is_dir() else given.strip()
