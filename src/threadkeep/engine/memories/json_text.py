"""Memory values to JSON text that every database can store, and back.

Only JSON types are accepted: None, bool, int, finite float, str, list, tuple (read back as a list) and dict with str
keys; an instance of a subclass is stored as its base type. Databases reject NUL and lone surrogates inside strings, so
these characters are escaped in strings and keys:

    U+0001 -> U+0001 "1"      U+0000 -> U+0001 "0"      a surrogate, say U+D83D -> U+0001 "d83d"

Values that are equal in type, value and key order have equal text: `dump(load(text)) == text`. Nothing is escaped
twice.
"""

from __future__ import annotations

import json
import json.encoder
import math
import re
from collections.abc import Callable, Iterable
from typing import Any

import orjson

MAX_DEPTH = 250
"""The number of containers that may be nested."""

_LEAVES = frozenset({str, int, bool, type(None)})
_UNSTORABLE = re.compile("[\x00\x01\ud800-\udfff]")
_ESCAPED = re.compile("\x01(?:([01])|(d[89a-f][0-9a-f]{2}))")
_ASCII = json.JSONEncoder(check_circular=False, allow_nan=False, separators=(",", ":"))
_UNICODE = json.JSONEncoder(check_circular=False, ensure_ascii=False)
_DECODER = json.JSONDecoder()
_scan: Callable[[str, int], tuple[Any, int]] = _DECODER.scan_once  # type: ignore[attr-defined]


def _encoder() -> Callable[[Any, int], Iterable[str]]:
    """Return what `_ASCII.encode` makes anew for each value: the encoder in C, if this Python has it."""
    make = getattr(json.encoder, "c_make_encoder", None)
    if make is None:
        return lambda value, _: (_ASCII.encode(value),)
    encoder: Callable[[Any, int], Iterable[str]] = make(
        None, _ASCII.default, json.encoder.encode_basestring_ascii, None, ":", ",", False, False, False
    )
    return encoder


_encode_pieces = _encoder()


def dump(value: Any) -> str:
    """Return a dict as compact ASCII JSON, with its keys in their order.

    TypeError for a type that is not JSON. ValueError for NaN, an infinite float, a value that contains itself, one that
    is nested deeper than `MAX_DEPTH`, and an int with more digits than Python prints (`sys.get_int_max_str_digits`).
    """
    if type(value) is dict and (kinds := _find_kinds(value, MAX_DEPTH)):
        text = _encode(value) if kinds == _WITH_FLOATS else _encode_fast(value)
        if "\\u" not in text or _is_clean_json(text, value):
            return text
    elif not isinstance(value, dict):
        raise TypeError(f"value must be a dict, not {type(value).__name__}")
    return _encode(_map_strings(to_plain_json(value), escape))


def load(text: str) -> dict[str, Any]:
    """Return the value that `dump` was given; ValueError if the text is not a JSON object."""
    try:
        value, end = _scan(text, 0)
    except StopIteration:
        value, end = _DECODER.raw_decode(text)  # raises the error
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if end != len(text):
        value = _DECODER.decode(text)  # spaces may follow, if another program wrote it
    if type(value) is not dict:
        raise ValueError(f"expected a JSON object, not {type(value).__name__}")
    loaded: dict[str, Any] = _map_strings(value, _unescape) if "\\u0001" in text else value
    return loaded


def load_all(texts: Iterable[str]) -> list[dict[str, Any]]:
    """Return what `load` returns for each text. No Python call for a text that has nothing unusual."""
    values: list[dict[str, Any]] = []
    for text in texts:
        try:
            value, end = _scan(text, 0)
        except (StopIteration, RecursionError):
            value, end = None, -1  # `load` raises the error
        if end != len(text) or type(value) is not dict or "\\u0001" in text:
            value = load(text)
        values.append(value)
    return values


def escape(text: str) -> str:
    """Return a string as it is stored. Different strings stay different, but escaped ones may sort differently."""
    return _UNSTORABLE.sub(_escape_character, text)


def is_clean(text: str) -> bool:
    """Whether `escape` returns this string as it is."""
    return _UNSTORABLE.search(text) is None


def to_plain_json(value: Any) -> Any:
    """Return a copy of a value in plain JSON types, or raise the error of `dump`, with the path of what is wrong."""
    return _copy_plain(value, (), ())


_NOT_PLAIN, _WITH_FLOATS, _WITHOUT_FLOATS = 0, 1, 2


def _find_kinds(value: Any, depth: int) -> int:
    """Return whether a dict, list or tuple contains only exact JSON types, and whether floats, which may be NaN.

    Its elements are listed first: other threads may change it meanwhile.
    """
    if depth == 0:
        return _NOT_PLAIN
    if type(value) is dict:
        for key in list(value):
            if type(key) is not str:
                return _NOT_PLAIN
        value = value.values()
    kinds = _WITHOUT_FLOATS
    for inner in list(value):
        kind = type(inner)
        if kind in _LEAVES:
            continue
        if kind is dict or kind is list or kind is tuple:
            kinds = min(kinds, _find_kinds(inner, depth - 1))
            if kinds == _NOT_PLAIN:
                return _NOT_PLAIN
        elif kind is float:
            kinds = _WITH_FLOATS
        else:
            return _NOT_PLAIN
    return kinds


def _encode_fast(value: Any) -> str:
    """Return what `_encode` returns, for a value without floats: orjson takes a sixth of the time.

    It writes floats in another way, and leaves characters beyond ASCII as they are: then `_encode` encodes the value.
    """
    try:
        data = orjson.dumps(value)
    except TypeError:  # an int of more than 64 bits, or a lone surrogate
        return _encode(value)
    return data.decode() if data.isascii() and b"\x7f" not in data else _encode(value)


def _encode(value: Any) -> str:
    try:
        return "".join(_encode_pieces(value, 0))
    except ValueError:
        to_plain_json(value)  # its error has the path
        raise


def _is_clean_json(text: str, value: Any) -> bool:
    """Whether nothing in this text, made from this value, needs escaping. May be False in doubt."""
    if "\\u000" in text and ("\\u0000" in text or "\\u0001" in text):
        return False
    return "\\ud" not in text or _is_unicode(value)


def _is_unicode(value: Any) -> bool:
    """Whether a value has no lone surrogate. Its ASCII text cannot tell: two surrogates look like one character."""
    try:
        _UNICODE.encode(value).encode()
    except UnicodeEncodeError:
        return False
    return True


def _escape_character(match: re.Match[str]) -> str:
    return f"\x01{ord(match[0]):x}"


def _unescape(text: str) -> str:
    return _ESCAPED.sub(lambda match: chr(int(match[1] or match[2], 16)), text)


def _map_strings(value: Any, change: Callable[[str], str]) -> Any:
    """Return a plain value with `change` applied to all its strings and keys."""
    if type(value) is str:
        return change(value)
    if type(value) is dict:
        return {change(key): _map_strings(inner, change) for key, inner in value.items()}
    return [_map_strings(inner, change) for inner in value] if type(value) is list else value


def _copy_plain(value: Any, path: tuple[str | int, ...], parents: tuple[int, ...]) -> Any:
    """Copy a value. `parents` has the ids of the containers that it is in."""
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
    parents = _enter_container(value, path, parents)
    if isinstance(value, dict):
        return {_check_key(key, path): _copy_plain(inner, (*path, key), parents) for key, inner in list(value.items())}
    return [_copy_plain(inner, (*path, index), parents) for index, inner in enumerate(list(value))]


def _check_finite(value: float, path: tuple[str | int, ...]) -> float:
    if not math.isfinite(value):
        raise ValueError(f"{_path_text(path)} is {float.__repr__(value)}, which is not JSON")
    return float.__float__(value)


def _check_key(key: Any, path: tuple[str | int, ...]) -> str:
    if not isinstance(key, str):
        raise TypeError(f"a key of {_path_text(path)} is of type {type(key).__name__}, not str")
    return str.__str__(key)


def _enter_container(value: Any, path: tuple[str | int, ...], parents: tuple[int, ...]) -> tuple[int, ...]:
    if id(value) in parents:
        raise ValueError(f"{_path_text(path)} contains itself")
    if len(parents) == MAX_DEPTH:
        raise ValueError(f"value is nested deeper than {MAX_DEPTH} levels")
    return (*parents, id(value))


def _path_text(path: tuple[str | int, ...]) -> str:
    return "value" + "".join(f"[{key!r}]" for key in path)
