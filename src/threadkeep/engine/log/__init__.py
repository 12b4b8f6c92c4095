"""The item log: how values become stored bytes and how they are read back.

    codec.py          values to parts and back; messages.py, message_cache.py make that fast for messages
    type_gate.py      which classes a stored value may become
    itemlog.py        parts as compressed, checksummed items; item_cache.py holds them in memory
    records.py        the rows of threads, checkpoints and writes, which refer to items
    msgpack.py        msgpack headers and lengths, without decoding; splitter.py and cut_points.py use it
    plain.py          stored values as plain data, for people

May import nothing of threadkeep but `errors`, `engine.identity` and its own modules.
"""
