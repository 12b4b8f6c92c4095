"""Show long output page by page, as git does: in PAGER, if the output is a terminal and longer than its screen."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from contextvars import ContextVar

_DEFAULT = "less"
_LESS = "FRX"
"""Options of less if LESS is not set: quit if it fits one screen, keep colours, leave the screen as it was."""
_is_wanted: ContextVar[bool] = ContextVar("pager", default=True)


def use(*, wanted: bool) -> None:
    """Use a pager from now on, or write everything directly."""
    _is_wanted.set(wanted)


def program() -> list[str]:
    """Return the pager and its arguments; nothing if there is none, or if the output is not for it.

    PAGER names it; `cat` or an empty PAGER means none. ValueError if it cannot be parsed or found.
    """
    if not (_is_wanted.get() and sys.stdout.isatty() and sys.stdin.isatty()) or os.environ.get("TERM") == "dumb":
        return []
    named = os.environ.get("PAGER")
    command = shlex.split(_DEFAULT if named is None else named)
    if not command or command == ["cat"]:
        return []
    if shutil.which(command[0]) is None:
        if named is not None:
            raise ValueError(f"PAGER is {named!r}, which is not found: correct it, or pass --no-pager")
        return []
    return command


def page(text: str, command: list[str]) -> None:
    """Write a text to a pager and wait until the user leaves it."""
    environment = {"LESS": _LESS, "LV": "-c"} | os.environ
    with subprocess.Popen(command, stdin=subprocess.PIPE, env=environment) as pager:  # noqa: S603 - the user's choice
        remaining = text.encode(sys.stdout.encoding or "utf-8", "replace")
        while True:
            try:
                pager.communicate(remaining)
            except KeyboardInterrupt:  # the pager has it too, and most stay
                remaining = b""
            else:
                return
