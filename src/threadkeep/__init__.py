"""threadkeep: the persistence engine for AI agents.

Start with `keep.py`: `threadkeep.open` returns a `Keep`. A call goes from `adapters` (what frameworks call) or `jobs`
(the verbs) to `engine` (what a thread is; pure), which makes requests. `backends` (how rows are stored; pure) say how
to execute them, and `transports` do the I/O. `plan.py` lets one piece of logic serve sync and async callers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from threadkeep import errors
from threadkeep.engine.health.repair import RepairResult
from threadkeep.engine.health.thread_scan import Problem
from threadkeep.engine.health.verify import VerifyResult
from threadkeep.engine.history.audit import Activity, ActivityRow, TracedWrite
from threadkeep.engine.history.blame import Blame
from threadkeep.engine.history.checkpoint_info import CheckpointInfo, WriteInfo
from threadkeep.engine.history.diff import ChannelDiff, Diff
from threadkeep.engine.history.show import CheckpointView, Tree
from threadkeep.engine.history.sizes import ChannelSize, Sizes, Stats, ThreadSize
from threadkeep.engine.history.value_diff import ValueChange
from threadkeep.engine.requests import StorageSize
from threadkeep.engine.threads.branches import Branch
from threadkeep.engine.threads.catalogue import ThreadInfo
from threadkeep.engine.threads.matching import MatchedThread
from threadkeep.engine.threads.retention import Policy, PrunedThread, PruneResult, SweepResult
from threadkeep.jobs.catalogue import DeleteResult
from threadkeep.jobs.compact import CompactResult
from threadkeep.jobs.doctor import Finding
from threadkeep.jobs.erase import ErasedNamespace, EraseReceipt
from threadkeep.jobs.migrate import MigrateResult
from threadkeep.keep import Keep, open  # noqa: A004 - users write threadkeep.open
from threadkeep.transfer.backup import BackupResult, abackup, arestore, backup, restore
from threadkeep.transfer.convert import aconvert, convert
from threadkeep.transfer.portable.export import ExportResult
from threadkeep.transfer.result import TransferResult
from threadkeep.version import VERSION

if TYPE_CHECKING:
    from threadkeep.adapters.langgraph_saver import KeepSaver
    from threadkeep.adapters.langgraph_store import KeepStore

__all__ = [
    "Activity",
    "ActivityRow",
    "BackupResult",
    "Blame",
    "Branch",
    "ChannelDiff",
    "ChannelSize",
    "CheckpointInfo",
    "CheckpointView",
    "CompactResult",
    "DeleteResult",
    "Diff",
    "EraseReceipt",
    "ErasedNamespace",
    "ExportResult",
    "Finding",
    "Keep",
    "KeepSaver",
    "KeepStore",
    "MatchedThread",
    "MigrateResult",
    "Policy",
    "Problem",
    "PruneResult",
    "PrunedThread",
    "RepairResult",
    "Sizes",
    "Stats",
    "StorageSize",
    "SweepResult",
    "ThreadInfo",
    "ThreadSize",
    "TracedWrite",
    "TransferResult",
    "Tree",
    "ValueChange",
    "VerifyResult",
    "WriteInfo",
    "abackup",
    "aconvert",
    "arestore",
    "backup",
    "convert",
    "errors",
    "open",
    "restore",
]
__version__ = VERSION


def __getattr__(name: str) -> Any:
    """Import the adapters on use: they need LangChain, which takes half a second to import."""
    if name == "KeepSaver":
        from threadkeep.adapters.langgraph_saver import KeepSaver  # noqa: PLC0415

        return KeepSaver
    if name == "KeepStore":
        from threadkeep.adapters.langgraph_store import KeepStore  # noqa: PLC0415

        return KeepStore
    raise AttributeError(f"module 'threadkeep' has no attribute {name!r}")
