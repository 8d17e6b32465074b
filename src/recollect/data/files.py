"""Files of a data set, in a folder or in a zip or tar archive that is read without unpacking it to disk."""

import bz2
import gzip
import io
import lzma
import os
import re
import stat
import tarfile
import threading
import zipfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO, Any, BinaryIO, Generic, Self, TypeVar, cast

from recollect.data.imageset import Item, digest
from recollect.errors import DataError, PictureError
from recollect.images import PICTURE_SUFFIXES

MAX_DEPTH = 4
MAX_FILE_BYTES = 256 << 20  # of a file that is read whole
MAX_HEADER_BYTES = 1 << 20  # of a long name or the like in a tar archive
# What is compressed may unpack to this much in any case, and to so many times its own size.
ANY_BYTES = 64 << 20
MAX_RATIO = 100
BEFORE = 64  # files of a compressed tar archive that are read again with one that was passed over
AHEAD_BYTES = 32 << 20  # kept of files that were passed over in a compressed tar archive
BLOCK = 512  # of a tar archive

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Entry:
    """A file of a data set: its size, what else changes when it does, and where it lies in an archive."""

    size: int
    mark: tuple[int, ...]
    place: Any = None


class Files(ABC):
    """Files by their relative names, such as `train/apple/0001.png`; hidden ones are passed over.

    They come sorted, from a tar archive in its own order: read in that order, each is quickly found. They
    may be read from several threads, and in another process after a fork or from a pickle.
    """

    path: Path
    names: tuple[str, ...]  # pictures
    others: tuple[str, ...]
    forward_only = False  # whether reading out of order is slow beyond use

    def __init__(self, path: Path, entries: Mapping[str, Entry]) -> None:
        self.path = path
        self._entries = entries
        self.names = tuple(name for name in entries if _is_picture(name))
        self.others = tuple(name for name in entries if not _is_picture(name))

    def stamp(self, names: Iterable[str]) -> str:
        """Return a digest that changes when one of these files does."""
        return digest([(name, *self._entries[name].mark) for name in sorted(names)])

    def size(self, name: str) -> int:
        """Return how many bytes a file has."""
        return self._entries[name].size

    def item(self, category: str, name: str) -> Item:
        """Return one file as a picture to be decoded."""
        return Item(category, name, f"{self.path}/{name}", partial(self.read, name), self.forward_only)

    def read(self, name: str) -> bytes:
        """Return the bytes of one file; what cannot be read is a `PictureError`."""
        if self.size(name) > MAX_FILE_BYTES:
            raise PictureError(f"{self.path}/{name} would unpack to {self.size(name) >> 20} MiB: refused")
        try:
            content = self._content(name)
        except Exception as error:
            raise PictureError(f"cannot read {self.path}/{name}: {_reason(error)}") from error
        if len(content) != self.size(name):
            raise PictureError(f"cannot read {self.path}/{name}: it is cut short, or has just changed")
        return content

    def open(self, name: str) -> BinaryIO:
        """Open a file of any size, to be read bit by bit and closed; what cannot be read is a `DataError`."""
        place = f"{self.path}/{name}"
        with _damage_told(place):
            return io.BufferedReader(_Told(self._stream(name), place), 1 << 18)

    def _content(self, name: str) -> bytes:
        with self._stream(name) as stream:
            return stream.read(self.size(name) + 1)

    @abstractmethod
    def _stream(self, name: str) -> IO[bytes]:
        """Open one file, with errors of any kind."""


class FolderFiles(Files):
    """Files below a folder."""

    def __init__(self, path: Path) -> None:
        entries = {}
        for file in sorted(file.relative_to(path) for file in _walk(path) if file.is_file()):
            status = (path / file).stat()
            entries[file.as_posix()] = Entry(status.st_size, (status.st_size, status.st_mtime_ns))
        super().__init__(path, entries)

    def _stream(self, name: str) -> IO[bytes]:
        return (self.path / name).open("rb")


class ZipFiles(Files):
    """Files in a zip archive."""

    def __init__(self, path: Path) -> None:
        self._archive = _Own(partial(zipfile.ZipFile, path))
        found: dict[str, Entry] = {}
        try:
            for info in self._archive().infolist():
                kind = stat.S_IFMT(info.external_attr >> 16)
                if not info.is_dir():
                    regular = kind in {0, stat.S_IFREG}
                    _add(
                        found, info.filename, Entry(info.file_size, (info.CRC, info.file_size), info), regular
                    )
        except DataError as error:
            raise DataError(f"{path}: {error}") from None
        # A damaged directory of the archive raises BadZipFile, and also ValueError, NotImplementedError, …
        except Exception as error:
            raise DataError(
                f"{path} is not a zip archive and no tar, or it is damaged: {_reason(error)}"
            ) from error
        super().__init__(path, dict(sorted(found.items())))

    def _stream(self, name: str) -> IO[bytes]:
        info: zipfile.ZipInfo = self._entries[name].place
        if info.file_size > _most(info.compress_size):
            raise DataError(_too_much(info.compress_size))
        return self._archive().open(info)


class TarFiles(Files):
    """Files in a tar archive, compressed or not."""

    def __init__(self, path: Path) -> None:
        found: dict[str, Entry] = {}
        status = path.stat()
        with _damage_told(str(path)), _Forward(path) as archive:
            for info in _members(archive):
                mark = (info.size, int(info.mtime), status.st_size, status.st_mtime_ns)
                regular = info.isreg() and info.type != tarfile.GNUTYPE_SPARSE
                _add(found, info.name, Entry(info.size, mark, archive.position), regular)
            archive.finish()
            self.forward_only = archive.compressed
        super().__init__(path, found)
        self._ahead = _Own(partial(_Ahead, path, found))

    def _content(self, name: str) -> bytes:
        return self._ahead().read(name) if self.forward_only else super()._content(name)

    def _stream(self, name: str) -> IO[bytes]:
        entry = self._entries[name]
        archive = _Forward(self.path)
        archive.skip(entry.place)
        return io.BufferedReader(_Part(archive, entry.size))


class _Own(Generic[T]):
    """Something opened, opened anew in another process, which must not move this one's position."""

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._made: dict[int, T] = {}
        self._locks = {os.getpid(): threading.Lock()}

    def __call__(self) -> T:
        process = os.getpid()
        with self._locks.setdefault(process, threading.Lock()):
            if process not in self._made:
                self._made = {process: self._make()}
            return self._made[process]

    def __reduce__(self) -> tuple[Any, ...]:
        return _Own, (self._make,)


class _Forward:
    """The bytes of a tar archive, unpacked as they are read forwards."""

    def __init__(self, path: Path) -> None:
        opener = _tar_opener(path)
        if opener is None:
            raise DataError("this is no tar archive any more")
        self._packed = path.stat().st_size
        self.compressed = opener is not Path.open
        self._most = _most(self._packed) if self.compressed else self._packed
        self._file = opener(path, "rb")
        self.position = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._file.close()

    def read(self, count: int) -> bytes:
        """Return exactly so many bytes."""
        self._check(self.position + count)
        content = self._file.read(count)
        self.position += len(content)
        if len(content) < count:
            raise EOFError("the archive is cut short")
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
            raise (
                DataError(_too_much(self._packed))
                if self.compressed
                else EOFError("the archive is cut short")
            )


class _Part(io.RawIOBase):
    """The next `size` bytes of a tar archive, which is closed with it."""

    def __init__(self, archive: _Forward, size: int) -> None:
        self._archive, self._left = archive, size

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:  # noqa: ANN401 -- any writable buffer
        content = self._archive.read(min(len(buffer), self._left, 1 << 20))
        self._left -= len(content)
        buffer[: len(content)] = content
        return len(content)

    def close(self) -> None:
        self._archive.close()
        super().close()


class _Told(io.RawIOBase):
    """A file whose errors of all kinds become a `DataError` that names it."""

    def __init__(self, stream: IO[bytes], place: str) -> None:
        self._inner, self._place = stream, place

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:  # noqa: ANN401 -- any writable buffer
        with _damage_told(self._place):
            return cast("io.BufferedReader", self._inner).readinto(buffer)

    def close(self) -> None:
        self._inner.close()
        super().close()


class _Ahead:
    """Files of a compressed tar archive, which can be read forwards only.

    Threads ask for them nearly in order: a file that is passed over is kept for a while.
    """

    def __init__(self, path: Path, entries: Mapping[str, Entry]) -> None:
        self._path, self._entries = path, entries
        self._order = list(entries)
        self._index = {name: index for index, name in enumerate(self._order)}
        self._archive: _Forward | None = None
        self._next = 0
        self._kept: dict[str, bytes] = {}
        self._bytes = 0
        self._lock = threading.Lock()

    def read(self, name: str) -> bytes:
        with self._lock:
            try:
                while name not in self._kept:
                    self._pass(name)
            except BaseException:
                self._archive = None
                raise
            content = self._kept.pop(name)
            self._bytes -= len(content)
            return content

    def _pass(self, name: str) -> None:
        """Keep the next file, or the one that is asked for where it lies behind."""
        if self._archive is None or self._next > self._index[name]:
            if self._archive is not None:
                self._archive.close()
            # Threads that begin together ask in any order: what lies just before may be asked for next.
            self._archive, self._next = _Forward(self._path), max(0, self._index[name] - BEFORE)
            self._kept, self._bytes = {}, 0
        passed = self._order[self._next]
        self._next += 1
        entry = self._entries[passed]
        if passed != name and entry.size > AHEAD_BYTES // 4:
            return
        self._archive.skip(entry.place)
        self._kept[passed] = self._archive.read(entry.size)
        self._bytes += entry.size
        while self._bytes > AHEAD_BYTES and len(self._kept) > 1:
            self._bytes -= len(self._kept.pop(next(iter(self._kept))))


def open_files(path: Path, *, pictures: bool = True) -> Files:
    """Open a folder, a zip or a tar archive; `pictures=False` for layouts that may hold none."""
    try:
        if path.is_dir():
            files: Files = FolderFiles(path)
        elif path.is_file():
            files = TarFiles(path) if _tar_opener(path) else ZipFiles(path)
        else:
            raise DataError(f"there is no folder or archive at {path}")
    except OSError as error:
        raise DataError(f"cannot look at {error.filename or path}: {error.strerror or error}") from error
    if pictures and not files.names:
        raise DataError(
            f"{path} holds no pictures: one sub-folder per category with {'/'.join(_some_suffixes())} files "
            "is expected"
        )
    return files


def _walk(root: Path) -> Iterator[Path]:
    """Yield the files below a folder, through links too, but not so deep that a loop of them matters."""
    for folder, folders, names in os.walk(root, onerror=_raise, followlinks=True):
        too_deep = len(Path(folder).relative_to(root).parts) >= MAX_DEPTH
        folders[:] = [] if too_deep else [name for name in folders if not _is_hidden(name)]
        yield from (Path(folder, name) for name in names if not _is_hidden(name))


def _raise(error: OSError) -> None:
    raise error


def _tar_opener(path: Path) -> Callable[[Path, Any], IO[bytes]] | None:
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


def _members(archive: _Forward) -> Iterator[tarfile.TarInfo]:
    """Yield what is in a tar archive, which then stands at its content.

    Python's own reader takes a damaged header for the end of the archive, and reads a long name of any
    length that the archive claims.
    """
    told: dict[str, str] = {}
    while any(block := archive.read(BLOCK)):
        info = tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
        if info.type in _TELLING:
            told |= _told(info.type, archive, info.size)
            continue
        info.name, info.size = told.get("path", info.name), int(told.get("size", info.size))
        if info.size < 0 or any(word.startswith("GNU.sparse") for word in told):
            raise DataError(f"{info.name} has a size or a form that is not read here")
        told = {}
        has_content = info.isreg() or info.type not in tarfile.SUPPORTED_TYPES
        after = archive.position + (_blocks(info.size) if has_content else 0)
        if not info.isdir():
            yield info
        archive.skip(after)


_TELLING = {
    tarfile.XHDTYPE,
    tarfile.SOLARIS_XHDTYPE,
    tarfile.XGLTYPE,
    tarfile.GNUTYPE_LONGNAME,
    tarfile.GNUTYPE_LONGLINK,
}


def _told(kind: bytes, archive: _Forward, size: int) -> dict[str, str]:
    """Read what is said beforehand about the next file: its long name, its size."""
    if not 0 <= size <= MAX_HEADER_BYTES:
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


def _add(found: dict[str, Entry], name: str, entry: Entry, regular: bool) -> None:
    """Take up a file of an archive unless it is hidden; its name must lead nowhere else."""
    if re.match(r"[/\\]|[A-Za-z]:", name) or ".." in re.split(r"[/\\]", name):
        raise DataError(f"the name {name!r} leads out of the archive: refused")
    plain = PurePosixPath(name).as_posix()
    if any(_is_hidden(part) for part in PurePosixPath(name).parts):
        return
    if not regular:
        raise DataError(f"{plain} is a link or a device: pack the files themselves")
    if plain in found:
        raise DataError(f"{plain} is in the archive twice")
    found[plain] = entry


@contextmanager
def _damage_told(place: str) -> Iterator[None]:
    """Turn whatever a damaged file raises (zlib.error, LZMAError, EOFError, …) into a `DataError`."""
    try:
        yield
    except DataError as error:
        raise DataError(f"{place}: {error}") from error
    except Exception as error:
        system = isinstance(error, OSError) and error.errno is not None
        why = "" if system else ", it is damaged or cut short"
        raise DataError(f"cannot read {place}{why}: {_reason(error)}") from error


def _reason(error: Exception) -> str:
    said = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return " ".join(str(said).split())


def _most(packed: int) -> int:
    return max(ANY_BYTES, MAX_RATIO * packed)


def _too_much(packed: int) -> str:
    return f"it would unpack from {packed} bytes to more than {_most(packed) >> 20} MiB: refused"


def _some_suffixes() -> list[str]:
    return sorted({"jpg", "png", "webp"} & {suffix.lstrip(".") for suffix in PICTURE_SUFFIXES})


def _is_hidden(part: str) -> bool:
    return part.startswith((".", "__MACOSX"))


def _is_picture(name: str) -> bool:
    return PurePosixPath(name).suffix.lower() in PICTURE_SUFFIXES
