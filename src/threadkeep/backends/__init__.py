"""Backends: how threads and memories are stored. A backend answers each of the engine's requests with rows.

    in_memory/   rows in dicts; the reference that all other backends must agree with
    sql/         what all SQL databases share: named SQL blocks, rows, schema versions
    sqlite/      the SQLite dialect
    postgres/    the PostgreSQL dialect: frequent requests in one statement, and pgvector
    valkey/      Valkey and Redis: Lua scripts on keys

A backend has a method `answer`, which executes one request of `engine.requests`, `engine.memories.requests` or
`engine.health.requests`. It decides nothing, decodes no state and does no I/O. A transport owns connections,
transactions and threads, and passes in what executes a statement or a call.

To write a new backend, read `in_memory/backend.py` first: it answers every request in plain Python. A SQL database
needs only a dialect, a subclass of `sql.backend.SqlBackend`; `sqlite/` is the smallest one. The
steps are in docs/contributing/architecture.md. May import `engine`, `plan` and `errors`.
"""
