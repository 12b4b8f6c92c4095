"""What a LangGraph checkpointer must do. Import everything from here into a test file and give the fixture `saver`.

`saver` gives a BaseCheckpointSaver, empty and of its own for each test; or a context manager of one, or a function
without arguments that makes one, which are entered while an event loop runs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from langgraph.checkpoint.base import BaseCheckpointSaver

from threadkeep.conformance.colours import Colour, opened
from threadkeep.conformance.declared import colour, deviations, tests_of
from threadkeep.conformance.saver import checkpoints, delta, graphs, listing, pending, upkeep

__all__ = ["Capabilities", "capabilities", "colour", "deviations", "my_saver"]
TESTS = tests_of(checkpoints, delta, graphs, listing, pending, upkeep)
globals().update(TESTS)
__all__ += list(TESTS)


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a saver can do. All is demanded unless it is declared absent: then its tests are skipped, and say so."""

    sync_verbs: bool = True
    """`put`, `get_tuple`, `list` and the others."""
    async_verbs: bool = True
    """`aput`, `aget_tuple`, `alist` and the others."""
    list_in_order: bool = True
    """`list` over several threads or namespaces is by id, newest first, and so is what `limit` leaves."""
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
    """Override it to declare what a saver lacks."""
    return Capabilities()


@pytest.fixture
def my_saver(colour: str, saver: Any) -> Iterator[Colour]:
    """The saver, with each verb in one colour."""
    with opened(saver, BaseCheckpointSaver, colour) as held:
        yield held
