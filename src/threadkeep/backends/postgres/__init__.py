"""The PostgreSQL dialect: its schema and set-up, loads and commits in one statement, and pgvector.

`dialect.py` lists what differs from `backends.sql`. A database that speaks PostgreSQL's protocol but lacks something
starts with the shared statements, which work here too: the one-statement requests only save round trips.
"""
