"""Backends: how rows are kept. Each answers the requests of `engine.backend`; none decides, decodes or does I/O itself.

A backend is given what it needs to reach its rows (`memory`: its own dicts; `sqlite`: a function that runs one SQL
block) by a transport, which owns connections, transactions and threads.
"""
