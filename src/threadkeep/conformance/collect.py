"""Collects the tests of a suite from its modules, and lets pytest explain their failed asserts."""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Iterable
from types import ModuleType

import pytest


def rewrite_asserts(package: str, path: Iterable[str]) -> None:
    """Let pytest explain failed asserts in a package's modules. Call this before they are imported."""
    pytest.register_assert_rewrite(*(f"{package}.{module.name}" for module in pkgutil.iter_modules(path)))


def tests_of(*modules: ModuleType) -> dict[str, Callable[..., None]]:
    """Return all tests of these modules by name. Names must be unique."""
    tests = [(name, test) for module in modules for name, test in vars(module).items() if name.startswith("test_")]
    assert len(tests) == len(dict(tests)), "two tests have the same name"
    return dict(tests)
