"""Requests a second and latencies of servers on loopback with the same weights, in one interleaved run.

    python benchmarks/serving.py runs/demo/average --source DIR/test_2016_flickr.en.gz
    python benchmarks/serving.py MODEL --source FILE --libretranslate libre/bin/libretranslate --output FILE.json

| server | what it is |
| --- | --- |
| ours | `hf-mlnmt serve` |
| plain | FastAPI around tokenizer and generate() with Transformers' own loops, as one writes it in a minute |
| libretranslate | LibreTranslate, installed in a virtual environment of its own, with the model as an Argos package |

Each client sends its next request when the last one is answered; in "1, beside" another one sends texts of 50,000
characters meanwhile, which count nothing. The ceiling is the pipeline's own speed with the same sentences in one call.
"CPU ms" are those of a request in the server's processes, or in the pipeline's. The plain server gets an eighth of the
requests. All search with the same beams and with Argos Translate's length penalty, 0.2. LibreTranslate reads
sentencepiece's format: for it the model must be one of ours with a unigram tokenizer. Its sentences are cut by a rule
(the sentencizer of spaCy, to be installed beside it): its own MiniSBD, which costs more, has to be downloaded.
"""

from __future__ import annotations

import argparse
import http.client
import itertools
import json
import os
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

import psutil
from common import machine, numbers, parse
from rich.console import Console

from hf_mlnmt.common.files import write_json
from hf_mlnmt.common.table import Number, Table
from hf_mlnmt.data.lines import read_lines
from hf_mlnmt.generation import TranslationPipeline

SERVERS = ("ours", "plain", "libretranslate")
LENGTH_PENALTY = 0.2  # of Argos Translate, which has no option for it
DOCUMENT = 30  # sentences
EVERY = 20  # in a mix, so many requests have one document
STARTING = 120.0  # seconds that a server may take


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def copy_of(model: Path, folder: Path, beams: int, tokens: int) -> Path:
    """The model, with the search that all servers are to do."""
    shutil.copytree(model, folder)
    told = folder / "generation_config.json"
    search = {"num_beams": beams, "length_penalty": LENGTH_PENALTY, "early_stopping": True, "max_new_tokens": tokens}
    kept = {name: value for name, value in json.loads(told.read_text()).items() if name != "max_length"}
    told.write_text(json.dumps({**kept, **search}))
    return folder


# The servers


def ours(model: Path, port: int, options: argparse.Namespace) -> tuple[list[str], dict[str, str]]:
    words = ["serve", f"en-de={model}", "--port", str(port), "--no-page", "--threads", str(options.threads)]
    return [sys.executable, "-m", "hf_mlnmt", *words], {}


def plain(model: Path, port: int, options: argparse.Namespace) -> tuple[list[str], dict[str, str]]:
    return [sys.executable, __file__, str(model), "--plain", str(port), "--threads", str(options.threads)], {}


def libretranslate(model: Path, port: int, options: argparse.Namespace) -> tuple[list[str], dict[str, str]]:
    home = model.parent / "libretranslate"
    if not home.exists():
        argos_package(model, home / "packages" / "translate-en_de", Path(options.libretranslate).with_name("python"))
    own = {name: str(home / name) for name in ("XDG_DATA_HOME", "XDG_CONFIG_HOME", "XDG_CACHE_HOME")}
    own |= {"ARGOS_PACKAGES_DIR": str(home / "packages"), "ARGOS_CHUNK_TYPE": "SPACY", "HOME": str(home)}
    own |= {"ARGOS_BEAM_SIZE": str(options.beams), "ARGOS_INTRA_THREADS": str(options.threads)}
    (home / "XDG_CACHE_HOME/argos-translate/spacy/senter/model").mkdir(
        parents=True, exist_ok=True
    )  # else it is fetched
    words = ["--host", "127.0.0.1", "--port", str(port), "--disable-web-ui", "--disable-files-translation"]
    return [options.libretranslate, *words], own


def argos_package(model: Path, package: Path, python: Path) -> None:
    """The model as an Argos package: CTranslate2's files, sentencepiece's model, a cutter of sentences, metadata."""
    from sentencepiece import sentencepiece_model_pb2

    from hf_mlnmt.export import export

    pieces = json.loads((model / "tokenizer.json").read_text())["model"]
    if pieces["type"] != "Unigram":
        sys.exit(f"{model}: its tokenizer is {pieces['type']}; LibreTranslate needs kind: unigram")
    package.mkdir(parents=True)
    export(model, package / "model", "ctranslate2")
    config = package / "model/config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "add_source_eos": True}))  # Argos adds none
    proto = sentencepiece_model_pb2.ModelProto()
    special = {token["content"] for token in json.loads((model / "tokenizer.json").read_text())["added_tokens"]}
    for number, (piece, score) in enumerate(pieces["vocab"]):
        kind = 2 if number == pieces["unk_id"] else 3 if piece in special else 1  # unknown, control, normal
        proto.pieces.add(piece=piece, score=score, type=kind)
    proto.trainer_spec.model_type, proto.trainer_spec.unk_id = 1, pieces["unk_id"]
    proto.normalizer_spec.name = "identity"
    (package / "sentencepiece.model").write_bytes(proto.SerializeToString())
    subprocess.run(
        [python, "-c", "import spacy, sys; spacy.blank('xx').to_disk(sys.argv[1])", str(package / "spacy")], check=True
    )
    # With one package alone LibreTranslate looks for others on the network: the second one has the languages exchanged.
    second = shutil.copytree(package, package.with_name("translate-de_en"))
    for place, (source, target) in ((package, ("en", "de")), (second, ("de", "en"))):
        names = {"from_code": source, "from_name": source, "to_code": target, "to_name": target}
        metadata = {"package_version": "1.0", "argos_version": "1.9", **names}
        (place / "metadata.json").write_text(json.dumps(metadata))


def serve_plainly(model: str, port: int, threads: int) -> None:
    """The plain server."""
    import torch
    import uvicorn
    from fastapi import Body, FastAPI
    from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

    from hf_mlnmt import search

    search.why_not = lambda *arguments: "the benchmark"  # Transformers' own loops
    torch.set_num_threads(threads)
    tokenizer, loaded = AutoTokenizer.from_pretrained(model), AutoModelForSeq2SeqLM.from_pretrained(model).eval()
    app, body = FastAPI(), Body()

    @app.get("/languages")
    def languages() -> list[dict[str, str]]:
        return [{"code": "en"}, {"code": "de"}]

    @app.post("/translate")
    def translate(request: dict[str, Any] = body) -> dict[str, str]:
        lines = request["q"].split("\n")
        with torch.inference_mode():
            ids = loaded.generate(**tokenizer(lines, return_tensors="pt", padding=True))
        return {"translatedText": "\n".join(tokenizer.batch_decode(ids, skip_special_tokens=True))}

    uvicorn.run(app, port=port, log_level="error")


@contextmanager
def started(name: str, model: Path, options: argparse.Namespace) -> Iterator[tuple[int, psutil.Process]]:
    """A server's port and process, when it answers."""
    port = free_port()
    command, own = {"ours": ours, "plain": plain, "libretranslate": libretranslate}[name](model, port, options)
    environment = {**os.environ, **own, "OMP_NUM_THREADS": str(options.threads)}
    with tempfile.TemporaryFile("w+") as said:
        process = subprocess.Popen(command, env=environment, stdout=said, stderr=said)
        try:
            end = time.monotonic() + STARTING
            while True:
                try:
                    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
                    connection.request("GET", "/languages")
                    if connection.getresponse().status == 200:
                        break
                except OSError:
                    pass
                if process.poll() is not None or time.monotonic() > end:
                    said.seek(0)
                    sys.exit(f"{name} does not start:\n{said.read()[-3000:]}")
                time.sleep(0.1)
            yield port, psutil.Process(process.pid)
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()


# The clients


def load(port: int, texts: list[str], clients: int) -> tuple[float, list[float], list[str]]:
    """All texts, by so many clients. Returns: seconds, the latency of each, the translations."""
    turns, latencies, answers = itertools.count(), [0.0] * len(texts), [""] * len(texts)
    failures: list[str] = []

    def work() -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
        for _ in range(100):  # a server that has just said that it is ready may not listen yet
            try:
                connection.connect()
                break
            except ConnectionRefusedError:
                time.sleep(0.1)
        while (number := next(turns)) < len(texts) and not failures:
            began = time.perf_counter()
            answer, content = ask(connection, texts[number])
            latencies[number] = time.perf_counter() - began
            if answer.status != 200:
                failures.append(f"status {answer.status}: {content[:300]!r}")
                return
            answers[number] = json.loads(content)["translatedText"]

    threads = [threading.Thread(target=work) for _ in range(clients)]
    began = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures or not all(latencies):
        sys.exit(f"a request failed: {failures}")
    return time.perf_counter() - began, latencies, answers


def ask(connection: http.client.HTTPConnection, text: str) -> tuple[http.client.HTTPResponse, bytes]:
    body = json.dumps({"q": text, "source": "en", "target": "de"})
    connection.request("POST", "/translate", body, {"Content-Type": "application/json"})
    answer = connection.getresponse()
    return answer, answer.read()


@contextmanager
def long_texts(port: int, sentences: list[str], characters: int) -> Iterator[None]:
    """Another client that sends one long text after the other, and leaves at the end."""
    text = "\n".join(itertools.islice(itertools.cycle(sentences), characters))[:characters]
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=300)

    def work() -> None:
        with suppress(OSError, http.client.HTTPException):
            while ask(connection, text)[0].status == 200:
                pass

    thread = threading.Thread(target=work)
    thread.start()
    time.sleep(0.5)  # until it has begun
    try:
        yield
    finally:
        if not thread.is_alive():
            sys.exit("a long text failed")
        connection.sock.shutdown(socket.SHUT_RDWR)
        thread.join()


def mixed(sentences: list[str], count: int) -> list[str]:
    """Sentences, of which some are documents."""
    lines = itertools.cycle(sentences)
    return [
        "\n".join(itertools.islice(lines, DOCUMENT)) if number % EVERY == EVERY - 1 else next(lines)
        for number in range(count)
    ]


def memory(process: psutil.Process) -> float:
    """MB that a server's processes have in memory."""
    return sum(one.memory_info().rss for one in [process, *process.children(recursive=True)]) / 2**20


def processor(process: psutil.Process) -> float:
    """Seconds that a server's processes have computed, which other programs of a busy machine do not change."""
    times = [one.cpu_times() for one in [process, *process.children(recursive=True)]]
    return sum(one.user + one.system for one in times)


def percentile(latencies: list[float], share: float) -> float:
    """In milliseconds."""
    return 1000 * sorted(latencies)[min(len(latencies) - 1, int(share * len(latencies)))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, help="a model of ours for one pair of languages")
    parser.add_argument("--source", type=Path, help="sentences, one a line")
    parser.add_argument("--clients", type=numbers, default=[1, 8, 64], help="default: 1,8,64")
    parser.add_argument("--requests", type=int, default=500, help="of a round with several clients; with one a quarter")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--beams", type=int, default=4)
    parser.add_argument("--max-new-tokens", type=int, default=256, help="as Argos Translate's")
    parser.add_argument("--threads", type=int, default=1, help="of each server and of the pipeline")
    parser.add_argument(
        "--memory-requests", type=int, default=10_000, help="requests before memory is read, not of plain; 0: none"
    )
    parser.add_argument("--long", type=int, default=50_000, help="characters of a long text (default: 50,000)")
    parser.add_argument("--libretranslate", help="its program, in its own virtual environment; default: left out")
    parser.add_argument("--output", type=Path, help="write the numbers as JSON")
    parser.add_argument("--plain", type=int, help=argparse.SUPPRESS)
    quick = "{toys}/model --source {toys}/train.en.gz --clients 1,2 --requests 8 --rounds 1"
    quick += " --max-new-tokens 5 --beams 2 --memory-requests 8 --long 500"
    options = parse(parser, quick)
    if options.plain:
        serve_plainly(str(options.model), options.plain, options.threads)
        return
    names = [name for name in SERVERS if name != "libretranslate" or options.libretranslate]
    import fastapi  # noqa: F401  (the servers need it)
    import torch

    torch.set_num_threads(options.threads)
    sentences = list(read_lines(options.source))
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        model = copy_of(options.model, scratch / "model", options.beams, options.max_new_tokens)
        pipeline = TranslationPipeline.from_pretrained(str(model), device="cpu")
        servers = {name: stack.enter_context(started(name, model, options)) for name in names}
        rows, kept = [], {}
        loads = [(f"{clients}", clients, False) for clients in options.clients]
        loads.append((f"{max(options.clients)}, mix", max(options.clients), True))
        loads.insert(1, ("1, beside", 1, False))
        for title, clients, has_documents in loads:
            count = options.requests if clients > 1 else max(1, options.requests // 4)
            texts = (
                mixed(sentences, count) if has_documents else list(itertools.islice(itertools.cycle(sentences), count))
            )
            lines = [line for text in texts for line in text.split("\n")]
            rates: dict[str, list[float]] = {name: [] for name in ["pipeline", *names]}
            latencies: dict[str, list[float]] = {name: [] for name in names}
            same: dict[str, float] = {}
            computed: dict[str, float] = {}
            for turn in range(options.rounds + 1):  # the first one does not count
                began, before = time.perf_counter(), time.process_time()
                translated = iter(pipeline(lines))
                seconds = time.perf_counter() - began
                computed["pipeline"] = 1000 * (time.process_time() - before) / len(texts)
                expected = ["\n".join(itertools.islice(translated, text.count("\n") + 1)) for text in texts]
                if turn:
                    rates["pipeline"].append(len(texts) / seconds)
                for name, (port, process) in servers.items():
                    if name == "plain" and title == "1, beside":  # which would never end a long text
                        continue
                    # The plain one is so slow that an eighth of the requests, or one a client, must do.
                    own = texts[: max(clients, len(texts) // 8)] if name == "plain" else texts
                    before = processor(process)
                    with long_texts(port, sentences, options.long) if title == "1, beside" else nullcontext():
                        seconds, each, answers = load(port, own, clients)
                    computed[name] = 1000 * (processor(process) - before) / len(own)
                    if turn:
                        rates[name].append(len(own) / seconds)
                        latencies[name] += each
                    same[name] = statistics.mean(map(str.__eq__, answers, expected))
                    print(f"{title} clients, round {turn}: {name}: {len(own) / seconds:.1f}/s", file=sys.stderr)
            for name, values in ((name, values) for name, values in rates.items() if values):
                ratio = statistics.median(value / base for value, base in zip(values, rates["pipeline"], strict=True))
                times = [percentile(latencies[name], share) for share in (0.5, 0.95, 0.99)] if name in names else []
                kept[f"{title} clients, {name}"] = {
                    "requests_per_second": values,
                    "ratio_to_pipeline": ratio,
                    **dict(zip(("p50_ms", "p95_ms", "p99_ms"), times)),
                    "processor_ms": computed[name],
                    **({"same_as_pipeline": same[name]} if name in names else {}),
                }
                shown = [f"{value:,.1f}" for value in times] or ["", "", ""]
                shown += [f"{computed[name]:,.1f}", f"{same[name]:.0%}" if name in names else ""]
                rows.append([title, name, f"{statistics.median(values):,.1f}", f"{ratio:.2f}", *shown])
        used = {}
        for name, (port, process) in servers.items():
            if name == "plain":  # it would take a quarter of an hour
                continue
            before = memory(process)
            if options.memory_requests:
                load(port, list(itertools.islice(itertools.cycle(sentences), options.memory_requests)), 8)
            used[name] = before, memory(process)
    columns = [
        "clients",
        "",
        *map(Number, ("requests/s", "times pipeline", "p50 ms", "p95 ms", "p99 ms", "CPU ms", "same")),
    ]
    console = Console(width=110)
    console.print(Table(columns, rows, f"beam {options.beams}, {options.threads} thread(s)"))
    for name, (before, after) in used.items():
        console.print(f"{name}: {before:,.0f} MB, after {options.memory_requests:,} more requests {after:,.0f} MB")
    console.print(machine(), style="dim")
    if options.output:
        words = [Path(word).name if "/" in word else word for word in sys.argv[2:]]
        command = " ".join(["python benchmarks/serving.py MODEL", *words])
        write_json(options.output, {"machine": machine(), "command": command, "loads": kept, "memory_mb": used})


if __name__ == "__main__":
    main()
