"""`hf-mlnmt publish`: makes the folder of a Hub repository from a trained model, and uploads it."""

import re
import tempfile
from functools import partial
from pathlib import Path
from typing import Any, Literal

from hf_mlnmt.cli import options
from hf_mlnmt.cli.options import argument, option
from hf_mlnmt.common.errors import UserError

PANEL = "Publish"
_of_card = partial(option, rich_help_panel="Model card")
_of_upload = partial(option, rich_help_panel="Upload")


def publish(
    model: Path = argument(..., "Model folder: a run's average/ or best/, or the adapter/ in it."),
    output: Path | None = options.output(None, "Folder to make. An earlier publication there is replaced."),
    push: str | None = _of_upload(None, "Upload to this Hub repository.", metavar="OWNER/NAME"),
    space: str | None = _of_upload(None, "Also a Space that shows the model, in OUTPUT-space.", metavar="OWNER/NAME"),
    static: bool = _of_upload(False, "The Space is a page that translates in the reader's browser; fetched by npm."),
    private: bool | None = _of_upload(
        None, "Who may see a new repository. Default: as its owner has set for all.", "--private/--public"
    ),
    collection: str | None = _of_upload(
        None, "Add the model to this collection: a slug, or a title, made if it is not there.", metavar="NAME"
    ),
    dry_run: bool = option(False, "Build and check everything, list what would be written and asked."),
    licence: str | None = _of_card(None, "As the Hub spells it: apache-2.0, other:NAME.", "--licence", "--license"),
    confirm_licence: bool = _of_card(False, "Publish though --licence gives more than that of data or base model."),
    base_model: list[str] | None = _of_card(
        None, "A model of the Hub that it was made of; repeat it. Default: what its results name.", metavar="OWNER/NAME"
    ),
    source_language: options.From = None,
    target_language: options.To = None,
    dtype: Literal["bfloat16", "float16"] | None = option(None, "Round the weights to this type: half the size."),
) -> None:
    """Make everything a Hub repository of the model needs, check it, and upload it.

    Before the upload the folder is loaded again in fresh processes, with this package and without it, and must compute
    what the model computes; it may have no pickle, no path of this machine and no token. The same command resumes an
    interrupted upload. docs/publishing.md describes the folder and the card.

    Examples:

        hf-mlnmt publish runs/demo/average -o published --licence apache-2.0 --dry-run
        hf-mlnmt publish runs/demo/average --push my-name/my-model --space my-name/try-my-model --licence apache-2.0
    """
    if output is None and push is None:
        raise UserError("nothing to do: give --output FOLDER, --push OWNER/NAME, or both.")
    if push is None and (collection or private is not None):
        raise UserError("--collection and --private say how to upload: add --push OWNER/NAME.")
    if collection and not re.fullmatch(r"[^/]{1,60}|[\w-]+/[\w-]+", collection):
        raise UserError(
            f"--collection {collection}: expected a title, or a slug as owner/title-64f9a55bb3115b4f513ec026."
        )
    if (source_language is None) != (target_language is None):
        raise UserError("give both --from and --to, or neither.")
    if static and not space:
        raise UserError("--static says what the Space is: add --space OWNER/NAME.")

    from hf_mlnmt.cli.terminal import plain_console, silence
    from hf_mlnmt.export.static_space import build_static_space, check_static_space
    from hf_mlnmt.hub.publish import build_folder, build_space, check_space_folder, check_target
    from hf_mlnmt.hub.upload import check_ready, check_repository, collect, planned
    from hf_mlnmt.hub.upload import push as upload

    silence()
    console = plain_console()
    if push:
        (check_repository if dry_run else check_ready)(push)
    if dry_run and output:
        check_target(model, output)
    if space:
        check_repository(space, "--space")
    with tempfile.TemporaryDirectory() as scratch:
        target = Path(scratch) / "model" if dry_run or output is None else output
        beside = target.resolve().with_name(f"{target.resolve().name}-space")
        if space:
            (check_static_space if static else check_space_folder)(beside)
        languages = (source_language, target_language) if source_language and target_language else None
        name = push or (output.resolve().name if output else None)
        of_card: dict[str, Any] = {"name": name, "licence": licence, "languages": languages}
        of_card |= {"space": space, "confirm_licence": confirm_licence, "base_models": base_model or ()}
        built = build_folder(model, target, dtype=dtype, tell=console.print, **of_card)
        if space and static:
            console.print("exporting for the browser, and fetching what runs it")
            build_static_space(built.facts, target, beside, space)
        elif space:
            build_space(built.facts, beside, space)
        for warning in built.warnings:
            console.print(f"warning: {warning}", style="yellow")
        if dry_run:
            how = {"private": private, "space": space, "collection": collection}
            print(planned(target, output=output, push=push, **how))
            console.print("nothing was written or uploaded; without --dry-run it is")
            return
        if output:
            console.print(f"published in {output}" + (f", its Space in {beside}" if space else ""))
        if push:
            console.print(f"uploading to {push}")
            print(upload(target, push, private=private, tell=console.print))
            if collection:
                print(collect(collection, push, private=private))
        if push and space:
            console.print(f"uploading to the Space {space}")
            print(upload(beside, space, private=private, space=True, tell=console.print))
