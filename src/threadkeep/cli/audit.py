"""Commands that tell who wrote what, what nodes do, and what takes how much: trace, activity, sizes, stats."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import StrEnum
from typing import Annotated

import typer
from rich.console import RenderableType
from rich.text import Text

from threadkeep import Activity, ActivityRow, Sizes, Stats, TracedWrite
from threadkeep.cli.app import CHECKPOINT, TIME, Json, Kind, Namespace, Tenant, Url, app, opened, space
from threadkeep.cli.output import answer, as_plain, bar, brief, counted, left_alone, moment, size, table
from threadkeep.engine.history.show import short_ids

_KINDS = {
    "state": "values of checkpoints",
    "writes": "values that only writes have",
    "checkpoint_rows": "rows of checkpoints",
    "write_rows": "rows of writes",
    "shared": "names, labels, shapes",
    "unused": "values that nothing refers to",
}
_Prefix = Annotated[str, typer.Option("--prefix", help="Only threads whose ids begin so.")]
_OfKind = Annotated[str | None, typer.Option("--kind", help="graph (LangGraph) or cube (CubeLoop); both if left out.")]


class _Measure(StrEnum):
    """What an activity is shown by."""

    node = "node"
    channel = "channel"
    both = "both"


class _Part(StrEnum):
    """What sizes are shown by."""

    thread = "thread"
    channel = "channel"
    kind = "kind"


@app.command()
def trace(
    thread: Annotated[str, typer.Argument(metavar="THREAD", help="A thread's id.")],
    checkpoint: Annotated[
        str | None,
        typer.Argument(metavar="CHECKPOINT", help=CHECKPOINT, show_default="latest"),
    ] = None,
    *,
    ns: Namespace = None,
    values: Annotated[bool, typer.Option("--values", help="Show what was written.")] = False,
    kind: Kind = None,
    url: Url = None,
    tenant: Tenant = "",
    json: Json = False,
) -> None:
    """Who wrote what on a checkpoint, in order: what ran from it and became its child."""
    with opened(url, tenant, read_only=True) as keep:
        told = keep.trace(thread, checkpoint, ns=space(keep, thread, checkpoint, ns, kind), kind=kind, values=values)
    plain = [_without_value(write, values=values) for write in told]
    answer(plain, _writes(told, values=values), as_json=json)


def _without_value(write: TracedWrite, *, values: bool) -> dict[str, object]:
    plain: dict[str, object] = as_plain(write)
    return plain if values else {name: held for name, held in plain.items() if name != "value"}


def _writes(told: list[TracedWrite], *, values: bool) -> Iterator[RenderableType]:
    days = {f"{write.time:%Y-%m-%d}" for write in told}
    if not told:
        yield Text("nothing was written on this checkpoint")
        return
    if len(days) == 1:
        yield Text(f"{days.pop()}, times in UTC\n")
    columns = ["time", "node", "task", "idx", "channel", "bytes", *(["value"] if values else [])]
    short = short_ids(write.task for write in told)
    rows = [_row(write, short[write.task], values=values, day=len(days) > 1) for write in told]
    yield table(columns, rows, right=("idx", "bytes"))


def _row(write: TracedWrite, task: str, *, values: bool, day: bool) -> list[object]:
    time = f"{write.time:%Y-%m-%d %H:%M:%S}" if day else f"{write.time:%H:%M:%S}.{write.time.microsecond // 1000:03}"
    row = [time, write.node or "-", task, write.idx, write.channel, write.size]
    return [*row, brief(write.value, 40)] if values else row


@app.command()
def activity(
    *,
    since: Annotated[
        str | None, typer.Option("--since", metavar="TIME", help=f"Only writes at or after TIME: {TIME}.")
    ] = None,
    until: Annotated[str | None, typer.Option("--until", metavar="TIME", help="Only writes before TIME.")] = None,
    prefix: _Prefix = "",
    ns: Annotated[
        str | None,
        typer.Option("--ns", help="Only this namespace, or a subgraph's name: all calls of it. '' is the root."),
    ] = None,
    by: Annotated[_Measure, typer.Option("--by", help="Add up by node, by channel, or by both.")] = _Measure.node,
    kind: _OfKind = None,
    url: Url = None,
    tenant: Tenant = "",
    json: Json = False,
) -> None:
    """Writes, bytes and averages by node and channel, over all threads that match."""
    with opened(url, tenant, read_only=True) as keep, bar("threads") as tell:
        told = keep.activity(since=since, until=until, prefix=prefix, ns=ns, kind=kind, on_progress=tell)
    answer(told, _shares(told, by), as_json=json)


def _shares(told: Activity, by: _Measure) -> Iterator[RenderableType]:
    shares: dict[_Measure, tuple[list[ActivityRow], list[str]]] = {
        _Measure.node: (told.by_node, ["node"]),
        _Measure.channel: (told.by_channel, ["channel"]),
        _Measure.both: (told.by_node_and_channel, ["node", "channel"]),
    }
    rows, names = shares[by]
    if not rows:
        yield f"no writes; {_looked_at(told)}"
        yield from left_alone(told.skipped)
        return
    columns = [*names, "writes", "bytes", "average"]
    yield table(
        columns,
        [[*(getattr(each, name) or "-" for name in names), each.writes, size(each.bytes), size(each.average)] for each in rows],
        right=("writes", "bytes", "average"),
    )  # fmt: skip
    yield Text(f"\n{counted(told.writes, 'write')}, {size(told.bytes)}; {_looked_at(told)}")
    yield from left_alone(told.skipped)


def _looked_at(told: Activity) -> str:
    return f"looked at {counted(told.threads, 'thread')} and {counted(told.checkpoints, 'checkpoint')}"


@app.command()
def sizes(
    thread: Annotated[
        str | None, typer.Argument(metavar="THREAD", help="A thread's id; all threads if left out.")
    ] = None,
    *,
    prefix: _Prefix = "",
    limit: Annotated[int, typer.Option("--limit", min=0, help="Show so many of the largest threads.")] = 20,
    by: Annotated[_Part | None, typer.Option("--by", help="Show only these.", show_default="all")] = None,
    kind: _OfKind = None,
    url: Url = None,
    tenant: Tenant = "",
    json: Json = False,
) -> None:
    """What threads take: by thread, channel and kind; writes against state; what sharing saved."""
    with opened(url, tenant, read_only=True) as keep, bar("threads") as tell:
        told = keep.sizes(thread_id=thread, prefix=prefix, kind=kind, limit=limit, on_progress=tell)
    answer(told, _sizes(told, by), as_json=json)


def _sizes(told: Sizes, by: _Part | None) -> Iterator[RenderableType]:
    tables = {_Part.thread: _by_thread, _Part.channel: _by_channel, _Part.kind: _by_kind}
    for part, shown in tables.items():
        if by in (None, part):
            yield shown(told)
            yield Text()
    yield from map(Text, _summary(told))
    yield from left_alone(told.skipped)


def _by_thread(told: Sizes) -> RenderableType:
    rows = [
        [each.id, each.kind, size(each.stored), size(each.logical), _times(each.logical, each.stored)]
        for each in told.by_thread
    ]
    return table(["thread", "kind", "stored", "logical", "ratio"], rows, right=("stored", "logical", "ratio"))


def _by_channel(told: Sizes) -> RenderableType:
    rows = [
        [each.channel, each.items, size(each.stored), each.writes, size(each.written), size(each.state), size(each.latest)]
        for each in told.by_channel
        if each.stored or each.written or each.state
    ]  # fmt: skip
    columns = ["channel", "items", "stored", "writes", "written", "state", "latest"]
    return table(columns, rows, right=columns[1:])


def _by_kind(told: Sizes) -> RenderableType:
    rows = [[_KINDS[kind], size(held)] for kind, held in told.by_kind.items()]
    return table(["kind", "stored"], rows, right=("stored",))


def _summary(told: Sizes) -> Iterable[str]:
    yield f"{counted(told.threads, 'thread')}: {size(told.stored)} stored"
    yield (
        f"{size(told.logical)} if all were stored whole each time, uncompressed: {size(told.written)} of writes, "
        f"{size(told.state)} of state; {_times(told.logical, told.stored)} as much"
    )


def _times(logical: int, stored: int) -> str:
    return f"{logical / stored:.1f}x" if stored else "-"


@app.command()
def stats(*, url: Url = None, tenant: Tenant = "", json: Json = False) -> None:
    """Threads and memories in numbers, and what the storage takes."""
    with opened(url, tenant, read_only=True) as keep, bar("threads") as tell:
        told = keep.stats(on_progress=tell)
    answer(told, (Text(f"{name:<22}{number}") for name, number in _numbers(told)), as_json=json)


def _numbers(told: Stats) -> Iterator[tuple[str, str]]:
    yield "threads", f"{told.threads:,}{_listed(told.by_kind)}"
    yield "status", _listed(told.by_status).strip(" ()") or "-"
    yield "checkpoints", f"{told.checkpoints:,}"
    yield "writes", f"{told.writes:,}"
    yield "bytes", size(told.bytes)
    if told.oldest is not None and told.newest is not None:
        yield "oldest, newest", f"{moment(told.oldest)}, {moment(told.newest)}"
    yield "memories", f"{told.memories:,} in {counted(told.namespaces, 'namespace')}"
    if told.storage is not None:
        yield f"storage ({told.storage.kind})", size(told.storage.bytes)
        yield from ((f"  {name}", size(held)) for name, held in told.storage.parts.items())
        if told.storage.free is not None:
            yield "  free in it", size(told.storage.free)
        if told.storage.keys is not None:
            yield "  keys", f"{told.storage.keys:,}"


def _listed(counts: dict[str, int]) -> str:
    told = ", ".join(f"{count:,} {name}" for name, count in counts.items() if count)
    return f" ({told})" if told else ""
