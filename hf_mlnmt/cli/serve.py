"""`hf-mlnmt serve`: runs a translation server with an HTTP API and a web page."""

from pathlib import Path
from typing import Any

from hf_mlnmt.cli import options
from hf_mlnmt.cli.options import argument, limits_options, option
from hf_mlnmt.serving.limits import LARGEST, Limits

PANEL = "Translate"


@limits_options
def serve(
    models: list[str] = argument(
        ..., "Model folders or Hub names; en-de=MODEL names its pair of languages.", metavar="[FROM-TO=]MODEL"
    ),
    *,
    memory: list[str] | None = option(
        None, "Translation memory of a pair, which POST /v1/memory adds to; again for more.", metavar="[FROM-TO=]FILE"
    ),
    host: str = option("127.0.0.1", "Address to listen at; 0.0.0.0: all of this machine."),
    port: int = option(5000, "Port; 0: any that is free.", min=0, max=65535),
    api_key_file: Path | None = option(None, "API keys, one a line: a request must name one. There is no page then."),
    allow_host: list[str] | None = option(
        None, "A name that requests may give for the server, also *.example.org; again for more.", metavar="NAME"
    ),
    no_page: bool = option(False, "Without the page at /."),
    cors: bool = option(False, "Let pages of any origin ask, in a browser."),
    batch_tokens: int = options.machine(4096, "Source tokens in a batch, padding included.", min=1, max=LARGEST),
    max_wait: float = options.machine(5.0, "Milliseconds to wait at most for a fuller batch.", min=0, max=60_000),
    device: options.Device = None,
    dtype: options.Dtype = "auto",
    threads: options.Threads = None,
    limits: Limits,
) -> None:
    """Serve models over HTTP, with LibreTranslate's API and a page to translate in.

    Texts of all clients are translated in common batches. After SIGTERM the server finishes begun requests and ends;
    after SIGHUP it loads the models again.

    Examples:

        hf-mlnmt serve en-de=runs/demo/average facebook/nllb-200-distilled-600M --port 8000 --threads 4
        curl localhost:5000/translate -d q="A man rides a bicycle." -d source=en -d target=de

    The API, and how to run it behind nginx: docs/serving.md.
    """
    from hf_mlnmt.serving.server import read_keys
    from hf_mlnmt.serving.server import serve as serve_models

    keys = read_keys(api_key_file) if api_key_file else []
    options.use_machine(threads)
    of_clients: dict[str, Any] = {"host": host, "port": port, "keys": keys, "hosts": allow_host or [], "limits": limits}
    of_clients |= {"page": not no_page, "cors": cors}
    loading = {"device": device, "dtype": dtype, "memory": memory or []}
    serve_models(models, loading=loading, batch_tokens=batch_tokens, max_wait=max_wait / 1000, **of_clients)
