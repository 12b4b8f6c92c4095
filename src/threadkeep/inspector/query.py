"""The query of a page's address, read by type. A value that does not fit raises ValueError, which becomes a message."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from threadkeep.engine.identity import Kind, as_kind

MAX_NUMBER = 10**9


class QueryParameters(NamedTuple):
    """The parameters of an address, or the fields of a form. The last one of a name counts."""

    fields: Mapping[str, Sequence[str]]

    def text(self, name: str, default: str = "") -> str:
        """Return a text. `default` if it is missing."""
        return self.fields[name][-1] if self.fields.get(name) else default

    def optional(self, name: str) -> str | None:
        """Return a text; None if it is missing or empty."""
        return self.text(name).strip() or None

    def id(self, name: str) -> str | None:
        """Return an id, exactly as it is given; None if it is missing or empty."""
        return self.text(name) or None

    def kind(self, name: str = "kind") -> Kind | None:
        """Return a kind of threads; None if it is missing or empty."""
        return as_kind(self.optional(name))

    def required(self, name: str) -> str:
        """Return a text that must be there."""
        if not self.fields.get(name):
            raise ValueError(f"this page needs {name!r} in its address")
        return self.fields[name][-1]

    def number(self, name: str, default: int = 0) -> int:
        """Return a number that is 0 or more."""
        given = self.optional(name)
        return default if given is None else _number(name, given)

    def optional_number(self, name: str) -> int | None:
        """Return a number that is 0 or more; None if it is missing or empty."""
        given = self.optional(name)
        return None if given is None else _number(name, given)

    def flag(self, name: str) -> bool:
        """Return whether something is switched on."""
        return self.text(name) not in ("", "0")

    def conditions(self, name: str) -> dict[str, Any]:
        """Return conditions such as `user=u7 rank=3`, or a JSON object. A value is JSON if it parses as JSON."""
        text = self.text(name).strip()
        if text.startswith("{"):
            return _json_object(name, text)
        pairs = [pair.partition("=") for pair in text.split()]
        if any(not equals or not key for key, equals, _ in pairs):
            raise ValueError(f"{name}: write KEY=VALUE, several separated by spaces, or a JSON object")
        return {key: json_or_text(value) for key, _, value in pairs}


def json_or_text(text: str) -> Any:
    """Return what a JSON text says, or the text itself if it is not JSON."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def _number(name: str, text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text[:12]) > MAX_NUMBER:
        raise ValueError(f"{name} must be a number from 0 to {MAX_NUMBER:,}, not {text!r}")
    return int(text)


def _json_object(name: str, text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise ValueError(f"{name} is not valid JSON: {error}") from error
    return dict(found)
