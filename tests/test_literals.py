"""Options that take one of a few texts: type checkers know them, and a wrong one is refused at run time, too.

`make types` checks this file: each `type: ignore` below is an error unless mypy refuses the line.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pytest

import threadkeep


def embed(texts: Sequence[str]) -> list[list[float]]:
    return [[1.0, 0.0] for _ in texts]


def right(keep: threadkeep.Keep) -> None:
    keep.threads(order="bytes", status="idle", match="any", kind="graph")
    for thread in keep.threads():
        keep.tree(thread.id, kind=thread.kind)
        keep.log(thread.id, kind=thread.kind)
    threadkeep.Policy(match="latest", kind="cube")
    threadkeep.open("memory://", durability="relaxed", index={"search": "off"}).close()
    index: threadkeep.IndexOptions = {"dims": 2, "embed": embed, "search": "hybrid", "distance_type": "l2"}
    threadkeep.open("memory://", index=index).close()
    threadkeep.open("memory://", index={"dims": 2, "embed": embed, "fields": ["text"]}).close()


def test_the_right_texts_are_accepted() -> None:
    with threadkeep.open("memory://") as keep:
        right(keep)


def test_wrong_texts_are_refused() -> None:
    with threadkeep.open("memory://") as keep:
        with pytest.raises(ValueError, match="order must be one of"):
            keep.threads(order="size")  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="status must be one of"):
            keep.threads(status="busy")  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="match must be"):
            keep.threads(match="all")  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="kind must be"):
            keep.tree("t", kind="langgraph")  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="kind must be"):
            keep.lease("t", kind="langgraph")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="match must be"):
        threadkeep.Policy(match="all")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="durability must be one of"):
        threadkeep.open("memory://", durability="fast")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="group must be one of"):
        threadkeep.open("postgresql://host/agents", group="tenant")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="search"):
        threadkeep.open("memory://", index={"search": "words"})  # type: ignore[arg-type]


if TYPE_CHECKING:

    async def async_verbs_take_the_same(keep: threadkeep.Keep) -> None:
        await keep.athreads(order="id")
        await keep.athreads(order="size")  # type: ignore[arg-type]
        found: list[threadkeep.ThreadInfo] = await keep.athreads(kind="cube")
        await keep.atree(found[0].id, kind=found[0].kind)
