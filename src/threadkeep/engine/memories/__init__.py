"""Memories: the values of LangGraph's store, found by key, filter, full text or vectors.

`plans` has the verbs, `requests` what they request from a backend. May import `engine.identity`, `plan` and `errors`.
"""
