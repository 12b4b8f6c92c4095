"""Child processes that write and are killed, and checks of the file they leave behind."""

from __future__ import annotations

import random
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import fork_server
import threadkeep
from model import checkpoint_config
from row_invariants import find_problems

_WRITER = r"""
import os, sys, random
import threadkeep

url, thread, first, seed = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
chance = random.Random(seed)
saver = threadkeep.open(url).checkpointer
found = saver.get_tuple({"configurable": {"thread_id": thread, "checkpoint_ns": ""}})
messages = found.checkpoint["channel_values"]["messages"] if found else []
parent = found.checkpoint["id"] if found else None
for n in range(first, first + 10_000):
    id = f"{n:08}"
    length = chance.choice([20, 400, 3000, 700_000 if n % 40 == 0 else 50])
    messages = [*messages[chance.choice([0, 0, 0, 1]):], {"id": id, "text": f"{n} " * (length // 4)}]
    if len(messages) > 40:
        messages = messages[30:]
    versions = {"messages": n}
    checkpoint = {"v": 4, "id": id, "ts": "2026-01-01T00:00:00+00:00", "channel_values": {"messages": messages},
                  "channel_versions": versions, "versions_seen": {}, "updated_channels": ["messages"]}
    config = {"configurable": {"thread_id": thread, "checkpoint_ns": "", "checkpoint_id": parent}}
    saver.put(config, checkpoint, {"source": "loop", "step": n, "count": len(messages)}, versions)
    os.write(1, f"put {id} {len(messages)}\n".encode())
    at = {"configurable": {"thread_id": thread, "checkpoint_ns": "", "checkpoint_id": id}}
    saver.put_writes(at, [("messages", messages[-1])], "task")
    os.write(1, f"write {id}\n".encode())
    if chance.random() < 0.1:
        saver.prune([thread])
        os.write(1, f"pruned {id}\n".encode())
    if chance.random() < 0.1:
        saver.copy_thread(thread, f"copy of {thread} at {id}")
        os.write(1, f"copied {id}\n".encode())
    parent = id
"""


_OPENER = r"""
import os, sys
from threadkeep import KeepSaver, open

saver = open(sys.argv[1]).checkpointer
os.write(1, b"ready\n")
saver.setup()
os.write(1, b"set up\n")
os.read(0, 1)
"""

_RIVAL = r"""
import os, sys, time
import threadkeep

url, name, seconds = sys.argv[1], sys.argv[2], float(sys.argv[3])
saver = threadkeep.open(url).checkpointer
latest = {"configurable": {"thread_id": "t", "checkpoint_ns": ""}}
end, n = time.monotonic() + seconds, 0
while time.monotonic() < end:
    found = saver.get_tuple(latest)
    messages = found.checkpoint["channel_values"]["messages"] if found else []
    version = max(found.checkpoint["channel_versions"].values()) + 1 if found else 1
    id = f"{time.time_ns():020}-{name}"
    messages = [*messages[-30:], {"id": id, "text": f"{name} {n} " * 60}]
    checkpoint = {"v": 4, "id": id, "ts": "2026-01-01T00:00:00+00:00", "channel_values": {"messages": messages},
                  "channel_versions": {"messages": version}, "versions_seen": {}, "updated_channels": ["messages"]}
    config = {"configurable": {**latest["configurable"], "checkpoint_id": found and found.checkpoint["id"]}}
    saver.put(config, checkpoint, {"source": "loop", "step": n, "count": len(messages)}, {"messages": version})
    at = {"configurable": {**latest["configurable"], "checkpoint_id": id}}
    saver.put_writes(at, [("messages", messages[-1])], name)
    n += 1
    if n % 7 == 0:
        saver.prune(["t"])
    if n % 50 == 0:
        saver.delete_thread("t")
    for each in saver.list(latest, limit=3):
        whole = each.checkpoint["channel_values"]["messages"]
        assert len(whole) == each.metadata["count"] and whole[-1]["id"] == each.checkpoint["id"], each.config
os.write(1, f"{n}\n".encode())
"""


def start(script: str, *args: Any) -> subprocess.Popen[bytes]:
    pipe = subprocess.PIPE
    return fork_server.Forked([script, *map(str, args)], stdin=pipe, stdout=pipe)


def kill(child: subprocess.Popen[bytes]) -> str:
    """Kill a child with SIGKILL and return what it had printed."""
    child.send_signal(signal.SIGKILL)
    output, _ = child.communicate()
    return output.decode()


def kill_while_writing(path: Path, *, kills: int, seed: int, longest: float = 0.5) -> None:
    """Kill a writer at random moments. After each kill, everything acknowledged is stored and whole."""
    chance = random.Random(seed)
    first = 1
    for n in range(kills):
        child = start(_WRITER, f"sqlite:///{path}", "t", first, seed * 1000 + n)
        assert child.stdout is not None
        output = child.stdout.readline().decode()
        time.sleep(chance.uniform(0, longest))
        output += kill(child)
        first = 1 + _check(path, output)


def _check(path: Path, output: str) -> int:
    """Check everything that the writer printed, and return the greatest stored id."""
    done = [line.split() for line in output.splitlines()]
    pruned = max((id for verb, id, *_ in done if verb == "pruned"), default="")
    assert find_problems(path) == []
    with threadkeep.open(f"sqlite:///{path}") as keep:
        saver = keep.checkpointer
        found = {c.config["configurable"]["checkpoint_id"]: c for c in saver.list({"configurable": {"thread_id": "t"}})}
        for verb, id, *_ in done:
            if id not in found:
                assert id < pruned or list(found) == [max(found)], f"{id} is lost"
            elif verb == "write":
                assert found[id].pending_writes is not None
                assert [task for task, _, _ in found[id].pending_writes] == ["task"]
            elif verb == "copied":
                copied = saver.get_tuple(checkpoint_config(f"copy of t at {id}", "", id))
                assert copied is not None
                assert copied.checkpoint == found[id].checkpoint
        for each in saver.list(None):
            whole = each.checkpoint["channel_values"]["messages"]
            assert len(whole) == each.metadata["count"]
            assert whole[-1]["id"] == each.checkpoint["id"]
            assert [value for _, _, value in each.pending_writes or []] in ([], whole[-1:])
        return int(max(found))


def kill_while_setting_up(folder: Path, *, kills: int, seed: int) -> None:
    """Kill a process while it creates the schema. The next one opens the file as if nothing had happened."""
    chance = random.Random(seed)
    for n in range(kills):
        path = folder / f"{n}.db"
        child = start(_OPENER, f"sqlite:///{path}")
        assert child.stdout is not None
        assert child.stdout.readline() == b"ready\n"
        time.sleep(chance.uniform(0, 0.02))
        kill(child)
        with threadkeep.open(f"sqlite:///{path}") as keep:
            assert list(keep.checkpointer.list(None)) == []
        assert find_problems(path) == []


def write_and_prune_side_by_side(path: Path, *, processes: int, seconds: float) -> None:
    """Let several processes put, prune and delete one thread. None sees an error or a partial checkpoint."""
    rivals = [start(_RIVAL, f"sqlite:///{path}", f"p{n}", seconds) for n in range(processes)]
    with threadkeep.open(f"sqlite:///{path}") as keep:
        while any(rival.poll() is None for rival in rivals):
            for each in keep.checkpointer.list(None):
                assert len(each.checkpoint["channel_values"]["messages"]) == each.metadata["count"]
    rounds = [rival.communicate()[0] for rival in rivals]
    assert [rival.returncode for rival in rivals] == [0] * processes
    assert all(int(count) > 5 for count in rounds), rounds
    assert find_problems(path) == []
