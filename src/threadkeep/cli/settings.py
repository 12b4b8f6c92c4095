"""Where a command finds its storage: the option --url, else THREADKEEP_URL, else a file in this folder or above it.

    # threadkeep.toml, or the table [tool.threadkeep] of pyproject.toml
    url = "sqlite:///agent.db"      # relative to the folder of this file
    tenant = "acme"
    keys = "/run/secrets/keys"      # a file of keys, never a key
    timeout = 5

The file describes one storage: with --url or THREADKEEP_URL, nothing of it is used.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import threadkeep
from threadkeep import urls
from threadkeep.jobs.policies import TABLE
from threadkeep.urls import SQLITE

FILE = "threadkeep.toml"
_PROJECT = "pyproject.toml"
_NO_KEYS = "none"
KEYS: Mapping[str, tuple[type, ...]] = {"url": (str,), "tenant": (str,), "keys": (str,), "timeout": (int, float)}


@dataclass(frozen=True, slots=True)
class FileSettings:
    """What a file says, with its path."""

    file: Path
    url: str
    tenant: str | None = None
    keys: str | None = None
    timeout: float | None = None


def find(folder: Path) -> FileSettings | None:
    """Return the settings of the nearest file that names a url, from a folder up to the root; None if there is none.

    ValueError if a file on the way is wrong, or belongs to another user.
    """
    for place in (folder, *folder.parents):
        for file, table in _tables(place):
            if table:
                return _settings(file, table)
    return None


def _tables(folder: Path) -> Iterator[tuple[Path, Mapping[str, Any]]]:
    """Yield the files of a folder with what they say about the command."""
    own = _read(folder / FILE)
    yield folder / FILE, {name: value for name, value in own.items() if name != TABLE}
    tools = _read(folder / _PROJECT).get("tool", {})
    project = tools.get("threadkeep", {}) if isinstance(tools, Mapping) else {}
    is_table = isinstance(project, Mapping)
    if not is_table:
        raise ValueError(f"{folder / _PROJECT}: tool.threadkeep must be a table")
    yield folder / _PROJECT, project


def _read(file: Path) -> dict[str, Any]:
    if not file.is_file():
        return {}
    data = file.read_bytes()
    try:
        return tomllib.loads(data.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        if file.name == _PROJECT and b"threadkeep" not in data:  # a pyproject.toml that says nothing about this command
            return {}
        raise ValueError(f"{file}: {error}") from error


def _settings(file: Path, table: Mapping[str, Any]) -> FileSettings:
    _check_owner(file)
    for name, value in table.items():
        if name not in KEYS:
            raise ValueError(f"{file}: unknown key {name!r}; expected {', '.join(KEYS)}")
        is_right = isinstance(value, KEYS[name]) and not isinstance(value, bool)
        if not is_right:
            raise ValueError(f"{file}: {name} must be a {' or '.join(each.__name__ for each in KEYS[name])}")
    if not table.get("url"):
        raise ValueError(f"{file}: names {', '.join(table)}, but no url")
    keys = table.get("keys")
    return FileSettings(
        file,
        url=_from_folder(file.parent, table["url"]),
        tenant=table.get("tenant"),
        keys=str(file.parent / keys) if keys not in (None, _NO_KEYS) else keys,
        timeout=table.get("timeout"),
    )


def _check_owner(file: Path) -> None:
    """Refuse the file of another user, for example in /tmp: it could make a command write data to their storage."""
    if os.name == "posix" and (owner := file.stat().st_uid) not in (os.geteuid(), 0):
        raise ValueError(f"{file} belongs to another user ({owner}) and is not used: pass --url or set THREADKEEP_URL")


def _from_folder(folder: Path, url: str) -> str:
    """Return a URL; the path of an SQLite file is relative to the folder."""
    if "://" in url and not url.startswith(SQLITE):
        return url
    path, mark, options = url.removeprefix(SQLITE).partition("?")
    return f"{SQLITE}{folder / Path(path).expanduser()}{mark}{options}"


def as_url(url: str | None) -> str:
    """Return a URL unchanged, and the path of an SQLite file as a URL."""
    if not url:
        raise ValueError(f"no storage given: pass --url, set THREADKEEP_URL, or name the url in a {FILE}")
    return str(urls.as_url(url))


def keys_file(given: str | None, found: FileSettings | None) -> str | None:
    """Return the file of keys: that of --keys, else that of a settings file, unless THREADKEEP_KEYS has keys."""
    if given is not None or found is None or os.environ.get("THREADKEEP_KEYS"):
        return given
    return found.keys


def read_keys(file: str | None) -> threadkeep.Keys | None:
    """Return the keys of a file, or else those of THREADKEEP_KEYS. None if there are none, or if `file` is "none"."""
    if file == _NO_KEYS:
        return None
    if file is not None:
        return threadkeep.Keys.from_file(file)
    return threadkeep.Keys.from_env("THREADKEEP_KEYS") if os.environ.get("THREADKEEP_KEYS") else None
