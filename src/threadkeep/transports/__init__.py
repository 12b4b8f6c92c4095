"""Transports: the only I/O, and the only threads. They execute requests and translate what drivers raise.

runner.py    drives plans: for sync callers in their own thread, for async ones on a few workers, in one hop;
             one commit in flight a thread, what comes meanwhile goes into the next; commits of many threads
             in one transaction
direct.py    the memory backend under a lock
sqlite.py    connections to a SQLite file
"""
