"""Backends: how rows are kept. Each answers the requests of `engine.backend`; none decides, decodes or does I/O itself.

memory.py     rows in dicts
sql.py        what all SQL databases do alike, on named blocks: blocks.py reads them from sql/common.sql and a dialect's file
sqlite.py     what SQLite says otherwise
postgres.py   what PostgreSQL says otherwise, and its requests in one statement
setup.py      which schema versions can be used; sqlite_setup.py and postgres_setup.py make and migrate the schema
valkey.py     keys and scripts of Valkey and Redis

A backend is given what it needs to reach its rows (a cursor that runs SQL) by a transport, which owns connections,
transactions and threads. May import `engine`, `plan` and `errors`.
"""
