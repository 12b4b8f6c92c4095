"""LangGraph threads: put, get, list, prune, copy, branch and tag checkpoints.

`checkpoints` is the read and write path; it uses `ops`, `staging`, `draft` and `heads`. The other modules are named
after their verbs or after what they compute. May import `engine.commit`, `engine.requests`, `engine.log`,
`engine.identity` and `engine.when`; `tags`, which serves both kinds of threads, also imports `engine.cube`, and
`damaged_rows`, which reads a damaged thread as `verify` does, imports `engine.health`.
"""
