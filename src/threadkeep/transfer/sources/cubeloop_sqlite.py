"""The SQLiteCheckpointer of CubeLoop and of every release of CubePi.

    messages                  JSON each, in the order of their ids
    thread_extra              extra, and what the thread was forked from
    thread_pending_request    the request that waits for an answer
    thread_hitl_answers       answers to questions
    runs                      when claimed and completed, and the order of completion

CubePi 0.5 had only the first two, without runs and parents.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from threadkeep.transfer.sources.rows import paged
from threadkeep.transfer.sources.source import CubeDetails, CubeMessage, ForeignCubeRun, UnreadableError
from threadkeep.transfer.sources.sqlite_file import SqliteRows

KIND = "cubeloop-sqlite"
_MESSAGES = {"id", "thread_id", "message_json"}
_EXTRA = {"thread_id", "extra_json"}
_PAGE = 200
_JULIAN_1970 = 2440587.5
_DAY = 86_400_000


def has_threads(tables: dict[str, set[str]]) -> bool:
    """Whether these are the tables of a checkpointer."""
    return tables.get("messages", set()) >= _MESSAGES and tables.get("thread_extra", set()) >= _EXTRA


def saved_threads(rows: SqliteRows) -> SqliteCubeThreads:
    """Return the cube threads of a database that has them."""
    return SqliteCubeThreads(rows)


class SqliteCubeThreads:
    """The threads of a SQLiteCheckpointer."""

    def __init__(self, rows: SqliteRows) -> None:
        self._rows = rows

    def count(self, thread: str | None) -> int:
        """Return the number of messages, of one thread or of all."""
        where, values = ("", ()) if thread is None else ("WHERE thread_id = ?", (thread,))
        return int(self._rows.all(f"SELECT count(*) FROM messages {where}", values)[0][0])

    def threads(self) -> list[str]:
        """Return the ids of all threads, in order."""
        names = ("messages", "thread_extra", "thread_pending_request", "thread_hitl_answers", "runs")
        queries = [f"SELECT thread_id FROM {name}" for name in names if self._has(name, "thread_id")]
        return sorted(thread for (thread,) in self._rows.all(" UNION ".join(queries)))

    def _has(self, table: str, column: str) -> bool:
        return column in self._rows.tables.get(table, set())

    def details(self, thread: str) -> CubeDetails:
        """Read all of a thread except its messages."""
        parent = "parent_thread_id" if self._has("thread_extra", "parent_thread_id") else "NULL"
        rows = self._rows.all(f"SELECT extra_json, {parent} FROM thread_extra WHERE thread_id = ?", (thread,))
        extra, forked_from = rows[0] if rows else (None, None)
        found = parsed(extra, "its extra") if extra is not None else None
        return CubeDetails(self._runs(thread), found, forked_from, self._pending(thread), self._answers(thread))

    def _runs(self, thread: str) -> list[ForeignCubeRun]:
        if not self._has("runs", "run_id"):
            return []
        query = (
            "SELECT run_id, claimed_at, completed_at, completion_seq FROM runs WHERE thread_id = ?"
            " ORDER BY claimed_at, rowid"
        )
        return [
            ForeignCubeRun(run, _time(claimed) or 0, _time(completed), order if completed is not None else None)
            for run, claimed, completed, order in self._rows.all(query, (thread,))
        ]

    def _pending(self, thread: str) -> tuple[dict[str, Any], str | None] | None:
        if not self._has("thread_pending_request", "request_json"):
            return None
        run = "run_id" if self._has("thread_pending_request", "run_id") else "NULL"
        query = f"SELECT request_json, {run} FROM thread_pending_request WHERE thread_id = ?"
        rows = self._rows.all(query, (thread,))
        return (parsed(rows[0][0], "its pending request"), rows[0][1]) if rows else None

    def _answers(self, thread: str) -> dict[tuple[str, str], Any]:
        if not self._has("thread_hitl_answers", "answer_json"):
            return {}
        query = "SELECT run_id, question_id, answer_json FROM thread_hitl_answers WHERE thread_id = ? ORDER BY 1, 2"
        rows = self._rows.all(query, (thread,))
        return {(run, question): parsed(answer, "an answer", of=object) for run, question, answer in rows}

    def messages(self, thread: str, start: int) -> Iterator[CubeMessage]:
        """Read its messages in order, from number `start` on."""
        run = "run_id" if self._has("messages", "run_id") else "NULL"
        query = (
            f"SELECT id, message_json, {run}, created_at FROM messages WHERE thread_id = ? AND id > ?"
            f" ORDER BY id LIMIT {_PAGE}"
        )
        skipped = "SELECT id FROM messages WHERE thread_id = ? ORDER BY id LIMIT 1 OFFSET ?"
        last = self._rows.all(skipped, (thread, start - 1)) if start else [(-1,)]
        if not last:
            return
        for id, text, run_id, created in paged(self._rows, query, lambda row: (thread, row[0]), (thread, last[0][0])):
            yield CubeMessage(parsed(text, f"message {id}"), run_id, _time(created) or 0)


def parsed(text: str | bytes, what: str, *, of: type = dict) -> Any:
    """Parse a JSON text. UnreadableError if it is not JSON, or of another type."""
    try:
        value = json.loads(text)
    except ValueError as error:
        raise UnreadableError(f"{what} is not JSON: {error}") from error
    if not isinstance(value, of):
        raise UnreadableError(f"{what} is not a JSON object")
    return value


def _time(days: float | None) -> int | None:
    """Return a Julian day in milliseconds since 1970."""
    return round((days - _JULIAN_1970) * _DAY) if days is not None else None
