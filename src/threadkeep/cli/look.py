"""Commands that look and change nothing: threads, show, tree, log, diff, blame."""

from __future__ import annotations

import json as jsons
from collections.abc import Iterator
from shlex import quote
from typing import Annotated, Any

import typer
from rich.console import RenderableType
from rich.text import Text

import threadkeep
from threadkeep.cli import chat, drawing
from threadkeep.cli.app import CHECKPOINT, NO, Json, Kind, Namespace, Tenant, Url, app, opened, space
from threadkeep.cli.output import STATUS_STYLES, answer, as_json_text, brief, line, moment, size, table
from threadkeep.engine.history.checkpoint_info import is_internal
from threadkeep.engine.history.paths import is_message
from threadkeep.engine.history.show import short_ids
from threadkeep.engine.history.value_diff import ADDED, REMOVED
from threadkeep.engine.identity import CUBE, GRAPH
from threadkeep.errors import Missing

_Thread = Annotated[str, typer.Argument(metavar="THREAD", help="A thread's id.")]
_LONGEST = 200
_SIGNS = {"added": ("+", "green"), "removed": ("-", "red"), "changed": ("~", "yellow"), "moved": (">", "cyan")}


@app.command()
def threads(
    *,
    search: Annotated[str, typer.Option("--search", help="Text that ids contain.")] = "",
    prefix: Annotated[str, typer.Option("--prefix", help="Text that ids begin with.")] = "",
    sort: Annotated[str, typer.Option("--sort", help="updated, created, bytes or id.")] = "updated",
    status: Annotated[str | None, typer.Option("--status", help="idle, pending, interrupted or error.")] = None,
    metadata: Annotated[
        list[str] | None,
        typer.Option("--metadata", metavar="KEY=VALUE", help="Metadata of the newest checkpoint. May be repeated."),
    ] = None,
    limit: Annotated[int, typer.Option("--limit", min=0, help="How many.")] = 50,
    after: Annotated[str | None, typer.Option("--after", metavar="ID", help="The last thread of the page before.")] = None,
    after_kind: Annotated[
        str | None, typer.Option("--after-kind", metavar="KIND", help="Its kind, where both have a thread of that id.")
    ] = None,
    kind: Annotated[str | None, typer.Option("--kind", help="graph (LangGraph) or cube (CubeLoop).")] = None,
    url: Url = None,
    tenant: Tenant = "",
    json: Json = False,
) -> None:  # fmt: skip
    """List threads."""
    wanted = dict(map(pair, metadata or ()))
    with opened(url, tenant, read_only=True) as keep:
        last = None if after is None else _last(keep, after, after_kind or kind)
        found = keep.threads(
            limit=limit, after=last, prefix=prefix, metadata=wanted, status=status, order=sort, kind=kind, contains=search
        )  # fmt: skip
        more = _paging(keep, found[-1], kind) if found and len(found) == limit else ""
    answer(found, _listed(found, more), as_json=json)


def _last(keep: threadkeep.Keep, id: str, kind: str | None) -> threadkeep.ThreadInfo:
    found = keep.thread(id, kind=kind)
    if found is None:
        raise Missing(f"--after: there is no thread {id!r}")
    return found


def _paging(keep: threadkeep.Keep, last: threadkeep.ThreadInfo, kind: str | None) -> str:
    """How to ask for the next page, as a shell wants it."""
    kinds = [each for each in (GRAPH, CUBE) if keep.thread(last.id, kind=each) is not None]
    said = f"--after {quote(last.id)}"
    return said if kind is not None or len(kinds) < 2 else f"{said} --after-kind {last.kind}"


def pair(text: str) -> tuple[str, Any]:
    """KEY=VALUE; the value is JSON if it can be, else text."""
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise ValueError(f"{text!r} should look like KEY=VALUE")
    try:
        return key, jsons.loads(value)
    except ValueError:
        return key, value


def _listed(found: list[threadkeep.ThreadInfo], more: str) -> Iterator[RenderableType]:
    if not found:
        yield "no threads"
        return
    columns = ("id", "kind", "status", "ckpts", "writes", "size", "updated", "step")
    cells = (
        (brief(line(one.id), _LONGEST), one.kind, Text(one.status, STATUS_STYLES.get(one.status, "")), one.checkpoints,
         one.writes, size(one.bytes), moment(one.updated)[:-3], one.step)
        for one in found
    )  # fmt: skip
    yield table(columns, cells, right=("ckpts", "writes", "size", "step"), whole=columns[1:])
    if more:
        yield Text(f"the next page: {line(more)}", "dim")


@app.command()
def show(
    thread: _Thread,
    checkpoint: Annotated[str | None, typer.Argument(metavar="CHECKPOINT", help=CHECKPOINT)] = None,
    *,
    state: Annotated[bool, typer.Option("--state", help="The state as JSON.")] = False,
    channel: Annotated[str | None, typer.Option("--channel", metavar="NAME", help="One channel, as JSON.")] = None,
    writes: Annotated[bool, typer.Option("--writes", help="The writes that are stored on it.")] = False,
    ns: Namespace = None,
    kind: Kind = None,
    url: Url = None,
    tenant: Tenant = "",
    json: Json = False,
) -> None:
    """Show a checkpoint, the latest: its messages as a chat, then the other channels."""
    if sum((state, channel is not None, writes)) > 1:
        raise ValueError("--state, --channel and --writes are said one at a time")
    with opened(url, tenant, read_only=True) as keep:
        shown = keep.show(thread, checkpoint, ns=space(keep, thread, checkpoint, ns, kind), kind=kind)
    if channel is not None:
        answer(_channel(shown, channel), (), as_json=True)
    elif state:
        answer(shown.state, (), as_json=True)
    elif writes:
        answer(shown.writes, _written(shown), as_json=json)
    else:
        answer(shown, chat.told(shown), as_json=json)


def _channel(shown: threadkeep.CheckpointView, name: str) -> Any:
    if name not in shown.values:
        raise Missing(
            f"there is no channel {name!r} in checkpoint {shown.checkpoint.id!r}: it has {', '.join(shown.values)}"
        )
    return shown.values[name]


def _written(shown: threadkeep.CheckpointView) -> Iterator[RenderableType]:
    yield chat.heading(shown.checkpoint, shown.status, shown.next)
    if not shown.writes:
        yield "no writes"
        return
    short = short_ids(write.task for write in shown.writes)
    cells = (
        (write.node, short[write.task], write.idx, write.channel, chat.in_a_line(write.value, 120), write.time)
        for write in shown.writes
    )
    columns = ("node", "task", "idx", "channel", "value", "time")
    yield table(columns, cells, right=("idx",), whole=("task", "idx", "time"))


@app.command()
def tree(
    thread: _Thread, *, kind: Kind = None, url: Url = None, tenant: Tenant = "", json: Json = False
) -> None:  # fmt: skip
    """Draw the checkpoints of a thread as a tree: branches and subgraphs as lanes, newest on top."""
    with opened(url, tenant, read_only=True) as keep:
        found = keep.tree(thread, kind=kind)
    answer(found, drawing.lines(found), as_json=json)


@app.command()
def log(
    thread: _Thread,
    *,
    ns: Annotated[str | None, typer.Option("--ns", help="Only this namespace; the root's is empty.")] = None,
    limit: Annotated[int | None, typer.Option("--limit", min=0, help="How many.")] = None,
    metadata: Annotated[bool, typer.Option("--metadata", help="With their metadata.")] = False,
    kind: Kind = None,
    url: Url = None,
    tenant: Tenant = "",
    json: Json = False,
) -> None:
    """List the checkpoints of a thread, newest first."""
    with opened(url, tenant, read_only=True) as keep:
        found = keep.log(thread, ns=ns, limit=limit, kind=kind)
    answer(found, _logged(found, metadata=metadata), as_json=json)


def _logged(found: list[threadkeep.CheckpointInfo], *, metadata: bool) -> Iterator[RenderableType]:
    short = short_ids(step.id for step in found)
    for step in found:
        own = [name for name in step.updated if not is_internal(name)]
        yield drawing.told(step, short).append(f"  {line(', '.join(own))}" if own else "", "cyan")
        if metadata:
            yield Text(f"  {brief(step.metadata, _LONGEST)}", "dim")
    if not found:
        yield "no checkpoints"


@app.command()
def diff(
    a: Annotated[str, typer.Argument(metavar="A", help="THREAD (its latest), THREAD@CHECKPOINT, or a checkpoint's id.")],
    b: Annotated[str, typer.Argument(metavar="B", help="The same; with C, a checkpoint of THREAD.")],
    c: Annotated[str | None, typer.Argument(metavar="C", help="After THREAD and a checkpoint of it: another.")] = None,
    *,
    ns: Namespace = None,
    exit_code: Annotated[bool, typer.Option("--exit-code", help="End with 1 if something differs.")] = False,
    kind: Kind = None,
    url: Url = None,
    tenant: Tenant = "",
    json: Json = False,
) -> int:  # fmt: skip
    """Tell what differs between two checkpoints: diff A B, or diff THREAD A B."""
    with opened(url, tenant, read_only=True) as keep:
        if c is None:
            found = _between(keep, a, b, ns, kind)
        else:
            found = keep.diff(a, b, c, ns=space(keep, a, b, ns, kind), kind=kind)
    answer(found, _differing(found), as_json=json)
    return NO if exit_code and found.channels else 0


def _between(keep: threadkeep.Keep, a: str, b: str, ns: str | None, kind: str | None) -> threadkeep.Diff:
    one, other = keep.find(a, kind=kind), keep.find(b, kind=kind)
    if one.ns != other.ns:
        raise ValueError(f"{a!r} is of namespace {one.ns!r} and {b!r} of {other.ns!r}: compare those of one")
    if ns is not None and ns != one.ns:
        raise ValueError(f"with --ns, say diff THREAD A B: {a!r} is of namespace {one.ns!r}")
    return keep.diff(one.thread, one.id, other.id, ns=one.ns, other_thread=other.thread, kind=kind)


def _differing(found: threadkeep.Diff) -> Iterator[RenderableType]:
    for sign, step in (("-", found.a), ("+", found.b)):
        yield Text(f"{sign} ").append_text(chat.heading(step))
    own = [channel for channel in found.channels if not channel.is_internal]
    internal = [f"{channel.channel} {channel.change}" for channel in found.channels if channel.is_internal]
    for channel in own:
        yield Text()
        yield Text(line(channel.channel), "bold").append(f"  {channel.change}", "not bold dim")
        yield from (_changed(change) for change in channel.changes)
    if not own:
        yield "no differences in the state"
    if internal:
        yield Text(f"\nLangGraph's own: {line(', '.join(internal))}", "dim")


def _changed(change: threadkeep.ValueChange) -> Text:
    sign, style = _SIGNS[change.change]
    text = Text("  ").append(f"{sign} ", f"bold {style}").append(line(change.path), style)
    if change.was is not None:
        return text.append(f" was {line(change.was)}")
    if change.change == ADDED:
        return text.append(": ").append_text(_value(change.after))
    if change.change == REMOVED:
        return text.append(": ").append_text(_value(change.before))
    return text.append(": ").append_text(_value(change.before)).append(" → ").append_text(_value(change.after))


def _value(value: Any) -> Text:
    if is_message(value):
        return Text("\n    ").join(chat.said(value))
    if chat.is_chat(value):
        return Text("\n    ").join([Text(), *(text for message in value for text in chat.said(message))])
    return Text(brief(as_json_text(value), _LONGEST))


@app.command()
def blame(
    thread: _Thread,
    path: Annotated[str, typer.Argument(metavar="PATH", help="Such as messages[-1].content, messages[id=ID] or user.age.")],
    *,
    checkpoint: Annotated[str | None, typer.Option("--checkpoint", help=CHECKPOINT)] = None,
    ns: Namespace = None,
    kind: Kind = None,
    url: Url = None,
    tenant: Tenant = "",
    json: Json = False,
) -> None:  # fmt: skip
    """Tell which checkpoint, task and write first set the value that stands at a path."""
    with opened(url, tenant, read_only=True) as keep:
        where = space(keep, thread, checkpoint, ns, kind)
        found = keep.blame(thread, path, checkpoint_id=checkpoint, ns=where, kind=kind)
    answer(found, _blamed(found), as_json=json)


def _blamed(found: threadkeep.Blame) -> Iterator[RenderableType]:
    yield Text().append(line(found.path), "bold").append(": ").append_text(_value(found.value))
    step, write = found.introduced_in, found.write
    told = [("appeared in", line(step.id)), ("step", f"{step.step} ({step.source})"), ("time", moment(step.time))]
    if found.origin != found.path:
        told.append(("as", line(found.origin)))
    if step.run is not None:
        told.append(("run", line(step.run)))
    if write is not None:
        by = "update_state" if step.source == "update" else "-"
        told += [("node", line(write.node or by)), ("task", line(write.task)), ("write", f"{write.idx} on {line(step.parent or '-')}")]  # fmt: skip
        told.append(("written", moment(write.time)))
    else:
        told.append(("write", _without_write(found)))
    if found.oldest:
        told.append(("note", "no older checkpoint is there: it may have been set before"))
    yield from (Text(f"  {name:<12}", "dim").append(value, "not dim") for name, value in told)


def _without_write(found: threadkeep.Blame) -> str:
    if found.kind != "graph":
        return "CubeLoop's threads have none"
    return "none is stored: set by update_state" if found.introduced_in.source == "update" else "none is stored"
