"""The adapters' classes with measured verbs: subclasses, so that copies of an adapter are measured too."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable, Iterator
from functools import cache, wraps
from typing import Any

from threadkeep.observability.observer import Measurement


def _sync_and_async(prefix: str, verbs: str) -> dict[str, str]:
    return {name: f"{prefix}.{verb}" for verb in verbs.split() for name in (verb, f"a{verb}")}


VERBS = {
    "KeepSaver": _sync_and_async(
        "checkpointer",
        "get_tuple list put put_writes delete_thread delete_for_runs copy_thread prune get_delta_channel_history",
    ),
    "KeepStore": _sync_and_async("store", "get put delete search list_namespaces batch"),
    "KeepCache": _sync_and_async("cache", "get set clear"),
    "KeepFiles": _sync_and_async("files", "ls read write edit delete grep glob upload_files download_files"),
    "KeepCube": _sync_and_async(
        "cube",
        "load append save_extra save_pending_request load_pending_request load_pending"
        " clear_pending_request_if_matches save_hitl_answer load_hitl_answer clear_hitl_answers claim_run"
        " mark_run_complete snapshot fork",
    ),
    "Lease": {
        "__enter__": "keep.lease", "__aenter__": "keep.lease",
        "__exit__": "keep.release_lease", "__aexit__": "keep.release_lease",
    },
}  # fmt: skip
"""Which methods of a class are measured, if it has them, and the name of each in spans."""
_END = object()


@cache
def measured(kind: type) -> Any:
    """Return a subclass whose verbs are measured."""
    methods = {
        method: _measured(getattr(kind, method), name)
        for method, name in VERBS[kind.__name__].items()
        if hasattr(kind, method)
    }
    make: Any = type(kind)
    return make(kind.__name__, (kind,), {"__module__": kind.__module__, "__doc__": kind.__doc__, **methods})


def _measured(verb: Callable[..., Any], name: str) -> Callable[..., Any]:
    if inspect.isasyncgenfunction(verb):
        return _measured_async_iterator(verb, name)
    if name.endswith(".list"):
        return _measured_iterator(verb, name)

    @wraps(verb)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        with self._session.measure(name):
            return verb(self, *args, **kwargs)

    @wraps(verb)
    async def acall(self: Any, *args: Any, **kwargs: Any) -> Any:
        with self._session.measure(name):
            return await verb(self, *args, **kwargs)

    return acall if inspect.iscoroutinefunction(verb) else call


def _measured_iterator(verb: Callable[..., Any], name: str) -> Callable[..., Any]:
    """Return the measured form of a verb that returns an iterator.

    The call begins with the first element and ends with the iterator; the time between two elements is not its own.
    """

    @wraps(verb)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        return iterate(self._session.observer, verb(self, *args, **kwargs))

    def iterate(observer: Any, found: Iterator[Any]) -> Iterator[Any]:
        measured_call = observer.begin(name)
        try:
            while True:
                with Measurement(measured_call, ends=False):
                    each = next(found, _END)
                if each is _END:
                    return
                yield each
        finally:
            observer.end(measured_call)

    return call


def _measured_async_iterator(verb: Callable[..., Any], name: str) -> Callable[..., Any]:
    @wraps(verb)
    async def call(self: Any, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        observer, found = self._session.observer, verb(self, *args, **kwargs)
        measured_call = observer.begin(name)
        try:
            while True:
                with Measurement(measured_call, ends=False):
                    each = await anext(found, _END)
                if each is _END:
                    return
                yield each
        finally:
            await found.aclose()
            observer.end(measured_call)

    return call
