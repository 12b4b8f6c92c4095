"""Integrity: verify every stored byte, and repair a damaged checkpoint as a new branch.

`thread_scan` reads a thread as far as it can be read. May import `engine.threads`, `engine.cube` and `engine.log`.
"""
