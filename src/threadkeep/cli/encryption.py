"""The commands that encrypt a storage and replace its keys: encrypt, rotate, reencrypt."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import typer
from rich.console import RenderableType

from threadkeep.cli.app import app, interruption_message, open_keep
from threadkeep.cli.options import Json, Tenant, Url
from threadkeep.cli.output import one_line, print_result, progress_bar
from threadkeep.jobs.encryption import EncryptResult, RotateResult
from threadkeep.plural import plural


@app.command(epilog="Example: threadkeep encrypt --keys keys.txt --hide-ids")
def encrypt(
    *,
    hide_ids: Annotated[
        bool,
        typer.Option("--hide-ids", help="Also encrypt the ids of threads, and the namespaces and keys of memories."),
    ] = False,
    url: Url = None,
    tenant: Tenant = "",
    json: Json = False,
) -> int:
    """Encrypt a storage that has plain data. Needs --keys or THREADKEEP_KEYS.

    Agents with the same keys may run meanwhile; those without get WrongKey at every change. Repeat the command to
    continue after an interruption.
    """
    with (
        open_keep(url, tenant, hide_ids=hide_ids or None) as keep,
        interruption_message("what was encrypted stays; the same command continues"),
        progress_bar("encrypting", hidden=json) as on_progress,
    ):
        result = keep.encrypt(on_progress=on_progress)
    print_result(result, _encrypt_lines(result), as_json=json)
    return 0


def _encrypt_lines(result: EncryptResult) -> Iterator[RenderableType]:
    memories = plural(result.memories, "memory", "memories")
    yield one_line(f"encrypted {plural(result.threads, 'thread')} and {memories}")
    yield from (one_line(each) for each in result.remains)


@app.command(epilog="Example: threadkeep rotate --keys keys.txt")
def rotate(*, url: Url = None, tenant: Tenant = "", json: Json = False) -> int:
    """Replace the key of a tenant, and wrap all data keys with the new one.

    Give a new master key as the first one in the file of --keys, with the old one after it. After this command, the old
    one is not needed any more. Repeat the command to continue after an interruption.
    """
    with (
        open_keep(url, tenant) as keep,
        interruption_message("both keys are still needed; the same command continues"),
        progress_bar("rotating", hidden=json) as on_progress,
    ):
        result = keep.rotate(on_progress=on_progress)
    print_result(result, _rotate_lines(result), as_json=json)
    return 0


def _rotate_lines(result: RotateResult) -> Iterator[RenderableType]:
    threads, partitions = plural(result.threads, "thread"), plural(result.partitions, "partition")
    yield one_line(
        f"wrapped the keys of {threads} and {partitions} of memories anew; the master key is {result.primary}"
    )
    yield from (one_line(each) for each in result.remains)


@app.command(epilog="Example: threadkeep reencrypt --keys keys.txt --no-wait")
def reencrypt(
    *,
    wait: Annotated[
        bool, typer.Option("--wait/--no-wait", help="Wait for 70 seconds first, or start: no other process uses it.")
    ] = True,
    url: Url = None,
    tenant: Tenant = "",
    json: Json = False,
) -> int:
    """Encrypt everything anew, with new keys below the master key, because one of them became known.

    Agents get Unavailable meanwhile. It first waits for 70 seconds, so that all of them have noticed. Repeat the
    command to continue after an interruption.
    """
    with (
        open_keep(url, tenant) as keep,
        interruption_message("nobody can use the storage until the same command has ended"),
        progress_bar("encrypting anew", hidden=json) as on_progress,
    ):
        result = keep.reencrypt(wait=wait, on_progress=on_progress)
    print_result(result, _encrypt_lines(result), as_json=json)
    return 0
