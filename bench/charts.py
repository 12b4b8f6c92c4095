"""Draws SVG charts: bars of ratios, and lines of growth. No library: a chart is some rectangles, lines and words.

The background is transparent. Colours and greys are readable on white and on black; viewers that say which of the two
they have get darker or lighter words.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple
from xml.sax.saxutils import escape

STYLE = """\
<style>
  text { font: 13px -apple-system, "Segoe UI", "Helvetica Neue", Arial, sans-serif; fill: #6e7781; }
  .title { font-size: 15px; font-weight: 600; }
  .label { font-size: 12px; }
  .value { font-weight: 600; }
  .small { font-size: 11px; }
  .grid { stroke: #8c959f; stroke-opacity: 0.3; }
  .one { stroke: #8c959f; stroke-width: 1.5; }
  .range { stroke: #6e7781; stroke-width: 1.5; }
  .goal { stroke: #bf8700; stroke-width: 2.5; }
  .win { fill: #2da077; } .loss { fill: #d4504c; }
  .ours { stroke: #2da077; fill: #2da077; } .theirs { stroke: #8470c8; fill: #8470c8; }
  .line { fill: none; stroke-width: 2.5; }
  text.ours, text.theirs { stroke: none; }
  @media (prefers-color-scheme: light) { text { fill: #424a53; } .range { stroke: #424a53; } }
  @media (prefers-color-scheme: dark) { text { fill: #adbac7; } .range { stroke: #cdd9e5; } .goal { stroke: #e3b341; } }
</style>"""
WIDTH = 860
LABELS, BAR, GAP, TOP, BOTTOM = 375, 14, 8, 62, 30
RIGHT, VALUE = 70, 55
TICKS = tuple(digit * 10.0**power for power in range(-3, 5) for digit in (1, 2, 5))
MANY_TICKS = 10


class Bar(NamedTuple):
    """A ratio: its median, its range, and its goal, if there is one."""

    label: str
    median: float
    low: float
    high: float
    goal: float | None = None


def svg(height: float, parts: Iterator[str]) -> str:
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height:.0f}" viewBox="0 0 {WIDTH} {height:.0f}" role="img">'
    return "\n".join([head, STYLE, *parts, "</svg>\n"])


def text(x: float, y: float, words: str, kind: str = "", anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{kind}" text-anchor="{anchor}">{escape(words)}</text>'


def line(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" class="{kind}"/>'


def times(ratio: float) -> str:
    """Return a ratio in words: 0.62x, 3.4x, 27x, 1,200x."""
    if ratio < 0.995:
        return f"{ratio:.2f}x"
    return f"{ratio:.1f}x" if ratio < 9.95 else f"{ratio:,.0f}x"


def bars(title: str, subtitle: str, given: Sequence[Bar]) -> str:
    """Draw ratios on a logarithmic scale. Bars to the right of 1x are wins, those to the left losses."""
    height = TOP + len(given) * (BAR + GAP) + BOTTOM
    least = min(0.5, *(bar.low for bar in given))
    most = max(2.0, *(max(bar.high, bar.goal or 0) for bar in given))
    ticks = [tick for tick in TICKS if least / 2 < tick < most * 2]
    if len(ticks) > MANY_TICKS:
        ticks = [tick for tick in ticks if math.log10(tick) % 1 in (0, 1)]
    low, high = math.log(min(least, ticks[0])), math.log(max(most, ticks[-1]))

    def x(ratio: float) -> float:
        return LABELS + (math.log(ratio) - low) / (high - low) * (WIDTH - LABELS - RIGHT)

    def parts() -> Iterator[str]:
        yield text(0, 18, title, "title")
        yield text(0, 37, subtitle, "small")
        end = height - BOTTOM
        for tick in ticks:
            yield line(x(tick), TOP - 8, x(tick), end, "one" if tick == 1 else "grid")
            yield text(x(tick), end + 16, f"{tick:g}x", "small", "middle")
        for number, bar in enumerate(given):
            yield from draw(bar, TOP + number * (BAR + GAP))

    def draw(bar: Bar, top: float) -> Iterator[str]:
        middle, left, right = top + BAR / 2, *sorted((x(1), x(bar.median)))
        yield text(LABELS - 10, middle + 4.5, bar.label, "label", "end")
        kind = "win" if bar.median >= 1 else "loss"
        yield f'<rect x="{left:.1f}" y="{top}" width="{max(right - left, 1.5):.1f}" height="{BAR}" rx="2" class="{kind}"/>'
        yield line(x(bar.low), middle, x(bar.high), middle, "range")
        if bar.goal is not None:
            yield line(x(bar.goal), top - 2, x(bar.goal), top + BAR + 2, "goal")
        end = max(right, x(bar.high))
        if bar.goal is not None and end - 4 < x(bar.goal) < end + VALUE:
            end = x(bar.goal)
        yield text(end + 7, middle + 4.5, times(bar.median), "value")

    return svg(height, parts())


class Curve(NamedTuple):
    """Totals of one contender by number of messages, and the exponent that fits them."""

    name: str
    points: Sequence[tuple[float, float]]
    exponent: float
    kind: str


def growth(title: str, panels: Sequence[tuple[str, Sequence[Curve]]]) -> str:
    """Draw panels side by side, each with logarithmic axes."""
    height, panel, left, top, bottom = 330, WIDTH / len(panels), 58, 62, 272

    def parts() -> Iterator[str]:
        yield text(0, 18, title, "title")
        for number, (what, curves) in enumerate(panels):
            yield from draw(number * panel, what, curves)

    def draw(start: float, what: str, curves: Sequence[Curve]) -> Iterator[str]:
        xs = [point[0] for curve in curves for point in curve.points]
        ys = [point[1] for curve in curves for point in curve.points]
        first, last = start + left, start + panel - 96
        low, high = 10 ** math.floor(math.log10(min(ys))), 10 ** math.ceil(math.log10(max(ys)))

        def place(point: tuple[float, float]) -> tuple[float, float]:
            across = math.log(point[0] / min(xs)) / math.log(max(xs) / min(xs))
            up = math.log(point[1] / low) / math.log(high / low)
            return first + across * (last - first), bottom - up * (bottom - top)

        yield text(first, top - 14, what)
        for power in range(round(math.log10(low)), round(math.log10(high)) + 1):
            y = place((min(xs), 10**power))[1]
            yield line(first, y, last, y, "grid")
            yield text(first - 7, y + 4, f"{10**power:,g}", "small", "end")
        for messages in sorted(set(xs)):
            across = place((messages, low))[0]
            if messages == max(xs) or math.log2(max(xs) / messages) % 2 < 0.1:
                yield text(across, bottom + 17, f"{messages:,g}", "small", "middle")
        yield text((first + last) / 2, bottom + 36, "messages", "small", "middle")
        for curve in curves:
            places = [place(point) for point in curve.points]
            path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
            yield f'<polyline points="{path}" class="line {curve.kind}" style="fill:none"/>'
            yield from (f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" class="{curve.kind}"/>' for x, y in places)
            x, y = places[-1]
            yield text(x + 8, y - 1, curve.name, f"small {curve.kind}")
            yield text(x + 8, y + 12, f"n^{curve.exponent:.2f}", f"small {curve.kind}")

    return svg(height, parts())
