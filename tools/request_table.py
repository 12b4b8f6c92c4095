"""The table of requests in docs/explanation/plans.md: every subclass of `Request` in the engine and the backends."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
from collections.abc import Iterator
from types import ModuleType
from typing import Any, get_args, get_origin

from sentences import first_sentence
from threadkeep import backends, engine
from threadkeep.plan import Request

HEAD = "| request | module | kind | reply | |\n|---|---|---|---|---|"


def request_table() -> str:
    """Return the table, one row for each request, in the order of modules and definitions."""
    return "\n".join([HEAD, *map(_row, requests())])


def requests() -> list[type[Request[Any]]]:
    """Return every request class."""
    return [
        value
        for module in _modules()
        for value in vars(module).values()
        if inspect.isclass(value) and issubclass(value, Request) and value.__module__ == module.__name__
    ]


def _modules() -> Iterator[ModuleType]:
    for package in (engine, backends):
        for info in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            yield importlib.import_module(info.name)


def _row(request: type[Request[Any]]) -> str:
    module = request.__module__.removeprefix("threadkeep.").replace(".", "/") + ".py"
    reply = reply_type(request).replace("|", "\\|")
    purpose = first_sentence(request.__doc__).replace("|", "\\|")
    return f"| `{request.__name__}` | `{module}` | {kind(request)} | `{reply}` | {purpose} |"


def kind(request: type[Request[Any]]) -> str:
    """Return "write" or "read", as the class declares in `access`; "wait" for a read that returns nothing."""
    if request.access.writes:
        return "write, repeatable" if request.access.repeatable else "write"
    return "wait" if reply_type(request) == "None" else "read"


def reply_type(request: type[Request[Any]]) -> str:
    """Return the type of the reply as an annotation spells it, without the names of modules."""
    bases = getattr(request, "__orig_bases__", ())
    (reply,) = (get_args(base)[0] for base in bases if get_origin(base) is Request)
    spelled = inspect.formatannotation(reply)
    return re.sub(r"\b(?:\w+\.)+(?=\w)", "", spelled).replace("NoneType", "None")
