"""Valkey health: report the settings and state of each primary."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import redis
from redis import Redis
from redis import exceptions as errors


class Primary(NamedTuple):
    """A primary, and how many replicas the cluster lists for it."""

    name: str
    client: Redis
    replicas: int


def facts(primaries: Iterable[Primary], *, slots: int | None, replicas_wanted: int | None) -> Mapping[str, Any]:
    """Report the servers' settings and state. `slots` counts those that have a server; None without a cluster."""
    servers = [_server(each) for each in primaries]
    return {
        "backend": "valkey",
        "driver": f"redis-py {redis.__version__}",
        "server": ", ".join(sorted({each["version"] for each in servers})),
        "cluster": slots is not None,
        "slots": slots,
        "replicas_wanted": replicas_wanted,
        "primaries": servers,
    }


def _server(primary: Primary) -> dict[str, Any]:
    began = time.perf_counter()
    primary.client.ping()
    latency = time.perf_counter() - began
    info: Any = primary.client.info()
    return {
        "name": primary.name,
        "version": _version(info),
        "replicas": int(info.get("connected_slaves", primary.replicas)),
        "used_memory": int(info.get("used_memory", 0)),
        "maxmemory": int(info.get("maxmemory", 0)),
        "policy": info.get("maxmemory_policy"),
        "evicted": int(info.get("evicted_keys", 0)),
        "aof": bool(info.get("aof_enabled")),
        "save": _config(primary.client, "save"),
        "last_save_ok": info.get("rdb_last_bgsave_status") in ("ok", None),
        "latency": latency,
        "state": _cluster_state(primary.client) if info.get("cluster_enabled") else None,
    }


def _version(info: Mapping[str, Any]) -> str:
    return f"Valkey {info['valkey_version']}" if "valkey_version" in info else f"Redis {info.get('redis_version')}"


def _config(client: Redis, name: str) -> str | None:
    """Return a setting, or None if the server refuses CONFIG, as managed ones do."""
    try:
        settings: Any = client.config_get(name)
    except errors.ResponseError:
        return None
    return str(settings.get(name)) if name in settings else None


def _cluster_state(client: Redis) -> str:
    execute: Any = client.execute_command
    info = execute("CLUSTER INFO")
    if isinstance(info, dict):
        return str(info.get("cluster_state"))
    text = info.decode() if isinstance(info, bytes) else str(info)
    return dict(line.split(":", 1) for line in text.splitlines() if ":" in line).get("cluster_state", "unknown").strip()
