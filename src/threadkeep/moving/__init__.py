"""Moving house: bringing in what other savers, stores and checkpointers have kept.

    recognise.py    what a path, a URL or an object is, and the source for it
    sources/        one file a source: reads rows, changes nothing, runs no code that a row names
    foreign.py      what all sources give
    rows.py         stored checkpoints taken apart, as bytes
    importing.py    the work as a whole: threads, talks, memories, one after the other
    graphs.py       LangGraph's threads: what is missing here is put, then both sides are compared
    talks.py        CubeLoop's threads, likewise
    memories.py     memories, likewise

Drivers are imported in `sources/` only, on use. A source blocks; `work.Aside` keeps it away from event loops.
"""
