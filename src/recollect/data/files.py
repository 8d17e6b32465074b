"""Files of a data set, in a folder or in a zip or tar archive that is read without unpacking it to disk."""

import io
import logging
import os
import re
import stat
import zipfile
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO, Any, BinaryIO

from recollect.data import limits
from recollect.data.imageset import Item, digest
from recollect.data.tars import Unpacked, tar_opener
from recollect.errors import DataError, PictureError, brief, listed, one_line
from recollect.images import HEIC_REMEDY, HEIC_SUFFIXES, UNREAD_SUFFIXES, has_picture_suffix

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Entry:
    """A file of a data set: its size, a mark that changes with it, and its place in an archive."""

    size: int
    mark: tuple[int, ...]
    place: Any = None


class Files(ABC):
    """Files by their relative names, such as `train/apple/0001.png`, unless they are hidden or very deep.

    They come sorted, from a tar archive in its own order. They may be read from several threads.
    """

    path: Path
    names: tuple[str, ...]  # pictures
    others: tuple[str, ...]
    folders: tuple[str, ...]  # those that hold any of them, and empty ones
    forward_only = False  # whether reading out of order is too slow to be of use

    def __init__(self, path: Path, entries: Mapping[str, Entry], folders: Iterable[str] = ()) -> None:
        self.path = path
        self._entries = entries
        self.names = tuple(name for name in entries if has_picture_suffix(name))
        self.others = tuple(name for name in entries if not has_picture_suffix(name))
        around = {parent for name in entries for parent in map(str, PurePosixPath(name).parents)}
        self.folders = tuple(sorted({*around, *folders} - {"."}))

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
        if self.size(name) > limits.MAX_FILE_BYTES:
            raise PictureError(f"{self.path}/{name} would unpack to {self.size(name) >> 20} MiB: refused")
        try:
            content = self._content(name)
        except Exception as error:
            raise PictureError(f"cannot read {self.path}/{name}: {brief(error)}") from error
        if len(content) != self.size(name):
            raise PictureError(f"cannot read {self.path}/{name}: it is cut short, or has just changed")
        return content

    def open(self, name: str) -> BinaryIO:
        """Open a file of any size as a stream, to be closed; what cannot be read is a `DataError`."""
        place = f"{self.path}/{name}"
        with _clear_errors(place):
            return io.BufferedReader(_Stream(self._stream(name), place, self.size(name)), 1 << 18)

    def credible_size(self, name: str) -> int:
        """Return how many bytes a file has; one that claims far more than it can have is a `DataError`."""
        return self.size(name)

    def _content(self, name: str) -> bytes:
        with self._stream(name) as stream:
            return stream.read(self.size(name) + 1)

    @abstractmethod
    def _stream(self, name: str) -> IO[bytes]:
        """Open one file; the stream may run on past its end, and raise any error."""


class FolderFiles(Files):
    """Files below a folder, at most `depth` folders deep."""

    def __init__(self, path: Path, depth: int = limits.MAX_DEPTH) -> None:
        entries, folders = {}, []
        for folder, names in _walk(path, depth):
            inside = folder.relative_to(path)
            folders.append(inside.as_posix())
            for name in names:
                with suppress(FileNotFoundError):  # a broken link
                    status = (folder / name).stat()
                    if stat.S_ISREG(status.st_mode):
                        mark = (status.st_size, status.st_mtime_ns)
                        entries[(inside / name).as_posix()] = Entry(status.st_size, mark)
        in_order = sorted(entries, key=lambda name: PurePosixPath(name).parts)
        super().__init__(path, {name: entries[name] for name in in_order}, folders)

    def _stream(self, name: str) -> IO[bytes]:
        return (self.path / name).open("rb")


class ZipFiles(Files):
    """Files in a zip archive."""

    def __init__(self, path: Path) -> None:
        found: dict[str, Entry] = {}
        folders = []
        try:
            self._archive = zipfile.ZipFile(path)
            limits.require_few(len(self._archive.infolist()))
            for info in self._archive.infolist():
                kind = stat.S_IFMT(info.external_attr >> 16)
                if info.is_dir():
                    folders.append(PurePosixPath(info.filename).as_posix())
                    continue
                entry = Entry(info.file_size, (info.CRC, info.file_size), info)
                _add(found, info.filename, entry, kind in {0, stat.S_IFREG})
        except DataError as error:
            raise DataError(f"{path}: {error}") from None
        # A damaged directory of the archive raises BadZipFile, and also ValueError, NotImplementedError, …
        except Exception as error:
            raise DataError(
                f"{path} is neither a zip nor a tar archive, or it is damaged: {brief(error)}"
            ) from error
        super().__init__(path, dict(sorted(found.items())), folders)

    def credible_size(self, name: str) -> int:
        """Return the size of a file that is not packed tighter than pictures are."""
        with _clear_errors(f"{self.path}/{name}"):
            self._check(name)
        return self.size(name)

    def _check(self, name: str) -> None:
        info = self._entries[name].place
        if info.file_size > limits.most_bytes(info.compress_size):
            raise limits.too_much(info.compress_size)

    def _stream(self, name: str) -> IO[bytes]:
        self._check(name)
        return self._archive.open(self._entries[name].place)


class TarFiles(Files):
    """Files in a tar archive, compressed or not."""

    def __init__(self, path: Path) -> None:
        found: dict[str, Entry] = {}
        folders = []
        status = path.stat()
        with _clear_errors(str(path)), closing(Unpacked(path)) as archive:
            for info in archive.members():
                if info.isdir():
                    folders.append(PurePosixPath(info.name).as_posix())
                    continue
                mark = (info.size, int(info.mtime), status.st_size, status.st_mtime_ns)
                regular = info.isreg() and not info.issparse()
                _add(found, info.name, Entry(info.size, mark, info.offset_data), regular)
            self.forward_only = archive.compressed
        super().__init__(path, found, folders)
        self._archive = Unpacked(path)

    def _content(self, name: str) -> bytes:
        return self._archive.content(self._entries[name].place, self.size(name))

    def _stream(self, name: str) -> IO[bytes]:
        return Unpacked(self.path).part(self._entries[name].place)


class _Stream(io.RawIOBase):
    """The next `size` bytes of a file, whose errors of all kinds become a `DataError` that names it."""

    def __init__(self, stream: IO[bytes], place: str, size: int) -> None:
        self._inner, self._place, self._left = stream, place, size

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:  # noqa: ANN401 -- any writable buffer
        with _clear_errors(self._place):
            content = self._inner.read(min(len(buffer), self._left))
        self._left -= len(content)
        buffer[: len(content)] = content
        return len(content)

    def close(self) -> None:
        self._inner.close()
        super().close()


def open_files(path: Path, expected: str | None = None, depth: int = limits.MAX_DEPTH) -> Files:
    """Open a folder, to a certain depth, or a zip or tar archive.

    Where pictures must be there, `expected` says which, for the error when there are none.
    """
    try:
        if path.is_dir():
            files: Files = FolderFiles(path, depth)
        elif path.is_file():
            files = TarFiles(path) if tar_opener(path) else ZipFiles(path)
        else:
            raise DataError(f"there is no folder or archive at {path}")
    except OSError as error:
        raise DataError(f"cannot look at {error.filename or path}: {error.strerror or error}") from error
    if expected is not None and not files.names:
        raise DataError(f"{path} holds no pictures: {'; '.join([expected, *ignored(files)])}")
    return files


def ignored(files: Files) -> list[str]:
    """Describe the pictures in formats that are not read, if there are any: in one line, or in none."""
    passed = [name for name in files.others if PurePosixPath(name).suffix.lower() in UNREAD_SUFFIXES]
    if not passed:
        return []
    counts = Counter(PurePosixPath(name).suffix.lower() for name in passed)
    kinds = ", ".join(f"{count} {suffix}" for suffix, count in counts.most_common(5))
    heic = f", or read HEIC with {HEIC_REMEDY}" if counts.keys() & HEIC_SUFFIXES else ""
    return [f"ignored {kinds} ({passed[0]}, for example): convert to JPEG or PNG{heic}"]


def _walk(root: Path, depth: int) -> Iterator[tuple[Path, list[str]]]:
    """Yield each folder below `root`, and itself, with the names in it that are not folders.

    Links are followed after everything else, and a folder that was visited is not visited again: links may
    lead in circles.
    """
    visited: set[tuple[int, int]] = set()
    again: list[str] = []
    waiting = deque([root])
    while waiting:
        top = waiting.popleft()
        for name, folders, names in os.walk(top, onerror=_raise):
            folder, status = Path(name), Path(name).stat()
            if (status.st_dev, status.st_ino) in visited:
                folders.clear()
                if folder == top:
                    again.append(folder.relative_to(root).as_posix())
                continue
            visited.add((status.st_dev, status.st_ino))
            inside = len(folder.relative_to(root).parts)
            folders[:] = [] if inside >= depth else sorted(name for name in folders if not _is_hidden(name))
            waiting += [folder / name for name in folders if (folder / name).is_symlink()]
            yield folder, [name for name in names if not _is_hidden(name)]
    if again:
        some = one_line(listed(again))
        log.warning("%s: left out %s, links to folders read already", one_line(root), some)


def _raise(error: OSError) -> None:
    raise error


def _add(found: dict[str, Entry], name: str, entry: Entry, regular: bool) -> None:
    """Add a file of an archive, unless it is hidden or too deep; its name must not lead out of it."""
    if re.match(r"[/\\]|[A-Za-z]:", name) or ".." in re.split(r"[/\\]", name):
        raise DataError(f"the name {name!r} leads out of the archive: refused")
    plain = PurePosixPath(name).as_posix()
    parts = PurePosixPath(name).parts
    if len(parts) > limits.MAX_DEPTH + 1 or any(_is_hidden(part) for part in parts):
        return
    if not regular:
        raise DataError(f"{plain} is a link or a device: pack the files themselves")
    if plain in found:
        raise DataError(f"{plain} is in the archive twice")
    found[plain] = entry


@contextmanager
def _clear_errors(place: str) -> Iterator[None]:
    """Turn whatever a damaged file raises (zlib.error, LZMAError, EOFError, …) into a `DataError`."""
    try:
        yield
    except DataError as error:
        raise DataError(f"{place}: {error}") from error
    except Exception as error:
        system = isinstance(error, OSError) and error.errno is not None
        why = "" if system else ", it is damaged or cut short"
        raise DataError(f"cannot read {place}{why}: {brief(error)}") from error


def _is_hidden(part: str) -> bool:
    return part.startswith((".", "__MACOSX"))
