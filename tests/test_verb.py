"""Every verb of a Keep exists sync and async, with one signature and one docstring."""

from __future__ import annotations

import inspect
import threading
import typing

import pytest

from threadkeep import Keep
from threadkeep.verb import blocking_verb

ALONE = {"lease", "metrics", "tenant", "setup", "close", "aclose", "start_sweeping", "stop_sweeping"}
VERBS = [name for name in vars(Keep).copy() if inspect.isfunction(getattr(Keep, name)) and not name.startswith("_")]
SYNC = [name for name in VERBS if name not in ALONE and not inspect.iscoroutinefunction(getattr(Keep, name))]


def test_every_verb_has_an_async_variant() -> None:
    assert {f"a{name}" for name in SYNC} == set(VERBS) - set(SYNC) - ALONE
    assert {"threads", "tree", "prune", "sweep", "repair", "export", "import_from"} <= set(SYNC)


@pytest.mark.parametrize("name", SYNC)
def test_a_verb_and_its_async_variant_look_like_ordinary_methods(name: str) -> None:
    verb, twin = getattr(Keep, name), getattr(Keep, f"a{name}")
    assert inspect.iscoroutinefunction(twin)
    assert inspect.signature(verb) == inspect.signature(twin)
    assert next(iter(inspect.signature(verb).parameters)) == "self"
    assert verb.__doc__ == twin.__doc__
    assert len(verb.__doc__) > 20
    for each, called in ((verb, name), (twin, f"a{name}")):
        assert (each.__name__, each.__qualname__) == (called, f"Keep.{called}")
        hints = typing.get_type_hints(each)
        assert set(hints) == {*inspect.signature(each).parameters, "return"} - {"self"}
        assert "Generator" not in str(hints["return"])


async def test_a_function_that_blocks_runs_in_a_thread_for_async_callers() -> None:
    def _where(*, twice: bool = False) -> int:
        """Return the thread that runs it."""
        return threading.get_ident() * (2 if twice else 1)

    where, awhere = blocking_verb(_where)
    assert where() == threading.get_ident() == where(twice=True) // 2
    assert await awhere() != threading.get_ident()
    assert inspect.signature(where) == inspect.signature(awhere) == inspect.signature(_where)
    assert (where.__name__, awhere.__name__, awhere.__doc__) == ("where", "awhere", _where.__doc__)
