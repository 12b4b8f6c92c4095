"""A thread as a portable file to pass on: what happened, without what people wrote."""

from __future__ import annotations

from pathlib import Path
from tempfile import mkdtemp

from threadkeep.inspector.inspected import Inspected
from threadkeep.inspector.query import Query


async def redacted(shown: Inspected, query: Query) -> Path:
    """Write a file for the caller to send and to remove, in a folder of its own."""
    place = await shown.place(query)
    file = Path(mkdtemp(prefix="threadkeep-")) / "thread.jsonl.zst"
    await shown.keep.aexport(file, thread_id=place.thread, kind=place.kind, redact=True)
    return file
