"""The ASGI application of the inspector: its routes, and errors as pages that say what to do next."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Any
from urllib.parse import parse_qs

from jinja2 import Environment
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, HTMLResponse, RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp

from threadkeep import Keep
from threadkeep.errors import Corrupt, Missing, ReadOnly, ThreadkeepError, Unavailable
from threadkeep.inspector import csrf
from threadkeep.inspector.guard import Authorize, Guard
from threadkeep.inspector.inspected import USER_KEYS, Inspected
from threadkeep.inspector.pages import (
    blame,
    branches,
    change,
    checkpoint,
    diff,
    export,
    flow,
    health,
    memories,
    play,
    search,
    sizes,
    thread,
    threads,
    usage,
    value,
    waiting,
)
from threadkeep.inspector.query import QueryParameters
from threadkeep.inspector.rendering import Links, environment
from threadkeep.jobs.catalogue import as_columns

PAGES = {
    "": threads,
    "search": search,
    "waiting": waiting,
    "thread": thread,
    "checkpoint": checkpoint,
    "value": value,
    "diff": diff,
    "blame": blame,
    "play": play,
    "flow": flow,
    "branches": branches,
    "usage": usage,
    "memories": memories,
    "sizes": sizes,
    "health": health,
}
"""The pages that only read, by their path. Each is rendered with the template that has its module's name."""
_STATUS_CODES = {Missing: 404, ReadOnly: 403, Unavailable: 503, Corrupt: 500, ThreadkeepError: 409}
_LARGEST_FORM = 1_000_000


def app(
    keep: Keep,
    *,
    write: bool = False,
    authorize: Authorize | None = None,
    allowed_hosts: Iterable[str] | None = None,
    user_keys: Iterable[str] = USER_KEYS,
) -> ASGIApp:
    """Return an ASGI application that shows what a Keep stores, for its tenant only. It can be mounted below a path.

    `authorize` is called with each request (Starlette's), and may be async; only True lets it pass. Without it, every
    request is refused. `allowed_hosts` are the names in the Host header that are served, by default only this machine's
    (`127.0.0.1`, `localhost`, `[::1]`); `*` means any. `write` adds pages that change threads. `user_keys` are keys of
    metadata: the first of them that a thread has names its user. ValueError for `write` without `authorize`. The Keep
    remains yours to close.
    """
    if write and authorize is None:
        raise ValueError("write=True needs authorize=: a function that decides who may change threads")
    shown = Inspected(keep, write=write, user_keys=as_columns(user_keys))
    return inspector(shown, authorize=authorize, allowed_hosts=allowed_hosts)


def inspector(shown: Inspected, *, authorize: Authorize | None, allowed_hosts: Iterable[str] | None = None) -> ASGIApp:
    """Return the application for everything that can be inspected."""
    site = _Site(shown, environment(shown.redaction))
    routes = [
        *(Route(f"/{path}", site.page(path or "threads", module.page)) for path, module in PAGES.items()),
        Route("/export", site.export),
        Mount("/static", StaticFiles(packages=[("threadkeep.inspector", "static")])),
    ]
    if shown.write:
        routes.append(Route("/change", site.change, methods=["GET", "POST"]))
    handlers: dict[Any, Any] = dict.fromkeys(
        (ThreadkeepError, ValueError, TypeError, OSError, HTTPException, Exception), site.error
    )
    return Guard(
        Starlette(routes=routes, exception_handlers=handlers),
        authorize=authorize,
        allowed_hosts=allowed_hosts,
        write=shown.write,
    )


class _Site:
    """Turns requests into calls of pages, and what these return into HTML."""

    def __init__(self, shown: Inspected, templates: Environment) -> None:
        self._shown = shown
        self._templates = templates
        self._forms = csrf.FormTokens()

    def page(
        self, name: str, page: Callable[[Inspected, QueryParameters], Awaitable[dict[str, Any]]]
    ) -> Callable[[Request], Awaitable[Response]]:
        """Return the endpoint of a page."""

        async def endpoint(request: Request) -> Response:
            found = await page(self._shown, _query_of(request))
            return HTMLResponse(self._render(request, name, found))

        return endpoint

    async def export(self, request: Request) -> Response:
        """Send a thread as a portable file, redacted."""
        file = await export.redacted(self._shown, _query_of(request))
        remove = BackgroundTask(export.remove, file)
        return FileResponse(file, filename=export.NAME, media_type="application/zstd", background=remove)

    async def change(self, request: Request) -> Response:
        """Ask before a change, and make it when the form comes back."""
        cookie, token = self._forms.issue(request)
        if request.method == "POST":
            form = QueryParameters(_fields((await _body(request)).decode("utf-8", "replace")))
            problem = self._forms.problem(request, form.text(csrf.FIELD))
            if problem is not None:
                raise HTTPException(403, problem)
            done = await change.make(self._shown, form)
            return RedirectResponse(str(_links(request)(done.page, **done.parameters).unescape()), 303)
        found = await change.page(self._shown, _query_of(request))
        response = HTMLResponse(self._render(request, "change", found | {"csrf": token}))
        self._forms.set_cookie(request, response, cookie)
        return response

    async def error(self, request: Request, error: Exception) -> Response:
        """Show an error as a page."""
        code = error.status_code if isinstance(error, HTTPException) else _status_code(error)
        message = error.detail if isinstance(error, HTTPException) else str(error)
        found = {"code": code, "message": message, "error": type(error).__name__, "query": _query_of(request)}
        return HTMLResponse(self._render(request, "error", found), code)

    def _render(self, request: Request, name: str, found: dict[str, Any]) -> bytes:
        path = request.scope["path"].removeprefix(request.scope.get("root_path", "")).strip("/")
        is_of_thread = found.get("place") is not None
        common = {
            "shown": self._shown,
            "link": _links(request),
            "path": path,
            "section": "" if is_of_thread else path,
            "is_of_thread": is_of_thread,
            "notice": change.NOTICES.get(_query_of(request).text("done")),
        }
        page = self._templates.get_template(f"{name}.html").render(common | found)
        return page.encode("utf-8", "backslashreplace")  # a stored text may have lone surrogates


def _links(request: Request) -> Links:
    return Links(request.scope.get("root_path", ""))


def _query_of(request: Request) -> QueryParameters:
    return QueryParameters(_fields(request.scope["query_string"].decode("ascii", "replace")))


def _fields(text: str) -> dict[str, list[str]]:
    """The fields of a query or a form. An id may have lone surrogates, as links write them."""
    try:
        return parse_qs(text, keep_blank_values=True, errors="surrogatepass")
    except UnicodeDecodeError:
        return parse_qs(text, keep_blank_values=True)


async def _body(request: Request) -> bytes:
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > _LARGEST_FORM:
            raise HTTPException(413, f"a form must not be larger than {_LARGEST_FORM:,} bytes")
    return body


def _status_code(error: Exception) -> int:
    known = next((code for kind, code in _STATUS_CODES.items() if isinstance(error, kind)), None)
    return known or (400 if isinstance(error, (ValueError, TypeError)) else 500)
