"""Requests about memories, translated: what is sent is sealed, what comes back is opened.

The database compares no values: filters are evaluated by the caller, after decryption, and vectors by the client's
cache. It does compare words, as digests. With hidden ids (`memory_lists`) it does not know the order of namespaces and
keys either.

While a tenant is being encrypted (`tenant_key.ENCRYPTING`), some of its memories are still plain. They are found where
they are, and replaced by sealed ones. With hidden ids, they are under other names than sealed ones: reads look for
plain memories first and for sealed ones then, so that one which is sealed in between is found. Afterwards a plain
memory is Corrupt.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

from threadkeep.clock import now_us
from threadkeep.encryption.data_key import DataKey
from threadkeep.encryption.memory_lists import HiddenLists
from threadkeep.encryption.memory_rows import VECTOR_OVERHEAD, MemoryCipher
from threadkeep.encryption.partition_keys import DataKeys
from threadkeep.encryption.tenant_key import ENCRYPTING, TenantKey
from threadkeep.engine.health.requests import WRONG_WORDS, InspectedMemory, InspectedMemoryPage, InspectMemories
from threadkeep.engine.memories.checksums import damaged_memory, memory_name
from threadkeep.engine.memories.filters import EVERYTHING, matches
from threadkeep.engine.memories.json_text import load
from threadkeep.engine.memories.namespaces import MemoryKey, Namespace, memory_number
from threadkeep.engine.memories.requests import (
    NO_VECTORS,
    ChangeMemories,
    CreateVectorIndex,
    FindExpired,
    FindMatching,
    GetMemories,
    GetMemoriesByNumber,
    ListMemories,
    ListNamespaces,
    LoadVectorChanges,
    MemoryRow,
    NewMemory,
    PartitionChanges,
    RefreshMemories,
    ReplaceMemories,
    SearchFullText,
    SearchVectors,
    VectorRow,
    WordMatches,
    WriteMemories,
    is_sealed,
)
from threadkeep.engine.memories.words import index_words, leaf_texts, words, words_check
from threadkeep.errors import Conflict, Corrupt, Unavailable
from threadkeep.plan import Request

_PAGE = 1000
_SEALED_AT_ONCE = 100
_TRIES = 50
_ANY_DIMS = 1 << 30
"""More dimensions than a storage ranks itself: then it never answers that a partition is large."""
_PageToSeal: TypeAlias = tuple[Any, list[tuple[MemoryRow, NewMemory]]]
"""The cursor of the next page, and memories: the stored row of each, and what is to be sealed."""
_NO_SERVER_SEARCH = "encrypted vectors can only be compared by the client: the server must not rank them"


class MemoryTranslation:
    """Translates the requests about the memories of one tenant."""

    def __init__(self, key: TenantKey, execute: Callable[[Request[Any]], Any], *, compress: bool = True) -> None:
        self._tenant = key.tenant
        self._execute = execute
        self._cipher = MemoryCipher(key, compress=compress)
        self._keys = DataKeys(key, execute)
        self._is_mixed = key.state.state == ENCRYPTING
        self._has_plain_names = self._is_mixed and key.state.hides_ids
        self._lists = HiddenLists(execute, self._prefixes, self._revealed, self._real_namespace)
        hides = key.state.hides_ids
        self.reads: dict[type, Callable[[Any], Any]] = {
            GetMemories: self._get_memories,
            GetMemoriesByNumber: self._get_memories_by_number,
            ListMemories: self._list_hidden if hides else self._list_memories,
            FindMatching: self._find_matching,
            FindExpired: self._find_expired,
            SearchFullText: self._search_hidden if hides else self._search_full_text,
            LoadVectorChanges: self._load_mixed_vectors if self._has_plain_names else self._load_vector_changes,
            SearchVectors: _refuse_server_search,
            InspectMemories: self._inspect_memories,
        }
        if hides:
            self.reads[ListNamespaces] = self._lists.namespaces
        self.writes: dict[type, Callable[[Any], Request[Any]]] = {
            WriteMemories: self._write_memories,
            ChangeMemories: self._change_memories,
            RefreshMemories: self._refresh_memories,
            CreateVectorIndex: _refuse_server_search,
        }

    # --- names

    def _prefixes(self, prefix: Namespace) -> tuple[Namespace, ...]:
        """Return the prefixes under which memories below a prefix are stored; first that of plain ones, if needed."""
        stored = self._cipher.stored_namespace(prefix)
        return (prefix, stored) if self._has_plain_names and prefix else (stored,)

    def _stored_keys(self, keys: Iterable[MemoryKey]) -> tuple[MemoryKey, ...]:
        """Return the keys under which memories may be stored: of plain ones first, if there may be any."""
        stored = tuple([self._cipher.stored_key(key) for key in keys])
        return (*keys, *stored) if self._has_plain_names else stored

    def _real_key(self, stored: MemoryKey, *, plain: bool) -> MemoryKey:
        return stored if plain else self._cipher.real_key(stored)

    def _real_namespace(self, stored: Namespace) -> Namespace:
        """Return a stored namespace as the engine knows it. While there may be plain ones, it may not be hidden."""
        try:
            return self._cipher.real_namespace(stored)
        except Corrupt:
            if self._has_plain_names:
                return stored
            raise

    # --- rows

    def _revealed(self, row: MemoryRow) -> MemoryRow:
        """Return a stored memory with its real namespace and key, and its stored value."""
        return row if self._is_mixed and not is_sealed(row.value) else self._cipher.revealed(row)

    def _opened(self, rows: Sequence[MemoryRow]) -> list[MemoryRow]:
        """Return stored memories as the engine knows them. One round trip if a partition's data key is not known."""
        return self._open_revealed([self._revealed(row) for row in rows])

    def _open_revealed(self, rows: Sequence[MemoryRow]) -> list[MemoryRow]:
        """Do the rest of `_opened` for what `_revealed` returned."""
        keys = self._keys.existing({row.namespace[0] for row in rows})
        is_mixed, opened = self._is_mixed, self._cipher.opened
        return [row if is_mixed and not is_sealed(row.value) else opened(row, row.memory_key, keys) for row in rows]

    # --- changes

    def _write_memories(self, request: WriteMemories) -> WriteMemories:
        """Seal memories. Plain ones under other names, if there may be any, are deleted: up to two more round trips."""
        seal, key_of = self._cipher.seal, self._keys.of
        puts, deletes = request.puts, tuple([self._cipher.stored_key(key) for key in request.deletes])
        if self._has_plain_names and request.deletes:
            # Before the sealed ones: then `seal_plain_page` cannot make one of these in between.
            self._execute(request._replace(puts=(), sealed=True))
        if self._has_plain_names and puts:
            puts = self._with_times_of_plain(request)
            deletes += tuple([memory.row.memory_key for memory in puts])
        sealed = tuple([seal(memory, key_of(memory.row.namespace[0])) for memory in puts])
        return WriteMemories(request.tenant, sealed, deletes, request.now, request.expired, sealed=True)

    def _change_memories(self, request: ChangeMemories) -> ChangeMemories:
        """Seal memories that are written if others are as expected. Unavailable while they may be under two names."""
        if self._has_plain_names:
            raise Unavailable("the storage is being encrypted: try again when that is done")
        expected = tuple([(self._cipher.stored_key(key), updated) for key, updated in request.expected])
        return ChangeMemories(self._write_memories(request.write), expected)

    def _with_times_of_plain(self, request: WriteMemories) -> tuple[NewMemory, ...]:
        """Return the puts of a request, each created when the plain memory was that it replaces."""
        keys = tuple([memory.row.memory_key for memory in request.puts])
        old = self._execute(GetMemories(request.tenant, keys, request.now))
        return tuple(
            memory if row is None else memory._replace(row=memory.row._replace(created=row.created))
            for memory, row in zip(request.puts, old, strict=True)
        )

    def _refresh_memories(self, request: RefreshMemories) -> RefreshMemories:
        return request._replace(keys=self._stored_keys(request.keys))

    # --- reads

    def _get_memories(self, request: GetMemories) -> tuple[MemoryRow | None, ...]:
        rows = self._execute(request._replace(keys=self._stored_keys(request.keys)))
        if self._has_plain_names:
            plain, sealed = rows[: len(request.keys)], rows[len(request.keys) :]
            rows = [own if own is not None else other for own, other in zip(sealed, plain, strict=True)]
        found = iter(self._opened([row for row in rows if row is not None]))
        return tuple([next(found) if row is not None else None for row in rows])

    def _get_memories_by_number(self, request: GetMemoriesByNumber) -> dict[int, MemoryRow]:
        found: dict[int, MemoryRow] = {}
        for prefix in self._prefixes(request.prefix):
            found |= self._execute(request._replace(prefix=prefix))
        return dict(zip(found, self._opened(list(found.values())), strict=True))

    def _list_memories(self, request: ListMemories) -> tuple[MemoryRow, ...]:
        return tuple(self._opened(self._execute(request._replace(filter=EVERYTHING))))

    def _list_hidden(self, request: ListMemories) -> tuple[MemoryRow, ...]:
        return tuple(self._open_revealed(self._lists.page(request)))

    def _find_matching(self, request: FindMatching) -> frozenset[int]:
        """Decrypt all memories below the prefix. One round trip for each `_PAGE` of them."""
        found: set[int] = set()
        for rows in self._all_rows(request.prefix, request.now):
            for row in self._opened(rows):
                if matches(request.filter, _value(row)):
                    found.add(row.number(self._tenant))
        return frozenset(found)

    def _all_rows(self, prefix: Namespace, now: int) -> Iterator[Sequence[MemoryRow]]:
        """Yield pages of all memories below a prefix, as they are stored."""
        for stored in self._prefixes(prefix):
            after = None
            while True:
                rows = self._execute(ListMemories(self._tenant, stored, now, _PAGE, 0, after))
                yield rows
                if len(rows) < _PAGE:
                    break
                after = (rows[-1].updated, rows[-1].namespace, rows[-1].key)

    def _find_expired(self, request: FindExpired) -> frozenset[int]:
        found = [self._execute(request._replace(prefix=prefix)) for prefix in self._prefixes(request.prefix)]
        return frozenset().union(*found)

    def _search_full_text(self, request: SearchFullText) -> WordMatches:
        matches: WordMatches = self._execute(self._hidden_search(request))
        return matches

    def _search_hidden(self, request: SearchFullText) -> WordMatches:
        return self._lists.search(self._hidden_search(request))

    def _hidden_search(self, request: SearchFullText) -> SearchFullText:
        """Return a search for the digests of words; while some memories may be plain, for the words too."""
        hidden = tuple(map(self._cipher.hidden_word, request.words))
        return request._replace(words=(*hidden, *request.words) if self._is_mixed else hidden, filter=EVERYTHING)

    # --- vectors

    def _load_vector_changes(self, request: LoadVectorChanges) -> tuple[PartitionChanges, ...]:
        """Load vectors. The caller must hold all of a partition: the storage cannot rank them, however many."""
        hide = self._cipher.stored_namespace
        partition = None if request.partition is None else hide((request.partition,))[0]
        since = {hide((first,))[0]: version for first, version in request.since.items()}
        changes = self._execute(LoadVectorChanges(request.tenant, partition, since, dims=_ANY_DIMS))
        return tuple(
            [
                change._replace(
                    partition=self._real_namespace((change.partition,))[0],
                    changed=tuple(self._open_vectors(change.changed, request.dims)),
                )
                for change in changes
            ]
        )

    def _load_mixed_vectors(self, request: LoadVectorChanges) -> tuple[PartitionChanges, ...]:
        """Load all vectors of the partitions, sealed and plain, which are stored in two partitions.

        The versions are negative: once no plain memories are left, they are older than every version.
        """
        loaded: list[PartitionChanges] = []
        for (partition,) in self._prefixes((request.partition,)) if request.partition is not None else ((None,),):
            loaded += self._execute(LoadVectorChanges(request.tenant, partition, dims=_ANY_DIMS))
        both: dict[str, PartitionChanges] = {}
        for change in loaded:
            first = self._real_namespace((change.partition,))[0]
            changed = tuple(self._open_vectors(change.changed, request.dims))
            before = both.get(first, PartitionChanges(first, NO_VECTORS, present=frozenset()))
            assert before.present is not None
            both[first] = PartitionChanges(
                first,
                (before.version[0] - change.version[0], before.version[1] - change.version[1]),
                before.changed + changed,
                before.present | {(row.memory, row.field) for row in changed},
            )
        return (*both.values(), *request.deleted_partitions(both))

    def _open_vectors(self, rows: Sequence[VectorRow], dims: int) -> Iterator[VectorRow]:
        """Open vectors; those of a memory are all there. Corrupt if one is missing or not what was stored."""
        counts = Counter(row.memory for row in rows)
        real = {stored: self._real_namespace(stored) for stored in {row.namespace for row in rows}}
        keys = self._keys.existing({namespace[0] for namespace in real.values()})
        for row in rows:
            namespace = real[row.namespace]
            try:
                yield self._cipher.open_vector(row, namespace, counts[row.memory], keys)
            except Corrupt:
                if not self._is_mixed or len(row.vector) == 4 * dims + VECTOR_OVERHEAD:
                    raise
                yield row._replace(namespace=namespace)  # a plain one

    # --- verify and erase

    def _inspect_memories(self, request: InspectMemories) -> InspectedMemoryPage:
        page: InspectedMemoryPage = self._execute(request)
        partitions = {real.namespace[0] for each in page.memories if (real := self._try_real_key(each))}
        keys = self._keys.intact(partitions)
        return page._replace(memories=tuple([self._inspected(memory, keys) for memory in page.memories]))

    def _try_real_key(self, memory: InspectedMemory) -> MemoryKey | None:
        """Return the key of a stored memory; None if it has none, or if it is not hidden but should be."""
        try:
            return None if memory.key is None else self._cipher.real_key(memory.key)
        except Corrupt:
            return None

    def _inspected(self, memory: InspectedMemory, keys: Mapping[str, DataKey]) -> InspectedMemory:
        """Return a memory as it is stored, opened, with what is wrong with it."""
        real, row, problems = self._try_real_key(memory), memory.row, list(memory.problems)
        if memory.key is None or (self._is_mixed and (real is None if row is None else not is_sealed(row.value))):
            return memory  # its key is damaged, or it is plain
        if real is None:
            problems.append(f"the namespace or key of memory number {memory.number} cannot be decrypted")
            return memory._replace(key=None, row=None, problems=tuple(problems))
        opened, count = None, len(memory.vectors)
        try:
            opened = self._cipher.open(row, real, keys) if row is not None else None
        except Corrupt as error:
            problems.append(str(error))
        if opened is not None:
            count = opened.vectors
            hidden = memory.words
            if hidden is not None and self._cipher.words_digest(hidden) != opened.words:
                problems.append(WRONG_WORDS)
            elif hidden is None and memory.words_check is None:  # SQLite compares the words with this checksum
                problems.append("the checksum of its words is missing")
        vectors: dict[int, bytes] = {}
        for field, sealed in memory.vectors.items():
            try:
                stored = VectorRow(memory.number, field, real.namespace, sealed)
                vectors[field] = self._cipher.open_vector(stored, real.namespace, count, keys).vector
            except Corrupt as error:
                problems.append(str(error))
                vectors[field] = sealed[VECTOR_OVERHEAD:]
        is_at_home = memory.number == memory_number(self._tenant, memory.key)
        return memory._replace(
            number=memory_number(self._tenant, real) if is_at_home else memory.number,
            key=real,
            row=row._replace(namespace=real.namespace, key=real.key, value=opened.value)
            if opened is not None and row is not None
            else None,
            vectors=vectors,
            vector_count=memory.vector_count if opened is None else count,
            problems=tuple(problems),
        )

    # --- encrypt and rotate

    def seal_plain_page(self, after: Any) -> tuple[int, Any]:
        """Encrypt the plain memories of a page. Return how many, and the cursor of the next page, None at the end.

        Times and ttl stay. A memory that is changed meanwhile is not replaced, since `updated` or `expires` differs
        then: the page is read again. With hidden ids a memory moves to another name; on Valkey that takes two steps,
        and if the process is killed in between while another one deletes the memory, the sealed copy is left. May be
        called again at any time. Corrupt if a memory is damaged: it might stay plain otherwise.
        """
        return self._replace_page(partial(self._plain_page, after))

    def seal_page_again(self, before: MemoryTranslation, after: Any) -> tuple[int, Any]:
        """Encrypt a page of memories with these keys instead of those before, as `seal_plain_page` does."""
        return self._replace_page(partial(self._page_before, before, after))

    def _replace_page(self, read: Callable[[], _PageToSeal]) -> tuple[int, Any]:
        """Seal memories that `read` returns with what is stored of them, until none was changed meanwhile."""
        done = 0
        for _ in range(_TRIES):
            cursor, found = read()
            replaced = 0
            for start in range(0, len(found), _SEALED_AT_ONCE):
                some = found[start : start + _SEALED_AT_ONCE]
                seal, key_of = self._cipher.seal, self._keys.of
                puts = tuple([seal(memory, key_of(memory.row.namespace[0])) for _, memory in some])
                rows = tuple([row for row, _ in some])
                replaced += self._execute(ReplaceMemories(self._tenant, rows, puts, now_us()))
            done += replaced
            if replaced == len(found):
                return done, cursor
        raise Conflict("memories are changed all the time: run it again")

    def _page_before(self, before: MemoryTranslation, after: Any) -> _PageToSeal:
        """Return the memories of a page that are sealed with other keys."""
        page: InspectedMemoryPage = self._execute(InspectMemories(self._tenant, _PAGE, after, with_words=True))
        found: list[tuple[MemoryRow, NewMemory]] = []
        for memory in page.memories:
            if self._is_own(memory):
                continue
            partitions = {real.namespace[0]} if (real := before._try_real_key(memory)) else set()
            opened = before._inspected(memory, before._keys.existing(partitions))
            if memory.row is None or opened.row is None or opened.problems:
                raise Corrupt(f"{_name_of(opened)} cannot be encrypted anew: {'; '.join(opened.problems)}")
            found.append((memory.row, NewMemory(opened.row, _in_order(opened.vectors), before._real_words(opened))))
        return page.cursor, found

    def _is_own(self, memory: InspectedMemory) -> bool:
        """Return whether a memory is sealed with these keys."""
        real = self._try_real_key(memory)
        if real is None or memory.row is None:
            return False
        try:
            self._cipher.open(memory.row, real, self._keys.existing({real.namespace[0]}))
        except Corrupt:
            return False
        return True

    def _real_words(self, memory: InspectedMemory) -> str:
        """Return the marked words of a memory, which are in its value, from their digests in the index."""
        if not memory.words or memory.row is None:
            return ""
        real = {self._cipher.hidden_word(word): word for word in words(" ".join(leaf_texts(_value(memory.row))))}
        try:
            return " ".join(sorted([real[hidden[:-1]] + hidden[-1] for hidden in memory.words.split(" ")]))
        except KeyError as error:
            raise Corrupt(f"{_name_of(memory)} has words in the index that are not in its value") from error

    def delete_other_data_keys(self) -> None:
        """Delete the data keys that no memory needs after `seal_page_again`."""
        self._keys.delete_others()

    def _plain_page(self, after: Any) -> _PageToSeal:
        """Return the plain memories of a page.

        SQLite reads the words of a memory slowly, so they are computed from its value, if they have the same checksum.
        """
        request = InspectMemories(self._tenant, _PAGE, after)
        page: InspectedMemoryPage = self._execute(request)
        plain = list(self._plain_memories(page))
        if any(marked is None for _, marked in plain):
            page = self._execute(request._replace(with_words=True))
            plain = list(self._plain_memories(page))
        found = [
            (memory.row, NewMemory(memory.row, _in_order(memory.vectors), marked or ""))
            for memory, marked in plain
            if memory.row is not None
        ]
        return page.cursor, found

    def _plain_memories(self, page: InspectedMemoryPage) -> Iterator[tuple[InspectedMemory, str | None]]:
        """Yield the plain memories of a page, each with its words; None if they are not known."""
        for memory in page.memories:
            row = memory.row
            if row is None or (memory.problems and not is_sealed(row.value)):
                raise Corrupt(f"{_name_of(memory)} cannot be encrypted: {'; '.join(memory.problems)}")
            if is_sealed(row.value):
                continue
            if memory.vector_count not in (None, len(memory.vectors)):
                raise damaged_memory(row.memory_key, "some of its vectors are missing")
            yield memory, memory.words if memory.words is not None else _probable_words(row, memory.words_check)

    def rewrap_data_keys(self) -> int:
        """Wrap the data keys of all partitions with the tenant's current key. Return how many were not."""
        return self._keys.rewrap()


def _name_of(memory: InspectedMemory) -> str:
    return memory_name(*memory.key) if memory.key is not None else f"memory number {memory.number}"


def _in_order(vectors: Mapping[int, bytes]) -> tuple[bytes, ...]:
    return tuple([vector for _, vector in sorted(vectors.items())])


def _probable_words(row: MemoryRow, check: int | None) -> str | None:
    """Return the words of a memory if all of its value, or nothing, was indexed; None if it was something else."""
    if check == 0:
        return ""
    marked = index_words(leaf_texts(_value(row)))
    return marked if check == words_check(marked) else None


def _value(row: MemoryRow) -> dict[str, Any]:
    try:
        return load(row.value)
    except (ValueError, RecursionError) as error:
        raise damaged_memory(row.memory_key, f"its value cannot be decoded: {error}") from error


def _refuse_server_search(_request: Request[Any]) -> Any:
    raise ValueError(_NO_SERVER_SEARCH)
