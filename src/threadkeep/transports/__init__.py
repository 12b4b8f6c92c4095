"""Transports: connections, and the only I/O. They execute requests and translate what database drivers raise.

    direct.py    the in-memory backend, under a lock
    sqlite.py    connections to a SQLite file
    postgres.py  connections to a PostgreSQL server; one that is lost is made again
    valkey.py    connections to a Valkey or Redis server or cluster
    arrays.py    how values go to PostgreSQL, many at once
    *_health.py  what a storage and its driver report about themselves, and compacting

They decide nothing: what a request is, it declares (`plan.Access`); what set-up does, `backends` says.
May import `drivers`, `backends`, `engine`, `plan` and `errors`. Each driver is imported in its transport only.
"""
