"""Uploads a built folder to the Hub. After an interruption the same command continues: what arrived is not sent again.

huggingface_hub's upload_folder skips files that are committed and data that is stored. This file adds trying again, and
clear errors.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from huggingface_hub.errors import HfHubHTTPError, HFValidationError, OfflineModeIsEnabled

from hf_mlnmt.common.errors import UserError
from hf_mlnmt.common.model_folder import first_line

# huggingface_hub 2.x talks through httpx2, 1.x through httpx; both base their own error on that library's.
HTTPError: Any = next(base for base in HfHubHTTPError.__mro__ if base.__name__ == "HTTPError")
ATTEMPTS = 4
_TOKEN_HELP = (
    "Make one with write access at https://huggingface.co/settings/tokens, then `hf auth login` or set HF_TOKEN."
)
_PERMANENT = (400, 401, 402, 403, 404, 413, 422)


def push(
    folder: str | Path,
    repo_id: str,
    *,
    private: bool | None = None,
    space: bool = False,
    attempts: int = ATTEMPTS,
    api: Any = None,
    tell: Callable[[str], None] = lambda text: None,
) -> str:
    """Uploads a folder that `build_folder` made, with the token of HF_TOKEN or of `hf auth login`; returns its address.

    Args:
        repo_id: "owner/name"; made if it does not exist.
        private: of a new repository; None leaves it to the owner's default.
        space: whether the folder is a gradio Space, not a model.
        attempts: how often to try in all if the network fails, waiting longer each time.

    Raises: UserError: no token, no network, no permission, a wrong name, an unfinished upload.
    """
    api, message = api or _api(), f"Publish {repo_id.split('/')[-1]} with hf_mlnmt"
    kind = {"repo_type": "space"} if space else {}
    with _explained(repo_id):
        api.create_repo(repo_id, private=private, exist_ok=True, **kind, **({"space_sdk": "gradio"} if space else {}))
    upload = partial(api.upload_folder, repo_id=repo_id, folder_path=Path(folder), commit_message=message, **kind)
    _persist(upload, repo_id, attempts, tell)
    # A large folder is sent in several commits: check that no file is missing at the Hub.
    here = {path.relative_to(folder).as_posix() for path in Path(folder).rglob("*") if path.is_file()}
    with _explained(repo_id):
        lacking = sorted(here - set(api.list_repo_files(repo_id, **kind)))
    if lacking:
        raise UserError(f"{repo_id}: {', '.join(lacking)} did not arrive. Run the same command again to go on.")
    return f"{api.endpoint}/{'spaces/' if space else ''}{repo_id}"


def collect(collection: str, repo_id: str, *, private: bool | None = None, api: Any = None) -> str:
    """Adds a model to a collection of the Hub; returns the collection's address.

    collection: its slug (owner/title-64f9a5...), or the title of one of the model's owner, made if there is none.
    """
    api, owner = api or _api(), repo_id.split("/")[0]
    with _explained(collection):
        if "/" not in collection:
            made = api.create_collection(collection, namespace=owner, private=bool(private), exists_ok=True)
            collection = made.slug
        api.add_collection_item(collection, repo_id, "model", exists_ok=True)
    return f"{api.endpoint}/collections/{collection}"


def planned(folder: str | Path, *, output: str | Path | None, push: str | None, **upload: Any) -> str:
    """Returns lines of text: the files of a folder, and what would be written and uploaded, for a dry run.

    upload: `private`, `space` and `collection`, as of the command's options.
    """
    files = {path: path.stat().st_size for path in sorted(Path(folder).rglob("*")) if path.is_file()}
    lines = {"files": f"{len(files)}, {sum(files.values()) / 1e6:,.1f} MB"}
    lines |= {f"  {path.relative_to(folder).as_posix()}": f"{size:,} bytes" for path, size in files.items()}
    if output:
        lines["written to"] = f"{output}{', replacing what is there' if Path(output).is_dir() else ''}"
    if push:
        seen = {None: "seen as its owner has set for all", True: "private", False: "public"}[upload.get("private")]
        lines["uploaded to"] = f"{push}; the repository, if new, is {seen}"
        try:
            check_ready(push)
            lines["token"] = "found; whether it may write there, the Hub says then"
        except UserError as error:
            lines["not yet"] = str(error)
    for name in ("space", "collection"):
        if upload.get(name):
            lines[name] = f"{upload[name]}, made if it is not there"
    width = max(map(len, lines))
    return "\n".join(f"{name:<{width}}  {text}" for name, text in lines.items())


def _api() -> Any:
    from huggingface_hub import HfApi

    return HfApi(library_name="hf_mlnmt")


def check_repository(repo_id: str, option: str = "--push") -> None:
    """Raises UserError, naming the option, for text that is no name of a repository of the Hub."""
    from huggingface_hub.utils import validate_repo_id

    try:
        validate_repo_id(repo_id)
    except HFValidationError as error:
        raise UserError(f"{option} {repo_id}: not a repository name ({error})") from error
    if repo_id.count("/") != 1:
        raise UserError(f"{option} {repo_id}: expected owner/name, as in my-name/my-model.")


def check_ready(repo_id: str) -> None:
    """Raises UserError, before a folder is built, for a wrong name, offline mode or no token; uses no network."""
    from huggingface_hub import get_token
    from huggingface_hub.constants import HF_HUB_OFFLINE

    check_repository(repo_id)
    if HF_HUB_OFFLINE:
        raise UserError("offline mode is on (HF_HUB_OFFLINE): unset it to push, or give --output FOLDER.")
    if not get_token():
        raise UserError(f"no Hugging Face token found, so nothing can be pushed to {repo_id}. {_TOKEN_HELP}")


def _persist(upload: Callable[[], Any], repo_id: str, attempts: int, tell: Callable[[str], None]) -> None:
    """Uploads; tries again when the network fails. Raises: UserError after the last attempt or a permanent error."""
    for attempt in range(1, attempts + 1):
        try:
            upload()
            return
        except (HTTPError, OSError, RuntimeError) as error:  # the xet client raises RuntimeError
            if attempt == attempts or _status(error) in _PERMANENT or isinstance(error, OfflineModeIsEnabled):
                raise _explain(error, repo_id, unfinished=True) from error
            wait = 2**attempt
            tell(f"upload interrupted ({first_line(error)}); going on in {wait} seconds ({attempt} of {attempts})")
            time.sleep(wait)


@contextmanager
def _explained(name: str) -> Iterator[None]:
    """Turns errors of the Hub and of the network into a UserError that names the repository or collection."""
    try:
        yield
    except (HTTPError, OSError) as error:
        raise _explain(error, name) from error


def _status(error: BaseException) -> int | None:
    return getattr(getattr(error, "response", None), "status_code", None)


def _explain(error: BaseException, repo_id: str, unfinished: bool = False) -> UserError:
    """Makes a UserError that says what happened and what to do, from an error of the Hub or the network."""
    status = _status(error)
    resume = " What arrived is kept: run the same command again to go on." if unfinished else ""
    if isinstance(error, OfflineModeIsEnabled):
        return UserError("offline mode is on (HF_HUB_OFFLINE): unset it to push, or give --output FOLDER.")
    if status == 401 or type(error).__name__ == "LocalTokenNotFoundError":
        return UserError(f"the Hub does not accept the token ({first_line(error)}). {_TOKEN_HELP}")
    if status == 403:
        return UserError(f"{repo_id}: the token may not write there. Use a token with write access.")
    if status == 404:
        return UserError(f"{repo_id}: the Hub has no such repository (or hides it from this token).")
    if status is not None:
        return UserError(f"{repo_id}: the Hub answered {status}: {first_line(error)}.{resume}")
    return UserError(f"{repo_id}: the Hub cannot be reached ({first_line(error)}). Check the network.{resume}")
