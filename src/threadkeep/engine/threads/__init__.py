"""LangGraph threads: put, get, list, prune, copy, branch and tag checkpoints.

`checkpoints` is the read and write path; it uses `ops`, `staging`, `draft` and `heads`. The other modules are named
after their verbs or after what they compute. They may import the rest of the engine, `plan` and `errors`, and like the
whole engine they use no clock, no randomness, no threads and no I/O.
"""
