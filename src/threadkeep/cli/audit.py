"""The commands that report who wrote what, what takes how much space, and which classes are stored."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from enum import StrEnum
from typing import Annotated

import typer
from rich.console import RenderableType
from rich.text import Text

from threadkeep import Activity, ActivityRow, CheckpointSize, Sizes, Stats, StoredType, StoredTypes, TracedWrite
from threadkeep.cli.app import app, open_keep, resolve_namespace
from threadkeep.cli.options import (
    TIME,
    FullIds,
    Json,
    Kind,
    KindFilter,
    LatestCheckpoint,
    Match,
    Metadata,
    Namespace,
    OneThread,
    Prefix,
    Tenant,
    Thread,
    Url,
    key_value,
)
from threadkeep.cli.output import (
    Hanging,
    as_plain,
    damaged_lines,
    format_size,
    format_time,
    id_names,
    one_line,
    print_result,
    progress_bar,
    shorten,
    skipped_lines,
    table,
    times_in_table,
)
from threadkeep.plural import plural

_KIND_NAMES = {
    "state": "checkpoint values",
    "writes": "values of writes only",
    "checkpoint_rows": "checkpoint rows",
    "write_rows": "write rows",
    "shared": "names, labels, shapes",
    "unused": "unused values",
}


class _ActivityGroup(StrEnum):
    """What `activity` groups by."""

    node = "node"
    channel = "channel"
    both = "both"


class _SizeTable(StrEnum):
    """The tables of `sizes`."""

    thread = "thread"
    channel = "channel"
    kind = "kind"


@app.command(epilog="Example: threadkeep trace trip latest~1 --values")
def trace(
    thread: Thread,
    checkpoint: LatestCheckpoint = None,
    *,
    ns: Namespace = None,
    values: Annotated[bool, typer.Option("--values", help="Print the values too.")] = False,
    full_ids: FullIds = False,
    kind: Kind = None,
    url: Url = None,
    tenant: Tenant = "",
    json: Json = False,
) -> None:
    """List the writes on a checkpoint, oldest first. They are what ran from it and led to its child."""
    with open_keep(url, tenant, read_only=True) as keep:
        ns = resolve_namespace(keep, thread, checkpoint, ns, kind)
        writes = keep.trace(thread, checkpoint, ns=ns, kind=kind, values=values)
    plain = [_as_dict(write, values=values) for write in writes]
    print_result(plain, _trace_lines(thread, writes, values=values, full_ids=full_ids), as_json=json)


def _as_dict(write: TracedWrite, *, values: bool) -> dict[str, object]:
    fields: dict[str, object] = as_plain(write)
    return fields if values else {name: value for name, value in fields.items() if name != "value"}


def _trace_lines(thread: str, writes: list[TracedWrite], *, values: bool, full_ids: bool) -> Iterator[RenderableType]:
    if not writes:
        yield Text("no writes on this checkpoint")
        return
    day, times = times_in_table([write.time for write in writes])
    if day is not None:
        yield Text(f"{day}, times in UTC\n")
    names = id_names((write.task for write in writes), full_ids=full_ids)
    with_thread = len({write.thread for write in writes}) > 1 or writes[0].thread != thread
    columns = ["time", "node", "task", "idx", "channel", "size"]
    rows = [_trace_row(write, time, names[write.task]) for write, time in zip(writes, times, strict=True)]
    more: dict[str, Callable[[TracedWrite], object]] = {
        **({"thread": lambda write: write.thread} if with_thread else {}),
        **({"value": lambda write: shorten(write.value, 40)} if values else {}),
    }
    for row, write in zip(rows, writes, strict=True):
        row += [column(write) for column in more.values()]
    yield table([*columns, *more], rows, right=("idx", "size"), no_wrap=("time", "task", "idx", "size"))
    for missing in dict.fromkeys(write.source_missing for write in writes if write.source_missing is not None):
        yield Text(f"copied from thread {one_line(missing)}, which does not have them any more", "dim")


def _trace_row(write: TracedWrite, time: str, task: str) -> list[object]:
    row: list[object] = [time, write.node or "-", task, write.idx, write.channel, format_size(write.size)]
    if write.damaged is not None:
        row[4] = f"{write.channel} damaged".strip()
    return row


@app.command(epilog="Example: threadkeep flow trip --mermaid")
def flow(
    thread: Thread,
    *,
    mermaid: Annotated[bool, typer.Option("--mermaid", help="Print a Mermaid flowchart.")] = False,
    kind: Kind = None,
    url: Url = None,
    tenant: Tenant = "",
    json: Json = False,
) -> None:
    """Show the data flow of a thread. Its nodes and channels, and who wrote, triggered or sent what, and when."""
    if mermaid and json:
        raise ValueError("pass only one of --mermaid and --json")
    with open_keep(url, tenant, read_only=True) as keep:
        found = keep.flow(thread, kind=kind)
    if mermaid:
        typer.echo(found.mermaid(), nl=False)
    else:
        lines = (Hanging(Text(), Text(line), Text("  ")) for line in found.text().splitlines())
        print_result(found, lines, as_json=json)


@app.command(epilog="Example: threadkeep activity --since 1d --by channel")
def activity(
    *,
    since: Annotated[
        str | None, typer.Option("--since", metavar="TIME", help=f"Only writes at or after TIME: {TIME}.")
    ] = None,
    until: Annotated[str | None, typer.Option("--until", metavar="TIME", help="Only writes before TIME.")] = None,
    prefix: Prefix = "",
    ns: Annotated[
        str | None,
        typer.Option(
            "--ns",
            metavar="NAMESPACE",
            help="Only this namespace, or all calls of the subgraph with this name; '' is the root.",
        ),
    ] = None,
    by: Annotated[
        _ActivityGroup, typer.Option("--by", help="Group by node, by channel, or by both.")
    ] = _ActivityGroup.node,
    metadata: Metadata = None,
    match: Match = "latest",
    kind: KindFilter = None,
    url: Url = None,
    tenant: Tenant = "",
    json: Json = False,
) -> None:
    """Count writes and bytes by node and channel over many threads."""
    with open_keep(url, tenant, read_only=True) as keep, progress_bar("threads") as on_progress:
        result = keep.activity(
            since=since,
            until=until,
            prefix=prefix,
            ns=ns,
            kind=kind,
            metadata=dict(map(key_value, metadata or ())) or None,
            match=match,
            on_progress=on_progress,
        )
    print_result(result, _activity_lines(result, by), as_json=json)


def _activity_lines(result: Activity, by: _ActivityGroup) -> Iterator[RenderableType]:
    groups: dict[_ActivityGroup, tuple[list[ActivityRow], list[str]]] = {
        _ActivityGroup.node: (result.by_node, ["node"]),
        _ActivityGroup.channel: (result.by_channel, ["channel"]),
        _ActivityGroup.both: (result.by_node_and_channel, ["node", "channel"]),
    }
    found, names = groups[by]
    if found:
        numbers = ("writes", "size", "average")
        yield table([*names, *numbers], [_activity_row(each, names) for each in found], right=numbers)
        yield Text()
    writes = f"{plural(result.writes, 'write')}, {format_size(result.bytes)}" if found else "no writes"
    yield Text(f"{writes} in {plural(result.threads, 'thread')} and {plural(result.checkpoints, 'checkpoint')}")
    yield from damaged_lines(result.damaged)
    yield from skipped_lines(result.skipped)


def _activity_row(row: ActivityRow, names: list[str]) -> list[object]:
    group = [getattr(row, name) or "-" for name in names]
    return [*group, row.writes, format_size(row.bytes), format_size(row.average)]


@app.command(epilog="Example: threadkeep sizes --prefix chat- --limit 10")
def sizes(
    thread: OneThread = None,
    *,
    prefix: Prefix = "",
    limit: Annotated[int, typer.Option("--limit", metavar="N", min=0, help="Print the N largest threads.")] = 20,
    by: Annotated[
        _SizeTable | None,
        typer.Option("--by", help="Print only the table by thread, channel or kind.", show_default="all"),
    ] = None,
    checkpoint: Annotated[
        str | None,
        typer.Option(
            "--checkpoint",
            metavar="CHECKPOINT",
            help="Compare the state of this checkpoint of THREAD with the writes on it.",
            show_default=False,
        ),
    ] = None,
    ns: Namespace = None,
    kind: KindFilter = None,
    url: Url = None,
    tenant: Tenant = "",
    json: Json = False,
) -> None:
    """Show how much space threads take. By thread, by channel and by kind of data, with what sharing saves."""
    with open_keep(url, tenant, read_only=True) as keep, progress_bar("threads") as on_progress:
        ns = resolve_namespace(keep, thread, checkpoint, ns, kind) if thread is not None else ns
        result = keep.sizes(
            thread_id=thread,
            prefix=prefix,
            kind=kind,
            limit=limit,
            checkpoint_id=checkpoint,
            ns=ns or "",
            on_progress=on_progress,
        )
    lines = _size_lines(result, by) if result.checkpoint is None else _checkpoint_lines(result.checkpoint)
    print_result(result, lines, as_json=json)


def _checkpoint_lines(size: CheckpointSize) -> Iterator[RenderableType]:
    heading = Text(one_line(size.thread), "bold").append(f"  {one_line(size.id)}", "not bold yellow")
    yield heading.append(f"  {one_line(size.ns)}" if size.ns else "")
    rows = [
        [each.channel, *map(format_size, (each.bytes, each.shared, each.own, each.stored))] for each in size.by_channel
    ]
    columns = ["channel", "state", "shared", "own", "stored"]
    yield table(columns, rows, right=columns[1:])
    yield Text()
    if size.by_write:
        yield from _written_lines(size)
    yield Text(
        f"state: {format_size(size.state)}, {format_size(size.shared)} of it shared with earlier checkpoints, "
        f"{format_size(size.own)} its own, stored in {format_size(size.stored)}"
    )
    yield Text(f"writes on it: {format_size(size.writes)}" if size.by_write else "no writes on it")
    yield from (Text(f"damaged: {one_line(each)}", "red") for each in size.damaged)


def _written_lines(size: CheckpointSize) -> Iterator[RenderableType]:
    names = id_names((each.task for each in size.by_write), full_ids=False)
    rows = [
        [each.node or "-", names[each.task], each.channel, each.writes, *map(format_size, (each.bytes, each.in_state))]
        for each in size.by_write
    ]
    right = ("writes", "size", "in state")
    yield table(["node", "task", "channel", *right], rows, right=right, no_wrap=("task",))
    yield Text()


def _size_lines(result: Sizes, by: _SizeTable | None) -> Iterator[RenderableType]:
    if not result.threads:
        yield "no threads"
        yield from skipped_lines(result.skipped)
        return
    tables = {
        _SizeTable.thread: _threads_table,
        _SizeTable.channel: _channels_table,
        _SizeTable.kind: _kinds_table,
    }
    for name, make in tables.items():
        if by in (None, name):
            yield make(result)
            yield Text()
    yield from map(Text, _size_summary(result))
    yield from damaged_lines(result.damaged)
    yield from skipped_lines(result.skipped)


def _threads_table(result: Sizes) -> RenderableType:
    rows = [
        [each.id, each.kind, format_size(each.stored), format_size(each.logical), _ratio(each.logical, each.stored)]
        for each in result.by_thread
    ]
    return table(["thread", "kind", "stored", "logical", "ratio"], rows, right=("stored", "logical", "ratio"))


def _channels_table(result: Sizes) -> RenderableType:
    columns = ["channel", "items", "stored", "writes", "written", "state", "latest"]
    rows = [
        [
            each.channel,
            each.items,
            format_size(each.stored),
            each.writes,
            *map(format_size, (each.written, each.state, each.latest)),
        ]
        for each in result.by_channel
        if each.stored or each.written or each.state
    ]
    return table(columns, rows, right=columns[1:])


def _kinds_table(result: Sizes) -> RenderableType:
    rows = [[_KIND_NAMES[kind], format_size(stored)] for kind, stored in result.by_kind.items()]
    return table(["kind of data", "stored"], rows, right=("stored",))


def _size_summary(result: Sizes) -> Iterable[str]:
    yield f"{plural(result.threads, 'thread')}: {format_size(result.stored)} stored"
    yield (
        f"{format_size(result.logical)} without sharing and compression: {format_size(result.written)} of writes and "
        f"{format_size(result.state)} of state, {_ratio(result.logical, result.stored)} as much"
    )


def _ratio(logical: int, stored: int) -> str:
    return f"{logical / stored:.1f}x" if stored else "-"


@app.command(epilog="Example: threadkeep stats --url agent.db")
def stats(*, url: Url = None, tenant: Tenant = "", json: Json = False) -> None:
    """Show totals of threads and memories, and the storage size."""
    with open_keep(url, tenant, read_only=True) as keep, progress_bar("threads") as on_progress:
        result = keep.stats(on_progress=on_progress)
    print_result(result, (Text(f"{name:<22}{value}") for name, value in _stat_rows(result)), as_json=json)


def _stat_rows(result: Stats) -> Iterator[tuple[str, str]]:
    yield "threads", f"{result.threads:,}{_counts_text(result.by_kind)}"
    yield "status", _counts_text(result.by_status).strip(" ()") or "-"
    yield "checkpoints", f"{result.checkpoints:,}"
    yield "writes", f"{result.writes:,}"
    yield "size", format_size(result.bytes)
    if result.oldest is not None and result.newest is not None:
        yield "oldest, newest", f"{format_time(result.oldest)}, {format_time(result.newest)}"
    yield "memories", f"{result.memories:,} in {plural(result.namespaces, 'namespace')}"
    if result.storage is not None:
        yield f"storage ({result.storage.kind})", format_size(result.storage.bytes)
        yield from ((f"  {name}", format_size(part)) for name, part in result.storage.parts.items())
        if result.storage.free is not None:
            yield "  free", format_size(result.storage.free)
        if result.storage.keys is not None:
            yield "  keys", f"{result.storage.keys:,}"


def _counts_text(counts: dict[str, int]) -> str:
    text = ", ".join(f"{count:,} {name}" for name, count in counts.items() if count)
    return f" ({text})" if text else ""


@app.command(epilog="Example: threadkeep types --prefix chat-")
def types(
    thread: OneThread = None,
    *,
    prefix: Prefix = "",
    kind: KindFilter = None,
    url: Url = None,
    tenant: Tenant = "",
    json: Json = False,
) -> None:
    """List the classes that stored values name, and which would not be rebuilt. Nothing is imported to find out."""
    with open_keep(url, tenant, read_only=True) as keep, progress_bar("threads") as on_progress:
        result = keep.types(thread, prefix=prefix, kind=kind, on_progress=on_progress)
    print_result(result, _type_lines(result), as_json=json)


def _type_lines(result: StoredTypes) -> Iterator[RenderableType]:
    if result.types:
        columns = ["class", "objects", "threads", "when read", "for example"]
        yield table(columns, map(_type_row, result.types), right=("objects", "threads"))
        yield Text()
    yield Text(f"{plural(len(result.types), 'class', 'classes')} in {plural(result.threads, 'thread')}")
    yield from damaged_lines(result.damaged)
    yield from skipped_lines(result.skipped)


def _type_row(each: StoredType) -> list[object]:
    what = "rebuilt" if each.loads else "plain data" if each.loads is False else "unknown"
    place = f"{each.channel or 'no channel'} of {each.thread} at {each.checkpoint}"
    return [each.name, each.objects, each.threads, f"{what}: {each.status}", place]
