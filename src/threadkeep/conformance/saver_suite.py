"""The pytest suite for LangGraph checkpointers. Import everything from here and define the fixture `saver`.

`saver` returns an empty BaseCheckpointSaver, a new one for each test; or a context manager of one, or a function
without arguments that makes one. Those are opened while an event loop runs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from langgraph.checkpoint.base import BaseCheckpointSaver

from threadkeep.conformance.collect import tests_of
from threadkeep.conformance.declarations import deviations, sync_or_async
from threadkeep.conformance.saver import checkpoints, delta, graphs, listing, pending, upkeep, values
from threadkeep.conformance.sync_async import Caller, open_caller

__all__ = ["Capabilities", "capabilities", "deviations", "my_saver", "sync_or_async"]
TESTS = tests_of(checkpoints, delta, graphs, listing, pending, upkeep, values)
globals().update(TESTS)
__all__ += list(TESTS)


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a saver supports. Everything is tested unless declared absent; tests of absent capabilities are skipped."""

    sync_verbs: bool = True
    """`put`, `get_tuple`, `list` and the others."""
    async_verbs: bool = True
    """`aput`, `aget_tuple`, `alist` and the others."""
    list_in_order: bool = True
    """`list` over several threads or namespaces is ordered by id, newest first; `limit` keeps the newest."""
    copy_thread: bool = True
    """`copy_thread`."""
    prune: bool = True
    """`prune`, with `keep_latest` and `delete`."""
    delete_for_runs: bool = True
    """`delete_for_runs`."""
    delta_channels: bool = True
    """`get_delta_channel_history`, also after `prune` and `copy_thread`."""


@pytest.fixture
def capabilities() -> Capabilities:
    """Override this to declare what your saver lacks."""
    return Capabilities()


@pytest.fixture
def my_saver(sync_or_async: str, saver: Any) -> Iterator[Caller]:
    """The saver under test, called sync or async."""
    with open_caller(saver, BaseCheckpointSaver, sync_or_async) as caller:
        yield caller
