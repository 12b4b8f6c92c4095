"""Adding to a thread that exists what another has, which was made beside it where nobody sees it."""

from __future__ import annotations

from threadkeep.desk import Desk, draw, now
from threadkeep.engine import copy
from threadkeep.engine.backend import Loaded
from threadkeep.engine.identity import ThreadKey
from threadkeep.transfer.compare import surveyed
from threadkeep.transfer.thread_builder import Making
from threadkeep.work import Change, Work


def merged(desk: Desk, beside: ThreadKey, target: ThreadKey) -> Work[None]:
    """Add to a thread what another has, and remove that."""
    yield Change(target, lambda: copy.copy(desk.heads, beside, target, now(), draw(), keeps_times=True))
    found = yield from surveyed(beside)
    if found.thread is not None:
        yield from removed(desk, found)


def removed(desk: Desk, loaded: Loaded) -> Work[None]:
    """Remove a thread that is as it was surveyed; Conflict if it is not."""
    row = loaded.thread
    assert row is not None
    yield from Making(desk.heads, row.key, row.created, row.updated, row.epoch, row).abandon()
