"""The in-memory backend: rows in dicts. It is the reference that all other backends must agree with."""
