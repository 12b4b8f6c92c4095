"""Tagging a checkpoint: a word in its metadata by which it is found again, and which retention does not let go of."""

from __future__ import annotations

from functools import partial
from typing import Any

from threadkeep.engine.commit import Decision, Seen, commit, next_batch
from threadkeep.engine.cube import channels
from threadkeep.engine.identity import CUBE, ThreadKey
from threadkeep.engine.log.codec import pack, unpack
from threadkeep.engine.log.itemlog import SHARED, ItemId
from threadkeep.engine.log.records import CheckpointRecord, CheckpointRow, reseal
from threadkeep.engine.requests import Batch, Commit, NewLabels
from threadkeep.engine.threads import metadata
from threadkeep.engine.threads.branches import visible
from threadkeep.engine.threads.draft import Draft
from threadkeep.engine.threads.heads import Heads
from threadkeep.engine.threads.thread_rows import TAG, ThreadRows, survey_to_change


async def tag(heads: Heads, key: ThreadKey, ref: str | None, ns: str, name: str | None, nonce: int) -> str:
    """Give a checkpoint a tag in place of any other, or take it away; the checkpoint's id. Two round trips; one for nothing."""

    def decide(seen: Seen[ThreadRows], _: int) -> Decision[str]:
        nonlocal ref
        thread = seen.state
        record = visible(thread, ref, ns)
        ref = record.row.id
        if thread.metadata(record).get(TAG) == name:
            return Decision(ref)
        return Decision(ref, Commit(_batch(thread, record, name, nonce)))

    return await commit(heads, key, partial(survey_to_change, heads, key), decide)


def _batch(thread: ThreadRows, record: CheckpointRecord, name: str | None, nonce: int) -> Batch:
    head, draft = thread.head, Draft(thread.head)
    assert head.row is not None
    row = _retold(thread, record, name, draft)
    on_top = (row.ns, row.id) == ("", head.row.top)
    next = head.row._replace(labels=row.labels) if on_top else head.row
    return next_batch(draft, next, nonce=nonce, grown=row.size - record.row.size)._replace(
        changed_checkpoints=(row,), labels=tuple(_labels(row, record, thread, name, draft))
    )


def _retold(thread: ThreadRows, record: CheckpointRecord, name: str | None, draft: Draft) -> CheckpointRow:
    """The row with the tag: among its labels, or, since later checkpoints of a talk inherit those, its own."""
    row = record.row
    if thread.key.kind == CUBE:
        return channels.checkpoint(row, record.slots, draft, _with(record.own, name)).row
    n = draft.share(pack(_tagged_labels(thread, record, name)))
    return reseal(row, row._replace(labels=n), thread.head.where)


def _labels(
    row: CheckpointRow, record: CheckpointRecord, thread: ThreadRows, name: str | None, draft: Draft
) -> list[NewLabels]:
    if ItemId(SHARED, row.labels) not in draft.new_items:
        return []
    return [NewLabels(row.labels, metadata.tags(_tagged_labels(thread, record, name)))]


def _tagged_labels(thread: ThreadRows, record: CheckpointRecord, name: str | None) -> dict[str, Any]:
    n = record.row.labels
    return _with(unpack(thread.head.shared(n), f"labels {n} of {thread.head.where}") or {}, name)


def _with(about: dict[str, Any], name: str | None) -> dict[str, Any]:
    left = {key: value for key, value in about.items() if key != TAG}
    return left if name is None else left | {TAG: name}
