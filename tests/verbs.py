"""A table of calls: every verb of a Keep and its checkpointer, sync and async."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import uuid4

import threadkeep
from checkpoint_chains import Chain, config

AT = config("t", "00000000")
LAST = threadkeep.Policy(keep_last=1, keep_branches=False)


def every_verb(keep: threadkeep.Keep) -> dict[str, Callable[[], Any]]:
    saver = keep.checkpointer
    return {
        "put": lambda: Chain(saver).put({"x": "y" * 100}),
        "put_writes": lambda: saver.put_writes(AT, [("x", 1)], "task"),
        "get_tuple": lambda: saver.get_tuple(config("t")),
        "get": lambda: saver.get(config("t")),
        "list": lambda: list(saver.list(config("t"))),
        "list all": lambda: list(saver.list(None, limit=1)),
        "threads": lambda: keep.threads(),
        "activity": lambda: keep.activity(),
        "sizes": lambda: keep.sizes(),
        "stats": lambda: keep.stats(),
        "get_delta_channel_history": lambda: saver.get_delta_channel_history(config=AT, channels=["x"]),
        "copy_thread": lambda: saver.copy_thread("t", "u"),
        "rollback": lambda: keep.rollback("t", "latest"),
        "fork": lambda: keep.fork("t", to=uuid4().hex),
        "tag": lambda: keep.tag("t", "latest", "kept"),
        "prune by policy": lambda: keep.prune(policy=LAST),
        "sweep": lambda: keep.sweep(),
        "delete_for_runs": lambda: saver.delete_for_runs(["r"]),
        "prune": lambda: saver.prune(["t"]),
        "delete_thread": lambda: saver.delete_thread("t"),
        "setup": lambda: saver.setup(),
    }


def every_async_verb(keep: threadkeep.Keep) -> dict[str, Callable[[], Any]]:
    saver = keep.checkpointer
    return {
        "aput": lambda: Chain(saver).aput({"x": "y" * 100}),
        "aput_writes": lambda: saver.aput_writes(AT, [("x", 1)], "task"),
        "aget_tuple": lambda: saver.aget_tuple(config("t")),
        "aget": lambda: saver.aget(config("t")),
        "alist": lambda: every(saver.alist(config("t"))),
        "alist all": lambda: every(saver.alist(None, limit=1)),
        "athreads": lambda: keep.athreads(),
        "aactivity": lambda: keep.aactivity(),
        "asizes": lambda: keep.asizes(),
        "astats": lambda: keep.astats(),
        "aget_delta_channel_history": lambda: saver.aget_delta_channel_history(config=AT, channels=["x"]),
        "acopy_thread": lambda: saver.acopy_thread("t", "u"),
        "arollback": lambda: keep.arollback("t", "latest"),
        "afork": lambda: keep.afork("t", to=uuid4().hex),
        "atag": lambda: keep.atag("t", "latest", "kept"),
        "aprune by policy": lambda: keep.aprune(policy=LAST),
        "asweep": lambda: keep.asweep(),
        "adelete_for_runs": lambda: saver.adelete_for_runs(["r"]),
        "aprune": lambda: saver.aprune(["t"]),
        "adelete_thread": lambda: saver.adelete_thread("t"),
        "setup": lambda: saver.setup(),
    }


async def every(listing: Any) -> list[Any]:
    return [found async for found in listing]
