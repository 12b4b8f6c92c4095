"""Import and export: check the arguments and start the transfer, which is in `transfer/`."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from threadkeep.engine.identity import Kind
from threadkeep.transfer.import_from import import_from as import_from_source
from threadkeep.transfer.pipeline import Transfer
from threadkeep.transfer.portable.export import Export, ExportResult
from threadkeep.transfer.portable.files import PortableFile, open_for_reading, open_for_writing
from threadkeep.transfer.portable.import_portable import PortableImport
from threadkeep.transfer.portable.redact import Redaction
from threadkeep.transfer.result import TransferResult
from threadkeep.transfer.selection import select
from threadkeep.transfer.sources.value_cipher import cipher_of
from threadkeep.work import OnProgress, Work, with_progress

if TYPE_CHECKING:
    from threadkeep.keep import Keep


def import_from(
    keep: Keep,
    source: Any,
    *,
    kind: str | None = None,
    serde: Any = None,
    thread_id: str | Sequence[str] | None = None,
    prefix: str = "",
    verify: bool = True,
    dry_run: bool = False,
    on_progress: OnProgress | None = None,
) -> Work[TransferResult]:
    """Import what another saver, store or checkpointer wrote: from a file, a server or an object.

    The kind of source is detected unless `kind` names it. `thread_id` or `prefix` selects threads; memories are
    imported only without them. The source is not changed and nothing here is overwritten: repeat an interrupted
    import to continue it. `verify` reads both sides again and compares them; `dry_run` only counts.

    If the source was written with LangGraph's EncryptedSerializer, pass that as `serde`, or set LANGGRAPH_AES_KEY: its
    values are decrypted, and stored as the Keep stores any others. If the Keep itself has such a serializer, with the
    same key, encrypted values stay as they are.

    Raise ValueError for an unknown source, FileNotFoundError if the file does not exist, Unavailable if a server
    cannot be reached, Missing if the source does not have the thread, WrongKey if the source is encrypted and no key,
    or another one, is given.
    """
    selection = select(thread_id, prefix, None, memories=None)
    into = _transfer(keep, verify=verify, dry_run=dry_run)
    if serde is not None and cipher_of(serde) is None:
        raise TypeError(f"serde must be the EncryptedSerializer of the source, not {type(serde).__name__}")
    if serde is not None and into.cipher is not None:
        raise ValueError("this Keep has an EncryptedSerializer itself: leave out serde=, or open it without one")
    return with_progress(import_from_source(into, source, kind, selection, serde=serde), on_progress)


def export(
    keep: Keep,
    file: PortableFile,
    *,
    thread_id: str | Sequence[str] | None = None,
    prefix: str = "",
    kind: Kind | None = None,
    memories: bool | None = None,
    redact: bool = False,
    salvage: bool = False,
    plain: bool = False,
    on_progress: OnProgress | None = None,
) -> ExportResult:
    """Write threads and memories to a portable file: a path, or a binary file open for writing.

    Export all threads, those with the given ids, or those whose id starts with `prefix`; of one kind or both.
    Memories belong to no thread: by default they are exported only together with all threads. `redact` replaces
    what people wrote. A damaged thread is left out and listed in `skipped`; with `salvage`, its intact part is
    exported. A damaged memory is left out. `damage` names all of it.

    The file of a Keep with keys is encrypted with a key that its master key wraps, unless it is redacted or `plain`.
    A path is written completely or not at all; it is compressed unless its name ends in .jsonl.
    Each thread is a consistent snapshot; the file as a whole is not. In `aexport`, `on_progress` is called in
    another thread.
    """
    selection = select(thread_id, prefix, kind, memories=memories)
    session = keep._session  # noqa: SLF001 - the same package
    made = datetime.now(UTC).isoformat(timespec="seconds")
    header = {"made": made, "by": "threadkeep", "tenant": "" if redact else session.tenant}
    redaction = Redaction(secrets.token_bytes(32)) if redact else None
    keys = None if redact or plain else session.keys
    with open_for_writing(file, keys, compress=keys is None or session.transport.compress) as out:
        work = Export(session, selection, out, redaction, bool(salvage)).work(header)
        return session.work(work, on_progress)


def import_portable(
    keep: Keep,
    file: PortableFile,
    *,
    thread_id: str | Sequence[str] | None = None,
    prefix: str = "",
    kind: Kind | None = None,
    memories: bool | None = None,
    partial: bool = False,
    verify: bool = True,
    dry_run: bool = False,
    on_progress: OnProgress | None = None,
) -> TransferResult:
    """Import threads and memories from a portable file: a path, or a binary file open for reading.

    Nothing here is overwritten: a thread gets the checkpoints that it lacks; a CubeLoop thread that differs is left
    alone and listed in `differences`. Repeat an interrupted import to continue it. `verify` reads each thread again
    and compares it with the file; `dry_run` only counts. Raise ValueError if the file is truncated or damaged;
    threads that were complete before that point stay imported. `partial` accepts a truncated file. Raise Missing if
    the file does not have a named thread, WrongKey if it is encrypted with other keys than those of the Keep. In
    `aimport_portable`, `on_progress` is called in another thread.
    """
    selection = select(thread_id, prefix, kind, memories=memories)
    into = _transfer(keep, verify=verify, dry_run=dry_run)
    with open_for_reading(file, into.session.keys) as lines:
        return into.session.work(PortableImport(into, lines, selection, partial).work(), on_progress)


def _transfer(keep: Keep, *, verify: bool, dry_run: bool) -> Transfer:
    cipher = cipher_of(keep.checkpointer.serde)
    return Transfer(keep._session, keep._indexing, verify=bool(verify), dry_run=bool(dry_run), cipher=cipher)  # noqa: SLF001 - the same package
