"""MeasuredTransport: passes requests to the transport of a Keep and counts them, for the calls that they are for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from threadkeep.engine.log.itemlog import FIRST_CHANNEL
from threadkeep.engine.requests import Batch, Commit
from threadkeep.observability.observer import Calls, Observer
from threadkeep.plan import Failure, Outcome, Request
from threadkeep.value import Value

if TYPE_CHECKING:
    from threadkeep.engine.identity import ThreadKey
    from threadkeep.engine.memories.requests import WriteMemories
    from threadkeep.tenants.transport import TenantTransport


class MeasuredTransport:
    """Has all methods of a TenantTransport, around which it stands: what it counts is not encrypted yet."""

    def __init__(self, unmeasured: TenantTransport, observer: Observer) -> None:
        self._unmeasured = unmeasured
        self._observer = observer

    def __getattr__(self, name: str) -> Any:
        """Return what is not measured."""
        if name == "_unmeasured":
            raise AttributeError(name)
        return getattr(self._unmeasured, name)

    def setup(self) -> None:
        """Make the storage ready, as a call of the verb `setup`."""
        with self._observer.measure("keep.setup"):
            self._unmeasured.setup()

    def read(self, request: Request[Any]) -> Any:
        """Execute a request that changes nothing."""
        return self._answer(self._unmeasured.read, request)

    def execute(self, request: Request[Any]) -> Any:
        """Execute a request as it is."""
        return self._answer(self._unmeasured.execute, request)

    def _answer(self, execute: Any, request: Request[Any]) -> Any:
        observer = self._observer
        calls = observer.calls_of(request)
        try:
            reply = execute(request)
        except BaseException as error:
            observer.sent(calls)
            observer.failed(calls, error)
            raise
        observer.sent(calls, read=size_of(reply))
        return reply

    def write(self, requests: Sequence[Request[Any]]) -> list[Outcome]:
        """Execute changes."""
        observer = self._observer
        calls_of = [observer.calls_of(each.batch if isinstance(each, Commit) else each) for each in requests]
        try:
            outcomes = self._unmeasured.write(requests)
        except BaseException as error:
            for calls in calls_of:
                observer.sent(calls)
                observer.failed(calls, error)
            raise
        made = 0
        for request, calls, outcome in zip(requests, calls_of, outcomes, strict=True):
            observer.sent(calls, written=size_of(request))
            if isinstance(outcome, Failure):
                observer.failed(calls, outcome.error)
            elif request.access.subject == "threads":
                made += max(1, len(calls))
                if isinstance(request, Commit):
                    self._count_items(request.batch)
        self._count_commit(calls_of, made)
        return outcomes

    def try_commit(self, batch: Batch) -> bool:
        """Commit a batch in the calling thread, if that can be done at once."""
        observer = self._observer
        calls = observer.calls_of(batch)
        try:
            is_made = self._unmeasured.try_commit(batch)
        except BaseException as error:
            observer.sent(calls)
            observer.failed(calls, error)
            raise
        if is_made:
            observer.sent(calls, written=size_of(batch))
            self._count_items(batch)
            self._count_commit([calls], max(1, len(calls)))
        return is_made

    def try_drop(self, key: ThreadKey, *, sealed: bool = False) -> bool:
        """Delete an agent thread in the calling thread, under the same conditions."""
        is_made = self._unmeasured.try_drop(key, sealed=sealed)
        if is_made:
            self._observer.sent(self._observer.current())
            self._count_commit([], 1)
        return is_made

    def write_at_once(self, request: WriteMemories) -> bool:
        """Change memories in the calling thread, if that can be done at once."""
        observer = self._observer
        calls = observer.calls_of(request)
        try:
            is_made = self._unmeasured.write_at_once(request)
        except BaseException as error:
            observer.sent(calls)
            observer.failed(calls, error)
            raise
        if is_made:
            observer.sent(calls, written=size_of(request))
            _note_shared([calls])
        return is_made

    def _count_commit(self, calls_of: Sequence[Calls], changes: int) -> None:
        if changes:
            self._observer.commits += 1
            self._observer.changes += changes
        _note_shared(calls_of)

    def _count_items(self, batch: Batch) -> None:
        self._observer.items_stored += sum(item_id.lane >= FIRST_CHANNEL for item_id, _ in batch.items)
        for row in batch.new_checkpoints:
            self._observer.items_referenced += sum(each.length for each in row.refs if each.lane >= FIRST_CHANNEL)


def _note_shared(calls_of: Sequence[Calls]) -> None:
    together = sum(map(len, calls_of))
    if together > 1:
        for calls in calls_of:
            for call in calls:
                call.shared = together - 1


def size_of(sent: Any) -> int:
    """Return how many bytes and characters there are in the rows of a request, a batch or a reply.

    A batch has counted them. What is not a row, such as a cache that a request refers to, has no size.
    """
    size, left = 0, [sent]
    while left:
        each = left.pop()
        kind = type(each)
        if kind is int or each is None:
            continue
        if kind is bytes or kind is str:
            size += len(each)
        elif kind is Batch:
            size += max(0, each.thread.bytes)
        elif isinstance(each, (tuple, list, frozenset)):
            left.extend(each)
        elif isinstance(each, dict):
            left.extend(each.keys())
            left.extend(each.values())
        elif isinstance(each, Value):
            left.extend(getattr(each, name) for name in each._fields)
    return size
