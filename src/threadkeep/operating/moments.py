"""Moments as people say them: a time, or how long ago."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import TypeAlias

Moment: TypeAlias = datetime | timedelta | str
"""An aware datetime, a timedelta before now, or text: `7d`, or ISO 8601 (in UTC, if it does not say otherwise)."""
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_AGO = re.compile(rf"(\d+(?:\.\d+)?)([{''.join(_UNITS)}])")


def as_moment(value: Moment | None, what: str, now: int) -> int | None:
    """Milliseconds since 1970; `now` is the same. None stays None; what is no moment is a TypeError or ValueError."""
    if value is None:
        return None
    if isinstance(value, str):
        value = _said(value.strip(), what)
    if isinstance(value, timedelta):
        return now - round(value.total_seconds() * 1000)
    if not isinstance(value, datetime):
        raise TypeError(f"{what} must be a datetime, a timedelta or a str such as '7d', not {type(value).__name__}")
    if value.tzinfo is None:
        raise ValueError(f"{what} must say its time zone: {value!r}")
    return round(value.timestamp() * 1000)


def _said(text: str, what: str) -> datetime | timedelta:
    if (ago := _AGO.fullmatch(text)) is not None:
        return _before_now(float(ago[1]) * _UNITS[ago[2]], text, what)
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(
            f"{what} must be a time such as 2026-04-01, or how long ago, such as 7d or 12h: {text!r}"
        ) from None
    return time if time.tzinfo is not None else time.replace(tzinfo=UTC)


def _before_now(seconds: float, text: str, what: str) -> timedelta:
    try:
        return timedelta(seconds=seconds)
    except OverflowError:
        raise ValueError(f"{what} is too long ago: {text!r}") from None
