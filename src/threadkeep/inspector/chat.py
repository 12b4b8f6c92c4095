"""Messages as a chat: the calls of tools with their results, text and images, in slices."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from threadkeep.engine.history import conversation
from threadkeep.engine.history.conversation import ToolCall
from threadkeep.engine.log.plain import message_id, role_of

SLICE = 100
"""How many messages are shown at a time."""
_IMAGE = re.compile(r"(?:png|jpe?g|gif|webp)")
_BASE64 = re.compile(r"[A-Za-z0-9+/=\s]+")
_ROLES = {"user": "human", "assistant": "ai", "tool_result": "tool"}
_IDS = ("tool_call_id", "tool_use_id", "call_id")
_INPUT, _OUTPUT = ("input_tokens", "prompt_tokens", "input"), ("output_tokens", "completion_tokens", "output")


class Block(NamedTuple):
    """A piece of content: `text` (Markdown), `image` (a data: URL) or `other`, a plain value."""

    kind: str
    value: Any


class CallWithResult(NamedTuple):
    """A call of a tool, and the message with its result, if there is one."""

    call: ToolCall
    result: Message | None


class Message(NamedTuple):
    """A message, its number among all, and its path. `usage` are the tokens that went in and came out."""

    number: int | None
    path: str
    role: str
    name: str
    id: str | None
    failed: bool
    blocks: tuple[Block, ...]
    calls: tuple[CallWithResult, ...]
    usage: tuple[int, int] | None


class Chat(NamedTuple):
    """A slice of a list of messages: from `start` to `end` of `total`."""

    channel: str
    messages: tuple[Message, ...]
    start: int
    end: int
    total: int


def chat(channel: str, messages: list[Any], end: int | None = None) -> Chat:
    """Return the last messages before `end`. The result of a tool is shown with its call, if that is in the slice."""
    end = len(messages) if end is None else min(end, len(messages))
    start = max(end - SLICE, 0)
    results = {id: n for n in range(start, end) if (id := _answered_call(messages[n])) is not None}
    answered = {
        n
        for message in messages[start:end]
        for call in conversation.calls_of(message)
        if call.id and (n := results.get(call.id)) is not None
    }
    shown = (_message(channel, messages, n, results) for n in range(start, end) if n not in answered)
    return Chat(channel, tuple(shown), start, end, len(messages))


def one_message(path: str, message: Mapping[str, Any]) -> Message:
    """Return a message by itself; its number is not known."""
    return _message(path, [message], 0, {})._replace(path=path, number=None)


def _message(channel: str, messages: list[Any], n: int, results: Mapping[str, int]) -> Message:
    message = messages[n]
    role = role_of(message)
    calls = []
    for call in conversation.calls_of(message):
        at = results.get(call.id or "")
        calls.append(CallWithResult(call, None if at is None or at <= n else _message(channel, messages, at, {})))
    return Message(
        number=n,
        path=f"{channel}[{n}]",
        role=_ROLES.get(role, role),
        name=conversation.name_of(message),
        id=message_id(message),
        failed=conversation.has_failed(message),
        blocks=tuple(map(_block, conversation.content_blocks(message))),
        calls=tuple(calls),
        usage=_usage(message),
    )


def _answered_call(message: Mapping[str, Any]) -> str | None:
    """The id of the call that a message is the result of."""
    return next((message[name] for name in _IDS if isinstance(message.get(name), str)), None)


def _block(block: Any) -> Block:
    text = conversation.block_text(block)
    if text is not None:
        return Block("text", text)
    image = _image_of(block) if isinstance(block, Mapping) else None
    return Block("image", image) if image is not None else Block("other", block)


def _image_of(block: Mapping[str, Any]) -> str | None:
    """Return an image that is part of the message, as a data: URL. One that lies elsewhere is never loaded."""
    inner = block.get("image_url", block.get("source", block))
    inner = {"url": inner} if isinstance(inner, str) else inner
    if not isinstance(inner, Mapping):
        return None
    type = next((inner[key] for key in ("media_type", "mime_type") if isinstance(inner.get(key), str)), "")
    data = next((inner[key] for key in ("data", "base64", "url") if isinstance(inner.get(key), str)), "")
    if data.startswith("data:"):
        type, comma, data = data.removeprefix("data:").partition(";base64,")
        if not comma:
            return None
    subtype = type.removeprefix("image/")
    return f"data:image/{subtype};base64,{data}" if _IMAGE.fullmatch(subtype) and _BASE64.fullmatch(data) else None


def _usage(message: Mapping[str, Any]) -> tuple[int, int] | None:
    usage = message.get("usage_metadata") or message.get("usage")
    if not isinstance(usage, Mapping):
        return None
    spent = _first_number(usage, _INPUT), _first_number(usage, _OUTPUT)
    return spent if any(spent) else None


def _first_number(usage: Mapping[str, Any], names: Iterable[str]) -> int:
    return next((usage[name] for name in names if type(usage.get(name)) is int), 0)
