"""Drivers: what drives plans. Threads and event loops are used here and in `transports` only.

    runner.py      drives plans: one commit in flight per agent thread; commits of many threads go out together
    workers.py     the threads that make changes, and that read for async callers
    loops.py       blocking code called from event loops, and coroutines called from blocking code
    background.py  threads that nobody waits for: work that is repeated, and work that is done once
    forks.py       what happens when the process forks

May import `engine`, `plan` and `errors`. Transports are known by the protocol `runner.Transport`.
"""
