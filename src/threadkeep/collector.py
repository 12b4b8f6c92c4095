"""The garbage collector, paused while modules are imported."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def paused_collector() -> Iterator[None]:
    """Collect no garbage meanwhile, and count what was made as old.

    Nearly everything that an import makes stays, and the collector would visit it again and again: a tenth of the time
    that LangGraph takes to import. Garbage of others is collected later, with the next full collection. Does nothing
    if the program has turned the collector off, or has frozen objects.
    """
    if not gc.isenabled() or gc.get_freeze_count():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.unfreeze()  # into the oldest generation
        gc.enable()
