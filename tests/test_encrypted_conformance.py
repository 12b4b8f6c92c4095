"""The checkpointer of an encrypted Keep passes LangGraph's conformance suite and ours, with visible and hidden ids.

`test_encrypted_store.py` and `test_encrypted_cube.py` run our other suites: a file can import only one.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
from langgraph.checkpoint.conformance import checkpointer_test, validate

import shared_pool
import threadkeep
from sealed_storages import KEYS
from test_conformance import SyncSide, assert_complete
from threadkeep.conformance.saver_suite import *  # noqa: F403

pytestmark = pytest.mark.sampled(4)
VISIBLE = pytest.param(False, marks=pytest.mark.long)


@pytest.fixture(params=[True, VISIBLE], ids=["ids hidden", "ids visible"])
def hide_ids(request: pytest.FixtureRequest) -> bool:
    hidden: bool = request.param
    return hidden


@pytest.fixture
def saver(url: str, hide_ids: bool) -> Iterator[threadkeep.KeepSaver]:
    with shared_pool.open_keep(url, keys=KEYS, hide_ids=hide_ids) as keep:
        yield keep.checkpointer


@pytest.mark.parametrize("shown", [SyncSide, lambda saver: saver], ids=["sync", "async"])
def test_an_encrypted_saver_passes_the_official_suite(fresh_url: Callable[[], str], hide_ids: bool, shown: Any) -> None:
    @checkpointer_test(name="threadkeep with keys")
    async def fresh_saver() -> AsyncIterator[Any]:
        async with shared_pool.open_keep(fresh_url(), keys=KEYS, hide_ids=hide_ids) as keep:
            yield shown(keep.checkpointer)

    assert_complete(asyncio.run(validate(fresh_saver)))
