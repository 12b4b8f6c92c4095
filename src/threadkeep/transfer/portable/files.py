"""Portable files: JSON lines, compressed with zstd, each with a checksum. Reading and writing them.

With keys they are encrypted as a whole; see `sealed_files`.
"""

from __future__ import annotations

import io
import json
import os
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TypeAlias

import zstandard

from threadkeep.transfer.portable.format import FORMAT, HEADER, VERSION, Line, brief, encoded
from threadkeep.transfer.portable.sealed_files import MAGIC, OpeningReader, SealingWriter

if TYPE_CHECKING:
    from threadkeep.encryption.keys import Keys

LONGEST_LINE = 64 * 1024 * 1024
"""In bytes."""
_WINDOW = 1 << 27
_MAGIC = b"\x28\xb5\x2f\xfd"
_LEVEL = 6
_CRC = b',"crc":"'
PortableFile: TypeAlias = str | os.PathLike[str] | BinaryIO
"""A path, or an open binary file."""


class LineWriter:
    """Writes lines into a file."""

    def __init__(self, out: Any) -> None:
        self._out = out
        self.bytes = 0

    def write(self, fields: Mapping[str, Any]) -> None:
        """Write a line with its checksum."""
        text = encoded(fields)[:-1]
        line = text + _CRC + b'%08x"}\n' % zlib.crc32(text)
        if len(line) > LONGEST_LINE:
            raise ValueError(
                f"{fields.get('type')} {brief(fields.get('id') or fields.get('key'))} is too large for one line"
            )
        self._out.write(line)
        self.bytes += len(line)


@contextmanager
def open_for_writing(where: PortableFile, keys: Keys | None = None, *, compress: bool = True) -> Iterator[LineWriter]:
    """Write a file, completely or not at all. With keys it is encrypted.

    It is compressed, unless its name ends in .jsonl or `compress` is false. An older export is replaced.
    FileExistsError for any other file, such as the database itself.
    """
    if hasattr(where, "write"):
        with _sealed(where, keys) as sealed, _compressed(sealed, compress=compress) as out:
            yield LineWriter(out)
        return
    path = Path(where).resolve()
    if path.exists() and not path.is_file():  # a device or a pipe
        with path.open("wb") as file, _sealed(file, keys) as sealed, _compressed(sealed, compress=compress) as out:
            yield LineWriter(out)
        return
    if path.exists() and path.stat().st_size and not is_portable(path):
        raise FileExistsError(f"{path} exists and is not an export of threadkeep: it was not replaced")
    if not path.parent.is_dir():
        raise FileNotFoundError(f"there is no directory {path.parent}")
    part = path.with_name(path.name + ".part")
    try:
        with part.open("wb") as file:
            with (
                _sealed(file, keys) as sealed,
                _compressed(sealed, compress=compress and path.suffix != ".jsonl") as out,
            ):
                yield LineWriter(out)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except BaseException:
        with suppress(FileNotFoundError):
            part.unlink()
        raise


@contextmanager
def _sealed(file: Any, keys: Keys | None) -> Iterator[Any]:
    if keys is None:
        yield file
        return
    out = SealingWriter(file, keys)
    yield out
    out.close()


@contextmanager
def _compressed(file: Any, *, compress: bool) -> Iterator[Any]:
    if not compress:
        yield file
        return
    params = zstandard.ZstdCompressionParameters.from_level(_LEVEL, write_checksum=True)
    out = zstandard.ZstdCompressor(compression_params=params).stream_writer(file, closefd=False)
    yield out
    out.flush(zstandard.FLUSH_FRAME)


@contextmanager
def open_for_reading(where: PortableFile, keys: Keys | None = None) -> Iterator[Iterator[Line]]:
    """Read the lines of a file. ValueError if it is not a portable file, or of a newer version.

    WrongKey if it is encrypted and these keys do not open it.
    """
    if hasattr(where, "read"):
        yield _lines(where, keys)
        return
    with Path(where).open("rb") as file:
        yield _lines(file, keys)


def is_portable(where: str | os.PathLike[str]) -> bool:
    """Whether a path is a portable file, of any version."""
    try:
        with Path(where).open("rb") as file:
            if file.peek(len(MAGIC)).startswith(MAGIC):
                return True
            first = _first_line(file)
    except (OSError, ValueError, zstandard.ZstdError):
        return False
    return first is not None and first.fields.get("format") == FORMAT and first.fields.get("type") == HEADER


def _first_line(file: Any) -> Line | None:
    raw = _decompressed(file, None).readline(4096)
    return _parsed(1, raw) if raw.endswith(b"\n") else None


def _decompressed(file: Any, keys: Keys | None) -> io.BufferedReader:
    buffered = file if isinstance(file, io.BufferedReader) else io.BufferedReader(_Raw(file))
    if buffered.peek(len(MAGIC)).startswith(MAGIC):
        buffered.read(len(MAGIC))
        buffered = io.BufferedReader(OpeningReader(buffered, keys))
    if buffered.peek(4)[:4] != _MAGIC:
        return buffered
    stream: Any = zstandard.ZstdDecompressor(max_window_size=_WINDOW).stream_reader(buffered, read_across_frames=True)
    return io.BufferedReader(stream)


class _Raw(io.RawIOBase):
    """Any object with a read(), for Python's buffered reader."""

    def __init__(self, file: Any) -> None:
        self._file = file

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._file.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)


def _lines(file: Any, keys: Keys | None) -> Iterator[Line]:
    source, number, has_sums = _decompressed(file, keys), 0, False
    while True:
        number += 1
        try:
            raw = source.readline(LONGEST_LINE + 1)
        except zstandard.ZstdError as error:
            raise ValueError(f"line {number} of the file cannot be decompressed: {error}") from error
        if not raw:
            return
        if len(raw) > LONGEST_LINE:
            raise ValueError(f"line {number} of the file is longer than {LONGEST_LINE} bytes")
        if not raw.endswith(b"\n"):
            return  # cut off: whoever expects more lines notices
        line = _parsed(number, raw)
        if number == 1:
            _check_header(line)
            has_sums = "crc" in line.fields
        if has_sums and "crc" not in line.fields:
            raise line.error("it has no checksum, but the first line has one")
        yield line


def _parsed(number: int, raw: bytes) -> Line:
    body, found, crc = raw.rpartition(_CRC)
    if found and crc != b'%08x"}\n' % zlib.crc32(body):
        raise ValueError(f"line {number} of the file: its checksum is wrong")
    try:
        fields = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"line {number} of the file is not JSON: {error}") from error
    if type(fields) is not dict:
        raise ValueError(f"line {number} of the file is not an object")
    return Line(number, fields)


def _check_header(line: Line) -> None:
    if line.fields.get("type") != HEADER or line.fields.get("format") != FORMAT:
        raise line.error("this is not a portable file of threadkeep")
    if line.count("version") > VERSION:
        raise line.error(f"the file has version {line.fields['version']}; upgrade threadkeep to read it")
