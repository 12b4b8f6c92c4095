"""A pool of connections to one PostgreSQL server, for a Keep that was opened with a URL.

The caller that needs a connection makes it, so an address that does not answer is known at once and with its reason,
and reconnecting never waits for a schedule. psycopg_pool reconnects in the background, waits longer after each failure,
gives up after a while, and its callers learn nothing of that.

An idle connection is taken and put back without a lock: `deque.pop` and `deque.append` are atomic, and whoever popped a
connection owns it. So a signal handler that interrupts a caller can use the pool, too.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable
from random import random
from weakref import WeakSet

import psycopg
from psycopg.pq import TransactionStatus

from threadkeep.transports.postgres_cursor import PostgresCursor
from threadkeep.transports.postgres_errors import PoolClosed, PoolTimeout

_AWAY_SECONDS = 0.1
"""After a failed connection, other callers get the same error for so long instead of trying too."""
_IDLE = TransactionStatus.IDLE
_LOST = (TransactionStatus.UNKNOWN, TransactionStatus.ACTIVE)
"""The connection broke, or the server did not answer in time."""
_LIFETIME = 3600.0
_IDLE_SECONDS = 600.0


class OwnPool:
    """Lends connections, each with its cursor and to one caller at a time, and `max_size` at most.

    A connection that breaks takes along all that were made before it was lent, as they are probably dead too.
    Connections above `min_size` that nobody needed for ten minutes are closed, but only when the pool is used.
    """

    def __init__(self, connect: Callable[[], PostgresCursor], *, min_size: int, max_size: int) -> None:
        self._connect = connect
        self.min_size = min_size
        self.max_size = max_size
        self._lock = threading.RLock()  # reentrant: a signal handler may use the pool, too
        self._changed = threading.Condition(self._lock)
        self._idle: deque[PostgresCursor] = deque()
        self._made: WeakSet[PostgresCursor] = WeakSet()
        """All connections, idle or lent. One that an interrupted caller lost is collected, and does not count."""
        self._being_made = 0
        self._waiting = 0
        self.waits, self.wait_seconds = 0, 0.0
        """How many callers have waited while all connections were in use, and how long."""
        self._good_since = 0.0
        self._next_look = 0.0
        """When to look for connections that were idle for too long."""
        self._away_until = 0.0
        self._away_error: tuple[type[psycopg.Error], str] = psycopg.OperationalError, ""
        self._filling: threading.Thread | None = None
        self._closed = False
        self._process = os.getpid()

    def take_idle(self) -> PostgresCursor | None:
        """Lend a connection that is idle now; None if there is none."""
        try:
            cursor = self._idle.pop()
        except IndexError:
            return None
        cursor.lent_at = time.monotonic()
        return cursor

    def getconn(self, timeout: float) -> PostgresCursor:
        """Lend a connection. PoolTimeout if all were in use for `timeout` seconds, or the error of connecting."""
        cursor = self.take_idle()
        if cursor is not None:
            return cursor
        with self._lock:
            self._waiting += 1
            must_wait, since = not self._has_room(), time.monotonic()
            try:
                cursor = self._wait_for_room(timeout)
            finally:
                self._waiting -= 1
                if must_wait:
                    self.waits += 1
                    self.wait_seconds += time.monotonic() - since
        return cursor if cursor is not None else self._add()

    def _wait_for_room(self, timeout: float) -> PostgresCursor | None:
        """Wait for an idle connection, under the lock. None if the caller may make one, which is counted already."""
        end = time.monotonic() + timeout
        while True:
            if not self._changed.wait_for(self._has_room, end - time.monotonic()):
                raise PoolTimeout(f"all {self.max_size} connections were in use for {timeout:.3g} s")
            if self._closed:
                raise PoolClosed("the pool is closed")
            cursor = self.take_idle()
            if cursor is not None:
                return cursor
            if self._size() >= self.max_size:
                continue  # somebody was faster
            if time.monotonic() < self._away_until:
                self._changed.notify()  # the next one that waits need not wait either
                kind, message = self._away_error
                raise kind(message)
            self._being_made += 1
            return None

    def putconn(self, cursor: PostgresCursor) -> None:
        """Take a connection back. One that is broken or in the middle of something is closed."""
        now = time.monotonic()
        if (
            cursor.connection.pgconn.transaction_status != _IDLE
            or cursor.made_at < self._good_since
            or now > min(cursor.expires_at, self._next_look)
        ):
            self._put_checked(cursor, now)
            return
        cursor.lent_at = now
        self._idle.append(cursor)
        if self._closed or cursor.made_at < self._good_since:  # since it was compared above
            self._remove_idle()
        elif self._waiting:
            with self._lock:
                self._changed.notify()

    def _put_checked(self, cursor: PostgresCursor, now: float) -> None:
        """Take a connection back that may be broken or old, and look for others like it."""
        status = cursor.connection.pgconn.transaction_status
        if status in _LOST:
            with self._lock:
                self._good_since = max(self._good_since, cursor.lent_at)
        if status != _IDLE or now > cursor.expires_at:
            self.discard(cursor)
        else:
            cursor.lent_at = now
            self._idle.append(cursor)
        self._next_look = now + _IDLE_SECONDS / 10
        self._remove_idle()

    def discard(self, cursor: PostgresCursor) -> None:
        """Close a connection that must not be used any more."""
        try:
            cursor.connection.close()
        finally:
            with self._lock:
                self._made.discard(cursor)
                self._changed.notify()

    def _remove_idle(self) -> None:
        """Close idle connections: all if the pool is closed, else those that may be dead or are not needed."""
        now = time.monotonic()
        for _ in range(len(self._idle)):
            try:
                cursor = self._idle.popleft()
            except IndexError:
                return
            too_many = now - cursor.lent_at > _IDLE_SECONDS and self._size() > self.min_size
            if self._closed or cursor.made_at < self._good_since or too_many:
                self.discard(cursor)
            else:
                self._idle.append(cursor)
        with self._lock:
            self._changed.notify_all()

    def fill(self) -> None:
        """Make connections in the background until there are `min_size`. After an error, leave it to the next use."""
        with self._lock:
            if self._size() >= self.min_size or self._filling is not None or self._closed:
                return
            self._filling = threading.Thread(target=self._fill, name="threadkeep-connect", daemon=True)
            self._filling.start()

    def close(self, timeout: float) -> None:
        """Close all connections; one that is lent is closed when it comes back. Wait for `fill` at most `timeout`."""
        with self._lock:
            self._closed = True
            self._changed.notify_all()
            filling = self._filling
        if filling is not None:
            filling.join(timeout)
        self._remove_idle()

    def __del__(self) -> None:
        """Close the connections of a Keep that was forgotten; not in a forked child, where they are the parent's."""
        if self._process == os.getpid():
            for each in self._idle:
                each.connection.close()

    def _size(self) -> int:
        return len(self._made) + self._being_made

    def _has_room(self) -> bool:
        return bool(self._idle) or self._size() < self.max_size or self._closed

    def _add(self) -> PostgresCursor:
        """Make the connection that was counted already."""
        try:
            cursor = self._connect()
        except BaseException as error:
            with self._lock:
                self._being_made -= 1
                if isinstance(error, psycopg.Error):
                    self._away_until, self._away_error = time.monotonic() + _AWAY_SECONDS, (type(error), str(error))
                self._changed.notify()
            raise
        now = time.monotonic()
        cursor.made_at = cursor.lent_at = now
        cursor.expires_at = now + _LIFETIME * (0.95 + 0.05 * random())  # noqa: S311 - no secret
        with self._lock:
            self._made.add(cursor)
            self._being_made -= 1
        if self._size() < self.min_size:
            self.fill()
        return cursor

    def _fill(self) -> None:
        try:
            while True:
                with self._lock:
                    if self._size() >= self.min_size or self._closed:
                        return
                    self._being_made += 1
                self.putconn(self._add())
        except psycopg.Error:
            return  # whoever needs a connection reports it
        finally:
            with self._lock:
                self._filling = None
