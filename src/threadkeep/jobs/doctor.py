"""Doctor: report the settings and state of the storage, each with a verdict and, where needed, advice."""

from __future__ import annotations

import platform
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from threadkeep.engine.health.requests import LoadStorageFacts
from threadkeep.engine.tenants.requests import LoadTenant
from threadkeep.errors import ThreadkeepError, WrongKey
from threadkeep.jobs.byte_counts import format_bytes
from threadkeep.session import Session
from threadkeep.short_repr import short_repr
from threadkeep.version import VERSION

OK, NOTE, WARNING, PROBLEM = "ok", "note", "warning", "problem"
_MB, _GB = 1_000_000, 1_000_000_000
_NETWORK = ("nfs", "cifs", "smb", "9p", "fuse.sshfs", "glusterfs", "ceph", "lustre", "afs", "ncpfs")
_OLDEST_POSTGRES = 15
_MANY_DEAD = 10_000
_SLOTS = 16_384


@dataclass(frozen=True, slots=True)
class Finding:
    """A setting or measurement: name, value, verdict (ok, note, warning or problem), and advice."""

    name: str
    value: str
    verdict: str = OK
    advice: str = ""

    __repr__ = short_repr


async def doctor(session: Session) -> list[Finding]:
    """Report the settings and the state of the storage, each with a verdict and, where needed, advice.

    Nothing is changed. Two requests; the transport runs several queries for the first. Keys are not needed, but it is a
    problem if those of the Keep do not open the storage.
    """
    found = findings(await LoadStorageFacts(), tenant=session.tenant)
    try:
        await LoadTenant(session.tenant)  # before the first request about a tenant, its keys are unwrapped
    except ThreadkeepError as error:
        if isinstance(error, WrongKey) or session.keys is not None:
            found.append(Finding("encryption", "not opened", PROBLEM, str(error)))
        return found
    translation = session.transport.tenant(session.tenant).translation
    if translation is not None:
        found.append(_encryption(*translation.key.state))
    return found


def findings(facts: Mapping[str, Any], *, tenant: str) -> list[Finding]:
    """Judge the facts that a transport reported (`LoadStorageFacts`)."""
    return [*_common(facts, tenant), *_BACKENDS[facts["backend"]](facts)]


def _encryption(state: str, hides_ids: bool) -> Finding:  # noqa: FBT001 - the fields of a TenantState
    value = f"{state}, ids {'hidden' if hides_ids else 'visible'}"
    if state == "encrypting":
        return Finding("encryption", value, WARNING, "plain data may be left: run `threadkeep encrypt` to its end")
    return Finding("encryption", value)


def _common(facts: Mapping[str, Any], tenant: str) -> Iterator[Finding]:
    yield Finding("threadkeep", VERSION)
    yield Finding("python", f"{sys.version.split()[0]} on {platform.system()}")
    yield Finding("backend", facts["backend"])
    if "server" in facts:
        yield Finding("server", str(facts["server"]))
        yield Finding("driver", str(facts["driver"]))
    yield Finding("tenant", tenant or "(default)")
    if "schema" in facts:
        yield _schema(facts["schema"], facts["schema_known"])
    if "threads" in facts:
        yield Finding("contents", f"{facts['threads']} threads, {facts['memories']} memories (all tenants)")
    if facts.get("read_only"):
        yield Finding("read only", "yes", NOTE, "opened with read_only=True: this Keep changes nothing")


def _schema(version: int, known: int) -> Finding:
    if version == known:
        return Finding("schema", f"{version} (current)")
    return Finding("schema", f"{version} of {known}", WARNING, "open it once without read_only=True to migrate it")


# --- memory


def _memory(_: Mapping[str, Any]) -> Iterator[Finding]:
    yield Finding("durability", "none", NOTE, "memory:// ends with its Keep; use sqlite:/// to store threads on disk")


# --- SQLite


def _sqlite(facts: Mapping[str, Any]) -> Iterator[Finding]:
    yield Finding("file", facts["path"])
    yield _journal(facts["journal_mode"])
    yield _synchronous(facts["durability"], facts["synchronous"])
    yield _file_system(facts["file_system"])
    yield _permissions(facts)
    yield _disk(facts)
    yield Finding("page size", f"{facts['page_size']} bytes")
    yield _write_ahead_log(facts["wal_bytes"])
    yield _free_pages(facts)


def _journal(mode: str) -> Finding:
    if mode == "wal":
        return Finding("journal mode", mode)
    return Finding("journal mode", mode, PROBLEM, "readers and writers block each other; run PRAGMA journal_mode = WAL")


def _synchronous(durability: str, synchronous: str) -> Finding:
    value = f"{durability}: synchronous = {synchronous}"
    if durability == "relaxed":
        return Finding(
            "durability", value, NOTE, "a power loss may lose the last moments; durability='strict' prevents that"
        )
    if synchronous in ("full", "extra"):
        return Finding("durability", value)
    return Finding("durability", value, PROBLEM, "commits are not flushed before calls return")


def _file_system(kind: str | None) -> Finding:
    if kind is None:
        return Finding("file system", "unknown", NOTE, "it must be local: WAL does not work over a network")
    if kind.startswith(_NETWORK):
        return Finding(
            "file system",
            kind,
            PROBLEM,
            "WAL does not work over a network: move the file to a local disk, or use PostgreSQL",
        )
    return Finding("file system", kind)


def _permissions(facts: Mapping[str, Any]) -> Finding:
    value = f"{facts['mode']:o}" + ("" if facts["writable"] else ", not writable")
    if not facts["writable"]:
        return Finding(
            "permissions",
            value,
            WARNING,
            "the file and its folder must be writable: SQLite creates -wal and -shm beside it",
        )
    if facts["mode"] & 0o007:
        return Finding(
            "permissions", value, NOTE, "others on this machine can read it; if threads are private, run chmod o= on it"
        )
    return Finding("permissions", value)


def _disk(facts: Mapping[str, Any]) -> Finding:
    free, size = facts["disk_free"], facts["pages"] * facts["page_size"]
    value = f"{format_bytes(free)} free, the file uses {format_bytes(size)}"
    if free < 100 * _MB:
        return Finding("disk", value, PROBLEM, "the disk is nearly full: puts will fail with Unavailable")
    if free < 2 * size or free < _GB:
        return Finding("disk", value, WARNING, "compact needs free space of twice the file's size")
    return Finding("disk", value)


def _write_ahead_log(size: int) -> Finding:
    if size > 256 * _MB:
        return Finding(
            "write-ahead log",
            format_bytes(size),
            WARNING,
            "a long-running reader keeps it from being emptied; end the reader, then run compact",
        )
    return Finding("write-ahead log", format_bytes(size))


def _free_pages(facts: Mapping[str, Any]) -> Finding:
    free, pages = facts["free_pages"], facts["pages"]
    value = f"{free} of {pages} pages"
    if pages > 1000 and free * 4 > pages:
        return Finding("free pages", value, NOTE, "more than a quarter of the file is empty; run compact to return it")
    return Finding("free pages", value)


# --- PostgreSQL


def _postgres(facts: Mapping[str, Any]) -> Iterator[Finding]:
    settings = facts["settings"]
    yield _version(settings["server_version"])
    yield Finding("schema name", facts["schema_name"])
    yield _synchronous_commit(facts["durability"], settings)
    for name in ("fsync", "full_page_writes"):
        yield _must_be_on(name, settings[name])
    yield _connections(facts, settings)
    yield _pooler(facts)
    if facts["standby"]:
        yield Finding(
            "role",
            "standby",
            PROBLEM,
            "it refuses changes; connect to the primary, or give several hosts and target_session_attrs=read-write",
        )
    yield _pgvector(facts["pgvector"])
    yield _autovacuum(settings["autovacuum"], facts["tables"])
    yield _privileges(facts)
    yield _clock(facts["skew"], facts["round_trip"])
    yield Finding("latency", f"{1000 * facts['round_trip']:.1f} ms per round trip", *_latency(facts["round_trip"]))


def _pgvector(version: str | None) -> Finding:
    if version is None:
        advice = "needed only for searches over very many vectors; CREATE EXTENSION vector installs it"
        return Finding("pgvector", "not installed", NOTE, advice)
    return Finding("pgvector", version)


def _version(version: str) -> Finding:
    major = version.split(".", maxsplit=1)[0]
    if not major.isdigit() or int(major) < _OLDEST_POSTGRES:
        return Finding("version", version, WARNING, f"tested with PostgreSQL {_OLDEST_POSTGRES} and later")
    return Finding("version", version)


def _synchronous_commit(durability: str, settings: Mapping[str, Any]) -> Finding:
    value = f"{durability}: synchronous_commit = {settings['synchronous_in_force']}"
    if durability == "relaxed":
        return Finding(
            "durability",
            value,
            NOTE,
            "a crash of the server may lose the last moments; durability='strict' prevents that",
        )
    if settings["synchronous_in_force"] == "off":
        return Finding("durability", value, PROBLEM, "commits are not flushed before calls return")
    return Finding("durability", value)


def _must_be_on(name: str, value: str) -> Finding:
    if value == "on":
        return Finding(name, value)
    return Finding(name, value, PROBLEM, "a crash of the server may lose or damage everything; turn it on")


def _connections(facts: Mapping[str, Any], settings: Mapping[str, Any]) -> Finding:
    limit, (min_size, max_size) = int(settings["max_connections"]), facts["pool"]
    value = f"{facts['connections']} of {limit} in use; the pool of a Keep has {min_size} to {max_size}"
    if facts["connections"] + max_size > limit:
        return Finding(
            "connections", value, WARNING, "one more Keep may run out of connections; lower max_size, or use a pooler"
        )
    return Finding("connections", value)


def _pooler(facts: Mapping[str, Any]) -> Finding:
    value = f"prepare={facts['prepare']}, group={facts['group']}"
    pooler = facts.get("pooler")
    if pooler and facts["prepare"]:
        return Finding("pooler", f"{pooler}; {value}", WARNING, "in transaction mode, open with prepare=False")
    return Finding("pooler", f"{pooler or 'none detected'}; {value}")


def _autovacuum(setting: str, tables: Any) -> Finding:
    dead = sum(each[2] or 0 for each in tables)
    live = sum(each[1] or 0 for each in tables)
    value = f"{setting}; {dead} dead and {live} live rows, {format_bytes(sum(each[3] for each in tables))}"
    if setting != "on":
        return Finding("autovacuum", value, PROBLEM, "tables only grow; turn it on, or run compact regularly")
    if dead > max(live, _MANY_DEAD):
        return Finding(
            "autovacuum",
            value,
            WARNING,
            "it does not keep up; run compact, and raise autovacuum_vacuum_cost_limit",
        )
    return Finding("autovacuum", value)


def _privileges(facts: Mapping[str, Any]) -> Finding:
    refused = [each[0] for each in facts["tables"] if not each[4]]
    if refused:
        return Finding(
            "privileges",
            f"incomplete on {', '.join(refused)}",
            WARNING,
            "GRANT SELECT, INSERT, UPDATE, DELETE on them to this role",
        )
    if not facts["may_create"]:
        return Finding(
            "privileges",
            "complete on the tables, cannot create",
            NOTE,
            "a migration to a later version needs CREATE on the schema",
        )
    return Finding("privileges", "complete on the tables, can create")


def _clock(skew: float, took: float) -> Finding:
    value = f"{skew:+.3f} s from this machine's"
    if abs(skew) > 1 + took:
        return Finding(
            "server's clock",
            value,
            WARNING,
            "the times of threads and the expiry of memories come from the clients' clocks; run NTP on all machines",
        )
    return Finding("server's clock", value)


def _latency(took: float) -> tuple[str, str]:
    if took > 0.02:
        return WARNING, "each put waits for at least one round trip; run the agents closer to the database"
    return OK, ""


# --- Valkey


def _valkey(facts: Mapping[str, Any]) -> Iterator[Finding]:
    primaries = facts["primaries"]
    yield Finding("topology", f"cluster of {len(primaries)} primaries" if facts["cluster"] else "one server")
    if facts["cluster"]:
        yield _slots(facts["slots"], primaries)
    yield _replicas(primaries, cluster=facts["cluster"])
    yield _wait(facts["replicas_wanted"], primaries)
    for each in primaries:
        yield _eviction(each)
        yield _server_memory(each)
        yield _persistence(each)
        yield Finding(f"{each['name']} latency", f"{1000 * each['latency']:.1f} ms", *_latency(each["latency"]))
    if facts["expires"]:
        yield Finding("expiry", "threads expire after their last change (thread_ttl)", NOTE)


def _slots(covered: int, primaries: Any) -> Finding:
    states = {each["state"] for each in primaries}
    value = f"{covered} of {_SLOTS} covered, state {', '.join(sorted(map(str, states)))}"
    if covered < _SLOTS or states != {"ok"}:
        return Finding("slots", value, PROBLEM, "some threads cannot be reached; run valkey-cli --cluster fix")
    return Finding("slots", value)


def _replicas(primaries: Any, *, cluster: bool) -> Finding:
    counts = [each["replicas"] for each in primaries]
    value = f"{min(counts)} to {max(counts)} per primary" if min(counts) != max(counts) else f"{counts[0]} per primary"
    if min(counts) == 0:
        return Finding(
            "replicas", value, WARNING, "a server that dies loses its threads; give each primary two replicas"
        )
    if cluster and min(counts) == 1:
        return Finding(
            "replicas", value, NOTE, "two per primary are better: with one, strict commits fail while it is down"
        )
    return Finding("replicas", value)


def _wait(wanted: int | None, primaries: Any) -> Finding:
    present = min(each["replicas"] for each in primaries)
    count = min(present, 1) if wanted is None else wanted
    value = f"commits wait for {count} replicas (WAIT)"
    if count > present:
        return Finding("durability", value, PROBLEM, f"there are only {present}: every commit raises Unavailable")
    if count == 0:
        return Finding(
            "durability", value, NOTE if wanted == 0 else WARNING, "a failover may lose acknowledged changes"
        )
    return Finding("durability", value)


def _eviction(server: Mapping[str, Any]) -> Finding:
    name, value = f"{server['name']} eviction", f"{server['policy']}, {server['evicted']} keys evicted"
    if server["policy"] != "noeviction":
        return Finding(
            name, value, PROBLEM, "a full server removes parts of threads; run CONFIG SET maxmemory-policy noeviction"
        )
    if server["evicted"]:
        return Finding(name, value, WARNING, "keys were evicted before; run verify")
    return Finding(name, value)


def _server_memory(server: Mapping[str, Any]) -> Finding:
    used, limit = server["used_memory"], server["maxmemory"]
    value = f"{format_bytes(used)} of {format_bytes(limit)}" if limit else f"{format_bytes(used)}, no limit set"
    if limit and used > 0.85 * limit:
        return Finding(
            f"{server['name']} memory", value, WARNING, "nearly full: commits will be refused; add memory or shards"
        )
    if not limit:
        return Finding(
            f"{server['name']} memory",
            value,
            NOTE,
            "set maxmemory, so that a full server refuses commits instead of being killed",
        )
    return Finding(f"{server['name']} memory", value)


def _persistence(server: Mapping[str, Any]) -> Finding:
    save = "unknown" if server["save"] is None else server["save"] or "off"
    value = f"appendonly {'on' if server['aof'] else 'off'}, save {save}"
    name = f"{server['name']} persistence"
    if not server["last_save_ok"]:
        return Finding(name, value, PROBLEM, "the last save failed; see the server's log")
    if server["aof"]:
        return Finding(name, value)
    return Finding(
        name, value, WARNING, "if all copies restart, changes since the last save are lost; set appendonly yes"
    )


_BACKENDS: Mapping[str, Callable[[Mapping[str, Any]], Iterator[Finding]]] = {
    "memory": _memory,
    "sqlite": _sqlite,
    "postgres": _postgres,
    "valkey": _valkey,
}
