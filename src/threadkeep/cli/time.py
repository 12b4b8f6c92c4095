"""Commands that change which threads and branches there are: copy, delete, fork, rollback."""

from __future__ import annotations

from typing import Annotated

import typer

from threadkeep.cli.app import DryRun, Json, Kind, Tenant, Url, Yes, app, opened, sure
from threadkeep.cli.output import answer
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
    answer(said, [f"copied {thread} to {target}"], as_json=json)


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
    with opened(url, tenant, read_only=dry_run) as keep:
        there = {id: keep.thread(id, kind=kind) is not None for id in threads}
        if not dry_run and any(there.values()):
            sure(f"Delete {', '.join(id for id in threads if there[id])}?", yes=yes)
            there = {id: keep.delete(id, kind=kind) for id in threads}
    said = {"deleted": [id for id in threads if there[id]], "missing": [id for id in threads if not there[id]]}
    verb = "would delete" if dry_run else "deleted"
    lines = [f"{verb} {id}" if there[id] else f"there is no thread {id}" for id in threads]
    answer(said | {"dry_run": dry_run}, lines, as_json=json)
    return 0 if all(there.values()) else 1
