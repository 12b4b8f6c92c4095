"""Large lists and dicts of scalars: CPU of a put, beside SqliteSaver, and the bytes that an append and an edit write.

    python bench/values.py            # both values, ten rounds
    python bench/values.py --rounds 3

The savers take turns, each with a file of its own. A put is the first of a new thread, so nothing can be reused. CPU is
that of the process, all threads together; the mean of the rounds is printed, because every few puts SQLite moves its log into the file. Bytes are those that the thread's rows
and items take, and for SqliteSaver the length of the columns that a put writes.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.checkpoint.sqlite import SqliteSaver

import threadkeep

VALUES: dict[str, Any] = {
    "300,000 ints": list(range(300_000)),
    "a dict of 200,000 keys": {f"key-{n}": n for n in range(200_000)},
}


def put(saver: Any, value: Any, thread: str, parent: str | None = None) -> tuple[float, str]:
    """Put a checkpoint; return the milliseconds of CPU that it took, and its id."""
    version = 2 if parent else 1
    checkpoint = {
        **empty_checkpoint(),
        "channel_values": {"value": value},
        "channel_versions": {"value": version},
    }
    named = {"checkpoint_id": parent} if parent else {}
    config: Any = {"configurable": {"thread_id": thread, "checkpoint_ns": "", **named}}
    start = time.process_time()
    stored = saver.put(config, checkpoint, {}, {"value": version})
    return (time.process_time() - start) * 1000, stored["configurable"]["checkpoint_id"]


def changes(value: Any) -> dict[str, Any]:
    """Return the value with one more element, and with another one in the middle."""
    if isinstance(value, list):
        middle = len(value) // 2
        return {"append": [*value, 1], "edit": [*value[:middle], "edited", *value[middle + 1 :]]}
    keys = list(value)
    return {"append": value | {"new": 1}, "edit": value | {keys[len(keys) // 2]: "edited"}}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=10)
    rounds = parser.parse_args().rounds
    serde = JsonPlusSerializer()
    with (
        tempfile.TemporaryDirectory() as folder,
        SqliteSaver.from_conn_string(str(Path(folder) / "official.db")) as official,
        threadkeep.open(f"sqlite:///{folder}/keep.db") as keep,
    ):
        ours = keep.checkpointer
        for saver in (official, ours):
            put(saver, [1], "warm")
        for name, value in VALUES.items():
            times: dict[str, list[float]] = {"encoding": [], "SqliteSaver": [], "threadkeep": []}
            size = len(serde.dumps_typed(value)[1])
            for n in range(rounds):
                start = time.process_time()
                serde.dumps_typed(value)
                times["encoding"].append((time.process_time() - start) * 1000)
                times["SqliteSaver"].append(put(official, value, f"{name} {n}")[0])
                times["threadkeep"].append(put(ours, value, f"{name} {n}")[0])
            middle = {who: statistics.mean(each) for who, each in times.items()}
            print(f"{name}: {size:,} bytes")
            for who, each in middle.items():
                print(f"  {who:<12} {each:6.1f} ms of CPU")
            print(f"  threadkeep takes {middle['threadkeep'] / middle['SqliteSaver']:.1f} times as long as SqliteSaver")
            for change, changed in changes(value).items():
                thread = f"{name} {change}"
                first = put(ours, value, thread)[1]
                before = next(each.bytes for each in keep.threads(prefix=thread))
                took, _ = put(ours, changed, thread, first)
                written = next(each.bytes for each in keep.threads(prefix=thread)) - before
                print(f"  {change:<12} {took:6.1f} ms of CPU, {written:,} bytes (SqliteSaver: {size:,})")


if __name__ == "__main__":
    main()
