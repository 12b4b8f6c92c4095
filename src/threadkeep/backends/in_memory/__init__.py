"""The in-memory backend: rows in dicts. It is the reference that all other backends must agree with.

`backend.py` answers the requests on threads, `memories.py` those on memories. A new backend that is not a SQL database
starts here: it has to give the same answers.
"""
