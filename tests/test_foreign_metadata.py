"""Metadata that other programs wrote: any JSON value under any key, which no verb may stumble over."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.memory import InMemorySaver

import threadkeep
from checkpoint_chains import config, list_ids
from threadkeep import Policy

KEYS = [
    "source", "step", "parents", "writes", "run_id", "thread_id", "counters_since_delta_snapshot",
    "delta_writes_versioned", "tag", "tags", "keep", "forked_from", "parent_thread", "checkpoint_ns", "repaired", "score",
]  # fmt: skip
ODD: list[Any] = [
    True, False, 0, 7, -1, 1.5, 2**40, "", "text", [], [1, "a", None], [["nested"]], {}, {"": 5}, {"": ["list"]},
    {"": {"a": 1}}, {"messages": True}, {"messages": [1, 1]}, None,
]  # fmt: skip
ROOT, SUBGRAPH = "", "node:1"


def odd_metadata() -> list[dict[str, Any]]:
    """Return metadata with each odd value under each key: every value once per key, all keys at once."""
    return [
        {key: ODD[(n + shift) % len(ODD)] for shift, key in enumerate(KEYS)} | {"owner": "u1"} for n in range(len(ODD))
    ]


def fill(saver: Any, thread: str = "t") -> list[str]:
    """Put a checkpoint with each metadata into the root and into a subgraph's namespace, with a write on each."""
    ids = []
    for ns in (ROOT, SUBGRAPH):
        parent: str | None = None
        for number, metadata in enumerate(odd_metadata()):
            id, versions = f"{number:03}", {"messages": number + 1, "gone": number + 1}
            checkpoint = empty_checkpoint() | {
                "v": 4,
                "id": id,
                "channel_values": {"messages": list(range(number))},
                "channel_versions": versions,
            }
            saver.put(config(thread, parent, ns), checkpoint, metadata, versions)
            saver.put_writes(config(thread, id, ns), [("messages", number)], "task")
            ids.append(id)
            parent = id
    return ids


def test_every_verb_survives_odd_metadata(keep: threadkeep.Keep, tmp_path: Path) -> None:
    ids = fill(keep.checkpointer)
    given = [found.metadata for found in keep.checkpointer.list(config("t"))]
    assert [each["owner"] for each in given] == ["u1"] * len(ODD)
    assert len(keep.log("t")) == len(ids)
    for ns in (ROOT, SUBGRAPH):
        for id in set(ids):
            assert keep.show("t", id, ns=ns).checkpoint.id == id
    assert keep.tree("t") is not None
    assert keep.diff("t", "003", "007") is not None
    assert keep.blame("t", "messages") is not None
    assert keep.trace("t", "003") is not None
    assert keep.activity().threads == 1
    assert keep.sizes() is not None
    assert [info.id for info in keep.threads()] == ["t"]
    assert keep.verify().ok
    assert keep.fork("t", "005").forked_from == "005"
    assert keep.fork("t", "005", to="u") is not None
    assert keep.rollback("t", "003") is not None
    keep.tag("t", "004", "kept")
    keep.copy("t", "v")
    for redact in (False, True):
        keep.export(tmp_path / "all.jsonl", redact=redact)
    keep.checkpointer.delete_for_runs(["text"])
    policy = Policy(keep_last=1, keep_tagged=False, keep_branches=False)
    dry = keep.prune(policy=policy, dry_run=True)
    assert keep.prune(policy=policy).checkpoints == dry.checkpoints > 0
    keep.checkpointer.prune(["t", "u", "v"])
    assert keep.compact() is not None
    assert keep.verify().ok


@pytest.mark.sampled(8)
@pytest.mark.parametrize("key", KEYS)
def test_odd_metadata_is_returned_and_found_as_it_was_put(keep: threadkeep.Keep, key: str) -> None:
    fill(keep.checkpointer)
    saver, wanted = keep.checkpointer, [metadata[key] for metadata in odd_metadata()]
    found = {each.checkpoint["id"]: each.metadata.get(key) for each in saver.list(config("t", ns=ROOT))}
    assert [found[f"{number:03}"] for number in range(len(ODD))] == wanted
    for value in (True, 7, "text", [1, "a", None], {"": 5}, {"messages": [1, 1]}):
        expected = {id for id, stored in found.items() if stored == value and type(stored) is type(value)}
        assert set(list_ids(saver, "t", filter={key: value})) == expected != set()


def test_a_thread_of_langgraph_js_is_imported_and_pruned_to_one_checkpoint(keep: threadkeep.Keep) -> None:
    theirs = InMemorySaver()
    versions: dict[str, Any] = {"__start__": 1}
    parent: str | None = None
    for step in range(100):
        new = dict.fromkeys(("messages", "branch:to:agent"), step + 2)
        versions |= new
        checkpoint = empty_checkpoint() | {
            "v": 4,
            "id": f"{step:03}",
            "channel_values": {"messages": list(range(step))},
            "channel_versions": dict(versions),
        }
        metadata: Any = {"source": "loop", "step": step, "parents": {}, "delta_writes_versioned": True}
        at: Any = config("t", parent)
        theirs.put(at, checkpoint, metadata, new)
        parent = f"{step:03}"
        theirs.put_writes(config("t", parent), [("messages", step), ("branch:to:agent", None)], "task")  # type: ignore[arg-type]
    keep.import_from(theirs)
    result = keep.prune("t")
    assert (result.checkpoints, result.hidden) == (99, 0)
    assert list_ids(keep.checkpointer) == ["099"]
    info = keep.thread("t")
    assert info is not None and info.checkpoints == 1
