"""A Keep that is opened and closed by `with` or `async with`, giving one of its faces."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Generic, TypeVar

from threadkeep.keep import Keep

F = TypeVar("F")


class KeepContext(Generic[F]):
    """What `from_conn_string` gives."""

    def __init__(self, make: Callable[[], Keep], face: Callable[[Keep], F]) -> None:
        self._make = make
        self._face = face
        self._keep: Keep | None = None

    def __enter__(self) -> F:
        self._keep = self._make()
        return self._face(self._keep)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._keep is not None
        self._keep.close()

    async def __aenter__(self) -> F:
        return self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._keep is not None
        await self._keep.aclose()
