"""The engine: what threads, checkpoints and memories are and how they change. No I/O, clock, randomness or threads.

    requests.py   what the engine asks of a backend; one request is one round trip
    commit.py     optimistic commits: read, decide, commit, try again
    identity.py   thread keys and ids            when.py   durations and points in time
    log/          values as stored bytes: split, compressed, checksummed
    threads/      LangGraph threads: put, get, list, prune, copy, branch
    cube/         CubeLoop threads
    memories/     the LangGraph store
    history/      what people look at: show, diff, blame, audit, sizes
    search/       what was said, by words
    health/       verify and repair

Rules of this folder:
- Logic is in plans (`threadkeep.plan`) that await requests.
- A write is decided first, then sent as one request that changes one thread under a precondition.
- Bytes enter and leave only through `log/codec.py`, `log/itemlog.py` and `log/records.py`.
- May import `plan` and `errors` of threadkeep. The subfolders import `log/` and each other without cycles.
"""
