"""Memories: the values of LangGraph's store, found by key, filter, words or vectors.

`plans` has the verbs, `requests` what they ask of a backend. May import nothing of threadkeep but `plan` and `errors`.
"""
