"""Adapters for agent frameworks: LangGraph's checkpointer and store, CubeLoop's checkpointer.

An adapter checks arguments, translates them for a plan of the engine, and runs that; it makes no decisions. Each sync
method has an async twin. May import `engine`, `drivers`, `session`, `keep`, `plan`, `clock` and `errors`.
"""
