"""Hide what matches a pattern in everything that is shown."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

HIDDEN = "▇▇▇"


class HiddenPattern:
    """Replaces what a regular expression matches; nothing if there is none. ValueError if it is not one."""

    def __init__(self, pattern: str | None = None) -> None:
        try:
            self._pattern = re.compile(pattern) if pattern else None
        except re.error as error:
            raise ValueError(f"{pattern!r} is not a regular expression: {error}") from error

    @property
    def is_on(self) -> bool:
        """Whether anything is hidden."""
        return self._pattern is not None

    def text(self, text: str) -> str:
        """Return a text without what is to be hidden."""
        return text if self._pattern is None else self._pattern.sub(HIDDEN, text)

    def value(self, value: Any) -> Any:
        """Return plain data without what is to be hidden, in keys too."""
        if self._pattern is None:
            return value
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, Mapping):
            return {self.text(str(key)): self.value(inner) for key, inner in value.items()}
        return [self.value(inner) for inner in value] if isinstance(value, (list, tuple)) else value
