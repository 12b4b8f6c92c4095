"""A checkpoint as people read it: messages as a chat, then the other channels in a line each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.text import Text

from threadkeep.cli.output import STATUS_STYLES, as_json_text, brief, clean, line, moment
from threadkeep.engine.looking import Shown
from threadkeep.engine.paths import is_message
from threadkeep.engine.plain import type_of
from threadkeep.engine.steps import Step

_STYLES = {"human": "green", "user": "green", "ai": "cyan", "assistant": "cyan", "tool": "yellow", "system": "magenta"}
_WIDTH = 400
_TROUBLES = {"__interrupt__": ("waits", "interrupted"), "__error__": ("failed", "error")}
"""Channels of writes that a person should know of, what to say of them, and in the colour of which status."""
_CALLS = ("tool_calls", "invalid_tool_calls")


def heading(step: Step, status: str | None = None, next: Sequence[str] = ()) -> Text:
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


def told(shown: Shown) -> Iterator[Text]:
    """A checkpoint as a chat."""
    yield heading(shown.step, shown.status, shown.next)
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


def _questions(shown: Shown) -> Iterator[Text]:
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
    text = Text()
    text.append(f"{line(role)}", f"bold {_STYLES.get(role, 'white')}")
    if message.get("name") or message.get("tool_name"):
        text.append(f" {line(str(message.get('name') or message.get('tool_name')))}", "dim")
    body = clean("\n".join(_words(message.get("content"))))
    yield text.append(f": {body}" if body else ":")
    for key in _CALLS:
        calls = message.get(key)
        for call in calls if isinstance(calls, list) else ():
            yield _call(call)


def role_of(message: Mapping[str, Any]) -> str:
    """Who says a message."""
    for key in ("role", "type"):
        if isinstance(message.get(key), str) and message[key]:
            return str(message[key])
    return type_of(message).removesuffix("Chunk").removesuffix("Message").lower() or "?"


def _words(content: Any) -> Iterator[str]:
    if isinstance(content, str):
        yield content
        return
    for block in content if isinstance(content, list) else [content] if content is not None else []:
        if isinstance(block, str):
            yield block
        elif isinstance(block, Mapping) and isinstance(block.get("text"), str):
            yield block["text"]
        else:
            yield brief(as_json_text(block), _WIDTH)


def _call(call: Any) -> Text:
    name = call.get("name") if isinstance(call, Mapping) else None
    args = call.get("args", {}) if isinstance(call, Mapping) else call
    return Text(f"  calls {line(str(name))} {brief(as_json_text(args), _WIDTH)}", "yellow")
