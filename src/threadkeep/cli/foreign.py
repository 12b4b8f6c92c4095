"""Databases of other savers: tell them from ours, and read them into a Keep in memory for a command that only reads."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import threadkeep
from threadkeep.cli.app import is_foreign_file

if TYPE_CHECKING:
    from threadkeep.work import OnProgress

_POSTGRES, _MYSQL = ("postgresql://", "postgres://"), ("mysql://", "mariadb://")


def is_foreign(url: str) -> bool:
    """Return whether a database has no tables of threadkeep. ValueError if it has no known ones at all."""
    from threadkeep.transfer.result import OWN_DATABASE  # noqa: PLC0415 - on use
    from threadkeep.transfer.sources.detect import OwnError, detect  # noqa: PLC0415 - imports drivers

    if url.startswith(_POSTGRES) and "schema=" not in url:  # the option is ours
        try:
            detect(url, OWN_DATABASE)
        except OwnError:
            return False
        except ValueError:
            pass  # it is not ours
    elif not url.startswith(_MYSQL) and not is_foreign_file(url):
        return False
    for source in detect(url, None):
        source.close()
    return True


@contextmanager
def read_foreign(url: str, *, prefix: str = "", on_progress: OnProgress | None = None) -> Iterator[threadkeep.Keep]:
    """Read the threads of another saver into a Keep in memory. The database is not changed.

    ValueError if they cannot be read as they are stored: then no answer would be complete.
    """
    with threadkeep.open("memory://") as keep:
        result = keep.import_from(url, prefix=prefix, verify=False, on_progress=on_progress)
        if result.differences:
            raise ValueError("; ".join(result.differences[:3]))
        yield keep
