"""Tag a checkpoint: a name in its metadata, by which users find it again and which protects it from pruning.

The name of a branch is stored in the same way, under another key, which protects nothing.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from threadkeep.engine.commit import Decision, Seen, commit, next_batch
from threadkeep.engine.cube import channels
from threadkeep.engine.identity import CUBE, ThreadKey
from threadkeep.engine.log.codec import pack
from threadkeep.engine.log.itemlog import SHARED, ItemId
from threadkeep.engine.log.records import CheckpointRecord, reseal
from threadkeep.engine.requests import Batch, Commit, NewLabels
from threadkeep.engine.threads import metadata
from threadkeep.engine.threads.damaged_rows import load_to_change
from threadkeep.engine.threads.draft import Draft
from threadkeep.engine.threads.heads import Heads
from threadkeep.engine.threads.rollback import find_visible
from threadkeep.engine.threads.thread_rows import TAG, ThreadRows


async def tag(
    heads: Heads, key: ThreadKey, ref: str | None, ns: str, name: str | None, nonce: int, *, under: str = TAG
) -> str:
    """Set a checkpoint's tag, or remove it if `name` is None; return the checkpoint's id.

    `under` is the metadata key: that of tags, or of the names of branches.

    Missing if the thread or the checkpoint does not exist. Two round trips; one if nothing changes.
    """

    def decide(seen: Seen[ThreadRows], _: int) -> Decision[str]:
        nonlocal ref
        thread = seen.state
        record = find_visible(thread, ref, ns)
        ref = record.row.id  # the next try must not choose another checkpoint
        if thread.metadata(record).get(under) == name:
            return Decision(ref)
        return Decision(ref, Commit(_batch(thread, record, under, name, nonce)))

    return await commit(heads, key, partial(load_to_change, heads, key), decide)


def _batch(thread: ThreadRows, record: CheckpointRecord, under: str, name: str | None, nonce: int) -> Batch:
    """The change of one row. The tag is a label; in a cube thread it is the checkpoint's own.

    Later checkpoints of a cube thread inherit the labels of earlier ones.
    """
    head, draft, row, new_labels = thread.head, Draft(thread.head), record.row, list[NewLabels]()
    assert head.row is not None
    if thread.key.kind == CUBE:
        row = channels.pack_cube_checkpoint(row, record.slots, draft, _with_tag(record.own_metadata, under, name)).row
    else:
        labels = _with_tag(head.labels(row.labels), under, name)
        row = reseal(row, row._replace(labels=draft.share(pack(labels))), head.where, head.family)
        if ItemId(SHARED, row.labels) in draft.new_items:
            new_labels.append(NewLabels(row.labels, metadata.tags(labels)))
    is_top = (row.ns, row.id) == ("", head.row.top)
    thread_row = head.row._replace(labels=row.labels) if is_top else head.row
    batch = next_batch(draft, thread_row, nonce=nonce, grown=row.size - record.row.size)
    return batch._replace(changed_checkpoints=(row,), labels=tuple(new_labels))


def _with_tag(metadata: dict[str, Any], under: str, name: str | None) -> dict[str, Any]:
    others = {key: value for key, value in metadata.items() if key != under}
    return others if name is None else others | {under: name}
