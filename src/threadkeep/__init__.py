"""threadkeep: the persistence engine for AI agents.

The way that data takes: `adapters` (what frameworks call) -> `engine` (what a thread is; pure) <- `backends` (how rows
are kept; pure) <- `transports` (the only I/O). `plan.py` is how one piece of logic serves sync and async callers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from threadkeep import errors
from threadkeep.engine.audit import Activity, Share, TracedWrite
from threadkeep.engine.backend import Storage
from threadkeep.engine.blame import Blame
from threadkeep.engine.branch import Branch
from threadkeep.engine.catalogue import ThreadInfo
from threadkeep.engine.comparing import Change
from threadkeep.engine.diffs import ChannelDiff, Diff
from threadkeep.engine.looking import Shown, Tree
from threadkeep.engine.repair import Repaired
from threadkeep.engine.retention import Policy, Pruned, PrunedThread, Swept
from threadkeep.engine.sizes import ChannelSize, Sizes, Stats, ThreadSize
from threadkeep.engine.steps import Step, Written
from threadkeep.engine.thread_scan import Problem
from threadkeep.engine.verify import Verified
from threadkeep.jobs.compact import Compacted
from threadkeep.jobs.doctor import Finding
from threadkeep.keep import Keep, open  # noqa: A004 - threadkeep.open reads as it should
from threadkeep.transfer.convert import aconvert, convert
from threadkeep.transfer.portable.export import ExportResult
from threadkeep.transfer.result import TransferResult
from threadkeep.version import VERSION

if TYPE_CHECKING:
    from threadkeep.adapters.saver import KeepSaver
    from threadkeep.adapters.store import KeepStore

__all__ = [
    "Activity",
    "Blame",
    "Branch",
    "Change",
    "ChannelDiff",
    "ChannelSize",
    "Compacted",
    "Diff",
    "ExportResult",
    "Finding",
    "Keep",
    "KeepSaver",
    "KeepStore",
    "Policy",
    "Problem",
    "Pruned",
    "PrunedThread",
    "Repaired",
    "Share",
    "Shown",
    "Sizes",
    "Stats",
    "Step",
    "Storage",
    "Swept",
    "ThreadInfo",
    "ThreadSize",
    "TracedWrite",
    "TransferResult",
    "Tree",
    "Verified",
    "Written",
    "aconvert",
    "convert",
    "errors",
    "open",
]
__version__ = VERSION


def __getattr__(name: str) -> Any:
    """The faces are imported on use: they need LangChain, which takes half a second."""
    if name == "KeepSaver":
        from threadkeep.adapters.saver import KeepSaver  # noqa: PLC0415

        return KeepSaver
    if name == "KeepStore":
        from threadkeep.adapters.store import KeepStore  # noqa: PLC0415

        return KeepStore
    raise AttributeError(f"module 'threadkeep' has no attribute {name!r}")
