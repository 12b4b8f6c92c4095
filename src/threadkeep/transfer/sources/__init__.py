"""Sources: one file each, read-only. `sqlite_file.py` and `postgres_server.py` open databases for them."""
