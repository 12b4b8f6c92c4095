"""What one checkpoint changed compared with another, of one thread or of two."""

from __future__ import annotations

from typing import Any, NamedTuple

from threadkeep.engine.history.checkpoint_info import CheckpointInfo
from threadkeep.engine.history.value_diff import ValueChange
from threadkeep.engine.log.plain import is_message
from threadkeep.inspector.chat import Message, one_message
from threadkeep.inspector.inspected import ChosenCheckpoint, Inspected
from threadkeep.inspector.json_tree import JsonNode, nodes
from threadkeep.inspector.query import QueryParameters


class ShownChange(NamedTuple):
    """A change of a value, with both sides as messages or as trees; None where there is none."""

    change: ValueChange
    before: JsonNode | Message | None
    after: JsonNode | Message | None


async def page(shown: Inspected, query: QueryParameters) -> dict[str, Any]:
    """Compare checkpoint `a` with `b` (by default its newest). Up to five round trips for each thread."""
    place = await shown.place(query)
    other = query.id("other")
    if shown.foreign is not None and other is not None:
        await shown.foreign.read(other)
    found = await shown.keep.adiff(
        place.thread,
        query.required("a"),
        query.id("b"),
        ns=place.ns,
        other_thread=other,
        other_kind=query.kind("other_kind"),
        other_ns=query.text("other_ns") if "other_ns" in query.fields else None,
        kind=place.kind,
    )
    state = [channel for channel in found.channels if not channel.is_internal]
    return {
        "place": place,
        "before": _place(found.a),
        "after": _place(found.b),
        "diff": found,
        "channels": [(channel, shown_changes(shown, channel.changes)) for channel in state],
        "internal": [channel for channel in found.channels if channel.is_internal],
        "snippet": None
        if other is not None
        else shown.snippet("diff", place.thread, found.a.id, found.b.id, ns=place.ns, kind=place.kind),
    }


def shown_changes(shown: Inspected, changes: tuple[ValueChange, ...]) -> list[ShownChange]:
    """Return changes with both sides, to show them."""
    return [
        ShownChange(
            change,
            None if change.change == "added" else _side(shown, change.was or change.path, change.before),
            None if change.change == "removed" else _side(shown, change.path, change.after),
        )
        for change in changes
    ]


def _place(info: CheckpointInfo) -> ChosenCheckpoint:
    return ChosenCheckpoint(info.thread, info.kind, info.ns, info.id)


def _side(shown: Inspected, path: str, value: Any) -> JsonNode | Message:
    value = shown.redaction.value(value)
    return one_message(path, value) if is_message(value) else nodes(value, ())
