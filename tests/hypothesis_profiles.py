"""How long tests look for counterexamples: briefly in `make test`, at random places each time, ten times as long in `make prove`."""

from __future__ import annotations

import os

PROVING = os.environ.get("THREADKEEP_HYPOTHESIS") == "prove"


def examples(few: int) -> int:
    return 10 * few if PROVING else few
