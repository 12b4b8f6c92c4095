"""Rows and items of one thread, sealed and opened.

What the database must compare or count stays a column: ids of checkpoints and tasks, numbers, times, item ranges.
Namespaces, runs, sources and statuses are hidden (`TenantKey.hide`), a step becomes a keyed number, and everything else
is in the sealed body. Associated data binds each row to all its columns, so none of them can be changed either.

A row or item that cannot be opened gets the body `UNREADABLE`. The engine refuses it when it is used, as it refuses any
damaged row, and names it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

import ormsgpack

from threadkeep.encryption.data_key import UNREADABLE, DataKey
from threadkeep.encryption.tenant_key import TenantKey
from threadkeep.engine.identity import ThreadKey, to_bytes
from threadkeep.engine.log.itemlog import RANGE_LISTS, ItemId, new_tuple, pack_ranges, sign_item, split_signed
from threadkeep.engine.log.records import CheckpointRow, ThreadRow, WriteRow
from threadkeep.engine.requests import CheckpointRows
from threadkeep.errors import Corrupt

WRAPPED_BYTES = 64
"""The length of a wrapped data key, with which the column `sealed` of a thread starts."""
NAMESPACE, RUN, SOURCE, STATUS, TAG, STEP = "namespace", "run", "source", "status", "tag", "step"
_ID = struct.Struct("<QQ")
_STEP = struct.Struct("<q")
_STEP_MASK = (1 << 62) - 1
_STATES = 4

Vouched: TypeAlias = tuple[bytes, bytes]
"""The id of the newest root checkpoint, and the end of its sealed body: an earlier version of its row is refused."""
_TAG_BYTES = 8


def owner_of(key: ThreadKey) -> bytes:
    """Return the bytes that name a thread in associated data."""
    return ormsgpack.packb([b"thread", to_bytes(key.tenant), key.kind, to_bytes(key.id)])


class ThreadCipher:
    """Seals and opens the rows of one thread.

    `_vouched` has what the last few states of the thread's row vouch for, by (epoch, rev).
    """

    __slots__ = ("_owner", "_tenant", "_vouched", "key")

    def __init__(self, tenant: TenantKey, key: DataKey, owner: bytes) -> None:
        self._tenant = tenant
        self._owner = owner
        self._vouched: dict[tuple[int, int], Vouched | None] = {}
        self.key = key

    # --- items

    def seal_items(self, items: Iterable[tuple[ItemId, bytes]]) -> tuple[tuple[ItemId, bytes], ...]:
        """Seal items. Range lists, which a backend follows, are signed instead: they have nothing but numbers."""
        seal, owner, pack = self.key.seal, self._owner + b"i", _ID.pack
        return tuple(
            [
                (at, seal(stored, owner + pack(*at)) if at[0] != RANGE_LISTS else self._sign(at, stored))
                for at, stored in items
            ]
        )

    def open_items(self, items: Mapping[ItemId, bytes]) -> dict[ItemId, bytes]:
        """Open items."""
        return {at: self.open_item(at, stored) for at, stored in items.items()}

    def open_item(self, at: ItemId, stored: bytes) -> bytes:
        """Open an item; UNREADABLE if that is not possible."""
        try:
            if at[0] == RANGE_LISTS:
                item, signature = split_signed(stored)
                self.key.open(signature, self._owner + b"r" + _ID.pack(*at) + item)
                return item
            return self.key.open(stored, self._owner + b"i" + _ID.pack(*at))
        except (Corrupt, struct.error, TypeError, ValueError, IndexError):
            return UNREADABLE

    def _sign(self, at: ItemId, stored: bytes) -> bytes:
        return sign_item(stored, self.key.seal(b"", self._owner + b"r" + _ID.pack(*at) + stored))

    # --- checkpoints

    def seal_checkpoint(self, row: CheckpointRow) -> CheckpointRow:
        """Seal the row of a checkpoint."""
        tenant = self._tenant
        hide, step, run, source = tenant.hide, row.step, row.run, row.source
        columns = (
            hide(NAMESPACE, row.ns) if row.ns else "", row.id, row.parent, None if run is None else hide(RUN, run),
            None if step is None else hidden_step(tenant, step), None if source is None else hide(SOURCE, source),
            row.labels, row.time, row.hidden,
        )  # fmt: skip
        body = self.key.seal(ormsgpack.packb([step, row.body]), self._checkpoint_place(columns, row.refs))
        return new_tuple(CheckpointRow, (*columns, row.refs, body))

    def open_checkpoint(self, row: CheckpointRow, vouched: Vouched | None = None) -> CheckpointRow:
        """Open the row of a checkpoint. With `vouched`, refuse any version that the thread's row does not vouch for."""
        reveal, ns, run, source = self._tenant.reveal, row.ns, row.run, row.source
        step, body = None, UNREADABLE
        try:
            if ns or vouched is None or row.body[-_TAG_BYTES:] == vouched[1] or vouched[0] != to_bytes(row.id):
                step, body = ormsgpack.unpackb(self.key.open(row.body, self._checkpoint_place(row[:9], row.refs)))
            ns = reveal(NAMESPACE, ns) if ns else ""
            run = None if run is None else reveal(RUN, run)
            source = None if source is None else reveal(SOURCE, source)
        except (Corrupt, TypeError, ValueError):
            body = UNREADABLE
        return new_tuple(CheckpointRow, (ns, row.id, row.parent, run, step, source, *row[6:10], body))

    def _checkpoint_place(self, columns: tuple[Any, ...], refs: Any) -> bytes:
        return self._owner + b"c" + ascii(tuple(columns)).encode() + pack_ranges(refs)

    # --- writes

    def seal_write(self, row: WriteRow) -> WriteRow:
        """Seal the row of a task's writes."""
        hide, run = self._tenant.hide, row.run
        columns = (
            hide(NAMESPACE, row.ns) if row.ns else "", row.checkpoint, row.task, "",
            None if run is None else hide(RUN, run), row.time, (),
        )  # fmt: skip
        data = ormsgpack.packb([to_bytes(row.path), row.index, row.body])
        return new_tuple(WriteRow, (*columns, row.refs, self.key.seal(data, self._write_place(columns, row.refs))))

    def open_write(self, row: WriteRow) -> WriteRow:
        """Open the row of a task's writes."""
        reveal, ns, run = self._tenant.reveal, row.ns, row.run
        path, index, body = "", (), UNREADABLE
        try:
            stored = self.key.open(row.body, self._write_place(row[:7], row.refs))
            path, index, body = ormsgpack.unpackb(stored)
            path, index = path.decode("utf-8", "surrogatepass"), tuple(index)
            ns = reveal(NAMESPACE, ns) if ns else ""
            run = None if run is None else reveal(RUN, run)
        except (Corrupt, TypeError, ValueError):
            body = UNREADABLE
        return new_tuple(WriteRow, (ns, row.checkpoint, row.task, path, run, row.time, index, row.refs, body))

    def _write_place(self, columns: tuple[Any, ...], refs: Any) -> bytes:
        return self._owner + b"w" + ascii(tuple(columns)).encode() + pack_ranges(refs)

    def open_found(self, found: CheckpointRows, vouched: Vouched | None) -> CheckpointRows:
        """Open a checkpoint with its writes."""
        row, writes = found.row, found.writes
        return CheckpointRows(
            None if row is None else self.open_checkpoint(row, vouched), tuple(map(self.open_write, writes))
        )

    # --- the thread's row

    def seal_thread(self, row: ThreadRow, stored_key: ThreadKey, vouched: Vouched | None) -> ThreadRow:
        """Seal the row of a thread, which vouches for this version of its newest root checkpoint."""
        tenant = self._tenant
        hide, run, step, source, early = tenant.hide, row.run, row.step, row.source, row.early_status
        sealed = row._replace(
            key=stored_key,
            run=None if run is None else hide(RUN, run),
            step=None if step is None else hidden_step(tenant, step),
            source=None if source is None else hide(SOURCE, source),
            status=hide(STATUS, row.status),
            early_status=None if early is None else hide(STATUS, early),
            description=None,
        )
        self.remember(row, vouched)
        facts = [step, vouched] if row.description is None else [step, vouched, row.description]
        blob = self.key.seal(ormsgpack.packb(facts), self._thread_place(sealed))
        return sealed._replace(sealed=self.key.wrapped + blob)

    def open_thread(self, row: ThreadRow, key: ThreadKey) -> ThreadRow:
        """Open the row of a thread, without its checksums. Corrupt if that is not possible."""
        reveal, run, source, early = self._tenant.reveal, row.run, row.source, row.early_status
        try:
            facts = self.key.open((row.sealed or b"")[WRAPPED_BYTES:], self._thread_place(row))
            step, vouched, *described = ormsgpack.unpackb(facts)
            self.remember(row, None if vouched is None else tuple(vouched))
            return row._replace(
                key=key,
                run=None if run is None else reveal(RUN, run),
                step=step,
                source=None if source is None else reveal(SOURCE, source),
                status=reveal(STATUS, row.status),
                early_status=None if early is None else reveal(STATUS, early),
                sealed=self.key.wrapped,
                bytes_check=None,
                checksum=None,
                description=described[0] if described else None,
            )
        except (Corrupt, TypeError, ValueError) as error:
            raise Corrupt(f"the row of thread {key.id!r} cannot be decrypted: it was changed") from error

    def _thread_place(self, row: ThreadRow) -> bytes:
        columns = (
            row.epoch, row.rev, row.nexts, row.created, row.updated, row.checkpoints, row.writes, row.top, row.run,
            row.step, row.source, row.status, row.labels, row.early, row.early_status, row.family, row.top_writes,
            row.early_writes,
        )  # fmt: skip
        place = self._owner + b"t" + ascii(columns).encode()
        return place if row.lease is None else place + b"l" + row.lease

    def remember(self, row: ThreadRow, vouched: Vouched | None) -> None:
        """Remember what the thread's row vouches for in this state."""
        states = dict(self._vouched)  # others may be reading it
        states.pop((row.epoch, row.rev), None)
        states[row.epoch, row.rev] = vouched
        while len(states) > _STATES:
            del states[next(iter(states))]
        self._vouched = states

    def vouched_at(self, version: tuple[int, int]) -> Vouched | None:
        """Return what the thread's row vouches for at (epoch, rev); None if that is not known."""
        return self._vouched.get(version)


def vouched_top(thread: ThreadRow, sealed: Iterable[CheckpointRow], before: Vouched | None) -> Vouched | None:
    """Return what a thread's new row vouches for: its newest root checkpoint, if the batch has its sealed row.

    If not, what was vouched for before, if that is still the newest.
    """
    top = thread.top
    if top is None:
        return None
    id = to_bytes(top)
    for row in sealed:
        if row.id == top and not row.ns:
            return id, row.body[-_TAG_BYTES:]
    return before if before is not None and before[0] == id else None


def hidden_step(tenant: TenantKey, step: int) -> int:
    """Return a number that stands for a step in an index."""
    try:
        packed = _STEP.pack(step)
    except struct.error:
        packed = str(step).encode()
    return int.from_bytes(tenant.digest(STEP, packed, 8), "little") & _STEP_MASK
