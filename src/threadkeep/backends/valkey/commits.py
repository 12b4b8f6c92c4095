"""Changes of threads on Valkey: commit a batch, copy, fork and drop a thread."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from threadkeep.backends.valkey.calls import AT_ONCE, Call, CallExecutor
from threadkeep.backends.valkey.keys import staging_key, thread_keys
from threadkeep.backends.valkey.reads import ValkeyReads
from threadkeep.backends.valkey.rows import (
    checkpoint_field,
    item_field,
    order_member,
    pack_checkpoint,
    pack_thread,
    pack_write,
    task_field,
)
from threadkeep.engine.identity import ThreadKey
from threadkeep.engine.log.itemlog import ItemId
from threadkeep.engine.memories.namespaces import END, decode, encode_segment
from threadkeep.engine.requests import Batch, Commit, CopyThread, DropThread, ForkThread, LoadedRows, NewLabels
from threadkeep.errors import Conflict, WrongKey
from threadkeep.plan import Request

_STAGED_FOR = 3_600_000
"""Milliseconds that a copy may take before its staged items expire."""
_REPLACES = 2
"""Tells the script `commit` that a new thread replaces an existing one."""
INDEXED = 2
"""The reply of the script `drop_thread` if the tenant has a search index."""
REFUSED = -1
"""The reply of scripts that refuse a change because the tenant is encrypted."""


class ValkeyCommits:
    """Changes of threads below a prefix of keys. `kept` is the lifetime of a thread in milliseconds, or None.

    `forget` removes a thread that was deleted from the search index.
    """

    def __init__(
        self,
        prefix: bytes,
        reads: ValkeyReads,
        kept: int | None,
        forget: Callable[[CallExecutor, ThreadKey], None],
    ) -> None:
        self._forget = forget
        self._prefix = prefix
        self._reads = reads
        self._lifetime = str(kept) if kept is not None else ""
        self.handlers: dict[type[Request[Any]], Callable[[CallExecutor, Any], Any]] = {
            Commit: self._commit,
            CopyThread: self._copy_thread,
            ForkThread: self._fork_thread,
            DropThread: self._drop_thread,
        }

    def _commit(self, executor: CallExecutor, request: Commit) -> None:
        check_committed(executor.call(self.commit_call(request.batch)))

    def commit_call(self, batch: Batch, staged: bytes | None = None) -> Call:
        """Return a batch as a call.

        `staged` is the key of the items that were staged for a new thread, which may replace an existing one.
        """
        row, names, expect = batch.thread, thread_keys(self._prefix, batch.thread.key), batch.expect
        new, changed = batch.new_checkpoints, batch.changed_checkpoints
        args: list[Any] = [
            f"{expect[0]}:{expect[1]}" if expect else "",
            f"{row.epoch}:{row.rev}",
            pack_thread(row),
            row.bytes,
            row.updated,
            row.created,
            names.member,
            names.id,
            names.last,
            encode_segment(max([each.id for each in (*new, *changed)])) + END if new or changed else b"",
            self._lifetime,
            _REPLACES if staged is not None and expect is not None else int(batch.drops_thread),
            names.tenant,
            0 if row.sealed is None else 1,
        ]
        if batch.removed_checkpoints or batch.removed_writes or batch.removed_items:
            _add_removals(args, batch)
        else:
            args += (0, 0)
        for checkpoints, writes in ((new, batch.new_writes), (changed, batch.changed_writes)):
            args.append(len(checkpoints) + len(writes))
            for each in checkpoints:
                field = checkpoint_field(each.ns, each.id)
                args += (field, order_member(each) if each.hidden else field, pack_checkpoint(each))
            for task in writes:
                field = task_field(task.ns, task.checkpoint, task.task)
                args += (field, field, pack_write(task))
        args.append(len(batch.items))
        for id, stored in batch.items:
            args += (b"i%d:%d" % id, stored)  # as `item_field`
        for runs in (batch.runs, batch.removed_runs):
            args.append(len(runs))
            for run in runs:
                args.append(encode_segment(run) + END)
        return Call("commit", names.keys if staged is None else (*names.keys, staged), tuple(args))

    def _drop_thread(self, executor: CallExecutor, request: DropThread) -> None:
        dropped = executor.call(self.drop_call(request.key, leased=request.leased, sealed=request.sealed))
        if dropped == REFUSED:
            raise WrongKey
        if not dropped:
            raise Conflict
        if dropped == INDEXED:
            self._forget(executor, request.key)

    def drop_call(self, key: ThreadKey, *, leased: bool = False, sealed: bool = False) -> Call:
        """Return a call that deletes a thread.

        It returns 0 if the thread has a lease and may not have one, 1 if it is deleted, INDEXED if it also has to be
        removed from the search index, and REFUSED if the tenant is encrypted and the caller does not know.
        """
        names = thread_keys(self._prefix, key)
        return Call("drop_thread", names.keys, (*names.members, int(leased), int(sealed)))

    def _copy_thread(self, executor: CallExecutor, request: CopyThread) -> None:
        version, loaded = self._reads.load_thread_rows(executor, request.source)
        _check_expected(loaded, request.expect)
        replaced = {id: stored for id, stored, _ in request.labels}
        order = thread_keys(self._prefix, request.source).keys[1]
        runs = executor.call(Call("ZRANGEBYLEX", (order,), (b"[u", b"(v")))  # a row names only its first run
        batch = Batch(
            expect=request.replaces,
            thread=request.thread,
            items=(*replaced.items(), *request.items),
            new_checkpoints=tuple(rows.row for rows in loaded.checkpoints if rows.row is not None),
            new_writes=tuple(write for rows in loaded.checkpoints for write in rows.writes),
            labels=tuple(NewLabels(id.n, tags) for id, _, tags in request.labels),
            runs=tuple(decode(member[1:])[0] for member in runs),
        )
        copied = [id for each in loaded.stored for id in each.ids() if id not in replaced]
        self._create_with_items(executor, request.source, version, copied, batch)

    def _fork_thread(self, executor: CallExecutor, request: ForkThread) -> None:
        _check_expected(self._reads.load(executor, request.source), request.expect)
        version = b"%d:" % request.expect[0]
        ids = [id for each in request.ranges for id in each.ids()]
        self._create_with_items(executor, request.source, version, ids, request.batch, adds_bytes=True)

    def _create_with_items(
        self,
        executor: CallExecutor,
        source: ThreadKey,
        version: bytes,
        ids: Sequence[ItemId],
        batch: Batch,
        *,
        adds_bytes: bool = False,
    ) -> None:
        """Stage items of another thread, some in each call, then create a thread from them and a batch.

        Readers do not see staged items. With `adds_bytes`, the size of the items is added to the thread's bytes.
        """
        staged = staging_key(self._prefix, batch.thread.key, batch.thread.epoch)
        size = 0
        for start in range(0, len(ids), AT_ONCE):
            items = self._reads.load_items(executor, source, version, ids[start : start + AT_ONCE])
            if items is None:
                raise Conflict
            size += sum(map(len, items.values()))
            pieces = [piece for id, stored in items.items() for piece in (item_field(id), stored)]
            executor.call(Call("stage_items", (staged,), (_STAGED_FOR, *pieces)))
        thread = batch.thread._replace(bytes=batch.thread.bytes + size) if adds_bytes else batch.thread
        check_committed(executor.call(self.commit_call(batch._replace(thread=thread), staged)))


def _check_expected(loaded: LoadedRows, expect: tuple[int, int]) -> None:
    if loaded.thread is None or (loaded.thread.epoch, loaded.thread.rev) != expect:
        raise Conflict


def check_committed(reply: Any) -> None:
    """Raise Conflict or WrongKey unless the reply of the script `commit` says that the batch was applied."""
    if reply == REFUSED:
        raise WrongKey
    if reply != 1:
        raise Conflict


def _add_removals(args: list[Any], batch: Batch) -> None:
    """Append the rows and items that a batch removes, each list after its length."""
    for fields in (
        [
            *(checkpoint_field(*each) for each in batch.removed_checkpoints),
            *(task_field(*each) for each in batch.removed_writes),
        ],
        [item_field(id) for each in batch.removed_items for id in each.ids()],
    ):
        args.append(len(fields))
        args += fields
