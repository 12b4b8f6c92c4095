"""Requests about threads, translated: what is sent is sealed, what comes back is opened.

While a tenant is being encrypted (`tenant_key.ENCRYPTING`), some of its threads are still plain. They are read as they
are, and sealed as a whole before they are changed. Afterwards a plain row is Corrupt.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from itertools import groupby, islice
from typing import Any

from threadkeep.clock import nonce
from threadkeep.encryption.resealing import (
    SLICE_BYTES,
    Items,
    Staging,
    WholeThread,
    copied_thread,
    expanded_thread,
    forked_thread,
    plain_thread,
    whole_thread,
)
from threadkeep.encryption.tenant_key import ENCRYPTING, TenantKey
from threadkeep.encryption.thread_rows import (
    NAMESPACE,
    RUN,
    SOURCE,
    STATUS,
    TAG,
    WRAPPED_BYTES,
    ThreadCipher,
    Vouched,
    hidden_step,
    owner_of,
    vouched_top,
)
from threadkeep.engine.health.requests import (
    InspectedThread,
    InspectThread,
    ListStoredThreads,
    ThreadEntry,
    UnreadableRow,
)
from threadkeep.engine.identity import Kind, ThreadKey, to_bytes
from threadkeep.engine.log.itemlog import ENCRYPTION_BYTES, PREFIX_LENGTH, SHARED, ItemId, ItemRange
from threadkeep.engine.log.records import ThreadRow, thread_checksum
from threadkeep.engine.requests import (
    Batch,
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
    LoadSeveral,
    LoadSeveralItems,
    LoadThreadRows,
    MeasureItems,
    ScanCheckpoints,
    ScannedCheckpoint,
    damaged_scan,
)
from threadkeep.errors import Conflict, Corrupt
from threadkeep.plan import Request

_MAX_CIPHERS = 4096
_MEASURED = 256
"""How many items are read at once to measure them."""
_PAGE = 256
_MAX_STEP = 1 << 16
"""A thread's `rev` grows by at most so much at a time."""
_TIES = 8
"""How many more checkpoints than wanted a scan reads at once, so that it mostly reads all that have the same id."""


class ThreadTranslation:
    """Translates the requests about the threads of one tenant."""

    def __init__(self, key: TenantKey, execute: Callable[[Request[Any]], Any], *, compress: bool = True) -> None:
        self._tenant = key
        self._compress = compress
        self._execute = execute
        self._is_mixed = key.state.state == ENCRYPTING
        self._hides_ids = key.state.hides_ids
        self._ciphers: dict[ThreadKey, ThreadCipher] = {}
        self.reads: dict[type, Callable[[Any], Any]] = {
            LoadCheckpoints: self._load_checkpoints,
            LoadSeveral: self._load_several,
            LoadItems: self._load_items,
            LoadSeveralItems: self._load_several_items,
            MeasureItems: self._measure_items,
            LoadAncestors: self._load_ancestors,
            LoadThreadRows: self._load,
            ScanCheckpoints: self._scan_checkpoints,
            ListThreads: self._list_threads,
            FindThreadsOfRuns: self._find_threads_of_runs,
            ListStoredThreads: self._list_stored_threads,
            InspectThread: self._inspect_thread,
        }
        self.writes: dict[type, Callable[[Any], Request[Any]]] = {
            Commit: lambda request: Commit(self.seal_batch(request.batch)),
            CopyThread: self._copy_thread,
            ForkThread: self._fork_thread,
            DropThread: lambda request: request._replace(key=self.existing_key(request.key), sealed=True),
        }

    # --- keys

    def stored_key(self, key: ThreadKey) -> ThreadKey:
        """Return the key under which an encrypted thread is stored."""
        return key._replace(id=self._tenant.hide("thread", key.id)) if self._hides_ids else key

    def _real_key(self, row: ThreadRow) -> ThreadKey:
        """Return the key of a stored thread. Corrupt if it cannot be decrypted."""
        if self._hides_ids and row.sealed is not None:
            return row.key._replace(id=self._tenant.reveal("thread", row.key.id))
        return row.key

    def existing_key(self, key: ThreadKey) -> ThreadKey:
        """Return the key under which a thread is stored, encrypted or not yet."""
        stored = self.stored_key(key)
        if self._is_mixed and stored != key and self._execute(LoadItems(stored, ())).thread is None:
            return key
        return stored

    def cipher(self, key: ThreadKey, sealed: bytes) -> ThreadCipher:
        """Return the cipher of a thread, given the column `sealed` of its row."""
        known = self._ciphers.get(key)
        wrapped = sealed[:WRAPPED_BYTES]
        if known is not None and known.key.wrapped == wrapped:
            return known
        owner = owner_of(key)
        return self._remember(key, ThreadCipher(self._tenant, self._tenant.data_key(wrapped, owner), owner))

    def new_cipher(self, key: ThreadKey) -> ThreadCipher:
        """Make a data key for a new thread."""
        owner = owner_of(key)
        return self._remember(key, ThreadCipher(self._tenant, self._tenant.new_data_key(owner), owner))

    def _remember(self, key: ThreadKey, cipher: ThreadCipher) -> ThreadCipher:
        while len(self._ciphers) >= _MAX_CIPHERS:
            self._ciphers.pop(next(iter(self._ciphers)), None)
        self._ciphers[key] = cipher
        return cipher

    def _cipher_to_change(self, key: ThreadKey, sealed: bytes | None) -> ThreadCipher:
        """Return the cipher of a thread that exists. Seal the thread first if it is plain: that is a Conflict."""
        known = self._ciphers.get(key)
        if known is not None and sealed in (None, known.key.wrapped):
            return known
        row: ThreadRow | None = self._execute(LoadItems(self.existing_key(key), ())).thread
        if row is None:
            raise Conflict
        if row.sealed is None:
            self.seal_plain_thread(key)
            raise Conflict
        cipher = self.cipher(key, row.sealed)
        with suppress(Corrupt):  # `repair` replaces a damaged row
            cipher.open_thread(row, key)  # the new row vouches for what this one does
        return cipher

    # --- reads of one thread

    def _load(self, request: Any) -> LoadedRows:
        """Execute a request about one thread, under the key that it is stored by, and open the reply."""
        key = request.key
        loaded: LoadedRows = self._execute(request._replace(key=self.stored_key(key)) if self._hides_ids else request)
        if loaded.thread is None and self._is_mixed and self._hides_ids:
            loaded = self._execute(request)
        return self._opened(key, loaded)

    def _opened(self, key: ThreadKey, loaded: LoadedRows) -> LoadedRows:
        row = loaded.thread
        if row is None or self._is_still_plain(row, key):
            return loaded
        cipher = self._cipher_of(key, row)
        thread = cipher.open_thread(row, key)
        vouched = cipher.vouched_at((row.epoch, row.rev))
        found = tuple([cipher.open_found(each, vouched) for each in loaded.checkpoints])
        return LoadedRows(thread, found, cipher.open_items(loaded.items), loaded.stored)

    def _cipher_of(self, key: ThreadKey, row: ThreadRow) -> ThreadCipher:
        try:
            return self.cipher(key, row.sealed or b"")
        except Corrupt as error:
            raise Corrupt(f"the row of thread {key.id!r} cannot be decrypted: {error}") from error

    def _is_still_plain(self, row: ThreadRow, key: ThreadKey) -> bool:
        """Return whether a thread is plain because it was not encrypted yet. Corrupt if it should be."""
        if row.sealed is not None:
            return False
        if not self._is_mixed:
            raise Corrupt(f"the row of thread {key.id!r} is not encrypted, although all threads of its tenant are")
        return True

    def _load_checkpoints(self, request: LoadCheckpoints) -> LoadedRows:
        if self._is_mixed:
            return self._load_mixed(request)
        return self._load(self._hidden_load(request))

    def _hidden_load(self, request: LoadCheckpoints) -> LoadCheckpoints:
        if not any(each.ns for each in request.wanted):
            return request
        hide = self._tenant.hide
        wanted = tuple(each._replace(ns=hide(NAMESPACE, each.ns)) if each.ns else each for each in request.wanted)
        return request._replace(wanted=wanted)

    def _load_mixed(self, request: LoadCheckpoints) -> LoadedRows:
        """Load checkpoints of a thread that may be encrypted or not: only in the first case, namespaces are hidden."""
        loaded = self._load(self._hidden_load(request))
        row = loaded.thread
        if row is not None and row.sealed is None and any(each.ns for each in request.wanted):
            plain: LoadedRows = self._execute(request)
            return plain if plain.thread is not None and plain.thread.sealed is None else self._load_mixed(request)
        return loaded

    def _load_several(self, request: LoadSeveral) -> tuple[LoadedRows, ...]:
        if self._is_mixed:
            return tuple(map(self._load_mixed, request.loads))
        stored = [each._replace(key=self.stored_key(each.key)) for each in map(self._hidden_load, request.loads)]
        replies = self._execute(LoadSeveral(tuple(stored)))
        return tuple([self._opened(each.key, reply) for each, reply in zip(request.loads, replies, strict=True)])

    def _load_items(self, request: LoadItems) -> LoadedRows:
        try:
            return self._load(request)
        except Corrupt:
            if not request.unchecked:
                raise
        return self._load_unchecked(request)

    def _load_several_items(self, request: LoadSeveralItems) -> tuple[dict[ItemId, bytes], ...]:
        """Load items of several threads. Those of a thread whose row was not encrypted are not."""
        loads = [
            each._replace(thread=each.thread._replace(key=self.stored_key(each.thread.key)))
            if each.thread.sealed is not None
            else each
            for each in request.loads
        ]
        replies = self._execute(LoadSeveralItems(tuple(loads)))
        return tuple(
            items if thread.sealed is None else self.cipher(thread.key, thread.sealed).open_items(items)
            for (thread, _), items in zip(request.loads, replies, strict=True)
        )

    def _load_unchecked(self, request: LoadItems) -> LoadedRows:
        """Load items of a thread whose row is damaged, as far as its data key is intact."""
        loaded: LoadedRows = self._execute(request._replace(key=self.existing_key(request.key)))
        row = loaded.thread
        assert row is not None
        items = self.cipher(request.key, row.sealed or b"").open_items(loaded.items)
        return LoadedRows(row._replace(key=request.key), (), items)

    def _load_ancestors(self, request: LoadAncestors) -> LoadedRows:
        if not request.ns:
            return self._load(request)
        hidden = request._replace(ns=self._tenant.hide(NAMESPACE, request.ns))
        loaded = self._load(hidden)
        return self._load(request) if self._is_mixed and not loaded.checkpoints else loaded

    def _measure_items(self, request: MeasureItems) -> ItemSizes:
        """Measure items. Their first bytes are encrypted, so they are read as a whole, some at a time."""
        thread: ThreadRow | None = None
        measured: list[tuple[int, int, int, bytes]] = []
        for some in _slices(request.ranges, _MEASURED):
            loaded = self._load(LoadItems(request.key, some))
            if thread is not None and (loaded.thread is None or loaded.thread.epoch != thread.epoch):
                return ItemSizes(loaded.thread)  # it was pruned meanwhile, which the caller sees by the epoch
            thread = loaded.thread
            if thread is not None and thread.sealed is None:
                return self._measure_plain(request)
            wanted = {at for each in some for at in each.ids()}
            measured += [_measure(at, stored) for at, stored in loaded.items.items() if at in wanted]
        return ItemSizes(thread or self._load(LoadItems(request.key, ())).thread, tuple(measured))

    def _measure_plain(self, request: MeasureItems) -> ItemSizes:
        sizes: ItemSizes = self._execute(request)
        return sizes

    # --- lists over many threads

    def _scan_checkpoints(self, request: ScanCheckpoints) -> tuple[ScannedCheckpoint, ...]:
        hidden = self._hidden_scan(request)
        if self._is_mixed or self._hides_ids or request.ns is None:
            return self._scan_in_order(hidden, request)
        return tuple(map(self._open_scanned, self._execute(hidden)))

    def _hidden_scan(self, request: ScanCheckpoints) -> ScanCheckpoints:
        if self._is_mixed:  # what is hidden in some rows and not in others is compared afterwards
            thread = request.thread
            key = ThreadKey(request.tenant, request.kind, thread) if thread is not None else None
            return request._replace(
                thread=self.existing_key(key).id if key else None, ns=None, source=None, step=None, run=None, tags=()
            )
        tenant = self._tenant
        hide, thread, after = tenant.hide, request.thread, request.after
        return request._replace(
            thread=self._stored_id(request.kind, thread) if thread is not None else None,
            ns=hide(NAMESPACE, request.ns) if request.ns else request.ns,
            after=(after[0], after[1], hide(NAMESPACE, after[2]) if after[2] else "") if after is not None else None,
            source=hide(SOURCE, request.source) if request.source is not None else None,
            step=hidden_step(tenant, request.step) if request.step is not None else None,
            run=hide(RUN, request.run) if request.run is not None else None,
            tags=tuple(tenant.hide_bytes(TAG, tag) for tag in request.tags),
        )

    def _stored_id(self, kind: Kind, id: str) -> str:
        return self.stored_key(ThreadKey(self._tenant.tenant, kind, id)).id

    def _scan_in_order(self, hidden: ScanCheckpoints, request: ScanCheckpoints) -> tuple[ScannedCheckpoint, ...]:
        """Scan where the database sorts checkpoints of the same id by hidden values: sort those again.

        They are read up to the next id. That is one request more if a page ends among them.
        """
        page_size = request.limit + _TIES
        after = (request.after[0], "", "") if request.after is not None else None
        found: list[ScannedCheckpoint] = []
        while True:
            page: tuple[ScannedCheckpoint, ...] = self._execute(hidden._replace(after=after, limit=page_size))
            found += [each for each in map(self._open_scanned, page) if _is_wanted(each, request)]
            is_last = len(page) < page_size
            if is_last or sum(each.row.id != page[-1].row.id for each in found) >= request.limit:
                found.sort(key=lambda each: (to_bytes(each.key.id), to_bytes(each.row.ns)))
                found.sort(key=lambda each: to_bytes(each.row.id), reverse=True)
                return tuple(found[: request.limit])
            last = page[-1]
            after = (last.row.id, last.key.id, last.row.ns)

    def _open_scanned(self, each: ScannedCheckpoint) -> ScannedCheckpoint:
        key = each.key
        if each.sealed is None and each.damaged is not None:
            return each
        try:
            if each.sealed is None:
                if self._is_mixed:
                    return each
                raise Corrupt("its thread is not encrypted")  # noqa: TRY301 - one place turns it into a damaged row
            if self._hides_ids:
                key = key._replace(id=self._tenant.reveal("thread", key.id))
            cipher = self.cipher(key, each.sealed)
            thread = cipher.open_thread(each.thread, key) if each.thread is not None else None
            if each.damaged is not None:
                return each._replace(key=key)
            vouched = cipher.vouched_at((thread.epoch, thread.rev)) if thread is not None else None
            row = cipher.open_checkpoint(each.row, vouched)
            labels = each.labels
            if labels is not None:
                labels = cipher.open_item(ItemId(SHARED, row.labels), labels)
            return each._replace(key=key, row=row, labels=labels, thread=thread, sealed=None)
        except Corrupt as error:
            return damaged_scan(key, each.row.ns, each.row.id, f"it cannot be decrypted: {error}")

    def _list_threads(self, request: ListThreads) -> tuple[ListedThread, ...]:
        if not self._hides_ids and not self._is_mixed:
            listed = self._execute(self._hidden_list(request))
            return tuple([self._open_listed(each, request.order) for each in listed])
        every = self._every_listed(request)
        return tuple(islice(_in_order(every, request) if self._hides_ids else every, request.limit))

    def _hidden_list(self, request: ListThreads) -> ListThreads:
        tenant, status = self._tenant, request.status
        return request._replace(
            status=tenant.hide(STATUS, status) if status is not None else None,
            tags=tuple(tenant.hide_bytes(TAG, tag) for tag in request.tags),
            described=False,
        )

    def _every_listed(self, request: ListThreads) -> Iterator[ListedThread]:
        """List the threads of a request page by page, and compare here what the database cannot.

        With hidden ids, they start with all of the same value as `after`. Ordered by id, all threads are read.
        """
        unfiltered = request._replace(limit=_PAGE, status=None, tags=(), described=False)
        stored = unfiltered if self._is_mixed else self._hidden_list(request)
        if self._hides_ids:
            after, order = request.after, request.order
            stored = stored._replace(
                prefix="",
                order="created" if order == "id" else order,
                after=(after[0], "", "") if after is not None and order != "id" else None,
                limit=_PAGE if order == "id" or request.prefix or self._is_mixed else request.limit + _TIES,
            )
        while True:
            page: tuple[ListedThread, ...] = self._execute(stored)
            for listed in page:
                each = self._open_listed(listed, stored.order)
                fits = each.unreadable is not None or request.status in (None, each.row.status)
                if fits and each.row.key.id.startswith(request.prefix):
                    yield each
            if len(page) < stored.limit:
                return
            stored = stored._replace(after=_cursor(page[-1], stored.order))

    def _open_listed(self, each: ListedThread, order: str) -> ListedThread:
        row, labels = each.row, each.labels
        try:
            key = self._real_key(row)
        except Corrupt as error:
            return ListedThread(row, None, str(error), _cursor(each, order))
        named = each._replace(row=row._replace(key=key))
        if each.unreadable is not None:
            return named
        try:
            if self._is_still_plain(row, key):
                return each
            cipher = self._cipher_of(key, row)
            opened = cipher.open_thread(row, key)
        except Corrupt as error:
            return ListedThread(named.row, None, str(error), _cursor(named, order))
        if labels is not None and row.labels is not None:
            labels = cipher.open_item(ItemId(SHARED, row.labels), labels)
        return each._replace(row=_checked(opened, row), labels=labels)

    def _find_threads_of_runs(self, request: FindThreadsOfRuns) -> tuple[ThreadKey, ...]:
        runs = tuple(self._tenant.hide(RUN, run) for run in request.runs)
        keys: tuple[ThreadKey, ...] = self._execute(request._replace(runs=runs))
        if self._hides_ids:
            keys = tuple(key._replace(id=self._tenant.reveal("thread", key.id)) for key in keys)
        return keys + tuple(self._execute(request)) if self._is_mixed else keys

    def _list_stored_threads(self, request: ListStoredThreads) -> tuple[ThreadEntry, ...]:
        """List stored threads. With hidden ids, a prefix is compared here, so every thread is read."""
        if not self._hides_ids:
            page: tuple[ThreadEntry, ...] = self._execute(request)
            return page
        everything = request._replace(prefix="")
        while True:
            page = self._execute(everything)
            listed = [self._revealed(each) for each in page]
            fitting = tuple(each for each in listed if each.id.startswith(request.prefix) or each.unreadable)
            if fitting or not page:
                return fitting
            everything = everything._replace(after=page[-1].cursor)

    def _revealed(self, each: ThreadEntry) -> ThreadEntry:
        if each.unreadable is not None:
            return each
        try:
            return each._replace(id=self._tenant.reveal("thread", each.id))
        except Corrupt as error:
            return each if self._is_mixed else each._replace(unreadable=f"its id cannot be decrypted: {error}")

    # --- health

    def _inspect_thread(self, request: InspectThread) -> InspectedThread:
        found: InspectedThread = self._execute(InspectThread(self.existing_key(request.key)))
        if not found.exists or (found.sealed is None and self._is_mixed):
            return found
        return self._open_inspected(request.key, found)

    def _open_inspected(self, key: ThreadKey, found: InspectedThread) -> InspectedThread:
        """Open what a thread's rows are. Without its data key, none of them can be read."""
        unreadable = found.unreadable
        try:
            cipher = self.cipher(key, found.sealed or b"")
        except Corrupt as error:
            message = f"it cannot be decrypted: {error}"
            lost = [UnreadableRow(message)] if found.thread is not None else []
            lost += [UnreadableRow(message, None, row.id) for row in found.checkpoints]
            lost += [UnreadableRow(message, None, row.checkpoint, row.task) for row in found.writes]
            return found._replace(
                thread=None,
                checkpoints=(),
                writes=(),
                items={},
                unreadable=(*unreadable, *lost),
                tags=None,
                runs=None,
            )
        thread = found.thread
        vouched = None
        if thread is not None:
            try:
                opened = cipher.open_thread(thread, key)
                vouched = cipher.vouched_at((opened.epoch, opened.rev))
                thread = _checked(opened, thread)
            except Corrupt as error:
                thread, unreadable = None, (*unreadable, UnreadableRow(str(error)))
        return found._replace(
            thread=thread,
            checkpoints=tuple(cipher.open_checkpoint(row, vouched) for row in found.checkpoints),
            writes=tuple(map(cipher.open_write, found.writes)),
            items=cipher.open_items(found.items),
            unreadable=unreadable,
            tags=frozenset(self._revealed_tags(found.tags)) if found.tags is not None else None,
            runs=frozenset(self._revealed_runs(found.runs)) if found.runs is not None else None,
        )

    def _revealed_tags(self, tags: Iterable[tuple[int, bytes]]) -> Iterator[tuple[int, bytes]]:
        for n, tag in tags:
            try:
                yield n, self._tenant.reveal_bytes(TAG, tag)
            except Corrupt:
                yield n, tag

    def _revealed_runs(self, runs: Iterable[str]) -> Iterator[str]:
        for run in runs:
            try:
                yield self._tenant.reveal(RUN, run)
            except Corrupt:
                yield run

    # --- changes

    def seal_batch(self, batch: Batch) -> Batch:
        """Seal the rows and items of a batch. A new thread gets a data key of its own."""
        row = batch.thread
        if batch.expect is None:
            return self._sealed(batch, self.new_cipher(row.key), None)
        cipher = self._cipher_to_change(row.key, row.sealed)
        return self._sealed(batch, cipher, cipher.vouched_at(batch.expect))

    def _sealed(self, batch: Batch, cipher: ThreadCipher, before: Vouched | None) -> Batch:
        row, tenant = batch.thread, self._tenant
        hide = tenant.hide
        items = cipher.seal_items(batch.items)
        new = tuple(map(cipher.seal_checkpoint, batch.new_checkpoints))
        changed = tuple(map(cipher.seal_checkpoint, batch.changed_checkpoints))
        thread = cipher.seal_thread(row, self.stored_key(row.key), vouched_top(row, (*new, *changed), before))
        return batch._replace(
            thread=thread._replace(bytes=row.bytes + ENCRYPTION_BYTES * len(items)),
            items=items,
            new_checkpoints=new,
            changed_checkpoints=changed,
            new_writes=tuple(map(cipher.seal_write, batch.new_writes)),
            changed_writes=tuple(map(cipher.seal_write, batch.changed_writes)),
            labels=tuple(
                each._replace(tags=tuple(tenant.hide_bytes(TAG, tag) for tag in each.tags)) for each in batch.labels
            ),
            runs=tuple(hide(RUN, run) for run in batch.runs),
            removed_checkpoints=tuple((hide(NAMESPACE, ns) if ns else "", id) for ns, id in batch.removed_checkpoints),
            removed_writes=tuple(
                (hide(NAMESPACE, ns) if ns else "", id, task) for ns, id, task in batch.removed_writes
            ),
            removed_runs=tuple(hide(RUN, run) for run in batch.removed_runs),
        )

    # --- threads that are stored anew

    def _copy_thread(self, request: CopyThread) -> Request[Any]:
        """Make a copy that is sealed with a key of its own. Return the last step."""
        return self._store_anew(copied_thread(self._read, request), request.replaces)

    def _fork_thread(self, request: ForkThread) -> Request[Any]:
        """Make a thread with items of another, sealed with a key of its own. Return the last step."""
        return self._store_anew(forked_thread(self._read, request), None)

    def _read(self, request: Request[Any]) -> Any:
        """Execute a read of ours, translated."""
        return self.reads[type(request)](request)

    def _store_anew(self, whole: WholeThread, replaces: tuple[int, int] | None) -> Request[Any]:
        """Seal everything of a thread with a new data key. Return the request that completes it.

        A small thread that replaces nothing is one commit. Of another one, all steps but the cleaning up are done here.
        """
        if not self._compress:
            whole = expanded_thread(whole)
        rows, size = whole.batch, 0
        cipher = self.new_cipher(rows.thread.key)
        sealed_rows = self._sealed(rows, cipher, None)
        staging = Staging(self._execute, sealed_rows.thread)
        waiting: Items = ()
        for items in whole.items:
            if waiting and sum(len(stored) for _, stored in waiting) >= SLICE_BYTES:
                staging.add(Batch(None, sealed_rows.thread, items=waiting))
                waiting = ()
            sealed = cipher.seal_items(items)
            size += sum(len(stored) for _, stored in sealed)
            waiting += sealed
        last = sealed_rows._replace(expect=None, items=waiting)
        thread = last.thread._replace(bytes=rows.thread.bytes + size)
        if replaces is None and staging.is_empty:
            return Commit(last._replace(thread=thread))
        staging.add(last)
        return staging.move(thread, replaces)

    def seal_plain_thread(self, key: ThreadKey) -> bool:
        """Encrypt a thread that is still plain. Return whether there was one. Conflict if it changes meanwhile.

        It takes the place of the plain one in one commit. With hidden ids, the plain one is deleted afterwards; it is
        not read any more then.
        """
        whole = plain_thread(self._execute, key)
        if whole is None:
            return False
        self._replace(whole, key)
        return True

    def seal_again(self, before: ThreadTranslation, id: str, kind: Kind) -> bool:
        """Encrypt a stored thread with these keys instead of those before. Return whether it needed that.

        `id` is the one that it is stored by. Conflict if it changes meanwhile.
        """
        stored = ThreadKey(self._tenant.tenant, kind, id)
        row: ThreadRow | None = self._execute(LoadItems(stored, (), unchecked=True)).thread
        if row is None or (row.sealed is not None and self._tenant.has_wrapped(row.sealed)):
            return False
        self._replace(whole_thread(before._read, before._real_key(row)), stored)
        return True

    def _replace(self, whole: WholeThread, stored: ThreadKey) -> None:
        """Seal a thread that is stored under this key, and remove it there if it gets another one."""
        row, expect = whole.batch.thread, whole.batch.expect
        assert expect is not None
        new = self.stored_key(row.key)
        if new == stored:
            self._execute(self._store_anew(whole, replaces=expect))
        elif self._execute(LoadItems(new, (), unchecked=True)).thread is not None:
            self._execute(DropThread(stored, leased=True, sealed=True))  # an interrupted call left it
        else:
            self._execute(self._store_anew(whole, replaces=None))
            gone = row._replace(key=stored, sealed=b"", bytes=0)
            try:
                self._execute(Commit(Batch(expect, gone, drops_thread=True)))
            except Conflict:  # it was changed meanwhile, so what was sealed is not the newest
                version = (row.epoch, row.rev)
                self._execute(Commit(Batch(version, gone._replace(key=new), drops_thread=True)))
                raise

    def rewrap_data_key(self, key: ThreadKey) -> bool:
        """Wrap the data key of a thread with the tenant's current key. Return whether it was wrapped by another one.

        Conflict if the thread is changed meanwhile. Two round trips.
        """
        row: ThreadRow | None = self._execute(LoadItems(self.stored_key(key), ())).thread
        if row is None or row.sealed is None or self._tenant.is_current(row.sealed):
            return False
        before, owner = self._cipher_of(key, row), owner_of(key)
        opened = before.open_thread(row, key)
        wrapped = self._tenant.rewrap(row.sealed[:WRAPPED_BYTES], owner)
        cipher = ThreadCipher(self._tenant, self._tenant.data_key(wrapped, owner), owner)
        changed = opened._replace(rev=opened.rev + 1 + nonce() % _MAX_STEP, bytes=0)
        vouched = before.vouched_at((row.epoch, row.rev))
        batch = Batch((row.epoch, row.rev), cipher.seal_thread(changed, self.stored_key(key), vouched))
        self._execute(Commit(batch))
        self._remember(key, cipher)
        return True


def _checked(opened: ThreadRow, stored: ThreadRow) -> ThreadRow:
    """Return an opened row with the checksum that it would have as plain data; a wrong checksum stays wrong."""
    is_wrong = stored.checksum != thread_checksum(stored)
    return opened._replace(bytes_check=stored.bytes_check, checksum=thread_checksum(opened) ^ is_wrong)


def _cursor(each: ListedThread, order: str) -> tuple[Any, Any, Any]:
    """Return the cursor after a thread in a list."""
    key = each.row.key
    return each.cursor or (key.id if order == "id" else getattr(each.row, order), key.kind, key.id)


def _in_order(listed: Iterable[ListedThread], request: ListThreads) -> Iterator[ListedThread]:
    """Sort threads that the database sorted by hidden ids: by id all of them, else those of the same value.

    Leave out those up to `after`.
    """
    order = request.order
    if order == "id":
        groups: Iterable[tuple[Any, Iterable[ListedThread]]] = [(None, listed)]
    else:
        groups = groupby(listed, key=lambda each: _cursor(each, order)[0])
    for value, group in groups:
        start = None if request.after is None or value not in (None, request.after[0]) else _tie(request.after, order)
        ties = sorted([(_tie(_cursor(each, order), order), n, each) for n, each in enumerate(group)])
        yield from (each for tie, _, each in ties if start is None or tie > start)


def _tie(cursor: tuple[Any, Any, Any], order: str) -> tuple[Any, Any]:
    """Return by what threads of the same value are sorted. A damaged one may have no kind and no id."""
    _, kind, id = cursor
    stored = id if isinstance(id, bytes) else to_bytes(str(id))
    return (stored, str(kind)) if order == "id" else (str(kind), stored)


def _is_wanted(each: ScannedCheckpoint, request: ScanCheckpoints) -> bool:
    """Return whether a checkpoint comes after the page before, in the namespace that is wanted, if one is."""
    if request.ns not in (None, each.row.ns):
        return False
    if request.after is None or each.row.id != request.after[0]:
        return True
    _, thread, ns = request.after
    return (to_bytes(each.key.id), to_bytes(each.row.ns)) > (to_bytes(thread), to_bytes(ns))


def _measure(at: ItemId, stored: bytes) -> tuple[int, int, int, bytes]:
    """Return the size of an opened item as it is stored, and its first bytes, marked as those of an encrypted item."""
    beginning = bytes((stored[0] | 0x80,)) + stored[1:PREFIX_LENGTH]
    return (*at, len(stored) + ENCRYPTION_BYTES, beginning)


def _slices(ranges: Iterable[ItemRange], most: int) -> Iterator[tuple[ItemRange, ...]]:
    for lane, start, length in ranges:
        for at in range(start, start + length, most):
            yield (ItemRange(lane, at, min(most, start + length - at)),)
