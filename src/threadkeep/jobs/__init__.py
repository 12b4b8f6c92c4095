"""The verbs of a Keep: check the arguments, then run one plan, or many one after the other.

    catalogue.py     threads, thread, describe, delete, copy
    history.py       log, show, tree, find, diff, blame
    waiting.py       waiting
    audit.py         trace, flow, activity, sizes, stats
    usage.py         usage
    prices.py        prices of tokens, in Python or in a file
    rollback.py      rollback, fork, tag
    branches.py      branches, name_branch, compare_branches, switch_branch, delete_branch
    search.py        search, build_search_index, drop_search_index
    prune.py         prune
    sweep.py         sweep
    stored_types.py  types
    verify.py        verify
    repair.py        repair
    compact.py       compact
    doctor.py        doctor
    erase.py         erase
    migrate.py       migrate
    distribute.py    distribute
    encryption.py    encrypt, rotate, reencrypt
    leases.py        break_lease, lease_info
    tenants.py       tenants, drop_tenant
    transfer.py      import_from, export, import_portable
    policies.py      retention policies, in Python or in threadkeep.toml
    over_threads.py  visit every thread, in pages

Each verb is one function; its docstring is the contract, and `keep.py` makes the sync and the async method from it. A
verb that only reads is a plan (`async def`); any other returns a `Work` (`work.py`). What happens to one thread is a
plan in `engine/`. Modules here may import `clock`, `engine`, `errors`, `plan`, `session`, `version` and `work`;
`transfer.py` starts what is in `transfer/`. They are imported when one of their verbs is used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from threadkeep.jobs import (
        audit,
        branches,
        catalogue,
        compact,
        distribute,
        doctor,
        encryption,
        erase,
        history,
        leases,
        migrate,
        policies,
        prune,
        repair,
        rollback,
        search,
        stored_types,
        sweep,
        tenants,
        transfer,
        usage,
        verify,
        waiting,
    )

__all__ = [
    "audit",
    "branches",
    "catalogue",
    "compact",
    "distribute",
    "doctor",
    "encryption",
    "erase",
    "history",
    "leases",
    "migrate",
    "policies",
    "prune",
    "repair",
    "rollback",
    "search",
    "stored_types",
    "sweep",
    "tenants",
    "transfer",
    "usage",
    "verify",
    "waiting",
]


def __getattr__(name: str) -> Any:
    """Import a module when it is first used."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return import_module(f"{__name__}.{name}")
