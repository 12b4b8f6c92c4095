"""Drivers: run plans in threads and for event loops. Only this package and `transports` use threads or asyncio.

    runner.py      drives plans: one change at a time per agent thread; commits of many threads go out together
    workers.py     the threads that make changes, and that read for async callers
    loops.py       calls blocking code from event loops, and coroutines from blocking code
    background.py  daemon threads for periodic work and for work that nobody waits for
    forks.py       what happens when the process forks

May import `engine`, `plan` and `errors`. Transports are known only by the protocol `runner.Transport`.
"""
