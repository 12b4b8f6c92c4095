"""Read messages that are plain data, in the forms of LangChain, CubeLoop and the providers, to show them to people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from threadkeep.engine.cube import channels
from threadkeep.engine.cube.requests import open_request
from threadkeep.engine.history.show import CheckpointView
from threadkeep.engine.identity import CUBE
from threadkeep.engine.log.plain import is_message, is_tool_call, tool_calls, type_of

_SPECIAL_WRITES = {"__interrupt__": "interrupted", "__error__": "error"}
"""The writes of tasks that stopped, and the status that they give the thread."""


class ToolCall(NamedTuple):
    """A call of a tool. `id` is None if it has none."""

    name: str
    args: Any
    id: str | None


class Stop(NamedTuple):
    """What stopped a task: a question (the status `interrupted`) or an error. `id` is that of the interrupt.

    `source` is the node, or else the task; in a CubeLoop thread, the run.
    """

    status: str
    source: str
    value: Any
    id: str | None = None


def is_chat(value: Any) -> bool:
    """Return whether a value is a list of messages."""
    return isinstance(value, list) and bool(value) and all(map(is_message, value))


def name_of(message: Mapping[str, Any]) -> str:
    """Return the name of the person, the agent or the tool that a message is from; empty if it has none."""
    return str(message.get("name") or message.get("tool_name") or "")


def has_failed(message: Mapping[str, Any]) -> bool:
    """Return whether a message is the result of a tool that failed."""
    return bool(message.get("is_error")) or message.get("status") == "error"


def content_blocks(message: Mapping[str, Any]) -> list[Any]:
    """Return the blocks of a message's content, without the calls of tools."""
    content = message.get("content")
    blocks = content if isinstance(content, list) else [] if content is None else [content]
    return [block for block in blocks if not is_tool_call(block)]


def block_text(block: Any) -> str | None:
    """Return the text of a block of content; None if it is something else."""
    if isinstance(block, str):
        return block
    text = block.get("text", block.get("thinking")) if isinstance(block, Mapping) else None
    return text if isinstance(text, str) else None


def calls_of(message: Mapping[str, Any]) -> list[ToolCall]:
    """Return the tools that a message calls."""
    return list(map(_tool_call, tool_calls(message)))


def stops(view: CheckpointView) -> list[Stop]:
    """Return the questions and errors that stopped tasks of a checkpoint, or what a CubeLoop agent has asked."""
    if view.checkpoint.kind == CUBE:
        request = open_request(view.values.get(channels.PENDING), view.values.get(channels.ANSWERS))
        return (
            [Stop("interrupted", request.run or "agent", request.question, request.id)] if request is not None else []
        )
    found = []
    for write in view.writes:
        if write.damaged is not None or write.channel not in _SPECIAL_WRITES:
            continue
        for each in write.value if isinstance(write.value, list) else [write.value]:
            is_interrupt = type_of(each) == "Interrupt"
            value, id = (each.get("value", each), each.get("id")) if is_interrupt else (each, None)
            found.append(Stop(_SPECIAL_WRITES[write.channel], write.node or write.task, value, id))
    return found


def _tool_call(call: Any) -> ToolCall:
    fields = call if isinstance(call, Mapping) else {}
    args = next((fields[key] for key in ("args", "arguments", "input") if key in fields), call)
    id = fields.get("id", fields.get("call_id"))
    return ToolCall(str(fields.get("name", "?")), args, id if isinstance(id, str) else None)
