"""A checkpoint as people read it: messages as a chat, then the other channels in a line each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.text import Text

from threadkeep.cli.output import STATUS_STYLES, as_json_text, brief, clean, line, moment
from threadkeep.engine.history.checkpoint_info import CheckpointInfo
from threadkeep.engine.history.paths import is_message
from threadkeep.engine.history.show import CheckpointView
from threadkeep.engine.log.plain import type_of

_STYLES = {
    "human": "green",
    "user": "green",
    "ai": "cyan",
    "assistant": "cyan",
    "tool": "yellow",
    "tool_result": "yellow",
    "system": "magenta",
}
_WIDTH = 400
_TROUBLES = {"__interrupt__": ("waits", "interrupted"), "__error__": ("failed", "error")}
"""Channels of writes that a person should know of, what to say of them, and in the colour of which status."""
_CALLS, _BLOCK_CALLS = ("tool_calls", "invalid_tool_calls"), ("tool_call", "tool_use", "function_call")
"""Where a message names the tools that it calls: beside what it says, or among it."""


def heading(step: CheckpointInfo, status: str | None = None, next: Sequence[str] = ()) -> Text:
    """Which checkpoint it is."""
    text = Text()
    text.append(line(step.thread), "bold")
    text.append(f"  {line(step.id)}", "yellow")
    for part in (line(step.ns), f"step {step.step}" if step.step is not None else "", line(step.source or "")):
        text.append(f"  {part}" if part else "")
    text.append(f"  {moment(step.time)}", "dim")
    if status is not None:
        text.append(f"  {status}", STATUS_STYLES.get(status, ""))
    if next:
        text.append(f"  next: {line(', '.join(next))}")
    return text


def told(shown: CheckpointView) -> Iterator[Text]:
    """A checkpoint as a chat."""
    yield heading(shown.checkpoint, shown.status, shown.next)
    others = {}
    for name, value in shown.state.items():
        if is_chat(value):
            yield from _chat(name, value)
        else:
            others[name] = value
    if others:
        yield Text()
    for name, value in others.items():
        yield _channel(name, value)
    yield from _questions(shown)
    if shown.delta:
        yield Text(f"rebuilt from writes: {line(', '.join(shown.delta))} (lists joined, messages by id)", "dim")


def is_chat(value: Any) -> bool:
    """Whether a value is a list of messages."""
    return isinstance(value, list) and bool(value) and all(map(is_message, value))


def in_a_line(value: Any, width: int) -> str:
    """A value, cut; of messages, who says what."""
    if is_chat(value):
        return brief("; ".join(clean(text.plain) for message in value for text in said(message)), width)
    return brief(as_json_text(value), width)


def _chat(name: str, messages: list[Any]) -> Iterator[Text]:
    yield Text()
    if name != "messages":
        yield Text(line(name), "bold")
    for message in messages:
        yield from said(message)


def _channel(name: str, value: Any) -> Text:
    text = Text(line(name), "bold")
    text.append(": ", "bold")
    return text.append(brief(as_json_text(value), _WIDTH), "not bold")


def _questions(shown: CheckpointView) -> Iterator[Text]:
    """What waits for an answer, and what failed."""
    for write in shown.writes:
        if write.channel not in _TROUBLES:
            continue
        word, style = _TROUBLES[write.channel]
        for each in write.value if isinstance(write.value, list) else [write.value]:
            asked = each.get("value", each) if type_of(each) == "Interrupt" else each
            text = Text(word, STATUS_STYLES[style])
            yield text.append(f" {line(write.node or write.task)}: {brief(as_json_text(asked), _WIDTH)}", "default")


def said(message: Mapping[str, Any]) -> Iterator[Text]:
    """A message: who, what, and which tools were called."""
    role = role_of(message)
    text = Text().append(line(role), f"bold {_STYLES.get(role, 'white')}")
    if message.get("name") or message.get("tool_name"):
        text.append(f" {line(str(message.get('name') or message.get('tool_name')))}", "dim")
    if message.get("is_error") or message.get("status") == "error":
        text.append(" failed", STATUS_STYLES["error"])
    content = message.get("content")
    blocks = content if isinstance(content, list) else [] if content is None else [content]
    body = clean("\n".join(_words(block) for block in blocks if not _is_call(block)))
    yield text.append(f": {body}" if body else ":")
    listed = [call for key in _CALLS if isinstance(message.get(key), list) for call in message[key]]
    yield from map(_call, listed or filter(_is_call, blocks))


def role_of(message: Mapping[str, Any]) -> str:
    """Who says a message."""
    for key in ("role", "type"):
        if isinstance(message.get(key), str) and message[key]:
            return str(message[key])
    return type_of(message).removesuffix("Chunk").removesuffix("Message").lower() or "?"


def _words(block: Any) -> str:
    """A piece of a message."""
    if isinstance(block, str):
        return block
    words = block.get("text", block.get("thinking")) if isinstance(block, Mapping) else None
    return words if isinstance(words, str) else brief(as_json_text(block), _WIDTH)


def _is_call(block: Any) -> bool:
    return isinstance(block, Mapping) and block.get("type") in _BLOCK_CALLS


def _call(call: Any) -> Text:
    """A call of a tool, as LangChain, CubeLoop and the providers spell it."""
    found = call if isinstance(call, Mapping) else {}
    args = next((found[key] for key in ("args", "arguments", "input") if key in found), call)
    return Text(f"  calls {line(str(found.get('name', '?')))} {brief(as_json_text(args), _WIDTH)}", "yellow")
