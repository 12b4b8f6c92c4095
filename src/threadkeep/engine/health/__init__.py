"""Integrity of what is stored: verify checks every stored byte, repair rebuilds a damaged checkpoint as a new branch.

Both start from `thread_scan`, which reads a thread as far as it can be read. So does `salvage`, which reads what may be
copied. May import all other parts of the engine.
"""
