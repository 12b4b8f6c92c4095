"""The command `demo`: a tour of threadkeep on a real graph, without an API key."""

from __future__ import annotations

from threadkeep.cli.app import NEGATIVE, app

_NEEDED = "langgraph"


@app.command(epilog="Example: threadkeep demo")
def demo() -> int:
    """Take a tour: kill -9 and resume, a person in the loop, time travel, bytes on disk. No API key, no network.

    It runs a LangGraph agent in a temporary folder, which it removes at the end. The exit code is 1 if a claim of the
    tour does not hold.
    """
    try:
        from threadkeep.demo import tour  # noqa: PLC0415 - imports LangGraph
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != _NEEDED:
            raise
        raise ImportError('the demo needs LangGraph: pip install "threadkeep[demo]"') from error
    return 0 if tour.play() else NEGATIVE
