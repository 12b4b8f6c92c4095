"""Render a checkpoint for people: messages as a chat, then one line for each other channel."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from threadkeep.cli.output import STATUS_STYLES, Hanging, as_json_text, escape, format_time, one_line, shorten
from threadkeep.engine.history import conversation
from threadkeep.engine.history.checkpoint_info import CheckpointInfo
from threadkeep.engine.history.conversation import is_chat
from threadkeep.engine.history.show import CheckpointView
from threadkeep.engine.log.plain import role_of
from threadkeep.plural import plural

ROLE_STYLES = {
    "human": "green",
    "user": "green",
    "ai": "cyan",
    "assistant": "cyan",
    "tool": "yellow",
    "tool_result": "yellow",
    "system": "magenta",
}
_INDENT = Text("  ")
_WIDTH = 400
"""The longest value that is printed; longer ones are cut."""
_STOPS = {"interrupted": "interrupt", "error": "error"}
"""The word for a question or an error that stopped a task."""


def heading(checkpoint: CheckpointInfo) -> Text:
    """Return the line that names a checkpoint."""
    text = Text().append(one_line(checkpoint.thread), "bold").append("  ")
    return text.append_text(_checkpoint_text(checkpoint))


def view_heading(view: CheckpointView, *, is_latest: bool = False) -> Text:
    """Return the two lines above what a checkpoint holds: its thread and what it waits for, then the checkpoint."""
    text = Text().append(one_line(view.checkpoint.thread), "bold")
    text.append(f"  {view.status}", STATUS_STYLES.get(view.status, ""))
    if view.next:
        text.append(f"  next: {one_line(', '.join(view.next))}")
    text.append_text(marks(view.checkpoint, is_latest=is_latest))
    return text.append("\n").append_text(_checkpoint_text(view.checkpoint))


def _checkpoint_text(checkpoint: CheckpointInfo) -> Text:
    text = Text(one_line(checkpoint.id), "yellow")
    step = f"step {checkpoint.step}" if checkpoint.step is not None else ""
    for part in (one_line(checkpoint.ns), step, one_line(checkpoint.source or "")):
        text.append(f"  {part}" if part else "", "default")
    text.append(f"  {format_time(checkpoint.time)}", "default dim")
    if checkpoint.damaged is not None:
        text.append(f"\n  damaged: {one_line(checkpoint.damaged)}", "red")
    return text


def marks(checkpoint: CheckpointInfo, *, is_latest: bool) -> Text:
    """Return what is special about a checkpoint: it is the latest, it has a tag."""
    text = Text()
    if is_latest:
        text.append("  latest", "bold green")
    if checkpoint.tag is not None:
        text.append(f"  tag: {one_line(checkpoint.tag)}", "bold yellow")
    return text


def damaged_channel_lines(damaged: Mapping[str, str]) -> Iterator[Text]:
    """Return a line for each channel that cannot be read."""
    for name, reason in damaged.items():
        yield Text(one_line(name), "bold").append(f": damaged: {one_line(reason)}", "not bold red")


def checkpoint_lines(
    view: CheckpointView, *, last: int | None = None, is_latest: bool = False
) -> Iterator[RenderableType]:
    """Render a checkpoint: its heading, the last messages of its chats, other channels, interrupts and errors."""
    yield Hanging(Text(), view_heading(view, is_latest=is_latest), _INDENT)
    others = {}
    for name, value in view.state.items():
        if is_chat(value):
            yield from _chat_lines(name, value, last)
        else:
            others[name] = value
    if others:
        yield Text()
    for name, value in others.items():
        yield Hanging(Text(), _channel_line(name, value), _INDENT)
    yield from damaged_channel_lines(view.damaged)
    yield from (Hanging(Text(), line, _INDENT) for line in _special_write_lines(view))
    if view.delta:
        names = one_line(", ".join(view.delta))
        yield Text(f"rebuilt from writes: {names} (lists concatenated, messages merged by id)", "dim")


def value_line(value: Any, width: int) -> str:
    """Return a value on one line of at most `width` characters; a list of messages as a chat."""
    if is_chat(value):
        return shorten("; ".join(escape(line.plain) for message in value for line in message_lines(message)), width)
    return shorten(as_json_text(value), width)


def _chat_lines(name: str, messages: list[Any], last: int | None) -> Iterator[RenderableType]:
    """Render a chat, each message with its index: `blame` takes the same."""
    yield Text()
    if name != "messages":
        yield Text(one_line(name), "bold")
    start = 0 if last is None else max(len(messages) - last, 0)
    if start:
        yield Text(f"… {plural(start, 'earlier message')}: --last {len(messages)} prints all", "dim")
    width = len(f"[{len(messages) - 1}]")
    for n in range(start, len(messages)):
        prefix = Text(f"[{n}]".rjust(width) + " ", "dim")
        for line in message_lines(messages[n]):
            yield Hanging(prefix, line, Text(" " * (width + 3)))
            prefix = Text(" " * (width + 1))


def _channel_line(name: str, value: Any) -> Text:
    text = Text(one_line(name), "bold")
    text.append(": ", "bold")
    return text.append(shorten(as_json_text(value), _WIDTH), "not bold")


def _special_write_lines(view: CheckpointView) -> Iterator[Text]:
    """Render the interrupts that wait for an answer, and the errors."""
    for write in view.writes:
        if write.damaged is not None:
            yield Text("damaged", STATUS_STYLES["error"]).append(f" write: {one_line(write.damaged)}", "default")
    for stop in conversation.stops(view):
        text = Text(_STOPS[stop.status], STATUS_STYLES[stop.status])
        yield text.append(f" in {one_line(stop.source)}: {shorten(as_json_text(stop.value), _WIDTH)}", "default")


def message_lines(message: Mapping[str, Any]) -> Iterator[Text]:
    """Render a message: its role and content, then a line for each tool call."""
    role = role_of(message)
    text = Text().append(one_line(role), f"bold {ROLE_STYLES.get(role, 'white')}")
    if name := conversation.name_of(message):
        text.append(f" {one_line(name)}", "dim")
    if conversation.has_failed(message):
        text.append(" failed", STATUS_STYLES["error"])
    body = escape("\n".join(map(_block_text, conversation.content_blocks(message))))
    yield text.append(f": {body}" if body else ":")
    for call in conversation.calls_of(message):
        yield Text(f"  calls {one_line(call.name)} {shorten(as_json_text(call.args), _WIDTH)}", "yellow")


def _block_text(block: Any) -> str:
    text = conversation.block_text(block)
    return text if text is not None else shorten(as_json_text(block), _WIDTH)
