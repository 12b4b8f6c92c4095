"""The inspector: web pages that show what is in a storage, for the command `threadkeep inspect` or inside your own app.

    application.py  `app(keep, …)`: the ASGI application, its routes and its errors
    guard.py        who may ask for what: hosts, methods, authorization, headers
    link_token.py   the token in the link that the command opens
    csrf.py         tokens that a form of the write mode must carry
    inspected.py    what is shown: a Keep, its name, what is redacted
    trees.py        trees of threads that were shown lately
    foreign.py      databases of other savers, read into the memory of this process
    pages/          one module for each page: from a query to the data that its template shows
    rendering.py    the templates, and the filters and links that they use
    templates/, static/   Jinja templates, one style sheet, scripts; nothing is loaded from elsewhere

A page calls verbs of the Keep and formats what they return; it knows nothing of HTTP. Nothing is changed except in the
write mode, by `pages/change.py`. Needs the extra: pip install "threadkeep[inspect]".
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from threadkeep.inspector.application import app

__all__ = ["app"]


def __getattr__(name: str) -> Any:
    """Import the application when it is first used: the web framework is an extra."""
    if name != "app":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        from threadkeep.inspector import application  # noqa: PLC0415 - on use
    except ImportError as error:
        raise ImportError(f'the inspector needs {error.name}: pip install "threadkeep[inspect]"') from error
    return application.app
