"""The SQLite dialect: its schema, its set-up, and the few SQL blocks that differ from the shared ones.

It is the smallest dialect. A dialect for another SQL database can start as a copy of this folder.
"""
