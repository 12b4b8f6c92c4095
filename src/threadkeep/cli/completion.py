"""Complete the ids of threads, and the values of some options, in a shell."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import typer

_PLAIN = re.compile(r"[\w.@+,/-][\w.@+,/:-]*")
"""Ids that no shell takes for anything else. Others are not offered: they come from whoever chose them."""
_MOST = 100
_TIMEOUT = 2.0


def complete_thread(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the ids of the last threads that begin with a text. None if the storage cannot be read in two seconds."""
    given: dict[str, Any] = {name: value for name, value in (ctx.parent or ctx).params.items() if value}
    given |= {name: value for name, value in ctx.params.items() if value}
    try:
        ids = _ids(given.get("url"), given.get("tenant"), given.get("keys"), incomplete)
    except Exception:  # noqa: BLE001 - a shell has no place for errors
        return []
    return [id for id in dict.fromkeys(ids) if _PLAIN.fullmatch(id) and not (":" in id and _is_bash())]


def complete_from(*values: str) -> Callable[[str], list[str]]:
    """Return a function that completes a text to one of these values."""

    def complete(incomplete: str) -> list[str]:
        return [value for value in values if value.startswith(incomplete)]

    return complete


def _ids(url: str | None, tenant: str | None, keys: str | None, prefix: str) -> list[str]:
    import threadkeep  # noqa: PLC0415 - imports the engine
    from threadkeep.cli import settings  # noqa: PLC0415 - the same

    found = settings.find(Path.cwd()) if url is None else None
    if found is not None:
        url, tenant, keys = found.url, tenant or found.tenant, settings.keys_file(keys, found)
    with threadkeep.open(
        settings.as_url(url), tenant=tenant or "", keys=settings.read_keys(keys), read_only=True, timeout=_TIMEOUT
    ) as keep:
        return [each.id for each in keep.threads(prefix=prefix, limit=_MOST)]


def _is_bash() -> bool:
    """Return whether the shell splits words at colons."""
    return os.environ.get("_THREADKEEP_COMPLETE", "").endswith("bash")
