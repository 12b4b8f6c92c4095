"""Decide at `open` whether a Keep is measured, and put what measures around its parts."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, cast

from threadkeep.observability.metrics import backend_of, storage_counts
from threadkeep.observability.observer import Observer
from threadkeep.observability.transport import MeasuredTransport
from threadkeep.session import Session

if TYPE_CHECKING:
    from threadkeep.engine.identity import ThreadKey
    from threadkeep.engine.threads.heads import Head
    from threadkeep.tenants.transport import TenantTransport


def open_session(
    transport: TenantTransport, *, metrics: bool | None, slow_seconds: float | None, **options: Any
) -> Session:
    """Return the session of a new Keep; it is measured if somebody wants its numbers.

    `metrics` is True (measure), False (export nothing), or None: measure if an OpenTelemetry provider is set.
    """
    wants_numbers = metrics is True or (metrics is None and _is_configured())
    if not wants_numbers and slow_seconds is None:
        return Session(transport, **options)
    backend, exporter = backend_of(transport.inner), None
    if wants_numbers and find_spec("opentelemetry") is not None:
        from threadkeep.observability.otel import Exporter  # noqa: PLC0415 - OpenTelemetry is an extra

        exporter = Exporter(backend)
    observer = Observer(backend, slow_seconds=slow_seconds, exporter=exporter)
    measured = cast("TenantTransport", MeasuredTransport(transport, observer))
    session = Session(measured, observer=observer, **options)
    alive = weakref.ref(session)
    observer.storage_counts = lambda: storage_counts(found) if (found := alive()) is not None else {}
    session.heads.get = _counting(session.heads.get, observer)
    return session


def _is_configured() -> bool:
    from threadkeep.observability.otel import is_configured  # noqa: PLC0415 - OpenTelemetry is an extra

    return is_configured()


def _counting(get: Callable[[ThreadKey], Head | None], observer: Observer) -> Callable[[ThreadKey], Head | None]:
    """Return a function that looks a thread up in the cache and counts whether it was there."""

    def counting(key: ThreadKey) -> Head | None:
        head = get(key)
        if head is None:
            observer.misses += 1
        else:
            observer.hits += 1
        return head

    return counting
