"""The Observer of a Keep: the calls of its verbs that are under way, and totals of those that ended.

A call is measured from where it enters the Keep to where it leaves it; verbs that it uses inside are part of it. What
is sent to the storage for a call may be sent by another thread, and together with that of other calls. So whatever is
on its way there, an op, a request or a batch, is labelled with the calls that it is for; `transport.py` asks for them.
What has no label is for the call that is current in the sending thread.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextvars import ContextVar, Token
from time import perf_counter
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from threadkeep.drivers.retries import TryLater
from threadkeep.engine.lease import LEASE_ERRORS
from threadkeep.errors import Conflict
from threadkeep.observability.metrics import VerbMetrics

if TYPE_CHECKING:
    from threadkeep.observability.otel import Exporter

T = TypeVar("T")
SLOW = "threadkeep.slow"
_log = logging.getLogger(SLOW)
_COUNTED = ("round_trips", "bytes_read", "bytes_written", "retries", "conflicts")
_NOT_ERRORS = (GeneratorExit, StopIteration, StopAsyncIteration)


class MeasuredCall:
    """A call of a verb: what it has needed so far. `shared` is with how many other changes its commit was made."""

    __slots__ = (
        "bytes_read", "bytes_written", "conflicts", "error", "is_open", "labelled", "name", "observer", "retries",
        "round_trips", "seconds", "shared", "span",
    )  # fmt: skip

    def __init__(self, observer: Observer, name: str, span: Any) -> None:
        self.observer, self.name, self.span = observer, name, span
        self.is_open = True
        self.labelled: list[Any] = []
        self.seconds = 0.0
        self.error: str | None = None
        self.round_trips = self.bytes_read = self.bytes_written = 0
        self.retries = self.conflicts = self.shared = 0


Calls: TypeAlias = Sequence[MeasuredCall]
_current: ContextVar[MeasuredCall | None] = ContextVar("threadkeep-call", default=None)


class Measurement:
    """While entered, a call is current and its time counts. `ends`: the call ends when it is left. None: no effect."""

    __slots__ = ("_call", "_ends", "_span_token", "_started", "_token")

    def __init__(self, call: MeasuredCall | None, *, ends: bool) -> None:
        self._call, self._ends = call, ends

    def __enter__(self) -> None:
        call = self._call
        if call is not None:
            exporter = call.observer.exporter
            self._token: Token[MeasuredCall | None] = _current.set(call)
            self._span_token = exporter.attach(call.span) if exporter is not None else None
            self._started = perf_counter()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        call = self._call
        if call is None:
            return
        call.seconds += perf_counter() - self._started
        if kind is not None and not issubclass(kind, _NOT_ERRORS):
            call.error = kind.__qualname__
        if call.observer.exporter is not None:
            call.observer.exporter.detach(self._span_token)
        _current.reset(self._token)
        if self._ends:
            call.observer.end(call)


class _VerbTotals:
    """Sums over the calls of one verb."""

    __slots__ = VerbMetrics.__slots__

    def __init__(self) -> None:
        for name in self.__slots__:
            setattr(self, name, 0)


class Observer:
    """Measures the calls of a Keep, and of the Keeps of its tenants. All methods may be called from any thread."""

    def __init__(self, backend: str, *, slow_seconds: float | None, exporter: Exporter | None) -> None:
        self.backend = backend
        self.exporter = exporter
        self.storage_counts: Callable[[], dict[str, Any]] = dict
        """Returns what others count: it is exported together with what is counted here."""
        self._slow_seconds = slow_seconds
        self.start_anew()

    def start_anew(self) -> None:
        """Start all numbers at 0, in a forked child too: they are those of one process."""
        self._totals: dict[str, _VerbTotals] = {}
        self._labels: dict[int, tuple[Any, Calls]] = {}
        self.hits = self.misses = 0
        self.commits = self.changes = 0
        self.items_stored = self.items_referenced = 0
        self._exported: deque[dict[str, Any]] = deque([{}])
        """What was exported so far. Whoever has taken it exports; it is put back then."""

    # --- calls

    def begin(self, name: str) -> MeasuredCall | None:
        """Begin a call; None inside of another call, which it is then a part of."""
        outer = _current.get()
        if outer is not None and outer.is_open and outer.observer is self:
            return None
        span = self.exporter.start_span(name) if self.exporter is not None else None
        return MeasuredCall(self, name, span)

    def measure(self, name: str) -> Measurement:
        """Return a context manager: what is done in it is a call of a verb."""
        return Measurement(self.begin(name), ends=True)

    def end(self, call: MeasuredCall | None) -> None:
        """End a call: add it to the totals, export it, and log it if it was slow."""
        if call is None:
            return
        call.is_open = False
        for each in call.labelled:
            self.unlabel(each)
        is_slow = self._slow_seconds is not None and call.seconds >= self._slow_seconds
        totals: Any = self._totals.get(call.name) or self._totals.setdefault(call.name, _VerbTotals())
        totals.calls += 1
        totals.errors += call.error is not None
        totals.slow += is_slow
        totals.seconds += call.seconds
        totals.longest = max(totals.longest, call.seconds)
        totals.round_trips += call.round_trips
        totals.bytes_read += call.bytes_read
        totals.bytes_written += call.bytes_written
        totals.retries += call.retries
        totals.conflicts += call.conflicts
        if self.exporter is not None:
            self.exporter.end(call)
            self._export_counts(self.exporter)
        if is_slow:
            self._log_slow(call)

    def _export_counts(self, exporter: Exporter) -> None:
        """Export how much the numbers have grown that do not belong to a call."""
        try:
            exported = self._exported.pop()
        except IndexError:
            return  # another thread does it
        counts = self.counted() | self.storage_counts()
        try:
            exporter.add({name: value - exported.get(name, 0) for name, value in counts.items()})
        finally:
            self._exported.append(counts)

    def _log_slow(self, call: MeasuredCall) -> None:
        numbers = {name: getattr(call, name) for name in _COUNTED}
        text = ", ".join(f"{value} {name.replace('_', ' ')}" for name, value in numbers.items())
        failed = f", {call.error}" if call.error is not None else ""
        fields = {"verb": call.name, "backend": self.backend, "seconds": call.seconds, "error": call.error, **numbers}
        _log.warning(
            "%s took %.3f s on %s: %s%s", call.name, call.seconds, self.backend, text, failed,
            extra={"threadkeep": fields},
        )  # fmt: skip

    # --- for which calls something is sent

    def current(self) -> Calls:
        """Return the call that is current in this thread or task, if any."""
        call = _current.get()
        return (call,) if call is not None and call.observer is self else ()

    def label(self, sent: Any, calls: Calls) -> None:
        """State for which calls something is sent, until `unlabel`."""
        self._labels[id(sent)] = sent, calls

    def unlabel(self, sent: Any) -> None:
        """Remove a label."""
        self._labels.pop(id(sent), None)

    def calls_of(self, sent: Any) -> Calls:
        """Return the calls for which something is sent."""
        label = self._labels.get(id(sent))
        return label[1] if label is not None else self.current()

    def label_of(self, sent: Any) -> Calls:
        """Return the calls that something is labelled with."""
        label = self._labels.get(id(sent))
        return label[1] if label is not None else ()

    def labelled(self, make: Callable[[], T]) -> Callable[[], T]:
        """Return a function that makes the same op or request, labelled with the current call until that ends."""
        calls = self.current()
        if not calls:
            return make
        (call,) = calls

        def make_labelled() -> T:
            made = make()
            if call.is_open:
                self.label(made, calls)
                call.labelled.append(made)
            return made

        return make_labelled

    def merging(self, merge: Callable[[Sequence[T]], Iterable[tuple[T, Sequence[T]]]]) -> Any:
        """Return a function that merges requests in the same way, with the labels of all that were merged."""

        def merge_labelled(requests: Sequence[T]) -> Iterator[tuple[T, Sequence[T]]]:
            for merged, parts in merge(requests):
                self.label(merged, [call for part in parts for call in self.label_of(part)])
                try:
                    yield merged, parts
                finally:
                    if merged is not parts[0]:
                        self.unlabel(merged)

        return merge_labelled

    # --- what happens to what is sent

    def sent(self, calls: Calls, *, read: int = 0, written: int = 0) -> None:
        """Count a round trip for each of the calls, which share the bytes."""
        for call in calls:
            call.round_trips += 1
            call.bytes_read += read // len(calls)
            call.bytes_written += written // len(calls)

    def failed(self, calls: Calls, error: BaseException) -> None:
        """Note what happens after a failure: the request is sent again, or its change is decided anew."""
        if isinstance(error, TryLater):
            event = "retry"
            for call in calls:
                call.retries += 1
        elif isinstance(error, Conflict) and not isinstance(error, LEASE_ERRORS):
            event = "conflict"
            for call in calls:
                call.conflicts += 1
        else:
            return
        if self.exporter is not None:
            for call in calls:
                self.exporter.event(call, event)

    # --- totals

    def counted(self) -> dict[str, int]:
        """Return the numbers that do not belong to a call."""
        return {
            "cache_hits": self.hits,
            "cache_misses": self.misses,
            "commits": self.commits,
            "changes": self.changes,
            "items_stored": self.items_stored,
            "items_referenced": self.items_referenced,
        }

    def verbs(self) -> dict[str, VerbMetrics]:
        """Return the totals of each verb that was called."""
        names = VerbMetrics.__slots__
        return {verb: VerbMetrics(*[getattr(each, name) for name in names]) for verb, each in [*self._totals.items()]}
