"""LangGraph threads: putting, getting, listing, pruning, copying and branching checkpoints.

`checkpoints` is the read and write path; the other modules are named after their verbs. May import `engine.log`,
`engine.requests`, `engine.commit` and `engine.identity`.
"""
