"""What an inspector shows: a Keep, how users name its storage, and what is hidden or allowed."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from urllib.parse import urlsplit, urlunsplit

from threadkeep import Keep
from threadkeep.engine.identity import GRAPH
from threadkeep.inspector.foreign import ForeignStorage
from threadkeep.inspector.query import Query
from threadkeep.inspector.redaction import Redaction


@dataclass(frozen=True, slots=True)
class Inspected:
    """A Keep to show. `url` is None if it is not known; `graph` is a builder that continues threads in write mode."""

    keep: Keep
    url: str | None = None
    write: bool = False
    redaction: Redaction = field(default_factory=Redaction)
    graph: Any = None
    foreign: ForeignStorage | None = None

    @property
    def name(self) -> str:
        """The storage for people: its URL without the password."""
        return "threadkeep" if self.url is None else without_password(self.url)

    async def place(self, query: Query) -> Place:
        """Return the thread and checkpoint that an address names. A foreign thread is read first if it was not yet."""
        place = Place(query.required("thread"), query.optional("kind"), query.text("ns"), query.optional("id"))
        if self.foreign is not None:
            await self.foreign.read(place.thread)
        return place if place.kind else place._replace(kind=await self._kind(place.thread))

    async def _kind(self, thread: str) -> str | None:
        """The kind of a thread, so that links name it; None if it does not exist."""
        found = await self.keep.athread(thread)
        return found.kind if found is not None else None

    def snippet(self, verb: str, *args: str, **options: Any) -> Snippet:
        """Return the call of a verb as Python and as a command. Their arguments have the same names and order."""
        shown = {name: value for name, value in options.items() if value not in (None, "")}
        call = ", ".join([*map(repr, args), *(f"{name}={value!r}" for name, value in shown.items())])
        where = self.name if self.url is not None else "..."
        python = f"import threadkeep\n\nwith threadkeep.open({where!r}) as keep:\n    print(keep.{verb}({call}))"
        flags = [part for name, value in shown.items() for part in (f"--{_FLAGS.get(name, name)}", str(value))]
        flags += ["--url", self.name] if self.url is not None else []
        return Snippet(python, shlex.join(["threadkeep", verb, *args, *flags]))


class Place(NamedTuple):
    """A thread, or a checkpoint in it; without `id` the latest."""

    thread: str
    kind: str | None
    ns: str = ""
    id: str | None = None

    @property
    def thread_link(self) -> dict[str, str | None]:
        """The parameters of links to pages about the thread."""
        return {"thread": self.thread, "kind": self.kind}

    @property
    def config(self) -> dict[str, Any] | None:
        """LangGraph's config of the checkpoint; None in a CubeLoop thread."""
        named = {"thread_id": self.thread, "checkpoint_ns": self.ns}
        return {"configurable": named | ({"checkpoint_id": self.id} if self.id else {})} if self.kind == GRAPH else None


class Snippet(NamedTuple):
    """How to get what a page shows, without it."""

    python: str
    cli: str


_FLAGS = {"order": "sort", "contains": "search", "checkpoint_id": "checkpoint"}
"""Options of verbs that have another name in the command."""


def without_password(url: str) -> str:
    """Return a URL without the password in it."""
    parts = urlsplit(url)
    if parts.password is None:
        return url
    user, at, host = parts.netloc.rpartition("@")
    return urlunsplit(parts._replace(netloc=f"{user.partition(':')[0]}{at}{host}"))
