"""Reads the latest state of a thread in a new process, and prints what that took in ms, as JSON.

    python bench/cold_read.py threadkeep sqlite:////tmp/keep.db THREAD [MODULE ...]

First comes what every agent imports anyway: LangGraph and LangChain's messages. That does not count. Then, apart, the
imports of the saver, and everything from opening the storage to the state. Modules that are imported on first use only
are printed too; given as arguments, they are imported with the saver, so that their time counts as imports. Caches of
the operating system stay warm.
"""

from __future__ import annotations

import importlib
import json
import sys
from contextlib import suppress
from time import perf_counter, process_time

AGENT_IMPORTS = ("langgraph.graph", "langgraph.graph.message", "langchain_core.messages")


def threadkeep_saver(url: str) -> object:
    import threadkeep

    imported()
    return threadkeep.open(url).checkpointer


def sqlite_saver(url: str) -> object:
    import sqlite3

    from langgraph.checkpoint.sqlite import SqliteSaver

    imported()
    return SqliteSaver(sqlite3.connect(url.removeprefix("sqlite:///"), check_same_thread=False))


def postgres_saver(url: str) -> object:
    from langgraph.checkpoint.postgres import PostgresSaver
    from psycopg import Connection
    from psycopg.rows import dict_row

    imported()
    return PostgresSaver(Connection.connect(url, autocommit=True, prepare_threshold=0, row_factory=dict_row))


SAVERS = {"threadkeep": threadkeep_saver, "SqliteSaver": sqlite_saver, "PostgresSaver": postgres_saver}
moments: list[tuple[float, float]] = []
known: set[str] = set()


def imported() -> None:
    """Import what was given, and note that opening begins."""
    for module in sys.argv[4:]:
        with suppress(ImportError):
            importlib.import_module(module)
    known.update(sys.modules)
    now()


def now() -> None:
    """Note a moment: before the saver's imports, after them, and at the end."""
    moments.append((perf_counter(), process_time()))


def main() -> None:
    name, url, thread = sys.argv[1:4]
    for module in AGENT_IMPORTS:
        importlib.import_module(module)
    now()
    saver = SAVERS[name](url)
    found = saver.get_tuple({"configurable": {"thread_id": thread, "checkpoint_ns": ""}})  # type: ignore[attr-defined]
    now()
    assert found is not None
    assert found.checkpoint["channel_values"]["messages"]
    (start, cpu), (middle, middle_cpu), (end, end_cpu) = moments
    taken = {
        "imports": middle - start,
        "imports, CPU": middle_cpu - cpu,
        "open and get": end - middle,
        "open and get, CPU": end_cpu - middle_cpu,
        "all": end - start,
        "all, CPU": end_cpu - cpu,
    }
    late = sorted(module for module in sys.modules if module not in known and sys.modules[module] is not None)
    print(json.dumps({"taken": {part: seconds * 1e3 for part, seconds in taken.items()}, "late": late}))


if __name__ == "__main__":
    main()
