"""What one checkpoint changed compared with another, of one thread or of two."""

from __future__ import annotations

from typing import Any, NamedTuple

from threadkeep.engine.history.value_diff import ValueChange
from threadkeep.inspector.inspected import Inspected
from threadkeep.inspector.json_tree import Node, nodes
from threadkeep.inspector.query import Query


class ShownChange(NamedTuple):
    """A change of a value, with both sides as trees; None where there is none."""

    change: ValueChange
    before: Node | None
    after: Node | None


async def page(shown: Inspected, query: Query) -> dict[str, Any]:
    """Compare checkpoint `a` with `b` (by default its newest). Up to five round trips for each thread."""
    place = await shown.place(query)
    other = query.optional("other")
    if shown.foreign is not None and other is not None:
        await shown.foreign.read(other)
    found = await shown.keep.adiff(
        place.thread,
        query.required("a"),
        query.optional("b"),
        ns=place.ns,
        other_thread=other,
        kind=place.kind,
    )
    state = [channel for channel in found.channels if not channel.is_internal]
    return {
        "place": place,
        "diff": found,
        "channels": [(channel, shown_changes(shown, channel.changes)) for channel in state],
        "internal": [channel for channel in found.channels if channel.is_internal],
        "snippet": None
        if other is not None
        else shown.snippet("diff", place.thread, found.a.id, found.b.id, ns=place.ns, kind=place.kind),
    }


def shown_changes(shown: Inspected, changes: tuple[ValueChange, ...]) -> list[ShownChange]:
    """Return changes with both sides as trees."""
    return [
        ShownChange(
            change,
            None if change.change == "added" else _tree(shown, change.before),
            None if change.change == "removed" else _tree(shown, change.after),
        )
        for change in changes
    ]


def _tree(shown: Inspected, value: Any) -> Node:
    return nodes(shown.redaction.value(value), ())
