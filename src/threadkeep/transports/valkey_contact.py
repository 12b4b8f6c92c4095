"""The first contact with Valkey or Redis: connect in a thread of its own, which callers wait for only briefly.

Nobody knows yet whether the address is right. So a server that refuses, or a name that cannot be resolved, is reported
within three seconds. A server that has accepted a connection and does not reply may be busy or starting.
"""

from __future__ import annotations

import threading
import time

from redis import exceptions as errors

from threadkeep.transports.valkey_nodes import DENIED, LOST, Cluster, SingleServer, ValkeyOptions, connect

_SECONDS = 2.5
"""How long a caller waits for an answer."""
_REFUSED_SECONDS = 0.5
"""How long to go on if no server can be reached: one may just be starting."""
_PAUSE = 0.1


class FirstContact:
    """Connects until a server answers, at most for the timeout of the options. `error` is that of the last try."""

    def __init__(self, options: ValkeyOptions) -> None:
        self.error: Exception | None = None
        self._servers: SingleServer | Cluster | None = None
        self._options = options
        self._has_ended = threading.Event()
        self._is_cancelled = threading.Event()
        threading.Thread(target=self._run, name="threadkeep-valkey", daemon=True).start()

    def wait(self) -> SingleServer | Cluster | None:
        """Return the servers; None if there is no answer yet."""
        self._has_ended.wait(min(_SECONDS, self._options.timeout))
        return self._servers

    @property
    def was_answered(self) -> bool:
        """Whether a server has accepted a connection, so that the address is right."""
        if self.error is None or str(self.error) == "Timeout connecting to server":
            return False
        return isinstance(self.error, (errors.TimeoutError, errors.BusyLoadingError))

    @property
    def has_failed(self) -> bool:
        """Whether it has ended without an answer."""
        return self._has_ended.is_set() and self._servers is None

    def cancel(self) -> None:
        """End soon; nobody needs the servers any more."""
        self._is_cancelled.set()

    def _run(self) -> None:
        began = time.monotonic()
        while self._servers is None and not self._is_cancelled.is_set():
            try:
                self._servers = connect(self._options)
            except Exception as error:  # noqa: BLE001 - whoever waits gets it
                self.error = error
                if isinstance(error, DENIED) or not isinstance(error, LOST):
                    break
                limit = self._options.timeout if self.was_answered else _REFUSED_SECONDS
                if time.monotonic() - began > min(limit, self._options.timeout):
                    break
                self._is_cancelled.wait(_PAUSE)
        self._has_ended.set()
        if self._is_cancelled.is_set() and self._servers is not None:
            self._servers.close()
