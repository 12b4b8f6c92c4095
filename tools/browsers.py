"""Find a Chromium to drive, or fetch one: for the tests of the inspector and for its screenshots.

The first of these that there is: a Chromium or Chrome on the PATH, one in Playwright's cache, npm's `@sparticuz/chromium`
below this checkout, Debian's package if we are root. Where nothing can be had, one RuntimeError says so.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from playwright.sync_api import Browser, sync_playwright

FOLDER = Path(__file__).resolve().parents[1] / ".browser"
_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_ARGUMENTS = ("--no-sandbox", "--headless=shell", "--no-zygote", "--disable-gpu", "--font-render-hinting=none")
_SECONDS = 300


@contextmanager
def browser() -> Iterator[Browser]:
    """Run a browser without a window."""
    program = chromium()
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=str(program), args=list(_ARGUMENTS))
        try:
            yield running
        finally:
            running.close()


@cache
def chromium() -> Path:
    """Return the path of a Chromium. RuntimeError if there is none and none can be fetched."""
    with _one_process():
        for find in (_on_path, _in_cache, _from_npm, _from_debian):
            found = find()
            if found is not None and found.exists():
                return found
    raise RuntimeError("no browser: install chromium, or npm and network access so that @sparticuz/chromium can be had")


@cache
def axe() -> Path | None:
    """Return axe-core, which checks accessibility; None if npm cannot get it."""
    with _one_process():
        package = _npm_package("axe-core")
    return package / "axe.min.js" if package is not None else None


@contextmanager
def _one_process() -> Iterator[None]:
    """Let no other process fetch anything meanwhile: a program that is being unpacked cannot be started."""
    FOLDER.mkdir(exist_ok=True)
    with (FOLDER / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _on_path() -> Path | None:
    found = next((path for name in _NAMES if (path := shutil.which(name))), None)
    return Path(found) if found else None


def _in_cache() -> Path | None:
    with sync_playwright() as playwright:
        return Path(playwright.chromium.executable_path)


def _from_npm() -> Path | None:
    """Npm's package has a compressed Chromium for servers; its own function unpacks it into TMPDIR."""
    unpacked = FOLDER / "chromium"
    if not unpacked.exists() and _npm_package("@sparticuz/chromium") is not None:
        script = "import('@sparticuz/chromium').then(chromium => chromium.default.executablePath())"
        _succeeds(["node", "-e", script])
    return unpacked


def _from_debian() -> Path | None:
    if os.geteuid() == 0 and shutil.which("apt-get"):
        _succeeds(["apt-get", "install", "--yes", "--no-install-recommends", "chromium"])
    return _on_path()


def _npm_package(name: str) -> Path | None:
    package = FOLDER / "node_modules" / name
    if not package.exists() and shutil.which("npm"):
        _succeeds(["npm", "install", "--no-audit", "--no-fund", "--prefix", str(FOLDER), name])
    return package if package.exists() else None


def _succeeds(command: list[str]) -> bool:
    try:
        done = subprocess.run(  # noqa: S603 - our own commands
            command,
            cwd=FOLDER,
            env={**os.environ, "TMPDIR": str(FOLDER)},
            timeout=_SECONDS,
            capture_output=True,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0
