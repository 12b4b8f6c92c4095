"""What verbs cost can be seen: as OpenTelemetry spans and metrics, in a log of slow calls, and in `keep.metrics()`.

And nothing else can: no value, id, name or password is in any of these.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import logging
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import postgres_servers
import processes
import threadkeep
from checkpoint_chains import Chain, config
from conftest import Caller
from sample_keep import SECRETS, contents, fill
from sync_async import AsyncCaller
from threadkeep.adapters.cubeloop import KeepCube
from threadkeep.adapters.deepagents_files import KeepFiles
from threadkeep.adapters.langgraph_cache import KeepCache
from threadkeep.errors import Conflict, Missing, Unavailable
from threadkeep.observability.adapters import VERBS
from threadkeep.observability.otel import COUNTERS
from verbs import every_async_verb, every_verb

NUMBERS = {"duration", "round_trips", "bytes_read", "bytes_written", "retries", "conflicts", "committed_with", "number"}
"""The attributes of spans and events whose values are numbers, without their prefix."""
NAMES = {"verb", "backend", "direction"}
NOT_MEASURED = {
    "KeepSaver": {"setup", "from_conn_string", "get_next_version", "with_allowlist"},
    "KeepStore": {
        "setup", "from_conn_string", "version_of", "search_stored",
        "sweep_ttl", "start_ttl_sweeper", "stop_ttl_sweeper",
    },
    "KeepCache": set(),
    "KeepFiles": set(),
    "KeepCube": set(),
}  # fmt: skip
"""Methods that do not use the storage, or that are measured where they run: `sweep_ttl`."""


class Telemetry:
    """What a program exports: an application's providers, with exporters that keep everything in memory."""

    def __init__(self) -> None:
        self._spans, self._reader = InMemorySpanExporter(), InMemoryMetricReader()
        self.tracers = TracerProvider()
        self.tracers.add_span_processor(SimpleSpanProcessor(self._spans))
        self.meters = MeterProvider([self._reader])

    def spans(self) -> list[ReadableSpan]:
        """Return the spans that ended since the last call."""
        found = list(self._spans.get_finished_spans())
        self._spans.clear()
        return found

    def points(self) -> dict[str, list[Any]]:
        """Return all data points by metric."""
        data = self._reader.get_metrics_data()
        scopes = [scope for each in data.resource_metrics for scope in each.scope_metrics] if data is not None else []
        return {metric.name: list(metric.data.data_points) for scope in scopes for metric in scope.metrics}

    def total(self, metric: str, **attributes: Any) -> float:
        """Return the sum of a counter over all points with these attributes."""
        wanted = {f"threadkeep.{name}": value for name, value in attributes.items()}.items()
        points = self.points().get(metric, [])
        return sum(each.value for each in points if wanted <= dict(each.attributes).items())

    def everything(self) -> str:
        """Return all that was exported as text, and drop the spans."""
        spans = [each.to_json() for each in self.spans()]
        data = self._reader.get_metrics_data()
        return "\n".join([*spans, data.to_json() if data is not None else ""])


@pytest.fixture
def telemetry(monkeypatch: pytest.MonkeyPatch) -> Telemetry:
    """Set providers for a test. A program can set them once only, by `trace.set_tracer_provider`."""
    made = Telemetry()
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", made.tracers)
    monkeypatch.setattr(metrics._internal, "_METER_PROVIDER", made.meters)
    return made


def span_names(spans: list[ReadableSpan]) -> list[str]:
    return [each.name for each in spans]


def expected_span(call: str, target: str) -> str:
    """Return the name of the span of a call in the table of `verbs.py`."""
    verb = {"get": "get_tuple", "list all": "list", "prune by policy": "prune"}.get(call, call)
    return f"threadkeep.{target}.{verb}"


SAVER_CALLS = {
    "put", "put_writes", "get_tuple", "get", "list", "list all", "get_delta_channel_history", "copy_thread",
    "delete_for_runs", "prune", "delete_thread",
}  # fmt: skip


def check_spans(telemetry: Telemetry, name: str, call: str) -> None:
    (span,) = telemetry.spans()
    target = "checkpointer" if call in SAVER_CALLS else "keep"
    assert span.name == expected_span(call, target), name
    assert span.status.status_code is trace.StatusCode.UNSET
    if call != "setup":
        assert span.attributes["threadkeep.round_trips"] >= 1, name


# --- spans


def test_every_sync_verb_makes_one_span(url: str, telemetry: Telemetry) -> None:
    with threadkeep.open(url) as keep:
        for name, verb in every_verb(keep).items():
            verb()
            check_spans(telemetry, name, name)


async def test_every_async_verb_makes_one_span(url: str, telemetry: Telemetry) -> None:
    async with threadkeep.open(url) as keep:
        for name, verb in every_async_verb(keep).items():
            await verb()
            check_spans(telemetry, name, name.removeprefix("a") if name != "activity" else name)


async def test_verbs_of_the_store_the_cache_and_files_make_one_span_each(
    url: str, telemetry: Telemetry, call: Caller
) -> None:
    key = (("some",), "key")
    async with threadkeep.open(url) as keep:
        calls = {
            "store.put": (("a",), "k", {"x": 1}),
            "store.get": (("a",), "k"),
            "store.search": (("a",),),
            "store.list_namespaces": (),
            "store.delete": (("a",), "k"),
            "store.batch": ([],),
            "cache.set": ({key: ({"x": 1}, None)},),
            "cache.get": ([key],),
            "cache.clear": (),
            "files.write": ("/a.txt", "some text"),
            "files.grep": ("some",),
        }
        for name, arguments in calls.items():
            target, verb = name.split(".")
            await call(getattr(keep, target), verb, *arguments)
            (span,) = telemetry.spans()
            assert span.name == f"threadkeep.{name}"
            assert span.attributes["threadkeep.round_trips"] >= (name != "store.batch")


@pytest.mark.parametrize("adapter", [threadkeep.KeepSaver, threadkeep.KeepStore, KeepCache, KeepCube, KeepFiles])
def test_every_verb_of_an_adapter_is_measured(adapter: type) -> None:
    public = {name for name in vars(adapter) if not name.startswith("_") and callable(getattr(adapter, name))}
    verbs = VERBS[adapter.__name__]
    assert public - NOT_MEASURED[adapter.__name__] <= verbs.keys()
    assert {verb.partition(".")[2] for verb in verbs.values()} <= set(dir(adapter))


def test_a_verb_of_cubeloop_makes_a_span(url: str, telemetry: Telemetry) -> None:
    with threadkeep.open(url) as keep:
        asyncio.run(keep.cube.save_extra("t", {"a": 1}))
        assert asyncio.run(keep.cube.load("t")).extra == {"a": 1}
    assert span_names(telemetry.spans()) == ["threadkeep.cube.save_extra", "threadkeep.cube.load"]


async def test_spans_are_below_those_of_the_caller_and_above_those_of_the_embedder(
    url: str, telemetry: Telemetry, call: Caller
) -> None:
    tracer = telemetry.tracers.get_tracer("application")

    def embed(texts: list[str]) -> list[list[float]]:
        with tracer.start_as_current_span("embedding"):
            return [[1.0, 0.0] for _ in texts]

    async with threadkeep.open(url, index={"dims": 2, "embed": embed}) as keep:
        with tracer.start_as_current_span("agent"):
            await call(keep.store, "put", ("a",), "k", {"text": "a"})
    spans = {each.name: each for each in telemetry.spans()}
    assert spans["embedding"].parent.span_id == spans["threadkeep.store.put"].context.span_id
    assert spans["threadkeep.store.put"].parent.span_id == spans["agent"].context.span_id


async def test_a_failed_verb_is_marked_with_the_class_of_the_error_alone(
    url: str, telemetry: Telemetry, call: Caller
) -> None:
    async with threadkeep.open(url) as keep:
        with pytest.raises(Missing):
            await call(keep, "rollback", "secret-thread", "latest")
        assert keep.metrics().verbs["keep.rollback"].errors == 1
    (span,) = telemetry.spans()
    assert (span.status.status_code, span.status.description) == (trace.StatusCode.ERROR, None)
    assert span.attributes["error.type"] == "Missing"
    assert span.events == ()
    (point,) = telemetry.points()["threadkeep.verb.duration"]
    assert point.attributes["error.type"] == "Missing"


def test_a_list_is_one_call_even_if_it_is_abandoned(url: str, telemetry: Telemetry) -> None:
    async def abandon(keep: threadkeep.Keep) -> None:
        listed = keep.checkpointer.alist(config("t"))
        await anext(listed)
        await listed.aclose()

    with threadkeep.open(url) as keep:
        chain = Chain(keep.checkpointer)
        for n in range(3):
            chain.put({"x": n})
        telemetry.spans()
        listed = keep.checkpointer.list(config("t"))
        next(listed)
        keep.checkpointer.get_tuple(config("t"))  # between two elements: a call of its own
        listed.close()
        asyncio.run(abandon(keep))
        assert keep.metrics().verbs["checkpointer.list"].errors == 0
    names = ["get_tuple", "list", "list"]
    assert span_names(telemetry.spans()) == [f"threadkeep.checkpointer.{name}" for name in names]


def test_a_copy_of_a_checkpointer_is_measured_and_keeps_its_own_serializer(telemetry: Telemetry) -> None:
    with threadkeep.open("memory://") as keep:
        copy = keep.checkpointer.with_allowlist([("some_module", "Name")])
        assert isinstance(copy, threadkeep.KeepSaver)
        Chain(copy).put({"x": 1})
        assert copy.serde is not keep.checkpointer.serde
    assert span_names(telemetry.spans()) == ["threadkeep.checkpointer.put"]


async def test_taking_and_releasing_a_lease_are_calls_and_what_is_between_is_not(
    url: str, telemetry: Telemetry, call: Caller
) -> None:
    def hold(keep: threadkeep.Keep) -> None:
        with keep.lease("t"):
            Chain(keep.checkpointer).put({"x": 1})

    async with threadkeep.open(url) as keep:
        if isinstance(call, AsyncCaller):
            async with keep.lease("t"):
                await Chain(keep.checkpointer).aput({"x": 1})
        else:
            await asyncio.to_thread(hold, keep)
    spans = telemetry.spans()
    assert span_names(spans) == [
        "threadkeep.keep.lease", "threadkeep.checkpointer.put", "threadkeep.keep.release_lease",
    ]  # fmt: skip
    assert all(each.parent is None for each in spans)


def test_background_sweeps_are_measured(telemetry: Telemetry) -> None:
    with threadkeep.open("memory://") as keep:
        keep.start_sweeping(0.0001)
        keep.store.start_ttl_sweeper(0.0001)
        assert postgres_servers.wait_until(lambda: {"keep.sweep", "store.sweep_ttl"} <= keep.metrics().verbs.keys(), 20)


# --- retries and conflicts


def provoke_conflict(url: str, **options: Any) -> threadkeep.Metrics:
    """Put into a thread that another Keep has changed since this one cached it."""
    with threadkeep.open(url, **options) as keep, threadkeep.open(url, metrics=False) as other:
        chain = Chain(keep.checkpointer)
        chain.put({"x": 0})
        other.checkpointer.put_writes(config("t", "00000000"), [("x", 1)], "task")
        chain.put({"x": 1})
        return keep.metrics()


def test_a_conflict_is_an_event_of_the_span_and_counted(lasting_url: str, telemetry: Telemetry) -> None:
    found = provoke_conflict(lasting_url)
    _, second = telemetry.spans()
    assert [each.name for each in second.events] == ["threadkeep.conflict"]
    assert (found.conflicts, found.verbs["checkpointer.put"].conflicts) == (1, 1)
    assert second.attributes["threadkeep.conflicts"] == 1
    assert telemetry.total("threadkeep.conflicts", verb="checkpointer.put") == 1


def test_conflicts_are_counted_in_a_keep_that_is_not_measured(lasting_url: str) -> None:
    found = provoke_conflict(lasting_url)
    assert (found.conflicts, found.measured, found.verbs) == (1, False, {})


async def test_each_retry_is_an_event_of_the_span_and_counted(telemetry: Telemetry) -> None:
    with postgres_servers.fresh_server() as server:
        keep, unmeasured = (threadkeep.open(server.url(), metrics=each) for each in (None, False))
        chains = [Chain(keep.checkpointer, thread) for thread in ("a", "b")]
        for chain in chains:
            await chain.aput({"x": 0})
        await unmeasured.checkpointer.aget_tuple(config("a"))
        telemetry.spans()
        server.stop("immediate")
        waiting = [
            asyncio.ensure_future(asyncio.to_thread(chains[0].put, {"x": 1})),
            asyncio.ensure_future(chains[1].aput({"x": 1})),
            asyncio.ensure_future(unmeasured.checkpointer.aget_tuple(config("a"))),
        ]
        while keep.metrics().retries < 6 or not unmeasured.metrics().retries:
            await asyncio.sleep(0.01)
        await asyncio.to_thread(server.start)
        await asyncio.gather(*waiting)
        spans, found = telemetry.spans(), keep.metrics()
        await asyncio.gather(keep.aclose(), unmeasured.aclose())
    events = [[each.name for each in span.events].count("threadkeep.retry") for span in spans]
    assert len(events) == 2
    assert all(each > 0 for each in events)
    assert sum(events) == found.verbs["checkpointer.put"].retries
    assert sum(events) == telemetry.total("threadkeep.retries", verb="checkpointer.put")
    assert found.lost_connections >= 1
    assert telemetry.total("threadkeep.connections.lost", backend="postgresql") == found.lost_connections


# --- numbers


async def test_calls_that_share_a_commit_are_counted_one_by_one_and_share_its_bytes(
    lasting_url: str, telemetry: Telemetry
) -> None:
    at = config("t", "00000000")
    async with threadkeep.open(lasting_url) as keep:
        await Chain(keep.checkpointer).aput({"x": 0})
        before = keep.metrics()
        telemetry.spans()
        await asyncio.gather(*(keep.checkpointer.aput_writes(at, [("x", "y" * 1000)], f"task {n}") for n in range(40)))
        found = keep.metrics()
    spans = telemetry.spans()
    assert found.changes - before.changes == 40
    assert 1 <= found.commits - before.commits < 40
    assert len(spans) == 40
    assert all(each.attributes["threadkeep.round_trips"] >= 1 for each in spans)
    assert any(each.attributes["threadkeep.committed_with"] > 0 for each in spans)
    written = sum(each.attributes["threadkeep.bytes_written"] for each in spans)
    assert 40_000 > written > 0  # compressed; each commit counts once
    assert written == found.verbs["checkpointer.put_writes"].bytes_written


async def test_memories_that_are_written_together_belong_to_all_their_calls(url: str, telemetry: Telemetry) -> None:
    async with threadkeep.open(url) as keep:
        await asyncio.gather(*(keep.store.aput(("a",), f"k{n}", {"x": n}) for n in range(40)))
    spans = telemetry.spans()
    assert span_names(spans) == ["threadkeep.store.put"] * 40
    assert all(each.attributes["threadkeep.round_trips"] >= 1 for each in spans)


def test_metrics_of_opentelemetry_and_of_the_keep_agree(url: str, telemetry: Telemetry) -> None:
    with threadkeep.open(url) as keep:
        chain = Chain(keep.checkpointer)
        messages = [{"text": str(n) * 500} for n in range(10)]
        for n in range(10):
            chain.put({"messages": messages[: n + 1]})
        for _ in range(3):
            keep.checkpointer.get_tuple(config("t"))
        found = keep.metrics()
    put = found.verbs["checkpointer.put"]
    assert (put.calls, found.verbs["checkpointer.get_tuple"].calls) == (10, 3)
    assert telemetry.total("threadkeep.round_trips", verb="checkpointer.put") == put.round_trips >= 10
    assert telemetry.total("threadkeep.io", verb="checkpointer.put", direction="written") == put.bytes_written > 0
    (point,) = [
        each
        for each in telemetry.points()["threadkeep.verb.duration"]
        if each.attributes["threadkeep.verb"] == "checkpointer.put"
    ]
    assert (point.count, point.sum) == (10, pytest.approx(put.seconds))
    assert put.longest <= put.seconds
    for name, (metric, *_) in COUNTERS.items():
        assert telemetry.total(metric) == pytest.approx(getattr(found, name)), metric
    assert found.cache_hits > 0
    assert (found.cached_threads, found.cached_bytes > 0) == (1, True)
    assert found.sharing > 0.5  # each checkpoint has one message that is new


def test_a_keep_of_a_tenant_counts_together_with_the_one_it_comes_from(url: str, telemetry: Telemetry) -> None:
    with threadkeep.open(url) as keep:
        Chain(keep.tenant("acme").checkpointer).put({"x": 1})
        assert keep.metrics().verbs["checkpointer.put"].calls == 1
        assert keep.tenant("acme").metrics() == keep.metrics()
    assert span_names(telemetry.spans()) == ["threadkeep.checkpointer.put"]


async def test_calls_of_an_encrypted_keep_are_measured(lasting_url: str, telemetry: Telemetry, call: Caller) -> None:
    async with threadkeep.open(lasting_url, keys=threadkeep.Keys({"k1": os.urandom(32)}, "k1")) as keep:
        await call(Chain(keep.checkpointer), "put", {"x": "y" * 1000})
        await call(keep.store, "put", ("a",), "k", {"x": 1})
        assert (await call(keep.checkpointer, "get_tuple", config("t"))) is not None
    names = ["checkpointer.put", "store.put", "checkpointer.get_tuple"]
    spans = telemetry.spans()
    assert span_names(spans) == [f"threadkeep.{name}" for name in names]
    assert all(each.attributes["threadkeep.round_trips"] >= 1 for each in spans)


def test_callers_that_wait_for_a_connection_are_counted(telemetry: Telemetry) -> None:
    url = postgres_servers.fresh_schema(postgres_servers.shared())
    with threadkeep.open(url, max_size=1) as keep:
        keep.checkpointer.get_tuple(config("t"))
        assert keep.metrics().pool_waits == 0
        pool: Any = keep._session.transport._connections.pool
        taken = pool.getconn(1)
        caller = threading.Thread(target=keep.checkpointer.get_tuple, args=(config("t"),))
        caller.start()
        assert postgres_servers.wait_until(lambda: pool._waiting == 1, 20)
        pool.putconn(taken)
        caller.join()
        found = keep.metrics()
    assert (found.pool_waits, found.pool_wait_seconds > 0) == (1, True)
    assert telemetry.total("threadkeep.pool.waits") == 1
    assert telemetry.total("threadkeep.pool.wait_time") == found.pool_wait_seconds


def test_waits_for_a_lent_pool_are_those_that_it_has_counted() -> None:
    from psycopg_pool import ConnectionPool

    with ConnectionPool(postgres_servers.shared().url(), min_size=1, max_size=1) as pool:
        with threadkeep.open(pool, schema="observed_pool") as keep:
            keep.checkpointer.get_tuple(config("t"))
            assert keep.metrics().pool_waits == pool.get_stats().get("requests_queued", 0)


async def test_a_call_that_is_cancelled_ends_and_leaves_nothing_behind(url: str, telemetry: Telemetry) -> None:
    async with threadkeep.open(url) as keep:
        at = config("t", "0")
        tasks = [asyncio.ensure_future(keep.checkpointer.aput_writes(at, [("x", n)], str(n))) for n in range(20)]
        await asyncio.sleep(0)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await keep.checkpointer.aget_tuple(at)
        found = keep.metrics().verbs["checkpointer.put_writes"]
        assert (found.calls, found.errors) == (20, 20)
        observer: Any = keep._session.observer
    assert observer._labels == {}
    spans = [each for each in telemetry.spans() if each.name == "threadkeep.checkpointer.put_writes"]
    assert {each.attributes["error.type"] for each in spans} == {"CancelledError"}


# --- what is never there


def texts(value: Any) -> Iterator[str]:
    """Yield all keys and texts of a JSON document."""
    if isinstance(value, dict):
        yield from value
        for each in value.values():
            yield from texts(each)
    elif isinstance(value, list):
        for each in value:
            yield from texts(each)
    elif isinstance(value, str):
        yield value


def check_attributes(attributes: Any) -> None:
    for key, value in attributes.items():
        name = key.removeprefix("threadkeep.")
        if name in NUMBERS:
            assert type(value) in (int, float), key
        else:
            assert name in NAMES or key == "error.type", key
            assert value.replace(".", "").replace("_", "").isalnum(), key


def refused_calls(keep: threadkeep.Keep) -> Iterator[Callable[[], Any]]:
    """Yield calls that fail, with secrets in their arguments."""
    yield lambda: keep.rollback("private-thread", "Kilimanjaro")
    yield lambda: keep.store.search(("users",), filter={"customer_email": {"$bad": "ana@example.org"}})
    yield lambda: keep.store.put(("users", ""), "favourite-colour", {"is": "blue moon"})
    yield lambda: keep.checkpointer.put_writes(config("private-thread", "A"), "Kilimanjaro", "secret-user")  # type: ignore[arg-type]
    yield lambda: list(keep.checkpointer.list(None, filter={"customer_email": "ana@example.org"}, limit=-1))
    yield lambda: keep.diff("private-thread", "Kilimanjaro", "Zanzibar")


def test_no_value_id_or_name_is_in_spans_metrics_or_the_slow_log(
    url: str, telemetry: Telemetry, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    with threadkeep.open(url, slow_seconds=0) as keep:
        fill(keep)
        contents(keep)
        keep.store.search(("users",), query="Kilimanjaro", filter={"customer_email": "ana@example.org"})
        list(keep.checkpointer.list(None, filter={"customer_email": "ana@example.org"}))
        keep.threads(prefix="private-")
        keep.sizes()
        keep.search("Kilimanjaro", metadata={"customer_email": "ana@example.org"})
        for refused in refused_calls(keep):
            with pytest.raises((ValueError, TypeError, LookupError)):
                refused()
        ids = [info.id for info in keep.threads(limit=1000)]
        assert "private-thread" in ids
    slow = [each for each in caplog.records if each.name == "threadkeep.slow"]
    spans = telemetry.spans()
    assert len(spans) == len(slow) > 200
    assert sum(each.levelno == logging.WARNING for each in slow) == len(slow)
    for span in spans:
        check_attributes(span.attributes)
        assert span.status.description is None
        for event in span.events:
            check_attributes(event.attributes)
    for points in telemetry.points().values():
        for point in points:
            check_attributes(point.attributes)
    exported = [
        *map(str, texts([json.loads(each.to_json()) for each in spans])),
        *map(str, texts(json.loads(telemetry.everything()))),
    ]
    logged = [each.getMessage() + str(each.__dict__.get("threadkeep")) for each in slow]
    for secret in [*SECRETS, *ids, "users", "notes", "weather"]:
        # Short ids may be words of ours: they are looked for as whole texts.
        assert not any(secret in text.split() or (len(secret) > 8 and secret in text) for text in exported + logged), (
            secret
        )


def test_no_password_of_a_url_is_in_a_span_or_a_log(telemetry: Telemetry, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "threadkeep")
    url = "postgresql://ada:password-1234@127.0.0.1:1/database-name"
    with threadkeep.open(url, timeout=0.1, slow_seconds=0) as keep:
        with pytest.raises(Unavailable):
            keep.checkpointer.get_tuple(config("t"))
        shown = str(keep.metrics())
    exported = telemetry.everything()
    assert "Unavailable" in exported
    assert "Unavailable" in caplog.text
    for secret in ("password-1234", "database-name", "ada:"):
        assert secret not in exported + caplog.text + shown


# --- the slow log


@pytest.mark.parametrize(("limit", "logged"), [(0, True), (3600, False)])
async def test_a_call_is_logged_if_it_takes_as_long_as_the_limit(
    limit: float, logged: bool, call: Caller, caplog: pytest.LogCaptureFixture
) -> None:
    async with threadkeep.open("memory://", slow_seconds=limit) as keep:
        await call(Chain(keep.checkpointer), "put", {"x": 1})
        assert keep.metrics().verbs["checkpointer.put"].slow == logged
    assert [each.name for each in caplog.records] == ["threadkeep.slow"] * logged
    if logged:
        fields: Any = caplog.records[0].__dict__["threadkeep"]
        assert (fields["verb"], fields["backend"], fields["error"]) == ("checkpointer.put", "memory", None)
        assert fields["round_trips"] == 2
        assert "checkpointer.put took" in caplog.text


# --- when a Keep is measured


def test_a_keep_is_not_measured_if_no_provider_is_set() -> None:
    with threadkeep.open("memory://") as keep:
        assert type(keep.checkpointer) is threadkeep.KeepSaver
        Chain(keep.checkpointer).put({"x": 1})
        found = keep.metrics()
    assert (found.measured, found.verbs, found.cached_threads) == (False, {}, 1)


def test_metrics_false_exports_nothing(telemetry: Telemetry, caplog: pytest.LogCaptureFixture) -> None:
    with threadkeep.open("memory://", metrics=False) as keep:
        Chain(keep.checkpointer).put({"x": 1})
        assert not keep.metrics().measured
    with threadkeep.open("memory://", metrics=False, slow_seconds=0) as keep:
        Chain(keep.checkpointer).put({"x": 1})
    assert "checkpointer.put took" in caplog.text
    assert telemetry.everything() == ""


@pytest.mark.parametrize(
    ("option", "value", "error"), [("metrics", "yes", TypeError), ("slow_seconds", -1, ValueError)]
)
def test_an_option_with_a_wrong_value_is_refused(option: str, value: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match=option):
        threadkeep.open("memory://", **{option: value})


def test_opening_imports_neither_opentelemetry_nor_what_measures() -> None:
    script = (
        "import sys, threadkeep\n"
        "with threadkeep.open('memory://') as keep:\n"
        "    keep.checkpointer.get_tuple({'configurable': {'thread_id': 't'}})\n"
        "print(*[name for name in sys.modules if name.startswith(('threadkeep.observability', 'opentelemetry'))])\n"
    )
    assert processes.run(script).split() == []


def test_numbers_are_counted_without_opentelemetry() -> None:
    script = (
        "import sys, threadkeep\n"
        "sys.modules['opentelemetry'] = None\n"
        "with threadkeep.open('memory://', metrics=True) as keep:\n"
        "    keep.store.put(('a',), 'k', {'x': 1})\n"
        "    print(keep.metrics().verbs['store.put'].calls)\n"
    )
    assert processes.run(script) == "1\n"


def test_a_provider_that_is_set_after_opening_gets_everything_with_metrics_true() -> None:
    script = (
        "import threadkeep\n"
        "from opentelemetry import trace\n"
        "from opentelemetry.sdk.trace import TracerProvider\n"
        "from opentelemetry.sdk.trace.export import SimpleSpanProcessor\n"
        "from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter\n"
        "keep, late = threadkeep.open('memory://', metrics=True), threadkeep.open('memory://')\n"
        "spans = InMemorySpanExporter()\n"
        "provider = TracerProvider()\n"
        "provider.add_span_processor(SimpleSpanProcessor(spans))\n"
        "trace.set_tracer_provider(provider)\n"
        "early = threadkeep.open('memory://')\n"
        "for each in (keep, late, early):\n"
        "    each.store.put(('a',), 'k', {'x': 1})\n"
        "print(*[each.name for each in spans.get_finished_spans()])\n"
    )
    assert processes.run_forked(script).split() == ["threadkeep.store.put"] * 2


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
def test_a_forked_child_counts_from_zero(tmp_path: Path) -> None:
    script = (
        "import os, sys, threadkeep\n"
        "keep = threadkeep.open(sys.argv[1], metrics=True)\n"
        "keep.store.put(('a',), 'k', {'x': 1})\n"
        "if os.fork() == 0:\n"
        "    keep.store.get(('a',), 'k')\n"
        "    print(sorted((name, each.calls) for name, each in keep.metrics().verbs.items()), flush=True)\n"
        "    keep.close()\n"
        "    os._exit(0)\n"
        "os.wait()\n"
        "print(sorted(keep.metrics().verbs), flush=True)\n"
    )
    assert processes.run_forked(script, f"sqlite:///{tmp_path}/a.db").splitlines() == [
        "[('store.get', 1)]",
        "['store.put']",
    ]


def test_metrics_is_no_verb_that_uses_the_storage() -> None:
    assert not inspect.iscoroutinefunction(threadkeep.Keep.metrics)
    with threadkeep.open("postgresql://ada@127.0.0.1:1/nowhere") as keep:
        assert keep.metrics().backend == "postgresql"


def test_a_conflict_of_a_lease_is_not_counted_as_one(lasting_url: str, telemetry: Telemetry) -> None:
    with threadkeep.open(lasting_url, fenced=True) as keep:
        with pytest.raises(Conflict):
            Chain(keep.checkpointer).put({"x": 1})
        assert (keep.metrics().conflicts, keep.metrics().verbs["checkpointer.put"].errors) == (0, 1)
