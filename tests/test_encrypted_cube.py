"""The CubeLoop checkpointer of an encrypted Keep passes the public suite, with visible and hidden ids."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

import shared_pool
import threadkeep
from sealed_storages import KEYS
from threadkeep.adapters.cubeloop import KeepCube
from threadkeep.conformance.cube_suite import *  # noqa: F403
from threadkeep.conformance.cube_suite import Capabilities

pytestmark = pytest.mark.sampled(4)
VISIBLE = pytest.param(False, marks=pytest.mark.long)


@pytest.fixture(params=[True, VISIBLE], ids=["ids hidden", "ids visible"])
def opening(request: pytest.FixtureRequest, url: str) -> Callable[[], threadkeep.Keep]:
    """Return a function that opens an encrypted Keep on the test's data."""
    tenant = shared_pool.fresh_tenant()
    return lambda: shared_pool.open_keep(url, tenant=tenant, keys=KEYS, hide_ids=request.param)


@pytest.fixture
def cube(opening: Callable[[], threadkeep.Keep]) -> Iterator[KeepCube]:
    with opening() as keep:
        yield keep.cube


@pytest.fixture
def other_cube(opening: Callable[[], threadkeep.Keep]) -> Iterator[KeepCube]:
    with opening() as keep:
        yield keep.cube


@pytest.fixture
def capabilities(url: str) -> Capabilities:
    return Capabilities(other_handles=url != "memory://")  # each Keep in memory has its own data
