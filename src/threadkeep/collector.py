"""The garbage collector, paused while modules are imported, values decoded, or many changes staged."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

_FROZEN_AT_START = 1000
"""Python 3.12 starts with some hundred frozen objects; a program that freezes its own has thousands."""


@contextmanager
def paused_collector() -> Iterator[None]:
    """Collect no garbage meanwhile, and count what was made as old.

    Nearly everything that an import makes stays, and the collector would visit it again and again: a tenth of the time
    that LangGraph takes to import. Garbage of others is collected later, with the next full collection. Does nothing
    if the program has turned the collector off, or has frozen objects.
    """
    if not gc.isenabled() or gc.get_freeze_count() > _FROZEN_AT_START:
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.unfreeze()  # into the oldest generation
        gc.enable()


@contextmanager
def gc_paused() -> Iterator[None]:
    """Pause Python's cyclic garbage collector, if it is on, while many objects are made that all stay for a while.

    It would visit each of them several times for nothing, and now and then everything else in the process, too. In a
    process with some objects of its own, that took a third of the time of a page of checkpoints, and a quarter of the
    time of changes of two hundred tasks. Nothing in here may wait for anything.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
