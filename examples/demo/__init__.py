"""`make demo`: seven short chapters on a real LangGraph graph and a real SQLite file.

One file a chapter; `stage.py` is what they print with, `agent.py` is the agent they run.
Every ✓ on the screen is a check: the demo stops with exit code 1 at the first that does not hold.
"""
