"""The templates, and what they use: filters for times, sizes and texts, and links to pages."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlencode

from jinja2 import Environment, PackageLoader, StrictUndefined
from markdown_it import MarkdownIt
from markupsafe import Markup, escape

from threadkeep.inspector.redaction import HiddenPattern
from threadkeep.jobs.byte_counts import format_bytes
from threadkeep.plural import plural
from threadkeep.version import VERSION

_NOW = 2
"""Seconds."""
_MEASURABLE = 0.001
"""Seconds: times are stored in milliseconds."""
_UNITS = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))
_INVISIBLE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
"""Control characters, also those that turn the direction of text: an id must not look like another one."""
_MARKDOWN = (
    MarkdownIt("commonmark", {"html": False, "breaks": True}).enable(["table", "strikethrough"]).disable("image")
)
"""HTML in a message stays text, and a picture stays its source: nothing is ever loaded because of a message."""


class Links:
    """Makes the addresses of pages below the path where the inspector is mounted."""

    def __init__(self, root: str) -> None:
        self._root = root

    def __call__(self, page: str = "", **parameters: Any) -> Markup:
        """Return the address of a page. Parameters that are None or empty are left out."""
        given = {name: value for name, value in parameters.items() if value not in (None, "")}
        query = urlencode(given, doseq=True, errors="surrogatepass")
        return Markup(escape(f"{self._root}/{page}" + (f"?{query}" if query else "")))  # noqa: S704 - escaped

    def static(self, name: str) -> Markup:
        """Return the address of a file that never changes within a version."""
        return self(f"static/{name}", v=VERSION)


def environment(redaction: HiddenPattern) -> Environment:
    """Return the environment of the templates. Everything is escaped, and what `redaction` matches is hidden."""

    def finalize(value: Any) -> Any:
        return visible(redaction.text(value)) if isinstance(value, str) and not isinstance(value, Markup) else value

    found = Environment(
        loader=PackageLoader("threadkeep.inspector"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=finalize,
        auto_reload=False,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    found.filters |= {
        "ago": ago,
        "bytes": format_bytes,
        "count": "{:,}".format,
        "duration": duration,
        "exact": lambda text: Markup(escape(text)),  # noqa: S704 - escaped; finalize leaves Markup alone
        "markdown": lambda text: markdown(redaction.text(text)),
        "plural": plural,
        "pretty": lambda value: json.dumps(redaction.value(value), indent=2, ensure_ascii=False, default=str),
        "short": lambda text, width=80: shorten(redaction.text(str(text)), width),
        "utc": lambda time: time.strftime("%Y-%m-%d %H:%M:%S"),
    }
    for name in found.list_templates():
        found.get_template(name)  # now, because reading a file would block the event loop later
    return found


def visible(text: str) -> str:
    """Return a text with an escape in place of each character that nobody sees."""
    return _INVISIBLE.sub(lambda found: ascii(found[0])[1:-1], text)


def markdown(text: str) -> Markup:
    """Return Markdown as HTML. A link opens in another tab and does not tell where it was; columns have no styles."""
    tokens = _MARKDOWN.parse(text)
    for token in (inner for outer in tokens for inner in (outer, *(outer.children or ()))):
        if token.type == "link_open":
            token.attrs |= {"rel": "noopener noreferrer nofollow", "target": "_blank"}
        if "style" in token.attrs:
            token.attrs["class"] = str(token.attrs.pop("style")).removeprefix("text-align:")
    return Markup(_MARKDOWN.renderer.render(tokens, _MARKDOWN.options, {}))  # noqa: S704 - HTML in it was escaped


def shorten(text: str, width: int) -> str:
    """Return the beginning of a text on one line."""
    line = " ".join(text.split())
    return line if len(line) <= width else line[: width - 1] + "…"


def ago(time: datetime) -> str:
    """Return how long ago something was: 3 min ago."""
    seconds = (datetime.now(UTC) - time).total_seconds()
    if abs(seconds) < _NOW:
        return "just now"
    return f"{duration(round(seconds))} ago" if seconds > 0 else f"in {duration(round(-seconds))}"


def duration(seconds: float) -> str:
    """Return a length of time in its largest unit: 250 ms, 3 min, 2 d."""
    if seconds < _MEASURABLE:
        return "<1 ms"
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    size, unit = next((size, unit) for size, unit in _UNITS if seconds >= size)
    number = seconds / size
    return f"{number:.1f} {unit}" if number < 10 and unit == "s" and number % 1 else f"{number:.0f} {unit}"
