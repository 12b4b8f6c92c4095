"""The CubeLoop checkpointer of a tenant with a quota passes the public suite, on every backend."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

import threadkeep
from threadkeep.adapters.cubeloop import KeepCube
from threadkeep.conformance.cube_suite import *  # noqa: F403
from threadkeep.conformance.cube_suite import Capabilities

pytestmark = pytest.mark.sampled(2)


@pytest.fixture
def own_url(fresh_url: Callable[[], str]) -> str:
    return fresh_url()


@pytest.fixture
def cube(own_url: str) -> Iterator[KeepCube]:
    with threadkeep.open(own_url) as keep:
        yield keep.tenant("one", quota_bytes=1 << 40).cube


@pytest.fixture
def other_cube(own_url: str) -> Iterator[KeepCube]:
    with threadkeep.open(own_url) as keep:
        yield keep.tenant("one").cube


@pytest.fixture
def capabilities(url: str) -> Capabilities:
    return Capabilities(other_handles=url != "memory://")  # each Keep in memory has its own data
