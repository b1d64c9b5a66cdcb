"""Uploads a built folder to the Hub. After an interruption the same command continues: what arrived is not sent again.

huggingface_hub's upload_folder skips files that are committed and data that is stored. This file adds: one repository,
branch or pull request for all attempts, trying again, and clear errors.
"""

import time
from collections.abc import Callable
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
    create_pr: bool = False,
    revision: str | None = None,
    token: str | None = None,
    message: str | None = None,
    space: bool = False,
    attempts: int = ATTEMPTS,
    api: Any = None,
    tell: Callable[[str], None] = lambda text: None,
) -> str:
    """Uploads a folder that `build_folder` made; returns its address on the Hub.

    Args:
        repo_id, revision: "owner/name" and a branch; both are made if they do not exist (not with `create_pr`).
        private: of a new repository; None leaves it to the owner's default.
        create_pr: upload into a pull request; an open one of an interrupted upload is continued.
        space: whether the folder is a gradio Space, not a model.
        token: default: HF_TOKEN or the one stored by `hf auth login`.
        attempts: how often to try in all if the network fails, waiting longer each time.

    Raises: UserError: no token, no network, no permission, a wrong name, an unfinished upload.
    """
    if create_pr and revision:
        raise UserError("--create-pr and --revision: choose one; a pull request goes to the main branch.")
    api = api or _api(token)
    message = message or f"Publish {repo_id.split('/')[-1]} with hf_mlnmt"
    kind = {"repo_type": "space"} if space else {}

    def ask(method: Callable[..., Any], **how: Any) -> Any:
        try:
            return method(repo_id, **how, **kind)
        except (HTTPError, OSError) as error:
            raise _explain(error, repo_id) from error

    if create_pr:
        revision = f"refs/pr/{ask(_pull_request, api=api, title=message)}"
    else:
        ask(api.create_repo, private=private, exist_ok=True, **({"space_sdk": "gradio"} if space else {}))
        if revision:
            ask(api.create_branch, branch=revision, exist_ok=True)
    upload = partial(api.upload_folder, repo_id=repo_id, folder_path=Path(folder), revision=revision, **kind)
    _persist(partial(upload, commit_message=message), repo_id, attempts, tell)
    # A large folder arrives in several commits, of which some may be missing.
    here = {path.relative_to(folder).as_posix() for path in Path(folder).rglob("*") if path.is_file()}
    if lacking := sorted(here - set(ask(api.list_repo_files, revision=revision))):
        raise UserError(f"{repo_id}: {', '.join(lacking)} did not arrive. Run the same command again to go on.")
    address = f"{getattr(api, 'endpoint', 'https://huggingface.co')}/{'spaces/' if space else ''}{repo_id}"
    if create_pr:
        return f"{address}/discussions/{str(revision).rsplit('/', 1)[-1]}"
    return address + (f"/tree/{revision}" if revision else "")


def collect(collection: str, repo_id: str, *, private: bool | None = None, api: Any = None) -> str:
    """Adds a model to a collection of the Hub; returns the collection's address.

    collection: its slug (owner/title-64f9a5...), or the title of one of the model's owner, made if there is none.
    """
    api, owner = api or _api(), repo_id.split("/")[0]
    try:
        if "/" not in collection:
            made = api.create_collection(collection, namespace=owner, private=bool(private), exists_ok=True)
            collection = made.slug
        api.add_collection_item(collection, repo_id, "model", exists_ok=True)
    except (HTTPError, OSError) as error:
        raise _explain(error, collection) from error
    return f"{getattr(api, 'endpoint', 'https://huggingface.co')}/collections/{collection}"


def planned(folder: str | Path, *, output: str | Path | None, push: str | None, **upload: Any) -> str:
    """Returns lines of text: the files of a folder, and what would be written and uploaded, for a dry run.

    upload: `private`, `create_pr`, `revision`, `space` and `collection`, as of the command's options.
    """
    files = {path: path.stat().st_size for path in sorted(Path(folder).rglob("*")) if path.is_file()}
    lines = {"files": f"{len(files)}, {sum(files.values()) / 1e6:,.1f} MB"}
    lines |= {f"  {path.relative_to(folder).as_posix()}": f"{size:,} bytes" for path, size in files.items()}
    if output:
        lines["written to"] = f"{output}{', replacing what is there' if Path(output).is_dir() else ''}"
    if push:
        seen = {None: "seen as its owner has set for all", True: "private", False: "public"}[upload.get("private")]
        branch = f"branch {upload['revision']}, made if it is not there" if upload.get("revision") else "main branch"
        where = "a pull request" if upload.get("create_pr") else f"{branch}; the repository, if new, is {seen}"
        lines["uploaded to"] = f"{push}, {where}"
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


def _api(token: str | None = None) -> Any:
    from huggingface_hub import HfApi

    return HfApi(token=token, library_name="hf_mlnmt")


def check_repository(repo_id: str, option: str = "--push") -> None:
    """Raises UserError, naming the option, for text that is no name of a repository of the Hub."""
    from huggingface_hub.utils import validate_repo_id

    try:
        validate_repo_id(repo_id)
    except HFValidationError as error:
        raise UserError(f"{option} {repo_id}: not a repository name ({error})") from error
    if repo_id.count("/") != 1:
        raise UserError(f"{option} {repo_id}: expected owner/name, as in my-name/my-model.")


def check_ready(repo_id: str, token: str | None = None) -> None:
    """Raises UserError, before a folder is built, for a wrong name, offline mode or no token; uses no network."""
    from huggingface_hub import get_token
    from huggingface_hub.constants import HF_HUB_OFFLINE

    check_repository(repo_id)
    if HF_HUB_OFFLINE:
        raise UserError("offline mode is on (HF_HUB_OFFLINE): unset it to push, or give --output FOLDER.")
    if not (token or get_token()):
        raise UserError(f"no Hugging Face token found, so nothing can be pushed to {repo_id}. {_TOKEN_HELP}")


def _pull_request(repo_id: str, api: Any, title: str, **kind: str) -> int:
    """Returns the number of our open pull request of this title, else opens one: upload_folder would open several."""
    user = api.whoami()["name"]
    for discussion in api.get_repo_discussions(repo_id, author=user, discussion_type="pull_request", **kind):
        if discussion.title == title and discussion.status in ("open", "draft"):
            return discussion.num
    return api.create_pull_request(repo_id, title=title, **kind).num


def _persist(upload: Callable[[], Any], repo_id: str, attempts: int, tell: Callable[[str], None]) -> None:
    """Uploads; tries again when the network fails. Raises: UserError after the last attempt or a permanent error."""
    for attempt in range(1, attempts + 1):
        try:
            upload()
            return
        except (HTTPError, OSError, RuntimeError) as error:  # RuntimeError is raised by the xet client
            if attempt == attempts or _status(error) in _PERMANENT or isinstance(error, OfflineModeIsEnabled):
                raise _explain(error, repo_id, unfinished=True) from error
            wait = 2**attempt
            tell(f"upload interrupted ({first_line(error)}); going on in {wait} seconds ({attempt} of {attempts})")
            time.sleep(wait)


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
        return UserError(f"{repo_id}: the token may not write there. Use a token with write access, or --create-pr.")
    if status == 404:
        return UserError(f"{repo_id}: the Hub has no such repository or branch (or hides it from this token).")
    if status is not None:
        return UserError(f"{repo_id}: the Hub answered {status}: {first_line(error)}.{resume}")
    return UserError(f"{repo_id}: the Hub cannot be reached ({first_line(error)}). Check the network.{resume}")
