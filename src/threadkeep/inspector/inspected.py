"""What an inspector shows: a Keep, how users name its storage, and what is hidden or allowed."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from threadkeep import Keep
from threadkeep.engine.identity import GRAPH, Kind
from threadkeep.errors import without_passwords
from threadkeep.inspector.foreign import ForeignStorage
from threadkeep.inspector.query import QueryParameters, json_or_text
from threadkeep.inspector.redaction import HiddenPattern
from threadkeep.inspector.trees import Trees

USER_KEYS = ("user_id", "user")
"""Keys of metadata that usually name a user."""


@dataclass(frozen=True, slots=True)
class Inspected:
    """A Keep to show. `url` is None if it is not known; `graph` is a builder that continues threads in write mode.

    The first of the metadata keys `user_keys` that a thread has names its user.
    """

    keep: Keep
    url: str | None = None
    write: bool = False
    redaction: HiddenPattern = field(default_factory=HiddenPattern)
    graph: Any = None
    foreign: ForeignStorage | None = None
    user_keys: tuple[str, ...] = USER_KEYS
    trees: Trees = field(init=False)

    def __post_init__(self) -> None:
        """Begin without trees, and let the Keep keep what it reads: pages about a thread follow each other."""
        object.__setattr__(self, "trees", Trees(self.keep))
        self.keep._session.keep_rows()  # noqa: SLF001 - the same package

    @property
    def name(self) -> str:
        """The storage for people: its URL without the password."""
        return "threadkeep" if self.url is None else without_passwords(self.url)

    @property
    def tenant(self) -> str:
        """The tenant that is shown; empty for the default one."""
        return self.keep._session.tenant  # noqa: SLF001 - the same package

    @property
    def import_command(self) -> str:
        """The command that imports a database of another saver."""
        return shlex.join(["threadkeep", "import", self.name, "--url", "sqlite:///keep.db"])

    async def place(self, query: QueryParameters) -> ChosenCheckpoint:
        """Return the thread and checkpoint that an address names. A foreign thread is read first if it was not yet."""
        place = ChosenCheckpoint(query.required("thread"), query.kind(), query.text("ns"), query.id("id"))
        if self.foreign is not None:
            await self.foreign.read(place.thread)
        return place if place.kind else place._replace(kind=await self._kind(place.thread))

    async def place_of_thread(self, query: QueryParameters) -> ChosenCheckpoint | None:
        """Return the thread that an address of a page for all threads names; None if it names none."""
        return await self.place(query) if query.id("thread") is not None else None

    async def _kind(self, thread: str) -> Kind | None:
        """The kind of a thread, so that links name it; None if it does not exist."""
        found = await self.keep.athread(thread)
        return found.kind if found is not None else None

    def snippet(self, verb: str, *args: str, **options: Any) -> CodeSnippet | None:
        """Return the call of a verb as Python and as a command. Their arguments have the same names and order.

        A list is an option that is repeated, a dict one with KEY=VALUE. None for a database of another saver: verbs
        read it only after an import.
        """
        if self.foreign is not None:
            return None
        shown = {name: value for name, value in options.items() if value not in (None, "", [], {})}
        tenant = self.tenant
        call = ", ".join([*map(repr, args), *(f"{name}={value!r}" for name, value in shown.items())])
        where = self.name if self.url is not None else "..."
        of = f", tenant={tenant!r}" if tenant else ""
        python = f"import threadkeep\n\nwith threadkeep.open({where!r}{of}) as keep:\n    print(keep.{verb}({call}))"
        flags = [part for name, value in shown.items() for part in _flags(name, value)]
        flags += ["--url", self.name] if self.url is not None else []
        flags += ["--tenant", tenant] if tenant else []
        words = [*flags, "--", *args] if any(arg.startswith("-") for arg in args) else [*args, *flags]
        return CodeSnippet(python, shlex.join(["threadkeep", verb, *words]))


class ChosenCheckpoint(NamedTuple):
    """A thread, or a checkpoint in it; without `id` the latest."""

    thread: str
    kind: Kind | None
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


class CodeSnippet(NamedTuple):
    """How to get what a page shows, without it."""

    python: str
    cli: str


_FLAGS = {"checkpoint_id": "checkpoint", "labels": "label"}
"""Options of verbs that have another name in the command."""


def _flags(name: str, value: Any) -> list[str]:
    """The option of a command that says the same as that of a verb."""
    flag = f"--{_FLAGS.get(name, name)}"
    if isinstance(value, bool):
        return [flag if value else f"--not-{name}"]
    if isinstance(value, Mapping):
        return [part for key, inner in value.items() for part in (flag, f"{key}={_argument(inner)}")]
    return [part for each in (value if isinstance(value, list) else [value]) for part in (flag, str(each))]


def _argument(value: Any) -> str:
    """A value of metadata as the command reads it: JSON, or a text that is not."""
    return value if isinstance(value, str) and isinstance(json_or_text(value), str) else json.dumps(value)
