"""threadkeep: the persistence engine for AI agents.

Start with `keep.py`: `threadkeep.open` returns a `Keep`. A call goes from `adapters` (what frameworks call) or `jobs`
(the verbs) to `engine` (what a thread is; pure), which makes requests. `backends` (how rows are stored; pure) say how
to execute them, and `transports` do the I/O. `plan.py` lets one piece of logic serve sync and async callers.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from threadkeep import errors
from threadkeep.collector import paused_collector
from threadkeep.version import VERSION

if TYPE_CHECKING:
    from threadkeep.adapters.cubeloop import KeepCube
    from threadkeep.adapters.langgraph_cache import KeepCache
    from threadkeep.adapters.langgraph_saver import KeepSaver
    from threadkeep.adapters.langgraph_store import KeepStore
    from threadkeep.encryption.keys import Keys
    from threadkeep.engine.health.repair import RepairResult
    from threadkeep.engine.health.requests import StorageSize
    from threadkeep.engine.health.thread_scan import Problem
    from threadkeep.engine.health.verify import VerifyResult
    from threadkeep.engine.history.answer_options import AnswerOption
    from threadkeep.engine.history.audit import Activity, ActivityRow, TracedWrite
    from threadkeep.engine.history.blame import Blame
    from threadkeep.engine.history.branches import BranchComparison, BranchInfo
    from threadkeep.engine.history.checkpoint_info import CheckpointInfo, WriteInfo
    from threadkeep.engine.history.checkpoint_sizes import CheckpointSize, StateSize, WriteSize
    from threadkeep.engine.history.diff import ChannelDiff, Diff
    from threadkeep.engine.history.flow import Flow, FlowChannel, FlowEdge, FlowNode
    from threadkeep.engine.history.show import CheckpointView, Tree
    from threadkeep.engine.history.sizes import ChannelSize, Sizes, Stats, ThreadSize
    from threadkeep.engine.history.token_counts import TokenUsage, TokenUsageRow
    from threadkeep.engine.history.value_diff import ValueChange
    from threadkeep.engine.history.waiting import WaitingThread
    from threadkeep.engine.memories.indexing import IndexOptions
    from threadkeep.engine.search.hits import SearchHit, SearchResult
    from threadkeep.engine.threads.branch_removal import DeletedBranch
    from threadkeep.engine.threads.catalogue import ThreadInfo
    from threadkeep.engine.threads.matching import MatchedThread
    from threadkeep.engine.threads.retention import Policy, PrunedThread, PruneResult, SweepResult
    from threadkeep.engine.threads.rollback import Branch
    from threadkeep.jobs.catalogue import DeleteResult
    from threadkeep.jobs.compact import CompactResult
    from threadkeep.jobs.distribute import DistributeResult
    from threadkeep.jobs.doctor import Finding
    from threadkeep.jobs.encryption import EncryptResult, RotateResult
    from threadkeep.jobs.erase import ErasedNamespace, EraseReceipt
    from threadkeep.jobs.leases import LeaseInfo
    from threadkeep.jobs.migrate import MigrateResult
    from threadkeep.jobs.search import SearchIndexResult
    from threadkeep.jobs.stored_types import StoredType, StoredTypes
    from threadkeep.jobs.tenants import DroppedTenant, TenantInfo
    from threadkeep.keep import Keep
    from threadkeep.keep import open as open  # noqa: A004 - users write threadkeep.open; type checkers see it
    from threadkeep.leases import Lease
    from threadkeep.observability.metrics import Metrics, VerbMetrics
    from threadkeep.transfer.backup import BackupResult, abackup, arestore, backup, restore
    from threadkeep.transfer.convert import aconvert, convert
    from threadkeep.transfer.portable.export import ExportResult
    from threadkeep.transfer.result import TransferResult

__all__ = [
    "Activity",
    "ActivityRow",
    "AnswerOption",
    "BackupResult",
    "Blame",
    "Branch",
    "BranchComparison",
    "BranchInfo",
    "ChannelDiff",
    "ChannelSize",
    "CheckpointInfo",
    "CheckpointSize",
    "CheckpointView",
    "CompactResult",
    "DeleteResult",
    "DeletedBranch",
    "Diff",
    "DistributeResult",
    "DroppedTenant",
    "EncryptResult",
    "EraseReceipt",
    "ErasedNamespace",
    "ExportResult",
    "Finding",
    "Flow",
    "FlowChannel",
    "FlowEdge",
    "FlowNode",
    "IndexOptions",
    "Keep",
    "KeepCache",
    "KeepCube",
    "KeepSaver",
    "KeepStore",
    "Keys",
    "Lease",
    "LeaseInfo",
    "MatchedThread",
    "Metrics",
    "MigrateResult",
    "Policy",
    "Problem",
    "PruneResult",
    "PrunedThread",
    "RepairResult",
    "RotateResult",
    "SearchHit",
    "SearchIndexResult",
    "SearchResult",
    "Sizes",
    "StateSize",
    "Stats",
    "StorageSize",
    "StoredType",
    "StoredTypes",
    "SweepResult",
    "TenantInfo",
    "ThreadInfo",
    "ThreadSize",
    "TokenUsage",
    "TokenUsageRow",
    "TracedWrite",
    "TransferResult",
    "Tree",
    "ValueChange",
    "VerbMetrics",
    "VerifyResult",
    "WaitingThread",
    "WriteInfo",
    "WriteSize",
    "abackup",
    "aconvert",
    "arestore",
    "backup",
    "convert",
    "errors",
    "restore",
]
"""What `from threadkeep import *` gives: every public name except `open`, which would shadow the builtin."""

__version__ = VERSION


_NAMES = {
    "adapters.cubeloop": "KeepCube",
    "adapters.langgraph_cache": "KeepCache",
    "adapters.langgraph_saver": "KeepSaver",
    "adapters.langgraph_store": "KeepStore",
    "encryption.keys": "Keys",
    "engine.health.repair": "RepairResult",
    "engine.health.requests": "StorageSize",
    "engine.health.thread_scan": "Problem",
    "engine.health.verify": "VerifyResult",
    "engine.history.answer_options": "AnswerOption",
    "engine.history.audit": "Activity ActivityRow TracedWrite",
    "engine.history.blame": "Blame",
    "engine.history.branches": "BranchComparison BranchInfo",
    "engine.history.checkpoint_info": "CheckpointInfo WriteInfo",
    "engine.history.checkpoint_sizes": "CheckpointSize StateSize WriteSize",
    "engine.history.diff": "ChannelDiff Diff",
    "engine.history.flow": "Flow FlowChannel FlowEdge FlowNode",
    "engine.history.show": "CheckpointView Tree",
    "engine.history.sizes": "ChannelSize Sizes Stats ThreadSize",
    "engine.history.token_counts": "TokenUsage TokenUsageRow",
    "engine.history.value_diff": "ValueChange",
    "engine.history.waiting": "WaitingThread",
    "engine.memories.indexing": "IndexOptions",
    "engine.search.hits": "SearchHit SearchResult",
    "engine.threads.branch_removal": "DeletedBranch",
    "engine.threads.rollback": "Branch",
    "engine.threads.catalogue": "ThreadInfo",
    "engine.threads.matching": "MatchedThread",
    "engine.threads.retention": "Policy PruneResult PrunedThread SweepResult",
    "jobs.catalogue": "DeleteResult",
    "jobs.compact": "CompactResult",
    "jobs.distribute": "DistributeResult",
    "jobs.doctor": "Finding",
    "jobs.encryption": "EncryptResult RotateResult",
    "jobs.erase": "EraseReceipt ErasedNamespace",
    "jobs.leases": "LeaseInfo",
    "jobs.migrate": "MigrateResult",
    "jobs.search": "SearchIndexResult",
    "jobs.stored_types": "StoredType StoredTypes",
    "jobs.tenants": "DroppedTenant TenantInfo",
    "keep": "Keep open",
    "leases": "Lease",
    "observability.metrics": "Metrics VerbMetrics",
    "transfer.backup": "BackupResult abackup arestore backup restore",
    "transfer.convert": "aconvert convert",
    "transfer.portable.export": "ExportResult",
    "transfer.result": "TransferResult",
}
"""Where the public names are defined, by module. A module is imported when one of its names is first used: the whole
package, with LangGraph, takes several times as long to import as what a program needs."""
_MODULES = {name: module for module, names in _NAMES.items() for name in names.split()}
PUBLIC_NAMES = tuple(sorted([*__all__, "open"]))


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    with paused_collector():
        value = globals()[name] = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *PUBLIC_NAMES})
