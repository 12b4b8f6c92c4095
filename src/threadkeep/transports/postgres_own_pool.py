"""A pool of connections to one PostgreSQL server, for a Keep that was opened with a URL.

The caller that needs a connection makes it, so an address that does not answer is known at once and with its reason,
and reconnecting never waits for a schedule. psycopg_pool reconnects in the background, waits longer after each failure,
gives up after a while, and its callers learn nothing of that.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from random import random

import psycopg
from psycopg.pq import TransactionStatus
from psycopg_pool import PoolClosed, PoolTimeout

from threadkeep.transports.postgres_cursor import TimedConnection

_AWAY_SECONDS = 0.1
"""After a failed connection, other callers get the same error for so long instead of trying too."""
_LOST = (TransactionStatus.UNKNOWN, TransactionStatus.ACTIVE)
"""The connection broke, or the server did not answer in time."""
_LIFETIME = 3600.0
_IDLE_SECONDS = 600.0


class OwnPool:
    """Lends connections, each to one caller at a time, and `max_size` at most.

    A connection that breaks takes along all that were made before it was lent, as they are probably dead too.
    Connections above `min_size` that nobody needed for ten minutes are closed, but only when the pool is used.
    """

    def __init__(self, connect: Callable[[], TimedConnection], *, min_size: int, max_size: int) -> None:
        self._connect = connect
        self.min_size = min_size
        self.max_size = max_size
        self._changed = threading.Condition(threading.Lock())
        self._idle: list[TimedConnection] = []
        self._size = 0
        self._good_since = 0.0
        self._away_until = 0.0
        self._away_error: tuple[type[psycopg.Error], str] = psycopg.OperationalError, ""
        self._filling: threading.Thread | None = None
        self._closed = False
        self._process = os.getpid()

    def getconn(self, timeout: float) -> TimedConnection:
        """Lend a connection. PoolTimeout if all were in use for `timeout` seconds, or the error of connecting."""
        with self._changed:
            if not self._has_room() and not self._changed.wait_for(self._has_room, timeout):
                raise PoolTimeout(f"all {self.max_size} connections were in use for {timeout:.3g} s")
            if self._closed:
                raise PoolClosed("the pool is closed")
            if self._idle:
                connection = self._idle.pop()
                connection.lent_at = time.monotonic()
                return connection
            if time.monotonic() < self._away_until:
                self._changed.notify()  # the next one that waits need not wait either
                kind, message = self._away_error
                raise kind(message)
            self._size += 1
        return self._add()

    def putconn(self, connection: TimedConnection) -> None:
        """Take a connection back. One that is broken or in the middle of something is closed."""
        status = connection.pgconn.transaction_status
        usable = status == TransactionStatus.IDLE
        now, surplus = time.monotonic(), list[TimedConnection]()
        with self._changed:
            if status in _LOST:
                self._good_since = max(self._good_since, connection.lent_at)
                surplus = [each for each in self._idle if each.made_at < self._good_since]
                self._idle = [each for each in self._idle if each.made_at >= self._good_since]
            if not usable or self._closed or connection.made_at < self._good_since or now > connection.expires_at:
                surplus.append(connection)
            else:
                connection.lent_at = now
                self._idle.append(connection)
                if now - self._idle[0].lent_at > _IDLE_SECONDS and self._size > self.min_size:
                    surplus.append(self._idle.pop(0))
            self._size -= len(surplus)
            self._changed.notify(1 + len(surplus))
        for each in surplus:
            each.close()

    def fill(self) -> None:
        """Make connections in the background until there are `min_size`. After an error, leave it to the next use."""
        with self._changed:
            if self._size >= self.min_size or self._filling is not None or self._closed:
                return
            self._filling = threading.Thread(target=self._fill, name="threadkeep-connect", daemon=True)
            self._filling.start()

    def close(self, timeout: float) -> None:
        """Close all connections; one that is lent is closed when it comes back. Wait for `fill` at most `timeout`."""
        with self._changed:
            self._closed = True
            idle, self._idle = self._idle, []
            self._size -= len(idle)
            self._changed.notify_all()
            filling = self._filling
        if filling is not None:
            filling.join(timeout)
        for each in idle:
            each.close()

    def __del__(self) -> None:
        """Close the connections of a Keep that was forgotten; not in a forked child, where they are the parent's."""
        if self._process == os.getpid():
            for each in self._idle:
                each.close()

    def _has_room(self) -> bool:
        return bool(self._idle) or self._size < self.max_size or self._closed

    def _add(self) -> TimedConnection:
        """Make the connection that was counted already."""
        try:
            connection = self._connect()
        except BaseException as error:
            with self._changed:
                self._size -= 1
                if isinstance(error, psycopg.Error):
                    self._away_until, self._away_error = time.monotonic() + _AWAY_SECONDS, (type(error), str(error))
                self._changed.notify()
            raise
        now = time.monotonic()
        connection.made_at = connection.lent_at = now
        connection.expires_at = now + _LIFETIME * (0.95 + 0.05 * random())  # noqa: S311 - no secret
        if self._size < self.min_size:
            self.fill()
        return connection

    def _fill(self) -> None:
        try:
            while True:
                with self._changed:
                    if self._size >= self.min_size or self._closed:
                        return
                    self._size += 1
                self.putconn(self._add())
        except psycopg.Error:
            return  # whoever needs a connection reports it
        finally:
            with self._changed:
                self._filling = None
