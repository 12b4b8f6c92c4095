"""The command `tenants`: list the tenants of a storage, or drop one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import typer
from rich.console import RenderableType

from threadkeep.cli.app import app, confirm, interruption_message, open_keep
from threadkeep.cli.options import Json, Url, Yes
from threadkeep.cli.output import format_size, one_line, print_ids, print_result, progress_bar, table
from threadkeep.jobs.tenants import DroppedTenant, TenantInfo
from threadkeep.plural import plural


@app.command(epilog="Example: threadkeep tenants drop acme --yes")
def tenants(
    action: Annotated[str | None, typer.Argument(metavar="drop", help="Drop a tenant. Default: list all.")] = None,
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="The tenant to drop.")] = None,
    *,
    yes: Yes = False,
    ids: Annotated[bool, typer.Option("--ids", help="Print only the names, one on each line.")] = False,
    url: Url = None,
    json: Json = False,
) -> int:
    """List the tenants of a storage, or drop one: `threadkeep tenants drop NAME`.

    Dropping removes all threads and memories of the tenant, its keys and its quota. Neither needs the tenant's keys.
    """
    if action not in (None, "drop"):
        raise ValueError(f"{action!r} is not an action: leave it out to list tenants, or write drop")
    if action is None:
        with open_keep(url, "", read_only=True) as keep, progress_bar("measuring", hidden=json) as on_progress:
            found = keep.tenants(on_progress=on_progress)
        if ids:
            print_ids((each.name for each in found), as_json=json)
        else:
            print_result(found, _list_lines(found), as_json=json)
        return 0
    if ids:
        raise ValueError("--ids is for the list: leave it out to drop a tenant")
    if not name:
        raise ValueError("which tenant? write: threadkeep tenants drop NAME")
    confirm(f"Drop tenant {name!r} with all its threads and memories?", yes=yes)
    with (
        open_keep(url, "") as keep,
        interruption_message("nobody can use the tenant; the same command continues"),
        progress_bar("dropping", hidden=json) as on_progress,
    ):
        dropped = keep.drop_tenant(name, on_progress=on_progress)
    print_result(dropped, _drop_lines(dropped), as_json=json)
    return 0


def _list_lines(found: list[TenantInfo]) -> Iterator[RenderableType]:
    if not found:
        yield "no tenants"
        return
    columns = ("tenant", "encrypted", "threads", "memories", "size", "quota")
    rows = [
        (
            one_line(each.name) or "(default)",
            "yes" if each.encrypted else "no",
            each.threads,
            each.memories,
            format_size(each.bytes),
            format_size(each.quota_bytes) if each.quota_bytes is not None else "-",
        )
        for each in found
    ]
    yield table(columns, rows, right=("threads", "memories", "size", "quota"))


def _drop_lines(dropped: DroppedTenant) -> Iterator[RenderableType]:
    memories = plural(dropped.memories, "memory", "memories")
    yield one_line(f"dropped {dropped.name}: {plural(dropped.threads, 'thread')} and {memories}")
