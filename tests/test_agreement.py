"""All savers give the same results: each random operation is applied to all backends and to a model.

Memory, SQLite and PostgreSQL, sync and async, and Valkey in fewer examples, each with two Keeps that write the same
storage in turn (what one caches of a thread must not outlive a change by the other) and a third that only reads.
`THREADKEEP_HYPOTHESIS=prove` searches longer.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.checkpoint.serde.types import ERROR, INTERRUPT, RESUME, SCHEDULED

import shared_pool
import threadkeep
from hypothesis_profiles import PROVING, machine_settings
from model import Model, checkpoint_config
from row_invariants import find_problems, unused_items
from threadkeep import Problem, ThreadInfo
from threadkeep.backends.in_memory.backend import InMemoryBackend
from threadkeep.engine.log.itemlog import ItemId
from threadkeep.keep import Keep
from threadkeep.session import Caches, Session
from threadkeep.tenants.transport import TenantTransport
from threadkeep.transports.direct import Direct
from value_changes import CHANNELS, elements, evolve_long

THREADS = ["t", "thread-u", "v"]
NAMESPACES = ["", "", "", "child:1", "child:2|x:3"]
RUNS = ["run-1", "run-2", "00000000-0000-4000-8000-000000000003"]
TASKS = ["a", "b", "c0ffee00-0000-4000-8000-000000000000"]
PATHS = ["", "~__pregel_pull, a", "~b"]
SPECIAL = [ERROR, INTERRUPT, RESUME, SCHEDULED]
NOTHING = (None, (), False)
"""What was said about a thread that was not described."""
LABELS = [1, 1.0, True, "1", None, {"a": [1, {"b": None}]}, {"a": [1.0, {"b": None}]}]
SOURCES = ["input", "loop", "update", "fork"]
CACHES = [1 << 26, 20_000, 1 << 26]
"""The second Keep of each store has a small cache, and drops most of what it read."""

serde = JsonPlusSerializer()


def dump_tuple(found: Any) -> Any:
    """Return everything in a tuple, with values as serialized bytes, so that types and order count."""
    if found is None:
        return None
    inner, parent = found.config["configurable"], found.parent_config
    checkpoint = dict(found.checkpoint)
    values, versions, seen = (checkpoint.pop(key) for key in ("channel_values", "channel_versions", "versions_seen"))
    return (
        (inner["thread_id"], inner["checkpoint_ns"], inner["checkpoint_id"]),
        parent and parent["configurable"],
        {key: serde.dumps_typed(value) for key, value in found.metadata.items()},
        {key: serde.dumps_typed(value) for key, value in checkpoint.items()},
        {channel: serde.dumps_typed(value) for channel, value in values.items()},
        repr(versions),
        repr(seen),
        [(task, channel, serde.dumps_typed(value)) for task, channel, value in found.pending_writes],
    )


def dump_history(found: Any) -> Any:
    """Return the same for the history of delta channels."""
    return {
        channel: (
            [(task, name, serde.dumps_typed(value)) for task, name, value in dump_tuple["writes"]],
            [serde.dumps_typed(dump_tuple[key]) for key in ("seed",) if key in dump_tuple],
        )
        for channel, dump_tuple in found.items()
    }


TELL: dict[str, Callable[[Any], Any]] = {
    "get_tuple": dump_tuple,
    "list": lambda found: [dump_tuple(each) for each in found],
    "get_delta_channel_history": dump_history,
}


def differences(found: Any, expected: Any, where: str = "") -> Iterator[str]:
    """Return where two results differ, shortened."""
    if isinstance(found, list | tuple) and isinstance(expected, list | tuple) and len(found) == len(expected):
        for n, (one, other) in enumerate(zip(found, expected, strict=True)):
            yield from differences(one, other, f"{where}[{n}]")
    elif isinstance(found, dict) and isinstance(expected, dict) and found.keys() == expected.keys():
        for key in found:
            yield from differences(found[key], expected[key], f"{where}[{key!r}]")
    elif found != expected:
        yield f"{where}: {found!r:.300} instead of {expected!r:.300}"


class Store:
    """One storage and the Keeps on it, called sync or async by default."""

    def __init__(
        self,
        name: str,
        open: Callable[[int], Keep],
        *,
        is_async: bool,
        path: Path | str | None = None,
        tenant: str = "",
    ) -> None:
        self.name = name
        self._path = path
        self._tenant = tenant
        self._open = open
        self._is_async = is_async
        self._runner = asyncio.Runner()
        self._keeps = [open(which) for which in range(3)]

    def find_problems(self) -> list[str]:
        if self._path is None or (isinstance(self._path, Path) and not self._path.exists()):
            return []
        return find_problems(self._path, self._tenant)

    def problems(self) -> list[Problem]:
        """Return what verify finds (in `make test` in memory only), without parents that were never put."""
        if not self.name.startswith("memory") and not PROVING:
            return []
        return [problem for problem in self._keeps[2].verify().problems if problem.problem != "missing parent"]

    def unused_items(self, thread: str) -> set[ItemId]:
        return unused_items(self._path, thread, self._tenant) if self._path else set()

    def reopen(self, which: int) -> None:
        self._keeps[which].close()
        self._keeps[which] = self._open(which)

    def do(self, which: int, verb: str, *args: Any, flip: bool = False, **kwargs: Any) -> Any:
        """Call a verb of one Keep's saver as this store does by default, or (flip) the other way, on its own loop."""
        saver = self._keeps[which].checkpointer
        if self._is_async == flip:
            found = getattr(saver, verb)(*args, **kwargs)
            return list(found) if verb == "list" else found
        run = asyncio.run if flip else self._runner.run
        return run(self._awaited(getattr(saver, f"a{verb}")(*args, **kwargs), verb))

    def do_all(self, which: int, calls: Sequence[tuple[Any, ...]], *, flip: bool) -> None:
        """Make several calls concurrently."""
        saver = self._keeps[which].checkpointer
        if self._is_async == flip:
            with ThreadPoolExecutor(len(calls)) as pool:
                for done in [pool.submit(getattr(saver, verb), *args) for verb, *args in calls]:
                    done.result()
        else:
            self._runner.run(self._gathered([getattr(saver, f"a{verb}")(*args) for verb, *args in calls]))

    async def _gathered(self, calls: Sequence[Any]) -> None:
        await asyncio.gather(*calls)

    async def _awaited(self, called: Any, verb: str) -> Any:
        return [found async for found in called] if verb == "list" else await called

    def describe(self, which: int, thread: str, said: dict[str, Any]) -> None:
        if self._is_async:
            self._runner.run(self._keeps[which].adescribe(thread, **said))
        else:
            self._keeps[which].describe(thread, **said)

    def threads(self, **chosen: Any) -> list[ThreadInfo]:
        chosen = {"titles": False, **chosen}
        if self._is_async:
            return self._runner.run(self._keeps[2].athreads(**chosen))
        return self._keeps[2].threads(**chosen)

    def catalogue(self) -> dict[str, tuple[Any, ...]]:
        """Return what the catalogue reports of each thread, but times and bytes. All orders and pages must agree."""
        listed = self.threads(order="id")
        for order in ("id", "updated", "created", "bytes"):
            whole = self.threads(order=order)
            assert sorted(whole, key=lambda info: info.id) == listed
            for after, rest in zip([None, *whole], range(len(whole) + 1), strict=True):
                assert self.threads(order=order, after=after) == whole[rest:]
                assert self.threads(order=order, after=after and after.id, limit=1) == whole[rest : rest + 1]
        for info in listed:
            assert info in self.threads(status=info.status, prefix=info.id[:2])
        return {info.id: (info.checkpoints, info.writes, info.step, info.source, info.status) for info in listed}

    def descriptions(self, **chosen: Any) -> dict[str, tuple[Any, ...]]:
        """Return what was said about each thread."""
        return {info.id: (info.title, info.labels, info.archived) for info in self.threads(**chosen)}

    def close(self) -> None:
        for keep in self._keeps:
            keep.close()
        self._runner.close()


def stores(folder: Path) -> list[Store]:
    def in_memory() -> Callable[[int], Keep]:
        rows = InMemoryBackend()
        return lambda which: Keep(
            Session(TenantTransport(Direct(rows), ""), tenant="", caches=Caches(CACHES[which])), None
        )

    def in_file(name: str) -> Callable[[int], Keep]:
        url = f"sqlite:///{folder / name}"
        return lambda which: threadkeep.open(url, durability="relaxed", cache_bytes=CACHES[which])

    tenants = [shared_pool.fresh_tenant() for _ in range(2)]
    return [
        Store("memory sync", in_memory(), is_async=False),
        Store("memory async", in_memory(), is_async=True),
        Store("sqlite sync", in_file("sync.db"), is_async=False, path=folder / "sync.db"),
        Store("sqlite async", in_file("async.db"), is_async=True, path=folder / "async.db"),
        on_server("postgres sync", shared_pool.schema(), tenants[0], None, is_async=False),
        on_server("postgres async", shared_pool.schema(), tenants[1], "thread", is_async=True),
    ]


def on_server(name: str, url: str, tenant: str, group: str | None = None, *, is_async: bool) -> Store:
    def opened(which: int) -> Keep:
        return shared_pool.keep(tenant, cache_bytes=CACHES[which], group=group, url=url)

    return Store(name, opened, is_async=is_async, path=url, tenant=tenant)


def on_valkey(folder: Path) -> list[Store]:
    """Only this one, in fewer examples: a query of all threads queries all partitions."""
    return [on_server("valkey", shared_pool.cluster(), shared_pool.fresh_tenant(), is_async=False)]


class Agreement(RuleBasedStateMachine):
    """Ids grow with the steps, except those that are put in between or again."""

    stores_in = staticmethod(stores)

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.stores = self.stores_in(self.folder)
        self.model = Model()
        self.live: dict[tuple[str, str, str], dict[str, Any]] = {}  # the same objects that the graph holds
        self.known: dict[tuple[str, str, str], None] = {}
        self.clock = 0
        self.touched: set[str] = set()
        self.said: dict[str, tuple[Any, ...]] = {}
        self.failed = False

    # --- helpers

    def apply(self, data: Any, verb: str, *args: Any, keep: int | None = None, **kwargs: Any) -> None:
        """Apply the same change to all, through one of the two Keeps of each."""
        which = data.draw(st.sampled_from([0, 0, 0, 1]), "keep") if keep is None else keep
        flip = data.draw(st.booleans(), "sync or async")
        getattr(self.model, verb)(*args, **kwargs)
        for store in self.stores:
            store.do(which, verb, *args, flip=flip, **kwargs)
        if verb == "copy_thread" and args[0] in self.said and self.said.get(args[1], NOTHING) == NOTHING:
            self.said[args[1]] = self.said[args[0]]
        self.said = {thread: said for thread, said in self.said.items() if thread in self.model.thread_ids}

    def agree(
        self, which: int, verb: str, *args: Any, flip: bool = False, stores: Sequence[Store] = (), **kwargs: Any
    ) -> None:
        """Compare the result of the same call on all."""
        expected = TELL[verb](getattr(self.model, verb)(*args, **kwargs))
        for store in stores or self.stores:
            answer = TELL[verb](store.do(which, verb, *args, flip=flip, **kwargs))
            if answer != expected:
                self.failed = True
                raise AssertionError(f"{store.name}: {verb}{args}{kwargs}\n" + "\n".join(differences(answer, expected)))

    def there(self, thread: str | None = None, ns: str | None = None) -> list[tuple[str, str, str]]:
        return [p for p in self.model.checkpoint_keys() if thread in (None, p[0]) and ns in (None, p[1])]

    def new_id(self, draw: Any) -> str:
        """Draw an id: mostly greater than all, sometimes in between, sometimes an existing one of any thread."""
        kind = draw(st.sampled_from(["next"] * 6 + ["between", "again"]))
        if kind == "again" and self.known:
            return draw(st.sampled_from([id for _, _, id in self.known]))
        self.clock += 10
        number = draw(st.integers(1, self.clock)) if kind == "between" else self.clock
        return f"{number:08}-0000-6000-8000-000000000000" if draw(st.booleans()) else f"{number:08}"

    # --- changes

    @rule(data=st.data(), thread=st.sampled_from(THREADS), ns=st.sampled_from(NAMESPACES), steps=st.integers(1, 8))
    def run_a_graph(self, data: Any, thread: str, ns: str, steps: int) -> None:
        """Put a chain of checkpoints, with the writes that lead from each to the next."""
        run, parent = self.run(data.draw), self.parent(data.draw, thread, ns)
        for _ in range(steps):
            self.clock += 10
            id = f"{self.clock:08}"
            self.apply(data, *self.a_put(data, (thread, ns, id), parent, run))
            for task in TASKS[: data.draw(st.integers(0, 2))]:
                self.apply(data, *self.some_writes(data, (thread, ns, id), task, run))
            parent = id

    @rule(data=st.data(), thread=st.sampled_from(THREADS), ns=st.sampled_from(NAMESPACES))
    def put_anywhere(self, data: Any, thread: str, ns: str) -> None:
        parent = self.parent(data.draw, thread, ns)
        self.apply(data, *self.a_put(data, (thread, ns, self.new_id(data.draw)), parent, self.run(data.draw)))

    @rule(data=st.data(), thread=st.sampled_from(THREADS), again=st.booleans(), keep=st.integers(0, 1))
    def change_behind_the_back(self, data: Any, thread: str, again: bool, keep: int) -> None:
        """Put a checkpoint of one Keep again, or the whole thread, by the other; the first continues from there."""
        self.clock += 20
        checkpoint_key, parent = (thread, "", f"{self.clock - 10:08}"), self.parent(data.draw, thread, "")
        self.apply(data, *self.a_put(data, checkpoint_key, parent, {}), keep=1 - keep)
        if not again:
            self.apply(data, "delete_thread", thread, keep=keep)
        self.apply(data, *self.a_put(data, checkpoint_key, parent, {}), keep=keep)
        self.agree(1 - keep, "get_tuple", checkpoint_config(thread, data.draw(st.sampled_from(["", "elsewhere"])), ""))
        self.apply(data, *self.a_put(data, (thread, "", f"{self.clock:08}"), checkpoint_key[2], {}), keep=1 - keep)

    @rule(data=st.data(), thread=st.sampled_from(THREADS), ns=st.sampled_from(NAMESPACES))
    def finish_a_step(self, data: Any, thread: str, ns: str) -> None:
        """Put a checkpoint and the writes of many tasks on it concurrently."""
        self.clock += 10
        checkpoint_key, run = (thread, ns, f"{self.clock:08}"), self.run(data.draw)
        calls = [self.a_put(data, checkpoint_key, self.parent(data.draw, thread, ns), run)]
        calls += [self.some_writes(data, checkpoint_key, task, run) for task in data.draw(st.permutations(TASKS))]
        for verb, *args in calls:
            getattr(self.model, verb)(*args)
        which, flip = data.draw(st.integers(0, 1)), data.draw(st.booleans())
        for store in self.stores:
            store.do_all(which, calls, flip=flip)

    def a_put(
        self, data: Any, checkpoint_key: tuple[str, str, str], parent: str | None, run: dict[str, Any]
    ) -> tuple[Any, ...]:
        draw, (thread, ns, id) = data.draw, checkpoint_key
        old = self.live.get((thread, ns, parent or ""), {"values": {}, "versions": {}})
        checkpoint, new_versions = self.step(draw, old["values"], old["versions"])
        if draw(st.integers(0, 9)) == 9:
            new_versions = {}  # as update_state(..., as_node="__copy__") does
        config = {
            "configurable": {"thread_id": thread, "checkpoint_ns": ns, "checkpoint_id": parent, "user": "u"},
            "metadata": run,
        }
        self.live[checkpoint_key] = {"values": checkpoint["channel_values"], "versions": checkpoint["channel_versions"]}
        self.known[checkpoint_key] = None
        self.touched.add(thread)
        left_out = draw(st.sets(st.sampled_from([*CHANNELS]))) if draw(st.integers(0, 4)) == 4 else set()
        # A channel that has a version, no value, and a write on the way is taken for a delta channel, which the model
        # does not know: ancestors with such a write become hidden, not removed.
        left_out -= {
            write[1]
            for where, writes in self.model.writes.items()
            if where[:2] == (thread, ns)
            for write in writes.values()
        }
        given = {name: value for name, value in checkpoint["channel_values"].items() if name not in left_out}
        checkpoint = {**checkpoint, "id": id, "channel_values": given}
        return ("put", config, checkpoint, self.metadata(draw, thread, ns), new_versions)

    def parent(self, draw: Any, thread: str, ns: str) -> str | None:
        """Draw a parent: mostly the latest, sometimes an older one (a fork), a removed one, or none."""
        there = [id for _, _, id in self.there(thread, ns)]
        kind = draw(st.sampled_from(["latest"] * 5 + ["old", "gone", "none"]))
        if kind == "latest" and there:
            return there[0]
        if kind == "old" and there:
            return draw(st.sampled_from(there))
        gone = [id for t, n, id in self.known if (t, n) == (thread, ns) and id not in there]
        return draw(st.sampled_from(gone)) if kind == "gone" and gone else None

    def step(
        self, draw: Any, values: dict[str, Any], versions: dict[str, Any]
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Put a checkpoint after another: some channels change and get the next version, some are consumed."""
        after, marked = dict(values), dict(versions)
        version = self.next_version(draw, versions)
        channels = draw(st.lists(st.sampled_from([*CHANNELS]), max_size=3, unique=True))
        if draw(st.integers(0, 39)) == 39:
            channels.append("long")
        for channel in channels:
            if channel == "branch" and channel in after:
                del after[channel]
            else:
                after[channel] = CHANNELS.get(channel, evolve_long)(draw, after.get(channel))
            marked[channel] = version
        seen = {"node": dict(versions)} if draw(st.booleans()) else {}
        checkpoint: dict[str, Any] = {
            "v": 4, "ts": f"2026-01-01T00:00:{self.clock % 60:02}.000001+00:00", "channel_values": after,
            "channel_versions": marked, "versions_seen": seen,
            "updated_channels": draw(st.sampled_from([None, sorted(channels)])),
        }  # fmt: skip
        if draw(st.integers(0, 4)) == 0:
            checkpoint["pending_sends"] = draw(st.lists(elements, max_size=2))
        return checkpoint, dict.fromkeys(channels, version)

    def next_version(self, draw: Any, versions: dict[str, Any]) -> Any:
        if not versions:
            return draw(st.sampled_from([1, 1, 1, "00000000000000000000000000000001.0000000000000000", 1.0]))
        greatest = max(versions.values())
        if isinstance(greatest, str):
            return f"{int(greatest.split('.')[0]) + 1:032}.{self.clock:016}"
        return greatest + 1

    def run(self, draw: Any) -> dict[str, Any]:
        run = draw(st.sampled_from([None, *RUNS]))
        return {"run_id": run} if run else {}

    def metadata(self, draw: Any, thread: str, ns: str) -> dict[str, Any]:
        new_metadata = {"source": draw(st.sampled_from(SOURCES)), "step": draw(st.integers(-1, 3)), "parents": {}}
        if draw(st.booleans()):
            new_metadata["label"] = draw(st.sampled_from(LABELS))
        if draw(st.booleans()):
            new_metadata["thread_id"] = thread
        roots = [id for _, _, id in self.there(thread, "")]
        if ns and roots:
            new_metadata["parents"] = {"": draw(st.sampled_from(roots[:3]))}
        return new_metadata

    @rule(data=st.data(), thread=st.sampled_from(THREADS), ns=st.sampled_from(NAMESPACES))
    def put_writes(self, data: Any, thread: str, ns: str) -> None:
        """Put writes on an existing checkpoint, on a future one, again, or different ones."""
        there = [id for _, _, id in self.there(thread, ns)]
        early = f"{self.clock + data.draw(st.integers(1, 2)) * 10:08}"
        id = data.draw(st.sampled_from(there[:3] * 2 + [early]))
        task, run = data.draw(st.sampled_from(TASKS)), self.run(data.draw)
        self.apply(data, *self.some_writes(data, (thread, ns, id), task, run))

    def some_writes(
        self, data: Any, checkpoint_key: tuple[str, str, str], task: str, run: dict[str, Any]
    ) -> tuple[Any, ...]:
        draw = data.draw
        shared = self.live.get(checkpoint_key, {"values": {}})["values"].get("messages", [])
        values = st.one_of(elements, st.just(shared[-2:]), st.just(shared))
        channels = st.sampled_from(["messages", "messages", "count", "files", *SPECIAL])
        writes = draw(st.lists(st.tuples(channels, values), max_size=4))
        run = draw(st.sampled_from([run, run, {"run_id": RUNS[0]}]))
        self.known[checkpoint_key] = None
        self.touched.add(checkpoint_key[0])
        return (
            "put_writes",
            checkpoint_config(*checkpoint_key) | {"metadata": run},
            writes,
            task,
            draw(st.sampled_from(PATHS)),
        )

    @rule(data=st.data(), threads=st.lists(st.sampled_from(THREADS), min_size=1, max_size=2, unique=True))
    def clean_up(self, data: Any, threads: list[str]) -> None:
        how = data.draw(st.sampled_from(["keep_latest"] * 4 + ["runs"] * 4 + ["delete", "delete_all", "thread"]))
        if how == "runs":
            runs = data.draw(st.lists(st.sampled_from([*RUNS, "run-unknown"]), max_size=2, unique=True))
            self.apply(data, "delete_for_runs", runs)
            self.touched.update(THREADS)
            return
        self.touched.update(threads)
        if how == "thread":
            self.apply(data, "delete_thread", threads[0])
            return
        self.apply(data, "prune", threads, strategy=how)
        for store in self.stores:
            for thread in threads:
                assert not store.unused_items(thread), store.name

    @rule(data=st.data(), pair=st.tuples(st.sampled_from(THREADS), st.sampled_from(THREADS)))
    def copy_thread(self, data: Any, pair: tuple[str, str]) -> None:
        source, target = pair
        self.apply(data, "copy_thread", source, target)
        if data.draw(st.booleans()):
            self.go_on_and_copy_again(data, source, target)
        for thread, ns, id in list(self.known):
            if thread == source:
                self.known[(target, ns, id)] = None
                if (target, ns, id) not in self.live and (thread, ns, id) in self.live:
                    self.live[(target, ns, id)] = self.live[(thread, ns, id)]
        self.touched.add(target)

    def go_on_and_copy_again(self, data: Any, source: str, target: str) -> None:
        """What the target became after the first copy stays."""
        for checkpoint_key in self.there(target)[:1]:
            for task in TASKS:
                self.apply(data, *self.some_writes(data, checkpoint_key, task, self.run(data.draw)))
            self.apply(data, "copy_thread", source, target)

    @rule(which=st.integers(0, 1), data=st.data())
    def describe(self, which: int, data: Any) -> None:
        """Say something about a thread."""
        if self.model.thread_ids:
            thread = data.draw(st.sampled_from(sorted(self.model.thread_ids)))
            words = st.sampled_from(["Refunds", "über", "a b", "🐢"])
            said = data.draw(
                st.fixed_dictionaries(
                    {"archived": st.booleans()}, optional={"title": st.none() | words, "labels": st.sets(words)}
                )
            )
            title, labels, _ = self.said.get(thread, NOTHING)
            new_labels = tuple(sorted(said.get("labels", labels)))
            self.said[thread] = (said.get("title", title), new_labels, said["archived"])
            for store in self.stores:
                store.describe(which, thread, said)

    @rule(which=st.integers(0, 2))
    def reopen(self, which: int) -> None:
        for store in self.stores:
            store.reopen(which)

    # --- reads, through the Keeps that write: what they then cache must not be wrong later

    @rule(data=st.data(), which=st.integers(0, 1), flip=st.booleans())
    def ask_for_one(self, data: Any, which: int, flip: bool) -> None:
        thread, ns, id = data.draw(st.sampled_from([("t", "", "never put"), *self.known]))
        self.agree(which, "get_tuple", checkpoint_config(thread, ns, data.draw(st.sampled_from([id, ""]))), flip=flip)

    @rule(data=st.data(), which=st.integers(0, 2), flip=st.booleans())
    def ask_for_a_delta_history(self, data: Any, which: int, flip: bool) -> None:
        thread, ns, id = data.draw(st.sampled_from([("t", "", "never put"), *self.known]))
        config = checkpoint_config(thread, ns, data.draw(st.sampled_from([id, ""])))
        channels = data.draw(st.lists(st.sampled_from(["messages", "branch", "count", "nothing"]), unique=True))
        self.agree(which, "get_delta_channel_history", config=config, channels=channels, flip=flip)

    @rule(data=st.data(), which=st.integers(0, 2), flip=st.booleans())
    def ask_for_a_list(self, data: Any, which: int, flip: bool) -> None:
        draw = data.draw
        config = None
        if draw(st.booleans()):
            config = {"configurable": {"thread_id": draw(st.sampled_from(THREADS))}}
            if draw(st.booleans()):
                config["configurable"]["checkpoint_ns"] = draw(st.sampled_from(NAMESPACES))
        keys = {
            "source": st.sampled_from([*SOURCES, None]), "step": st.sampled_from([0, 1, 1.0, True, None]),
            "label": st.sampled_from(LABELS), "run_id": st.sampled_from([*RUNS, None]),
            "thread_id": st.sampled_from([*THREADS, None]), "parents": st.just({}), "user": st.sampled_from(["u", "w"]),
        }  # fmt: skip
        filter = {key: draw(keys[key]) for key in draw(st.lists(st.sampled_from(["label", *keys]), max_size=2))}
        before = draw(st.sampled_from([None, *self.known]))
        limit = draw(st.sampled_from([None, None, 0, 1, 2, 20]))
        self.agree(
            which, "list", config, filter=filter or None, limit=limit, flip=flip,
            before=before and {"configurable": {"checkpoint_id": before[2]}},
        )  # fmt: skip

    # --- invariants

    @invariant()
    def changed_threads_read_the_same(self) -> None:
        for thread in sorted(self.touched):
            self.agree(2, "list", {"configurable": {"thread_id": thread}})
            self.agree(2, "get_tuple", {"configurable": {"thread_id": thread, "checkpoint_ns": ""}})
        self.touched.clear()

    def teardown(self) -> None:
        try:
            if not self.failed:
                self.everything_reads_the_same()
        finally:
            for store in self.stores:
                store.close()
            shutil.rmtree(self.folder)

    def everything_reads_the_same(self) -> None:
        self.agree(2, "list", None)
        for checkpoint_key in self.known:
            self.agree(2, "get_tuple", checkpoint_config(*checkpoint_key), stores=self.stores[::2])
            self.agree(2, "get_tuple", checkpoint_config(*checkpoint_key[:2], ""), stores=self.stores[::2])
        for store in self.stores:
            assert store.catalogue() == self.model.threads(), store.name
            expected = {thread: self.said.get(thread, NOTHING) for thread in self.model.thread_ids}
            assert store.descriptions() == expected, store.name
            assert store.descriptions(titles=True) == self.stores[0].descriptions(titles=True), store.name
            assert store.problems() == [], store.name
        for store in self.stores:
            store.close()
            assert store.find_problems() == [], store.name


class ValkeyAgreement(Agreement):
    """The same on Valkey."""

    stores_in = staticmethod(on_valkey)


TestAgreement = Agreement.TestCase
TestAgreement.settings = machine_settings(few=10, many=600)
TestValkeyAgreement = ValkeyAgreement.TestCase
TestValkeyAgreement.settings = machine_settings(few=5, many=200)
