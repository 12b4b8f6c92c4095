"""A checkpoint: messages as a chat, its state as trees, what ran from it, and how to get the same in code."""

from __future__ import annotations

from typing import Any

from threadkeep.engine.history.answer_options import question_text
from threadkeep.engine.history.conversation import Stop, is_chat, stops
from threadkeep.engine.history.show import CheckpointView
from threadkeep.engine.identity import GRAPH
from threadkeep.engine.threads.status import is_internal
from threadkeep.inspector.chat import Chat, chat
from threadkeep.inspector.inspected import ChosenCheckpoint, Inspected
from threadkeep.inspector.json_tree import JsonNode, nodes
from threadkeep.inspector.query import QueryParameters


async def page(shown: Inspected, query: QueryParameters) -> dict[str, Any]:
    """Show a checkpoint, by default the latest. Up to ten round trips."""
    place = await shown.place(query)
    view = await shown.keep.ashow(place.thread, place.id, ns=place.ns, kind=place.kind)
    place = place._replace(id=view.checkpoint.id)
    writes = await shown.keep.atrace(place.thread, place.id, ns=place.ns, kind=place.kind, values=True)
    values = shown.redaction.value(view.values)
    end, found = query.optional_number("until"), stops(view)
    return {
        "place": place,
        "view": view,
        "chats": chats(values, end),
        "state": _trees(values, is_wanted=lambda name: not is_internal(name) and not is_chat(values[name])),
        "internal": _trees(values, is_wanted=is_internal),
        "writes": [(write, nodes(shown.redaction.value(write.value), (write.channel,))) for write in writes],
        "stops": [_shown_stop(shown, stop) for stop in found],
        "can_answer": bool(found) and await _can_answer(shown, place),
        "metadata": nodes(shown.redaction.value(view.checkpoint.metadata), ("metadata",)),
        "snippet": shown.snippet("show", place.thread, view.checkpoint.id, ns=place.ns, kind=place.kind),
        "config": place.config,
    }


def _shown_stop(shown: Inspected, stop: Stop) -> tuple[Stop, str | None, JsonNode]:
    """A stop with its text for people, if it has one, and its value, which is folded then."""
    value = shown.redaction.value(stop.value)
    text = question_text(value)
    return stop, text, nodes(value, (stop.status,))._replace(is_open=text is None)


async def _can_answer(shown: Inspected, place: ChosenCheckpoint) -> bool:
    """Whether a question of a checkpoint can be answered here: the graph continues from the latest one."""
    if not shown.write or shown.graph is None or place.kind != GRAPH:
        return False
    latest = await shown.keep.alog(place.thread, ns=place.ns, limit=1, kind=place.kind)
    return [each.id for each in latest] == [place.id]


def chats(values: dict[str, Any], end: int | None = None) -> list[Chat]:
    """Return the channels that hold messages."""
    return [chat(name, value, end) for name, value in values.items() if not is_internal(name) and is_chat(value)]


def _trees(values: dict[str, Any], *, is_wanted: Any) -> list[JsonNode]:
    return [nodes(value, (name,)) for name, value in values.items() if is_wanted(name)]


def checkpoint_values(shown: Inspected, view: CheckpointView) -> dict[str, Any]:
    """Return the application's state of a checkpoint, without what is to be hidden."""
    return dict(shown.redaction.value(view.state))
