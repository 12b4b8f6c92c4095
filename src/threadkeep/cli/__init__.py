"""The command `threadkeep`: the operator verbs of a Keep for the terminal.

`app.py` runs the command and handles errors, `groups.py` says in which group `--help` lists it, `options.py` declares
the options that several commands share, `settings.py` finds the storage, and `output.py` prints results, in a terminal
through `pager.py`. Every other file holds the commands of one subject. The package uses threadkeep as any
other program does; apart from `threadkeep` itself it imports result types and helpers only. Exit codes:

    0   success
    1   a negative result: not found, problems found, both sides differ, or the user answered no
    2   invalid usage: an unknown option or a wrong argument
    3   the storage cannot be reached, has a newer schema, is damaged, or refuses access
    130 interrupted; finished work stays, and the same command continues it
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from threadkeep import __version__

__all__ = ["main"]


def main(args: Sequence[str] | None = None) -> None:
    """Run the command and end the process with its exit code."""
    args = sys.argv[1:] if args is None else args
    if list(args) == ["--version"]:  # scripts ask for it, and importing Typer takes five times as long as the rest
        print(f"threadkeep {__version__}")  # noqa: T201
        sys.exit(0)
    from threadkeep.cli import app  # noqa: PLC0415 - imports Typer

    sys.exit(app.run(args))
