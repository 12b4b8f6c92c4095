"""Check everything that is stored, one thread at a time. Nothing is changed."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Any

from threadkeep.engine.health import verify as engine_verify
from threadkeep.engine.health.requests import CATALOGUE, DATABASE, InspectMemories, IntegrityCheck
from threadkeep.engine.health.thread_scan import Problem
from threadkeep.engine.health.verify import VerifyResult, counted, memory_problems, storage_problems, thread_examined
from threadkeep.engine.identity import ThreadKey, as_id, as_kind
from threadkeep.errors import Corrupt, Unavailable
from threadkeep.jobs.over_threads import present_threads
from threadkeep.plan import Request, ask
from threadkeep.session import Session
from threadkeep.work import Progress, Tell, Work, read, reporting

_MEMORIES = 500
_MOST = 10_000
"""So many problems are reported; a storage with more is lost anyway."""


def verify(
    session: Session,
    thread_id: str | None = None,
    *,
    prefix: str = "",
    kind: str | None = None,
    on_progress: Tell | None = None,
) -> Work[VerifyResult]:
    """Check every checksum, reference, parent, value and count: of one thread, of some, or of everything stored.

    Problems are collected, never raised, and nothing is changed. Without arguments, the memories and the storage itself
    are checked too. Raise Missing if the named thread does not exist, ValueError if both a thread and a prefix are
    given. `on_progress` is called with (done, total, what) before each thread.
    """
    start, of = as_id(prefix, "prefix"), as_kind(kind)
    if thread_id is None:
        return reporting(_verify_all(session, start, of), on_progress)
    if start:
        raise ValueError("give thread_id or prefix, not both")
    return reporting(_verify_one(session, as_id(thread_id, "thread_id"), of), on_progress)


@dataclass(slots=True)
class _Checked:
    """What was checked so far, and the problems found."""

    counts: list[int] = field(default_factory=lambda: [0] * 5)
    memories: int = 0
    problems: list[Problem] = field(default_factory=list)

    def add(self, problems: list[Problem]) -> None:
        self.problems += problems[: _MOST - len(self.problems)]

    def ask(self, request: Request[Any]) -> Work[Any]:
        """Make a request; if the storage cannot read itself, that is a problem, and the answer None."""
        try:
            return (yield from read(lambda: ask(request)))
        except Corrupt as error:
            self.add([Problem(DATABASE, str(error))])
            return None

    def verified(self) -> VerifyResult:
        threads, checkpoints, writes, items, size = self.counts
        return VerifyResult(threads, checkpoints, writes, items, self.memories, size, self.problems)


def _verify_one(session: Session, id: str, kind: str | None) -> Work[VerifyResult]:
    key = yield from read(lambda: engine_verify.known(session.tenant, id, kind))
    checked = _Checked()
    yield Progress(0, 1, key.id)
    yield from _check_thread(key, checked)
    return checked.verified()


def _verify_all(session: Session, prefix: str, kind: str | None) -> Work[VerifyResult]:
    """Check all matching threads; the memories and the storage too, unless threads were selected."""
    checked = _Checked()
    everything = not prefix and kind is None
    if everything:
        yield Progress(0, None, "the storage")
        checked.add(storage_problems((yield from checked.ask(IntegrityCheck())) or ()))
    try:
        yield from _check_threads(session.tenant, prefix, kind, checked)
        if everything:
            yield from _check_memories(session, checked)
    except Unavailable as error:
        if not any(problem.problem == DATABASE for problem in checked.problems):
            raise
        checked.add([Problem(DATABASE, f"the rest could not be read: {error}")])
    return checked.verified()


def _check_threads(tenant: str, prefix: str, kind: str | None, checked: _Checked) -> Work[None]:
    present = yield from present_threads(tenant, prefix, kind, checked.ask)
    for done, one in enumerate(present):
        yield Progress(done, len(present), one.id)
        if one.unreadable is not None:
            checked.add([Problem(CATALOGUE, f"thread {one.id!r}: {one.unreadable}", one.id, one.kind)])
        else:
            yield from _check_thread(ThreadKey(tenant, one.kind, one.id), checked)


def _check_thread(key: ThreadKey, checked: _Checked) -> Work[None]:
    try:
        scan = yield from read(partial(thread_examined, key))
    except Corrupt as error:
        checked.counts[0] += 1
        checked.add([Problem(DATABASE, str(error), key.id, key.kind)])
        return
    if scan is not None:
        checked.counts = [one + other for one, other in zip(checked.counts, counted(scan), strict=True)]
        checked.add(scan.problems)


def _check_memories(session: Session, checked: _Checked) -> Work[None]:
    dims = session.vectors.dims if session.vectors is not None else None
    after = None
    while True:
        yield Progress(checked.memories, None, "memories")
        seen = yield from checked.ask(InspectMemories(session.tenant, _MEMORIES, after))
        if seen is None:
            return
        checked.memories += len(seen.memories)
        checked.add(list(memory_problems(seen, dims)))
        after = seen.last
        if after is None:
            return
