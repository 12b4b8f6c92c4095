"""The inbox: threads that wait for a person, each with its questions."""

from __future__ import annotations

import asyncio
from typing import Any, NamedTuple

from threadkeep.engine.history.conversation import Stop, stops
from threadkeep.engine.identity import GRAPH
from threadkeep.engine.threads.catalogue import ThreadInfo
from threadkeep.errors import Corrupt
from threadkeep.inspector.inspected import Inspected
from threadkeep.inspector.query import Query

_MOST = 25


class WaitingThread(NamedTuple):
    """A thread and the questions that it asks; `problem` is why they cannot be read."""

    thread: ThreadInfo
    questions: tuple[Stop, ...]
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
        pending = view.values.get("pending")
        return WaitingThread(thread, (Stop("interrupted", "CubeLoop", shown.redaction.value(pending)),))
    asked = (stop._replace(value=shown.redaction.value(stop.value)) for stop in stops(view))
    return WaitingThread(thread, tuple(asked))
