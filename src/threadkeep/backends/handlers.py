"""The functions that answer requests, by the class of request. Those that few Keeps need are imported on use."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from threadkeep.plan import Request

Handler = Callable[..., Any]


class Handlers(dict[type[Request[Any]], Handler]):
    """The functions by class of request. `others` returns the ones that are imported with the first such request."""

    def __init__(
        self,
        handlers: Mapping[type[Request[Any]], Handler],
        others: Callable[[], Mapping[type[Request[Any]], Handler]],
    ) -> None:
        super().__init__(handlers)
        self._others = others

    def __missing__(self, kind: type[Request[Any]]) -> Handler:
        self.update(self._others())
        return dict(self)[kind]
