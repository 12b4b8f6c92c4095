"""Closing returns at once if nothing is running."""

from __future__ import annotations

import asyncio
import time

import threadkeep


async def _ask_much(saver: threadkeep.KeepSaver) -> None:
    await asyncio.gather(*(saver.aget_tuple({"configurable": {"thread_id": str(n)}}) for n in range(20)))


def test_closing_does_not_wait_for_idle_workers(fresh_url) -> None:
    took = []
    for _ in range(5):
        keep = threadkeep.open(fresh_url())
        asyncio.run(_ask_much(keep.checkpointer))
        start = time.perf_counter()
        keep.close()
        took.append(time.perf_counter() - start)
    assert min(took) < 0.05
