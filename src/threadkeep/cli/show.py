"""The commands that inspect threads: threads, show, tree, log, diff, blame. They change nothing."""

from __future__ import annotations

from collections.abc import Iterator
from shlex import quote
from typing import Annotated, Any

import typer
from rich.console import RenderableType
from rich.text import Text

import threadkeep
from threadkeep.cli import chat, tree_drawing
from threadkeep.cli.app import NEGATIVE, app, open_keep, resolve_namespace
from threadkeep.cli.options import (
    CHECKPOINT_HELP,
    Json,
    Kind,
    KindFilter,
    LatestCheckpoint,
    Match,
    Metadata,
    Namespace,
    Prefix,
    Tenant,
    Thread,
    Url,
    key_value,
)
from threadkeep.cli.output import (
    STATUS_STYLES,
    as_json_text,
    escape,
    format_size,
    format_time,
    one_line,
    print_result,
    shorten,
    table,
)
from threadkeep.engine.history.show import short_ids
from threadkeep.engine.history.value_diff import ADDED, REMOVED
from threadkeep.engine.identity import CUBE, GRAPH
from threadkeep.engine.log.plain import is_message
from threadkeep.engine.threads.status import is_internal
from threadkeep.errors import Corrupt, Missing

_WIDTH = 200
"""The longest value or id that is printed; longer ones are cut."""
_SIGNS = {"added": ("+", "green"), "removed": ("-", "red"), "changed": ("~", "yellow"), "moved": (">", "cyan")}


@app.command()
def threads(
    *,
    search: Annotated[
        str, typer.Option("--search", metavar="TEXT", help="Only threads whose id contains TEXT, in any case.")
    ] = "",
    prefix: Prefix = "",
    sort: Annotated[str, typer.Option("--sort", metavar="ORDER", help="updated, created, bytes or id.")] = "updated",
    status: Annotated[
        str | None, typer.Option("--status", metavar="STATUS", help="Only idle, pending, interrupted or error threads.")
    ] = None,
    metadata: Metadata = None,
    match: Match = "latest",
    limit: Annotated[int, typer.Option("--limit", metavar="N", min=0, help="Print at most N threads.")] = 50,
    after: Annotated[
        str | None, typer.Option("--after", metavar="ID", help="Print the page after this thread.")
    ] = None,
    after_kind: Annotated[
        str | None,
        typer.Option(
            "--after-kind", metavar="KIND", help="Kind of that thread. Only needed if both kinds have its id."
        ),
    ] = None,
    kind: KindFilter = None,
    url: Url = None,
    tenant: Tenant = "",
    json: Json = False,
) -> None:
    """List threads."""
    with open_keep(url, tenant, read_only=True) as keep:
        found = keep.threads(
            limit=limit,
            after=None if after is None else _thread(keep, after, after_kind or kind),
            prefix=prefix,
            metadata=dict(map(key_value, metadata or ())),
            match=match,
            status=status,
            order=sort,
            kind=kind,
            contains=search,
        )
        more = _next_page(keep, found[-1], kind) if found and len(found) == limit else ""
    print_result(found, _thread_lines(found, more), as_json=json)


def _thread(keep: threadkeep.Keep, id: str, kind: str | None) -> threadkeep.ThreadInfo:
    found = keep.thread(id, kind=kind)
    if found is None:
        raise Missing(f"--after: thread {id!r} not found")
    return found


def _next_page(keep: threadkeep.Keep, last: threadkeep.ThreadInfo, kind: str | None) -> str:
    """Return the options for the next page, quoted for a shell."""
    kinds = [each for each in (GRAPH, CUBE) if keep.thread(last.id, kind=each) is not None]
    options = f"--after {quote(last.id)}"
    return options if kind is not None or len(kinds) < 2 else f"{options} --after-kind {last.kind}"


def _thread_lines(found: list[threadkeep.ThreadInfo], more: str) -> Iterator[RenderableType]:
    if not found:
        yield "no threads"
        return
    columns = ("thread", "kind", "status", "checkpoints", "writes", "size", "updated", "step")
    right = ("checkpoints", "writes", "size", "step")
    fixed = [name for name in columns if name not in ("thread", "updated")]  # these two break in a narrow terminal
    yield table(columns, map(_thread_row, found), right=right, no_wrap=fixed)
    if more:
        yield Text(f"next page: {one_line(more)}", "dim")


def _thread_row(info: threadkeep.ThreadInfo) -> tuple[Any, ...]:
    return (
        shorten(one_line(info.id), _WIDTH),
        info.kind,
        Text(info.status, STATUS_STYLES.get(info.status, "")),
        info.checkpoints,
        info.writes,
        format_size(info.bytes),
        f"{info.updated:%Y-%m-%d %H:%M}",
        info.step,
    )


@app.command()
def show(
    thread: Thread,
    checkpoint: LatestCheckpoint = None,
    *,
    state: Annotated[bool, typer.Option("--state", help="Print the state as JSON.")] = False,
    channel: Annotated[str | None, typer.Option("--channel", metavar="NAME", help="Print one channel as JSON.")] = None,
    writes: Annotated[bool, typer.Option("--writes", help="Print the writes stored on the checkpoint.")] = False,
    ns: Namespace = None,
    kind: Kind = None,
    url: Url = None,
    tenant: Tenant = "",
    json: Json = False,
) -> None:
    """Show a checkpoint: messages as a chat, then other channels."""
    if sum((state, channel is not None, writes)) > 1:
        raise ValueError("pass only one of --state, --channel and --writes")
    with open_keep(url, tenant, read_only=True) as keep:
        ns = resolve_namespace(keep, thread, checkpoint, ns, kind)
        view = keep.show(thread, checkpoint, ns=ns, kind=kind)
    if channel is not None:
        print_result(_channel(view, channel), (), as_json=True)
    elif state:
        print_result(view.state, (), as_json=True)
        for line in (*([view.checkpoint.damaged] if view.checkpoint.damaged else ()), *view.damaged.values()):
            typer.echo(f"damaged: {escape(line)}", err=True)
    elif writes:
        print_result(view.writes, _write_lines(view), as_json=json)
    else:
        print_result(view, chat.checkpoint_lines(view), as_json=json)


def _channel(view: threadkeep.CheckpointView, name: str) -> Any:
    if name in view.damaged or (not view.values and view.checkpoint.damaged):
        reason = view.damaged.get(name) or view.checkpoint.damaged
        raise Corrupt(f"channel {name!r} of checkpoint {view.checkpoint.id!r} is damaged: {reason}")
    if name not in view.values:
        known = ", ".join(view.values)
        raise Missing(f"channel {name!r} not found in checkpoint {view.checkpoint.id!r}; it has: {known}")
    return view.values[name]


def _write_lines(view: threadkeep.CheckpointView) -> Iterator[RenderableType]:
    yield chat.heading(view.checkpoint, view.status, view.next)
    if not view.writes:
        yield "no writes"
        return
    short = short_ids(write.task for write in view.writes)
    rows = (
        (
            write.time,
            write.node,
            short[write.task],
            write.idx,
            write.channel,
            chat.value_line(write.value, 120) if write.damaged is None else f"damaged: {write.damaged}",
        )
        for write in view.writes
    )
    columns = ("time", "node", "task", "idx", "channel", "value")
    yield table(columns, rows, right=("idx",), no_wrap=("task", "idx", "time"))


@app.command()
def tree(
    thread: Thread,
    *,
    kind: Kind = None,
    url: Url = None,
    tenant: Tenant = "",
    json: Json = False,
) -> None:
    """Draw the checkpoints of a thread as a tree. Newest first, with a lane for each branch and subgraph."""
    with open_keep(url, tenant, read_only=True) as keep:
        found = keep.tree(thread, kind=kind)
    print_result(found, tree_drawing.tree_lines(found), as_json=json)


@app.command()
def log(
    thread: Thread,
    *,
    ns: Annotated[
        str | None, typer.Option("--ns", metavar="NAMESPACE", help="Only this namespace; '' is the root.")
    ] = None,
    limit: Annotated[
        int | None, typer.Option("--limit", metavar="N", min=0, help="Print at most N checkpoints.")
    ] = None,
    metadata: Annotated[bool, typer.Option("--metadata", help="Print metadata too.")] = False,
    kind: Kind = None,
    url: Url = None,
    tenant: Tenant = "",
    json: Json = False,
) -> None:
    """List the checkpoints of a thread, newest first."""
    with open_keep(url, tenant, read_only=True) as keep:
        found = keep.log(thread, ns=ns, limit=limit, kind=kind)
    print_result(found, _log_lines(found, metadata=metadata), as_json=json)


def _log_lines(found: list[threadkeep.CheckpointInfo], *, metadata: bool) -> Iterator[RenderableType]:
    short = short_ids(each.id for each in found)
    for each in found:
        channels = [name for name in each.updated if not is_internal(name)]
        updated = f"  {one_line(', '.join(channels))}" if channels else ""
        yield tree_drawing.checkpoint_line(each, short).append(updated, "cyan")
        if metadata:
            yield Text(f"  {shorten(each.metadata, _WIDTH)}", "dim")
    if not found:
        yield "no checkpoints"


@app.command()
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


def _diff_references(keep: threadkeep.Keep, a: str, b: str, ns: str | None, kind: str | None) -> threadkeep.Diff:
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
        yield Text(f"{sign} ").append_text(chat.heading(checkpoint))
    state = [channel for channel in found.channels if not channel.is_internal]
    internal = [f"{channel.channel} {channel.change}" for channel in found.channels if channel.is_internal]
    for channel in state:
        yield Text()
        yield Text(one_line(channel.channel), "bold").append(f"  {channel.change}", "not bold dim")
        yield from map(_change_line, channel.changes)
    yield from chat.damaged_channel_lines(found.damaged)
    if not found.is_complete:
        yield "damaged in part: not everything could be compared"
    elif not state:
        yield "no differences in the state"
    if internal:
        yield Text(f"\nLangGraph's own channels: {one_line(', '.join(internal))}", "dim")


def _change_line(change: threadkeep.ValueChange) -> Text:
    sign, style = _SIGNS[change.change]
    text = Text("  ").append(f"{sign} ", f"bold {style}").append(one_line(change.path), style)
    if change.was is not None:
        return text.append(f" was {one_line(change.was)}")
    if change.change == ADDED:
        return text.append(": ").append_text(_value_text(change.after))
    if change.change == REMOVED:
        return text.append(": ").append_text(_value_text(change.before))
    return (
        text.append(": ").append_text(_value_text(change.before)).append(" → ").append_text(_value_text(change.after))
    )


def _value_text(value: Any) -> Text:
    if is_message(value):
        return Text("\n    ").join(chat.message_lines(value))
    if chat.is_chat(value):
        return Text("\n    ").join([Text(), *(line for message in value for line in chat.message_lines(message))])
    return Text(shorten(as_json_text(value), _WIDTH))


@app.command()
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
    yield Text().append(one_line(found.path), "bold").append(": ").append_text(_value_text(found.value))
    for name, value in _blame_facts(found):
        yield Text(f"  {name:<12}", "dim").append(one_line(value), "not dim")


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
