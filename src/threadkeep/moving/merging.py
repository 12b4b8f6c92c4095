"""Adding to a thread that exists what another has, which was made beside it where nobody sees it."""

from __future__ import annotations

from threadkeep.clock import nonce, now_ms
from threadkeep.engine import copy
from threadkeep.engine.backend import Loaded
from threadkeep.engine.identity import ThreadKey
from threadkeep.moving.comparing import surveyed
from threadkeep.moving.making import Making
from threadkeep.session import Session
from threadkeep.work import Change, Work


def merged(session: Session, beside: ThreadKey, target: ThreadKey) -> Work[None]:
    """Add to a thread what another has, and remove that."""
    yield Change(target, lambda: copy.copy(session.heads, beside, target, now_ms(), nonce(), keeps_times=True))
    found = yield from surveyed(beside)
    if found.thread is not None:
        yield from removed(session, found)


def removed(session: Session, loaded: Loaded) -> Work[None]:
    """Remove a thread that is as it was surveyed; Conflict if it is not."""
    row = loaded.thread
    assert row is not None
    yield from Making(session.heads, row.key, row.created, row.updated, row.epoch, row).abandon()
