"""Transports: connections to databases, and all their I/O. They execute requests and translate drivers' errors.

    direct.py             the in-memory backend, under a lock
    sqlite.py             a SQLite file
    postgres.py           a PostgreSQL server: requests, groups of commits, retries
      postgres_pool.py    its connections; postgres_cursor.py, postgres_arrays.py and postgres_errors.py serve both
    valkey.py             a Valkey or Redis server or cluster: requests, redirections
      valkey_nodes.py     its servers and slots; valkey_pipeline.py sends calls to one server
      valkey_contact.py   the first contact; valkey_outages.py waits for servers that are down
      valkey_unfinished.py  changes that a slow server has not answered
    *_health.py           what a storage reports about itself (`doctor`), integrity checks, and compacting

Each implements `drivers.runner.Transport`. They make no decisions about data: a request declares what it is
(`plan.Access`), and `backends` decide what it and set-up do. They may import `drivers`, `backends`, `engine`, `plan`
and `errors`. Each database driver is imported in its own transport only.
"""
