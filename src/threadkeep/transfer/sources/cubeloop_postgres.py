"""The PostgresCheckpointer of CubeLoop and CubePi.

    cubepi_threads        extra, parent; pending_request since version 2, its run_id since 3
    cubepi_messages       msgpack each, metadata as JSON beside it; run_id since version 4
    cubepi_runs           since version 4
    cubepi_hitl_answers   since version 5

These are versions of its schema, 1 to 5. The columns that exist tell which one it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import ormsgpack

from threadkeep.transfer.sources.postgres_server import PostgresRows
from threadkeep.transfer.sources.rows import paged
from threadkeep.transfer.sources.source import CubeDetails, CubeMessage, ForeignCubeRun, UnreadableError, milliseconds

KIND = "cubeloop-postgres"
_MESSAGES = {"thread_id", "seq", "role", "metadata", "payload"}
_PAGE = 200


def has_threads(tables: dict[str, set[str]]) -> bool:
    """Whether these are the tables of a checkpointer."""
    return "thread_id" in tables.get("cubepi_threads", set()) and tables.get("cubepi_messages", set()) >= _MESSAGES


def saved_threads(rows: PostgresRows) -> PostgresCubeThreads:
    """Return the cube threads of a database that has them."""
    return PostgresCubeThreads(rows)


class PostgresCubeThreads:
    """The threads of a PostgresCheckpointer."""

    def __init__(self, rows: PostgresRows) -> None:
        self._rows = rows

    def count(self, thread: str | None) -> int:
        """Return the number of messages, of one thread or of all."""
        where, values = ("", ()) if thread is None else ("WHERE thread_id = %s", (thread,))
        return int(self._rows.all(f"SELECT count(*) FROM cubepi_messages {where}", values)[0][0])

    def threads(self) -> list[str]:
        """Return the ids of all threads, in order."""
        return sorted(thread for (thread,) in self._rows.all("SELECT thread_id FROM cubepi_threads"))

    def _column(self, table: str, name: str) -> str:
        return name if name in self._rows.tables.get(table, set()) else "NULL"

    def details(self, thread: str) -> CubeDetails:
        """Read all of a thread except its messages."""
        names = [self._column("cubepi_threads", name) for name in ("parent_thread_id", "pending_request", "run_id")]
        query = f"SELECT extra, {', '.join(names)} FROM cubepi_threads WHERE thread_id = %s"
        rows = self._rows.all(query, (thread,))
        extra, parent, request, run = rows[0] if rows else (None, None, None, None)
        if extra is not None and not isinstance(extra, dict):
            raise UnreadableError("its extra is not a JSON object")
        pending = (request, run) if isinstance(request, dict) else None
        return CubeDetails(self._runs(thread), extra, parent, pending, self._answers(thread))

    def _runs(self, thread: str) -> list[ForeignCubeRun]:
        if "cubepi_runs" not in self._rows.tables:
            return []
        query = (
            "SELECT run_id, claimed_at, completed_at, completion_seq FROM cubepi_runs WHERE thread_id = %s"
            " ORDER BY claimed_at, run_id"
        )
        return [
            ForeignCubeRun(
                run, milliseconds(claimed) or 0, milliseconds(completed), order if completed is not None else None
            )
            for run, claimed, completed, order in self._rows.all(query, (thread,))
        ]

    def _answers(self, thread: str) -> dict[tuple[str, str], Any]:
        if "cubepi_hitl_answers" not in self._rows.tables:
            return {}
        query = "SELECT run_id, question_id, answer FROM cubepi_hitl_answers WHERE thread_id = %s ORDER BY 1, 2"
        return {(run, question): answer for run, question, answer in self._rows.all(query, (thread,))}

    def messages(self, thread: str, start: int) -> Iterator[CubeMessage]:
        """Read its messages in order, from number `start` on."""
        run = self._column("cubepi_messages", "run_id")
        query = (
            f"SELECT seq, metadata, payload, {run}, created_at FROM cubepi_messages"
            f" WHERE thread_id = %s AND seq > %s ORDER BY seq LIMIT {_PAGE}"
        )
        skipped = "SELECT seq FROM cubepi_messages WHERE thread_id = %s ORDER BY seq LIMIT 1 OFFSET %s"
        last = self._rows.all(skipped, (thread, start - 1)) if start else [(-1,)]
        if not last:
            return
        rows = paged(self._rows, query, lambda row: (thread, row[0]), (thread, last[0][0]))
        for seq, about, payload, run_id, created in rows:
            yield CubeMessage(_plain(seq, payload, about), run_id, milliseconds(created) or 0)


def _plain(seq: int, payload: bytes, about: Any) -> dict[str, Any]:
    """A message as the checkpointer reads it: metadata comes from the column."""
    try:
        plain = ormsgpack.unpackb(bytes(payload))
    except ValueError as error:
        raise UnreadableError(f"message {seq} is not msgpack: {error}") from error
    if not isinstance(plain, dict):
        raise UnreadableError(f"message {seq} is not a dict")
    return plain | {"metadata": about or {}}
