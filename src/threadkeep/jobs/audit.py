"""Trace writes, count what nodes and channels write, and measure the space that threads take."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from threadkeep import clock
from threadkeep.clock import now_ms
from threadkeep.engine.health.requests import MeasureStorage
from threadkeep.engine.history import audit
from threadkeep.engine.history import flow as engine_flow
from threadkeep.engine.history import sizes as engine_sizes
from threadkeep.engine.history.audit import Activity, TracedWrite
from threadkeep.engine.history.checkpoint_info import utc_time
from threadkeep.engine.history.checkpoint_sizes import measure_checkpoint
from threadkeep.engine.history.flow import Flow
from threadkeep.engine.history.sizes import Sizes, Stats
from threadkeep.engine.identity import Kind, ThreadKey, as_count, as_id, as_kind, as_optional_id
from threadkeep.engine.memories.requests import CountMemories, ListNamespaces
from threadkeep.engine.threads.catalogue import ThreadInfo
from threadkeep.engine.threads.metadata import LATEST, Match, as_filter, as_match
from threadkeep.engine.when import When, as_time
from threadkeep.jobs.catalogue import thread_key
from threadkeep.jobs.over_threads import over_threads, read_thread
from threadkeep.plan import send
from threadkeep.session import Session
from threadkeep.work import OnProgress, Work, read, with_progress

_NAMESPACES_PER_PAGE = 1000


async def trace(
    session: Session,
    thread_id: str,
    checkpoint_id: str | None = None,
    *,
    ns: str = "",
    kind: Kind | None = None,
    values: bool = False,
) -> list[TracedWrite]:
    """Return the writes on a checkpoint (the latest by default), ordered by time, path, task and idx.

    These are the writes of the tasks that ran from it. `checkpoint_id` is an id, a unique beginning of one, `latest` or
    `latest~2`. With `values`, each write has its value as plain data. A CubeLoop thread has no writes: instead, return
    the messages that this checkpoint adds to its parent; `task` is their run, `idx` their position in the thread.
    Raise Missing if the thread or checkpoint does not exist. Up to five round trips.
    """
    ref, namespace = as_optional_id(checkpoint_id, "checkpoint_id"), as_id(ns, "ns")
    return await audit.trace(session.heads, await thread_key(session, thread_id, kind), ref, namespace, values=values)


async def flow(session: Session, thread_id: str, *, kind: Kind | None = None) -> Flow:
    """Return the data flow of a thread: its nodes and channels, and who wrote, triggered or sent what, and when.

    All checkpoints and branches count, and all calls of a subgraph together. `Flow.text` and `Flow.mermaid` draw it. In
    a CubeLoop thread the nodes are the roles of its messages and the tools that they call. What is damaged is left out
    and listed in `damaged`. Raise Missing if the thread does not exist. Up to five round trips; of values, only pending
    sends and the messages of CubeLoop threads are read.
    """
    return await engine_flow.flow(session.heads, await thread_key(session, thread_id, kind))


def activity(
    session: Session,
    *,
    since: When | None = None,
    until: When | None = None,
    prefix: str = "",
    ns: str | None = None,
    kind: Kind | None = None,
    metadata: Mapping[str, Any] | None = None,
    match: Match = LATEST,
    on_progress: OnProgress | None = None,
) -> Work[Activity]:
    """Return the number and size of writes by node and channel, over all matching threads.

    Count writes made at or after `since` and before `until`. Both are aware datetimes, timedeltas before now, or text
    such as `7d` or `2026-04-01`. `metadata` and `match` select threads as in `threads`. `ns` None means all namespaces,
    "" the root, a subgraph's name all calls of it. In CubeLoop threads each message counts as a write of no node to the
    channel `messages`. Threads are read one at a time, each as it is at that moment. Threads without a change after
    `since` are not read. Threads with damaged rows, which do not count, are listed in `damaged`; those that cannot be
    read at all in `skipped`.
    """
    now = now_ms()
    query = audit.ActivityQuery(as_time(since, "since", now), as_time(until, "until", now), as_optional_id(ns, "ns"))
    threads = partial(
        over_threads,
        session.tenant,
        as_id(prefix, "prefix"),
        as_kind(kind),
        as_filter(metadata),
        match=as_match(match),
    )

    def work() -> Work[Activity]:
        totals, skipped, damaged = audit.ActivityTotals(), list[str](), list[str]()

        def take(info: ThreadInfo, found: audit.ThreadActivity) -> None:
            totals.add_thread(found)
            damaged.extend([info.id] * found.is_damaged)

        def visit(info: ThreadInfo) -> Work[None]:
            if query.since is None or info.updated >= utc_time(query.since):
                plan = partial(
                    audit.thread_activity, session.heads, ThreadKey(session.tenant, info.kind, info.id), query
                )
                yield from read_thread(info, plan, partial(take, info), skipped)

        yield from threads(visit)
        return replace(totals.activity(query), skipped=tuple(skipped), damaged=tuple(damaged))

    return with_progress(work(), on_progress)


def sizes(
    session: Session,
    *,
    thread_id: str | None = None,
    prefix: str = "",
    kind: Kind | None = None,
    limit: int = 20,
    checkpoint_id: str | None = None,
    ns: str = "",
    on_progress: OnProgress | None = None,
) -> Work[Sizes]:
    """Return the space that threads take: by thread (the `limit` largest), by channel, and by kind.

    Measure one thread, or all whose id starts with `prefix`. With `checkpoint_id`, given as for `show`, `checkpoint` of
    the result compares the state of that checkpoint of the thread with the writes on it, and with earlier checkpoints.
    Raise ValueError if both a thread and a prefix are given, or a checkpoint without a thread; Missing if the thread or
    checkpoint does not exist. Two round trips for each thread, more for many items; two or three for the checkpoint.
    Threads with damaged rows are measured as far as possible and listed in `damaged`; those that cannot be read at all
    in `skipped`. If the thread or checkpoint that was named cannot be read at all, raise Corrupt.
    """
    totals, prefix, kind = engine_sizes.SizeTotals(as_count(limit, "limit")), as_id(prefix, "prefix"), as_kind(kind)
    ref, namespace = as_optional_id(checkpoint_id, "checkpoint_id"), as_id(ns, "ns")
    if thread_id is None:
        if ref is not None:
            raise ValueError("checkpoint_id is a checkpoint of a thread: give thread_id too")
        return with_progress(_sizes_of_all(session, totals, prefix, kind), on_progress)
    if prefix:
        raise ValueError("give thread_id or prefix, not both")
    return _sizes_of_one(session, totals, as_id(thread_id, "thread_id"), kind, (ref, namespace))


def _sizes_of_all(session: Session, totals: engine_sizes.SizeTotals, prefix: str, kind: Kind | None) -> Work[Sizes]:
    skipped: list[str] = []

    def visit(info: ThreadInfo) -> Work[None]:
        plan = partial(engine_sizes.measure_thread, session.heads, ThreadKey(session.tenant, info.kind, info.id))
        yield from read_thread(info, plan, totals.add_thread, skipped)

    yield from over_threads(session.tenant, prefix, kind, {}, visit)
    return replace(totals.sizes(), skipped=tuple(skipped))


def _sizes_of_one(
    session: Session,
    totals: engine_sizes.SizeTotals,
    id: str,
    kind: Kind | None,
    checkpoint: tuple[str | None, str],
) -> Work[Sizes]:
    key = yield from read(lambda: thread_key(session, id, kind))
    totals.add_thread((yield from read(lambda: engine_sizes.measure_thread(session.heads, key))))
    ref, ns = checkpoint
    if ref is None:
        return totals.sizes()
    measured = yield from read(lambda: measure_checkpoint(session.heads, key, ref, ns))
    return replace(totals.sizes(), checkpoint=measured)


def stats(session: Session, *, on_progress: OnProgress | None = None) -> Work[Stats]:
    """Return how many threads, checkpoints, writes and memories this tenant has, and the space the storage takes.

    Four round trips; more for many threads or namespaces. Only thread rows are read.
    """
    return with_progress(_stats(session.tenant, clock.now_us()), on_progress)


def _stats(tenant: str, now: int) -> Work[Stats]:
    totals = engine_sizes.ThreadTotals()

    def visit(info: ThreadInfo) -> Work[None]:
        totals.add_thread(info)
        yield from ()

    yield from over_threads(tenant, "", None, {}, visit)
    memories = yield from read(lambda: send(CountMemories(tenant, now)))
    namespaces = yield from _count_namespaces(tenant, now)
    return totals.stats(memories, namespaces, (yield from read(lambda: send(MeasureStorage()))))


def _count_namespaces(tenant: str, now: int) -> Work[int]:
    total, last = 0, None
    while True:
        page = yield from read(partial(send, ListNamespaces(tenant, (), now, _NAMESPACES_PER_PAGE, last)))
        total += len(page)
        if len(page) < _NAMESPACES_PER_PAGE:
            return total
        last = page[-1]
