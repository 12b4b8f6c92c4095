"""The command `threadkeep`: the operator verbs of a Keep for the terminal.

`app.py` runs the command and handles errors, `options.py` declares the options that several commands share, and
`output.py` prints results. Every other file holds the commands of one subject. The package uses threadkeep as any
other program does; apart from `threadkeep` itself it imports result types and helpers only. Exit codes:

    0   success
    1   a negative result: not found, problems found, both sides differ, or the user answered no
    2   invalid usage: an unknown option or a wrong argument
    3   the storage cannot be reached, has a newer schema, is damaged, or refuses access
    130 interrupted; finished work stays, and the same command continues it
"""

from __future__ import annotations

from threadkeep.cli.app import main

__all__ = ["main"]
