"""How many examples Hypothesis tries: a few random ones in `make test`, ten times as many or more in `make prove-long`."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

PROVING = os.environ.get("THREADKEEP_HYPOTHESIS") == "prove"


def examples(few: int) -> int:
    return 10 * few if PROVING else few


def machine_settings(*, few: int, many: int, few_steps: int = 30, many_steps: int = 60) -> settings:
    """Return settings of a state machine that runs this many examples in `make test` and in `make prove-long`."""
    return settings(
        max_examples=many if PROVING else few,
        stateful_step_count=many_steps if PROVING else few_steps,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        print_blob=True,
    )
