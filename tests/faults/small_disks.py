"""A small file system of its own, which can be filled and made read-only. Mounting needs root's rights."""

from __future__ import annotations

import errno
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


class SmallDisk:
    """A tmpfs. `fill` leaves no room, `make_room` gives back what `fill` took."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._ballast = folder / "ballast"

    def fill(self) -> None:
        with self._ballast.open("ab", buffering=0) as file:
            for block in (1 << 16, 1 << 12):
                while _has_written(file, bytes(block)):
                    pass

    def make_room(self) -> None:
        self._ballast.unlink()

    def protect(self) -> None:
        """Make the file system read-only. No file on it may be open for writing."""
        _mount("-o", "remount,ro", str(self.folder))

    def unprotect(self) -> None:
        _mount("-o", "remount,rw", str(self.folder))


def _has_written(file: object, block: bytes) -> bool:
    try:
        return bool(file.write(block))  # type: ignore[attr-defined]
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        return False


def _mount(*args: str) -> None:
    subprocess.run(["mount", *args], check=True, capture_output=True)


@contextmanager
def small_disk(folder: Path, *, megabytes: int) -> Iterator[SmallDisk]:
    """Mount a file system on an empty folder. Skip the test, with the reason, where that is not permitted."""
    folder.mkdir(exist_ok=True)
    try:
        _mount("-t", "tmpfs", "-o", f"size={megabytes}m,mode=755", "tmpfs", str(folder))
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"a file system cannot be mounted here: {getattr(error, 'stderr', b'') or error!r}")
    try:
        yield SmallDisk(folder)
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)
