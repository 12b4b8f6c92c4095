"""Lists over many threads on Valkey: checkpoints by condition, pages of threads, and the threads of a run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

from threadkeep.backends.valkey.calls import Call, CallExecutor, merge_by_score, merge_members
from threadkeep.backends.valkey.keys import ThreadKeys, keys_of_partitions, thread_keys
from threadkeep.backends.valkey.rows import (
    checkpoint_at,
    family_of,
    item_field,
    namespace_prefix,
    sealed_of,
    segments,
    thread_row,
)
from threadkeep.engine.identity import ThreadKey, from_bytes, to_bytes
from threadkeep.engine.log.itemlog import SHARED, ItemId
from threadkeep.engine.log.records import ThreadRow
from threadkeep.engine.memories.namespaces import decode, encode
from threadkeep.engine.requests import (
    MALFORMED_ROW_ERRORS,
    FindThreadsOfRuns,
    ListedThread,
    ListThreads,
    ScanCheckpoints,
    ScannedCheckpoint,
    damaged_scan,
)
from threadkeep.plan import Request

_MIN_PAGE = 16
"""At least so many threads are read at once."""
_SETS_BY_SCORE = {"updated": b"u", "created": b"c", "bytes": b"b"}
"""The sorted set of each order, by the first letter of its key's name."""


class ValkeyLists:
    """Lists of threads below a prefix of keys. `tidies` says whether they delete the entries of expired threads."""

    def __init__(self, prefix: bytes, *, tidies: bool) -> None:
        self._prefix = prefix
        self._tidies = tidies
        self.handlers: dict[type[Request[Any]], Callable[[CallExecutor, Any], Any]] = {
            ScanCheckpoints: self._scan_checkpoints,
            ListThreads: self._list_threads,
            FindThreadsOfRuns: self._find_threads_of_runs,
        }

    def _keys(self, key: ThreadKey) -> ThreadKeys:
        return thread_keys(self._prefix, key)

    def _find_threads_of_runs(self, executor: CallExecutor, request: FindThreadsOfRuns) -> tuple[ThreadKey, ...]:
        keys = keys_of_partitions(self._prefix, b"r", request.tenant)
        starts = [encode((run, request.kind)) for run in request.runs for _ in keys]
        calls = [
            Call("ZRANGEBYLEX", (key,), (b"[" + start, b"(" + start + b"\xff"))
            for start, key in zip(starts, keys * len(request.runs), strict=True)
        ]
        found = zip(starts, executor.calls(calls), strict=True)
        ids = (from_bytes(member[len(start) :]) for start, members in found for member in members)
        return tuple(dict.fromkeys(ThreadKey(request.tenant, request.kind, id) for id in ids))

    # --- checkpoints

    def _scan_checkpoints(self, executor: CallExecutor, request: ScanCheckpoints) -> tuple[ScannedCheckpoint, ...]:
        if request.thread is None:
            return self._scan_all_threads(executor, request)
        key = ThreadKey(request.tenant, request.kind, request.thread)
        return tuple(islice(_in_order(self._scan_threads(executor, request, [key]), request), request.limit))

    def _scan_threads(
        self, executor: CallExecutor, request: ScanCheckpoints, keys: Sequence[ThreadKey]
    ) -> list[ScannedCheckpoint]:
        """Return the first checkpoints of each thread that may be wanted."""
        prefix = namespace_prefix(request.ns) if request.ns is not None else b""
        args = (prefix, _upper_bound(request), request.limit + 1, int(request.hidden))
        replies = executor.calls([Call("scan_checkpoints", self._keys(key).rows, args) for key in keys])
        return [
            _scanned_checkpoint(key, family_of(thread), sealed_of(thread), *found)
            for key, (*columns, thread) in zip(keys, replies, strict=True)
            for found in zip(*columns, strict=True)
        ]

    def _scan_all_threads(self, executor: CallExecutor, request: ScanCheckpoints) -> tuple[ScannedCheckpoint, ...]:
        """Read threads in the order of their greatest checkpoint id, until no further thread can have a wanted one."""
        found: list[ScannedCheckpoint] = []
        threads = self._by_greatest_id(executor, request)
        while page := list(islice(threads, max(request.limit, _MIN_PAGE))):
            found += self._scan_threads(executor, request, [key for _, key in page])
            found = list(islice(_in_order(found, request), request.limit))
            if len(found) >= request.limit and to_bytes(found[-1].row.id) > page[-1][0]:
                break
        return tuple(found)

    def _by_greatest_id(self, executor: CallExecutor, request: ScanCheckpoints) -> Iterator[tuple[bytes, ThreadKey]]:
        """Yield the threads of a kind with their greatest checkpoint id, descending."""

        def command_after(last: bytes) -> tuple[str, tuple[bytes, bytes]]:
            return "ZREVRANGEBYLEX", (b"(" + last if last else b"+", b"-")

        keys = keys_of_partitions(self._prefix, b"g", request.tenant)
        for member in merge_members(executor, keys, command_after, reverse=True):
            greatest, kind, id = segments(member, 2)
            if kind == request.kind:
                yield to_bytes(greatest), ThreadKey(request.tenant, kind, id)

    # --- threads

    def _list_threads(self, executor: CallExecutor, request: ListThreads) -> tuple[ListedThread, ...]:
        ordered = self._by_id(executor, request) if request.order == "id" else self._by_score(executor, request)
        wanted = (key for key in ordered if request.kind in (None, key.kind) and key.id.startswith(request.prefix))
        found: list[ListedThread] = []
        while len(found) < request.limit:
            page = list(islice(wanted, max(request.limit - len(found), _MIN_PAGE)))
            if not page:
                break
            rows = self._read_rows(executor, page)
            found += self._with_labels(executor, [each for each in rows if request.status in (None, each.row.status)])
        return tuple(found[: request.limit])

    def _read_rows(self, executor: CallExecutor, keys: Sequence[ThreadKey]) -> list[ListedThread]:
        """Return the rows of threads. Those that have expired are left out."""
        rows = executor.calls([Call("HMGET", self._keys(key).hash, ("r", "b")) for key in keys])
        self.drop_expired(executor, [key for key, (row, _) in zip(keys, rows, strict=True) if row is None])
        found = zip(keys, rows, strict=True)
        return [_listed_thread(key, row, size) for key, (row, size) in found if row is not None]

    def _with_labels(self, executor: CallExecutor, listed: Sequence[ListedThread]) -> list[ListedThread]:
        with_labels = [each for each in listed if type(each.row.labels) is int]
        calls = [
            Call("HGET", self._keys(each.row.key).hash, (item_field(ItemId(SHARED, each.row.labels or 0)),))
            for each in with_labels
        ]
        labels = dict(zip([each.row.key for each in with_labels], executor.calls(calls), strict=True))
        return [each._replace(labels=labels.get(each.row.key)) for each in listed]

    def drop_expired(self, executor: CallExecutor, keys: Iterable[ThreadKey]) -> None:
        """Delete the entries of threads that have expired, unless this Keep must not change anything."""
        if self._tidies:
            names = [self._keys(key) for key in keys]
            executor.calls([Call("drop_expired", each.keys, each.members) for each in names])

    def _by_id(self, executor: CallExecutor, request: ListThreads) -> Iterator[ThreadKey]:
        start = encode((request.prefix,))[:-2]
        low, high = b"[" + start, b"(" + start + b"\xff" if start else b"+"
        if request.after is not None:
            _, kind, id = request.after
            low = max(low, b"(" + encode((id,)) + to_bytes(kind), key=lambda bound: bound[1:])

        def command_after(last: bytes) -> tuple[str, tuple[bytes, bytes]]:
            return "ZRANGEBYLEX", (b"(" + last if last else low, high)

        keys = keys_of_partitions(self._prefix, b"n", request.tenant)
        for member in merge_members(executor, keys, command_after):
            id, kind = segments(member, 1)
            yield ThreadKey(request.tenant, kind, id)

    def _by_score(self, executor: CallExecutor, request: ListThreads) -> Iterator[ThreadKey]:
        keys = keys_of_partitions(self._prefix, _SETS_BY_SCORE[request.order], request.tenant)
        high = request.after[0] if request.after is not None else "+inf"
        last = (request.after[1], to_bytes(request.after[2])) if request.after is not None else None
        for score, member, _ in merge_by_score(executor, keys, high):
            kind, id = segments(member, 1)
            if last is None or score < float(high) or (kind, to_bytes(id)) > last:
                yield ThreadKey(request.tenant, kind, id)


def _scanned_checkpoint(
    key: ThreadKey, family: int, sealed: bytes | None, field: bytes, row: bytes, labels: bytes | None
) -> ScannedCheckpoint:
    try:
        return ScannedCheckpoint(key, checkpoint_at(field, row), labels, family, sealed=sealed)
    except MALFORMED_ROW_ERRORS as error:
        ns, id = decode(field[1:] + b"\x00\x01")
        return damaged_scan(key, ns, id, f"its row cannot be read: {error!r}", sealed)


def _listed_thread(key: ThreadKey, row: bytes, size: bytes | None) -> ListedThread:
    """Return a thread with its row; with an empty one if that cannot be read, or is that of another thread."""
    try:
        found = thread_row(row, size or b"")
        if found.key != key:
            raise ValueError(f"the row is that of {found.key.kind} thread {found.key.id!r}")  # noqa: TRY301 - one place reports it
        return ListedThread(found, None)
    except Exception as error:  # noqa: BLE001 - whatever a damaged row raises
        return ListedThread(ThreadRow(key, 0, 0, (), 0, 0), None, repr(error))


def _upper_bound(request: ScanCheckpoints) -> bytes:
    """Return the bound below which a scan reads ids. A NUL after an id makes the bound include it."""
    bounds = [(to_bytes(request.before), b"")] if request.before is not None else []
    included = (request.id, request.after[0] if request.after else None)
    bounds += [(to_bytes(id), b"\x00") for id in included if id is not None]
    id, end = min(bounds, default=(b"", b""))
    return id.replace(b"\x00", b"\x00\xff") + end


def _in_order(found: Iterable[ScannedCheckpoint], request: ScanCheckpoints) -> Iterator[ScannedCheckpoint]:
    ordered = sorted(found, key=lambda each: (to_bytes(each.key.id), to_bytes(each.row.ns)))
    ordered.sort(key=lambda each: to_bytes(each.row.id), reverse=True)
    return (each for each in ordered if request.id in (None, each.row.id) and _is_after(request.after, each))


def _is_after(last: tuple[str, str, str] | None, each: ScannedCheckpoint) -> bool:
    if last is None or each.row.id != last[0]:
        return True
    return (to_bytes(each.key.id), to_bytes(each.row.ns)) > (to_bytes(last[1]), to_bytes(last[2]))
