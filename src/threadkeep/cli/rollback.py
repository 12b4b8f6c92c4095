"""The commands that go back to a checkpoint, or branch off from one: rollback, fork."""

from __future__ import annotations

from typing import Annotated

import typer

from threadkeep import Branch
from threadkeep.cli.app import app, open_keep, resolve_namespace
from threadkeep.cli.options import (
    CHECKPOINT_HELP,
    DryRun,
    Json,
    Kind,
    Namespace,
    Tenant,
    Thread,
    Url,
)
from threadkeep.cli.output import (
    as_plain,
    one_line,
    print_result,
)

_CHECKPOINT_OR_RUN_HELP = f"{CHECKPOINT_HELP} In a CubeLoop thread also a run id."


@app.command(epilog="Example: threadkeep rollback trip latest~1 --dry-run")
def rollback(
    thread: Thread,
    checkpoint: Annotated[str, typer.Argument(metavar="CHECKPOINT", help=_CHECKPOINT_OR_RUN_HELP)],
    *,
    ns: Namespace = None,
    kind: Kind = None,
    dry_run: DryRun = False,
    url: Url = None,
    tenant: Tenant = "",
    json: Json = False,
) -> None:
    """Roll a thread back to a checkpoint. Nothing is removed.

    This adds a branch with the state of the checkpoint. The branch becomes the latest.
    """
    with open_keep(url, tenant, read_only=dry_run) as keep:
        ns = resolve_namespace(keep, thread, checkpoint, ns, kind)
        branch = keep.rollback(thread, checkpoint, ns=ns, kind=kind, dry_run=dry_run)
    verb = "would roll back" if dry_run else "rolled back"
    lines = [f"{verb} {one_line(thread)} to {_source(branch)}", *_branch_lines(branch)]
    print_result({**as_plain(branch), "dry_run": dry_run}, lines, as_json=json)


@app.command(epilog="Example: threadkeep fork trip latest~2 --to trip-2")
def fork(
    thread: Thread,
    checkpoint: Annotated[
        str | None, typer.Argument(metavar="CHECKPOINT", help=_CHECKPOINT_OR_RUN_HELP, show_default="latest")
    ] = None,
    *,
    to: Annotated[str | None, typer.Option("--to", metavar="THREAD", help="Id of the new thread.")] = None,
    ns: Namespace = None,
    kind: Kind = None,
    url: Url = None,
    tenant: Tenant = "",
    json: Json = False,
) -> None:
    """Fork a checkpoint into a new branch, or with --to a new thread."""
    with open_keep(url, tenant) as keep:
        ns = resolve_namespace(keep, thread, checkpoint, ns, kind)
        branch = keep.fork(thread, checkpoint, to=to, ns=ns, kind=kind)
    target = f"to thread {one_line(to)}" if to is not None else "to a new branch"
    lines = [f"forked {one_line(thread)} {target} from {_source(branch)}", *_branch_lines(branch)]
    print_result(branch, lines, as_json=json)


def _source(branch: Branch) -> str:
    return one_line(branch.forked_from) + (f" in namespace {one_line(branch.ns)}" if branch.ns else "")


def _branch_lines(branch: Branch) -> list[str]:
    return [f"  checkpoint  {one_line(branch.id)}", f"  parent      {one_line(branch.parent or '-')}"]
