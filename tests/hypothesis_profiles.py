"""How many examples Hypothesis tries: a few random ones in `make test`, ten times as many in `make prove`."""

from __future__ import annotations

import os

PROVING = os.environ.get("THREADKEEP_HYPOTHESIS") == "prove"


def examples(few: int) -> int:
    return 10 * few if PROVING else few
