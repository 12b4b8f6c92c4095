"""A thread as a portable file to pass on: what happened, without what people wrote."""

from __future__ import annotations

from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp

from starlette.concurrency import run_in_threadpool

from threadkeep.inspector.inspected import Inspected
from threadkeep.inspector.query import QueryParameters

NAME = "thread-redacted.jsonl.zst"


async def redacted(shown: Inspected, query: QueryParameters) -> Path:
    """Write a file for the caller to send and to `remove`."""
    place = await shown.place(query)
    file = Path(await run_in_threadpool(mkdtemp, prefix="threadkeep-")) / NAME
    try:
        await shown.keep.aexport(file, thread_id=place.thread, kind=place.kind, redact=True)
    except BaseException:
        await run_in_threadpool(remove, file)
        raise
    return file


def remove(file: Path) -> None:
    """Remove a file and its folder."""
    rmtree(file.parent)
