"""The inbox: threads that wait for a person, each with its questions."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, NamedTuple

from threadkeep.engine.history.conversation import Stop, stops
from threadkeep.engine.identity import GRAPH
from threadkeep.engine.threads.catalogue import ThreadInfo
from threadkeep.errors import Corrupt
from threadkeep.inspector.inspected import Inspected
from threadkeep.inspector.json_tree import Node, nodes
from threadkeep.inspector.query import Query

_MOST = 25
_TEXTS = ("question", "prompt", "description", "message", "text")


class Question(NamedTuple):
    """What a task asks: its text, if it has one, and all of it as a tree. `id` is the interrupt's."""

    source: str
    id: str | None
    text: str | None
    value: Node


class WaitingThread(NamedTuple):
    """A thread and the questions that it asks; `problem` is why they cannot be read."""

    thread: ThreadInfo
    questions: tuple[Question, ...]
    problem: str | None = None


async def page(shown: Inspected, query: Query) -> dict[str, Any]:
    """List what waits, the latest first. One round trip, and up to five for each thread, at once."""
    if shown.foreign is not None:
        await shown.foreign.start()
    most = query.number("most", _MOST)
    found = await shown.keep.athreads(status="interrupted", limit=most + 1)
    waiting = await asyncio.gather(*(_questions(shown, thread) for thread in found[:most]))
    return {"waiting": waiting, "more": most + _MOST if len(found) > most else None}


async def _questions(shown: Inspected, thread: ThreadInfo) -> WaitingThread:
    try:
        view = await shown.keep.ashow(thread.id, kind=thread.kind)
    except Corrupt as error:
        return WaitingThread(thread, (), str(error))
    if thread.kind != GRAPH:
        return WaitingThread(thread, (_question(shown, Stop("interrupted", "CubeLoop", view.values.get("pending"))),))
    asked = (_question(shown, stop) for stop in stops(view) if stop.status == "interrupted")
    return WaitingThread(thread, tuple(asked))


def _question(shown: Inspected, stop: Stop) -> Question:
    value = shown.redaction.value(stop.value)
    return Question(stop.source, stop.id, _text(value), nodes(value, ())._replace(is_open=False))


def _text(value: Any) -> str | None:
    """The text of a question: the value itself, or the first field of it or of its parts that is named like one."""
    if isinstance(value, str) or not isinstance(value, Mapping):
        return value if isinstance(value, str) else None
    own = next((value[name] for name in _TEXTS if isinstance(value.get(name), str)), None)
    return own or next((text for inner in value.values() if (text := _text_of_part(inner))), None)


def _text_of_part(value: Any) -> str | None:
    return _text(value) if isinstance(value, Mapping) else None
