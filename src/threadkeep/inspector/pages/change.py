"""The write mode: what can be changed, as one table. Each change is asked about first, with what it would do."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Any, NamedTuple

from threadkeep.engine.history.answer_options import question_text
from threadkeep.engine.history.conversation import stops
from threadkeep.inspector.graphs import answer, update
from threadkeep.inspector.inspected import ChosenCheckpoint, Inspected
from threadkeep.inspector.json_tree import summary
from threadkeep.inspector.pages.sizes import policy_of
from threadkeep.inspector.query import QueryParameters
from threadkeep.jobs.byte_counts import format_bytes
from threadkeep.plural import plural


class ResultPage(NamedTuple):
    """The page that shows the result of a change."""

    page: str
    parameters: dict[str, Any]


class FormField(NamedTuple):
    """A field of a form. `kind` is `text`, `number`, `lines` or `check`."""

    name: str
    label: str
    kind: str = "text"
    help: str = ""


class ThreadChange(NamedTuple):
    """A change of a thread: what it is called, what it does, what it asks for, and how it is made.

    `preview` returns what it would do, `preset` what the fields say at first. `needs_graph` means that the graph itself
    makes it.
    """

    title: str
    text: str
    fields: tuple[FormField, ...]
    make: Callable[[Inspected, ChosenCheckpoint, QueryParameters], Awaitable[ResultPage]]
    preview: Callable[[Inspected, ChosenCheckpoint, QueryParameters], Awaitable[str]] | None = None
    preset: Callable[[Inspected, ChosenCheckpoint], Awaitable[dict[str, str]]] | None = None
    destroys: bool = False
    needs_graph: bool = False


async def page(shown: Inspected, query: QueryParameters) -> dict[str, Any]:
    """Ask about a change."""
    name, change = _chosen(shown, query)
    place = await shown.place(query)
    preset = await change.preset(shown, place) if change.preset is not None else {}
    return {
        "name": name,
        "change": change,
        "place": place,
        "preview": await change.preview(shown, place, query) if change.preview is not None else None,
        "given": {field.name: query.text(field.name, preset.get(field.name, "")) for field in change.fields},
    }


async def make(shown: Inspected, form: QueryParameters) -> ResultPage:
    """Make the change that a form describes."""
    name, change = _chosen(shown, form)
    done = await change.make(shown, await shown.place(form), form)
    return done._replace(parameters=done.parameters | {"done": name})


def _chosen(shown: Inspected, query: QueryParameters) -> tuple[str, ThreadChange]:
    name = query.required("action")
    if name not in CHANGES:
        raise ValueError(f"action must be one of {', '.join(CHANGES)}, not {name!r}")
    if CHANGES[name].needs_graph and shown.graph is None:
        raise ValueError(f"{name} needs the graph itself: threadkeep inspect --write --graph module:attribute")
    return name, CHANGES[name]


def _amount(checkpoints: int, writes: int) -> str:
    return f"{plural(checkpoints, 'checkpoint')} and {plural(writes, 'write')}"


def _at(place: ChosenCheckpoint, id: str | None) -> ResultPage:
    return ResultPage("thread", place.thread_link | {"ns": place.ns, "id": id})


def _checkpoint(place: ChosenCheckpoint) -> str:
    return place.id or "latest"


async def _describe(shown: Inspected, place: ChosenCheckpoint, form: QueryParameters) -> ResultPage:
    info = await shown.keep.athread(place.thread, kind=place.kind, titles=False)
    labels = [label for each in form.text("labels").split(",") if (label := each.strip())]
    title, archived = form.optional("title"), form.flag("archived")
    if info is not None:
        labels = _unhidden(shown, labels, info.labels)
        title = _unhidden(shown, [title], [info.title or ""])[0] if title is not None else None
    await shown.keep.adescribe(place.thread, title=title, labels=labels, archived=archived, kind=place.kind)
    return ResultPage("thread", place.thread_link)


def _unhidden(shown: Inspected, given: Iterable[str], stored: Iterable[str]) -> list[str]:
    """Return texts that a form sent. One that comes back as the redaction showed it is what it was."""
    stored_by_shown: dict[str, list[str]] = {}
    for text in stored:
        stored_by_shown.setdefault(shown.redaction.text(text), []).append(text)
    return [stored_by_shown[text].pop(0) if stored_by_shown.get(text) else text for text in given]


async def _described(shown: Inspected, place: ChosenCheckpoint) -> dict[str, str]:
    info = await shown.keep.athread(place.thread, kind=place.kind, titles=False)
    if info is None:
        return {}
    title, labels = shown.redaction.text(info.title or ""), map(shown.redaction.text, info.labels)
    return {"title": title, "labels": ", ".join(labels), "archived": "1" if info.archived else ""}


async def _tag(shown: Inspected, place: ChosenCheckpoint, form: QueryParameters) -> ResultPage:
    tag = form.optional("tag")
    return _at(place, await shown.keep.atag(place.thread, _checkpoint(place), tag, ns=place.ns, kind=place.kind))


async def _fork(shown: Inspected, place: ChosenCheckpoint, form: QueryParameters) -> ResultPage:
    to = form.optional("to")
    made = await shown.keep.afork(place.thread, place.id, to=to, ns=place.ns, kind=place.kind)
    return ResultPage("thread", {"thread": made.thread, "kind": made.kind, "ns": made.ns, "id": made.id})


async def _roll_back(shown: Inspected, place: ChosenCheckpoint, _form: QueryParameters) -> ResultPage:
    made = await shown.keep.arollback(place.thread, _checkpoint(place), ns=place.ns, kind=place.kind)
    return _at(place, made.id)


async def _preview_roll_back(shown: Inspected, place: ChosenCheckpoint, _query: QueryParameters) -> str:
    made = await shown.keep.arollback(place.thread, _checkpoint(place), ns=place.ns, kind=place.kind, dry_run=True)
    return f"A new branch from checkpoint {made.forked_from} would become the latest. Nothing is removed."


async def _name_branch(shown: Inspected, place: ChosenCheckpoint, form: QueryParameters) -> ResultPage:
    name = form.optional("name")
    await shown.keep.aname_branch(place.thread, _checkpoint(place), name, ns=place.ns, kind=place.kind)
    return ResultPage("branches", place.thread_link | {"ns": place.ns})


async def _delete_branch(shown: Inspected, place: ChosenCheckpoint, _form: QueryParameters) -> ResultPage:
    await shown.keep.adelete_branch(place.thread, _checkpoint(place), ns=place.ns, kind=place.kind)
    return ResultPage("branches", place.thread_link | {"ns": place.ns})


async def _preview_delete_branch(shown: Inspected, place: ChosenCheckpoint, _query: QueryParameters) -> str:
    found = await shown.keep.adelete_branch(
        place.thread, _checkpoint(place), ns=place.ns, kind=place.kind, dry_run=True
    )
    return f"{plural(len(found.checkpoints), 'checkpoint')} would be removed."


async def _copy(shown: Inspected, place: ChosenCheckpoint, form: QueryParameters) -> ResultPage:
    to = form.required("to")
    await shown.keep.acopy(place.thread, to, kind=place.kind)
    return ResultPage("thread", {"thread": to, "kind": place.kind})


async def _delete(shown: Inspected, place: ChosenCheckpoint, _form: QueryParameters) -> ResultPage:
    await shown.keep.adelete(place.thread, kind=place.kind)
    return ResultPage("", {})


async def _preview_delete(shown: Inspected, place: ChosenCheckpoint, _query: QueryParameters) -> str:
    info = await shown.keep.athread(place.thread, kind=place.kind)
    return f"{_amount(info.checkpoints, info.writes)} would be removed." if info else "It is gone."


async def _prune(shown: Inspected, place: ChosenCheckpoint, form: QueryParameters) -> ResultPage:
    await shown.keep.aprune(place.thread, policy=policy_of(form), kind=place.kind)
    return ResultPage("thread", place.thread_link)


async def _preview_prune(shown: Inspected, place: ChosenCheckpoint, query: QueryParameters) -> str:
    found = await shown.keep.aprune(place.thread, policy=policy_of(query), kind=place.kind, dry_run=True)
    return f"{_amount(found.checkpoints, found.writes)} would be removed, {format_bytes(found.bytes)}." + (
        " The whole thread would go." if found.dropped else ""
    )


async def _answer(shown: Inspected, place: ChosenCheckpoint, form: QueryParameters) -> ResultPage:
    await answer(shown, place, form)
    return ResultPage("thread", place.thread_link)


async def _question(shown: Inspected, place: ChosenCheckpoint, query: QueryParameters) -> str:
    view = await shown.keep.ashow(place.thread, kind=place.kind)
    wanted = query.optional("interrupt")
    asked = [stop for stop in stops(view) if stop.status == "interrupted" and wanted in (None, stop.id)]
    if not asked:
        return "Nothing waits for this answer: the thread went on, or it never asked."
    values = [shown.redaction.value(stop.value) for stop in asked]
    return "\n".join(question_text(value) or summary(value) for value in values)


async def _update(shown: Inspected, place: ChosenCheckpoint, form: QueryParameters) -> ResultPage:
    return _at(place, await update(shown, place, form))


CHANGES = {
    "describe": ThreadChange(
        "Describe the thread",
        "Give it a title and labels, or mark it as archived. What agents store does not change.",
        (
            FormField("title", "Title", help="Leave it empty for the first message."),
            FormField("labels", "Labels", help="Separated by commas."),
            FormField("archived", "Archived", "check"),
        ),
        _describe,
        preset=_described,
    ),
    "tag": ThreadChange(
        "Tag",
        "A tag is a name in the metadata of a checkpoint. Retention policies keep tagged checkpoints.",
        (FormField("tag", "Tag", help="Leave it empty to remove the tag."),),
        _tag,
    ),
    "fork": ThreadChange(
        "Fork from here",
        "Add a branch that starts with the state of this checkpoint, or a new thread.",
        (FormField("to", "Id of the new thread", help="Leave it empty for a branch in this thread."),),
        _fork,
    ),
    "rollback": ThreadChange(
        "Roll back to here",
        "Go back to this checkpoint: its state becomes the latest, as a new branch. The old branch stays.",
        (),
        _roll_back,
        _preview_roll_back,
    ),
    "name_branch": ThreadChange(
        "Name the branch",
        "A name is metadata of the newest checkpoint of a branch, and stays with it when the branch grows.",
        (FormField("name", "Name", help="Leave it empty to remove the name."),),
        _name_branch,
    ),
    "delete_branch": ThreadChange(
        "Delete the branch",
        "Remove the checkpoints that only this branch has.",
        (),
        _delete_branch,
        _preview_delete_branch,
        destroys=True,
    ),
    "copy": ThreadChange(
        "Copy the thread",
        "Copy the thread with all its checkpoints. The copy is independent of it.",
        (FormField("to", "Id of the copy"),),
        _copy,
    ),
    "prune": ThreadChange(
        "Prune the thread",
        "Remove the checkpoints that these rules do not keep; without a rule, all but the latest of each namespace.",
        (
            FormField("keep_last", "Keep the last", "number", "How many checkpoints of each namespace."),
            FormField("keep_for", "Keep for", help="Such as 30d or 12h."),
        ),
        _prune,
        _preview_prune,
        destroys=True,
    ),
    "delete": ThreadChange(
        "Delete the thread", "Remove the thread with everything in it.", (), _delete, _preview_delete, destroys=True
    ),
    "answer": ThreadChange(
        "Answer",
        "Resume the thread with an answer: the graph continues in this process, and may call models and tools.",
        (
            FormField("value", "Answer", "lines", "JSON, or text."),
            FormField("interrupt", "Interrupt", help="Its id, if several wait."),
        ),
        _answer,
        _question,
        needs_graph=True,
    ),
    "update": ThreadChange(
        "Update the state",
        "Add a checkpoint with these values, as if a node had returned them.",
        (
            FormField("value", "Values", "lines", "A JSON object."),
            FormField("node", "As node", help="Leave it empty if it is clear."),
        ),
        _update,
        needs_graph=True,
    ),
}
"""Every change, by the name in its address."""

NOTICES = {
    "describe": "the thread is described",
    "tag": "the tag is changed",
    "fork": "this is the new branch",
    "rollback": "this is the latest checkpoint now",
    "name_branch": "the name is changed",
    "delete_branch": "the branch is deleted",
    "copy": "this is the copy",
    "prune": "the thread is pruned",
    "delete": "the thread is deleted",
    "answer": "the thread has continued",
    "update": "this is the new state",
}
"""What is said when a change was made. Only these texts are shown, whatever an address says."""
