"""Tokens: what messages say that they took, what that costs, and sums by thread, model, node and metadata."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from fnmatch import fnmatchcase
from typing import Any, NamedTuple, TypeAlias

from threadkeep.engine.identity import CUBE
from threadkeep.short_repr import short_repr

Prices: TypeAlias = Mapping[str, Mapping[str, float]]
"""Prices per million tokens by model: of `input` and `output`, and of details such as `cache_read`."""
THREAD, MODEL, NODE, METADATA = "thread", "model", "node", "metadata:"
_MODEL_KEYS = ("model_name", "model", "model_id")
_MILLION = 1_000_000


class TokenCounts(NamedTuple):
    """The tokens of a message. The details are parts of the input and of the output."""

    input: int
    output: int
    total: int
    input_details: Mapping[str, int]
    output_details: Mapping[str, int]


def read_counts(message: Mapping[str, Any], kind: str) -> TokenCounts | None:
    """Return the tokens that a plain message says that it took; None if it does not say so.

    LangChain counts cached tokens as input, CubeLoop apart from it: here they are input.
    """
    if kind == CUBE:
        given = message.get("usage")
        if not isinstance(given, Mapping):
            return None
        details = {
            "cache_read": _count(given, "cache_read_tokens"),
            "cache_creation": _count(given, "cache_write_tokens"),
        }
        read, output = _count(given, "input_tokens") + sum(details.values()), _count(given, "output_tokens")
        return TokenCounts(read, output, read + output, {name: n for name, n in details.items() if n}, {})
    given = message.get("usage_metadata")
    if not isinstance(given, Mapping):
        return None
    read, output = _count(given, "input_tokens"), _count(given, "output_tokens")
    total = _count(given, "total_tokens") or read + output
    return TokenCounts(read, output, total, _details(given, "input"), _details(given, "output"))


def _count(given: Mapping[str, Any], name: str) -> int:
    found = given.get(name)
    return found if isinstance(found, int) and not isinstance(found, bool) and found > 0 else 0


def _details(given: Mapping[str, Any], side: str) -> dict[str, int]:
    details = given.get(f"{side}_token_details")
    names = details if isinstance(details, Mapping) else {}
    return {name: n for name in names if (n := _count(names, name))}


def model_of(message: Mapping[str, Any], kind: str) -> str | None:
    """Return the model that made a plain message; None if the message does not name it."""
    given = message if kind == CUBE else message.get("response_metadata")
    names = (given.get(key) for key in _MODEL_KEYS) if isinstance(given, Mapping) else ()
    return next((name for name in names if isinstance(name, str) and name), None)


class CountedMessage(NamedTuple):
    """A message that counts: its tokens, its model, the node that wrote it, and when it was first stored."""

    counts: TokenCounts
    model: str | None
    node: str | None = None
    time: int | None = None


@dataclass(frozen=True, slots=True)
class TokenUsageRow:
    """The tokens of some messages. `key` has what they have in common: thread and kind, model, node, metadata.

    A model or node is None where it is not known. The details are parts of the input (`cache_read`, `cache_creation`,
    `audio`) and of the output (`reasoning`, `audio`). `cost` is in the currency of the prices and does not include the
    models in `unpriced`, which have no price; it is None if no model has one.
    """

    key: dict[str, Any]
    messages: int
    input_tokens: int
    output_tokens: int
    total_tokens: int
    input_details: dict[str, int]
    output_details: dict[str, int]
    cost: float | None = None
    unpriced: tuple[str | None, ...] = ()

    __repr__ = short_repr


@dataclass(frozen=True, slots=True)
class TokenUsage:
    """The tokens that messages took, over many threads; rows with the most tokens come first.

    `by` is what the rows are grouped by, `threads` the number of threads that were read. `damaged` has the ids of those
    with values that cannot be read, which do not count; `skipped` those of threads that cannot be read at all.
    """

    by: tuple[str, ...]
    all_branches: bool
    since: datetime | None
    until: datetime | None
    threads: int
    rows: tuple[TokenUsageRow, ...]
    total: TokenUsageRow
    skipped: tuple[str, ...] = ()
    damaged: tuple[str, ...] = ()

    __repr__ = short_repr


@dataclass(slots=True)
class _Sum:
    """The sum of some messages of one model."""

    messages: int = 0
    input: int = 0
    output: int = 0
    total: int = 0
    input_details: dict[str, int] = field(default_factory=dict)
    output_details: dict[str, int] = field(default_factory=dict)

    def add(self, messages: int, counts: TokenCounts) -> None:
        self.messages += messages
        self.input += counts.input
        self.output += counts.output
        self.total += counts.total
        for mine, theirs in (
            (self.input_details, counts.input_details),
            (self.output_details, counts.output_details),
        ):
            for name, number in theirs.items():
                mine[name] = mine.get(name, 0) + number

    def counts(self) -> TokenCounts:
        return TokenCounts(self.input, self.output, self.total, self.input_details, self.output_details)


class TokenTotals:
    """Sums of messages by what they have in common, and within that by model, as prices need it."""

    def __init__(self, by: tuple[str, ...], prices: Prices | None) -> None:
        self.threads = 0
        self._by = by
        self._prices = prices
        self._keys: dict[str, dict[str, Any]] = {}
        self._sums: dict[str, dict[str | None, _Sum]] = {}

    def add(self, thread: Mapping[str, Any], message: CountedMessage) -> None:
        """Add a message of a thread, which has these values of the group keys that a thread has."""
        key: dict[str, Any] = {}
        for name in self._by:
            if name == THREAD:
                key |= {name: thread[name] for name in (THREAD, "kind")}
            else:
                key[name] = {MODEL: message.model, NODE: message.node}.get(name, thread.get(name))
        group = json.dumps(key, sort_keys=True)
        self._keys[group] = key
        self._sums.setdefault(group, {}).setdefault(message.model, _Sum()).add(1, message.counts)

    def rows(self) -> tuple[TokenUsageRow, ...]:
        """Return a row for each group, that with the most tokens first."""
        rows = [(group, self._row(self._keys[group], sums)) for group, sums in self._sums.items()]
        return tuple(row for _, row in sorted(rows, key=lambda each: (-each[1].total_tokens, each[0])))

    def total(self) -> TokenUsageRow:
        """Return the sum of all rows."""
        by_model: dict[str | None, _Sum] = {}
        for sums in self._sums.values():
            for model, each in sums.items():
                by_model.setdefault(model, _Sum()).add(each.messages, each.counts())
        return self._row({}, by_model)

    def _row(self, key: dict[str, Any], by_model: Mapping[str | None, _Sum]) -> TokenUsageRow:
        whole = _Sum()
        costs: list[float] = []
        unpriced: list[str | None] = []
        for model, each in by_model.items():
            whole.add(each.messages, each.counts())
            if self._prices is not None:
                table = price_table(self._prices, model)
                if table is None:
                    unpriced.append(model)
                else:
                    costs.append(cost_of(each.counts(), table))
        return TokenUsageRow(
            key,
            whole.messages,
            whole.input,
            whole.output,
            whole.total,
            whole.input_details,
            whole.output_details,
            sum(costs) if costs else None,
            tuple(sorted(unpriced, key=lambda name: (name is not None, name or ""))),
        )


def price_table(prices: Prices, model: str | None) -> Mapping[str, float] | None:
    """Return the prices of a model: those under its name, or else under the first pattern that fits, as `gpt-5*`."""
    if model is None:
        return None
    fitting = (table for name, table in prices.items() if fnmatchcase(model, name))
    return prices[model] if model in prices else next(fitting, None)


def cost_of(counts: TokenCounts, table: Mapping[str, float]) -> float:
    """Return what tokens cost. A detail with a price of its own is not charged as input or output."""
    cost = 0.0
    for side, total, details in (
        ("input", counts.input, counts.input_details),
        ("output", counts.output, counts.output_details),
    ):
        left = total
        for name, number in details.items():
            price = table.get(f"{side}_{name}", table.get(name))
            if price is not None:
                cost += number * price
                left -= number
        cost += max(left, 0) * table[side]
    return cost / _MILLION
