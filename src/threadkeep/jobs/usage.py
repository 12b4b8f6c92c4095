"""Count the tokens that messages took, over many threads, and what they cost."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

from threadkeep.clock import now_ms
from threadkeep.engine.history.checkpoint_info import utc_time
from threadkeep.engine.history.token_counts import METADATA, MODEL, NODE, THREAD, Prices, TokenTotals, TokenUsage
from threadkeep.engine.history.token_usage import ThreadUsage, UsageQuery, thread_usage
from threadkeep.engine.identity import Kind, ThreadKey, as_id, as_ids, as_kind
from threadkeep.engine.threads import catalogue
from threadkeep.engine.threads.catalogue import ThreadInfo
from threadkeep.engine.threads.metadata import LATEST, Match, as_filter, as_match
from threadkeep.engine.when import When, as_time
from threadkeep.errors import Missing
from threadkeep.jobs.over_threads import over_threads, read_thread
from threadkeep.jobs.prices import prices as read_prices
from threadkeep.session import Session
from threadkeep.work import Blocking, OnProgress, Progress, Work, read, with_progress

_Visit = Callable[[ThreadInfo], Work[None]]


def usage(
    session: Session,
    thread_ids: str | Iterable[str] | None = None,
    *,
    prefix: str = "",
    metadata: Mapping[str, Any] | None = None,
    match: Match = LATEST,
    kind: Kind | None = None,
    since: When | None = None,
    until: When | None = None,
    by: str | Iterable[str] = THREAD,
    all_branches: bool = False,
    prices: Prices | str | os.PathLike[str] | None = None,
    on_progress: OnProgress | None = None,
) -> Work[TokenUsage]:
    """Return the tokens that messages took, by thread, model, node or metadata, and with `prices` what they cost.

    The tokens are those of LangChain's `usage_metadata` and of CubeLoop's `usage`. Each message counts once in its
    thread: by its id, or if it has none, by where it is stored. Only what the state of the latest branch still contains
    counts, with that of the subgraphs that it called; with `all_branches` also removed messages and abandoned branches.

    `by` is `thread`, `model`, `node` (the one that first wrote the message), `metadata:KEY` (of the newest root
    checkpoint), or a list of these. `prices` maps models to prices per million tokens: `{"gpt-5*": {"input": 1.25,
    "output": 10, "cache_read": 0.125}}`, or is the path of a TOML or JSON file. Models without a price are listed as
    `unpriced`. `since` and `until` are compared with the time when a message was first stored.

    `thread_ids` is one thread, or several; else `prefix`, `metadata` and `match` select threads as in `threads`. Raise
    Missing if a named thread does not exist, ValueError if threads are both named and selected. Threads are read one at
    a time, in slices of 256 items. One round trip for each thread and each slice; an item is read once, and by node or
    time twice. Threads with damaged values are listed in `damaged`, those that cannot be read in `skipped`.
    """
    now, groups = now_ms(), _as_groups(by)
    first, last = as_time(since, "since", now), as_time(until, "until", now)
    needs_history = NODE in groups or first is not None or last is not None
    query = UsageQuery(first, last, bool(all_branches), needs_history)
    prefix, kind, wanted, match = as_id(prefix, "prefix"), as_kind(kind), as_filter(metadata), as_match(match)
    if thread_ids is None:
        select = partial(over_threads, session.tenant, prefix, kind, wanted, match=match)
    elif prefix or wanted:
        raise ValueError("give thread_ids, or prefix and metadata, not both")
    else:
        select = partial(_over_named, session, _as_ids(thread_ids), kind)

    def work() -> Work[TokenUsage]:
        table = yield Blocking(partial(read_prices, prices))  # may read a file
        totals, skipped, damaged = TokenTotals(groups, table), list[str](), list[str]()

        def take(info: ThreadInfo, found: ThreadUsage) -> None:
            totals.threads += 1
            damaged.extend([info.id] * found.is_damaged)
            shared: dict[str, Any] = {THREAD: info.id, "kind": info.kind}
            shared |= {name: found.metadata.get(name.removeprefix(METADATA)) for name in groups if METADATA in name}
            for message in found.messages:
                totals.add(shared, message)

        def visit(info: ThreadInfo) -> Work[None]:
            if first is None or info.updated >= utc_time(first):
                plan = partial(thread_usage, session.heads, ThreadKey(session.tenant, info.kind, info.id), query)
                yield from read_thread(info, plan, partial(take, info), skipped)

        yield from select(visit)
        return TokenUsage(
            groups,
            query.all_branches,
            utc_time(first) if first is not None else None,
            utc_time(last) if last is not None else None,
            totals.threads,
            totals.rows(),
            totals.total(),
            tuple(skipped),
            tuple(damaged),
        )

    return with_progress(work(), on_progress)


def _as_ids(given: Any) -> list[str]:
    several = isinstance(given, Iterable) and not isinstance(given, str)
    return list(dict.fromkeys(as_ids(given, "thread_ids") if several else [as_id(given, "thread_ids")]))


def _as_groups(by: Any) -> tuple[str, ...]:
    groups = tuple(dict.fromkeys([by] if isinstance(by, str) else by))
    for each in groups:
        is_metadata = isinstance(each, str) and each.startswith(METADATA) and each != METADATA
        if each not in (THREAD, MODEL, NODE) and not is_metadata:
            raise ValueError(f"by must be {THREAD}, {MODEL}, {NODE} or {METADATA}KEY, or a list of them, not {each!r}")
    return groups


def _over_named(session: Session, ids: list[str], kind: Kind | None, visit: _Visit) -> Work[None]:
    for done, id in enumerate(ids, start=1):
        info = yield from read(partial(catalogue.get_thread, session.tenant, id, kind))
        if info is None:
            raise Missing(f"thread {id!r} not found")
        yield from visit(info)
        yield Progress(done, len(ids), id)
