"""The commands that inspect threads: threads, show, tree, log, diff, blame. They change nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from shlex import quote
from typing import Annotated, Any

import typer
from rich.cells import cell_len
from rich.console import RenderableType
from rich.text import Text

import threadkeep
from threadkeep.cli import chat, tree_drawing
from threadkeep.cli.app import NEGATIVE, app, open_keep, resolve_namespace
from threadkeep.cli.completion import complete_from
from threadkeep.cli.differences import difference_lines, value_text
from threadkeep.cli.options import (
    CHECKPOINT_HELP,
    FullIds,
    Ids,
    Json,
    Kind,
    KindFilter,
    KindName,
    LatestCheckpoint,
    Match,
    Metadata,
    Namespace,
    OrderName,
    Prefix,
    StatusName,
    Tenant,
    Thread,
    Url,
    key_value,
)
from threadkeep.cli.output import (
    STATUS_STYLES,
    Hanging,
    as_json_text,
    console,
    escape,
    format_size,
    format_time,
    id_names,
    is_terminal,
    one_line,
    print_ids,
    print_result,
    shorten,
    table,
    times_in_table,
)
from threadkeep.engine.identity import CUBE, GRAPH
from threadkeep.engine.threads.status import is_internal
from threadkeep.errors import Corrupt, Missing

_PAGE, _LAST_MESSAGES = 50, 20
"""What a terminal shows of threads and of a chat; the output says how to see the rest."""
_MOST_IN_PAGE = 1000
_INDENT = Text("    ")
_WIDTH = 200
"""The longest value or id that is printed; longer ones are cut."""
_LEAST_TITLE, _SHORTEST_TITLE = 16, 4
"""Columns are left out of a table of threads until titles have the first width. None is cut below the second."""


@app.command(epilog="Example: threadkeep threads --status interrupted --metadata user=ann")
def threads(
    *,
    contains: Annotated[
        str,
        typer.Option(
            "--contains", metavar="TEXT", help="Only threads whose id, given title or labels contain TEXT, in any case."
        ),
    ] = "",
    label: Annotated[
        list[str] | None,
        typer.Option("--label", metavar="LABEL", help="Only threads with this label. May be repeated."),
    ] = None,
    archived: Annotated[
        bool | None, typer.Option("--archived/--not-archived", help="Only archived threads, or only others.")
    ] = None,
    prefix: Prefix = "",
    order: Annotated[
        OrderName,
        typer.Option(
            "--order",
            metavar="ORDER",
            help="Sort by updated, created, bytes or id.",
            autocompletion=complete_from("updated", "created", "bytes", "id"),
        ),
    ] = "updated",
    status: Annotated[
        StatusName | None,
        typer.Option(
            "--status",
            metavar="STATUS",
            help="Only idle, pending, interrupted or error threads.",
            autocompletion=complete_from("idle", "pending", "interrupted", "error"),
        ),
    ] = None,
    metadata: Metadata = None,
    match: Match = "latest",
    limit: Annotated[
        int | None,
        typer.Option(
            "--limit", metavar="N", min=0, help="Print at most N threads. Default: 50 in a terminal, otherwise all."
        ),
    ] = None,
    after: Annotated[
        str | None, typer.Option("--after", metavar="ID", help="Print the page after this thread.")
    ] = None,
    after_kind: Annotated[
        KindName | None,
        typer.Option(
            "--after-kind", metavar="KIND", help="Kind of that thread. Only needed if both kinds have its id."
        ),
    ] = None,
    kind: KindFilter = None,
    column: Annotated[
        list[str] | None,
        typer.Option("--column", metavar="KEY", help="Also print this key of the metadata. May be repeated."),
    ] = None,
    ids: Ids = False,
    url: Url = None,
    tenant: Tenant = "",
    json: Json = False,
) -> None:
    """List threads."""
    if limit is None and is_terminal() and not (ids or json):
        limit = _PAGE
    with open_keep(url, tenant, read_only=True) as keep:
        read = partial(
            keep.threads,
            prefix=prefix,
            metadata=dict(map(key_value, metadata or ())),
            match=match,
            status=status,
            order=order,
            kind=kind,
            contains=contains,
            labels=label,
            archived=archived,
            columns=column or (),
        )
        found = _all_threads(read, None if after is None else _thread(keep, after, after_kind or kind), limit)
        more = _next_page(keep, found[-1], kind) if found and len(found) == limit else ""
    if ids:
        print_ids(dict.fromkeys(each.id for each in found), as_json=json)
    else:
        print_result(found, _thread_lines(found, more, order, column or ()), as_json=json)


def _all_threads(
    read: Callable[..., list[threadkeep.ThreadInfo]], after: threadkeep.ThreadInfo | None, limit: int | None
) -> list[threadkeep.ThreadInfo]:
    """Return this number of threads, or all, page by page."""
    found: list[threadkeep.ThreadInfo] = []
    while True:
        size = _MOST_IN_PAGE if limit is None else min(limit - len(found), _MOST_IN_PAGE)
        page = read(limit=size, after=after)
        found += page
        if len(page) < size or len(found) == limit:
            return found
        after = page[-1]


def _thread(keep: threadkeep.Keep, id: str, kind: KindName | None) -> threadkeep.ThreadInfo:
    found = keep.thread(id, kind=kind)
    if found is None:
        raise Missing(f"--after: thread {id!r} not found")
    return found


def _next_page(keep: threadkeep.Keep, last: threadkeep.ThreadInfo, kind: KindName | None) -> str:
    """Return the options for the next page, quoted for a shell."""
    kinds = [each for each in (GRAPH, CUBE) if keep.thread(last.id, kind=each) is not None]
    options = f"--after {quote(last.id)}"
    return options if kind is not None or len(kinds) < 2 else f"{options} --after-kind {last.kind}"


def _thread_lines(
    found: list[threadkeep.ThreadInfo], more: str, order: str, columns: Iterable[str]
) -> Iterator[RenderableType]:
    if not found:
        yield "no threads"
        return
    metadata = {key: [_metadata_cell(info, key) for info in found] for key in columns}
    cells = {name: [cell(info) for info in found] for name, cell in _THREAD_COLUMNS.items()}
    room = console().width - sum(min(_column_width(key, column), _LEAST_TITLE) for key, column in metadata.items())
    titles = [_title(info, _WIDTH) for info in found]
    left_out = _left_out(cells, order, room - min(_LEAST_TITLE, max(title.cell_len for title in titles)))
    cells = {name: column for name, column in cells.items() if name not in left_out}
    room -= sum(_column_width(name, column) for name, column in cells.items())
    titles = [_title(info, room) for info in found]
    yield table(
        [*cells, "title", *map(one_line, metadata)],
        zip(*cells.values(), titles, *metadata.values(), strict=True),
        right=("checkpoints", "writes", "size", "step"),
        no_wrap=[name for name in cells if name != "thread" or room >= _SHORTEST_TITLE],  # a long id is folded
    )
    if left_out:
        yield Text(f"a wider terminal also shows: {', '.join(left_out)}", "dim")
    if more:
        yield Text(f"next page: {one_line(more)}", "dim")


def _left_out(cells: Mapping[str, Sequence[str | Text]], order: str, room: int) -> list[str]:
    """Return the columns to leave out, so that the others, with ids on one line, fit into `room`."""
    least_useful = [
        *(["kind"] if len(set(cells["kind"])) == 1 else []),
        "writes",
        "step",
        *(["updated", "checkpoints", "size"] if order == "bytes" else ["size", "checkpoints", "updated"]),
    ]
    widths = {name: _column_width(name, column) for name, column in cells.items()}
    left_out: list[str] = []
    while least_useful and sum(widths.values()) > room:
        left_out.append(least_useful.pop(0))
        del widths[left_out[-1]]
    return [name for name in cells if name in left_out]


def _column_width(name: str, column: Iterable[str | Text]) -> int:
    """Return the width of a column of a table, with the space after it."""
    return max(cell_len(str(cell)) for cell in (name, *column)) + 2


def _title(info: threadkeep.ThreadInfo, width: int) -> Text:
    """Return the title of a thread, a derived one in quotes, with its labels. A long title is cut, labels are not."""
    labels = ", ".join(map(one_line, info.labels))
    end = Text(f" [{labels}]" if labels else "", "cyan").append(" (archived)" if info.archived else "", "dim")
    quotes = ("", "") if info.titled or not info.title else ("“", "”")
    title = Text(shorten(info.title or "", _WIDTH))
    title.truncate(max(width - len("".join(quotes)) - end.cell_len, _SHORTEST_TITLE), overflow="ellipsis")
    return Text.assemble(quotes[0], title, quotes[1], end)


def _metadata_cell(info: threadkeep.ThreadInfo, key: str) -> str:
    value = info.metadata.get(key, "")
    return shorten(one_line(value if isinstance(value, str) else as_json_text(value)), _WIDTH)


_THREAD_COLUMNS: Mapping[str, Callable[[threadkeep.ThreadInfo], str | Text]] = {
    "thread": lambda info: shorten(one_line(info.id), _WIDTH),
    "kind": lambda info: info.kind,
    "status": lambda info: Text(info.status, STATUS_STYLES.get(info.status, "")),
    "checkpoints": lambda info: f"{info.checkpoints:,}",
    "writes": lambda info: f"{info.writes:,}",
    "size": lambda info: format_size(info.bytes),
    "updated": lambda info: f"{info.updated:%Y-%m-%d %H:%M}",
    "step": lambda info: "" if info.step is None else f"{info.step:,}",
}


@app.command(epilog="Example: threadkeep show trip latest~2 --last 10")
def show(
    thread: Thread,
    checkpoint: LatestCheckpoint = None,
    *,
    state: Annotated[bool, typer.Option("--state", help="Print the state as JSON.")] = False,
    channel: Annotated[str | None, typer.Option("--channel", metavar="NAME", help="Print one channel as JSON.")] = None,
    writes: Annotated[bool, typer.Option("--writes", help="Print the writes stored on the checkpoint.")] = False,
    last: Annotated[
        int | None,
        typer.Option(
            "--last",
            metavar="N",
            min=0,
            help="Print the last N messages of each chat. Default: 20 in a terminal, otherwise all.",
        ),
    ] = None,
    ns: Namespace = None,
    full_ids: FullIds = False,
    kind: Kind = None,
    url: Url = None,
    tenant: Tenant = "",
    json: Json = False,
) -> None:
    """Show a checkpoint: messages as a chat, then other channels.

    The numbers of messages are those that `blame` takes.
    """
    if sum((state, channel is not None, writes)) > 1:
        raise ValueError("pass only one of --state, --channel and --writes")
    if last is not None and (json or state or writes or channel is not None):
        raise ValueError("--last is for the chat: leave out --json, --state, --channel and --writes")
    with open_keep(url, tenant, read_only=True) as keep:
        ns = resolve_namespace(keep, thread, checkpoint, ns, kind)
        view = keep.show(thread, checkpoint, ns=ns, kind=kind)
        newest = [] if json or checkpoint is None else keep.log(thread, ns=ns, limit=1, kind=kind)
    if channel is not None:
        print_result(_channel(view, channel), (), as_json=True)
    elif state:
        print_result(view.state, (), as_json=True)
        for line in (*([view.checkpoint.damaged] if view.checkpoint.damaged else ()), *view.damaged.values()):
            typer.echo(f"damaged: {escape(line)}", err=True)
    elif writes:
        print_result(view.writes, _write_lines(view, full_ids=full_ids), as_json=json)
    else:
        last = _LAST_MESSAGES if last is None and is_terminal() else last
        is_latest = checkpoint is None or view.checkpoint in newest
        print_result(view, chat.checkpoint_lines(view, last=last, is_latest=is_latest), as_json=json)


def _channel(view: threadkeep.CheckpointView, name: str) -> Any:
    if name in view.damaged or (not view.values and view.checkpoint.damaged):
        reason = view.damaged.get(name) or view.checkpoint.damaged
        raise Corrupt(f"channel {name!r} of checkpoint {view.checkpoint.id!r} is damaged: {reason}")
    if name not in view.values:
        known = ", ".join(view.values)
        raise Missing(f"channel {name!r} not found in checkpoint {view.checkpoint.id!r}; it has: {known}")
    return view.values[name]


def _write_lines(view: threadkeep.CheckpointView, *, full_ids: bool) -> Iterator[RenderableType]:
    yield Hanging(Text(), chat.view_heading(view), Text("  "))
    if not view.writes:
        yield "no writes"
        return
    names = id_names((write.task for write in view.writes), full_ids=full_ids)
    day, times = times_in_table([write.time for write in view.writes])
    if day is not None:
        yield Text(f"\n{day}, times in UTC\n", "dim")
    rows = (
        (
            time,
            write.node,
            names[write.task],
            write.idx,
            write.channel,
            chat.value_line(write.value, 120) if write.damaged is None else f"damaged: {write.damaged}",
        )
        for write, time in zip(view.writes, times, strict=True)
    )
    columns = ("time", "node", "task", "idx", "channel", "value")
    yield table(columns, rows, right=("idx",), no_wrap=("task", "idx", "time"))


@app.command(epilog="Example: threadkeep tree trip --last 50")
def tree(
    thread: Thread,
    *,
    last: Annotated[
        int | None, typer.Option("--last", metavar="N", min=0, help="Draw the last N checkpoints.", show_default="all")
    ] = None,
    full_ids: FullIds = False,
    kind: Kind = None,
    url: Url = None,
    tenant: Tenant = "",
    json: Json = False,
) -> None:
    """Draw the checkpoints of a thread as a tree. Newest first, with a lane for each branch and subgraph."""
    if last is not None and json:
        raise ValueError("--last is for the drawing: leave out --json")
    with open_keep(url, tenant, read_only=True) as keep:
        found = keep.tree(thread, kind=kind)
    print_result(found, tree_drawing.tree_lines(found, last=last, full_ids=full_ids), as_json=json)


@app.command(epilog="Example: threadkeep log trip --last 20")
def log(
    thread: Thread,
    *,
    ns: Annotated[
        str | None, typer.Option("--ns", metavar="NAMESPACE", help="Only this namespace; '' is the root.")
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option("--limit", "--last", metavar="N", min=0, help="Print the last N checkpoints.", show_default="all"),
    ] = None,
    metadata: Annotated[bool, typer.Option("--metadata", help="Print metadata too.")] = False,
    ids: Ids = False,
    full_ids: FullIds = False,
    kind: Kind = None,
    url: Url = None,
    tenant: Tenant = "",
    json: Json = False,
) -> None:
    """List the checkpoints of a thread, newest first."""
    with open_keep(url, tenant, read_only=True) as keep:
        found = keep.log(thread, ns=ns, limit=limit, kind=kind)
    if ids:
        print_ids((each.id for each in found), as_json=json)
    else:
        print_result(found, _log_lines(found, metadata=metadata, full_ids=full_ids), as_json=json)


def _log_lines(found: list[threadkeep.CheckpointInfo], *, metadata: bool, full_ids: bool) -> Iterator[RenderableType]:
    names = id_names((each.id for each in found), full_ids=full_ids)
    latest = tree_drawing.latest_of(found)
    for each in found:
        channels = [name for name in each.updated if not is_internal(name)]
        updated = Text(f"  {one_line(', '.join(channels))}" if channels else "", "cyan")
        yield tree_drawing.checkpoint_line(each, names, latest, more=updated)
        if metadata:
            yield Hanging(Text("  "), Text(shorten(each.metadata, _WIDTH), "dim"))
    if not found:
        yield "no checkpoints"


@app.command(epilog="Example: threadkeep diff trip latest~2 latest")
def diff(
    a: Annotated[
        str, typer.Argument(metavar="A", help="THREAD (its latest checkpoint), THREAD@CHECKPOINT, or a checkpoint id.")
    ],
    b: Annotated[str, typer.Argument(metavar="B", help="The same. With C: a checkpoint of thread A.")],
    c: Annotated[
        str | None, typer.Argument(metavar="C", help="A second checkpoint of thread A, to compare with B.")
    ] = None,
    *,
    ns: Namespace = None,
    exit_code: Annotated[bool, typer.Option("--exit-code", help="Exit with 1 if there are differences.")] = False,
    kind: Kind = None,
    url: Url = None,
    tenant: Tenant = "",
    json: Json = False,
) -> int:
    """Compare two checkpoints: diff A B, or diff THREAD A B."""
    with open_keep(url, tenant, read_only=True) as keep:
        if c is None:
            found = _diff_references(keep, a, b, ns, kind)
        else:
            found = keep.diff(a, b, c, ns=resolve_namespace(keep, a, b, ns, kind), kind=kind)
    print_result(found, _diff_lines(found), as_json=json)
    return NEGATIVE if exit_code and (found.channels or not found.is_complete) else 0


def _diff_references(keep: threadkeep.Keep, a: str, b: str, ns: str | None, kind: KindName | None) -> threadkeep.Diff:
    one, other = keep.find(a, kind=kind), keep.find(b, kind=kind)
    if one.ns != other.ns and (one.thread, one.kind) == (other.thread, other.kind):
        raise ValueError(
            f"{a!r} is in namespace {one.ns!r} and {b!r} in {other.ns!r}: compare checkpoints of one namespace"
        )
    if ns is not None and ns != one.ns:
        raise ValueError(f"{a!r} is in namespace {one.ns!r}; to use --ns, write diff THREAD A B")
    return keep.diff(
        one.thread,
        one.id,
        other.id,
        ns=one.ns,
        other_thread=other.thread,
        kind=one.kind,
        other_ns=other.ns,
        other_kind=other.kind,
    )


def _diff_lines(found: threadkeep.Diff) -> Iterator[RenderableType]:
    for sign, checkpoint in (("-", found.a), ("+", found.b)):
        yield Hanging(Text(f"{sign} "), chat.heading(checkpoint))
    yield from difference_lines(found)


@app.command(epilog="Example: threadkeep blame trip 'messages[-1].content'")
def blame(
    thread: Thread,
    path: Annotated[
        str, typer.Argument(metavar="PATH", help="Such as messages[-1].content, messages[id=ID] or user.age.")
    ],
    *,
    checkpoint: Annotated[
        str | None, typer.Option("--checkpoint", metavar="CHECKPOINT", help=CHECKPOINT_HELP, show_default="latest")
    ] = None,
    ns: Namespace = None,
    kind: Kind = None,
    url: Url = None,
    tenant: Tenant = "",
    json: Json = False,
) -> None:
    """Show which checkpoint and write first set the value at a path."""
    with open_keep(url, tenant, read_only=True) as keep:
        ns = resolve_namespace(keep, thread, checkpoint, ns, kind)
        found = keep.blame(thread, path, checkpoint_id=checkpoint, ns=ns, kind=kind)
    print_result(found, _blame_lines(found), as_json=json)


def _blame_lines(found: threadkeep.Blame) -> Iterator[RenderableType]:
    text = Text().append(one_line(found.path), "bold").append(": ").append_text(value_text(found.value))
    yield Hanging(Text(), text, _INDENT)
    for name, value in _blame_facts(found):
        yield Hanging(Text(f"  {name:<12}", "dim"), Text(one_line(value)))


def _blame_facts(found: threadkeep.Blame) -> Iterator[tuple[str, str]]:
    checkpoint, write = found.introduced_in, found.write
    if checkpoint.thread != found.thread:
        yield "thread", checkpoint.thread
    yield "checkpoint", checkpoint.id
    yield "step", f"{checkpoint.step} ({checkpoint.source})"
    yield "time", format_time(checkpoint.time)
    if found.origin != found.path:
        yield "first path", found.origin
    if checkpoint.run is not None:
        yield "run", checkpoint.run
    if write is None:
        yield "write", _why_no_write(found)
    else:
        yield "node", write.node or ("update_state" if checkpoint.source == "update" else "-")
        yield "task", write.task
        yield "write", f"{write.idx} on {checkpoint.parent or '-'}"
        yield "written", format_time(write.time)
    if found.damaged is not None:
        yield "damaged", f"{found.damaged}: the value may be older"
    if found.source_missing is not None:
        yield "copied from", f"thread {found.source_missing}, which does not have it any more"
    if found.oldest:
        yield "note", "this is the oldest stored checkpoint: the value may be older"


def _why_no_write(found: threadkeep.Blame) -> str:
    if found.kind != GRAPH:
        return "none: CubeLoop threads have no writes"
    return "none stored: set by update_state" if found.introduced_in.source == "update" else "none stored"
