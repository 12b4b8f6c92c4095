"""Commands that change which threads and branches there are: copy, delete, fork, rollback."""

from __future__ import annotations

from typing import Annotated

import typer

from threadkeep import Branch
from threadkeep.cli.app import CHECKPOINT, NO, DryRun, Json, Kind, Namespace, Tenant, Url, Yes, app, opened, space, sure
from threadkeep.cli.output import answer, as_plain, line
from threadkeep.errors import Missing

_Thread = Annotated[str, typer.Argument(metavar="THREAD", help="A thread's id.")]


@app.command()
def copy(
    thread: _Thread,
    target: Annotated[str, typer.Argument(metavar="TARGET", help="The id of the copy.")],
    *,
    kind: Kind = None,
    url: Url = None,
    tenant: Tenant = "",
    json: Json = False,
) -> None:
    """Copy a thread with all its checkpoints. Checkpoints that the target has stay."""
    with opened(url, tenant) as keep:
        if not keep.copy(thread, target, kind=kind):
            raise Missing(f"there is no thread {thread!r}")
    said = {"thread": thread, "target": target}
    answer(said, [line(f"copied {thread} to {target}")], as_json=json)


@app.command()
def delete(
    threads: Annotated[list[str], typer.Argument(metavar="THREAD...", help="Ids of threads.")],
    *,
    kind: Kind = None,
    yes: Yes = False,
    dry_run: DryRun = False,
    url: Url = None,
    tenant: Tenant = "",
    json: Json = False,
) -> int:
    """Remove threads and all that they hold. Exit code 1 if one of them is not there."""
    threads = list(dict.fromkeys(threads))  # one that is named twice is there until it is deleted
    with opened(url, tenant, read_only=dry_run) as keep:
        there = {id: keep.thread(id, kind=kind) is not None for id in threads}
        if not dry_run and any(there.values()):
            sure(f"Delete {', '.join(line(id) for id in threads if there[id])}?", yes=yes)
            there = {id: keep.delete(id, kind=kind) for id in threads}
    said = {"deleted": [id for id in threads if there[id]], "missing": [id for id in threads if not there[id]]}
    verb = "would delete" if dry_run else "deleted"
    lines = [f"{verb} {id}" if there[id] else f"there is no thread {id}" for id in threads]
    answer(said | {"dry_run": dry_run}, map(line, lines), as_json=json)
    return 0 if all(there.values()) else NO


_CHECKPOINT_HELP = f"{CHECKPOINT} In CubeLoop's threads also a run's id."


@app.command()
def rollback(
    thread: _Thread,
    checkpoint: Annotated[str, typer.Argument(metavar="CHECKPOINT", help=_CHECKPOINT_HELP)],
    *,
    ns: Namespace = None,
    kind: Kind = None,
    dry_run: DryRun = False,
    url: Url = None,
    tenant: Tenant = "",
    json: Json = False,
) -> None:
    """Go back to a checkpoint: a new branch with its state, which is the latest from now on. Nothing is removed."""
    with opened(url, tenant, read_only=dry_run) as keep:
        where = space(keep, thread, checkpoint, ns, kind)
        made = keep.rollback(thread, checkpoint, ns=where, kind=kind, dry_run=dry_run)
    verb = "would go back" if dry_run else "went back"
    lines = [f"{line(thread)} {verb} to {_where(made)}", *_lines(made)]
    answer({**as_plain(made), "dry_run": dry_run}, lines, as_json=json)


@app.command()
def fork(
    thread: _Thread,
    checkpoint: Annotated[str | None, typer.Argument(metavar="CHECKPOINT", help=_CHECKPOINT_HELP)] = None,
    *,
    to: Annotated[str | None, typer.Option("--to", metavar="THREAD", help="The id of a new thread to fork to.")] = None,
    ns: Namespace = None,
    kind: Kind = None,
    url: Url = None,
    tenant: Tenant = "",
    json: Json = False,
) -> None:
    """Go on from a checkpoint, or from the latest, in one more branch; or, with --to, in a new thread."""
    with opened(url, tenant) as keep:
        made = keep.fork(thread, checkpoint, to=to, ns=space(keep, thread, checkpoint, ns, kind), kind=kind)
    where = f"to thread {line(to)}" if to is not None else "in one more branch"
    answer(made, [f"forked {line(thread)} {where} from {_where(made)}", *_lines(made)], as_json=json)


def _where(made: Branch) -> str:
    return line(made.forked_from) + (f" of namespace {line(made.ns)}" if made.ns else "")


def _lines(made: Branch) -> list[str]:
    return [f"  checkpoint  {line(made.id)}", f"  parent      {line(made.parent or '-')}"]
