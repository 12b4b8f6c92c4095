"""The command `waiting`: list what threads wait for a person to answer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import typer
from rich.console import RenderableType

from threadkeep import WaitingThread
from threadkeep.cli.app import app, open_keep
from threadkeep.cli.options import TIME, Json, KindFilter, Match, Metadata, Prefix, Tenant, Url, key_value
from threadkeep.cli.output import print_ids, print_result, progress_bar, shorten, table
from threadkeep.engine.history.answer_options import question_text
from threadkeep.plural import plural


@app.command(epilog="Example: threadkeep waiting --metadata user=ann")
def waiting(
    *,
    prefix: Prefix = "",
    metadata: Metadata = None,
    match: Match = "latest",
    kind: KindFilter = None,
    before: Annotated[
        str | None, typer.Option("--before", metavar="TIME", help=f"Only what was asked before TIME: {TIME}.")
    ] = None,
    limit: Annotated[int | None, typer.Option("--limit", metavar="N", min=0, help="Print the first N.")] = None,
    paused: Annotated[
        bool, typer.Option("--paused/--no-paused", help="Include threads that stopped between two steps, or not.")
    ] = True,
    ids: Annotated[bool, typer.Option("--ids", help="Print only the ids of threads, one on each line.")] = False,
    url: Url = None,
    tenant: Tenant = "",
    json: Json = False,
) -> None:
    """List the threads that wait for a person, with question and options. Those that wait longest come first."""
    with open_keep(url, tenant, read_only=True) as keep, progress_bar("threads", hidden=json or ids) as on_progress:
        found = keep.waiting(
            prefix=prefix,
            metadata=dict(map(key_value, metadata or ())),
            match=match,
            kind=kind,
            before=before,
            limit=limit,
            paused=paused,
            on_progress=on_progress,
        )
    if ids:
        print_ids(dict.fromkeys(each.thread for each in found), as_json=json)
    else:
        print_result(found, _lines(found), as_json=json)


def _lines(found: list[WaitingThread]) -> Iterator[RenderableType]:
    if found:
        rows = [
            [each.since, each.thread, each.reason, each.node or ", ".join(each.next), _question(each), _options(each)]
            for each in found
        ]
        yield table(["since", "thread", "reason", "node", "question", "options"], rows, no_wrap=("since", "reason"))
    threads = len({(each.kind, each.thread) for each in found})
    yield f"{plural(threads, 'thread')} waiting" if found else "no thread waits"


def _question(waiting: WaitingThread) -> str:
    text = question_text(waiting.question)
    return shorten(text or waiting.question) if waiting.question is not None else ""


def _options(waiting: WaitingThread) -> str:
    labels = dict.fromkeys(f"{each.subject}: {each.label}" if each.subject else each.label for each in waiting.options)
    return shorten(" | ".join(labels))
