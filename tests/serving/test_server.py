"""Running servers: real clients, faults, signals. Each server is a process."""

from __future__ import annotations

import json
import os
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

pytest.importorskip("fastapi", reason="needs the extra serve")

import httpx
from helpers.serving import Servers
from helpers.toy_translators import SENTENCES
from typer.testing import CliRunner

from hf_mlnmt import cli
from hf_mlnmt.common.errors import UserError
from hf_mlnmt.generation import DecodingOptions, TranslationPipeline
from hf_mlnmt.serving.server import is_loopback, read_keys, serve

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="servers are forked")
CLIENTS, IDLE = 60, 1
LONG = " ".join(SENTENCES[:150])


@pytest.fixture(scope="session")
def servers(tmp_path_factory):
    servers = Servers(tmp_path_factory.mktemp("servers"))
    yield servers
    servers.close()


@pytest.fixture(scope="session")
def server(servers, pair_folders):
    """A server of two models that everybody uses."""
    limits = ("--max-connections", CLIENTS, "--idle-timeout", IDLE, "--max-body", 100_000)
    limits += ("--max-file", 13_000_000)
    return servers.start(pair_folders["en-de"], pair_folders["de-fr"], "--no-page", *limits).started()


@pytest.fixture(scope="session")
def german(pair_folders, unwatched):
    """What the pipeline alone makes of the sentences, watched as in the server's process."""
    translate = TranslationPipeline.from_pretrained(str(pair_folders["en-de"]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DecodingOptions, "is_watched", unwatched)
        return dict(zip(SENTENCES[:20], translate(SENTENCES[:20], split="sentences")))


def well(server, german):
    """It answers as ever."""
    assert server.translate(SENTENCES[:3]).json() == {"translatedText": [german[one] for one in SENTENCES[:3]]}
    return True


def test_the_pipeline_s_translations_from_many_at_once(server, german):
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(server.translate, german))
    assert [answer.json()["translatedText"] for answer in answers] == list(german.values())


def test_a_pivot_is_said(server):
    asked = {"texts": [SENTENCES[0]], "source": "en", "target": "fr", "num_return_sequences": 2, "num_beams": 2}
    answer = httpx.post(f"{server.url}/v1/translate", json=asked, timeout=60).json()
    assert (answer["via"], answer["models"], len(answer["translations"][0])) == ("de", ["en-de", "de-fr"], 2)


def test_only_names_of_this_machine_and_those_that_are_allowed(servers, server, pair_folders):
    def ask(server, host):
        return httpx.get(f"{server.url}/healthz", headers={"Host": host}).status_code

    assert [ask(server, host) for host in ("localhost", "127.0.0.1:5000", "[::1]", "example.org")] == [200] * 4

    def page(server, host):
        return httpx.get(f"{server.url}/languages", headers={"Host": host}).status_code

    assert [page(server, host) for host in ("localhost", "example.org")] == [200, 400]
    other = servers.start(pair_folders["en-de"], "--no-page", "--allow-host", "mt.example.org").started()
    assert [page(other, host) for host in ("localhost", "mt.example.org", "example.org")] == [200, 200, 400]
    assert [is_loopback(host) for host in ("127.0.0.2", "::1", "localhost", "0.0.0.0", "::", "a.test")] == [
        True
    ] * 3 + [False] * 3


# Clients as they are


def test_libretranslatepy(server, german):
    client = pytest.importorskip("libretranslatepy").LibreTranslateAPI(server.url)
    assert client.translate(SENTENCES[0], "en", "de") == german[SENTENCES[0]]
    assert client.languages()[0] == {"code": "en", "name": "English", "targets": ["de", "fr"]}
    assert client.detect("Ein Mann fährt mit dem Fahrrad durch die Altstadt.")[0]["language"] == "de"


def test_deep_translator(server, german):
    translators = pytest.importorskip("deep_translator")
    client = translators.LibreTranslator(source="en", target="de", api_key="any", custom_url=f"{server.url}/")
    assert client.translate(SENTENCES[0]) == german[SENTENCES[0]]
    assert client.translate_batch(SENTENCES[:2]) == [german[one] for one in SENTENCES[:2]]


def test_libretranslate_aio(server, german):
    with pytest.importorskip("libretranslate_aio").LibreTranslate(server.url) as client:
        assert client.translate(SENTENCES[0], "en", "de").translated_text == german[SENTENCES[0]]
        both = client.translate(SENTENCES[:2], "en", "de")
        assert both.translated_text == [german[text] for text in SENTENCES[:2]]
        more = client.translate(SENTENCES[:2], "en", "de", alternatives=1)
        assert [len(others) for others in more.alternatives] == [1, 1]
        assert client.detect("Ein Mann fährt mit dem Fahrrad durch die Altstadt.")[0].language == "de"
        assert (client.languages()[0].targets, client.health()) == (["de", "fr"], True)
        assert client.frontend_settings().language.source.code == "auto"


def test_a_client_that_is_installed_aside(server, german, tmp_path):
    """`translate`, which asks for a libretranslatepy of its own."""
    install = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", tmp_path, "translate==3.8.1"]
    if subprocess.run(install, capture_output=True, timeout=100).returncode:
        pytest.skip("needs a package registry")
    script = "import sys; from translate import Translator; url, text = sys.argv[1:]\n"
    script += "print(Translator('de', 'en', provider='libre', base_url=url + '/').translate(text))"
    told, environment = [server.url, SENTENCES[0]], os.environ | {"PYTHONPATH": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", script, *told], capture_output=True, text=True, env=environment)
    assert done.stdout == german[SENTENCES[0]] + "\n", done.stderr


def test_the_client_from_npm(server, german):
    """`npm install --ignore-scripts --no-save libretranslate` in a folder, and LIBRETRANSLATE_NPM names that folder."""
    folder = os.environ.get("LIBRETRANSLATE_NPM", "")
    package = Path(folder, "node_modules", "libretranslate")
    if not shutil.which("node") or not folder or not package.is_dir():
        pytest.skip("needs node, and LIBRETRANSLATE_NPM: a folder with node_modules/libretranslate")
    asked = {"query": SENTENCES[0], "source": "en", "target": "de", "apiurl": server.url}
    script = f"require({json.dumps(str(package))}).translate({json.dumps(asked)}).then((text) => console.log(text))"
    done = subprocess.run(["node", "-e", script], capture_output=True, text=True, timeout=60)
    assert done.stdout == german[SENTENCES[0]] + "\n", done.stderr


def test_the_examples_of_the_page(server, tmp_path):
    """docs/serving.md: each command, as it stands there."""
    if not shutil.which("curl"):
        pytest.skip("needs curl")
    page = (Path(__file__).parents[2] / "docs" / "serving.md").read_text("utf-8")
    commands = [line for block in re.findall(r"^```sh\n(.*?)^```", page, re.M | re.S) for line in block.splitlines()]
    assert len(commands) > 5
    for command in commands:
        command = command.replace("localhost:5000", server.url).replace("curl ", "curl --silent --fail-with-body ")
        done = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, (command, done.stdout)
        assert json.loads(done.stdout)


# Faults


def request(body: bytes, length: int | None = None, path: str = "/translate", kind: str = "application/json") -> bytes:
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: {kind}\r\n"
    head += f"Content-Length: {length or len(body)}\r\n\r\n"
    return head.encode() + body


def connect(server) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port), timeout=30)


def received(connection: socket.socket) -> bytes:
    parts = []
    try:
        while part := connection.recv(65536):
            parts.append(part)
    except ConnectionResetError:
        pass
    return b"".join(parts)


def test_a_client_that_leaves(server, german):
    """Its work, nearly as much as a body may hold, is stopped, and nothing of it waits any more."""
    texts = [" ".join(SENTENCES[first : first + 3]) for first in [*range(len(SENTENCES) - 10)] * 3]
    body = json.dumps({"q": texts, "source": "en", "target": "de", "alternatives": 15}).encode()
    before = metric(server, "hf_mlnmt_sentences_total")
    with connect(server) as connection:
        connection.sendall(request(body))
        while metric(server, "hf_mlnmt_waiting_sentences") == 0:
            time.sleep(0.01)
    assert server.wait_for_log(path="/translate", status=499)["texts"] == len(texts)
    assert well(server, german)
    assert metric(server, "hf_mlnmt_waiting_sentences") == 0
    assert metric(server, "hf_mlnmt_sentences_total") < before + 3 * len(texts)  # three sentences each


def metric(server, name: str) -> float:
    lines = httpx.get(f"{server.url}/metrics").text.splitlines()
    return float(next(line.split()[1] for line in lines if line.startswith(name)))


def test_half_a_body(server, german):
    with connect(server) as connection:
        connection.sendall(request(b'{"q": "', 100))
        answer = received(connection)
    assert b" 408 " in answer
    assert b'{"error":"the request did not arrive within 1 seconds"}' in answer
    assert well(server, german)


def test_half_a_head_and_nothing_at_all(server, german):
    for sent in (b"", b"POST /translate HTTP/1.1\r\nHost:"):
        with connect(server) as connection:
            connection.sendall(sent)
            assert received(connection) == b""
    assert well(server, german)


def test_a_connection_is_kept_for_any_number_of_requests(server):
    asked = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nx: " + b"x" * 60_000 + b"\r\n\r\n"
    with connect(server) as connection:
        for _ in range(10):
            connection.sendall(asked)
            assert connection.recv(12) == b"HTTP/1.1 200"
            while not connection.recv(10_000).endswith(b"}"):
                pass


def test_a_body_of_10_mb(server, german):
    for content in (b"x" * 10_000_000, (b"x" * 100_000 for _ in range(100))):
        try:
            answer = httpx.post(f"{server.url}/translate", content=content, timeout=30)
        except httpx.TransportError:  # it was cut off where it had passed what is thrown away
            continue
        assert (answer.status_code, "(body_bytes)" in answer.text) == (413, True)
    assert httpx.post(f"{server.url}/translate", content=b"x" * 1_000_000).status_code == 413
    assert well(server, german)


@pytest.mark.parametrize(
    "sent", [b"\x16\x03\x01\x02\x00\x01", b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 200_000], ids=["tls", "head"]
)
def test_what_is_no_http(server, german, sent):
    with connect(server) as connection:
        try:
            connection.sendall(sent)
        except (ConnectionResetError, BrokenPipeError):
            return
        received(connection)
    assert well(server, german)


def test_a_thousand_connections(server, german):
    """Above the limit they are refused; those that only wait are closed, and then there is room again."""
    connections = [socket.socket() for _ in range(1_000)]
    for connection in connections:
        connection.setblocking(False)
        connection.connect_ex(("127.0.0.1", server.port))
    answers = []
    for connection in connections:
        connection.settimeout(60)
        answers.append(received(connection))
        connection.close()
    refused = [answer for answer in answers if answer]
    assert len(refused) > CLIENTS
    assert all(b" 503 " in answer and b"the limit (connections) is 60" in answer for answer in refused)
    assert well(server, german)


def test_a_client_that_does_not_read(server, german):
    """It is left when it has taken nothing for a while."""
    comment = "<!--" + "x" * 12_000_000 + "-->"
    asked = {"files": {"file": ("a.html", comment)}, "data": {"source": "en", "target": "de"}}
    url = httpx.post(f"{server.url}/translate_file", **asked, timeout=60).json()["translatedFileUrl"]
    with connect(server) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.sendall(f"GET {httpx.URL(url).path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        closed = select.poll()
        closed.register(connection, 0)
        assert closed.poll(60_000)
        assert len(received(connection)) < 12_000_000
    assert httpx.get(url).text == comment
    assert well(server, german)


# Signals


def test_a_folder_that_is_gone_and_read_again(servers, pair_folders, tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(pair_folders["en-de"], folder)
    server = servers.start(f"en-de={folder}", "--no-page").started()
    before = server.translate(SENTENCES[0]).json()
    folder.rename(tmp_path / "gone")
    server.send_signal(signal.SIGHUP)
    assert "not loaded again" in server.wait_for_log(level="error")["message"]
    server.wait_for_log(problems=1)
    assert server.translate(SENTENCES[0]).json() == before
    shutil.copytree(pair_folders["fr-en"], folder)  # other weights
    shutil.copy(pair_folders["en-de"] / "results.json", folder)
    server.send_signal(signal.SIGHUP)
    server.wait_for_log(problems=0)
    assert server.translate(SENTENCES[0]).json() != before


def test_sigterm_under_load(servers, pair_folders):
    """What has begun is answered, what comes later is refused, the exit code is 0."""
    server = servers.start(pair_folders["en-de"], "--no-page").started()
    statuses = []

    def ask():
        try:
            while True:
                statuses.append(server.translate(SENTENCES[:20]).status_code)
        except httpx.ConnectError:
            statuses.append("refused")
        except httpx.TransportError as error:
            # Of a connection that waited, or a request that was not read; one that had begun stands in the log.
            unread = ("reset by peer", "disconnected without sending")
            statuses.append("refused" if any(words in str(error) for words in unread) else repr(error))

    clients = [threading.Thread(target=ask) for _ in range(4)]
    for client in clients:
        client.start()
    server.wait_for_log(path="/translate")
    server.send_signal(signal.SIGTERM)
    for client in clients:
        client.join()
    assert server.wait() == 0
    assert set(statuses) <= {200, 503, "refused"}
    assert statuses.count("refused") == 4
    answered = [status for status in statuses if status != "refused"]
    assert sorted(line["status"] for line in server.log() if line.get("path") == "/translate") == sorted(answered)


def test_a_second_signal_ends_at_once(servers, pair_folders):
    server = servers.start(pair_folders["en-de"], "--no-page").started()
    with connect(server) as connection:
        connection.sendall(request(b'{"q": "', 100))  # keeps it waiting
        time.sleep(0.1)
        server.send_signal(signal.SIGINT)
        time.sleep(0.3)
        server.send_signal(signal.SIGTERM)
        assert server.wait() == 128 + signal.SIGTERM


def test_what_does_not_start_says_so_in_one_message(servers, server, pair_folders, tmp_path):
    taken = servers.start(pair_folders["en-de"], "--no-page", port=server.port)
    missing = servers.start(tmp_path / "nothing", "--no-page")
    assert (taken.wait(), missing.wait()) == (1, 1)
    assert f"error: cannot serve at 127.0.0.1, port {server.port}: Address already in use." in taken.printed("2")
    assert "nothing" in missing.printed("2")
    for one in (taken, missing):
        assert "Traceback" not in one.printed("2")
        assert one.printed("1") == ""


# The command


def test_the_limits_are_options_with_their_defaults():
    text = CliRunner().invoke(cli.app, ["serve", "--help-all"], env={"COLUMNS": "200", "TERM": "dumb"}).output
    text = " ".join(text.split())  # it is wrapped at any word
    assert "--max-text " in text
    assert "[default: 50000" in text
    assert "[default: 127.0.0.1" in text
    for option, value in (
        *(("--max-texts", "0"), ("--timeout", "99999999999"), ("--batch-tokens", "0"), ("--max-queue", "1e3")),
        *(("--max-wait", "inf"), ("--max-wait", "-1"), ("--max-wait", "nan"), ("--port", "65536"), ("--threads", "0")),
    ):
        assert CliRunner().invoke(cli.app, ["serve", "model", option, value]).exit_code == 2, option


def test_files_of_keys(tmp_path):
    path = tmp_path / "keys"
    path.write_text("# of Ann\none\n\n two \n")
    assert read_keys(path) == ["one", "two"]
    for content in (b"# none\n", b"\xff"):
        path.write_bytes(content)
        with pytest.raises(UserError, match="API key"):
            read_keys(path)


def test_without_the_extra(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "uvicorn", None)
    with pytest.raises(UserError, match=r"pip install 'hf-mlnmt\[serve\]'"):
        serve(["model"], port=0)
