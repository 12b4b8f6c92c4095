"""Transfers: threads and memories out of a Keep and into one.

Three verbs bring threads into a Keep. They share one pipeline and one result type:

    import_from.py       `Keep.import_from`: what other savers, stores and checkpointers hold
    portable/            `Keep.export` and `Keep.import_portable`: the portable file, and its redaction
    convert.py           `threadkeep.convert`: from one Keep into another

    selection.py         which threads and memories
    pipeline.py          the steps of every transfer: decide, put, compare, count
    graph_threads.py, cube_threads.py    threads of other libraries: put the values that are missing
    thread_copy.py       threads of our own: build, update or merge them; thread_builder.py, compare.py
    memories.py          memories: put those that are missing or older
    result.py            what was done
    sources/             what other libraries store

Everything here is long work (`threadkeep.work`): it may be interrupted between any two steps, and repeated. It may
import the engine, `session`, `keep`, `verb`, `plan`, `work` and `errors`; drivers are imported in `sources/` only.
"""
