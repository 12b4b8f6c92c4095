"""Paths into plain values: parse, format and resolve texts such as `messages[-1].content`.

messages[3].content      a channel, a list index, a field
messages[-1]             counted from the end
messages[id=abc]         the message with that id
files["a b.txt"]         a key with other characters, as a JSON string
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, TypeAlias

from threadkeep.errors import Missing


class ById(NamedTuple):
    """The list element with this id."""

    id: str


Token: TypeAlias = str | int | ById
Path: TypeAlias = tuple[Token, ...]
"""A channel, then keys, list indexes and ids."""
_STRING = re.compile(r'\["(?:[^"\\]|\\.)*"\]')
_BRACKET = re.compile(r"\[(?:(?P<index>-?\d{1,18})|id=(?P<id>[^\]]+))\]")
_NAME = re.compile(r"[^.\[\]]+")
_PLAIN_NAME = re.compile(r"[^.\[\]\s\"\\]+")
_SHOWN_KEYS = 8


def parse(text: str) -> Path:
    """Parse a path. ValueError if the text is not one."""
    if not isinstance(text, str):
        raise TypeError(f"path must be a str, not {type(text).__name__}")
    tokens: list[Token] = []
    position = 0
    while position < len(text) or not tokens:
        position, token = _next_token(text, position, first=not tokens)
        tokens.append(token)
    return tuple(tokens)


def _next_token(text: str, position: int, *, first: bool) -> tuple[int, Token]:
    """The token at a position, and the position after it."""
    if (found := _STRING.match(text, position)) is not None:
        return found.end(), _parse_key(found[0][1:-1], text)
    if not first and (found := _BRACKET.match(text, position)) is not None:
        return found.end(), ById(found["id"]) if found["id"] is not None else int(found["index"])
    dot = 0 if first else 1
    found = _NAME.match(text, position + dot) if first or text[position : position + 1] == "." else None
    if found is None:
        raise ValueError(f"invalid path {text!r} at {text[position:]!r}: a path looks like messages[-1].content")
    return found.end(), found[0]


def _parse_key(quoted: str, text: str) -> str:
    try:
        return str(json.loads(quoted, strict=False))
    except ValueError as error:
        raise ValueError(f"invalid path {text!r}: {quoted} is not a JSON string") from error


def format_path(path: Iterable[Token]) -> str:
    """Format a path as text; `parse` is the inverse."""
    text = ""
    for token in path:
        if isinstance(token, ById):
            text += f"[id={token.id}]"
        elif isinstance(token, int):
            text += f"[{token}]"
        elif _PLAIN_NAME.fullmatch(token):
            text += f".{token}" if text else token
        else:
            text += f"[{json.dumps(token, ensure_ascii=False)}]"
    return text


def resolve(value: Any, path: Path, rest: Path) -> tuple[Path, Any]:
    """Follow `rest` from the value at `path`; return the full path, as keys and indexes only, and the value there.

    Missing if there is nothing at it.
    """
    for token in rest:
        key = _resolve_token(value, token)
        if key is None:
            raise Missing(f"{format_path((*path, token))} not found: {_describe(value, path)}")
        path, value = (*path, key), value[key]
    return path, value


def _resolve_token(value: Any, token: Token) -> str | int | None:
    """The key or index that a token stands for in a value; None if the value does not have it."""
    if isinstance(token, str):
        return token if isinstance(value, Mapping) and token in value else None
    if not isinstance(value, list):
        return None
    if isinstance(token, int):
        index = token + len(value) if token < 0 else token
        return index if 0 <= index < len(value) else None
    return next((n for n, element in enumerate(value) if element_id(element) == token.id), None)


def _describe(value: Any, path: Path) -> str:
    """What a value has instead of the wanted token."""
    name = format_path(path)
    if isinstance(value, list):
        return f"{name} has {len(value)} elements"
    if isinstance(value, Mapping):
        keys = ", ".join(map(str, list(value)[:_SHOWN_KEYS])) + (", …" if len(value) > _SHOWN_KEYS else "")
        return f"{name} has {keys}" if keys else f"{name} is empty"
    return f"{name} is neither a list nor a dict"


def element_id(value: Any) -> str | None:
    """The id of any dict that has one."""
    found = value.get("id") if isinstance(value, Mapping) else None
    return str(found) if isinstance(found, (str, int)) else None
