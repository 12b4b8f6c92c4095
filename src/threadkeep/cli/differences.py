"""Render what differs between the states of two checkpoints."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from threadkeep import Diff, ValueChange
from threadkeep.cli import chat
from threadkeep.cli.output import Hanging, as_json_text, one_line, shorten
from threadkeep.engine.history.conversation import is_chat
from threadkeep.engine.history.value_diff import ADDED, REMOVED
from threadkeep.engine.log.plain import is_message

_SIGNS = {"added": ("+", "green"), "removed": ("-", "red"), "changed": ("~", "yellow"), "moved": (">", "cyan")}
_INDENT = Text("    ")
_WIDTH = 200
"""The longest value that is printed; longer ones are cut."""


def difference_lines(found: Diff) -> Iterator[RenderableType]:
    """Render the differences, channel by channel."""
    state = [channel for channel in found.channels if not channel.is_internal]
    internal = [f"{channel.channel} {channel.change}" for channel in found.channels if channel.is_internal]
    for channel in state:
        yield Text()
        yield Text(one_line(channel.channel), "bold").append(f"  {channel.change}", "not bold dim")
        yield from (Hanging(Text("  "), _change_text(change), _INDENT) for change in channel.changes)
    yield from chat.damaged_channel_lines(found.damaged)
    if not found.is_complete:
        yield "damaged in part: not everything could be compared"
    elif not state:
        yield "no differences in the state"
    if internal:
        yield Text(f"\nLangGraph's own channels: {one_line(', '.join(internal))}", "dim")


def _change_text(change: ValueChange) -> Text:
    sign, style = _SIGNS[change.change]
    text = Text().append(f"{sign} ", f"bold {style}").append(one_line(change.path), style)
    if change.was is not None:
        return text.append(f" was {one_line(change.was)}")
    if change.change == ADDED:
        return text.append(": ").append_text(value_text(change.after))
    if change.change == REMOVED:
        return text.append(": ").append_text(value_text(change.before))
    return text.append(": ").append_text(value_text(change.before)).append(" → ").append_text(value_text(change.after))


def value_text(value: Any) -> Text:
    """Render a value: a message or a chat as such, anything else as JSON on one line."""
    if is_message(value):
        return Text("\n").join(chat.message_lines(value))
    if is_chat(value):
        return Text("\n").join([Text(), *(line for message in value for line in chat.message_lines(message))])
    return Text(shorten(as_json_text(value), _WIDTH))
