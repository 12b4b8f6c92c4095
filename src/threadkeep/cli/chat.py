"""Render a checkpoint for people: messages as a chat, then one line for each other channel."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.text import Text

from threadkeep.cli.output import STATUS_STYLES, as_json_text, escape, format_time, one_line, shorten
from threadkeep.engine.history.checkpoint_info import CheckpointInfo
from threadkeep.engine.history.show import CheckpointView
from threadkeep.engine.log.plain import is_message, message_role, type_of

ROLE_STYLES = {
    "human": "green",
    "user": "green",
    "ai": "cyan",
    "assistant": "cyan",
    "tool": "yellow",
    "tool_result": "yellow",
    "system": "magenta",
}
_WIDTH = 400
"""The longest value that is printed; longer ones are cut."""
_SPECIAL_WRITES = {"__interrupt__": ("interrupt", "interrupted"), "__error__": ("error", "error")}
"""Write channels that are printed below the state: the word for them, and the status whose colour they get."""
_CALL_FIELDS, _CALL_BLOCKS = ("tool_calls", "invalid_tool_calls"), ("tool_call", "tool_use", "function_call")
"""Where a message names the tools that it calls: in a field of its own, or among the blocks of its content."""


def heading(checkpoint: CheckpointInfo, status: str | None = None, next: Sequence[str] = ()) -> Text:
    """Return the line that names a checkpoint."""
    text = Text()
    text.append(one_line(checkpoint.thread), "bold")
    text.append(f"  {one_line(checkpoint.id)}", "yellow")
    step = f"step {checkpoint.step}" if checkpoint.step is not None else ""
    for part in (one_line(checkpoint.ns), step, one_line(checkpoint.source or "")):
        text.append(f"  {part}" if part else "")
    text.append(f"  {format_time(checkpoint.time)}", "dim")
    if status is not None:
        text.append(f"  {status}", STATUS_STYLES.get(status, ""))
    if next:
        text.append(f"  next: {one_line(', '.join(next))}")
    if checkpoint.damaged is not None:
        text.append(f"\n  damaged: {one_line(checkpoint.damaged)}", "red")
    return text


def damaged_channel_lines(damaged: Mapping[str, str]) -> Iterator[Text]:
    """Return a line for each channel that cannot be read."""
    for name, reason in damaged.items():
        yield Text(one_line(name), "bold").append(f": damaged: {one_line(reason)}", "not bold red")


def checkpoint_lines(view: CheckpointView) -> Iterator[Text]:
    """Render a checkpoint: its heading, chats, other channels, interrupts and errors."""
    yield heading(view.checkpoint, view.status, view.next)
    others = {}
    for name, value in view.state.items():
        if is_chat(value):
            yield from _chat_lines(name, value)
        else:
            others[name] = value
    if others:
        yield Text()
    for name, value in others.items():
        yield _channel_line(name, value)
    yield from damaged_channel_lines(view.damaged)
    yield from _special_write_lines(view)
    if view.delta:
        names = one_line(", ".join(view.delta))
        yield Text(f"rebuilt from writes: {names} (lists concatenated, messages merged by id)", "dim")


def is_chat(value: Any) -> bool:
    """Return whether a value is a list of messages."""
    return isinstance(value, list) and bool(value) and all(map(is_message, value))


def value_line(value: Any, width: int) -> str:
    """Return a value on one line of at most `width` characters; a list of messages as a chat."""
    if is_chat(value):
        return shorten("; ".join(escape(line.plain) for message in value for line in message_lines(message)), width)
    return shorten(as_json_text(value), width)


def _chat_lines(name: str, messages: list[Any]) -> Iterator[Text]:
    yield Text()
    if name != "messages":
        yield Text(one_line(name), "bold")
    for message in messages:
        yield from message_lines(message)


def _channel_line(name: str, value: Any) -> Text:
    text = Text(one_line(name), "bold")
    text.append(": ", "bold")
    return text.append(shorten(as_json_text(value), _WIDTH), "not bold")


def _special_write_lines(view: CheckpointView) -> Iterator[Text]:
    """Render the interrupts that wait for an answer, and the errors."""
    for write in view.writes:
        if write.damaged is not None:
            yield Text("damaged", STATUS_STYLES["error"]).append(f" write: {one_line(write.damaged)}", "default")
        if write.damaged is not None or write.channel not in _SPECIAL_WRITES:
            continue
        word, status = _SPECIAL_WRITES[write.channel]
        for each in write.value if isinstance(write.value, list) else [write.value]:
            value = each.get("value", each) if type_of(each) == "Interrupt" else each
            source = one_line(write.node or write.task)
            text = Text(word, STATUS_STYLES[status])
            yield text.append(f" in {source}: {shorten(as_json_text(value), _WIDTH)}", "default")


def message_lines(message: Mapping[str, Any]) -> Iterator[Text]:
    """Render a message: its role and content, then a line for each tool call."""
    role = message_role(message)
    text = Text().append(one_line(role), f"bold {ROLE_STYLES.get(role, 'white')}")
    if message.get("name") or message.get("tool_name"):
        text.append(f" {one_line(str(message.get('name') or message.get('tool_name')))}", "dim")
    if message.get("is_error") or message.get("status") == "error":
        text.append(" failed", STATUS_STYLES["error"])
    content = message.get("content")
    blocks = content if isinstance(content, list) else [] if content is None else [content]
    body = escape("\n".join(_block_text(block) for block in blocks if not _is_call(block)))
    yield text.append(f": {body}" if body else ":")
    calls = [call for field in _CALL_FIELDS if isinstance(message.get(field), list) for call in message[field]]
    yield from map(_call_line, calls or filter(_is_call, blocks))


def _block_text(block: Any) -> str:
    if isinstance(block, str):
        return block
    text = block.get("text", block.get("thinking")) if isinstance(block, Mapping) else None
    return text if isinstance(text, str) else shorten(as_json_text(block), _WIDTH)


def _is_call(block: Any) -> bool:
    return isinstance(block, Mapping) and block.get("type") in _CALL_BLOCKS


def _call_line(call: Any) -> Text:
    """Render a tool call in the form of LangChain, CubeLoop or a provider."""
    fields = call if isinstance(call, Mapping) else {}
    args = next((fields[key] for key in ("args", "arguments", "input") if key in fields), call)
    return Text(f"  calls {one_line(str(fields.get('name', '?')))} {shorten(as_json_text(args), _WIDTH)}", "yellow")
