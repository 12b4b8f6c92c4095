"""What encryption costs: no statement, round trip, commit or row more than without keys, and few bytes.

Nothing is timed. Each verb is called some times on a Keep that has used the thread or the partition before; the last
call counts.
"""

from __future__ import annotations

import json
from functools import cache

import pytest

import processes

SCRIPT = """
import json, sys, tempfile
from contextlib import ExitStack
import threadkeep
from budget_verbs import Thread, backends, memory
from encrypted_keeps import KEYS

backend, with_keys, turns = sys.argv[1], sys.argv[2] == "True", int(sys.argv[3])
counted = {}
with ExitStack() as stack:
    url, probe = backends(stack.enter_context(tempfile.TemporaryDirectory()))[backend]()
    stack.enter_context(probe.installed() if hasattr(probe, "installed") else ExitStack())
    keep = stack.enter_context(threadkeep.open(url, keys=KEYS if with_keys else None))
    saver, store, thread = keep.checkpointer, keep.store, Thread("talk", 1)
    saver.setup()
    probe.prepare()
    others = [Thread(f"other-{n}", n, user=f"user-{n % 2}") for n in range(4)]
    for each in others:
        each.play(saver, 8)
    numbers, gone = iter(range(10**6)), iter(range(4, 100))

    def put():
        thread.messages += thread.talk.turn()
        return saver.put(*thread.put())

    verbs = {
        "put": put,
        "put_writes": lambda: saver.put_writes(*thread.writes()),
        "get_tuple": lambda: saver.get_tuple(thread.config()),
        "get_tuple by id": lambda: saver.get_tuple(thread.config(checkpoint_id=thread._parent)),
        "get_tuple of another": lambda: saver.get_tuple(others[0].config()),
        "get_tuple of none": lambda: saver.get_tuple(Thread("none", 1).config()),
        "list(10)": lambda: list(saver.list(thread.config(), limit=10)),
        "list(filter)": lambda: list(saver.list(None, filter={"user_id": "user-1"}, limit=10)),
        "threads": lambda: keep.threads(limit=3),
        "tag": lambda: keep.tag("talk", "latest", f"tag {next(numbers)}"),
        "store.put": lambda: store.put(*memory(next(numbers))),
        "store.get": lambda: store.get(*memory(1)[:2]),
        "store.search": lambda: store.search(("notes", "user-1"), limit=10),
        "store.search(query)": lambda: store.search(("notes", "user-1"), query="symbol", limit=3),
        "store.list_namespaces": lambda: store.list_namespaces(),
        "store.delete": lambda: store.delete(*memory(next(gone))[:2]),
    }
    for verb, call in verbs.items():
        for _ in range(4):
            before = probe.totals()
            call()
            after = probe.totals()
        counted[verb] = {name: after[name] - before[name] for name in after}
    before = probe.totals()
    long = Thread("long", 2)
    long.play(saver, turns * 4)
    if backend == "sqlite":
        keep._session.transport.inner.close()
        from pathlib import Path
        counted["size"] = Path(url.removeprefix("sqlite:///")).stat().st_size
    else:
        counted["size"] = probe.totals()["kb"] - before["kb"]
print(json.dumps(counted))
"""
TURNS = 40
MOST_BYTES = 1.15


@cache
def costs(backend: str, *, with_keys: bool) -> dict[str, dict[str, float]]:
    counted: dict[str, dict[str, float]] = json.loads(processes.run_forked(SCRIPT, backend, with_keys, TURNS))
    return counted


@pytest.mark.parametrize("backend", ["sqlite", "postgres", "valkey"])
def test_no_verb_makes_another_statement_round_trip_or_commit_because_of_keys(backend: str) -> None:
    plain, sealed = costs(backend, with_keys=False), costs(backend, with_keys=True)
    more = {
        (verb, name): count
        for verb, cost in sealed.items()
        if verb != "size"
        for name, count in cost.items()
        if name != "kb" and count > plain[verb][name]
    }
    assert more == {}, "without keys, an empty reply even costs a question whether the tenant is encrypted"


def test_a_conversation_in_a_file_is_hardly_larger_with_keys() -> None:
    plain, sealed = (costs("sqlite", with_keys=with_keys)["size"] for with_keys in (False, True))
    assert sealed <= MOST_BYTES * plain  # type: ignore[operator]
