"""HTML for notebooks: a table of threads, and a thread's tree. All text is escaped; colours suit light and dark."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from html import escape

from threadkeep.engine.history.checkpoint_info import CheckpointInfo
from threadkeep.engine.history.show import Tree, short_ids
from threadkeep.engine.history.tree_rows import UNICODE, TreeRow, tree_rows
from threadkeep.engine.threads.catalogue import ThreadInfo
from threadkeep.plural import plural

MOST_ROWS = 100
"""A longer list is cut, and the last line says how many are left out."""
_LONGEST = 60
_GREEN, _AMBER, _VIOLET, _RED, _BLUE, _CYAN = "#2e9e5b", "#b7791f", "#a855c7", "#d9483b", "#3b82d6", "#0e9aa7"
_STATUS_COLOURS = {
    "idle": _GREEN, "pending": _AMBER, "interrupted": _VIOLET, "error": _RED, "damaged": _RED,
}  # fmt: skip
_LANE_COLOURS = (_CYAN, _VIOLET, _AMBER, _GREEN, _BLUE, _RED)
_FAINT = "opacity:.65"
_TABLE = "color:inherit;border-collapse:collapse"
_CELL = "text-align:left;padding:.2em .8em;white-space:nowrap;border:0"
_NUMBER = _CELL.replace("left", "right")
_LINE = "margin:0;padding:0;line-height:1.35;white-space:pre;background:none;border:0;overflow-x:auto"


def threads_html(threads: Sequence[ThreadInfo]) -> str:
    """Return a table of threads."""
    if not threads:
        return "<p>No threads.</p>"
    heads = ("thread", "title", "kind", "status", "checkpoints", "writes", "bytes", "updated (UTC)")
    numbers = heads[4:7]
    head = "".join(f'<th style="{_NUMBER if name in numbers else _CELL}">{name}</th>' for name in heads)
    rows = "".join(map(_thread_row, threads[:MOST_ROWS]))
    table = f'<table style="{_TABLE}"><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>'
    return f'<div style="overflow-x:auto">{table}</div>' + _rest(len(threads), "thread")


def _thread_row(thread: ThreadInfo) -> str:
    labels = "".join(f" {_styled(label, f'{_FAINT};font-size:.85em')}" for label in thread.labels)
    archived = _styled(" archived", _FAINT) if thread.archived else ""
    title = _cut(thread.title or "")
    cells = (
        f"<b>{_text(_cut(thread.id))}</b>",
        (_text(title) if thread.titled else _styled(title, _FAINT)) + labels + archived,
        _text(thread.kind),
        _styled(thread.status, f"color:{_STATUS_COLOURS.get(thread.status, 'inherit')}"),
    )
    numbers = (thread.checkpoints, thread.writes, thread.bytes)
    return (
        "<tr>"
        + "".join(f'<td style="{_CELL}">{cell}</td>' for cell in cells)
        + "".join(f'<td style="{_NUMBER}">{number:,}</td>' for number in numbers)
        + f'<td style="{_CELL}">{_time(thread.updated)}</td></tr>'
    )


def tree_html(tree: Tree) -> str:
    """Return the tree of a thread, newest checkpoint first, with a coloured lane for each branch."""
    names = short_ids(checkpoint.id for checkpoint in tree.checkpoints)
    rows, shown = [], 0
    for row in tree_rows(tree, UNICODE):
        shown += row.checkpoint is not None
        if shown > MOST_ROWS:
            break
        rows.append(row)
    width = max((len(row.cells) for row in rows), default=0)
    lines = "\n".join(_tree_line(row, width, names) for row in rows)
    heading = f"<p><b>{_text(_cut(tree.thread))}</b> {_styled(tree.kind, _FAINT)}</p>"
    return f'{heading}<pre style="{_LINE}">{lines}</pre>' + _rest(len(tree.checkpoints), "checkpoint")


def _tree_line(row: TreeRow, width: int, names: dict[str, str]) -> str:
    lanes = "".join(
        _styled(cell, f"color:{_LANE_COLOURS[n % len(_LANE_COLOURS)]}") if cell.strip() else cell
        for n, cell in enumerate(row.cells)
    )
    if row.checkpoint is None:
        return lanes
    return f"{lanes}{'  ' * (width - len(row.cells))}{_checkpoint(row.checkpoint, names)}"


def _checkpoint(checkpoint: CheckpointInfo, names: dict[str, str]) -> str:
    step = "" if checkpoint.step is None else checkpoint.step
    parts = [
        f'<span title="{_text(checkpoint.id)}" style="color:{_AMBER}">{_text(names[checkpoint.id])}</span>',
        f"{step:>3} {_text(checkpoint.source or '-'):<6}",
        _styled(_time(checkpoint.time), _FAINT),
    ]
    if checkpoint.tag is not None:
        parts.append(_styled(f"tag: {checkpoint.tag}", f"color:{_AMBER};font-weight:bold"))
    flags = {"interrupt": checkpoint.interrupted, "error": checkpoint.failed, "damaged": checkpoint.damaged is not None}
    colours = {"interrupt": _VIOLET, "error": _RED, "damaged": _RED}
    parts += [_styled(name, f"color:{colours[name]}") for name, is_set in flags.items() if is_set]
    if checkpoint.ns:
        parts.append(_styled(_cut(checkpoint.ns), f"color:{_VIOLET}"))
    if checkpoint.nodes:
        parts.append(_styled(f"{UNICODE.arrow} {_cut(', '.join(checkpoint.nodes))}", f"color:{_GREEN}"))
    return "  ".join(parts)


def _rest(count: int, what: str) -> str:
    left = count - MOST_ROWS
    return f'<p style="{_FAINT}">… and {plural(left, f"more {what}")}</p>' if left > 0 else ""


def _styled(text: str, style: str) -> str:
    return f'<span style="{style}">{_text(text)}</span>'


def _text(text: str) -> str:
    """Escape a text for HTML, on one line; surrogates and control characters become U+FFFD."""
    return escape("".join(character if character.isprintable() else "\ufffd" for character in text))


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


def _time(time: datetime) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S")
