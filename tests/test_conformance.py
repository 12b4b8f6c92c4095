"""LangGraph's own conformance suite on every backend: async directly, sync through an adapter."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple, empty_checkpoint
from langgraph.checkpoint.conformance import checkpointer_test, validate
from langgraph.checkpoint.conformance.capabilities import Capability
from langgraph.checkpoint.conformance.report import CapabilityReport

import threadkeep


def called_sync(verb: str) -> Callable[..., Any]:
    async def method(self: SyncSide, *args: Any, **kwargs: Any) -> Any:
        return getattr(self.saver, verb)(*args, **kwargs)

    return method


class SyncSide(BaseCheckpointSaver[Any]):
    """Presents a saver's sync methods to a suite that calls async ones."""

    def __init__(self, saver: BaseCheckpointSaver[Any]) -> None:
        super().__init__(serde=saver.serde)
        self.saver = saver

    async def alist(self, *args: Any, **kwargs: Any) -> AsyncIterator[CheckpointTuple]:
        for found in self.saver.list(*args, **kwargs):
            yield found

    aput = called_sync("put")
    aput_writes = called_sync("put_writes")
    aget_tuple = called_sync("get_tuple")
    adelete_thread = called_sync("delete_thread")
    adelete_for_runs = called_sync("delete_for_runs")
    acopy_thread = called_sync("copy_thread")
    aprune = called_sync("prune")


async def report_on(fresh_url: Callable[[], str], shown: Callable[[Any], Any]) -> CapabilityReport:
    @checkpointer_test(name="threadkeep")
    async def fresh_saver() -> AsyncIterator[Any]:
        async with threadkeep.open(fresh_url()) as keep:
            yield shown(keep.checkpointer)

    return await validate(fresh_saver)


def assert_complete(report: CapabilityReport) -> None:
    assert set(report.results) == {capability.value for capability in Capability}
    for name, result in report.results.items():
        assert result.detected, f"{name} is not implemented"
        assert result.passed is True, f"{name}: {result.failures}"
        assert result.tests_passed > 0
        assert result.tests_failed == result.tests_skipped == 0


async def test_async_side_passes_every_capability_of_the_official_suite(fresh_url: Callable[[], str]) -> None:
    assert_complete(await report_on(fresh_url, lambda saver: saver))


def test_sync_side_passes_every_capability_of_the_official_suite(fresh_url: Callable[[], str]) -> None:
    assert_complete(asyncio.run(report_on(fresh_url, SyncSide)))


async def test_from_conn_string_gives_a_saver_that_passes_the_official_suite(fresh_url: Callable[[], str]) -> None:
    @checkpointer_test(name="threadkeep from_conn_string")
    async def fresh_saver() -> AsyncIterator[Any]:
        async with threadkeep.KeepSaver.from_conn_string(fresh_url()) as saver:
            yield saver

    assert_complete(await validate(fresh_saver))


def test_every_verb_of_the_base_class_is_overridden_sync_and_async() -> None:
    verbs = [
        "get_tuple",
        "list",
        "put",
        "put_writes",
        "delete_thread",
        "delete_for_runs",
        "copy_thread",
        "prune",
        "get_delta_channel_history",
    ]
    inherited = [
        name
        for verb in verbs
        for name in (verb, f"a{verb}")
        if getattr(threadkeep.KeepSaver, name) is getattr(BaseCheckpointSaver, name)
    ]
    assert inherited == []


def test_a_checkpoint_whose_row_is_cached_but_not_its_items_is_read_whole(lasting_url: str) -> None:
    """A write on a checkpoint reads its row, not its state; the read after it must load the rest."""
    config: Any = {"configurable": {"thread_id": "t", "checkpoint_ns": ""}}
    elements = [f"element {n} " * 40 for n in range(100)]
    scattered = [element for n, element in enumerate(elements) if n % 2]
    with threadkeep.open(lasting_url) as keep:
        for version, messages in enumerate((elements, scattered), 1):
            checkpoint = {
                **empty_checkpoint(), "id": f"{version}", "channel_values": {"messages": messages},
                "channel_versions": {"messages": version},
            }  # fmt: skip
            config = keep.checkpointer.put(config, checkpoint, {}, {"messages": version})
    with threadkeep.open(lasting_url) as cold:
        cold.checkpointer.put_writes(config, [("other", 1)], "task")
        found = cold.checkpointer.get_tuple(config)
        assert found is not None
        assert found.checkpoint["channel_values"] == {"messages": scattered}
