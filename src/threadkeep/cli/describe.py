"""The command `describe`: set the title and labels of a thread, archive it, or bring it back."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from threadkeep.cli.app import app, open_keep
from threadkeep.cli.options import Json, Kind, Tenant, Thread, Url
from threadkeep.cli.output import one_line, print_result


@app.command(epilog='Example: threadkeep describe trip --title "To Rome" --label travel')
def describe(
    thread: Thread,
    *,
    title: Annotated[str | None, typer.Option("--title", metavar="TEXT", help="Set the title.")] = None,
    no_title: Annotated[bool, typer.Option("--no-title", help="Remove the title.")] = False,
    label: Annotated[
        list[str] | None, typer.Option("--label", metavar="LABEL", help="Add a label. May be repeated.")
    ] = None,
    no_label: Annotated[
        list[str] | None, typer.Option("--no-label", metavar="LABEL", help="Remove a label. May be repeated.")
    ] = None,
    no_labels: Annotated[bool, typer.Option("--no-labels", help="Remove all labels that are not given.")] = False,
    archived: Annotated[
        bool | None,
        typer.Option("--archived/--not-archived", "--archive/--unarchive", help="Mark the thread as archived, or not."),
    ] = None,
    kind: Kind = None,
    url: Url = None,
    tenant: Tenant = "",
    json: Json = False,
) -> None:
    """Set the title and labels of a thread, archive it, or bring it back. The thread need not exist yet."""
    if not thread:  # a variable of a shell that is not set; the thread would be made
        raise ValueError("the thread id is empty")
    if title is not None and no_title:
        raise ValueError("give --title or --no-title, not both")
    if title is not None and not title.strip():
        raise ValueError("the title is empty: --no-title removes one")
    said: dict[str, Any] = {}
    if title is not None or no_title:
        said["title"] = title
    if archived is not None:
        said["archived"] = archived
    if no_labels:
        said["labels"] = ()
    if not (said or label or no_label):
        raise ValueError("nothing to change: give a title, labels, --archived or one of their opposites")
    with open_keep(url, tenant) as keep:
        info = keep.describe(thread, kind=kind, add_labels=label or (), remove_labels=no_label or (), **said)
    labels = f" [{', '.join(info.labels)}]" if info.labels else ""
    mark = ", archived" if info.archived else ""
    title = info.title if info.titled else f"“{info.title}”" if info.title else "(no title)"
    print_result(info, [one_line(f"{info.id}: {title}{labels}{mark}")], as_json=json)
