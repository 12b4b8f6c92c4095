"""What people say about a thread: its title, its labels, and whether it is archived.

A thread's row has it as JSON text, None if nothing was said. Agents neither read nor change it: a commit writes the row
with the description that it had.
"""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Iterable, Mapping
from types import EllipsisType
from typing import Any, NamedTuple, TypeAlias

from threadkeep.errors import Corrupt

MAX_TITLE, MAX_LABEL, MAX_LABELS = 500, 100, 100
"""The most characters of a title and of a label, and the most labels of a thread."""
_NOT_PRINTED = frozenset({"Cc", "Cs", "Zl", "Zp"})
"""Control characters, lone surrogates, and the separators of lines and paragraphs."""

GivenTitle: TypeAlias = str | EllipsisType | None
GivenLabels: TypeAlias = Iterable[str] | EllipsisType
GivenArchived: TypeAlias = bool | EllipsisType


class Description(NamedTuple):
    """What was said about a thread. The labels are sorted, and each is there once."""

    title: str | None = None
    labels: tuple[str, ...] = ()
    archived: bool = False

    def mentions(self, text: str) -> bool:
        """Return whether the title or a label contains a text, in any case."""
        return any(text.casefold() in each.casefold() for each in (self.title or "", *self.labels))

    def with_labels(self, added: Iterable[str], removed: Iterable[str]) -> Description:
        """Return it with more labels and without others. ValueError if these are too many."""
        return self._replace(labels=label_set({*self.labels, *added} - set(removed)))


class DescriptionFilter(NamedTuple):
    """Which threads are wanted: those that have all of `labels`, and are `archived` or not; None means both."""

    labels: frozenset[str] = frozenset()
    archived: bool | None = None

    @property
    def needs_description(self) -> bool:
        """Whether a thread of which nothing was said cannot be wanted."""
        return bool(self.labels or self.archived)

    def includes(self, description: Description) -> bool:
        """Return whether a thread with this description is wanted."""
        return self.labels <= set(description.labels) and self.archived in (None, description.archived)


EVERY_THREAD = DescriptionFilter()


# --- what callers give


def as_changes(title: GivenTitle, labels: GivenLabels, archived: GivenArchived) -> dict[str, Any]:
    """Return the fields of a Description that change, checked; `...` stands for one that does not.

    TypeError or ValueError for what is no title, no labels, or not a bool.
    """
    changes: dict[str, Any] = {}
    if title is not ...:
        changes["title"] = None if title is None else as_line(title, "title", MAX_TITLE)
    if labels is not ...:
        changes["labels"] = label_set(labels)
    if archived is not ...:
        changes["archived"] = as_archived(archived)
    return changes


def label_set(labels: Any) -> tuple[str, ...]:
    """Return given labels as a sorted tuple, each of them once."""
    if isinstance(labels, (str, bytes)) or not isinstance(labels, Iterable):
        raise TypeError(f"labels must be an iterable of str, not {type(labels).__name__}")
    found = tuple(sorted({as_line(each, "label", MAX_LABEL) for each in labels}))
    if len(found) > MAX_LABELS:
        raise ValueError(f"a thread has at most {MAX_LABELS} labels, not {len(found)}")
    return found


def as_archived(archived: Any) -> bool:
    """Return `archived`, if it is a bool."""
    if not isinstance(archived, bool):
        raise TypeError(f"archived must be a bool, not {type(archived).__name__}")
    return archived


def as_filter(labels: Any, archived: Any) -> DescriptionFilter:
    """Return a filter. `labels` may be None, as `archived`."""
    return DescriptionFilter(
        frozenset(label_set(labels) if labels is not None else ()), None if archived is None else as_archived(archived)
    )


def as_line(text: Any, what: str, longest: int) -> str:
    """Return a line of text. TypeError or ValueError if it is none; `what` says what it is."""
    if not isinstance(text, str):
        raise TypeError(f"a {what} must be a str, not {type(text).__name__}")
    if not text.strip():
        raise ValueError(f"a {what} must not be empty")
    if len(text) > longest:
        raise ValueError(f"a {what} has at most {longest} characters, not {len(text)}")
    if not text.isprintable() and (found := [each for each in text if unicodedata.category(each) in _NOT_PRINTED]):
        raise ValueError(f"a {what} is one line of text, without control characters: {found[0]!r} is not allowed")
    return str(text)


# --- as the row stores it


def pack(description: Description) -> str | None:
    """Return a description as a row stores it: JSON of what was said; None if that is nothing."""
    said = {name: value for name, value in description._asdict().items() if value}
    return json.dumps(said, ensure_ascii=False, separators=(",", ":")) if said else None


def unpack(stored: str | None, where: str) -> Description:
    """Read a description. Corrupt if it is none."""
    if stored is None:
        return Description()
    try:
        return read(json.loads(stored))
    except (TypeError, ValueError, RecursionError) as error:
        raise Corrupt(f"the description of {where} cannot be read: {error}") from error


def read(said: Any) -> Description:
    """Return a description from its JSON value. TypeError or ValueError if it is none."""
    if not isinstance(said, Mapping):
        raise TypeError("it is not an object")
    if unknown := said.keys() - set(Description._fields):
        raise ValueError(f"{min(map(str, unknown))!r} is not part of a description")
    return Description(**as_changes(said.get("title"), said.get("labels", ()), said.get("archived", False)))


def of_fork(stored: str | None, where: str) -> str | None:
    """Return the description of a fork: that of its source, but it is not archived."""
    return pack(unpack(stored, where)._replace(archived=False))
