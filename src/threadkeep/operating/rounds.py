"""Rounds: long work that goes to every thread, one after the other, and adds up what each tells.

Threads are met by id, each once; one that is removed meanwhile is passed over, and a damaged one told of as skipped. What a thread tells is a plan in
`engine/`, and so is the adding up.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from threadkeep.engine import audit, catalogue, sizes
from threadkeep.engine.backend import Footprint, Storage
from threadkeep.engine.catalogue import ThreadInfo
from threadkeep.engine.heads import Heads
from threadkeep.engine.identity import ThreadKey
from threadkeep.engine.memories import Count, Spaces
from threadkeep.errors import Corrupt, Missing
from threadkeep.plan import Plan
from threadkeep.work import Progress, Read, Work

_PAGE, _SPACES = 2048, 1000


def over_threads(
    tenant: str,
    prefix: str,
    kind: str | None,
    metadata: Mapping[str, Any] | None,
    visit: Callable[[ThreadInfo], Work[None]],
) -> Work[None]:
    """Visit the threads that match, by id."""
    done, last = 0, None
    while True:
        query = catalogue.query(
            tenant, limit=_PAGE, after=last, prefix=prefix, metadata=metadata, status=None, order="id", kind=kind
        )
        page = yield Read(partial(catalogue.threads, query, dict(metadata or {}), None))
        for info in page:
            yield from visit(info)
            done += 1
            yield Progress(done, None, info.id)
        if len(page) < _PAGE:
            return
        last = page[-1]


def _told(
    info: ThreadInfo, skipped: list[str], take: Callable[[Any], None], make: Callable[[], Plan[Any]]
) -> Work[None]:
    """Take what a thread tells, if it is still there and can be read."""
    try:
        told = yield Read(make)
    except Missing:
        return
    except Corrupt:
        skipped.append(info.id)
        return
    take(told)


def activity(
    heads: Heads, tenant: str, prefix: str, kind: str | None, metadata: Mapping[str, Any] | None, asked: audit.Asked
) -> Work[audit.Activity]:
    """What happened in all threads that match. Threads that did not change since are not read."""
    tally = audit.Tally()
    skipped: list[str] = []

    def visit(info: ThreadInfo) -> Work[None]:
        if asked.since is None or info.updated >= audit.moment(asked.since):
            done_in = partial(audit.done_in, heads, ThreadKey(tenant, info.kind, info.id), asked)
            yield from _told(info, skipped, tally.take, done_in)

    yield from over_threads(tenant, prefix, kind, metadata, visit)
    return replace(tally.activity(asked), skipped=tuple(skipped))


def sizes_of_all(heads: Heads, tenant: str, prefix: str, kind: str | None, limit: int) -> Work[sizes.Sizes]:
    """What all threads that match take."""
    scale = sizes.Scale(limit)
    skipped: list[str] = []

    def visit(info: ThreadInfo) -> Work[None]:
        yield from _told(info, skipped, scale.take, partial(sizes.weigh, heads, ThreadKey(tenant, info.kind, info.id)))

    yield from over_threads(tenant, prefix, kind, None, visit)
    return replace(scale.sizes(), skipped=tuple(skipped))


def sizes_of_one(heads: Heads, tenant: str, id: str, kind: str | None, limit: int) -> Work[sizes.Sizes]:
    """What one thread takes; Missing if it is not there."""
    scale = sizes.Scale(limit)
    key = yield Read(lambda: catalogue.known(tenant, id, kind))
    scale.take((yield Read(lambda: sizes.weigh(heads, key))))
    return scale.sizes()


def stats(tenant: str, now: int) -> Work[sizes.Stats]:
    """Threads and memories in numbers. `now` is in microseconds."""
    census = sizes.Census()

    def visit(info: ThreadInfo) -> Work[None]:
        census.take(info)
        yield from ()

    yield from over_threads(tenant, "", None, None, visit)
    memories = yield Read(lambda: _count(tenant, now))
    namespaces, last = 0, None
    while True:
        some = yield Read(partial(_spaces, tenant, now, last))
        namespaces += len(some)
        if len(some) < _SPACES:
            break
        last = some[-1]
    storage = yield Read(_footprint)
    return census.stats(memories, namespaces, storage)


async def _count(tenant: str, now: int) -> int:
    return await Count(tenant, now)


async def _spaces(tenant: str, now: int, after: tuple[str, ...] | None) -> tuple[tuple[str, ...], ...]:
    return await Spaces(tenant, (), now, _SPACES, after)


async def _footprint() -> Storage | None:
    return await Footprint()
