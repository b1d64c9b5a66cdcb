"""Dockerfile, compose.yaml and docker/nginx.conf name files, commands and options that exist, and they agree.

Where nginx is installed it stands before two replicas, of which one is killed while requests come.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import threading
import time
import tomllib
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import yaml
from helpers.processes import free_port

ROOT = Path(__file__).resolve().parents[2]
NGINX = ROOT / "docker/nginx.conf"
COMPOSE = yaml.safe_load((ROOT / "compose.yaml").read_text())["services"]


def instructions() -> list[tuple[str, str]]:
    """(instruction, what follows) of the Dockerfile, lines that go on put together, comments left out."""
    text = re.sub(r"^#.*\n", "", (ROOT / "Dockerfile").read_text(), flags=re.MULTILINE).replace("\\\n", " ")
    return [(name, rest.strip()) for name, _, rest in (line.partition(" ") for line in text.splitlines() if line)]


def values(name: str) -> list[str]:
    return [rest for instruction, rest in instructions() if instruction == name]


def test_the_dockerfile_copies_what_there_is_and_installs_what_pyproject_has():
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    copied = [one for rest in values("COPY") if "--from" not in rest for one in rest.split()[:-1]]
    assert copied
    for name in copied:
        assert (ROOT / name).exists()
        assert f"!{name}" in ignored
    assert {line[1:] for line in ignored if line.startswith("!")} == set(copied)
    assert next(line for line in ignored if not line.startswith(("#", "!"))) == "*"
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    included = project["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"]
    assert {*included, project["project"]["readme"], *project["project"]["license-files"]} <= set(copied)
    installs = [json.loads(rest) for rest in values("RUN") if rest.startswith("[") and "pip" in rest]
    assert installs
    for install in installs[-2:]:
        assert install[install.index("--constraint") + 1] == "constraints.txt"
    python = re.match(r"python:([\d.]+)", values("FROM")[-1])[1]
    assert f"Programming Language :: Python :: {python}" in project["project"]["classifiers"]


def test_nobody_is_root_and_signals_reach_the_server():
    for name in ("ENTRYPOINT", "CMD"):  # a shell would keep the signals for itself
        assert all(isinstance(word, str) for word in json.loads(values(name)[-1]))
    user, made = values("USER")[-1], next(json.loads(rest) for rest in values("RUN") if "useradd" in rest)
    assert user.split(":")[0] == made[made.index("--uid") + 1] != "0"
    assert instructions()[-1][0] == "CMD"
    environment = dict(one.split("=", 1) for rest in values("ENV") for one in rest.split())
    assert all(environment[name].startswith("/tmp") for name in ("HOME", "HF_HOME"))  # nothing else can be written


def test_the_server_takes_the_options_of_the_image():
    pytest.importorskip("hf_mlnmt.cli.serve")
    from typer.main import get_command

    from hf_mlnmt.cli import app

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = re.search(r'"\.\[(.*)\]"', values("RUN")[2])[1].split(",")
    assert set(extras) <= set(project["optional-dependencies"])
    command, verb, *words = json.loads(values("ENTRYPOINT")[-1])
    assert command in project["scripts"]
    serve = get_command(app).commands[verb]
    serve.make_context(verb, [*words, *json.loads(values("CMD")[-1])])


def test_health_is_asked_as_a_program():
    command = values("HEALTHCHECK")[0].split(" CMD ")[1].strip()
    program = json.loads(command)
    compile(program[2], "health", "exec")
    assert f":{values('EXPOSE')[0]}/" in program[2]


def test_compose_has_two_replicas_that_nginx_knows():
    servers = {name for name in COMPOSE if name != "proxy"}
    named = re.findall(r"server ([\w-]+):(\d+) ", NGINX.read_text())
    assert {name for name, _ in named} == servers == set(COMPOSE["proxy"]["depends_on"])
    assert len(servers) == 2
    assert {port for _, port in named} == set(values("EXPOSE"))
    for name in servers:
        service = COMPOSE[name]
        assert service["read_only"]
        assert service["cap_drop"] == ["ALL"]
        assert service["tmpfs"] == ["/tmp:exec"]
        assert service["volumes"][0].split(":")[-2:] == [*json.loads(values("CMD")[-1]), "ro"]
    (published,) = COMPOSE["proxy"]["ports"]
    assert published.startswith("127.0.0.1:")
    assert re.search(r"listen (\d+);", NGINX.read_text())[1] == published.split(":")[-1]
    assert COMPOSE["proxy"]["volumes"][0].split(":")[0] == f"./{NGINX.relative_to(ROOT)}"


class Replica(BaseHTTPRequestHandler):
    """Answers with what it was asked, after a moment; `ending` it says so, and `dying` it breaks off in the middle."""

    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        time.sleep(0.005)
        if self.server.dying:
            self.connection.shutdown(2)
            self.close_connection = True
            return
        self.server.answered += not self.server.ending
        self.send_response(503 if self.server.ending else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments):
        pass


@pytest.fixture
def replicas():
    servers = []
    for _ in range(2):
        server = ThreadingHTTPServer(("127.0.0.1", 0), Replica)
        server.ending, server.dying, server.answered = False, False, 0
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        servers.append(server)
    yield servers
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.fixture
def proxy(replicas, tmp_path):
    """The address of nginx with the file of compose.yaml, of which hosts, ports and places are replaced."""
    program = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")
    if program is None:
        pytest.skip("nginx is not installed")
    port, text = free_port(), NGINX.read_text()
    for number, replica in enumerate(replicas, 1):
        text = text.replace(f"server-{number}:5000", f"127.0.0.1:{replica.server_port}")
    text = text.replace("listen 5000", f"listen 127.0.0.1:{port}").replace("/tmp/", f"{tmp_path}/")
    text = text.replace("/dev/stdout", f"{tmp_path}/access.log").replace("worker_processes auto", "worker_processes 1")
    (tmp_path / "nginx.conf").write_text(text.replace("/dev/stderr", f"{tmp_path}/error.log"))
    options = [program, "-p", str(tmp_path), "-c", str(tmp_path / "nginx.conf"), "-e", str(tmp_path / "error.log")]
    checked = subprocess.run([*options, "-t"], capture_output=True, text=True)
    assert not checked.returncode, checked.stderr
    process = subprocess.Popen([*options, "-g", "daemon off;"])
    for _ in range(100):
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=1)
        except urllib.error.HTTPError:
            break
        except OSError:
            time.sleep(0.05)
    yield f"http://127.0.0.1:{port}"
    process.terminate()
    process.wait(10)


def ask(address: str, body: bytes, timeout: float = 30) -> tuple[int, bytes]:
    try:
        with urllib.request.urlopen(urllib.request.Request(address, body), timeout=timeout) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def test_a_replica_dies_under_load_and_no_request_is_lost(replicas, proxy, tmp_path):
    texts = [f"secret {number}".encode() * 50 for number in range(300)]

    def one(number):
        if number == 50:
            replicas[0].ending = True
        if number == 100:
            replicas[0].dying = True  # requests that it has break off, those that come are refused
            replicas[0].shutdown()
            replicas[0].server_close()
        return ask(f"{proxy}/translate?q=secret", texts[number])

    with ThreadPoolExecutor(8) as clients:
        answers = list(clients.map(one, range(300)))
    assert answers == [(200, text) for text in texts]
    assert replicas[0].answered > 10  # both had work
    assert replicas[1].answered > 150
    assert "secret" not in (tmp_path / "access.log").read_text()

    replicas[1].dying = True
    status, body = ask(f"{proxy}/translate", b"x")
    assert (status, json.loads(body)) == (503, {"error": "no replica can answer now"})
    status, body = ask(f"{proxy}/translate", b"x" * (10 * 2**20 + 1))
    assert (status, json.loads(body)) == (413, {"error": "the body is larger than 10 MB"})
