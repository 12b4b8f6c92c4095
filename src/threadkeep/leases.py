"""Leases: the right of one context to write a thread, for as long as it is renewed. `Keep.lease` returns one."""

from __future__ import annotations

import logging
import math
import os
import secrets
import socket
import time
from collections.abc import Callable, Generator
from functools import partial
from types import TracebackType
from typing import Self

from threadkeep.clock import nonce, now_ms
from threadkeep.drivers.leases import HeldLease, Waiter, pause_before
from threadkeep.engine.identity import GRAPH, Kind, ThreadKey, as_id, as_kind
from threadkeep.engine.lease import digest_of
from threadkeep.engine.threads import lease_plans
from threadkeep.engine.threads.lease_plans import FoundLease, Grant
from threadkeep.errors import Closed, Leased, ThreadkeepError
from threadkeep.plan import Outcome, Plan
from threadkeep.session import Session

_log = logging.getLogger("threadkeep.leases")
_LEAST_TTL = 0.05

_Steps = Generator["float | None", "FoundLease | None", None]
"""What taking a lease consists of: tries (None), which are resumed with what they found, and pauses in seconds."""


class Lease:
    """The right to write a thread, for the context that enters this object with `with` or `async with`.

    While it is held, everybody else's changes of the thread raise Leased, and others who want a lease wait. It is
    renewed in the background, three times per `ttl`, and released at the end. If this process stops, the lease
    expires after `ttl` seconds. If this process was stopped only for a while and somebody else took the thread, every
    change under this lease raises LeaseLost: what was lost stays lost.

    The lease belongs to the context (`contextvars`): to what the body calls, and to tasks and threads that it starts
    with a copy of its context, as LangGraph does. For anything else there is `token`, to be passed as
    `config["configurable"]["__lease_token"]`.

    It may be entered several times, one after the other; each time it is another lease.
    """

    def __init__(self, session: Session, key: ThreadKey, *, ttl: float, wait: float) -> None:
        self.ttl = ttl
        self._session = session
        self._key = key
        self._wait = wait
        self._token: str | None = None
        self._held: HeldLease | None = None

    @property
    def thread_id(self) -> str:
        """The id of the thread."""
        return self._key.id

    @property
    def token(self) -> str:
        """The secret by which the holder of this lease is recognized. RuntimeError while it is not held."""
        if self._token is None:
            raise RuntimeError("the lease is not held: enter it first, with `with` or `async with`")
        return self._token

    @property
    def lost(self) -> bool:
        """Whether a renewal, or the end, has found that somebody else took or wrote the thread after an expiry."""
        return self._held is not None and self._held.is_lost

    @property
    def held(self) -> HeldLease:
        """What the context holds."""
        assert self._held is not None
        return self._held

    def __repr__(self) -> str:
        """Show everything except the token."""
        state = "not held" if self._token is None else "lost" if self.lost else "held"
        return f"<Lease on {self._key.kind} thread {self._key.id!r}, ttl {self.ttl:g} s, {state}>"

    def __enter__(self) -> Self:
        grant, waiter = self._begin()
        try:
            steps = self._steps(waiter)
            step = next(steps)
            try:
                while True:
                    found = self._session.exclusive(self._key, self._take(grant)) if step is None else None
                    if step is not None:
                        waiter.sleep(step)
                    step = steps.send(found)
            except StopIteration:
                self._start(grant)
        except BaseException:
            self._give_up(grant)
            raise
        finally:
            self._leave(waiter)
        return self

    async def __aenter__(self) -> Self:
        grant, waiter = self._begin()
        try:
            steps = self._steps(waiter)
            step = next(steps)
            try:
                while True:
                    found = await self._session.aexclusive(self._key, self._take(grant)) if step is None else None
                    if step is not None:
                        await waiter.asleep(step)
                    step = steps.send(found)
            except StopIteration:
                self._start(grant)
        except BaseException:
            self._give_up(grant)
            raise
        finally:
            self._leave(waiter)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        release = self._end()
        if release is None:
            return
        try:
            self._note_release(self._session.exclusive(self._key, release))
        except ThreadkeepError as failure:
            self._note_failure(failure)
        finally:
            self._session.leases.wake_first(self._key)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        release = self._end()
        if release is None:
            return
        try:
            self._note_release(await self._session.aexclusive(self._key, release))
        except ThreadkeepError as failure:
            self._note_failure(failure)
        finally:
            self._session.leases.wake_first(self._key)

    # --- take it

    def _begin(self) -> tuple[Grant, Waiter]:
        if self._token is not None:
            raise RuntimeError(f"{self!r} was entered already: make another one with keep.lease()")
        self._session.runner.check_open()
        held = self._session.leases.held(self._key)
        if held is not None and not (held.has_ended or held.is_lost):
            raise Leased(
                f"this context holds the lease on thread {self._key.id!r} already: waiting for it would never end"
            )
        self._token = secrets.token_urlsafe(24)
        grant = Grant(digest_of(self._token), math.ceil(self.ttl * 1000), f"{socket.gethostname()}:{os.getpid()}")
        return grant, self._session.leases.queue_up(self._key)

    def _steps(self, waiter: Waiter) -> _Steps:
        """Try when it is this waiter's turn, until the lease is taken. Leased if that takes too long."""
        leases, key, attempt = self._session.leases, self._key, 0
        deadline = time.monotonic() + self._wait
        while True:
            found: FoundLease | None = None
            if leases.is_first(key, waiter) or self._wait == 0:
                found = yield None
                if found is None:
                    return
            left = deadline - time.monotonic()
            if left <= 0:
                raise Leased(self._refusal(found))
            if found is None:
                yield left  # whoever is first wakes the next one
            else:
                yield min(pause_before(attempt), found.left / 1000 + 0.001, left)
                attempt += 1

    def _refusal(self, found: FoundLease | None) -> str:
        name = f"thread {self._key.id!r}"
        what = f"after {self._wait:g} seconds, {name} is still leased" if self._wait else f"{name} is leased"
        if found is None:
            return f"{what}, and others in this process wait for it, too"
        left = f"for {found.left / 1000:.1f} seconds more unless it renews the lease"
        return f"{what} by {found.lease.holder}, {left}"

    def _take(self, grant: Grant) -> Callable[[], Plan[FoundLease | None]]:
        return lambda: lease_plans.take(self._session.heads, self._key, grant, now_ms(), nonce())

    def _leave(self, waiter: Waiter) -> None:
        self._session.leases.leave(self._key, waiter)

    def _give_up(self, grant: Grant) -> None:
        """Forget the token. If a try was interrupted, it may still be made, so a worker releases the lease."""
        self._token = None
        if self._held is not None and not self._held.has_ended:
            self._held.home.let_go(self._held)
            self._held.home.stop_renewing(self)
        try:
            self._session.start_exclusive(self._key, self._release(grant.digest), _ignore)
        except Closed:
            return

    def _start(self, grant: Grant) -> None:
        self._session.heads.has_leases = True
        self._held = self._session.leases.hold(self._key, grant.digest)
        self._grant = grant
        self._session.leases.renew(self)

    def start_renewing(self, deliver: Callable[[Outcome], None]) -> None:
        """Let a worker renew it."""
        make = partial(lease_plans.renew, self._session.heads, self._key, self._grant, nonce())
        self._session.start_exclusive(self._key, make, deliver)

    # --- release it

    def _end(self) -> Callable[[], Plan[bool]] | None:
        """End it in this process. Return the plan that releases it; None if it is that of a parent process."""
        held = self.held
        held.home.let_go(held)
        self._token = None
        if held.home is not self._session.leases:
            return None
        held.home.stop_renewing(self)
        return self._release(held.digest)

    def _release(self, digest: bytes) -> Callable[[], Plan[bool]]:
        return lambda: lease_plans.release(self._session.heads, self._key, digest, nonce())

    def _note_release(self, was_held: bool) -> None:  # noqa: FBT001 - the plan's result
        if not was_held:
            self.held.is_lost = True

    def _note_failure(self, failure: ThreadkeepError) -> None:
        """Log that it could not be released. It expires; the body is done, and its own error must not be hidden."""
        if not isinstance(failure, Closed):
            _log.warning("the lease on thread %r could not be released: %s", self._key.id, failure)


def _ignore(_: Outcome) -> None:
    """Take the outcome of a change that nobody waits for."""


def lease(
    session: Session, thread_id: str, *, ttl: float, wait: float | None, kind: Kind | None, make: type[Lease] = Lease
) -> Lease:
    """Return a lease that is not held yet; see `Keep.lease`."""
    if type(ttl) not in (int, float) or not _LEAST_TTL <= ttl < math.inf:
        raise ValueError(f"ttl must be a number of seconds, {_LEAST_TTL} or more, not {ttl!r}")
    if wait is not None and (type(wait) not in (int, float) or not wait >= 0):
        raise ValueError(f"wait must be a number of seconds, 0 or more, or None, not {wait!r}")
    key = session.key(as_kind(kind) or GRAPH, as_id(thread_id, "thread_id"))
    return make(session, key, ttl=ttl, wait=session.timeout if wait is None else wait)
