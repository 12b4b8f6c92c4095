"""The files of deep agents (deepagents' BackendProtocol) on a Keep, sync and async on one object.

A file is two memories in one partition: what it contains, and a small one with its size and times. Both are under the
file's directory, one segment of the namespace for each name, so that a listing reads neither other directories nor any
content. They are written together, on the condition that nobody else has written the file since it was read.
"""

from __future__ import annotations

import re
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any, NamedTuple, TypeAlias, TypeVar

from threadkeep import clock
from threadkeep.adapters.langgraph_store import KeepStore
from threadkeep.engine.commit import retry
from threadkeep.engine.memories import json_text
from threadkeep.engine.memories import plans as memory_plans
from threadkeep.engine.memories.namespaces import MemoryKey, Namespace, NamespacePattern
from threadkeep.engine.memories.plans import FoundMemory, decode_memories, decode_memory
from threadkeep.engine.memories.requests import (
    GetMemories,
    GetMemoriesByNumber,
    ListMemories,
    MemoryRow,
    NewMemory,
    SearchFullText,
    WriteMemories,
)
from threadkeep.engine.memories.words import MAX_WORDS, unmark, words
from threadkeep.errors import Conflict
from threadkeep.plan import Plan

try:
    from deepagents.backends import utils
    from deepagents.backends.protocol import (
        BackendProtocol,
        DeleteResult,
        EditResult,
        FileData,
        FileDownloadResponse,
        FileInfo,
        FileUploadResponse,
        GlobResult,
        GrepResult,
        LsResult,
        ReadResult,
        WriteResult,
    )
    from langgraph.runtime import get_runtime
except ImportError as error:
    raise ImportError(f'files need deepagents: pip install "threadkeep[deepagents]" ({error})') from error

T = TypeVar("T")
NamespaceOf: TypeAlias = Sequence[str] | Callable[[Any], Sequence[str]]
"""Where the files are: a namespace, or a function of LangGraph's runtime (None outside of a graph) that returns one."""
_DEFAULT_NAMESPACE = ("filesystem",)
_INFOS, _CONTENTS = "files", "contents"
_OWN_FILES = "%"
"""The last segment of a namespace: the files of a directory itself. No escaped name is like this."""
_ESCAPES = {"%": "%25", ".": "%2E", "*": "%2A", "\0": "%00"}
"""What LangGraph refuses in a segment, or takes for a wildcard."""
_ESCAPED = re.compile("%(25|2E|2A|00)")
_WHOLE_WORD = re.compile("(?<=[^a-z0-9])[a-z0-9]+(?=[^a-z0-9])")
_PAGE, _CONTENTS_AT_ONCE, _DELETED_AT_ONCE = 1000, 50, 250
_ALL = 10**9


class _FilePath(NamedTuple):
    """A path as directories and a name. The root is no file."""

    directories: tuple[str, ...]
    name: str

    def __str__(self) -> str:
        return "/" + "/".join((*self.directories, self.name))


class _File(NamedTuple):
    """What a listing knows of a file."""

    path: str
    directories: Namespace
    name: str
    info: dict[str, Any]

    def listed(self) -> FileInfo:
        return FileInfo(path=self.path, is_dir=False, size=self.info["size"], modified_at=self.info["modified_at"])


class KeepFiles(BackendProtocol):
    """Files of deep agents on a Keep. Get one from `Keep.files`, or make one with another namespace.

    Paths are absolute, without `.`, `..` and empty names. An edit reads and writes the file again if somebody else
    writes it meanwhile; a write replaces what is there.
    """

    def __init__(self, store: KeepStore, namespace: NamespaceOf = _DEFAULT_NAMESPACE) -> None:
        self._store = store
        self._session = store._session  # noqa: SLF001 - of the same package
        self._namespace = namespace
        if not callable(namespace):
            _check_namespace(namespace)

    def _tree(self) -> _FileTree:
        """Return the files of the current namespace."""
        namespace = self._namespace
        if callable(namespace):
            try:
                runtime: Any = get_runtime()
            except (RuntimeError, KeyError):  # outside of a graph
                runtime = None
            namespace = namespace(runtime)
        return _FileTree(self._store, _check_namespace(namespace))

    def _read(self, plan: Plan[T]) -> T:
        return self._session.runner.run(plan)

    async def _aread(self, make: Callable[[], Plan[T]]) -> T:
        return await self._session.runner.arun(make)

    def ls(self, path: str) -> LsResult:
        """List a directory. One round trip for each 1,000 files in it, and for each 1,000 directories below it."""
        return self._read(self._tree().ls(path))

    async def als(self, path: str) -> LsResult:
        """Async version of `ls`."""
        tree = self._tree()
        return await self._aread(lambda: tree.ls(path))

    def read(self, file_path: str, offset: int = 0, limit: int = 2000) -> ReadResult:
        """Return some lines of a file. One round trip."""
        return self._read(self._tree().read(file_path, offset, limit))

    async def aread(self, file_path: str, offset: int = 0, limit: int = 2000) -> ReadResult:
        """Async version of `read`."""
        tree = self._tree()
        return await self._aread(lambda: tree.read(file_path, offset, limit))

    def write(self, file_path: str, content: str) -> WriteResult:
        """Create or replace a file. Two round trips; more if others write it at the same time."""
        tree = self._tree()
        return self._session.change_outside_threads(lambda: tree.write(file_path, content))

    async def awrite(self, file_path: str, content: str) -> WriteResult:
        """Async version of `write`."""
        tree = self._tree()
        return await self._session.achange_outside_threads(lambda: tree.write(file_path, content))

    def edit(self, file_path: str, old_string: str, new_string: str, replace_all: bool = False) -> EditResult:  # noqa: FBT001, FBT002 - deepagents' signature
        """Replace a text in a file. Two round trips; more if others write it at the same time: no edit is lost."""
        tree = self._tree()
        return self._session.change_outside_threads(
            lambda: tree.edit(file_path, old_string, new_string, replace_all=replace_all)
        )

    async def aedit(self, file_path: str, old_string: str, new_string: str, replace_all: bool = False) -> EditResult:  # noqa: FBT001, FBT002 - as above
        """Async version of `edit`."""
        tree = self._tree()
        return await self._session.achange_outside_threads(
            lambda: tree.edit(file_path, old_string, new_string, replace_all=replace_all)
        )

    def delete(self, file_path: str) -> DeleteResult:
        """Delete a file, or a directory with everything below it, 250 files at a time. Two round trips for these."""
        tree = self._tree()
        return self._session.change_outside_threads(lambda: tree.delete(file_path))

    async def adelete(self, file_path: str) -> DeleteResult:
        """Async version of `delete`."""
        tree = self._tree()
        return await self._session.achange_outside_threads(lambda: tree.delete(file_path))

    def grep(
        self, pattern: str, path: str | None = None, glob: str | None = None, *, max_count: int | None = None
    ) -> GrepResult:
        """Find a literal text in files. Contents are read of files that `path` and `glob` select, 50 at a time.

        If the pattern has a whole word between other characters, only files that contain it are read. The matches of
        each 50 files are in the order of their paths.
        """
        return self._read(self._tree().grep(pattern, path, glob, max_count))

    async def agrep(
        self, pattern: str, path: str | None = None, glob: str | None = None, *, max_count: int | None = None
    ) -> GrepResult:
        """Async version of `grep`."""
        tree = self._tree()
        return await self._aread(lambda: tree.grep(pattern, path, glob, max_count))

    def glob(self, pattern: str, path: str | None = None) -> GlobResult:
        """Find files by name, last modified first. Reads no contents: one round trip for each 1,000 files below."""
        return self._read(self._tree().glob(pattern, path))

    async def aglob(self, pattern: str, path: str | None = None) -> GlobResult:
        """Async version of `glob`."""
        tree = self._tree()
        return await self._aread(lambda: tree.glob(pattern, path))

    def upload_files(self, files: list[tuple[str, bytes]]) -> list[FileUploadResponse]:
        """Create or replace files; those that are not UTF-8 are stored as base64. Two round trips for each."""
        tree = self._tree()
        return [self._session.change_outside_threads(partial(tree.upload, *each)) for each in files]

    async def aupload_files(self, files: list[tuple[str, bytes]]) -> list[FileUploadResponse]:
        """Async version of `upload_files`."""
        tree = self._tree()
        return [await self._session.achange_outside_threads(partial(tree.upload, *each)) for each in files]

    def download_files(self, paths: list[str]) -> list[FileDownloadResponse]:
        """Return the contents of files. One round trip for all."""
        return self._read(self._tree().download(paths))

    async def adownload_files(self, paths: list[str]) -> list[FileDownloadResponse]:
        """Async version of `download_files`."""
        tree = self._tree()
        return await self._aread(lambda: tree.download(paths))


class _FileTree:
    """The files below a namespace, and the plans that read and change them."""

    def __init__(self, store: KeepStore, base: Namespace) -> None:
        self._index = store._index  # noqa: SLF001 - of the same package
        self._tenant = store._session.tenant  # noqa: SLF001
        self._base = base
        self._has_all_words = self._index.has_words and self._index.words({"content": "a", "b": "c"}, None) != ""

    # --- places

    def _directory(self, kind: str, directories: Iterable[str]) -> Namespace:
        return (*self._base, kind, *map(_escape, directories))

    def _keys(self, path: _FilePath) -> tuple[MemoryKey, MemoryKey]:
        """Return the keys of a file's info and content."""
        info = MemoryKey((*self._directory(_INFOS, path.directories), _OWN_FILES), path.name)
        return info, MemoryKey((*self._directory(_CONTENTS, path.directories), _OWN_FILES), path.name)

    def _file(self, found: FoundMemory) -> _File:
        directories = tuple(map(_unescape, found.row.namespace[len(self._base) + 1 : -1]))
        return _File(str(_FilePath(directories, found.row.key)), directories, found.row.key, found.value)

    # --- lists

    async def _list(self, prefix: Namespace) -> list[_File]:
        """Return the files whose infos are below a prefix, in the order of their paths."""
        now, after = clock.now_us(), None
        rows: list[MemoryRow] = []
        while True:
            page = await ListMemories(self._tenant, prefix, now, _PAGE, 0, after)
            rows += page
            if len(page) < _PAGE:
                break
            after = (page[-1].updated, page[-1].namespace, page[-1].key)
        files = {row.memory_key: self._file(found) for row, found in zip(rows, decode_memories(rows), strict=True)}
        return sorted(files.values())

    async def _selected(self, path: str | None) -> list[tuple[_File, str]]:
        """Return the file at a path or those below it, each with its path relative to that one, as deepagents does."""
        names = _names(path)
        if names:
            info, _ = self._keys(_FilePath(names[:-1], names[-1]))
            (found,) = await memory_plans.get(self._tenant, [info], clock.now_us())
            if found is not None:
                return [(self._file(found), names[-1])]
        root = "/" + "".join(f"{name}/" for name in names)
        return [(file, file.path[len(root) :]) for file in await self._list(self._directory(_INFOS, names))]

    async def ls(self, path: str) -> LsResult:
        names = _names(path)
        place = self._directory(_INFOS, names)
        files = await self._list((*place, _OWN_FILES))
        below = await memory_plans.namespaces(
            self._tenant, [NamespacePattern(at_end=False, segments=place)], len(place) + 1, _ALL, 0, clock.now_us()
        )
        root = "/" + "".join(f"{name}/" for name in names)
        entries = [file.listed() for file in files]
        for each in below:
            if len(each) > len(place) and each[-1] != _OWN_FILES:
                entries.append(FileInfo(path=f"{root}{_unescape(each[-1])}/", is_dir=True, size=0, modified_at=""))
        return LsResult(entries=sorted(entries, key=lambda entry: entry["path"]))

    async def glob(self, pattern: str, path: str | None) -> GlobResult:
        try:
            is_match = utils.compile_grep_include_glob(pattern)
        except utils.InvalidGlobPatternError as error:
            return GlobResult(error=str(error))
        files = [file for file, relative in await self._selected(path) if is_match(relative)]
        files.sort(key=lambda file: file.info["modified_at"], reverse=True)
        return GlobResult(matches=[file.listed() for file in files])

    async def grep(self, pattern: str, path: str | None, glob: str | None, max_count: int | None) -> GrepResult:
        try:
            is_match = utils.compile_grep_include_glob(glob) if glob else None
        except utils.InvalidGlobPatternError as error:
            return GrepResult(error=str(error))
        files = [file for file, relative in await self._selected(path) if is_match is None or is_match(relative)]
        texts = {self._content_key(file): file for file in files if file.info["encoding"] != "base64"}
        result = GrepResult(matches=[])
        for load in await self._loads(texts, pattern, path):
            contents = {texts[row.memory_key].path: row for row in await load() if row.memory_key in texts}
            found = {each: decode_memory(row).value for each, row in sorted(contents.items())}
            assert result.matches is not None
            left = None if max_count is None else max_count - len(result.matches)
            more = utils.grep_matches_from_files(found, pattern, max_count=left)
            result.matches += more.matches or []
            if more.truncated:
                result.truncated = True
                break
        return result

    def _content_key(self, file: _File) -> MemoryKey:
        return self._keys(_FilePath(file.directories, file.name))[1]

    async def _loads(
        self, texts: Mapping[MemoryKey, _File], pattern: str, path: str | None
    ) -> list[Callable[[], Plan[Iterable[MemoryRow]]]]:
        """Return plans that load the contents of files which may contain a pattern, some at a time.

        If many files are selected, these are the ones with the pattern's words, and those whose words are not all in
        the index. Only a word between two other characters counts: the others may be parts of longer words.
        """
        whole = " ".join(_WHOLE_WORD.findall(pattern.lower())) if pattern.isascii() else ""
        wanted = tuple(dict.fromkeys(words(whole)))  # as long as those of the index
        prefix = self._directory(_CONTENTS, _names(path))
        loads: list[Callable[[], Plan[Iterable[MemoryRow]]]] = []
        keys = list(texts)
        if wanted and self._has_all_words and len(texts) > _CONTENTS_AT_ONCE:
            found = await SearchFullText(self._tenant, prefix, clock.now_us(), wanted, _ALL)
            numbers = [match.memory for match in found.matches if match.distinct == len(wanted)]
            loads += [partial(self._by_number, prefix, some) for some in _slices(numbers)]
            keys = [key for key, file in texts.items() if file.info["lacks_words"]]
        return loads + [partial(self._by_key, some) for some in _slices(keys)]

    async def _by_number(self, prefix: Namespace, numbers: Sequence[int]) -> Iterable[MemoryRow]:
        rows = await GetMemoriesByNumber(self._tenant, prefix, tuple(numbers), clock.now_us())
        return rows.values()

    async def _by_key(self, keys: Sequence[MemoryKey]) -> Iterable[MemoryRow]:
        rows = await GetMemories(self._tenant, tuple(keys), clock.now_us())
        return [row for row in rows if row is not None]

    # --- contents

    async def _load(self, path: _FilePath) -> tuple[FoundMemory | None, FoundMemory | None]:
        info, content = await memory_plans.get(self._tenant, self._keys(path), clock.now_us())
        return (info, content) if info is not None and content is not None else (None, content)

    async def read(self, file_path: str, offset: int, limit: int) -> ReadResult:
        path = _path(file_path)
        info, content = await self._load(path) if path is not None else (None, None)
        if info is None or content is None:
            return ReadResult(error=f"File '{file_path}' not found")
        data = FileData(content=content.value["content"], encoding=content.value["encoding"])
        data["created_at"], data["modified_at"] = info.value["created_at"], info.value["modified_at"]
        if utils._get_backend_read_file_type(file_path) != "text":  # noqa: SLF001 - deepagents' own backends use it
            return ReadResult(file_data=data)
        return utils.slice_read_response(data, offset, limit)

    async def download(self, paths: list[str]) -> list[FileDownloadResponse]:
        known = [(each, path) for each in paths if (path := _path(each)) is not None]
        keys = [self._keys(path)[1] for _, path in known]
        found = await memory_plans.get(self._tenant, keys, clock.now_us()) if keys else []
        contents = {each: content.value for (each, _), content in zip(known, found, strict=True) if content is not None}
        return [
            FileDownloadResponse(path=each, content=_bytes_of(contents[each]))
            if each in contents
            else FileDownloadResponse(path=each, error="file_not_found")
            for each in paths
        ]

    # --- changes

    async def write(self, file_path: str, content: str) -> WriteResult:
        path = _path(file_path)
        if path is None:
            return WriteResult(error=_invalid(file_path))

        async def once(_: int) -> WriteResult:
            info, old = await self._load(path)
            await self._store(path, content, "utf-8", old, created=info.value["created_at"] if info else None)
            return WriteResult(path=file_path)

        try:
            return await retry(once, f"file {file_path!r} was changed by others")
        except Conflict as error:
            return WriteResult(error=f"Error: {error}")

    async def upload(self, file_path: str, data: bytes) -> FileUploadResponse:
        path = _path(file_path)
        if path is None:
            return FileUploadResponse(path=file_path, error="invalid_path")
        try:
            content, encoding = data.decode(), "utf-8"
        except UnicodeDecodeError:
            content, encoding = b64encode(data).decode(), "base64"

        async def once(_: int) -> FileUploadResponse:
            _info, old = await self._load(path)
            await self._store(path, content, encoding, old, created=None)
            return FileUploadResponse(path=file_path)

        try:
            return await retry(once, f"file {file_path!r} was changed by others")
        except Conflict as error:
            return FileUploadResponse(path=file_path, error=str(error))

    async def edit(self, file_path: str, old_string: str, new_string: str, *, replace_all: bool) -> EditResult:
        path = _path(file_path)

        async def once(_: int) -> EditResult:
            info, old = await self._load(path) if path is not None else (None, None)
            if info is None or old is None or path is None:
                return EditResult(error=f"Error: File '{file_path}' not found")
            if old.value["encoding"] == "base64":
                return EditResult(error="Error: Cannot edit binary files with text replacements.")
            replaced = utils.perform_string_replacement(old.value["content"], old_string, new_string, replace_all)
            if isinstance(replaced, str):
                return EditResult(error=replaced)
            content, occurrences = replaced
            await self._store(path, content, old.value["encoding"], old, created=info.value["created_at"])
            return EditResult(path=file_path, occurrences=occurrences)

        try:
            return await retry(once, f"file {file_path!r} was changed by others")
        except Conflict as error:
            return EditResult(error=f"Error: {error}")

    async def _store(
        self, path: _FilePath, content: str, encoding: str, old: FoundMemory | None, *, created: str | None
    ) -> None:
        """Store a file if it was not changed since `old` was read. Its version grows, whatever the clock says."""
        version = old.row.updated if old is not None else None
        now = max(clock.now_us(), (version or 0) + 1)
        time = datetime.fromtimestamp(now / 1_000_000, UTC).isoformat()
        value = {"content": content, "encoding": encoding}
        marked = self._index.words(value, None) if self._has_all_words and encoding != "base64" else ""
        found = words(content)
        info = {
            "size": len(content.encode("utf-8", "surrogatepass")),
            "created_at": created or time,
            "modified_at": time,
            "encoding": encoding,
            "lacks_words": len(found) >= MAX_WORDS or not unmark(marked).keys() >= set(found),
        }
        place, content_place = self._keys(path)
        puts = (
            NewMemory(MemoryRow(*place, json_text.dump(info), now, now, None, None)),
            NewMemory(MemoryRow(*content_place, json_text.dump(value), now, now, None, None), words=marked),
        )
        await memory_plans.change(WriteMemories(self._tenant, puts, (), now), [(content_place, version)])

    async def delete(self, file_path: str) -> DeleteResult:
        files = [file for file, _ in await self._selected(file_path)]
        if len(files) == 1 and files[0].path == file_path.rstrip("/"):  # there may also be a directory of this name
            files += await self._list(self._directory(_INFOS, _names(file_path)))
        if not files:
            return DeleteResult(error=f"Error: File '{file_path}' not found")
        for start in range(0, len(files), _DELETED_AT_ONCE):
            some = files[start : start + _DELETED_AT_ONCE]
            keys = tuple(key for file in some for key in self._keys(_FilePath(file.directories, file.name)))
            await memory_plans.write(self._tenant, (), keys, clock.now_us())
        return DeleteResult(path=file_path)


def _path(file_path: str) -> _FilePath | None:
    """Return a path; None if it is not absolute, or has an empty name, `.` or `..`."""
    names = file_path.split("/")
    if names[0] or len(names) < 2 or not {"", ".", ".."}.isdisjoint(names[1:]):
        return None
    return _FilePath(tuple(names[1:-1]), names[-1])


def _names(path: str | None) -> tuple[str, ...]:
    """Return the names in a path of a directory, for which slashes too many do not count."""
    return tuple(name for name in (path or "/").split("/") if name)


def _slices(values: Sequence[T]) -> Iterator[Sequence[T]]:
    return (values[at : at + _CONTENTS_AT_ONCE] for at in range(0, len(values), _CONTENTS_AT_ONCE))


def _invalid(file_path: str) -> str:
    return f"Error: '{file_path}' is no absolute path of a file, or has an empty name, '.' or '..' in it"


def _escape(name: str) -> str:
    return "".join([_ESCAPES.get(character, character) for character in name])


def _unescape(segment: str) -> str:
    return _ESCAPED.sub(lambda match: chr(int(match[1], 16)), segment)


def _bytes_of(value: dict[str, Any]) -> bytes:
    content: str = value["content"]
    return b64decode(content) if value["encoding"] == "base64" else content.encode("utf-8", "surrogatepass")


def _check_namespace(given: Any) -> Namespace:
    """Return a namespace, or raise ValueError or TypeError if LangGraph's store does not accept it."""
    if isinstance(given, str) or not isinstance(given, Sequence) or not all(isinstance(each, str) for each in given):
        raise TypeError(f"namespace must be a tuple of str, or a function that returns one, not {given!r}")
    namespace = tuple(given)
    if not namespace or namespace[0] == "langgraph" or not all(namespace) or {".", "\0"} & set("".join(namespace)):
        raise ValueError(f"namespace must have segments that are not empty and contain no dots, not {namespace!r}")
    return namespace
