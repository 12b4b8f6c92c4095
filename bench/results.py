"""The results of full runs: kept in bench/results.json, and written into docs/benchmarks.md, the README and some pages.

A run of some rows replaces those rows only. Each group of rows knows when and where it was measured.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import apsw
import psycopg

import charts
from charts import Bar, Curve, times
from goals import GROWTH_GOAL, MOST_WITH_KEYS, NEVER_BELOW, goal
from measuring import Row

ROOT = Path(__file__).parents[1]
FILE = Path(__file__).with_name("results.json")
PAGE = ROOT / "docs/benchmarks.md"
README = ROOT / "README.md"
IMAGES = ROOT / "docs/images"
START, END = "<!-- generated: {} -->", "<!-- end of {} -->"
PACKAGES = (
    "threadkeep",
    "langgraph",
    "langgraph-checkpoint",
    "langgraph-checkpoint-sqlite",
    "langgraph-checkpoint-postgres",
    "cubeloop",
)
TITLES = {
    "sqlite": "SQLite",
    "postgres": "PostgreSQL",
    "valkey": "Valkey, compared with our PostgreSQL",
}
SECTIONS = {
    "Checkpoints": ("conversation", "long", "growth", "delta", "small", "crowd", "tasks", "valkey"),
    "The store": ("store",),
    "CubeLoop threads": ("cube",),
}
ENCRYPTION = "encryption"
"""The group that compares threadkeep with itself: it has a table of its own."""
README_ROWS = (
    "saver time, strict",
    "bytes",
    "get",
    "list(10)",
    "delete a long thread",
    "put, long",
    "delta, time",
    "async threads",
    "start of a process",
    "parallel tasks, sync",
    "small checkpoints",
    "list(filter), across threads, by metadata",
    "list(filter), within a thread",
    "store put",
    "store search, equality, one matches",
    "cube append, to 1,000 messages",
)
"""The keys of the rows that the README shows, wins and losses."""
COMPARISON_ROWS = (
    "saver time, strict",
    "bytes",
    "bytes written",
    "get",
    "list(10)",
    "delta, both, time",
    "delta, both, bytes",
    "get in a new process",
    "start of a process",
    "parallel tasks, sync",
    "small checkpoints",
    "delete a small thread",
)
STORE_ROWS = (
    "store put",
    "store get",
    "store batch put",
    "store search, prefix, both",
    "store search, equality, one matches",
    "store put, words",
    "store bytes, words",
)
CUBE_ROWS = ("cube append, to 1,000 messages", "cube load, 50000", "cube cold load, 0", "cube load, long", "cube fork")
KEYS_ROWS = (
    "keys, saver time, strict",
    "keys, bytes",
    "keys, get",
    "keys, list(10)",
    "keys, store put",
    "keys, store get",
    "keys, store search by words",
    "keys, store filter over 2,000 memories",
    "keys, store bytes",
)
SHORT_TABLES: dict[Path, dict[str, tuple[str, ...]]] = {
    README: {"results": README_ROWS},
    ROOT / "docs/comparison.md": {"checkpointers": COMPARISON_ROWS, "stores": STORE_ROWS, "cube": CUBE_ROWS},
    ROOT / "docs/howto/encryption.md": {"costs": KEYS_ROWS},
    ROOT / "docs/howto/serverless.md": {"start of a process": ("get in a new process", "start of a process")},
}
"""The rows that other pages show, by the name of the generated part."""
_PARTS = {"store": "store: ", "cube": "CubeLoop: "}
Results = dict[str, dict[str, Any]]


def conditions(repetitions: int, *, full: bool) -> dict[str, Any]:
    """Return when, with what and on what a run takes place, in general words."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return {
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "run": "full" if full else "short",
        "repetitions": repetitions,
        "machine": f"{os.cpu_count()} cores, {memory:.0f} GB of memory, {platform.system()}",
        "load": round(os.getloadavg()[0], 1),
        "python": platform.python_version(),
        "versions": {name: version(name) for name in PACKAGES}
        | {"SQLite": apsw.sqlite_lib_version(), "psycopg": psycopg.__version__},
    }


def load() -> Results:
    found: Results = json.loads(FILE.read_text("utf-8")) if FILE.exists() else {}
    return found


def record(storage: str, group: str, rows: Iterable[Row], measured: Mapping[str, Any]) -> None:
    """Replace the rows of a group in the file."""
    results = load()
    results.setdefault(storage, {})[group] = {"measured": measured, "rows": [asdict(row) for row in rows]}
    FILE.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n", "utf-8")


def rows_of(results: Results, storage: str, groups: Iterable[str]) -> list[Row]:
    found = results.get(storage, {})
    return [Row(**row) for group in groups if group in found for row in found[group]["rows"]]


# --- words for figures


def figure(value: float, unit: str) -> str:
    if unit == "ms" and value >= 10_000:
        value, unit = value / 1e3, "s"
    digits = 0 if value >= 100 else 1 if value >= 10 else 2
    return f"{value:,.{digits}f} {unit}".strip()


def spread(ratios: Sequence[float]) -> str:
    return f"{times(min(ratios))} to {times(max(ratios))}" if len(ratios) > 1 else ""


def cells(storage: str, row: Row) -> list[str]:
    """Return a row of the table: what, theirs, ours, ratio, range, ratio of CPU, goal."""
    ratios, cpu, wanted = row.ratios(), row.cpu_ratios(), goal(storage, row.key)
    theirs = figure(row.median(row.names[0]), row.unit) if len(row.names) > 1 else ""
    ratio = times(statistics.median(ratios)) if ratios else ""
    return [
        row.what,
        theirs,
        figure(row.median(row.names[-1]), row.unit),
        f"**{ratio}**" if ratios and statistics.median(ratios) < 1 else ratio,
        spread(ratios),
        f"{times(statistics.median(cpu))} ({cpu_figures(row)})" if cpu else "",
        f"at most {GROWTH_GOAL}" if row.key.startswith("growth") else times(wanted) if wanted else "",
    ]


def cpu_figures(row: Row) -> str:
    both = [statistics.median(each[name] for each in row.cpu) for name in (row.names[0], row.names[-1])]
    return ", ".join(figure(value, row.unit) for value in both)


def headings(storage: str) -> tuple[str, ...]:
    both = ("on PostgreSQL", "on Valkey") if storage == "valkey" else ("theirs", "threadkeep")
    return ("what", *both, "times less", "range", "CPU: times less (of both)", "goal")


WITHOUT_KEYS, VARIANTS_WITH_KEYS = "without keys", ("with keys", "with hidden ids")
HEADINGS_OF_KEYS = (
    "what",
    WITHOUT_KEYS,
    *(head for name in VARIANTS_WITH_KEYS for head in (name, "times more")),
    "at most",
)


def cells_of_keys(row: Row) -> list[str]:
    """Return a row of the table on encryption. What takes more than it may is bold."""
    most = MOST_WITH_KEYS.get(row.key)
    found = [row.what, figure(row.median(WITHOUT_KEYS), row.unit)]
    for name in VARIANTS_WITH_KEYS:  # the file has them in another order
        ratio = statistics.median(each[name] / each[WITHOUT_KEYS] for each in row.figures)
        too_much = most is not None and ratio > most
        found += [figure(row.median(name), row.unit), f"**{ratio:.2f}x**" if too_much else f"{ratio:.2f}x"]
    return [*found, f"{most}x" if most else ""]


def verdict(storage: str, rows: Iterable[Row]) -> str:
    """Return how many rows are wins and how many goals are reached, then the losses and the goals that are not."""
    found = [(row.what, statistics.median(row.ratios()), goal(storage, row.key)) for row in rows if row.ratios()]
    losses = [f"{what} ({times(ratio)})" for what, ratio, _ in found if ratio < NEVER_BELOW]
    missed = [
        f"{what} ({times(ratio)} of {times(wanted)})" for what, ratio, wanted in found if wanted and ratio < wanted
    ]
    goals = sum(1 for _, _, wanted in found if wanted)
    counts = f"Wins: {len(found) - len(losses)} of {len(found)} rows. Goals reached: {goals - len(missed)} of {goals}."
    lists = {"Losses": losses, "Goals that are not reached": missed}
    return "\n".join([counts, "", *(f"- {name}: {'; '.join(each)}" for name, each in lists.items() if each)]).rstrip()


# --- the page


def table(names: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    head = f"| {' | '.join(names)} |\n|---|{'---:|' * (len(names) - 1)}"
    return "\n".join([head, *(f"| {' | '.join(cells)} |" for cells in rows)])


def bars_of(storage: str, rows: Iterable[Row]) -> list[Bar]:
    compared = [(row, row.ratios()) for row in rows if row.ratios()]
    return [
        Bar(row.what, statistics.median(ratios), min(ratios), max(ratios), goal(storage, row.key))
        for row, ratios in compared
    ]


def chart_of_growth(storage: str, rows: Iterable[Row]) -> str | None:
    found = {row.key: row for row in rows if row.key.startswith("growth")}
    if not found:
        return None
    points = found["growth, 1"].points

    def curves(part: int, scale: float) -> list[Curve]:
        return [
            Curve(
                name,
                [(each[0], each[part] / scale) for each in given],
                found[f"growth, {part}"].median(name),
                "ours" if name == "threadkeep" else "theirs",
            )
            for name, given in points.items()
        ]

    panels = [("seconds in the saver, in all", curves(1, 1)), ("MB in the database", curves(2, 1e6))]
    return charts.growth(f"{TITLES[storage]}: growth of one conversation", panels)


def said_of(measured: Sequence[Mapping[str, Any]]) -> str:
    """Return the sentence that says how the rows of a section were measured."""
    first = measured[0]
    dates = sorted({each["date"] for each in measured})
    versions = ", ".join(f"{name} {number}" for name, number in first["versions"].items())
    loads = sorted({each["load"] for each in measured})
    busy = f"system load {loads[0]}" if len(loads) == 1 else f"system load {loads[0]} to {loads[-1]}"
    runs = " and ".join(sorted({each["run"] for each in measured}))
    repetitions = " or ".join(map(str, sorted({each["repetitions"] for each in measured})))
    return (
        f"Measured on {' and '.join(dates)} in a {runs} run with {repetitions} repetitions: {first['machine']}, "
        f"{busy} at the start; Python {first['python']}, {versions}."
    )


SUBTITLE = (
    "how many times less time, CPU or bytes threadkeep takes: median and range of the repetitions; yellow: the goal"
)
NOTHING = "No results are recorded yet: run `make bench-full`."


class Page(NamedTuple):
    """The generated part of the page, and the plots that it shows, by name."""

    text: str
    plots: dict[str, str]


def render(results: Results) -> Page:
    """Return tables and plots of all results."""
    parts: list[str] = []
    plots: dict[str, str] = {}
    for storage, title in TITLES.items():
        found = results.get(storage, {})
        if not found:
            continue
        parts += [f"### {title}", said_of([each["measured"] for each in found.values()])]
        for section, groups in SECTIONS.items():
            rows = rows_of(results, storage, groups)
            if rows:
                parts.append(f"#### {title.partition(',')[0]}: {_within(section)}")
                parts += [verdict(storage, rows)] if any(row.ratios() for row in rows) else []
                parts += add_plots(storage, section, rows, plots)
                parts.append(table(headings(storage), (cells(storage, row) for row in rows)))
        costs = rows_of(results, storage, [ENCRYPTION])
        if costs:
            parts += [
                f"#### {title.partition(',')[0]}: what encryption costs",
                table(HEADINGS_OF_KEYS, map(cells_of_keys, costs)),
            ]
    return Page("\n\n".join(parts) or NOTHING, plots)


def add_plots(storage: str, section: str, rows: Sequence[Row], plots: dict[str, str]) -> Iterator[str]:
    """Draw the plots of a section, and yield the lines that show them."""
    name = f"{storage}-{section.lower().replace(' ', '-')}.svg"
    given = bars_of(storage, rows)
    if given:
        plots[name] = charts.bars(f"{TITLES[storage]}: {_within(section)}", SUBTITLE, given)
        yield f"![How many times less threadkeep takes, row by row](images/{name})"
    growth = chart_of_growth(storage, rows)
    if growth:
        plots[f"{storage}-growth.svg"] = growth
        yield f"![Growth of total time and bytes with the number of messages](images/{storage}-growth.svg)"


def _within(title: str) -> str:
    """Return a title as it stands within another one: "The store" is "the store", but CubeLoop keeps its name."""
    return title if title.startswith("CubeLoop") else title[0].lower() + title[1:]


def short_table(results: Results, keys: Iterable[str]) -> str:
    """Return a table of some rows, SQLite beside PostgreSQL."""
    storages = ("sqlite", "postgres")
    rows = {
        (storage, row.key): cells(storage, row)
        for storage in storages
        for row in rows_of(results, storage, [group for groups in SECTIONS.values() for group in groups])
    }
    lines = [
        "| what | theirs, SQLite | threadkeep | | theirs, PostgreSQL | threadkeep | |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for key in keys:
        found = [rows[storage, key] for storage in storages if (storage, key) in rows]
        if len(found) == len(storages):
            part = next((name for start, name in _PARTS.items() if key.startswith(start)), "")
            figures = [cell for each in found for cell in each[1:4]]
            lines.append(f"| {' | '.join([part + found[0][0], *figures])} |")
    return "\n".join(lines)


def short_table_of_keys(results: Results) -> str:
    """Return a table of how many times more some rows take with keys, and with hidden ids, on each storage."""
    storages = [storage for storage in TITLES if ENCRYPTION in results.get(storage, {})]
    found = {(storage, row.key): row for storage in storages for row in rows_of(results, storage, [ENCRYPTION])}
    names = [TITLES[storage].partition(",")[0] for storage in storages]
    heads = ["what", *(cell for name in names for cell in (f"{name}, keys", "hidden ids"))]
    lines = []
    for key in KEYS_ROWS:
        rows = [found[storage, key] for storage in storages]
        lines.append([rows[0].what, *(cell for row in rows for cell in cells_of_keys(row)[3:6:2])])
    return table(heads, lines)


def whole_page(path: Path, parts: Mapping[str, str]) -> str:
    """Return a page with these generated parts, by name."""
    text = path.read_text("utf-8")
    for name, generated in parts.items():
        start, end = (mark.format(name) for mark in (START, END))
        before, opening, rest = text.partition(start)
        _, closing, after = rest.partition(end)
        if not (opening and closing):
            raise ValueError(f"{path.name} has no section between {start} and {end}")
        text = f"{before}{start}\n\n{generated}\n\n{end}{after}"
    return text


def short_tables(path: Path, results: Results) -> str:
    """Return a page of `SHORT_TABLES` with its tables."""
    tables = {
        name: short_table_of_keys(results) if keys is KEYS_ROWS else short_table(results, keys)
        for name, keys in SHORT_TABLES[path].items()
    }
    return whole_page(path, tables)


def write_page() -> None:
    """Write tables and plots of all results into the page, and short tables into other pages."""
    results = load()
    page = render(results)
    PAGE.write_text(whole_page(PAGE, {"results": page.text}), "utf-8")
    for path in SHORT_TABLES:
        path.write_text(short_tables(path, results), "utf-8")
    IMAGES.mkdir(exist_ok=True)
    for name, plot in page.plots.items():
        (IMAGES / name).write_text(plot, "utf-8")


if __name__ == "__main__":
    write_page()
