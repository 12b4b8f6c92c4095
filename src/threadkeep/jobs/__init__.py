"""The verbs of a Keep: check the arguments, then run one plan, or many one after the other.

    catalogue.py     threads, thread, delete, copy
    history.py       log, show, tree, find, diff, blame
    audit.py         trace, activity, sizes, stats
    branches.py      rollback, fork, tag
    prune.py         prune
    sweep.py         sweep
    verify.py        verify
    compact.py       compact
    doctor.py        doctor
    erase.py         erase
    migrate.py       migrate
    policies.py      retention policies, in Python or in threadkeep.toml
    over_threads.py  visit every thread, in pages

Each verb is one function; its docstring is the contract, and `keep.py` makes the sync and the async method from it. A
verb that only reads is a plan (`async def`); any other returns a `Work` (`work.py`). What happens to one thread is a
plan in `engine/`. Modules here may import `clock`, `engine`, `errors`, `plan`, `session`, `version` and `work`.
"""

from threadkeep.jobs import audit, branches, catalogue, compact, doctor, erase, history, migrate, prune, sweep, verify

__all__ = [
    "audit",
    "branches",
    "catalogue",
    "compact",
    "doctor",
    "erase",
    "history",
    "migrate",
    "prune",
    "sweep",
    "verify",
]
