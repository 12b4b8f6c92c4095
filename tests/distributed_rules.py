"""What Citus cannot do with a distributed table, found in the text of a statement. The rules were learned by running it.

A statement that concerns one thread, partition or tenant must say so with a value, for the column by which the table is
distributed: Citus sends it to one node as it is. Others are split into parts for all nodes, which is possible for plain
reads only.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from threadkeep.transports.postgres_citus import PLACES

_NEVER = {
    "a setting for a transaction": r"\bSET LOCAL\b",
    "a plan for all values": r"\bplan_cache_mode\b",
    "a recursive query": r"\bRECURSIVE\b",
    "a savepoint": r"\bSAVEPOINT\b",
    "a lock of a table": r"\bLOCK TABLE\b",
    "a function for each row": r"\bLATERAL\b|\bCROSS JOIN\b|\bgenerate_series\b|\bunnest\([^)]*\b[a-z]\.\w+",
}
_VOLATILE = r"\b(random|nextval|clock_timestamp|timeofday|gen_random_uuid|set_config)\("
_CHANGE = re.compile(r"\b(?:UPDATE|DELETE FROM) (tk_\w+)(.*?)(?=\),\s*\w+ AS \(|\)\s*DELETE FROM|$)", re.DOTALL)
_JOIN = re.compile(r"\bJOIN (tk_\w+)(?: AS)? (\w+) ON (.*?)(?=\b(?:LEFT|JOIN|WHERE|ORDER|GROUP|LIMIT)\b|$)", re.DOTALL)
_INSERT = re.compile(r"\bINSERT INTO (tk_\w+)(?: AS \w+)? \(([^)]*)\)\s*(VALUES|SELECT)(.*)", re.DOTALL)
_VALUE = r"(\$\d+|:\w+|ANY \()"


def problems(sql: str) -> list[str]:
    """Return what Citus refuses in a statement, with $1 or :name for its values."""
    text = re.sub(r'"?\w+"?\.(?=tk_)', "", sql)
    return [*_constructs(text), *_changes(text), *_joins(text), *_inserts(text)]


def _constructs(text: str) -> Iterator[str]:
    for what, pattern in _NEVER.items():
        if re.search(pattern, text, re.IGNORECASE):
            yield what
    locked = re.search(r"\bFOR (UPDATE|SHARE)\b", text)
    table = re.search(r"\bFROM (tk_\w+)", text)
    if locked and table and not _has_value(table[1], text):
        yield f"a lock of rows of {table[1]} on several nodes"


def _has_value(table: str, text: str) -> bool:
    """Return whether a text compares the column by which a table is distributed with a value."""
    place = PLACES.get(table)
    return place is None or place.column is None or bool(re.search(rf"\b{place.column} = {_VALUE}", text))


def _changes(text: str) -> Iterator[str]:
    for table, rest in _CHANGE.findall(text):
        if not _has_value(table, rest):
            yield f"a change of {table} on several nodes"
        if table in PLACES and re.search(r"\b(USING|FROM) (unnest|tk_)", rest):
            yield f"a change of {table} by a join"
        if re.search(_VOLATILE, rest):
            yield f"a change of {table} with a volatile function"


def _joins(text: str) -> Iterator[str]:
    for table, alias, condition in _JOIN.findall(text):
        column = PLACES[table].column if table in PLACES else None
        if column is not None and not re.search(rf"\b{alias}\.{column} = ", condition):
            yield f"a join with {table} without its {column}"


def _inserts(text: str) -> Iterator[str]:
    for table, columns, kind, rest in _INSERT.findall(text):
        column = PLACES[table].column if table in PLACES else None
        if column is not None and column not in re.split(r",\s*", columns):
            yield f"a row of {table} without its {column}"
        if kind == "VALUES" and re.search(r"\(\s*SELECT\b", rest):
            yield f"a new row of {table} with a subselect"
        if kind == "SELECT" and "unnest" in rest:
            yield f"new rows of {table} from arrays"
        if re.search(_VOLATILE, rest):
            yield f"a new row of {table} with a volatile function"
