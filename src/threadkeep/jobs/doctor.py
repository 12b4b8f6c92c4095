"""What a storage says of itself, judged: each fact with a verdict and, where something should change, advice."""

from __future__ import annotations

import platform
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from threadkeep.engine.health.requests import LoadStorageFacts
from threadkeep.session import Session
from threadkeep.version import VERSION

OK, NOTE, WARNING, PROBLEM = "ok", "note", "warning", "problem"
_MB, _GB = 1_000_000, 1_000_000_000
_NETWORK = ("nfs", "cifs", "smb", "9p", "fuse.sshfs", "glusterfs", "ceph", "lustre", "afs", "ncpfs")
_OLDEST_POSTGRES = 15
_MANY_DEAD = 10_000
_SLOTS = 16_384


@dataclass(frozen=True, slots=True)
class Finding:
    """A fact: its name and value, a verdict (ok, note, warning or problem), and what to do about it."""

    name: str
    value: str
    verdict: str = OK
    advice: str = ""


async def doctor(session: Session) -> list[Finding]:
    """Report the settings and the state of the storage, each with a verdict and, where needed, advice.

    Nothing is changed. One round trip.
    """
    return findings(await LoadStorageFacts(), tenant=session.tenant)


def findings(facts: Mapping[str, Any], *, tenant: str) -> list[Finding]:
    """All that is to say about a storage."""
    return [*_common(facts, tenant), *_BACKENDS[facts["backend"]](facts)]


def _common(facts: Mapping[str, Any], tenant: str) -> Iterator[Finding]:
    yield Finding("threadkeep", VERSION)
    yield Finding("python", f"{sys.version.split()[0]} on {platform.system()}")
    yield Finding("backend", facts["backend"])
    if "server" in facts:
        yield Finding("server", str(facts["server"]))
        yield Finding("driver", str(facts["driver"]))
    yield Finding("tenant", tenant or "(the default)")
    if "schema" in facts:
        yield _schema(facts["schema"], facts["schema_known"])
    if "threads" in facts:
        yield Finding("contents", f"{facts['threads']} threads, {facts['memories']} memories, of all tenants")
    if facts.get("read_only"):
        yield Finding("read only", "yes", NOTE, "opened with read_only=True: nothing can be changed through this Keep")


def _schema(version: int, known: int) -> Finding:
    if version == known:
        return Finding("schema", f"{version}, which is current")
    return Finding(
        "schema", f"{version} of {known}", WARNING, "open it once without read_only=True: it is migrated then"
    )


# --- memory


def _memory(_: Mapping[str, Any]) -> Iterator[Finding]:
    yield Finding("durability", "nothing lasts", NOTE, "memory:// ends with its Keep; use sqlite:/// to keep threads")


# --- SQLite


def _sqlite(facts: Mapping[str, Any]) -> Iterator[Finding]:
    yield Finding("file", facts["path"])
    yield _journal(facts["journal_mode"])
    yield _synchronous(facts["durability"], facts["synchronous"])
    yield _file_system(facts["file_system"])
    yield _permissions(facts)
    yield _room(facts)
    yield Finding("page size", f"{facts['page_size']} bytes")
    yield _log(facts["wal_bytes"])
    yield _free_pages(facts)


def _journal(mode: str) -> Finding:
    if mode == "wal":
        return Finding("journal mode", mode)
    return Finding("journal mode", mode, PROBLEM, "readers and writers block each other: PRAGMA journal_mode = WAL")


def _synchronous(durability: str, held: str) -> Finding:
    said = f"{durability}: synchronous = {held}"
    if durability == "relaxed":
        return Finding("durability", said, NOTE, "a power loss may take the last moments; durability='strict' does not")
    if held in ("full", "extra"):
        return Finding("durability", said)
    return Finding("durability", said, PROBLEM, "commits are not flushed before calls return")


def _file_system(kind: str | None) -> Finding:
    if kind is None:
        return Finding("file system", "not known", NOTE, "it must be a local one: WAL does not work over a network")
    if kind.startswith(_NETWORK):
        return Finding(
            "file system",
            kind,
            PROBLEM,
            "WAL does not work over a network: move the file to a local disk, or use PostgreSQL",
        )
    return Finding("file system", kind)


def _permissions(facts: Mapping[str, Any]) -> Finding:
    said = f"{facts['mode']:o}" + ("" if facts["writable"] else ", not writable")
    if not facts["writable"]:
        return Finding(
            "permissions", said, WARNING, "the file and its folder must be writable; -wal and -shm are made beside it"
        )
    if facts["mode"] & 0o007:
        return Finding(
            "permissions", said, NOTE, "others on this machine may read it: chmod o= it, if threads are private"
        )
    return Finding("permissions", said)


def _room(facts: Mapping[str, Any]) -> Finding:
    free, size = facts["disk_free"], facts["pages"] * facts["page_size"]
    said = f"{in_words(free)} free, the file takes {in_words(size)}"
    if free < 100 * _MB:
        return Finding("disk", said, PROBLEM, "the disk is nearly full: puts will fail with Unavailable")
    if free < 2 * size or free < _GB:
        return Finding("disk", said, WARNING, "compact needs room for the whole file twice")
    return Finding("disk", said)


def _log(size: int) -> Finding:
    if size > 256 * _MB:
        return Finding(
            "write-ahead log",
            in_words(size),
            WARNING,
            "a reader that never ends keeps it from being emptied; then compact",
        )
    return Finding("write-ahead log", in_words(size))


def _free_pages(facts: Mapping[str, Any]) -> Finding:
    free, pages = facts["free_pages"], facts["pages"]
    said = f"{free} of {pages} pages"
    if pages > 1000 and free * 4 > pages:
        return Finding("free pages", said, NOTE, "more than a quarter of the file is empty: compact gives it back")
    return Finding("free pages", said)


# --- PostgreSQL


def _postgres(facts: Mapping[str, Any]) -> Iterator[Finding]:
    settings = facts["settings"]
    yield _version(settings["server_version"])
    yield Finding("schema name", facts["schema_name"])
    yield _commit(facts["durability"], settings)
    for name in ("fsync", "full_page_writes"):
        yield _must_be_on(name, settings[name])
    yield _connections(facts, settings)
    yield _pooler(facts)
    if facts["standby"]:
        yield Finding(
            "role",
            "standby",
            PROBLEM,
            "it takes no changes: name the primary, or several hosts with target_session_attrs=read-write",
        )
    yield Finding("pgvector", facts["pgvector"] or "not there", OK if facts["pgvector"] else NOTE,
                  "" if facts["pgvector"] else "only needed for searches over very many vectors: CREATE EXTENSION vector")  # fmt: skip
    yield _autovacuum(settings["autovacuum"], facts["tables"])
    yield _privileges(facts)
    yield _clock(facts["skew"], facts["round_trip"])
    yield Finding("latency", f"{1000 * facts['round_trip']:.1f} ms a round trip", *_latency(facts["round_trip"]))


def _version(version: str) -> Finding:
    major = int(version.split(".", maxsplit=1)[0]) if version.split(".", maxsplit=1)[0].isdigit() else 0
    if major < _OLDEST_POSTGRES:
        return Finding("version", version, WARNING, f"tested with PostgreSQL {_OLDEST_POSTGRES} and later")
    return Finding("version", version)


def _commit(durability: str, settings: Mapping[str, Any]) -> Finding:
    said = f"{durability}: synchronous_commit = {settings['synchronous_in_force']}"
    if durability == "relaxed":
        return Finding(
            "durability", said, NOTE, "a crash of the server may take the last moments; durability='strict' does not"
        )
    if settings["synchronous_in_force"] == "off":
        return Finding("durability", said, PROBLEM, "commits are not flushed before calls return")
    return Finding("durability", said)


def _must_be_on(name: str, value: str) -> Finding:
    if value == "on":
        return Finding(name, value)
    return Finding(name, value, PROBLEM, "a crash of the server may lose or damage everything: turn it on")


def _connections(facts: Mapping[str, Any], settings: Mapping[str, Any]) -> Finding:
    most, (low, high) = int(settings["max_connections"]), facts["pool"]
    said = f"{facts['connections']} of {most} in use; a Keep's pool holds {low} to {high}"
    if facts["connections"] + high > most:
        return Finding(
            "connections", said, WARNING, "one more Keep may find none left: lower max_size, or use a pooler"
        )
    return Finding("connections", said)


def _pooler(facts: Mapping[str, Any]) -> Finding:
    said = f"prepare={facts['prepare']}, group={facts['group']}"
    behind = facts.get("pooler")
    if behind and facts["prepare"]:
        return Finding("pooler", f"{behind}; {said}", WARNING, "in transaction mode it needs prepare=False")
    return Finding("pooler", f"{behind or 'none seen'}; {said}")


def _autovacuum(value: str, tables: Any) -> Finding:
    dead = sum(each[2] or 0 for each in tables)
    living = sum(each[1] or 0 for each in tables)
    said = f"{value}; {dead} dead rows beside {living} living ones, {in_words(sum(each[3] for each in tables))}"
    if value != "on":
        return Finding("autovacuum", said, PROBLEM, "tables only grow: turn it on, or compact regularly")
    if dead > max(living, _MANY_DEAD):
        return Finding(
            "autovacuum",
            said,
            WARNING,
            "it does not keep up: compact, and let it work harder (autovacuum_vacuum_cost_limit)",
        )
    return Finding("autovacuum", said)


def _privileges(facts: Mapping[str, Any]) -> Finding:
    refused = [each[0] for each in facts["tables"] if not each[4]]
    if refused:
        return Finding(
            "privileges",
            f"not all on {', '.join(refused)}",
            WARNING,
            "GRANT SELECT, INSERT, UPDATE, DELETE on them to this role",
        )
    if not facts["may_create"]:
        return Finding(
            "privileges",
            "all on the tables, none to create",
            NOTE,
            "a later version's migration needs CREATE on the schema",
        )
    return Finding("privileges", "all on the tables, and to create")


def _clock(skew: float, took: float) -> Finding:
    said = f"{skew:+.3f} s against this machine"
    if abs(skew) > 1 + took:
        return Finding(
            "server's clock",
            said,
            WARNING,
            "times of threads and of memories that expire come from the clients: run NTP on all of them",
        )
    return Finding("server's clock", said)


def _latency(took: float) -> tuple[str, str]:
    if took > 0.02:
        return WARNING, "each put waits for at least one round trip: run the agents nearer to the database"
    return OK, ""


# --- Valkey


def _valkey(facts: Mapping[str, Any]) -> Iterator[Finding]:
    primaries = facts["primaries"]
    yield Finding("topology", f"cluster of {len(primaries)} primaries" if facts["cluster"] else "one server")
    if facts["cluster"]:
        yield _slots(facts["slots"], primaries)
    yield _replicas(primaries, cluster=facts["cluster"])
    yield _waiting(facts["replicas_wanted"], primaries)
    for each in primaries:
        yield _policy(each)
        yield _memory_of(each)
        yield _persistence(each)
        yield Finding(f"{each['name']} latency", f"{1000 * each['latency']:.1f} ms", *_latency(each["latency"]))
    if facts["expires"]:
        yield Finding("expiry", "threads expire after their last change (thread_ttl)", NOTE)


def _slots(covered: int, primaries: Any) -> Finding:
    states = {each["state"] for each in primaries}
    said = f"{covered} of {_SLOTS} covered, state {', '.join(sorted(map(str, states)))}"
    if covered < _SLOTS or states != {"ok"}:
        return Finding("slots", said, PROBLEM, "some threads cannot be reached: valkey-cli --cluster fix")
    return Finding("slots", said)


def _replicas(primaries: Any, *, cluster: bool) -> Finding:
    counts = [each["replicas"] for each in primaries]
    said = f"{min(counts)} to {max(counts)} a primary" if min(counts) != max(counts) else f"{counts[0]} a primary"
    if min(counts) == 0:
        return Finding(
            "replicas", said, WARNING, "a server that dies takes its threads with it: give each primary two replicas"
        )
    if cluster and min(counts) == 1:
        return Finding(
            "replicas", said, NOTE, "two a primary are better: with one, strict commits stop while it is away"
        )
    return Finding("replicas", said)


def _waiting(wanted: int | None, primaries: Any) -> Finding:
    there = min(each["replicas"] for each in primaries)
    count = min(there, 1) if wanted is None else wanted
    said = f"commits wait for {count} replicas (WAIT)"
    if count > there:
        return Finding("durability", said, PROBLEM, f"there are only {there}: every commit is Unavailable")
    if count == 0:
        return Finding(
            "durability", said, NOTE if wanted == 0 else WARNING, "a failover may lose what was acknowledged"
        )
    return Finding("durability", said)


def _policy(server: Mapping[str, Any]) -> Finding:
    name, said = f"{server['name']} eviction", f"{server['policy']}, {server['evicted']} keys evicted"
    if server["policy"] != "noeviction":
        return Finding(
            name, said, PROBLEM, "a full server removes pieces of threads: CONFIG SET maxmemory-policy noeviction"
        )
    if server["evicted"]:
        return Finding(name, said, WARNING, "keys were evicted before: run verify")
    return Finding(name, said)


def _memory_of(server: Mapping[str, Any]) -> Finding:
    used, most = server["used_memory"], server["maxmemory"]
    said = f"{in_words(used)} of {in_words(most)}" if most else f"{in_words(used)}, no limit set"
    if most and used > 0.85 * most:
        return Finding(
            f"{server['name']} memory", said, WARNING, "nearly full: commits will be refused; add memory or shards"
        )
    if not most:
        return Finding(
            f"{server['name']} memory",
            said,
            NOTE,
            "set maxmemory, so that a full server refuses instead of being killed",
        )
    return Finding(f"{server['name']} memory", said)


def _persistence(server: Mapping[str, Any]) -> Finding:
    saves = server["save"]
    said = f"appendonly {'on' if server['aof'] else 'off'}, save {saves or 'off' if saves is not None else 'not told'}"
    name = f"{server['name']} persistence"
    if not server["last_save_ok"]:
        return Finding(name, said, PROBLEM, "the last save failed: look into the server's log")
    if server["aof"]:
        return Finding(name, said)
    return Finding(name, said, WARNING, "if all copies restart, what came after the last save is gone: appendonly yes")


_UNITS = ("B", "kB", "MB", "GB", "TB")


def in_words(count: float) -> str:
    """Bytes for people: 1.5 MB."""
    for unit in _UNITS[:-1]:
        if abs(count) < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} {_UNITS[-1]}"


_BACKENDS: Mapping[str, Callable[[Mapping[str, Any]], Iterator[Finding]]] = {
    "memory": _memory, "sqlite": _sqlite, "postgres": _postgres, "valkey": _valkey,
}  # fmt: skip
