"""Verbs that show a thread again and again read all its rows once, and see every change at once."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

import threadkeep
from checkpoint_chains import Chain, config
from threadkeep.engine.history import show
from threadkeep.engine.requests import LoadThreadRows
from threadkeep.plan import drive

LATEST = "latest"


@pytest.fixture
def chain(keep: threadkeep.Keep) -> Chain:
    """A thread whose rows the Keep keeps once they were read."""
    chain = Chain(keep.checkpointer)
    for n in range(4):
        chain.put({"messages": [f"message {each}" for each in range(n)]})
    keep._session.keep_rows()
    return chain


def requests_of(keep: threadkeep.Keep, ref: str) -> Counter[str]:
    """Show a checkpoint; return what that requested."""
    sent: Counter[str] = Counter()

    def answer(request: Any) -> Any:
        sent[type(request).__name__] += 1
        return keep._session.transport.read(request)

    drive(show.show(keep._session.heads, keep._session.key("graph", "t"), ref, ""), answer)
    return sent


@pytest.mark.usefixtures("chain")
def test_all_rows_are_read_once(keep: threadkeep.Keep) -> None:
    assert requests_of(keep, LATEST)[LoadThreadRows.__name__] == 1
    for ref in ("latest~1", "latest~2", LATEST):
        sent = requests_of(keep, ref)
        assert LoadThreadRows.__name__ not in sent
        assert sent.total() <= 2, "the thread's own row, and items that were not read yet"
    assert requests_of(keep, LATEST).total() == 1


def test_every_change_is_seen_at_once(keep: threadkeep.Keep, chain: Chain) -> None:
    assert keep.show("t").checkpoint.id == chain.last
    chain.put({"messages": ["a new one"]})
    assert keep.show("t").values["messages"] == ["a new one"]
    keep.checkpointer.put_writes(config("t", chain.last), [("messages", "more")], "task")
    assert [write.value for write in keep.show("t").writes] == ["more"]
    assert [write.value for write in keep.trace("t", values=True)] == ["more"]
    for tag in ("one", "two"):
        keep.tag("t", LATEST, tag)
        assert keep.show("t").checkpoint.tag == tag
    keep.prune("t", policy=threadkeep.Policy(keep_last=1, keep_branches=False))
    assert len(keep.log("t")) == 1
    keep.delete("t")
    with pytest.raises(threadkeep.errors.Missing):
        keep.show("t")
    Chain(keep.checkpointer).put({"messages": ["another thread of this name"]})
    assert keep.show("t").values["messages"] == ["another thread of this name"]


def test_the_rows_of_a_few_threads_are_kept(keep: threadkeep.Keep) -> None:
    keep._session.keep_rows()
    for n in range(20):
        Chain(keep.checkpointer, f"t{n}").put({"n": n})
        assert keep.show(f"t{n}").values == {"n": n}
    kept = keep._session.heads.kept_rows
    assert len(kept._found) < 10
