"""Reading a thread's history for people: log, show, tree, diff, blame, trace, activity and sizes.

Values are returned as plain data, so no application class is needed. Nothing here writes. May import `engine.commit`,
`engine.requests`, `engine.threads`, `engine.cube` and `engine.log`.
"""
