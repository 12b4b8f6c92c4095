"""The engine: what a thread is and how it changes. Pure: no I/O, no clock, no randomness, no threads.

Rules of this folder:
- Logic is in plans (`threadkeep.plan`) that await the requests of `backend.py`; one await is one round trip.
- A write is decided first and then sent as one `Commit` of one thread, with a precondition.
- Bytes enter and leave through `codec.py`, `itemlog.py` and `records.py` only.

The way of data: `codec` (value -> parts) -> `itemlog` (parts -> items) -> `records` (rows) -> `checkpoints` (verbs).
"""
