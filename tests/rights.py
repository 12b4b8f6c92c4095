"""For scripts of tests that give up root's rights.

As an ordinary user a process may be unable to read the checkout, if root's home folder is private. So it first loads
all modules and files that the test will need.
"""

from __future__ import annotations

import os
from pathlib import Path
from tempfile import TemporaryDirectory

import threadkeep
from checkpoint_chains import Chain, values_of

NOBODY = 65534


def drop_rights() -> None:
    """Become an ordinary user if we are root."""
    if os.geteuid() == 0:
        _rehearse()
        os.setuid(NOBODY)


def _rehearse() -> None:
    """Write, read, be refused and fail to open on a database of our own."""
    with TemporaryDirectory() as folder:
        path = Path(folder, "scratch.db")
        with threadkeep.open(f"sqlite:///{path}") as keep:
            Chain(keep.checkpointer).put({"x": 1})
        with threadkeep.open(f"sqlite:///{path}", read_only=True) as keep:
            values_of(keep.checkpointer)
            _fail_to_put(keep)
        with threadkeep.open(f"sqlite:///{folder}", timeout=0.2) as keep:
            _fail_to_put(keep)


def _fail_to_put(keep: threadkeep.Keep) -> None:
    try:
        Chain(keep.checkpointer).put({"x": 2})
    except threadkeep.errors.ThreadkeepError:
        return
    raise AssertionError("it was written")
