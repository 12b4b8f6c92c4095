"""Parse durations and points in time as users write them. No other module parses them.

    duration    NUMBER UNIT, once or more: 30d, 90m, 1.5h, 1d12h. Units: w (weeks), d, h, m (minutes), s
    time        ISO 8601: 2026-04-01, 2026-04-01T10:00+02:00. UTC if it names no zone

Where a point in time is expected, a duration means that long before now.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Any, TypeAlias

When: TypeAlias = datetime | timedelta | str
"""A point in time: an aware datetime, a timedelta before now, or text."""
_UNITS = {"w": "weeks", "d": "days", "h": "hours", "m": "minutes", "s": "seconds"}
_PART = re.compile(r"([0-9]+(?:\.[0-9]+)?)([wdhms])")
_DURATION = re.compile(rf"(?:{_PART.pattern})+")
_EXAMPLES = "a duration such as 30d, 1.5h or 1d12h (units: w, d, h, m, s)"


def as_duration(value: Any, name: str) -> timedelta | None:
    """Return a timedelta, or parse text. None stays None; raise TypeError or ValueError for anything else."""
    if value is None:
        return None
    if isinstance(value, str):
        duration = _parse_duration(value, name)
        if duration is None:
            raise ValueError(f"{name} must be {_EXAMPLES}, not {value!r}")
        return duration
    if not isinstance(value, timedelta):
        raise TypeError(f"{name} must be a timedelta, or {_EXAMPLES}, not {value!r}")
    if value < timedelta():
        raise ValueError(f"{name} must not be negative: {value}")
    return value


def as_time(value: When | None, name: str, now: int) -> int | None:
    """Return a point in time in milliseconds since 1970, as `now` is. None stays None; errors as for `as_duration`."""
    if value is None:
        return None
    if isinstance(value, str):
        duration = _parse_duration(value, name)
        value = duration if duration is not None else _parse_time(value, name)
    if isinstance(value, timedelta):
        return now - round(value.total_seconds() * 1000)
    if not isinstance(value, datetime):
        raise TypeError(f"{name} must be a datetime, a timedelta or a str such as '7d', not {type(value).__name__}")
    if value.tzinfo is None:
        raise ValueError(f"{name} needs a time zone: {value!r}")
    return round(value.timestamp() * 1000)


def _parse_duration(text: str, name: str) -> timedelta | None:
    """None if the text is not a duration; ValueError if it is too long for a timedelta."""
    if _DURATION.fullmatch(text.strip()) is None:
        return None
    try:
        return sum((timedelta(**{_UNITS[unit]: float(n)}) for n, unit in _PART.findall(text)), timedelta())
    except OverflowError:
        raise ValueError(f"{name} is too long: {text!r}") from None


def _parse_time(text: str, name: str) -> datetime:
    try:
        time = datetime.fromisoformat(text.strip())
    except ValueError:
        raise ValueError(f"{name} must be a time such as 2026-04-01, or {_EXAMPLES}, not {text!r}") from None
    return time if time.tzinfo is not None else time.replace(tzinfo=UTC)
