"""The Valkey and Redis backend: each request is a Lua script (`lua/`) or some commands on keys of one slot.

`backend.py` says which keys there are. A backend for another key-value store would start from its `answer` and from
`rows.py`, which turns rows into bytes.
"""
