"""Changes that async callers wait for. While a worker makes one, the others wait, and are then made together."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

from threadkeep.drivers.runner import Deliver, new_future
from threadkeep.plan import Failure, Reply, try_call

T = TypeVar("T")
R_contra = TypeVar("R_contra", contravariant=True)
_MOST_TOGETHER = 256
_DONE = Reply()


class RequestWriter(Protocol[R_contra]):
    """What makes a request in one step, and returns whether that was possible. Its function may be replaced."""

    def write_at_once(self, request: R_contra, /) -> bool:
        """Make a request. Return False if it must be made in another way."""


class WaitingWrites(Generic[T]):
    """A queue of changes, each a request.

    `merge` returns requests that make the same changes in the same order, each with those that it was made from.
    `submit` lets a worker do a job. Callers may be in several event loops: only operations that are atomic in CPython
    are used. In the worst case two workers make changes at the same time, which `writer` must allow.
    """

    def __init__(
        self,
        submit: Callable[[Callable[[], None]], None],
        writer: RequestWriter[T],
        merge: Callable[[Sequence[T]], Iterable[tuple[T, Sequence[T]]]],
    ) -> None:
        self._submit = submit
        self._writer = writer
        self._merge = merge
        self._waiting: deque[tuple[Callable[[], T], Deliver]] = deque()
        self._is_busy = False
        """Whether a worker will look at the queue once more."""

    async def change(self, make: Callable[[], T]) -> T | None:
        """Make a request on a worker, and the change. Return the request if it must be made in another way."""
        future, deliver = new_future()
        entry = (make, deliver)
        self._waiting.append(entry)
        if not self._is_busy:
            self._is_busy = True
            try:
                self._submit(self._work)
            except BaseException:
                self._is_busy = False
                with suppress(ValueError):
                    self._waiting.remove(entry)
                raise
        left: T | None = await future
        return left

    def _work(self) -> None:
        """Make all changes that wait, on a worker. One that comes at the very end is seen here, or by its caller."""
        while True:
            while self._waiting:
                self._make_some()
            self._is_busy = False
            if not self._waiting or self._is_busy:
                return
            self._is_busy = True

    def _make_some(self) -> None:
        requests: list[T] = []
        delivers: dict[int, Deliver] = {}
        with suppress(IndexError):  # another worker may have been faster
            for _ in range(min(len(self._waiting), _MOST_TOGETHER)):
                make, deliver = self._waiting.popleft()
                made = try_call(make)
                if isinstance(made, Failure):
                    deliver(made)
                else:
                    requests.append(made.value)
                    delivers[id(made.value)] = deliver
        for merged, parts in self._merge(requests) if len(requests) > 1 else zip(requests, [requests], strict=False):
            outcome: Any = try_call(partial(self._writer.write_at_once, merged))
            for request in parts:
                deliver = delivers[id(request)]
                if isinstance(outcome, Reply):
                    deliver(_DONE if outcome.value else Reply(request))
                else:  # made one by one, each gets its own error
                    deliver(outcome if len(parts) == 1 else Reply(request))
