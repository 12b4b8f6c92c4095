"""Small encrypted storages for tests: how to fill, open and interrupt them, and what is stored of them as it is."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import shared_pool
import threadkeep
from checkpoint_chains import Chain
from rich_threads import user_message
from sample_keep import contents
from test_crashes import Crashing
from threadkeep.backends.in_memory.backend import InMemoryBackend
from threadkeep.backends.sqlite.dialect import SqliteDialect
from threadkeep.encryption.thread_rows import WRAPPED_BYTES
from threadkeep.engine.health.requests import InspectMemories, InspectThread, ListStoredThreads
from threadkeep.engine.identity import ThreadKey
from threadkeep.engine.requests import LoadItems
from threadkeep.engine.tenants.requests import ListDataKeys, LoadTenant
from threadkeep.keep import Keep
from threadkeep.session import Caches, Session
from threadkeep.tenants.transport import TenantTransport
from threadkeep.transports.direct import Direct
from threadkeep.transports.sqlite import SqliteFile

FIRST, SECOND = bytes(range(32)), bytes(range(100, 132))
KEYS = threadkeep.Keys({"k1": FIRST}, primary="k1")
BOTH = threadkeep.Keys({"k1": FIRST, "k2": SECOND}, primary="k2")
NEXT = threadkeep.Keys({"k2": SECOND}, primary="k2")
SAME_ID = threadkeep.Keys({"k1": SECOND}, primary="k1")


def fill_little(keep: threadkeep.Keep) -> None:
    """Put two graph threads, one with a subgraph and writes, a cube thread, and memories in two partitions."""
    chain = Chain(keep.checkpointer, "t", run="r")
    messages = [f"message {n} " * 40 for n in range(4)]
    for n in range(3):
        chain.put({"messages": messages[: n + 1], "name": "Kim"}, plan="free")
    inner = Chain(keep.checkpointer, "t", ns="node:1", run="r")
    inner.put({"messages": ["inner"]})
    at = {"configurable": {"thread_id": "t", "checkpoint_ns": "", "checkpoint_id": chain.last}}
    keep.checkpointer.put_writes(at, [("messages", "said"), ("name", "Ana")], "task")
    Chain(keep.checkpointer, "u").put({"x": 1})
    asyncio.run(_write_run(keep.cube))
    for n in range(3):
        keep.store.put(("users", "kim"), f"k{n}", {"text": f"blue moon {n}"})
    keep.store.put(("notes",), "n", {"text": "plum"}, ttl=600)


async def _write_run(cube: Any) -> None:
    await cube.claim_run("c", "run-é")
    await cube.append("c", [user_message("hello", "run-é"), user_message("again", "run-é")])
    await cube.mark_run_complete("c", "run-é")


class Storage(NamedTuple):
    """Where a storage is: in memory, in a file, or as a tenant of a server."""

    backend: InMemoryBackend | None = None
    path: Path | None = None
    url: str | None = None
    tenant: str = ""

    def transport(self) -> Any:
        if self.backend is not None:
            return Direct(self.backend)
        if self.path is not None:
            return SqliteFile(self.path, SqliteDialect(), durability="relaxed", timeout=5)
        return shared_pool.transport(url=self.url)

    def open(
        self,
        keys: threadkeep.Keys | None = None,
        *,
        hide_ids: bool | None = None,
        inner: Any = None,
        index: Any = None,
    ) -> Keep:
        """Open a Keep without caches, as a new process would."""
        transport = TenantTransport(inner or self.transport(), self.tenant, keys, hide_ids=hide_ids)
        return Keep(Session(transport, tenant=self.tenant, caches=Caches(1 << 26)), None, index=index)

    def copy(self, number: int) -> Storage | None:
        """Return a storage with the same rows; None if only files can be copied."""
        if self.path is None:
            return None
        path = self.path.with_name(f"copy{number}.db")
        shutil.copyfile(self.path, path)
        return Storage(path=path)


def new_storage(backend: str, folder: Path) -> Storage:
    """Return an empty storage on a backend."""
    if backend == "memory":
        return Storage(InMemoryBackend())
    if backend == "sqlite":
        return Storage(path=folder / "keep.db")
    url = {"postgres": shared_pool.schema, "valkey": shared_pool.cluster}[backend]()
    return Storage(url=url, tenant=shared_pool.fresh_tenant())


class CrashingTransport(Crashing):
    """A transport that fails once, at its k-th request, under a TenantTransport."""

    read_only = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


@contextmanager
def crashing_at(storage: Storage, k: int, *, after: bool, **options: Any) -> Iterator[tuple[Keep, CrashingTransport]]:
    """Open a Keep whose k-th request fails, executed or not."""
    crashing = CrashingTransport(storage.transport())
    crashing.crash_at(k, after=after)
    with closing(storage.open(inner=crashing, **options)) as keep:
        yield keep, crashing


# --- what is stored


class Stored(NamedTuple):
    """Everything of a tenant as it is stored, by thread and memory."""

    tenant: bytes
    keys: dict[str, bytes]
    """The wrapped data key of each thread, by its stored id."""
    partition_keys: dict[bytes, bytes]
    items: dict[str, dict[Any, bytes]]
    rows: dict[str, Any]
    memories: dict[int, str]

    def sealed_bytes(self) -> set[bytes]:
        """Return all sealed items and bodies of rows. Range lists, which are signed, are not among them."""
        items = {stored for items in self.items.values() for stored in items.values() if stored[:1] == b"\x80"}
        return items | {row.body for rows in self.rows.values() for row in rows}


def stored_of(keep: threadkeep.Keep) -> Stored:
    """Read everything of a tenant, as it is stored."""
    session: Any = keep._session
    tenant, execute = session.tenant, session.transport.execute
    keys, items, rows, after = {}, {}, {}, None
    while page := execute(ListStoredThreads(tenant, 100, after)):
        for entry in page:
            key = ThreadKey(tenant, entry.kind, entry.id)
            found = execute(InspectThread(key))
            keys[entry.id] = (found.thread.sealed or b"")[:WRAPPED_BYTES]
            ranges = item_ranges([(lane, n) for lane, n, _ in found.item_sizes])
            items[entry.id] = dict(execute(LoadItems(key, ranges)).items)
            rows[entry.id] = (*found.checkpoints, *found.writes)
        after = page[-1].cursor
    memories: dict[int, str] = {}
    after = None
    while True:
        page = execute(InspectMemories(tenant, 100, after))
        memories |= {memory.number: memory.row.value for memory in page.memories}
        after = page.cursor
        if after is None:
            break
    row = execute(LoadTenant(tenant))
    partitions = dict(execute(ListDataKeys(tenant, None, 100)))
    return Stored(row.key if row is not None else b"", keys, partitions, items, rows, memories)


def item_ranges(ids: list[tuple[int, int]]) -> Any:
    from threadkeep.engine.log.itemlog import join_ranges  # noqa: PLC0415

    return tuple(join_ranges(sorted(ids)))


def is_all_sealed(stored: Stored) -> bool:
    """Whether nothing of it is plain."""
    return all(stored.keys.values()) and all(value[:1] == '"' for value in stored.memories.values())


def check(keep: threadkeep.Keep, expected: dict[str, Any]) -> None:
    """Check that a Keep has what is expected, and that nothing is damaged."""
    assert contents(keep) == expected
    assert keep.verify().problems == []
