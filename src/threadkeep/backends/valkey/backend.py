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
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from threadkeep.backends.valkey.calls import Call, CallExecutor
from threadkeep.backends.valkey.commits import ValkeyCommits, check_committed
from threadkeep.backends.valkey.health import ValkeyHealth
from threadkeep.backends.valkey.keys import ThreadKeys, key_of, thread_keys
from threadkeep.backends.valkey.lists import ValkeyLists
from threadkeep.backends.valkey.memories import ValkeyMemories
from threadkeep.backends.valkey.reads import ValkeyReads
from threadkeep.engine.identity import ThreadKey, to_bytes
from threadkeep.engine.requests import Batch
from threadkeep.errors import Corrupt
from threadkeep.plan import Request


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
        memories = ValkeyMemories(self._prefix)
        self._commits = ValkeyCommits(self._prefix, reads, kept)
        health = ValkeyHealth(self._prefix, lists, memories, expires=self.expires)
        self._handlers: dict[type[Request[Any]], Callable[[CallExecutor, Any], Any]] = {
            **reads.handlers,
            **lists.handlers,
            **self._commits.handlers,
            **memories.handlers,
            **health.handlers,
        }

    def answer(self, executor: CallExecutor, request: Request[Any]) -> Any:
        """Execute one request. Raise Corrupt if a row cannot be read."""
        try:
            return self._handlers[type(request)](executor, request)
        except (IndexError, KeyError, AttributeError, TypeError, ValueError, OverflowError, Corrupt) as error:
            key = getattr(request, "key", None)
            owner = f"thread {key.id!r}" if isinstance(key, ThreadKey) else "a thread or a memory"
            if isinstance(error, Corrupt) and owner in str(error):
                raise
            raise Corrupt(f"a row of {owner} cannot be read: {error!r}") from error

    def thread_keys(self, key: ThreadKey) -> ThreadKeys:
        """Return the keys of a thread."""
        return thread_keys(self._prefix, key)

    def commit_call(self, batch: Batch) -> Call:
        """Return a batch as a call of the script `commit`."""
        return self._commits.commit_call(batch)

    @staticmethod
    def check_committed(reply: Any) -> None:
        """Raise Conflict unless the reply of a commit says that it was applied."""
        check_committed(reply)

    def probe(self) -> Call:
        """Return a call that reads and changes nothing."""
        return Call("EXISTS", (key_of(self._prefix, 0, b"t", b""),))
