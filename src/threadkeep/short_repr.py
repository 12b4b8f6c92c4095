"""The repr of results: one short line, whatever they contain."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from threadkeep.plural import plural

_MOST, _MOST_ITEMS = 60, 10
"""The longest text or list that is shown, in characters and items; of a longer list, only the number of items is."""
_BRACKETS: dict[type, str] = {tuple: "()", list: "[]", dict: "{}", frozenset: "{}", set: "{}"}


def short_repr(result: Any) -> str:
    """Return the class and the fields of a dataclass; not those that are empty, and of long values only the size.

    A class uses it as its `__repr__`.
    """
    fields = ((name, getattr(result, name)) for name in result.__dataclass_fields__)
    shown = ", ".join(f"{name}={_short(value)}" for name, value in fields if not _is_empty(value))
    return f"{type(result).__qualname__}({shown})"


def _is_empty(value: Any) -> bool:
    return value is None or (type(value) in _BRACKETS and not value)


def _short(value: Any) -> str:
    if isinstance(value, datetime):
        return value.isoformat(" ", "seconds")
    if isinstance(value, (str, bytes)):
        return repr(value) if len(value) <= _MOST else f"{value[: _MOST - 1]!r}…"
    if type(value) in _BRACKETS:
        return _short_collection(value)
    text = repr(value)
    return text if len(text) <= 2 * _MOST else f"<{type(value).__qualname__}>"


def _short_collection(value: Any) -> str:
    inner = [*value, *value.values()] if isinstance(value, dict) else value
    if len(value) <= _MOST_ITEMS and all(map(_is_plain, inner)) and len(repr(value)) <= _MOST:
        return repr(value)
    brackets = _BRACKETS[type(value)]
    return f"{brackets[0]}{plural(len(value), 'item')}{brackets[1]}"


def _is_plain(value: Any) -> bool:
    return value is None or type(value) in (int, float, bool) or (type(value) is str and len(value) <= _MOST)
