"""What a person can ask of a thread: log, show, tree, diff, blame, trace, activity, sizes.

Values come as plain data: no class of the application is needed. May import `engine.threads` and `engine.log`.
"""
