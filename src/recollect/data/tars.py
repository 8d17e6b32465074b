"""Tar archives, compressed or not: read forwards, without Python's trust in what they claim."""

import bz2
import gzip
import io
import lzma
import tarfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import IO, Any, NamedTuple, Self, cast

from recollect.data import limits
from recollect.errors import DataError

BLOCK = 512
BEFORE = 64  # files of a compressed archive that are read again with one that was passed over
AHEAD_BYTES = 32 << 20  # kept of files that were passed over in a compressed archive
PATIENCE = 0.1  # seconds, for somebody to ask for a file larger than that before it is passed over


class Span(NamedTuple):
    """Where a file's content stands in the unpacked archive."""

    start: int
    size: int


class CutShort(EOFError):  # noqa: N818
    """An archive that ends before it should."""


def tar_opener(path: Path) -> Callable[[Path, Any], IO[bytes]] | None:
    """Return what opens a tar archive by how it starts, `None` for a file that is none."""
    with path.open("rb") as file:
        start = file.read(BLOCK)
    for magic, opener in ((b"\x1f\x8b", gzip.open), (b"BZh", bz2.open), (b"\xfd7zXZ\0", lzma.open)):
        if start.startswith(magic):
            return cast("Callable[[Path, Any], IO[bytes]]", opener)
    try:
        tarfile.TarInfo.frombuf(start, "utf-8", "surrogateescape")
    except (tarfile.HeaderError, ValueError):
        return None
    return cast("Callable[[Path, Any], IO[bytes]]", Path.open)


class Forward:
    """The bytes of a tar archive, unpacked as they are read forwards."""

    def __init__(self, path: Path) -> None:
        opener = tar_opener(path)
        if opener is None:
            raise DataError("this is no tar archive any more")
        self._packed = path.stat().st_size
        self.compressed = opener is not Path.open
        self._most = limits.most_bytes(self._packed) if self.compressed else self._packed
        self._file = opener(path, "rb")
        self.position = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the file."""
        self._file.close()

    def read(self, count: int) -> bytes:
        """Return exactly so many bytes."""
        self._check(self.position + count)
        content = self._file.read(count)
        self.position += len(content)
        if len(content) < count:
            raise CutShort("the archive is cut short")
        return content

    def skip(self, position: int) -> None:
        """Go forwards."""
        self._check(position)
        self._file.seek(position)
        self.position = position

    def finish(self) -> None:
        """Read what is left of a compressed archive, at whose end stands a checksum."""
        while self.compressed and (content := self._file.read(1 << 20)):
            self.position += len(content)
            self._check(self.position)

    def _check(self, position: int) -> None:
        if position > self._most:
            raise limits.too_much(self._packed) if self.compressed else CutShort("the archive is cut short")


class Part(io.RawIOBase):
    """The next `size` bytes of a tar archive, which is closed with it."""

    def __init__(self, archive: Forward, size: int) -> None:
        self._archive, self._left = archive, size

    def readable(self) -> bool:
        """Return that it can be read."""
        return True

    def readinto(self, buffer: Any) -> int:  # noqa: ANN401 -- any writable buffer
        """Read up to as many bytes as the buffer takes."""
        content = self._archive.read(min(len(buffer), self._left, 1 << 20))
        self._left -= len(content)
        buffer[: len(content)] = content
        return len(content)

    def close(self) -> None:
        """Close the archive too."""
        self._archive.close()
        super().close()


class Ahead:
    """Files of a compressed tar archive, which can be read forwards only.

    Threads ask for them nearly in order: a file that is passed over is kept for a while, and as long as
    somebody waits for it.
    """

    def __init__(self, path: Path, spans: Mapping[str, Span]) -> None:
        self._path, self._spans = path, spans
        self._order = list(spans)
        self._index = {name: index for index, name in enumerate(self._order)}
        self._archive: Forward | None = None
        self._next = 0
        self._kept: dict[str, bytes] = {}
        self._bytes = 0
        self._lock = threading.Lock()
        self._wanted: Counter[str] = Counter()  # how many threads wait for a file
        self._asked = threading.Condition()

    def read(self, name: str) -> bytes:
        """Return the content of one file."""
        with self._waiting(name), self._lock:
            try:
                while name not in self._kept:
                    self._pass(name)
            except BaseException:
                self._archive = None
                raise
            return self._drop(name)

    @contextmanager
    def _waiting(self, name: str) -> Iterator[None]:
        """Let the thread that reads know that this one waits for a file."""
        with self._asked:
            self._wanted[name] += 1
            self._asked.notify_all()
        try:
            yield
        finally:
            with self._asked:
                self._wanted -= Counter([name])

    def _pass(self, name: str) -> None:
        """Keep the next file, or the one that is asked for where it lies behind."""
        if self._archive is None or self._next > self._index[name]:
            if self._archive is not None:
                self._archive.close()
            # Threads that begin together ask in any order: what lies just before may be asked for next.
            self._archive, self._next = Forward(self._path), max(0, self._index[name] - BEFORE)
        passed = self._order[self._next]
        self._next += 1
        start, size = self._spans[passed]
        if passed in self._kept or (size > AHEAD_BYTES and not self._comes_to_be_wanted(passed)):
            return
        self._archive.skip(start)
        self._kept[passed] = self._archive.read(size)
        self._bytes += size
        for old in list(self._kept):
            if self._bytes <= AHEAD_BYTES:
                break
            if old not in self._wanted:
                self._drop(old)

    def _comes_to_be_wanted(self, name: str) -> bool:
        """Return whether a thread waits for a file: one that should may not have come to ask yet."""
        with self._asked:
            return self._asked.wait_for(lambda: name in self._wanted, PATIENCE)

    def _drop(self, name: str) -> bytes:
        content = self._kept.pop(name)
        self._bytes -= len(content)
        return content


def members(archive: Forward) -> Iterator[tarfile.TarInfo]:
    """Yield what is in a tar archive, which then stands at its content.

    Python's own reader takes a damaged header for the end of the archive, and reads a long name of any
    length that the archive claims.
    """
    told: dict[str, str] = {}
    for number in count(1):
        info = _header(archive)
        if info is None:
            return
        limits.require_few(number)
        if info.type in _TELLING:
            told |= _told(info.type, archive, info.size)
            continue
        info.name, info.size = told.get("path", info.name), int(told.get("size", info.size))
        if info.size < 0 or any(word.startswith("GNU.sparse") for word in told):
            raise DataError(f"{info.name} has a size or a form that is not read here")
        told = {}
        has_content = info.isreg() or info.type not in tarfile.SUPPORTED_TYPES
        after = archive.position + (_blocks(info.size) if has_content else 0)
        yield info
        archive.skip(after)


def _header(archive: Forward) -> tarfile.TarInfo | None:
    """Return the next header, `None` at the end."""
    start = archive.position
    try:
        block = archive.read(BLOCK)
        return tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape") if any(block) else None
    except (CutShort, tarfile.HeaderError) as error:
        if start or not archive.compressed:
            raise
        raise DataError(
            "what is compressed in it is no tar archive: unpack it, or pack the files as a tar or a zip"
        ) from error


_TELLING = {
    tarfile.XHDTYPE,
    tarfile.SOLARIS_XHDTYPE,
    tarfile.XGLTYPE,
    tarfile.GNUTYPE_LONGNAME,
    tarfile.GNUTYPE_LONGLINK,
}


def _told(kind: bytes, archive: Forward, size: int) -> dict[str, str]:
    """Read what is said beforehand about the next file: its long name, its size."""
    if not 0 <= size <= limits.MAX_HEADER_BYTES:
        raise DataError(f"a header of {size} bytes is refused")
    content = archive.read(_blocks(size))[:size]
    if kind == tarfile.GNUTYPE_LONGNAME:
        return {"path": content.rstrip(b"\0").decode("utf-8", "surrogateescape")}
    if kind in {tarfile.GNUTYPE_LONGLINK, tarfile.XGLTYPE}:
        return {}
    words, start = {}, 0
    while start < size:
        space = content.index(b" ", start, start + 20)
        end = start + int(content[start:space])
        if end <= space:
            raise DataError("a header is damaged")
        name, value = content[space + 1 : end].removesuffix(b"\n").split(b"=", 1)
        words[name.decode("utf-8", "surrogateescape")] = value.decode("utf-8", "surrogateescape")
        start = end
    return words


def _blocks(size: int) -> int:
    """Return how many bytes of a tar archive hold `size` bytes."""
    return -(-size // BLOCK) * BLOCK
