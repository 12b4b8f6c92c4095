"""The Valkey backend: threads on Valkey or Redis, one server or a cluster. Requests are scripts on keys.

A thread is a hash and a sorted set. The threads of a partition (one of 1,024, by a hash of the thread's key) are listed
in sorted sets of the partition. All of these keys have the partition's name as their hash tag, so they are in one slot,
and a commit is one script. A request over many threads asks all partitions and merges the results.

    {partition}:t:…     a thread: row, version, items, rows of checkpoints and writes
    {partition}:o:…     its order: checkpoints by namespace and id, writes by checkpoint, runs
    {partition}:u:…     the threads of a tenant by time of update; c: by time of creation; b: by bytes; n: by id
    {partition}:g:…     the threads of a tenant by their greatest checkpoint id
    {partition}:k:…     that id for each thread
    {partition}:r:…     runs, and the threads in which they left something
    {partition}:s:…     items that are being copied to a new thread
    {partition}:f…:…    the search index of a tenant; see `search.py`
    {partition}:a:      the tenants that have threads here, and those that are sealed; see `tenants.py`
    {000}:schema:       the schema version
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from threadkeep.backends.handlers import Handlers
from threadkeep.backends.valkey.calls import Call, CallExecutor
from threadkeep.backends.valkey.commits import ValkeyCommits, check_committed
from threadkeep.backends.valkey.health import ValkeyHealth
from threadkeep.backends.valkey.keys import ThreadKeys, key_of, thread_keys
from threadkeep.backends.valkey.lists import ValkeyLists
from threadkeep.backends.valkey.memories import ValkeyMemories, check_written
from threadkeep.backends.valkey.reads import ValkeyReads
from threadkeep.backends.valkey.tenants import ValkeyTenants
from threadkeep.engine.identity import ThreadKey, to_bytes
from threadkeep.engine.memories.requests import WriteMemories
from threadkeep.engine.requests import Commit
from threadkeep.engine.schema_versions import SCHEMA_VERSION
from threadkeep.errors import Corrupt, reason
from threadkeep.plan import Request

if TYPE_CHECKING:
    from threadkeep.backends.valkey.search import ValkeySearch


class ValkeyBackend:
    """Threads and memories on a server or a cluster, below a prefix.

    `kept` is how long a thread is kept after its last change, in milliseconds. `tidies` says whether lists delete the
    entries of expired threads that they meet.
    """

    def __init__(self, prefix: str, kept: int | None = None, *, tidies: bool = True) -> None:
        self._prefix = to_bytes(prefix)
        self.expires = kept is not None
        """Whether threads expire."""
        reads, lists = ValkeyReads(self._prefix), ValkeyLists(self._prefix, tidies=tidies)
        self._memories = memories = ValkeyMemories(self._prefix)
        self._memory_requests = frozenset(memories.handlers)
        self._commits = ValkeyCommits(self._prefix, reads, kept, self._forget)
        self.commit_call, self.drop_call = self._commits.commit_call, self._commits.drop_call
        health = ValkeyHealth(self._prefix, lists, memories, expires=self.expires)
        handlers: dict[type[Request[Any]], Callable[[CallExecutor, Any], Any]] = {
            **reads.handlers,
            **lists.handlers,
            **self._commits.handlers,
            **memories.handlers,
            **health.handlers,
            **ValkeyTenants(self._prefix).handlers,
        }
        self._handlers = Handlers(handlers, self._search_handlers)

    @cached_property
    def _search(self) -> ValkeySearch:
        from threadkeep.backends.valkey.search import ValkeySearch  # noqa: PLC0415 - on use

        return ValkeySearch(self._prefix)

    def _search_handlers(self) -> dict[type[Request[Any]], Callable[[CallExecutor, Any], Any]]:
        from threadkeep.backends.valkey.search_health import handlers  # noqa: PLC0415 - on use

        return handlers(self._prefix, self._search)

    def _forget(self, executor: CallExecutor, key: ThreadKey) -> None:
        self._search.forget(executor, key)

    def answer(self, executor: CallExecutor, request: Request[Any]) -> Any:
        """Execute one request. Raise Corrupt if a row cannot be read."""
        try:
            return self._handlers[type(request)](executor, request)
        except (IndexError, KeyError, AttributeError, TypeError, ValueError, OverflowError, Corrupt) as error:
            if isinstance(error, Corrupt) and type(request) in self._memory_requests:
                raise  # it names the memory
            key = getattr(request, "key", None)
            owner = f"thread {key.id!r}" if isinstance(key, ThreadKey) else "a thread or a memory"
            if isinstance(error, Corrupt) and owner in str(error):
                raise
            raise Corrupt(f"a row of {owner} cannot be read: {reason(error)}") from error

    def thread_keys(self, key: ThreadKey) -> ThreadKeys:
        """Return the keys of a thread."""
        return thread_keys(self._prefix, key)

    def calls(self, request: Request[Any]) -> list[Call] | None:
        """Return a change as calls that are sent side by side; None if it takes several round trips."""
        if isinstance(request, Commit):
            return [self._commits.commit_call(request.batch)]
        if isinstance(request, WriteMemories):
            return self._memories.write_calls(request)
        return None

    @staticmethod
    def check(request: Request[Any], replies: Sequence[Any]) -> None:
        """Raise Conflict or WrongKey unless the replies say that a change was made."""
        if isinstance(request, Commit):
            check_committed(replies[0])
        elif isinstance(request, WriteMemories):
            check_written(replies)

    def get_versions(self) -> Call:
        """Return a call for the schema version, and the oldest versions whose code can read and write these keys.

        Old rows lack fields that later versions added; they are read as they are, so there is nothing to migrate.
        """
        return Call("HMGET", (self._schema_key,), ("version", "readable", "writable"))

    def set_versions(self) -> Call:
        """Return a call that states the version of this code."""
        fields = ("version", SCHEMA_VERSION, "readable", SCHEMA_VERSION, "writable", SCHEMA_VERSION)
        return Call("HSET", (self._schema_key,), fields)

    @property
    def _schema_key(self) -> bytes:
        return key_of(self._prefix, 0, b"schema", b"")

    def probe(self) -> Call:
        """Return a call that reads and changes nothing."""
        return Call("EXISTS", (key_of(self._prefix, 0, b"t", b""),))
