"""Valkey and Redis, one server or a cluster: requests as scripts on keys.

A thread is a hash and a sorted set; the threads of a partition (one of 1,024, by a hash of the thread) are listed in
sorted sets of that partition. All of them have the partition's name as their hash tag, so they are in one slot, and a
commit is one script. What concerns many threads asks all partitions, and merges.

    {partition}:t:…     a thread: row, version, items, rows of checkpoints and writes
    {partition}:o:…     their order: checkpoints by namespace and id, writes by checkpoint, runs
    {partition}:u:…     the threads of a tenant by time of change; c: of making; b: by bytes; n: by id
    {partition}:g:…     by their greatest checkpoint id
    {partition}:k:…     that id of each thread
    {partition}:r:…     runs, and the threads that they left something in
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from hashlib import blake2b
from itertools import islice
from typing import Any, NamedTuple

from threadkeep.backends.valkey.calls import AT_ONCE, PARTITIONS, Call, CallExecutor, key_of, merged, merged_ranks
from threadkeep.backends.valkey.health import ValkeyHealth
from threadkeep.backends.valkey.memories import ValkeyMemories
from threadkeep.backends.valkey.rows import (
    checkpoint_row,
    item_field,
    item_id,
    pack_checkpoint,
    pack_thread,
    pack_write,
    row_place,
    segments,
    space_place,
    task_place,
    thread_row,
    visible_place,
    write_place,
    write_row,
)
from threadkeep.engine.identity import ThreadKey, from_bytes, to_bytes
from threadkeep.engine.log import itemlog
from threadkeep.engine.log.itemlog import BEGINNING, RUN_LISTS, SHARED, ItemId, ItemRange
from threadkeep.engine.log.records import WriteRow
from threadkeep.engine.memories.namespaces import decode, encode
from threadkeep.engine.requests import (
    Batch,
    CachedItems,
    CheckpointRef,
    CheckpointRows,
    Commit,
    CopyThread,
    DropThread,
    FindThreadsOfRuns,
    ForkThread,
    ItemSizes,
    ListedThread,
    ListThreads,
    LoadAncestors,
    LoadCheckpoints,
    LoadedRows,
    LoadItems,
    LoadThreadRows,
    MeasureItems,
    NewLabels,
    ScanCheckpoints,
    ScannedCheckpoint,
    ranges_of,
)
from threadkeep.errors import Conflict, Corrupt
from threadkeep.plan import Request

_STAGED_FOR = 3_600_000
"""Milliseconds that what is being copied may take to become a thread."""
_REPLACED = 2
"""Tells the script `commit` that a thread is replaced by a new one. 1 would remove it."""


def _partition(tenant: str, kind: str, id: str) -> int:
    said = encode((tenant, kind, id))
    return int.from_bytes(blake2b(said, digest_size=8).digest(), "big") % PARTITIONS


class _ThreadKeys(NamedTuple):
    """What a thread is called: its keys, and its members in the partition's sets."""

    keys: tuple[bytes, ...]
    member: bytes
    id: bytes
    last: bytes


@lru_cache(maxsize=4096)
def _names(prefix: bytes, key: ThreadKey) -> _ThreadKeys:
    partition = _partition(*key)
    thread, tenant, kind = encode(key[:2]) + to_bytes(key.id), to_bytes(key.tenant), encode((key.kind,))
    keys = [key_of(prefix, partition, what, thread) for what in (b"t", b"o")]
    keys += [key_of(prefix, partition, what, tenant) for what in (b"u", b"c", b"b", b"n", b"g", b"r", b"k")]
    id = to_bytes(key.id)
    return _ThreadKeys(tuple(keys), kind + id, encode((key.id,)) + to_bytes(key.kind), kind + id)


class ValkeyBackend:
    """A server or a cluster, below a prefix. `kept` is how long a thread is kept after its last change, in milliseconds."""

    def __init__(self, prefix: str, kept: int | None = None, *, tidies: bool = True) -> None:
        self._prefix = to_bytes(prefix)
        self._tidies = tidies
        self._kept = str(kept) if kept is not None else ""
        remembered = ValkeyMemories(self._prefix)
        self._verbs: dict[type[Request[Any]], Callable[[CallExecutor, Any], Any]] = {
            LoadCheckpoints: self._load, LoadItems: self._items, LoadAncestors: self._ancestors, LoadThreadRows: self._survey,
            ScanCheckpoints: self._scan,
            ListThreads: self._catalogue, FindThreadsOfRuns: self._run_threads, Commit: self._commit,
            CopyThread: self._duplicate, ForkThread: self._fork, DropThread: self._drop, MeasureItems: self._measure,
            **remembered.verbs, **ValkeyHealth(self, remembered).verbs,
        }  # fmt: skip

    @property
    def expires(self) -> bool:
        """Whether threads are kept for a while only."""
        return bool(self._kept)

    def answer(self, executor: CallExecutor, request: Request[Any]) -> Any:
        """Execute one request. A row that cannot be read is Corrupt."""
        try:
            return self._verbs[type(request)](executor, request)
        except (IndexError, KeyError, AttributeError, TypeError, ValueError, Corrupt) as error:
            key = getattr(request, "key", None)
            whose = f"thread {key.id!r}" if isinstance(key, ThreadKey) else "a thread or a memory"
            raise Corrupt(f"a row of {whose} does not make sense: {error!r}") from error

    def key(self, partition: int, what: bytes, rest: bytes) -> bytes:
        """A key of a partition."""
        return key_of(self._prefix, partition, what, rest)

    def names(self, key: ThreadKey) -> _ThreadKeys:
        """What a thread is called."""
        return _names(self._prefix, key)

    # --- reading a thread

    def _load(self, executor: CallExecutor, request: LoadCheckpoints) -> LoadedRows:
        return self._loaded(executor, request.key, request.wanted, (), request.cached)

    def _items(self, executor: CallExecutor, request: LoadItems) -> LoadedRows:
        return self._loaded(executor, request.key, (), request.ranges, request.cached)

    def _loaded(
        self,
        executor: CallExecutor,
        key: ThreadKey,
        wanted: Sequence[CheckpointRef],
        runs: Sequence[ItemRange],
        have: CachedItems | None,
    ) -> LoadedRows:
        """Rows of one moment and their items; again, if the thread was pruned before all items were here."""
        while True:
            told = executor.call(self._load_call(key, wanted, have))
            if not told:
                return LoadedRows(None)
            version, row, size, rows, fields, values = told
            thread, found, items = thread_row(row, size), _found(rows), _filled(fields, values)
            needed = [
                *runs,
                *(run for want, f in zip(wanted, found, strict=True) if want.items for run in ranges_of(f)),
            ]
            believed = have if have is not None and have.epoch == thread.epoch else None
            needed += _spilled(needed, items, believed)
            more = self._slices(executor, key, version, _missing(itemlog.union(needed), items, believed))
            if more is not None:
                return LoadedRows(thread, found, items | more)

    def _load_call(self, key: ThreadKey, wanted: Iterable[CheckpointRef], have: CachedItems | None) -> Call:
        spans = have.items.spans if have is not None else {}
        args: list[Any] = [have.epoch if have else "", have.names if have else 0, len(spans)]
        for lane, (low, high) in spans.items():
            args += (lane, low, high)
        args.append(AT_ONCE)
        for want in wanted:
            args += ("i", row_place(want.ns, want.id)) if want.id is not None else ("l", space_place(want.ns))
            args.append(int(want.items))
        return Call("load", self.names(key).keys[:2], tuple(args))

    def _slices(
        self, executor: CallExecutor, key: ThreadKey, version: bytes, ids: Sequence[ItemId]
    ) -> dict[ItemId, bytes] | None:
        """Items, some at a time; None if the thread is of another epoch by now."""
        found: dict[ItemId, bytes] = {}
        for start in range(0, len(ids), AT_ONCE):
            fields = [item_field(at) for at in ids[start : start + AT_ONCE]]
            now, values = executor.call(Call("slice", self.names(key).keys[:1], tuple(fields)))
            if now is None or now.partition(b":")[0] != version.partition(b":")[0]:
                return None
            found |= _filled(fields, values)
        return found

    def _measure(self, executor: CallExecutor, request: MeasureItems) -> ItemSizes:
        """Some items at a time; again, if the thread was pruned before all were measured."""
        fields = [item_field(at) for run in request.ranges for at in run.ids()]
        while True:
            slices = [
                executor.call(Call("measure", self.names(request.key).keys[:1], (BEGINNING, *fields[start : start + AT_ONCE])))
                for start in range(0, max(len(fields), 1), AT_ONCE)
            ]  # fmt: skip
            if any(not told for told in slices):
                return ItemSizes(None)
            if len({told[0].partition(b":")[0] for told in slices}) == 1:
                break
        items = (each for told in slices for each in told[3])
        _, row, size, _ = slices[0]
        return ItemSizes(thread_row(row, size), tuple((*item_id(at), length, begin) for at, length, begin in items))

    def _ancestors(self, executor: CallExecutor, request: LoadAncestors) -> LoadedRows:
        args = ("", 0, 0, 0, "a", row_place(request.ns, request.id), request.limit)
        told = executor.call(Call("load", self.names(request.key).keys[:2], args))
        if not told:
            return LoadedRows(None)
        _, row, size, rows, fields, values = told
        return LoadedRows(thread_row(row, size), _found(rows), _filled(fields, values))

    def _survey(self, executor: CallExecutor, request: LoadThreadRows) -> LoadedRows:
        return self._surveyed(executor, request.key)[1]

    def _surveyed(self, executor: CallExecutor, key: ThreadKey) -> tuple[bytes, LoadedRows]:
        told = executor.call(Call("survey", self.names(key).keys[:2]))
        if not told:
            return b"", LoadedRows(None)
        version, row, size, checkpoints, writes, fields, values, stored = told
        found = {(each.ns, each.id): each for each in map(checkpoint_row, checkpoints)}
        tasks: dict[tuple[str, str], list[WriteRow]] = {place: [] for place in found}
        for each in map(write_row, writes):
            tasks.setdefault((each.ns, each.checkpoint), []).append(each)
        rows = tuple(CheckpointRows(found.get(place), tuple(held)) for place, held in sorted(tasks.items()))
        return version, LoadedRows(
            thread_row(row, size), rows, _filled(fields, values), itemlog.join_ranges(sorted(map(item_id, stored)))
        )

    # --- changing a thread

    def _commit(self, executor: CallExecutor, request: Commit) -> None:
        self.committed(executor.call(self.commit_call(request.batch)))

    @staticmethod
    def committed(reply: Any) -> None:
        """What a commit says of itself."""
        if reply != 1:
            raise Conflict

    def probe(self) -> Call:
        """A call that changes nothing and finds nothing."""
        return Call("EXISTS", (self.key(0, b"t", b""),))

    def commit_call(self, batch: Batch, staged: bytes | None = None) -> Call:
        """A batch as a script. `staged` is where items of a new thread were put, which may replace one that exists."""
        row, names = batch.thread, self.names(batch.thread.key)
        ends = _REPLACED if staged is not None and batch.expect is not None else int(batch.drops_thread)
        ids = [each.id for each in (*batch.new_checkpoints, *batch.changed_checkpoints)]
        args: list[Any] = [
            f"{batch.expect[0]}:{batch.expect[1]}" if batch.expect else "", f"{row.epoch}:{row.rev}", pack_thread(row),
            row.bytes, row.updated, row.created, names.member, names.id, names.last,
            encode((max(ids),)) if ids else "", self._kept, ends,
        ]  # fmt: skip
        gone = [row_place(*each) for each in batch.removed_checkpoints]
        _add(args, [*gone, *(task_place(*each) for each in batch.removed_writes)])
        _add(args, [item_field(at) for run in batch.removed_items for at in run.ids()])
        new, changed = (batch.new_checkpoints, batch.new_writes), (batch.changed_checkpoints, batch.changed_writes)
        for checkpoints, writes in (new, changed):
            args.append(len(checkpoints) + len(writes))
            for each in checkpoints:
                args += (row_place(each.ns, each.id), visible_place(each), pack_checkpoint(each))
            for task in writes:
                args += (write_place(task), write_place(task), pack_write(task))
        _add(args, [piece for at, stored in batch.items for piece in (item_field(at), stored)], each=2)
        _add(args, [encode((run,)) for run in batch.runs])
        _add(args, [encode((run,)) for run in batch.removed_runs])
        return Call("commit", names.keys if staged is None else (*names.keys, staged), tuple(args))

    def _drop(self, executor: CallExecutor, request: DropThread) -> None:
        names = self.names(request.key)
        executor.call(Call("drop", names.keys, (names.member, names.id, names.last)))

    def _duplicate(self, executor: CallExecutor, request: CopyThread) -> None:
        version, loaded = self._surveyed(executor, request.source)
        self._expect(loaded, request.expect)
        replaced = {at: stored for at, stored, _ in request.labels}
        rows = [f.row for f in loaded.checkpoints if f.row is not None]
        writes = [row for f in loaded.checkpoints for row in f.writes]
        order = self.names(request.source).keys[1]
        told = executor.call(Call("ZRANGEBYLEX", (order,), (b"[u", b"(v")))  # a row names only its first run
        batch = Batch(
            expect=request.replaces,
            thread=request.thread,
            items=tuple(replaced.items()),
            new_checkpoints=tuple(rows),
            new_writes=tuple(writes),
            labels=tuple(NewLabels(at.n, tags) for at, _, tags in request.labels),
            runs=tuple(decode(place[1:])[0] for place in told),
        )
        copied = [at for run in loaded.stored for at in run.ids() if at not in replaced]
        self._copied(executor, request.source, version, copied, batch)

    def _fork(self, executor: CallExecutor, request: ForkThread) -> None:
        loaded = self._loaded(executor, request.source, (), (), None)
        self._expect(loaded, request.expect)
        version = b"%d:" % request.expect[0]
        ids = [at for run in request.ranges for at in run.ids()]
        self._copied(executor, request.source, version, ids, request.batch, counted=True)

    @staticmethod
    def _expect(loaded: LoadedRows, expect: tuple[int, int]) -> None:
        if loaded.thread is None or (loaded.thread.epoch, loaded.thread.rev) != expect:
            raise Conflict

    def _copied(
        self,
        executor: CallExecutor,
        source: ThreadKey,
        version: bytes,
        ids: Sequence[ItemId],
        batch: Batch,
        *,
        counted: bool = False,
    ) -> None:
        """Copy items, unseen, some at a time; then make a thread of them and of a batch."""
        target = batch.thread.key
        staged = self.key(
            _partition(*target), b"s", encode(target[:2]) + to_bytes(target.id) + b"%d" % batch.thread.epoch
        )
        size = 0
        for start in range(0, len(ids), AT_ONCE):
            some = self._slices(executor, source, version, ids[start : start + AT_ONCE])
            if some is None:
                raise Conflict
            size += sum(map(len, some.values()))
            pieces = [piece for at, stored in some.items() for piece in (item_field(at), stored)]
            executor.call(Call("stage", (staged,), (_STAGED_FOR, *pieces)))
        thread = batch.thread._replace(bytes=batch.thread.bytes + size) if counted else batch.thread
        self.committed(executor.call(self.commit_call(batch._replace(thread=thread), staged)))

    # --- many threads

    def _run_threads(self, executor: CallExecutor, request: FindThreadsOfRuns) -> tuple[ThreadKey, ...]:
        kind = encode((request.kind,))
        asked = [
            Call("ZRANGEBYLEX", (self.key(partition, b"r", to_bytes(request.tenant)),), (b"[" + begin, b"(" + begin + b"\xff"))
            for begin in (encode((run,)) + kind for run in request.runs)
            for partition in range(PARTITIONS)
        ]  # fmt: skip
        begins = [len(encode((run,)) + kind) for run in request.runs for _ in range(PARTITIONS)]
        found = zip(begins, executor.calls(asked), strict=True)
        ids = (from_bytes(member[begin:]) for begin, members in found for member in members)
        return tuple(dict.fromkeys(ThreadKey(request.tenant, request.kind, id) for id in ids))

    def _scan(self, executor: CallExecutor, request: ScanCheckpoints) -> tuple[ScannedCheckpoint, ...]:
        if request.thread is not None:
            key = ThreadKey(request.tenant, request.kind, request.thread)
            return tuple(islice(_in_order(self._hits(executor, request, [key])[0], request), request.limit))
        return self._scan_all(executor, request)

    def _hits(
        self, executor: CallExecutor, request: ScanCheckpoints, keys: Sequence[ThreadKey]
    ) -> list[list[ScannedCheckpoint]]:
        """The first checkpoints of each thread that may be asked for."""
        below = _below(request)
        space = space_place(request.ns) if request.ns is not None else b""
        calls = [Call("scan", self.names(key).keys[:2], (space, below, request.limit + 1)) for key in keys]
        return [
            [ScannedCheckpoint(key, checkpoint_row(row), held) for row, held in zip(rows, labels, strict=True)]
            for key, (rows, labels) in zip(keys, executor.calls(calls), strict=True)
        ]

    def _scan_all(self, executor: CallExecutor, request: ScanCheckpoints) -> tuple[ScannedCheckpoint, ...]:
        """Checkpoints of all threads: those threads first whose greatest id is greatest."""
        found: list[ScannedCheckpoint] = []
        opened = self._by_greatest(executor, request)
        step = max(request.limit, 16)
        while some := list(islice(opened, step)):
            for hits in self._hits(executor, request, [key for _, key in some]):
                found += hits
            found = list(islice(_in_order(found, request), request.limit))
            if len(found) >= request.limit and to_bytes(found[-1].row.id) > some[-1][0]:
                break
        return tuple(found)

    def _by_greatest(self, executor: CallExecutor, request: ScanCheckpoints) -> Iterator[tuple[bytes, ThreadKey]]:
        """Threads of a kind with their greatest checkpoint id, descending."""
        keys = [self.key(partition, b"g", to_bytes(request.tenant)) for partition in range(PARTITIONS)]
        for member in merged(
            executor, keys, lambda last: ("ZREVRANGEBYLEX", (b"(" + last if last else b"+", b"-")), reverse=True
        ):
            greatest, kind, id = segments(member, 2)
            if kind == request.kind:
                yield to_bytes(greatest), ThreadKey(request.tenant, kind, id)

    def _catalogue(self, executor: CallExecutor, request: ListThreads) -> tuple[ListedThread, ...]:
        threads = self._in_catalogue(executor, request)
        found: list[ListedThread] = []
        while len(found) < request.limit:
            some = list(islice(threads, max(request.limit - len(found), 16)))
            if not some:
                break
            rows = executor.calls([Call("HMGET", self.names(key).keys[:1], ("r", "b")) for key in some])
            self.tidy(executor, [key for key, (row, _) in zip(some, rows, strict=True) if row is None])
            here = [thread_row(row, size) for row, size in rows if row is not None]
            wanted = [row for row in here if request.status in (None, row.status)]
            labels = executor.calls(
                [
                    Call("HGET", self.names(row.key).keys[:1], (item_field(ItemId(SHARED, row.labels or 0)),))
                    for row in wanted
                ]
            )
            found += [
                ListedThread(row, held if row.labels is not None else None)
                for row, held in zip(wanted, labels, strict=True)
            ]
        return tuple(found[: request.limit])

    def tidy(self, executor: CallExecutor, keys: Iterable[ThreadKey]) -> None:
        """Forget threads that have expired."""
        if self._tidies:
            names = [self.names(key) for key in keys]
            executor.calls([Call("tidy", each.keys, (each.member, each.id, each.last)) for each in names])

    def _in_catalogue(self, executor: CallExecutor, request: ListThreads) -> Iterator[ThreadKey]:
        ordered = self._by_id(executor, request) if request.order == "id" else self._by_number(executor, request)
        return (key for key in ordered if request.kind in (None, key.kind) and key.id.startswith(request.prefix))

    def _by_id(self, executor: CallExecutor, request: ListThreads) -> Iterator[ThreadKey]:
        keys = [self.key(partition, b"n", to_bytes(request.tenant)) for partition in range(PARTITIONS)]
        begin = encode((request.prefix,))[:-2]
        low = b"[" + begin
        if request.after is not None:
            _, kind, id = request.after
            low = max(low, b"(" + encode((id,)) + to_bytes(kind), key=lambda bound: bound[1:])
        ask = lambda last: ("ZRANGEBYLEX", (b"(" + last if last else low, b"(" + begin + b"\xff" if begin else b"+"))  # noqa: E731
        for member in merged(executor, keys, ask):
            id, kind = segments(member, 1)
            yield ThreadKey(request.tenant, kind, id)

    def _by_number(self, executor: CallExecutor, request: ListThreads) -> Iterator[ThreadKey]:
        what = {"updated": b"u", "created": b"c", "bytes": b"b"}[request.order]
        keys = [self.key(partition, what, to_bytes(request.tenant)) for partition in range(PARTITIONS)]
        high = request.after[0] if request.after is not None else "+inf"
        after = (request.after[1], to_bytes(request.after[2])) if request.after is not None else None
        for score, member, _ in merged_ranks(executor, keys, high):
            kind, id = segments(member, 1)
            if after is None or score < float(high) or (kind, to_bytes(id)) > after:
                yield ThreadKey(request.tenant, kind, id)


def _below(request: ScanCheckpoints) -> bytes:
    """The bound of ids that a scan asks for. With a NUL after it, the id itself is below it."""
    bounds = [(to_bytes(request.before), b"")] if request.before is not None else []
    bounds += [
        (to_bytes(id), b"\x00") for id in (request.id, request.after[0] if request.after else None) if id is not None
    ]
    id, more = min(bounds, default=(b"", b""))
    return id.replace(b"\x00", b"\x00\xff") + more


def _in_order(hits: Iterable[ScannedCheckpoint], request: ScanCheckpoints) -> Iterator[ScannedCheckpoint]:
    ordered = sorted(hits, key=lambda hit: (to_bytes(hit.key.id), to_bytes(hit.row.ns)))
    ordered.sort(key=lambda hit: to_bytes(hit.row.id), reverse=True)
    return (hit for hit in ordered if request.id in (None, hit.row.id) and _is_after(request.after, hit))


def _is_after(after: tuple[str, str, str] | None, hit: ScannedCheckpoint) -> bool:
    if after is None or hit.row.id != after[0]:
        return True
    return (to_bytes(hit.key.id), to_bytes(hit.row.ns)) > (to_bytes(after[1]), to_bytes(after[2]))


def _add(args: list[Any], values: Sequence[Any], *, each: int = 1) -> None:
    """A list with its number before it."""
    args.append(len(values) // each)
    args += values


def _filled(fields: Sequence[bytes], values: Sequence[bytes | None]) -> dict[ItemId, bytes]:
    return {item_id(at): value for at, value in zip(fields, values, strict=True) if value is not None}


def _spilled(runs: Iterable[ItemRange], items: dict[ItemId, bytes], have: CachedItems | None) -> list[ItemRange]:
    """The runs in the run lists among these: those that came along, and those that the asker has."""
    known = have.items.range_lists if have is not None else {}
    lists = [at for run in runs if run.lane == RUN_LISTS for at in run.ids()]
    return [run for at in lists for run in (itemlog.spilled(at, items[at]) if at in items else known.get(at.n, ()))]


def _missing(runs: Iterable[ItemRange], items: dict[ItemId, bytes], have: CachedItems | None) -> list[ItemId]:
    ids = (at for run in runs for at in run.ids())
    return [at for at in ids if at not in items and not (have is not None and have.items.has(at))]


def _found(rows: Iterable[tuple[bytes | None, Sequence[bytes]]]) -> tuple[CheckpointRows, ...]:
    return tuple(
        CheckpointRows(checkpoint_row(row) if row is not None else None, tuple(map(write_row, writes)))
        for row, writes in rows
    )
