"""A Valkey server's or cluster's health: what is to know of each primary."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import redis
from redis import Redis
from redis import exceptions as errors


class Primary(NamedTuple):
    """A server that has slots, and how many replicas the cluster says it has."""

    name: str
    client: Redis
    replicas: int


def facts(primaries: Iterable[Primary], *, slots: int | None, replicas_wanted: int | None) -> Mapping[str, Any]:
    """What is to know; `slots` are those that some server has, None without a cluster."""
    told = [_server(each) for each in primaries]
    return {
        "backend": "valkey",
        "driver": f"redis-py {redis.__version__}",
        "server": ", ".join(sorted({each["version"] for each in told})),
        "cluster": slots is not None,
        "slots": slots,
        "replicas_wanted": replicas_wanted,
        "primaries": told,
    }


def _server(primary: Primary) -> dict[str, Any]:
    began = time.perf_counter()
    primary.client.ping()
    took = time.perf_counter() - began
    info: Any = primary.client.info()
    return {
        "name": primary.name,
        "version": f"Valkey {info['valkey_version']}"
        if "valkey_version" in info
        else f"Redis {info.get('redis_version')}",
        "replicas": int(info.get("connected_slaves", primary.replicas)),
        "used_memory": int(info.get("used_memory", 0)),
        "maxmemory": int(info.get("maxmemory", 0)),
        "policy": info.get("maxmemory_policy"),
        "evicted": int(info.get("evicted_keys", 0)),
        "aof": bool(info.get("aof_enabled")),
        "save": _config(primary.client, "save"),
        "last_save_ok": info.get("rdb_last_bgsave_status") in ("ok", None),
        "latency": took,
        "state": _cluster_state(primary.client) if info.get("cluster_enabled") else None,
    }


def _config(client: Redis, name: str) -> str | None:
    """A setting; None where the server does not tell (managed ones refuse CONFIG)."""
    try:
        told: Any = client.config_get(name)
    except errors.ResponseError:
        return None
    return str(told.get(name)) if name in told else None


def _cluster_state(client: Redis) -> str:
    ask: Any = client.execute_command
    told = ask("CLUSTER INFO")
    if isinstance(told, dict):
        return str(told.get("cluster_state"))
    text = told.decode() if isinstance(told, bytes) else str(told)
    return dict(line.split(":", 1) for line in text.splitlines() if ":" in line).get("cluster_state", "unknown").strip()
