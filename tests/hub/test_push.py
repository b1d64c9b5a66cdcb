"""Uploading, against a Hub made of a dictionary: resuming, and what each failure says."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled

from hf_mlnmt import UserError
from hf_mlnmt.hub import push
from hf_mlnmt.hub.upload import HTTPError, check_ready, collect


def http_error(status: int) -> HfHubHTTPError:
    response = SimpleNamespace(status_code=status, headers={}, request=None, text="")
    error = HfHubHTTPError.__new__(HfHubHTTPError)
    Exception.__init__(error, f"{status} from the Hub")
    error.response = response
    return error


class FakeHub:
    """Files of a repository. Sends one file a step and fails after `fail_after` files, as often as `failures` says."""

    endpoint = "https://hub.test"

    def __init__(self, failures: list[Exception] | None = None, fail_after: int = 1) -> None:
        self.failures, self.fail_after = list(failures or []), fail_after
        self.files: dict[str, bytes] = {}
        self.sent: list[str] = []
        self.calls: list[tuple[str, Any]] = []

    def create_repo(self, repo_id: str, private: bool | None, exist_ok: bool) -> None:
        assert exist_ok
        self.calls.append(("create_repo", private))

    def create_collection(self, title: str, namespace: str, private: bool, exists_ok: bool) -> SimpleNamespace:
        assert exists_ok
        self.calls.append(("create_collection", (title, namespace, private)))
        return SimpleNamespace(slug=f"{namespace}/{title.lower()}-0a1b")

    def add_collection_item(self, collection_slug: str, item_id: str, item_type: str, exists_ok: bool) -> None:
        assert exists_ok
        if collection_slug.startswith("bob/"):
            raise http_error(403)
        self.calls.append(("add_collection_item", (collection_slug, item_id, item_type)))

    def upload_folder(self, repo_id: str, folder_path: Path, commit_message: str) -> None:
        there, new = self.files, 0
        for path in sorted(path for path in folder_path.rglob("*") if path.is_file()):
            name = path.relative_to(folder_path).as_posix()
            if there.get(name) == path.read_bytes():
                continue  # as the real one: what is committed is not sent again
            if self.failures and new == self.fail_after:
                raise self.failures.pop(0)
            there[name] = path.read_bytes()
            self.sent.append(name)
            new += 1

    def list_repo_files(self, repo_id: str) -> list[str]:
        return [*self.files, ".gitattributes"]


@pytest.fixture
def folder(tmp_path) -> Path:
    for name in ("README.md", "config.json", "model.safetensors", "target_tokenizer/tokenizer.json"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    return tmp_path


@pytest.fixture(autouse=True)
def waits(monkeypatch) -> list[float]:
    waited: list[float] = []
    monkeypatch.setattr("hf_mlnmt.hub.upload.time.sleep", waited.append)
    return waited


ALL = ["README.md", "config.json", "model.safetensors", "target_tokenizer/tokenizer.json"]


def test_everything_arrives(folder):
    hub = FakeHub()
    assert push(folder, "anna/toy", private=True, api=hub) == "https://hub.test/anna/toy"
    assert sorted(hub.files) == ALL
    assert hub.calls == [("create_repo", True)]


def test_an_interrupted_upload_goes_on_by_itself(folder, waits):
    told: list[str] = []
    hub = FakeHub([http_error(503), HTTPError("connection reset"), RuntimeError("xet: broken pipe")])
    push(folder, "anna/toy", api=hub, tell=told.append)
    assert hub.sent == ALL, "each file is sent once, whatever happens between"
    assert waits == [2, 4, 8]
    assert len(told) == 3
    assert "503 from the Hub" in told[0]


def test_after_the_last_attempt_the_same_call_resumes(folder):
    hub = FakeHub([http_error(503)] * 4, fail_after=0)
    with pytest.raises(UserError, match=r"503.*run the same command again to go on"):
        push(folder, "anna/toy", api=hub)
    hub.fail_after, hub.failures = 2, [ConnectionError("gone")]
    with pytest.raises(UserError, match=r"cannot be reached \(gone\)"):
        push(folder, "anna/toy", api=hub, attempts=1)
    assert len(hub.sent) == 2
    push(folder, "anna/toy", api=hub)
    assert hub.sent == ALL


def test_a_model_is_put_into_a_collection():
    hub = FakeHub()
    assert collect("anna/mt-0a1b", "anna/toy", api=hub) == "https://hub.test/collections/anna/mt-0a1b"
    assert collect("Translation", "anna/toy", private=True, api=hub).endswith("/anna/translation-0a1b")
    assert hub.calls == [
        ("add_collection_item", ("anna/mt-0a1b", "anna/toy", "model")),
        ("create_collection", ("Translation", "anna", True)),
        ("add_collection_item", ("anna/translation-0a1b", "anna/toy", "model")),
    ]
    with pytest.raises(UserError, match=r"bob/theirs-1: the token may not write there"):
        collect("bob/theirs-1", "anna/toy", api=hub)


def test_a_missing_file_is_noticed(folder, monkeypatch):
    hub = FakeHub()
    monkeypatch.setattr(hub, "list_repo_files", lambda repo_id: ["README.md"])
    with pytest.raises(UserError, match=r"config\.json, model\.safetensors.*did not arrive"):
        push(folder, "anna/toy", api=hub)


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (http_error(401), "does not accept the token"),
        (http_error(403), "may not write"),
        (http_error(404), "no such repository"),
        (OfflineModeIsEnabled("offline"), "offline mode is on"),
    ],
)
def test_what_cannot_be_mended_by_waiting_is_not_tried_again(folder, waits, error, message):
    with pytest.raises(UserError, match=message):
        push(folder, "anna/toy", api=FakeHub([error] * 4, fail_after=0))
    assert waits == []


def test_no_network_at_the_first_question(folder, monkeypatch):
    hub = FakeHub()

    def fail(*given: object, **how: object) -> None:
        raise HTTPError("name resolution failed")

    monkeypatch.setattr(hub, "create_repo", fail)
    with pytest.raises(UserError, match="cannot be reached"):
        push(folder, "anna/toy", api=hub)


def test_programming_errors_are_not_taken_for_the_network(folder):
    with pytest.raises(TypeError):
        push(folder, "anna/toy", api=FakeHub([TypeError("bug")]))


def test_ready(monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("huggingface_hub.get_token", lambda: None)
    with pytest.raises(UserError, match="no Hugging Face token"):
        check_ready("anna/toy")
    monkeypatch.setattr("huggingface_hub.get_token", lambda: "hf_x")
    check_ready("anna/toy")
    for name in ("toy", "anna/to y", "a/b/c"):
        with pytest.raises(UserError, match="--push"):
            check_ready(name)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(UserError, match="offline"):
        check_ready("anna/toy")


def test_the_fake_takes_what_the_real_one_takes():
    """Every call above must fit huggingface_hub's own signatures."""
    import inspect

    from huggingface_hub import HfApi

    for name in ("create_repo", "upload_folder", "list_repo_files", "create_collection", "add_collection_item"):
        real = inspect.signature(getattr(HfApi, name)).parameters
        assert set(inspect.signature(getattr(FakeHub, name)).parameters) <= set(real), name
