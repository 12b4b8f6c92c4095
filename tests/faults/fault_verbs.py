"""Verbs that tests of faults disturb, sync and async, what is stored before them, and what is stored at all."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, NamedTuple

from cubeloop.providers.base import TextContent, UserMessage

import threadkeep
from checkpoint_chains import Chain, config


class Verb(NamedTuple):
    """A call of a Keep's verb, which may be repeated: the second time changes nothing."""

    target: Callable[[threadkeep.Keep], Any]
    name: str
    args: Callable[[], tuple[Any, ...]]
    kwargs: dict[str, Any] = {}

    def call(self, keep: threadkeep.Keep) -> Any:
        if self.target is CUBE:
            return asyncio.run(self.acall(keep))
        called = getattr(self.target(keep), self.name)(*self.args(), **self.kwargs)
        return list(called) if self.name == "list" else called

    async def acall(self, keep: threadkeep.Keep) -> Any:
        target = self.target(keep)
        name = self.name if self.target is CUBE else f"a{self.name}"
        called = getattr(target, name)(*self.args(), **self.kwargs)
        return [found async for found in called] if self.name == "list" else await called


KEEP: Callable[[threadkeep.Keep], Any] = lambda keep: keep
SAVER: Callable[[threadkeep.Keep], Any] = lambda keep: keep.checkpointer
STORE: Callable[[threadkeep.Keep], Any] = lambda keep: keep.store
CUBE: Callable[[threadkeep.Keep], Any] = lambda keep: keep.cube
LONG = {"log": ["new"], "long": "y" * 70_000}


def message(text: str) -> Any:
    return UserMessage(content=[TextContent(text=text)], id=text)


def _past() -> Chain:
    return Chain(None, "t", run="r")


def _states() -> list[dict[str, Any]]:
    return [{"log": ["entry " * 30] * (n + 1), "long": "x" * 5000 * n} for n in range(3)]


def _fourth() -> tuple[Any, ...]:
    chain = _past()
    for state in _states():
        chain.next(state)
    return chain.next(LONG)


def fill(keep: threadkeep.Keep) -> None:
    """Store what the verbs need."""
    chain = _past()
    for n, state in enumerate(_states()):
        keep.checkpointer.put(*chain.next(state))
        keep.checkpointer.put_writes(config("t", chain.last), [("log", n)], f"task {n}")
        keep.store.put(("a", "b"), f"k{n}", {"n": n})

    async def fill_cube() -> None:
        await keep.cube.append("c", [message("first"), message("second")])
        await keep.cube.claim_run("c", "run")

    asyncio.run(fill_cube())


CHANGES = {
    "put": Verb(SAVER, "put", _fourth),
    "put to a new thread": Verb(SAVER, "put", lambda: Chain(None, "new").next(LONG)),
    "put_writes": Verb(SAVER, "put_writes", lambda: (config("t", "00000002"), [("log", "w")], "task")),
    "delete_thread": Verb(SAVER, "delete_thread", lambda: ("t",)),
    "copy_thread": Verb(SAVER, "copy_thread", lambda: ("t", "copy")),
    "prune": Verb(SAVER, "prune", lambda: (["t"],)),
    "delete_for_runs": Verb(SAVER, "delete_for_runs", lambda: (["r"],)),
    "describe": Verb(KEEP, "describe", lambda: ("t",), {"title": "A title", "labels": ["x"]}),
    "append": Verb(CUBE, "append", lambda: ("c", [message("third")])),
    "save_extra": Verb(CUBE, "save_extra", lambda: ("c", {"a": 1})),
    "mark_run_complete": Verb(CUBE, "mark_run_complete", lambda: ("c", "run")),
    "store put": Verb(STORE, "put", lambda: (("a", "b"), "new", {"n": 9})),
    "store delete": Verb(STORE, "delete", lambda: (("a", "b"), "k1")),
    "delete_memories": Verb(KEEP, "delete_memories", lambda: (("a",),)),
}
READS = {
    "get_tuple": Verb(SAVER, "get_tuple", lambda: (config("t"),)),
    "list": Verb(SAVER, "list", lambda: (config("t"),)),
    "threads": Verb(KEEP, "threads", tuple),
    "log": Verb(KEEP, "log", lambda: ("t",)),
    "verify": Verb(KEEP, "verify", tuple),
    "load": Verb(CUBE, "load", lambda: ("c",)),
    "get": Verb(STORE, "get", lambda: (("a", "b"), "k1")),
    "search": Verb(STORE, "search", lambda: (("a",),)),
    "list_namespaces": Verb(STORE, "list_namespaces", tuple),
}


def stored(keep: threadkeep.Keep) -> Any:
    """Return what is stored, without times."""
    cube = asyncio.run(keep.cube.load("c"))
    return {
        "checkpoints": [(found.config["configurable"], found.checkpoint["channel_values"], found.pending_writes) for found in keep.checkpointer.list(None)],
        "threads": sorted((each.id, each.kind, each.checkpoints, each.writes, each.title) for each in keep.threads()),
        "cube": cube and ([each.content[0].text for each in cube.messages], cube.extra),
        "memories": sorted((item.key, item.value["n"]) for item in keep.store.search(())),
    }  # fmt: skip
