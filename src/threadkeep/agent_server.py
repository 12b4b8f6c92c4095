"""The checkpointer and the store for LangGraph's Agent Server, which langgraph.json names by path.

    "checkpointer": {"path": "threadkeep.agent_server.checkpointer"},
    "store": {"path": "threadkeep.agent_server.store"}

The server calls each without arguments, once for each of its threads, and exits few of what it enters. So all of them
use one Keep, `keep()`, which environment variables configure:

    THREADKEEP_URL           where everything is stored
    THREADKEEP_KEYS          master keys, in the form of `Keys.from_env`
    LANGGRAPH_AES_KEY        the server's own key, if THREADKEEP_KEYS is not set; see `derive_key`
    LANGGRAPH_STORE          set by the server: the block "store" of langgraph.json, of which `index` and `ttl` count
    LANGGRAPH_CHECKPOINTER   set by the server: the block "checkpointer", of which `serde` counts
"""

from __future__ import annotations

import atexit
import json
import os
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, NamedTuple

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import CheckpointTuple
from langgraph.store.base import NOT_PROVIDED, NotProvided

import threadkeep
from threadkeep.adapters.langgraph_saver import KeepSaver
from threadkeep.adapters.langgraph_store import KeepStore
from threadkeep.drivers.loops import run_in_thread
from threadkeep.encryption.keys import KEY_BYTES, Keys
from threadkeep.engine.log.type_gate import KeepSerializer
from threadkeep.keep import Keep

_AES_KEY = "LANGGRAPH_AES_KEY"
_KEYS = "THREADKEEP_KEYS"
_URL = "THREADKEEP_URL"
_VARIABLES = (_URL, _KEYS, _AES_KEY, "LANGGRAPH_STORE", "LANGGRAPH_CHECKPOINTER")


class _Environment(NamedTuple):
    """The values of the variables; an empty one counts as not set."""

    url: str
    keys: str
    aes_key: str
    store: str
    checkpointer: str


class _Opened(NamedTuple):
    """What the threads of the server share."""

    keep: Keep
    saver: ServerSaver
    store: ServerStore


_opened: dict[_Environment, _Opened] = {}
"""What this process has opened, by environment: one Keep, except in tests. It is closed when the process ends, because
nothing says earlier that the last of the server's threads has finished."""


def keep() -> Keep:
    """Return the Keep of this process, for nodes and routes of your own that need its verbs.

    The first call imports a driver: on an event loop, make it in a thread. ValueError or TypeError if a variable is
    missing or not valid.
    """
    return _open().keep


@asynccontextmanager
async def checkpointer() -> AsyncIterator[KeepSaver]:
    """Enter the checkpointer of the Keep. Leaving it closes nothing."""
    yield (await run_in_thread(_open)).saver


@asynccontextmanager
async def store() -> AsyncIterator[KeepStore]:
    """Enter the store of the Keep. Leaving it closes nothing.

    With a `ttl` in its block, expired memories are swept: the server does that only for its own store.
    """
    opened = (await run_in_thread(_open)).store
    if opened.ttl_config:
        await opened.start_ttl_sweeper()
    yield opened


def derive_key(aes_key: str) -> bytes:
    """Return the master key, with the id `langgraph-aes-key`, that encrypts if LANGGRAPH_AES_KEY is this.

    It is HKDF-SHA256 of the variable's bytes, so it is not the key that the server itself encrypts with.
    """
    from cryptography.hazmat.primitives.hashes import SHA256  # noqa: PLC0415 - on use
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF  # noqa: PLC0415

    text = aes_key.encode()
    if len(text) not in (16, 24, 32):  # as the server demands
        raise ValueError(f"{_AES_KEY} must have 16, 24 or 32 bytes, not {len(text)}")
    return HKDF(algorithm=SHA256(), length=KEY_BYTES, salt=None, info=b"threadkeep master key").derive(text)


class ServerSaver(KeepSaver):
    """A saver whose versions of channels are all texts.

    The server counts versions in texts, whatever the saver does, and a graph cannot compare these with the ints that a
    thread has that was made outside of the server.
    """

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Return what `KeepSaver.aget_tuple` returns, with versions as texts."""
        found = await super().aget_tuple(config)
        return _with_versions_as_texts(found) if found is not None else None

    async def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        """Yield what `KeepSaver.alist` yields, with versions as texts."""
        async for each in super().alist(config, filter=filter, before=before, limit=limit):
            yield _with_versions_as_texts(each)


class ServerStore(KeepStore):
    """A store that gives a memory the default time to live if `ttl` is None.

    The server passes None for every put of its API that names no `ttl`. Use `put` or `abatch` in a node to store a
    memory forever where there is a default.
    """

    async def aput(
        self,
        namespace: tuple[str, ...],
        key: str,
        value: Mapping[str, Any],
        index: Literal[False] | list[str] | None = None,
        *,
        ttl: float | NotProvided | None = NOT_PROVIDED,
        if_version: int | None = None,
    ) -> None:
        """Store a memory; the last put wins. One commit."""
        ttl = NOT_PROVIDED if ttl is None else ttl
        await super().aput(namespace, key, value, index, ttl=ttl, if_version=if_version)


def _with_versions_as_texts(found: CheckpointTuple) -> CheckpointTuple:
    versions, seen = found.checkpoint["channel_versions"], found.checkpoint["versions_seen"]
    if int not in {type(version) for each in (versions, *seen.values()) for version in each.values()}:
        return found
    checkpoint = found.checkpoint | {
        "channel_versions": _as_texts(versions),
        "versions_seen": {node: _as_texts(each) for node, each in seen.items()},
    }
    return found._replace(checkpoint=checkpoint)


def _as_texts(versions: dict[str, Any]) -> dict[str, Any]:
    return {
        channel: f"{version:032}.{0:.16f}" if type(version) is int else version for channel, version in versions.items()
    }


# --- the environment


def _open() -> _Opened:
    environment = _Environment(*(os.environ.get(name, "") for name in _VARIABLES))
    # No lock: what loses a race between two threads has connected to nothing, and is closed in vain.
    return _opened.get(environment) or _opened.setdefault(environment, _open_anew(environment))


def _open_anew(environment: _Environment) -> _Opened:
    if not environment.url:
        raise ValueError(f"set the environment variable {_URL}, for example to sqlite:///agent.db")
    block = _block("LANGGRAPH_STORE", environment.store)
    if "path" not in block:  # then it configures the server's own store
        block = {}
    serde = _serde(_block("LANGGRAPH_CHECKPOINTER", environment.checkpointer))
    index, ttl = _index(block.get("index")), block.get("ttl")
    opened = threadkeep.open(environment.url, keys=_keys(environment), serde=serde, index=index, ttl=ttl)
    atexit.register(opened.close)
    session = opened._session  # noqa: SLF001 - of the same package
    saver, store = ServerSaver(session, serde=opened.checkpointer.serde), ServerStore(session, index=index, ttl=ttl)
    return _Opened(opened, saver, store)


def _block(name: str, text: str) -> dict[str, Any]:
    block: object = json.loads(text) if text else None
    if not isinstance(block, dict | None):
        raise TypeError(f"{name} must be a JSON object, not {text}")
    return block or {}


def _keys(environment: _Environment) -> Keys | None:
    if environment.keys:
        return Keys.from_env(_KEYS)
    if environment.aes_key:
        return Keys({"langgraph-aes-key": derive_key(environment.aes_key)}, primary="langgraph-aes-key")
    return None


def _serde(block: dict[str, Any]) -> KeepSerializer | None:
    """Return the serializer of a checkpointer's block; None for the default one.

    `allowed_msgpack_modules` means what it means to LangGraph: a list, null or false is all that is allowed beside the
    safe types. True is the default: data classes that are imported.
    """
    serde = block.get("serde")
    if not serde:
        return None
    allowed, json_modules = serde.get("allowed_msgpack_modules", True), serde.get("allowed_json_modules")
    default = KeepSerializer()
    return KeepSerializer(
        allowed_types=map(_dotted, allowed) if isinstance(allowed, list) else (),
        pickle_fallback=serde.get("pickle_fallback", False),
        strict=default.strict if allowed is True else True,
        allowed_json_modules=[tuple(_dotted(each).split(".")) for each in json_modules]
        if isinstance(json_modules, list)
        else (json_modules or None),
    )


def _dotted(name: Any) -> str:
    """Return the name of a class, of which a block may list the parts."""
    return name if isinstance(name, str) else ".".join(name)


def _index(index: Any) -> Any:
    """Return the index of a store's block, with the function that a path such as `./embed.py:embed` names."""
    embed = index.get("embed") if isinstance(index, dict) else None
    if not isinstance(embed, str) or ".py:" not in embed:
        return index
    path, _, name = embed.rpartition(":")
    found = getattr(_module(path), name, None) if Path(path).is_file() else None
    if found is None:
        raise ValueError(f"the index of the store names {embed}, which does not exist")
    return {**index, "embed": found}


def _module(path: str) -> ModuleType:
    """Execute a file as a module, which is known by a name of its own: its data classes look it up."""
    spec = spec_from_file_location(path.replace("/", "__").removesuffix(".py"), path)
    assert spec is not None, path  # its suffix is that of a Python file
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module
