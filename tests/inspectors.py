"""Inspectors to test: an HTTP client of one in this process, and one that is served to a browser."""

from __future__ import annotations

from contextlib import asynccontextmanager
from html import unescape
from typing import Any
from urllib.parse import urlencode

import httpx

HOST = "inspector.test"


def always(request: Any) -> bool:
    return True


@asynccontextmanager
async def client(app: Any, **options: Any):
    """Provide a client of an application that serves `HOST`."""
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url=f"http://{HOST}", **options) as made:
        yield made


async def page(app: Any, path: str, status: int = 200, /, **query: Any) -> str:
    """Return the text of a page that must have this status."""
    async with client(app) as http:
        answer = await http.get(f"/{path}?{urlencode(query, doseq=True)}")
    assert answer.status_code == status, unescape(answer.text)
    return answer.text
