"""The state of a thread over time: a slider over the checkpoints that led to one, with what each of them changed."""

from __future__ import annotations

from typing import Any

from threadkeep.engine.history.checkpoint_info import CheckpointInfo
from threadkeep.engine.history.show import Tree
from threadkeep.errors import Missing
from threadkeep.inspector.inspected import Inspected
from threadkeep.inspector.json_tree import nodes
from threadkeep.inspector.pages.checkpoint import chats, checkpoint_values
from threadkeep.inspector.pages.diff import shown_changes
from threadkeep.inspector.query import QueryParameters


async def page(shown: Inspected, query: QueryParameters) -> dict[str, Any]:
    """Show the checkpoint number `at` on the way to one, by default the latest. Up to fifteen round trips."""
    place = await shown.place(query)
    tree = (await shown.trees.read(place.thread, place.kind)).tree
    way = _way_to(tree, place.ns, place.id)
    at = min(query.number("at", 0), len(way) - 1)
    info = way[at]
    view = await shown.keep.ashow(place.thread, info.id, ns=info.ns, kind=place.kind)
    values = checkpoint_values(shown, view)
    changed = []
    if at:
        diff = await shown.keep.adiff(place.thread, way[at - 1].id, info.id, ns=info.ns, kind=place.kind)
        changed = [(each, shown_changes(shown, each.changes)) for each in diff.channels if not each.is_internal]
    found = chats(values)
    in_chat = {chat.channel for chat in found}
    return {
        "place": place._replace(id=way[-1].id),
        "here": place._replace(id=info.id),
        "before": place._replace(id=way[max(at - 1, 0)].id),
        "view": view,
        "at": at,
        "last": len(way) - 1,
        "chats": found,
        "state": [nodes(value, (name,)) for name, value in values.items() if name not in in_chat],
        "changed": changed,
    }


def _way_to(tree: Tree, ns: str, id: str | None) -> list[CheckpointInfo]:
    """The checkpoints from the first one to one of a namespace, by default its latest."""
    infos = {each.id: each for each in reversed(tree.checkpoints) if each.ns == ns}
    end = infos.get(id) if id is not None else next(reversed(infos.values()), None)
    if end is None:
        raise Missing(f"checkpoint {id!r} not found" if id else f"there are no checkpoints in namespace {ns!r}")
    way = [end]
    while (before := tree.before(way[-1])) is not None and before in infos:
        way.append(infos[before])
    return way[::-1]
