"""Checks that two savers return the same: a fast saver that loses something wins nothing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import CheckpointTuple

from workload import Saver


def check_equal(savers: Sequence[Saver], config: RunnableConfig, limit: int = 10) -> None:
    """Fail unless all savers return the same latest state and the same newest checkpoints."""
    states = [[saver.get_tuple(config), *saver.list(config, limit=limit)] for saver in savers]
    check_same(states)


async def acheck_equal(savers: Sequence[Saver], config: RunnableConfig, limit: int = 10) -> None:
    states = [
        [await saver.aget_tuple(config), *[each async for each in saver.alist(config, limit=limit)]] for saver in savers
    ]
    check_same(states)


def check_same(states: Iterable[Sequence[CheckpointTuple | None]]) -> None:
    first, *others = ([comparable(each) for each in found] for found in states)
    assert len(first) > 1
    for other in others:
        assert other == first, "the savers return different states"


def comparable(found: CheckpointTuple | None) -> Any:
    """Return what must be equal. The order of writes of different tasks, and configs' other keys, may differ."""
    assert found is not None
    checkpoint = dict(found.checkpoint)
    checkpoint.pop("pending_sends", None)
    parent = found.parent_config["configurable"]["checkpoint_id"] if found.parent_config else None
    writes = sorted(found.pending_writes or [], key=lambda write: (write[0], write[1]))
    return found.config["configurable"]["checkpoint_id"], parent, checkpoint, dict(found.metadata), writes
