"""Notices that a SQLite file was removed or replaced while a Keep has connections to it.

They would go on with the file that is no longer there: what they write is lost when the last of them is closed.
"""

from __future__ import annotations

import os
from pathlib import Path

from threadkeep.errors import Unavailable


class FileInUse:
    """The file to which the first connection of a Keep was opened. None is a replacement for it, not even a copy.

    A file that was moved away may come back. It is compared by its number in the file system, which the system cannot
    give to another file as long as a connection is open.
    """

    def __init__(self) -> None:
        self._name: str | None = None
        self._id: tuple[int, int] = (0, 0)

    def remember(self, path: Path) -> None:
        """Remember the file to which a connection was opened, if it is the first one. Unavailable if it is gone."""
        if self._name is None:
            try:
                found = path.stat()
            except OSError as error:
                raise Unavailable(f"{path} was removed while it was opened: {error}") from error
            self._id = found.st_dev, found.st_ino
            self._name = str(path)

    def is_there(self) -> bool:
        """Return whether the file is still there, or no connection was opened yet. One system call, 1 µs."""
        if self._name is None:
            return True
        try:
            found = os.stat(self._name)  # noqa: PTH116 - twice as fast
        except OSError:
            return False
        return (found.st_dev, found.st_ino) == self._id

    def check(self) -> None:
        """Raise Unavailable if the file is not there any more."""
        if not self.is_there():
            was = "replaced by another file" if os.path.exists(self._name or "") else "removed"  # noqa: PTH110
            raise Unavailable(
                f"{self._name} was {was} while it was in use: put it back, or close this Keep and open another one"
            )
