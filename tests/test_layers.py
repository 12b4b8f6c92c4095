"""The layers of threadkeep: which module may import which, as one table, and no import cycles."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import NamedTuple

import pytest

import threadkeep

SOURCE = Path(threadkeep.__file__).parent
GUARDED = frozenset(
    [
        "asyncio",
        "atexit",
        "concurrent",
        "multiprocessing",
        "os",
        "queue",
        "random",
        "secrets",
        "signal",
        "socket",
        "sqlite3",
        "subprocess",
        "threading",
        "time",
    ]
)
"""Standard-library modules that only some layers may use. Every third-party library is guarded as well."""


class Layer(NamedTuple):
    """What a package or a top-level module may import: our own modules, and guarded ones.

    `threadkeep` is the package itself, as users see it.
    """

    ours: str
    guarded: str = ""


LAYERS = {
    # pure: no clock, no randomness, no system calls
    "value": Layer(""),
    "plan": Layer("value"),
    "errors": Layer(""),
    "version": Layer(""),
    "collector": Layer(""),
    "plural": Layer(""),
    "short_repr": Layer("plural"),
    "engine": Layer(
        "collector engine plan errors plural short_repr value",
        "langchain_core langgraph numpy orjson ormsgpack zstandard",
    ),
    "backends": Layer("backends engine plan errors value", "ormsgpack"),
    "work": Layer("engine errors plan"),
    # threads, event loops, databases
    "clock": Layer("", "os random time"),
    "drivers": Layer(
        "collector drivers engine plan errors", "asyncio atexit concurrent os queue random threading time"
    ),
    "transports": Layer(
        "transports drivers backends engine plan errors value",
        "apsw hiredis os psycopg psycopg_pool random redis socket threading time",
    ),
    "urls": Layer("backends drivers errors transports value", "os psycopg psycopg_pool redis"),
    "encryption": Layer("clock encryption engine errors plan", "cryptography orjson ormsgpack os zstandard"),
    "tenants": Layer("clock drivers encryption engine errors plan tenants", "ormsgpack threading time"),
    "session": Layer("clock drivers encryption engine errors observability plan tenants work"),
    "observability": Layer(
        "drivers engine errors observability plan session short_repr tenants value version", "opentelemetry time"
    ),
    # what users call
    "adapters": Layer(
        "adapters clock drivers engine errors keep plan session urls",
        "cubeloop deepagents langchain_core langgraph random",
    ),
    "transfer": Layer(
        "transfer clock encryption engine errors keep plan session short_repr urls verb work",
        "cryptography ormsgpack os zstandard",
    ),
    "transfer/sources": Layer("transfer engine errors", "apsw langgraph ormsgpack os psycopg pymysql"),
    "jobs": Layer(
        "adapters jobs clock drivers encryption engine errors keep plan session short_repr tenants transfer version work",
        "os secrets time",
    ),
    "verb": Layer("drivers plan session work"),
    "leases": Layer("clock drivers engine errors plan session", "os secrets socket time"),
    "keep": Layer(
        "adapters collector encryption engine errors jobs leases observability session tenants urls verb",
        "langgraph psycopg_pool",
    ),
    "__init__": Layer("adapters collector encryption engine errors jobs keep leases observability transfer version"),
    "agent_server": Layer(
        "adapters drivers encryption engine keep threadkeep", "atexit cryptography langchain_core langgraph os"
    ),
    # programs, and the conformance suites, which start threads and event loops on purpose
    "inspector": Layer(
        "adapters engine errors inspector jobs plural threadkeep version",
        "asyncio jinja2 langgraph markdown_it markupsafe secrets socket starlette time uvicorn",
    ),
    "demo": Layer("demo errors threadkeep", "langchain_core langgraph os random rich signal subprocess time"),
    "cli": Layer(
        "cli demo engine errors inspector jobs plural transfer threadkeep transports urls work", "os rich time typer"
    ),
    "cli/pager": Layer("", "os subprocess"),
    "__main__": Layer("cli"),
    "conformance": Layer(
        "conformance", "asyncio concurrent cubeloop langchain_core langgraph pydantic pytest threading time"
    ),
}
"""The layer of a file is the longest key that its path starts with."""

ON_USE = {
    (
        "threadkeep.keep",
        "threadkeep.adapters.langgraph_saver",
    ): "a Keep makes its adapters on use; from_conn_string opens a Keep",
    ("threadkeep.keep", "threadkeep.adapters.langgraph_store"): "the same",
    ("threadkeep.keep", "threadkeep.adapters.deepagents_files"): "the same; it is on the store",
    ("threadkeep.engine.history.show", "threadkeep.engine.history.notebook"): "a Tree draws itself only in notebooks",
    ("threadkeep.engine.log.type_gate", "threadkeep.engine.log.upcasters"): "few programs have upcasters",
}
"""Imports inside functions that would be cycles at module level, and why they are needed."""


class Imported(NamedTuple):
    """An imported module. `only_types` means that the import never runs."""

    module: str
    only_types: bool
    in_function: bool


def paths() -> list[str]:
    return [path.relative_to(SOURCE).as_posix() for path in sorted(SOURCE.rglob("*.py"))]


def name_of(path: str) -> str:
    return ".".join(("threadkeep", *Path(path).with_suffix("").parts)).removesuffix(".__init__")


MODULES = {name_of(path): path for path in paths()}


def imported(path: str) -> Iterator[Imported]:
    tree = ast.parse((SOURCE / path).read_text("utf-8"))
    yield from _imports(tree, only_types=False, in_function=False)


def _imports(node: ast.AST, *, only_types: bool, in_function: bool) -> Iterator[Imported]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            yield from (Imported(alias.name, only_types, in_function) for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            assert child.level == 0, "an import is relative"
            assert child.module is not None
            for alias in child.names:
                full = f"{child.module}.{alias.name}"
                yield Imported(full if full in MODULES else child.module, only_types, in_function)
        else:
            types = isinstance(child, ast.If) and isinstance(child.test, ast.Name) and child.test.id == "TYPE_CHECKING"
            function = isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
            yield from _imports(child, only_types=only_types or types, in_function=in_function or function)


def layer_of(path: str) -> str:
    folders = path.removesuffix(".py").split("/")
    names = ("/".join(folders[:n]) for n in range(len(folders), 0, -1))
    return next(name for name in names if name in LAYERS)


def is_guarded(module: str) -> bool:
    return module in GUARDED or module not in sys.stdlib_module_names


def forbidden(path: str) -> set[str]:
    """Return the imports of a module that its layer does not allow."""
    layer = LAYERS[layer_of(path)]
    tops = [(*each.module.split("."), "threadkeep")[:2] for each in imported(path)]
    ours = {below for top, below in tops if top == "threadkeep"}
    guarded = {top for top, _ in tops if top != "threadkeep" and is_guarded(top)}
    return (ours - set(layer.ours.split())) | (guarded - set(layer.guarded.split()))


def test_a_module_imports_only_what_its_layer_may() -> None:
    assert {path: found for path in paths() if (found := forbidden(path))} == {}


PARTS_OF_ENGINE = {
    "identity": "",
    "when": "",
    "schema_versions": "",
    "log": "identity",
    "requests": "identity log",
    "lease": "identity log requests",
    "commit": "identity lease log requests threads",
    "threads": "commit cube health identity lease log requests when",  # tags.py serves cube threads, damaged_rows.py scans
    "cube": "commit health identity log requests threads",  # repair.py is a part of health's repair
    "memories": "identity",
    "tenants": "",
    "cache": "health identity log memories tenants",  # entries are memories of another tenant
    "history": "commit cube identity log requests threads",
    "health": "commit cube history identity log memories requests search threads",
    "search": "cube history identity log memories threads",
}
"""What each package and module of the engine may import of the others, as their docstrings say."""


@pytest.mark.parametrize("part", PARTS_OF_ENGINE)
def test_a_part_of_the_engine_imports_only_what_it_may(part: str) -> None:
    inside = [path for path in paths() if path.split("/")[:2] in (["engine", part], ["engine", f"{part}.py"])]
    found = [each.module.split(".") for path in inside for each in imported(path) if not each.only_types]
    others = {module[2] for module in found if module[:2] == ["threadkeep", "engine"] and len(module) > 2} - {part}
    assert inside
    assert others <= set(PARTS_OF_ENGINE[part].split())


def test_every_part_of_the_engine_is_in_the_table() -> None:
    parts = {path.split("/")[1].removesuffix(".py") for path in paths() if path.startswith("engine/")}
    assert parts - {"__init__"} == PARTS_OF_ENGINE.keys()


def test_every_layer_has_modules() -> None:
    assert [name for name in LAYERS if not ((SOURCE / name).is_dir() or (SOURCE / f"{name}.py").is_file())] == []


def test_threads_and_event_loops_are_used_by_drivers_and_transports_only() -> None:
    users = [name for name, layer in LAYERS.items() if {"asyncio", "threading"} & set(layer.guarded.split())]
    assert users == ["drivers", "transports", "tenants", "inspector", "conformance"]


def imports() -> dict[str, set[str]]:
    """Return our modules that each module imports at run time, also inside functions."""
    return {
        name: {each.module for each in imported(path) if each.module in MODULES and not each.only_types} - {name}
        for name, path in MODULES.items()
    }


def test_no_condition_is_entered_itself() -> None:
    """A `with` on a Condition runs Python: Ctrl-C there leaves its lock locked. Enter the lock, which is written in C."""
    for path in sorted(SOURCE.rglob("*.py")):
        tree = ast.parse(path.read_text("utf-8"))
        conditions = {
            ast.unparse(target)
            for node in ast.walk(tree)
            if isinstance(node, ast.Assign) and ast.unparse(node.value).startswith("threading.Condition(")
            for target in node.targets
        }
        entered = {
            ast.unparse(each.context_expr)
            for node in ast.walk(tree)
            if isinstance(node, ast.With)
            for each in node.items
        }
        assert not conditions & entered, path


def test_there_are_no_import_cycles() -> None:
    graph = imports()
    for importer, module in ON_USE:
        graph[importer].remove(module)
    try:
        list(TopologicalSorter(graph).static_order())
    except CycleError as error:
        pytest.fail(" <- ".join(error.args[1]))


@pytest.mark.parametrize("edge", ON_USE)
def test_a_cycle_that_is_justified_is_inside_a_function(edge: tuple[str, str]) -> None:
    importer, module = edge
    found = [each for each in imported(MODULES[importer]) if each.module == module and not each.only_types]
    assert found
    assert all(each.in_function for each in found)
