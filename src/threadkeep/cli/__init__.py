"""The command `threadkeep`: the operator's verbs of a Keep in a terminal. It reads options, calls verbs and shows answers.

`app.py` has what all commands share; every other file has the commands of one subject. Exit codes:

    0   done
    1   the answer is no: nothing such there, problems were found, both sides differ, a question was answered so
    2   the command was not understood, or something that it names is wrong
    3   the storage cannot be reached, is too new, is damaged, or refuses
    130 interrupted; what was done stays done, and the same command goes on
"""

from __future__ import annotations

from threadkeep.cli.app import main

__all__ = ["main"]
