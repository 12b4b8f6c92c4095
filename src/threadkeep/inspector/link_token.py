"""The token in the link that `threadkeep inspect` opens. It is exchanged for a cookie, and leaves the address."""

from __future__ import annotations

import secrets

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

TOKEN = "token"  # noqa: S105 - the name of the parameter


class LinkToken:
    """Lets in browsers that opened the link: `exchange` gives them the cookie that `__call__` asks for.

    Cookies are shared by all ports of a host, so the name of this one contains the port.
    """

    def __init__(self, port: int) -> None:
        self.token = secrets.token_urlsafe(32)
        self._session = secrets.token_urlsafe(32)
        self._cookie = f"threadkeep-{port}"

    def __call__(self, request: Request) -> bool:
        """Return whether a request has the cookie."""
        return secrets.compare_digest(request.cookies.get(self._cookie, "").encode(), self._session.encode())

    def exchange(self, request: Request) -> Response | None:
        """Return a redirect with the cookie, to the same page without the token. None if there is no right token."""
        given = request.query_params.get(TOKEN, "")
        if not secrets.compare_digest(given.encode(), self.token.encode()):
            return None
        url = request.url.remove_query_params(TOKEN)
        path = "/" + url.path.lstrip("/")  # two slashes would name another host
        response = RedirectResponse(f"{path}?{url.query}" if url.query else path, 303)
        response.set_cookie(self._cookie, self._session, httponly=True, samesite="strict", path="/")
        return response
