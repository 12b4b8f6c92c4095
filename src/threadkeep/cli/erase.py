"""The command `erase`: remove what belongs to a person from threads, memories and files, with a receipt."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Annotated

import typer
from rich.console import RenderableType

from threadkeep.cli.app import NEGATIVE, app, confirm, open_keep
from threadkeep.cli.copy_and_delete import matched_threads_table
from threadkeep.cli.memories import format_namespace, parse_namespace
from threadkeep.cli.options import (
    DryRun,
    Force,
    Json,
    KindFilter,
    Match,
    Metadata,
    Prefix,
    Tenant,
    ThreadIds,
    Url,
    Yes,
    key_value,
)
from threadkeep.cli.output import (
    format_size,
    leased_lines,
    one_line,
    print_result,
    progress_bar,
    skipped_lines,
    table,
)
from threadkeep.jobs.erase import EraseReceipt
from threadkeep.plural import plural


@app.command(epilog="Example: threadkeep erase --metadata user=ann --namespace users/ann")
def erase(
    threads: ThreadIds = None,
    *,
    prefix: Prefix = "",
    metadata: Metadata = None,
    match: Match = "any",
    kind: KindFilter = None,
    namespace: Annotated[
        list[str] | None,
        typer.Option(
            "--namespace",
            metavar="NAMESPACE",
            help="Memories of this namespace and those below it: segments joined with , or /. May be repeated.",
        ),
    ] = None,
    dry_run: DryRun = False,
    force: Force = False,
    yes: Yes = False,
    url: Url = None,
    tenant: Tenant = "",
    json: Json = False,
) -> int:
    """Erase threads and memories, and what they left in the storage's files. Print a receipt.

    Threads are selected by id, and by --prefix and --metadata together; memories by --namespace. Exit code 1 if a
    thread is not found, if a damaged or leased thread or a damaged memory is skipped, or if another connection keeps
    bytes in a SQLite file: the receipt says what to do.
    """
    with open_keep(url, tenant, read_only=dry_run) as keep:
        run = partial(
            keep.erase,
            thread_id=list(dict.fromkeys(threads or ())),
            prefix=prefix,
            metadata=dict(map(key_value, metadata or ())),
            match=match,
            kind=kind,
            namespace=[parse_namespace(text) for text in namespace or ()],
            force=force,
        )
        partly = True
        if not (dry_run or yes):
            partly = _ask(run(dry_run=True))
        with progress_bar("examining" if dry_run else "erasing", hidden=json) as on_progress:
            receipt = run(dry_run=dry_run, partly=partly, on_progress=on_progress)
    print_result(receipt, _receipt_lines(receipt), as_json=json)
    return 0 if receipt.ok and not receipt.missing else NEGATIVE


def _ask(preview: EraseReceipt) -> bool:
    """Ask before anything is erased, and once more for threads of which only some checkpoints match.

    Return whether to erase those too.
    """
    confirm(f"Erase {_amount(preview)}?", yes=not preview.threads and not preview.memories)
    partly = [each for each in preview.threads if each.matching is not None and each.matching < each.checkpoints]
    if not partly:
        return True
    names = ", ".join(f"{one_line(each.id)} ({each.matching} of {each.checkpoints})" for each in partly[:10])
    more = f" and {len(partly) - 10} more" if len(partly) > 10 else ""
    question = f"Only some checkpoints of {names}{more} match. Erase these threads completely?"
    return typer.confirm(question, err=True)


def _amount(receipt: EraseReceipt) -> str:
    threads, checkpoints = plural(len(receipt.threads), "thread"), plural(receipt.checkpoints, "checkpoint")
    memories = plural(receipt.memories, "memory", "memories")
    return f"{threads} with {checkpoints} ({format_size(receipt.bytes)}), and {memories}"


def _receipt_lines(receipt: EraseReceipt) -> Iterator[RenderableType]:
    yield from matched_threads_table(receipt.threads)
    if receipt.namespaces:
        rows = [(format_namespace(each.namespace), each.memories) for each in receipt.namespaces]
        yield table(("namespace", "memories"), rows, right=("memories",))
    verb = "would erase" if receipt.dry_run else "erased"
    yield f"{verb} {_amount(receipt)}" + ("" if receipt.dry_run else f" at {receipt.erased_at}")
    yield from (one_line(f"thread {id} not found") for id in receipt.missing)
    if receipt.files_clean is not None:
        yield "no byte of it is left in the storage's files" if receipt.files_clean else "the files are NOT clean yet"
    yield from (f"remains: {each}" for each in receipt.remains)
    yield from skipped_lines(receipt.skipped, what="damaged")
    yield from leased_lines(receipt.leased)
