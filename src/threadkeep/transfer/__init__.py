"""Moving house: bringing in what others have kept, writing threads and memories into a file, and from one Keep to another.

From others:

    recognise.py    what a path, a URL or an object is, and the source for it
    sources/        one file a source: reads rows, changes nothing, runs no code that a row names
    foreign.py      what all sources give
    rows.py         stored checkpoints taken apart, as bytes
    importing.py    the work as a whole: threads, talks, memories, one after the other
    graphs.py       LangGraph's threads: what is missing here is put, then both sides are compared
    talks.py        CubeLoop's threads, likewise
    memories.py     memories, likewise

Between Keeps:

    portable.py     the file: its lines, read and written
    exporting.py    a Keep into a file        redacting.py   without what people wrote
    bringing.py     a file into a Keep
    converting.py   a Keep into another

Everything here is long work (`threadkeep.work`): it may be interrupted between any two steps, and begun again. Drivers are
imported in `sources/` only, on use. A source blocks; `work.Aside` keeps it away from event loops.
"""
