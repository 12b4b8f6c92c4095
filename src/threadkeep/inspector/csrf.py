"""Tokens that every form of the write mode carries, so that no other site can send one: a cookie, and its signature."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.responses import Response

FIELD = "csrf"
_COOKIE = "threadkeep-form"
_SAME, _NO_ORIGIN = "same-origin", "null"
"""What browsers say of our own forms. They name no origin because our pages ask them to send no referrer."""


class FormTokens:
    """Makes and checks the tokens of one process."""

    def __init__(self) -> None:
        self._secret = secrets.token_bytes(32)

    def issue(self, request: Request) -> tuple[str, str]:
        """Return the value of the cookie, a new one if the browser has none, and the token for a form."""
        cookie = request.cookies.get(_COOKIE) or secrets.token_urlsafe(32)
        return cookie, self._sign(cookie)

    def set_cookie(self, request: Request, response: Response, cookie: str) -> None:
        """Give the browser its cookie. One that it got by HTTPS is never sent without."""
        path, secure = request.scope.get("root_path") or "/", request.url.scheme == "https"
        response.set_cookie(_COOKIE, cookie, httponly=True, samesite="strict", path=path, secure=secure)

    def problem(self, request: Request, token: str) -> str | None:
        """Return why a form is refused; None if it comes from one of our pages."""
        origin = request.headers.get("origin", _NO_ORIGIN)
        own = origin == _NO_ORIGIN or urlsplit(origin).netloc.casefold() == request.headers.get("host", "").casefold()
        if not own or request.headers.get("sec-fetch-site", _SAME) != _SAME:
            return "this form was sent from another site"
        cookie = request.cookies.get(_COOKIE, "")
        if not cookie or not hmac.compare_digest(self._sign(cookie).encode(), token.encode()):
            return "this form is too old, or was not sent from a page of this inspector: open the page again"
        return None

    def _sign(self, cookie: str) -> str:
        return hmac.new(self._secret, cookie.encode(), hashlib.sha256).hexdigest()
