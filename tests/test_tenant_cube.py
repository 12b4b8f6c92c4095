"""The CubeLoop checkpointer of a tenant with a quota passes the public suite, on every backend."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

import shared_pool
import threadkeep
from threadkeep.adapters.cubeloop import KeepCube
from threadkeep.conformance.cube_suite import *  # noqa: F403
from threadkeep.conformance.cube_suite import Capabilities

pytestmark = pytest.mark.sampled(4)


@pytest.fixture
def opening(url: str) -> Callable[[], threadkeep.Keep]:
    """Return a function that opens a Keep on the data of one tenant."""
    tenant = shared_pool.fresh_tenant()
    return lambda: shared_pool.open_keep(url, tenant="").tenant(tenant, quota_bytes=1 << 40)


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
