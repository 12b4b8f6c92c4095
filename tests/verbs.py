"""A table of calls: every verb of a Keep and its checkpointer, sync and async."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple
from uuid import uuid4

import threadkeep
from checkpoint_chains import Chain, config

AT = config("t", "00000000")
LAST = threadkeep.Policy(keep_last=1, keep_branches=False)


class Call(NamedTuple):
    """A verb of some object, with its arguments."""

    target: Any
    verb: str
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = {}


def _calls(keep: threadkeep.Keep) -> dict[str, Call]:
    saver = keep.checkpointer
    return {
        "put": Call(Chain(saver), "put", ({"x": "y" * 100},)),
        "put_writes": Call(saver, "put_writes", (AT, [("x", 1)], "task")),
        "get_tuple": Call(saver, "get_tuple", (config("t"),)),
        "get": Call(saver, "get", (config("t"),)),
        "list": Call(saver, "list", (config("t"),)),
        "list all": Call(saver, "list", (None,), {"limit": 1}),
        "threads": Call(keep, "threads"),
        "describe": Call(keep, "describe", ("t",), {"title": "A title"}),
        "activity": Call(keep, "activity"),
        "sizes": Call(keep, "sizes"),
        "trace": Call(keep, "trace", ("t",)),
        "flow": Call(keep, "flow", ("t",)),
        "stats": Call(keep, "stats"),
        "usage": Call(keep, "usage", (), {"all_branches": True}),
        "waiting": Call(keep, "waiting"),
        "branches": Call(keep, "branches", ("t",)),
        "compare_branches": Call(keep, "compare_branches", ("t", "latest", "latest")),
        "search": Call(keep, "search", ("y",)),
        "get_delta_channel_history": Call(saver, "get_delta_channel_history", (), {"config": AT, "channels": ["x"]}),
        "copy_thread": Call(saver, "copy_thread", ("t", "u")),
        "rollback": Call(keep, "rollback", ("t", "latest")),
        "fork": Call(keep, "fork", ("t",), {"to": uuid4().hex}),
        "tag": Call(keep, "tag", ("t", "latest", "kept")),
        "name_branch": Call(keep, "name_branch", ("t", "latest", "main")),
        "switch_branch": Call(keep, "switch_branch", ("t", "latest")),
        "prune by policy": Call(keep, "prune", (), {"policy": LAST}),
        "sweep": Call(keep, "sweep"),
        "delete_for_runs": Call(saver, "delete_for_runs", (["r"],)),
        "prune": Call(saver, "prune", (["t"],)),
        "delete_thread": Call(saver, "delete_thread", ("t",)),
    }


def every_verb(keep: threadkeep.Keep) -> dict[str, Callable[[], Any]]:
    calls = {name: partial(_call, each) for name, each in _calls(keep).items()}
    return calls | {"setup": keep.checkpointer.setup}


def every_async_verb(keep: threadkeep.Keep) -> dict[str, Callable[[], Any]]:
    calls = {f"a{name}": partial(_acall, each) for name, each in _calls(keep).items()}
    return calls | {"setup": keep.checkpointer.setup}


def _call(call: Call) -> Any:
    result = getattr(call.target, call.verb)(*call.args, **call.kwargs)
    return list(result) if call.verb == "list" else result


def _acall(call: Call) -> Any:
    result = getattr(call.target, f"a{call.verb}")(*call.args, **call.kwargs)
    return every(result) if call.verb == "list" else result


async def every(listing: Any) -> list[Any]:
    return [found async for found in listing]
