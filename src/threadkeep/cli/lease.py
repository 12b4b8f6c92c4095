"""The command `lease`: show who holds the lease of a thread, or break it."""

from __future__ import annotations

from typing import Annotated

import typer

from threadkeep.cli.app import NEGATIVE, app, confirm, open_keep
from threadkeep.cli.options import Json, KindName, Tenant, Thread, Url, Yes
from threadkeep.cli.output import one_line, print_result
from threadkeep.jobs.leases import LeaseInfo


@app.command(epilog="Example: threadkeep lease show trip")
def lease(
    action: Annotated[str, typer.Argument(metavar="show|break", help="Show the lease, or take it away.")],
    thread: Thread,
    *,
    kind: Annotated[
        KindName, typer.Option("--kind", metavar="KIND", help="graph (LangGraph) or cube (CubeLoop).")
    ] = "graph",
    yes: Yes = False,
    url: Url = None,
    tenant: Tenant = "",
    json: Json = False,
) -> int:
    """Show who holds the lease of a thread, or break it. Exit code 1 if it has none.

    After a break, what the holder still tries to write is refused.
    """
    if action not in ("show", "break"):
        raise ValueError(f"{action!r} is not an action: write show or break")
    with open_keep(url, tenant, read_only=action == "show") as keep:
        found = keep.lease_info(thread, kind=kind)
        if action == "break" and found is not None:
            confirm(f"Break the lease of {one_line(thread)}, {_text(found)}?", yes=yes)
            keep.break_lease(thread, kind=kind)
    text = f"thread {one_line(thread)} has no lease"
    if found is not None:
        text = f"broke the lease, {_text(found)}" if action == "break" else _text(found)
    print_result(found, [text], as_json=json)
    return 0 if found is not None else NEGATIVE


def _text(lease: LeaseInfo) -> str:
    left = f"expires in {lease.seconds:.1f} s unless it is renewed" if lease.seconds else "expired"
    return f"held by {one_line(lease.holder)}, {left}"
