"""The commands that copy, delete, fork and roll back threads: copy, delete, rollback, fork."""

from __future__ import annotations

from typing import Annotated

import typer

from threadkeep import Branch
from threadkeep.cli.app import NEGATIVE, app, confirm, open_keep, resolve_namespace
from threadkeep.cli.options import CHECKPOINT_HELP, DryRun, Json, Kind, Namespace, Salvage, Tenant, Thread, Url, Yes
from threadkeep.cli.output import as_plain, damage_lines, one_line, print_result
from threadkeep.errors import Corrupt, Missing
from threadkeep.jobs.catalogue import copy_thread

_CHECKPOINT_OR_RUN_HELP = f"{CHECKPOINT_HELP} In a CubeLoop thread also a run id."


@app.command()
def copy(
    thread: Thread,
    target: Annotated[str, typer.Argument(metavar="TARGET", help="Id of the copy.")],
    *,
    kind: Kind = None,
    salvage: Salvage = False,
    url: Url = None,
    tenant: Tenant = "",
    json: Json = False,
) -> int:
    """Copy a thread with all its checkpoints. Checkpoints that TARGET already has stay unchanged.

    A damaged thread is not copied, and the exit code is 1.
    """
    skipped: list[str] = []
    damage: tuple[str, ...] | None
    with open_keep(url, tenant) as keep:
        session = keep._session  # noqa: SLF001 - the public verb does not return what was left out
        try:
            damage = session.work(copy_thread(session, thread, target, kind=kind, salvage=salvage))
        except Corrupt as error:
            skipped, damage = [thread], (str(error),)
    if damage is None:
        raise Missing(f"thread {thread!r} not found")
    result = {"thread": thread, "target": target, "skipped": skipped, "damage": list(damage)}
    lines = [] if skipped else [one_line(f"copied {'the intact part of ' * bool(damage)}{thread} to {target}")]
    print_result(result, [*lines, *damage_lines(skipped, damage)], as_json=json)
    return NEGATIVE if damage else 0


@app.command()
def delete(
    threads: Annotated[list[str], typer.Argument(metavar="THREAD", help="Thread ids.")],
    *,
    kind: Kind = None,
    yes: Yes = False,
    dry_run: DryRun = False,
    url: Url = None,
    tenant: Tenant = "",
    json: Json = False,
) -> int:
    """Delete threads with everything they hold. Exit code 1 if a thread is not found."""
    threads = list(dict.fromkeys(threads))  # an id that is given twice would be missing the second time
    with open_keep(url, tenant, read_only=dry_run) as keep:
        found = {id: keep.thread(id, kind=kind) is not None for id in threads}
        if not dry_run and any(found.values()):
            confirm(f"Delete {', '.join(one_line(id) for id in threads if found[id])}?", yes=yes)
            found = {id: keep.delete(id, kind=kind) for id in threads}
    result = {
        "deleted": [id for id in threads if found[id]],
        "missing": [id for id in threads if not found[id]],
        "dry_run": dry_run,
    }
    verb = "would delete" if dry_run else "deleted"
    lines = [f"{verb} {id}" if found[id] else f"thread {id} not found" for id in threads]
    print_result(result, map(one_line, lines), as_json=json)
    return 0 if all(found.values()) else NEGATIVE


@app.command()
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


@app.command()
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
