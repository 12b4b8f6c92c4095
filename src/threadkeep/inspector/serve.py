"""Serve the inspector of one storage on this machine, behind a link with a token."""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import uvicorn
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from threadkeep.inspector.application import inspector
from threadkeep.inspector.guard import LOOPBACK
from threadkeep.inspector.inspected import Inspected
from threadkeep.inspector.link_token import TOKEN, LinkToken

_LEAVE_SECONDS = 2
"""How long Ctrl-C waits for answers that have begun."""


class Listening(NamedTuple):
    """A server that has its port: `run` serves until the process is interrupted or `stop` is called."""

    link: str
    server: uvicorn.Server
    socket: socket.socket

    def run(self) -> None:
        """Serve."""
        logging.getLogger("uvicorn.error").addFilter(_is_no_cancellation)
        self.server.run(sockets=[self.socket])

    def stop(self) -> None:
        """Let `run` return, from another thread."""
        self.server.should_exit = True


@contextmanager
def listen(shown: Inspected, *, host: str = LOOPBACK[0], port: int = 0) -> Iterator[Listening]:
    """Take a port, by default any free one. OSError if it is taken."""
    with _server_socket(host, port) as taken:
        token = LinkToken(taken.getsockname()[1])
        name = f"[{host}]" if ":" in host else host
        app = inspector(shown, authorize=token, allowed_hosts={*LOOPBACK, name})
        config = uvicorn.Config(
            _ending_quietly(app),
            log_level="warning",
            access_log=False,
            server_header=False,
            lifespan="off",
            timeout_graceful_shutdown=_LEAVE_SECONDS,
        )
        link = f"http://{name}:{taken.getsockname()[1]}/?{TOKEN}={token.token}"
        yield Listening(link, uvicorn.Server(config), taken)


def _is_no_cancellation(record: logging.LogRecord) -> bool:
    return "graceful shutdown" not in record.msg


def _ending_quietly(app: ASGIApp) -> ASGIApp:
    """Return an application that answers with one line, and logs no error, if the server ends before it can answer."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await app(scope, receive, send)
        except asyncio.CancelledError:
            await PlainTextResponse("The inspector was stopped.\n", 503)(scope, receive, send)

    return answer


def _server_socket(host: str, port: int) -> socket.socket:
    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
        raise OSError(f"port {port} is in use: choose another one with --port, or none for any free one") from error
