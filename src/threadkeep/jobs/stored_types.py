"""List the classes that stored values name, and which of them would not be rebuilt today."""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from threadkeep.engine.health.stored_types import StoredAt, ThreadTypes, types_of_thread
from threadkeep.engine.health.verify import stored_thread_key
from threadkeep.engine.identity import Kind, ThreadKey, as_id, as_kind
from threadkeep.engine.log.msgpack import OPAQUE
from threadkeep.engine.log.type_gate import (
    ALLOWED,
    IMPORTED,
    NO_CLASS,
    NOT_IMPORTED,
    SAFE,
    UPCAST,
    KeepSerializer,
    inner_serializer,
    with_type_gate,
)
from threadkeep.engine.log.type_names import StoredClass
from threadkeep.errors import Corrupt
from threadkeep.jobs.over_threads import list_stored_threads
from threadkeep.plan import Request, send
from threadkeep.short_repr import short_repr
from threadkeep.work import OnProgress, Progress, Work, read, with_progress

if TYPE_CHECKING:
    from threadkeep.keep import Keep

NO_MODULE, OTHER_SERIALIZER = "no such module", "decided by the serializer"
_LOADS = (SAFE, ALLOWED, UPCAST, IMPORTED)


@dataclass(frozen=True, slots=True)
class StoredType:
    """A class that stored values name: how many objects, in how many threads, in which channels.

    `status` says what happens to them in this process when they are read. They are rebuilt if it is safe (LangGraph's
    list), allowed, upcast or imported; then `loads` is true. Otherwise plain data is returned, because the class is
    "not imported" (a data class would be rebuilt where its module is imported), because there is "no such module" or
    "no such class", because it is "not a data class", "stored in another form" than its objects would be today, or
    "not allowed". `loads` is None if another serializer decides. The other fields say where one of the objects is:
    `task` is None unless it is a write, `channel` empty if it is in no channel.
    """

    name: str
    objects: int
    threads: int
    channels: tuple[str, ...]
    status: str
    loads: bool | None
    thread: str
    kind: Kind
    ns: str
    checkpoint: str
    channel: str
    task: str | None

    __repr__ = short_repr


@dataclass(frozen=True, slots=True)
class StoredTypes:
    """The classes that are stored, those that are not rebuilt first, and the number of threads that were read.

    `damaged` has the ids of threads of which not everything could be read; `skipped` those of which nothing could be.
    """

    types: list[StoredType]
    threads: int
    damaged: tuple[str, ...] = ()
    skipped: tuple[str, ...] = ()

    __repr__ = short_repr


def types(
    keep: Keep,
    thread_id: str | None = None,
    *,
    prefix: str = "",
    kind: Kind | None = None,
    on_progress: OnProgress | None = None,
) -> Work[StoredTypes]:
    """List the classes that values and writes are stored as, and which of them would not be rebuilt today.

    Read one thread, or all whose id starts with `prefix`. Stored bytes are walked: nothing is built, and nothing is
    imported. Objects that checkpoints share count once; metadata and memories are not read. Damage is skipped. Raise
    Missing if the named thread does not exist, ValueError if both a thread and a prefix are given. Two round trips for
    each thread, and one more for each 8 MB of its items. `on_progress` is called before each thread.
    """
    prefix, kind = as_id(prefix, "prefix"), as_kind(kind)
    if thread_id is not None and prefix:
        raise ValueError("give thread_id or prefix, not both")
    id = as_id(thread_id, "thread_id") if thread_id is not None else None
    return with_progress(_types(keep, id, prefix, kind), on_progress)


def _types(keep: Keep, id: str | None, prefix: str, kind: Kind | None) -> Work[StoredTypes]:
    tenant, totals = keep._session.tenant, _ClassTotals()  # noqa: SLF001 - the same package
    if id is not None:
        key = yield from read(lambda: stored_thread_key(tenant, id, kind))
        yield Progress(0, 1, key.id)
        yield from totals.read_thread(key)
    else:
        stored = yield from list_stored_threads(tenant, prefix, kind, _ask)
        for done, each in enumerate(stored):
            yield Progress(done, len(stored), each.id)
            if each.unreadable is None:
                yield from totals.read_thread(ThreadKey(tenant, each.kind, each.id))
            else:
                totals.skipped.append(each.id)
    serde = with_type_gate(keep._serde)  # noqa: SLF001
    return totals.result(inner_serializer(serde))


def _ask(request: Request[Any]) -> Work[Any]:
    return (yield from read(lambda: send(request)))


class _ClassTotals:
    """The classes of the threads that were read."""

    def __init__(self) -> None:
        self.read = 0
        self.damaged: list[str] = []
        self.skipped: list[str] = []
        self._objects: Counter[StoredClass] = Counter()
        self._threads: Counter[StoredClass] = Counter()
        self._channels: dict[StoredClass, set[str]] = {}
        self._examples: dict[StoredClass, tuple[ThreadKey, StoredAt]] = {}

    def read_thread(self, key: ThreadKey) -> Work[None]:
        """Add a thread. It may be gone, or damaged."""
        try:
            found = yield from read(partial(types_of_thread, key))
        except Corrupt:
            self.skipped.append(key.id)
            return
        if found is not None:
            self._add(key, found)

    def _add(self, key: ThreadKey, found: ThreadTypes) -> None:
        self.read += 1
        if found.is_damaged:
            self.damaged.append(key.id)
        self._objects += found.counts
        self._threads.update(found.counts.keys())
        for each, channels in found.channels.items():
            self._channels.setdefault(each, set()).update(channels)
        for each, at in found.examples.items():
            self._examples.setdefault(each, (key, at))

    def result(self, serde: Any) -> StoredTypes:
        """Return all classes, with what the serializer would do with them."""
        found = sorted(self._stored_types(serde), key=lambda each: (each.loads is True, -each.objects, each.name))
        return StoredTypes(found, self.read, tuple(self.damaged), tuple(self.skipped))

    def _stored_types(self, serde: Any) -> Iterator[StoredType]:
        for each, objects in self._objects.items():
            key, at = self._examples[each]
            status = _status(serde, each)
            yield StoredType(
                name=str(each),
                objects=objects,
                threads=self._threads[each],
                channels=tuple(sorted(self._channels[each])),
                status=status,
                loads=None if status == OTHER_SERIALIZER else status in _LOADS,
                thread=key.id,
                kind=key.kind,
                ns=at.ns,
                checkpoint=at.checkpoint,
                channel=at.channel,
                task=at.task,
            )


def _status(serde: Any, stored: StoredClass) -> str:
    """Return what the serializer would do with a stored class. The class of a listed name may be gone meanwhile."""
    if not isinstance(serde, KeepSerializer) or (stored.code == OPAQUE and stored.name != "pickle"):
        return OTHER_SERIALIZER
    verdict = serde.verdict(stored)
    name: Any = (stored.module, stored.name)
    if verdict == UPCAST:
        name = serde.upcasters[name]
    if verdict not in (SAFE, ALLOWED, UPCAST, NOT_IMPORTED) or not isinstance(name, tuple) or not name[0]:
        return verdict
    return _missing(*name) or verdict


def _missing(module: str, name: str) -> str | None:
    """Return whether a module, or a class of it, is missing. A module that is not imported is not imported now."""
    imported = sys.modules.get(module)
    if imported is not None:
        return None if name in vars(imported) or "__getattr__" in vars(imported) else NO_CLASS
    spec = _find_module(module)
    if spec is None:
        return NO_MODULE
    source = getattr(spec.loader, "get_source", lambda _: None)(module)
    return NO_CLASS if source is not None and not re.search(rf"\b{re.escape(name)}\b", source) else None


def _find_module(module: str) -> Any:
    """Find a module's spec. Other than `importlib.util.find_spec`, this imports no package that the module is in."""
    path, spec, parent = None, None, ""
    for part in module.split("."):
        parent = f"{parent}.{part}" if parent else part
        if parent in sys.modules:
            spec = sys.modules[parent].__spec__
        else:
            found = (each.find_spec(parent, path) for each in sys.meta_path)
            spec = next((each for each in found if each is not None), None)
        if spec is None:
            return None
        path = spec.submodule_search_locations
        if path is None and parent != module:
            return None
    return spec
