"""OpenTelemetry: a span and metrics for each call of a verb. This module is imported only if they are wanted.

Only `opentelemetry-api` is needed: whether and where anything is exported is decided by the application.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from opentelemetry import context, metrics, trace

from threadkeep.version import VERSION

if TYPE_CHECKING:
    from threadkeep.observability.observer import MeasuredCall

_OWN_MODULES = ("opentelemetry.trace", "opentelemetry.metrics")
"""Providers of the API itself do nothing."""
SECONDS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
COUNTERS = {
    "cache_hits": ("threadkeep.cache.hits", "{lookup}", "Lookups of a thread that was cached"),
    "cache_misses": ("threadkeep.cache.misses", "{lookup}", "Lookups of a thread that was not cached"),
    "commits": ("threadkeep.commits", "{commit}", "Transactions that changed threads"),
    "changes": ("threadkeep.changes", "{change}", "Changes of threads; several may share a commit"),
    "items_stored": ("threadkeep.items.stored", "{item}", "Items that commits stored"),
    "items_referenced": ("threadkeep.items.referenced", "{item}", "Items that new checkpoints refer to"),
    "lost_connections": ("threadkeep.connections.lost", "{connection}", "Times that a connection was lost"),
    "pool_waits": ("threadkeep.pool.waits", "{wait}", "Callers that waited for a connection"),
    "pool_wait_seconds": ("threadkeep.pool.wait_time", "s", "How long callers waited for a connection"),
}
"""What is counted for a whole Keep: the instrument's name, unit and description."""


def is_configured() -> bool:
    """Return whether the application has set a provider of traces or of metrics."""
    providers = trace.get_tracer_provider(), metrics.get_meter_provider()
    return any(not type(each).__module__.startswith(_OWN_MODULES) for each in providers)


class Exporter:
    """Makes the spans and metrics of a Keep. Attributes are the verb, the backend, numbers, and classes of errors."""

    def __init__(self, backend: str) -> None:
        self._tracer = trace.get_tracer("threadkeep", VERSION)
        meter = metrics.get_meter("threadkeep", VERSION)
        self._backend = {"threadkeep.backend": backend}
        self._attributes: dict[str, dict[str, str]] = {}
        self._duration = meter.create_histogram(
            "threadkeep.verb.duration", "s", "How long calls of verbs took", explicit_bucket_boundaries_advisory=SECONDS
        )
        self._round_trips = meter.create_counter("threadkeep.round_trips", "{round_trip}", "Requests to the storage")
        self._bytes = meter.create_counter("threadkeep.io", "By", "Bytes of rows that were read or written")
        self._retries = meter.create_counter("threadkeep.retries", "{retry}", "Requests that were sent again")
        self._conflicts = meter.create_counter("threadkeep.conflicts", "{conflict}", "Changes that were decided anew")
        self._counters = {key: meter.create_counter(*instrument) for key, instrument in COUNTERS.items()}

    def start_span(self, verb: str) -> trace.Span:
        """Start the span of a call, below the current one."""
        attributes = self._attributes.get(verb)
        if attributes is None:
            attributes = self._attributes[verb] = self._backend | {"threadkeep.verb": verb}
        return self._tracer.start_span(f"threadkeep.{verb}", attributes=attributes)

    def attach(self, span: trace.Span) -> Any:
        """Make a span current. Return what `detach` needs."""
        return context.attach(trace.set_span_in_context(span))

    def detach(self, token: Any) -> None:
        """Reverse `attach`."""
        context.detach(token)

    def event(self, call: MeasuredCall, event: str) -> None:
        """Add an event to the span of a call: `retry` or `conflict`. It is counted at once, too."""
        counter, number = (self._retries, call.retries) if event == "retry" else (self._conflicts, call.conflicts)
        call.span.add_event(f"threadkeep.{event}", {"threadkeep.number": number})
        counter.add(1, self._attributes[call.name])

    def end(self, call: MeasuredCall) -> None:
        """End the span of a call and record its numbers."""
        span, attributes = call.span, self._attributes[call.name]
        if span.is_recording():
            span.set_attributes(
                {
                    "threadkeep.duration": call.seconds,
                    "threadkeep.round_trips": call.round_trips,
                    "threadkeep.bytes_read": call.bytes_read,
                    "threadkeep.bytes_written": call.bytes_written,
                    "threadkeep.retries": call.retries,
                    "threadkeep.conflicts": call.conflicts,
                    "threadkeep.committed_with": call.shared,
                }
            )
            if call.error is not None:
                span.set_attribute("error.type", call.error)
                span.set_status(trace.StatusCode.ERROR)
        if call.round_trips:
            self._round_trips.add(call.round_trips, attributes)
        if call.bytes_read:
            self._bytes.add(call.bytes_read, attributes | {"threadkeep.direction": "read"})
        if call.bytes_written:
            self._bytes.add(call.bytes_written, attributes | {"threadkeep.direction": "written"})
        if call.error is not None:
            attributes = attributes | {"error.type": call.error}
        self._duration.record(call.seconds, attributes, context=trace.set_span_in_context(span))  # for exemplars
        span.end()

    def add(self, grown: dict[str, float]) -> None:
        """Add to the counters of the Keep."""
        for name, number in grown.items():
            if number > 0 and name in self._counters:
                self._counters[name].add(number, self._backend)
