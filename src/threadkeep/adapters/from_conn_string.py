"""The context manager that `from_conn_string` returns: it opens a Keep and closes it at the end."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Generic, TypeVar

from threadkeep.keep import Keep

A = TypeVar("A")


class KeepContext(Generic[A]):
    """Open a Keep for `with` or `async with`, and give one of its adapters to the block."""

    def __init__(self, open_keep: Callable[[], Keep], get_adapter: Callable[[Keep], A]) -> None:
        self._open_keep = open_keep
        self._get_adapter = get_adapter
        self._keep: Keep | None = None

    def __enter__(self) -> A:
        self._keep = self._open_keep()
        return self._get_adapter(self._keep)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._keep is not None
        self._keep.close()

    async def __aenter__(self) -> A:
        return self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._keep is not None
        await self._keep.aclose()
