"""Who may ask for what. Around the whole application: hosts, methods, authorization, and headers of every answer."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeAlias

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from threadkeep.inspector.link_token import LinkToken

Authorize: TypeAlias = Callable[[Request], bool | Awaitable[bool]]
LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
NOT_MOUNTED_FOR_ANYONE = (
    "The inspector refuses every request, because it was mounted without authorize=: "
    "pass a function that gets the request and returns whether it may see the storage."
)
_OPEN_THE_LINK = "Open the link that `threadkeep inspect` printed: it contains the token that lets this browser in."
_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}


class Guard:
    """An ASGI application that passes on what is allowed and answers the rest itself.

    Only hosts in `allowed_hosts` are served: a site whose name points to this machine gets nothing (DNS rebinding).
    Without `write`, only GET and HEAD. `authorize` decides about each request; without it, none passes.
    """

    def __init__(
        self, app: ASGIApp, *, authorize: Authorize | None, allowed_hosts: Iterable[str] | None, write: bool
    ) -> None:
        self._app = app
        self._authorize = authorize
        if isinstance(allowed_hosts, str):
            raise TypeError(f"allowed_hosts must be a list of names, not {allowed_hosts!r}")
        named = LOOPBACK if allowed_hosts is None else allowed_hosts
        self._hosts = {_without_port(host).casefold() for host in named}
        self._methods = ("GET", "HEAD", "POST") if write else ("GET", "HEAD")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or let the application answer it."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
        else:
            answer = await self._refusal(Request(scope)) or self._app
            await answer(scope, receive, _with_headers(send))

    async def _refusal(self, request: Request) -> Response | None:
        """Return the answer to a request that is not passed on; None for one that is."""
        host = _without_port(request.headers.get("host", ""))
        if host.casefold() not in self._hosts and "*" not in self._hosts:
            return _text(f"The host {host!r} is not allowed: pass allowed_hosts= to serve it.", 421)
        if request.method not in self._methods:
            why = "" if "POST" in self._methods else "The inspector is read-only here: "
            return _text(f"{why}{request.method} is not allowed.", 405)
        if self._authorize is None:
            return _text(NOT_MOUNTED_FOR_ANYONE, 403)
        if isinstance(self._authorize, LinkToken):
            return self._authorize.exchange(request) or (
                None if self._authorize(request) else _text(_OPEN_THE_LINK, 401)
            )
        allowed = self._authorize(request)
        allowed = await allowed if inspect.isawaitable(allowed) else allowed
        return None if allowed is True else _text("You are not authorized to use this inspector.", 403)


def _with_headers(send: Send) -> Send:
    async def send_with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in _HEADERS.items():
                headers[name] = value
            headers.setdefault("Cache-Control", "no-store")
        await send(message)

    return send_with_headers


def _without_port(host: str) -> str:
    name, colon, port = host.rpartition(":")
    return name if colon and port.isdigit() else host


def _text(text: str, status: int) -> Response:
    return PlainTextResponse(text + "\n", status)
