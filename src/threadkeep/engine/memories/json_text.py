"""The values of memories as JSON text, which any database can hold, and back.

What JSON says is accepted, and nothing else: None, bool, int, finite float, str, list, tuple (it comes back as a list)
and dict with str keys; a subclass counts as its base. Databases take no NUL and no lone surrogate inside a string, so
strings and keys are escaped, each character for itself:

    U+0001 -> U+0001 "1"      U+0000 -> U+0001 "0"      a surrogate, say U+D83D -> U+0001 "d83d"

Equal values of equal types and order have equal text: `dump(load(text)) == text`. Nothing is escaped twice.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from typing import Any

DEEPEST = 200
"""How many containers may be inside each other."""

_LEAVES = frozenset({str, int, float, bool, type(None)})
_UNSTORABLE = re.compile("[\x00\x01\ud800-\udfff]")
_ESCAPED = re.compile("\x01(?:([01])|(d[89a-f][0-9a-f]{2}))")
_ASCII = json.JSONEncoder(check_circular=False, allow_nan=False, separators=(",", ":"))
_UNICODE = json.JSONEncoder(check_circular=False, ensure_ascii=False)
_DECODER = json.JSONDecoder()


def dump(value: Any) -> str:
    """A dict as compact JSON in ASCII, its keys in their order.

    What is not JSON raises TypeError; NaN, an infinite float, a value that contains itself, one that is nested deeper
    than `DEEPEST`, and an int with more digits than Python prints (`sys.get_int_max_str_digits`) raise ValueError.
    """
    if type(value) is dict and _is_plain(value, DEEPEST):
        text = _encode(value)
        if _is_clean(text, value):
            return text
    elif not isinstance(value, dict):
        raise TypeError(f"value must be a dict, not {type(value).__name__}")
    return _encode(_map_strings(to_plain_json(value), escape))


def load(text: str) -> dict[str, Any]:
    """The value that `dump` was given; ValueError if it is none."""
    value, end = _DECODER.raw_decode(text)
    if end != len(text):
        value = _DECODER.decode(text)  # there may be spaces after it, if others wrote it
    if type(value) is not dict:
        raise ValueError(f"a {type(value).__name__} in place of a dict")
    loaded: dict[str, Any] = _map_strings(value, _unescape) if "\\u0001" in text else value
    return loaded


def escape(text: str) -> str:
    """A string as it is stored. Different strings stay different, but their order may change where one was escaped."""
    return _UNSTORABLE.sub(_escape_character, text)


def to_plain_json(value: Any) -> Any:
    """A copy of a value in JSON's own types, or the error that `dump` would raise, with the place where it is wrong."""
    return _copy_plain(value, (), ())


def _is_plain(value: Any, deepest: int) -> bool:
    """Whether a dict, list or tuple has nothing but exact types in it; a float may still be NaN."""
    if deepest == 0:
        return False
    if type(value) is dict:
        for key in value:
            if type(key) is not str:
                return False
        value = value.values()
    for inner in value:
        kind = type(inner)
        if kind in _LEAVES:
            continue
        if kind is not dict and kind is not list and kind is not tuple:
            return False
        if not _is_plain(inner, deepest - 1):
            return False
    return True


def _encode(value: Any) -> str:
    try:
        return _ASCII.encode(value)
    except ValueError:
        to_plain_json(value)  # says where
        raise


def _is_clean(text: str, value: Any) -> bool:
    """Whether nothing had to be escaped in a text that was made of this value; a doubt is a no."""
    if "\\u000" in text and ("\\u0000" in text or "\\u0001" in text):
        return False
    return "\\ud" not in text or _is_unicode(value)


def _is_unicode(value: Any) -> bool:
    """Whether there is no surrogate in it. The ASCII text cannot tell: a pair of them looks like one character."""
    try:
        _UNICODE.encode(value).encode()
    except UnicodeEncodeError:
        return False
    return True


def _escape_character(found: re.Match[str]) -> str:
    return f"\x01{ord(found[0]):x}"


def _unescape(text: str) -> str:
    return _ESCAPED.sub(lambda found: chr(int(found[1] or found[2], 16)), text)


def _map_strings(value: Any, change: Callable[[str], str]) -> Any:
    """A plain value with all its strings and keys changed."""
    if type(value) is str:
        return change(value)
    if type(value) is dict:
        return {change(key): _map_strings(inner, change) for key, inner in value.items()}
    return [_map_strings(inner, change) for inner in value] if type(value) is list else value


def _copy_plain(value: Any, path: tuple[str | int, ...], around: tuple[int, ...]) -> Any:
    """The copy; `around` has the ids of the containers that the value is in."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        return int.__int__(value)
    if isinstance(value, float):
        return _check_finite(value, path)
    if not isinstance(value, (dict, list, tuple)):
        raise TypeError(f"{_path_text(path)} is a {type(value).__name__}, which is not JSON")
    around = _enter_container(value, path, around)
    if isinstance(value, dict):
        return {_check_key(key, path): _copy_plain(inner, (*path, key), around) for key, inner in value.items()}
    return [_copy_plain(inner, (*path, index), around) for index, inner in enumerate(value)]


def _check_finite(value: float, path: tuple[str | int, ...]) -> float:
    if not math.isfinite(value):
        raise ValueError(f"{_path_text(path)} is {float.__repr__(value)}, which is not JSON")
    return float.__float__(value)


def _check_key(key: Any, path: tuple[str | int, ...]) -> str:
    if not isinstance(key, str):
        raise TypeError(f"a key of {_path_text(path)} is of type {type(key).__name__}, not str")
    return str.__str__(key)


def _enter_container(value: Any, path: tuple[str | int, ...], around: tuple[int, ...]) -> tuple[int, ...]:
    if id(value) in around:
        raise ValueError(f"{_path_text(path)} contains itself")
    if len(around) == DEEPEST:
        raise ValueError(f"value is nested deeper than {DEEPEST}")
    return (*around, id(value))


def _path_text(path: tuple[str | int, ...]) -> str:
    return "value" + "".join(f"[{key!r}]" for key in path)
