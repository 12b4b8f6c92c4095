"""Transports: the only I/O, and the only threads. They execute requests and translate what drivers raise.

runner.py     drives plans; one commit in flight a thread of an agent, what comes meanwhile goes into the next;
              commits of many threads in one transaction, or one statement
workers.py    the threads that make changes, and that read for async callers
forks.py      what happens when the process forks
direct.py     the memory backend under a lock
sqlite.py     connections to a SQLite file
postgres.py   connections to a PostgreSQL server; what is lost is made again
arrays.py     how values go to PostgreSQL, many at once
"""
