"""The tour of `threadkeep demo`: seven short chapters on a real LangGraph graph and a real SQLite file.

There is one file per chapter; `stage.py` prints, `agent.py` is the agent that they run.
Every ✓ on the screen is a check: the demo stops with exit code 1 at the first that fails.
"""
