"""Paths into plain values: how one is read, where it leads, and how it is written.

messages[3].content      a channel, an element by its number, a field
messages[-1]             counted from the end
messages[id=abc]         the message with that id
files["a b.txt"]         a key that has other characters: as a JSON string
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, TypeAlias

from threadkeep.engine.log.plain import type_of
from threadkeep.errors import Missing


class ById(NamedTuple):
    """The element with that id."""

    id: str


Token: TypeAlias = str | int | ById
Path: TypeAlias = tuple[Token, ...]
"""A channel, then keys, numbers of elements and ids."""
_STRING = re.compile(r'\["(?:[^"\\]|\\.)*"\]')
_BRACKET = re.compile(r"\[(?:(?P<number>-?\d{1,18})|id=(?P<id>[^\]]+))\]")
_NAME = re.compile(r"[^.\[\]]+")
_PLAIN_NAME = re.compile(r"[^.\[\]\s\"\\]+")


def parse(text: str) -> Path:
    """A path from its text; ValueError if it is none."""
    if not isinstance(text, str):
        raise TypeError(f"path must be a str, not {type(text).__name__}")
    tokens: list[Token] = []
    at = 0
    while at < len(text) or not tokens:
        at, token = _next(text, at, first=not tokens)
        tokens.append(token)
    return tuple(tokens)


def _next(text: str, at: int, *, first: bool) -> tuple[int, Token]:
    if (found := _STRING.match(text, at)) is not None:
        return found.end(), _key(found[0][1:-1], text)
    if not first and (found := _BRACKET.match(text, at)) is not None:
        return found.end(), ById(found["id"]) if found["id"] is not None else int(found["number"])
    dot = 0 if first else 1
    found = _NAME.match(text, at + dot) if first or text[at : at + 1] == "." else None
    if found is None:
        raise ValueError(f"{text!r} is no path, from {text[at:]!r} on: it looks like messages[-1].content")
    return found.end(), found[0]


def _key(quoted: str, text: str) -> str:
    try:
        return str(json.loads(quoted, strict=False))
    except ValueError as error:
        raise ValueError(f"{text!r} is no path: {quoted} is no string") from error


def written(path: Iterable[Token]) -> str:
    """A path as its text."""
    out = ""
    for token in path:
        if isinstance(token, ById):
            out += f"[id={token.id}]"
        elif isinstance(token, int):
            out += f"[{token}]"
        elif _PLAIN_NAME.fullmatch(token):
            out += f".{token}" if out else token
        else:
            out += f"[{json.dumps(token, ensure_ascii=False)}]"
    return out


def resolve(value: Any, path: Path, rest: Path) -> tuple[Path, Any]:
    """Where `rest` leads from the value at `path`: the whole path by keys and numbers alone, and what is there."""
    for token in rest:
        step = _step(value, token)
        if step is None:
            raise Missing(f"there is no {written((*path, token))}" + _instead(value, path))
        path, value = (*path, step), value[step]
    return path, value


def _step(value: Any, token: Token) -> str | int | None:
    """The key or number that a token means in a value; None if it has no such."""
    if isinstance(token, str):
        return token if isinstance(value, Mapping) and token in value else None
    if not isinstance(value, list):
        return None
    if isinstance(token, int):
        number = token + len(value) if token < 0 else token
        return number if 0 <= number < len(value) else None
    return next((n for n, element in enumerate(value) if element_id(element) == token.id), None)


def _instead(value: Any, path: Path) -> str:
    """What there is, for the message."""
    if isinstance(value, list):
        return f": {written(path)} has {len(value)} elements"
    if isinstance(value, Mapping):
        keys = ", ".join(map(str, list(value)[:8])) + (", …" if len(value) > 8 else "")
        return f": {written(path)} has {keys}" if keys else f": {written(path)} is empty"
    return f": {written(path)} is a single value"


def is_message(value: Any) -> bool:
    """Whether a plain value is a message: LangChain's, or a dict with a role and what was said."""
    if not isinstance(value, Mapping):
        return False
    return type_of(value).endswith(("Message", "MessageChunk")) or ("role" in value and "content" in value)


def message_id(value: Any) -> str | None:
    """The id of a message that has one."""
    found = value.get("id") if is_message(value) else None
    return found if isinstance(found, str) and found else None


def element_id(value: Any) -> str | None:
    """The id of any dict that has one."""
    found = value.get("id") if isinstance(value, Mapping) else None
    return str(found) if isinstance(found, (str, int)) else None
