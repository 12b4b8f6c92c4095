"""The time axis of a thread: when the tasks of each checkpoint ran, with long waits between them cut short."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

from threadkeep.engine.history.show import Tree

if TYPE_CHECKING:
    from threadkeep.inspector.pages.thread import Row

WIDTH = 1000
"""The length of the axis in units of the picture."""
_LONGEST = 12
"""A span is drawn at most so many times as long as the median one."""
_THINNEST = 4


class Bar(NamedTuple):
    """The tasks that ran from a checkpoint: where the bar begins on the axis, how long it is, and in seconds.

    `ends` is where each task but the last ended. `seconds` is None if nothing has followed yet.
    """

    start: int
    width: int
    seconds: float | None
    ends: tuple[int, ...] = ()


def bars(tree: Tree, rows: Sequence[Row]) -> list[Bar]:
    """Return the bar of each row: from the checkpoint until its last task stored its writes.

    If it has none, as in a CubeLoop thread, or their times are not after its own, until the first checkpoint that
    followed it.
    """
    time_of = {(each.ns, each.id): each.time for each in tree.checkpoints}
    spans: list[tuple[datetime, datetime | None]] = []
    for row in rows:
        followers = tree.children.get(row.info.ns, {}).get(row.info.id, ())
        follower = min((time_of[row.info.ns, id] for id in followers), default=None)
        ended = [time for time in row.info.ended if time > row.info.time]
        spans.append((row.info.time, ended[-1] if ended else follower))
    place = _places(
        time
        for row, span in zip(rows, spans, strict=True)
        for time in (*span, *_between(row, span))
        if time is not None
    )
    found = []
    for row, (start, end) in zip(rows, spans, strict=True):
        width = max(place[end] - place[start], _THINNEST) if end is not None else _THINNEST
        left = min(place[start], WIDTH - width)
        ends = tuple(sorted({place[time] for time in _between(row, (start, end))} - {place[start], left + width}))
        found.append(Bar(left, width, (end - start).total_seconds() if end is not None else None, ends))
    return found


def _between(row: Row, span: tuple[datetime, datetime | None]) -> list[datetime]:
    """When tasks of a checkpoint ended, except for the last."""
    start, end = span
    return [time for time in row.info.ended if end is not None and start < time < end]


def _places(times: Iterable[datetime]) -> dict[datetime, int]:
    """Where each time is on the axis."""
    ordered = sorted(set(times))
    gaps = [(after - before).total_seconds() for before, after in pairwise(ordered)]
    longest = _LONGEST * median(gaps) if gaps else 0
    total = sum(min(gap, longest) for gap in gaps) or 1
    found, passed = dict.fromkeys(ordered[:1], 0), 0.0
    for time, gap in zip(ordered[1:], gaps, strict=True):
        passed += min(gap, longest)
        found[time] = round(passed / total * WIDTH)
    return found
