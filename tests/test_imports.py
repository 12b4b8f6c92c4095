"""What is imported when: a program pays at its start only for what it uses."""

from __future__ import annotations

import ast
import gc
import json
import subprocess
import sys
import weakref
from pathlib import Path

import pytest

import threadkeep
from threadkeep import jobs
from threadkeep.backends import postgres, sql, sqlite
from threadkeep.collector import paused_collector
from threadkeep.engine import cube, health, memories, threads
from threadkeep.engine.memories import requests as memory_requests
from threadkeep.plan import Request

OPEN_AND_READ = """
keep = threadkeep.open(sys.argv[1])
keep.checkpointer.get_tuple({"configurable": {"thread_id": "t"}})
keep.close()
"""


MOST_MODULES = 77
"""How many modules of ours a program may import until it has read a thread. Each takes 0.1 ms or more."""


class Loop:
    """An object that can refer to itself."""

    itself: Loop | None = None


def imported(code: str, *args: str) -> set[str]:
    """Return the modules that a new process has imported at the end of some code."""
    program = f"import json, sys\nimport threadkeep\n{code}\nprint(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program, *args], capture_output=True, text=True, check=True)
    return set(json.loads(done.stdout))


def ours(modules: set[str], *packages: str) -> list[str]:
    return sorted(name for name in modules if name.startswith(tuple(f"threadkeep.{each}" for each in packages)))


def test_the_package_imports_neither_langchain_nor_a_driver() -> None:
    tops = {name.partition(".")[0] for name in imported("")}
    assert (
        tops & {"langchain_core", "langgraph", "pydantic", "apsw", "psycopg", "redis", "zstandard", "asyncio"} == set()
    )


def test_opening_and_reading_a_file_imports_nothing_for_other_verbs_and_databases(tmp_path: Path) -> None:
    found = imported(OPEN_AND_READ, f"sqlite:///{tmp_path}/a.db")
    assert {"apsw", "threadkeep.transports.sqlite"} <= found
    assert {name.partition(".")[0] for name in found} & {
        "psycopg",
        "redis",
        "numpy",
        "typer",
        "rich",
        "cubeloop",
    } == set()
    assert ours(found, "jobs.", "transfer", "cli", "engine.health.", "engine.history", "engine.cube.") == []
    assert ours(found, "engine.memories.", "backends.sql.memories", "backends.sql.health", "backends.postgres") == []
    assert len(ours(found, "")) <= MOST_MODULES


def test_opening_and_reading_a_file_defines_no_dataclass_of_ours(tmp_path: Path) -> None:
    code = f"""
import dataclasses
made = []
define = dataclasses.dataclass
def count(cls=None, /, **options):
    made.append(sys._getframe(1).f_globals["__name__"])
    return define(cls, **options)
dataclasses.dataclass = count
{OPEN_AND_READ}
print([name for name in made if name.startswith("threadkeep")], file=sys.stderr)
"""
    program = f"import sys\nimport threadkeep\n{code}"
    done = subprocess.run(
        [sys.executable, "-c", program, f"sqlite:///{tmp_path}/a.db"], capture_output=True, text=True, check=True
    )
    assert done.stderr.strip().endswith("[]")


def test_opening_a_server_imports_no_code_for_memories_and_health() -> None:
    pytest.importorskip("psycopg_pool")
    found = imported("threadkeep.open('postgresql://localhost/x').checkpointer")
    assert "threadkeep.transports.postgres" in found
    assert "psycopg_pool" not in found
    assert (
        ours(found, "engine.memories.", "engine.health.", "backends.postgres.memories", "backends.sql.memories") == []
    )


@pytest.mark.parametrize("name", threadkeep.PUBLIC_NAMES)
def test_every_public_name_is_found_listed_and_imported_from_its_module(name: str) -> None:
    assert getattr(threadkeep, name) is not None
    assert name in dir(threadkeep)


def test_type_checkers_see_every_public_name() -> None:
    source = ast.parse(Path(threadkeep.__file__).read_text("utf-8"))
    (names,) = (
        node for node in ast.walk(source) if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
    )
    assert sorted([*ast.literal_eval(names.value), "open"]) == list(threadkeep.PUBLIC_NAMES)
    imported_names = {
        alias.asname or alias.name
        for node in ast.walk(source)
        if isinstance(node, ast.ImportFrom) and node.module.startswith("threadkeep.")
        for alias in node.names
    }
    assert set(threadkeep.PUBLIC_NAMES) - {"errors"} <= imported_names


STAR_IMPORT = """
import builtins, sys
for extra in ("numpy", "psycopg", "redis", "cubeloop", "starlette", "deepagents"):
    sys.modules[extra] = None  # as if it were not installed
before = set(dir(builtins))
from threadkeep import *
assert open is builtins.open
assert not before & set(globals()) - {"__name__", "__doc__", "__package__", "__loader__", "__spec__", "__build_class__", "__import__"}
assert Keep and KeepCube and errors
"""


def test_a_star_import_shadows_no_builtin_and_needs_no_extra() -> None:
    done = subprocess.run([sys.executable, "-c", STAR_IMPORT], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = threadkeep.nothing


@pytest.mark.parametrize("package", [jobs, sql, sqlite, postgres, cube, health, memories, threads])
def test_a_package_that_imports_its_modules_on_use_has_all_of_them(package: object) -> None:
    for name in package.__all__:
        assert getattr(package, name).__name__ == f"{package.__name__}.{name}"
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = package.nothing


def test_requests_about_memories_say_so() -> None:
    """By this, backends and transports find the code for them."""
    found = [each for each in vars(memory_requests).values() if isinstance(each, type) and issubclass(each, Request)]
    assert {each.access.subject for each in found if each is not Request} == {"memories"}


def test_the_collector_runs_again_after_an_import_and_no_object_stays_frozen() -> None:
    assert gc.isenabled()
    with paused_collector():
        assert not gc.isenabled()
        loop = Loop()
        loop.itself = loop
        alive = weakref.ref(loop)
        del loop
    assert gc.isenabled()
    assert gc.get_freeze_count() == 0
    gc.collect()
    assert alive() is None


def test_a_collector_that_the_program_turned_off_stays_off() -> None:
    gc.disable()
    try:
        with paused_collector():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_objects_that_the_program_froze_stay_frozen() -> None:
    gc.freeze()
    try:
        frozen = gc.get_freeze_count()
        with paused_collector():
            assert gc.isenabled()
        assert 0 < gc.get_freeze_count() <= frozen
    finally:
        gc.unfreeze()
