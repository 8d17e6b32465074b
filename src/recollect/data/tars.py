"""Tar archives, compressed or not: an index of their files, and their bytes."""

import bz2
import gzip
import lzma
import tarfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, Self, cast

from recollect.data import limits
from recollect.errors import DataError


def tar_opener(path: Path) -> Callable[[Path, Any], IO[bytes]] | None:
    """Return what opens a tar archive by how it starts, `None` for a file that is none."""
    with path.open("rb") as file:
        start = file.read(tarfile.BLOCKSIZE)
    for magic, opener in ((b"\x1f\x8b", gzip.open), (b"BZh", bz2.open), (b"\xfd7zXZ\0", lzma.open)):
        if start.startswith(magic):
            return cast("Callable[[Path, Any], IO[bytes]]", opener)
    try:
        tarfile.TarInfo.frombuf(start, "utf-8", "surrogateescape")
    except (tarfile.HeaderError, ValueError):
        return None
    return cast("Callable[[Path, Any], IO[bytes]]", Path.open)


class Unpacked:
    """The bytes of a tar archive, unpacked as they are read, at most as many as its size makes credible.

    Going back in a compressed archive means starting over, so read its files in their order.
    """

    def __init__(self, path: Path) -> None:
        opener = tar_opener(path)
        if opener is None:
            raise DataError("this is no longer a tar archive")
        self._packed = path.stat().st_size
        self.compressed = opener is not Path.open
        self._file = opener(path, "rb")
        self._lock = threading.Lock()

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def read(self, count: int) -> bytes:
        """Return the next bytes, of a header; `count` comes from the archive."""
        if count > limits.MAX_HEADER_BYTES:
            raise DataError(f"a header of {count} bytes is refused")
        return self._file.read(count)

    def seek(self, position: int) -> None:
        """Go to a position."""
        if self.compressed and position > limits.most_bytes(self._packed):
            raise limits.too_much(self._packed)
        self._file.seek(position)

    def tell(self) -> int:
        """Return the position."""
        return self._file.tell()

    def content(self, start: int, size: int) -> bytes:
        """Return a file's content; threads may call it."""
        with self._lock:
            self.seek(start)
            return self._file.read(size)

    def part(self, start: int) -> IO[bytes]:
        """Return a stream that starts at a file's content; closing it closes the archive."""
        self.seek(start)
        return self._file

    def members(self) -> Iterator[tarfile.TarInfo]:
        """Yield what is in the archive; nothing may be missing up to its end."""
        archive = tarfile.TarFile(fileobj=cast("IO[bytes]", self), tarinfo=_Header, encoding="utf-8")
        for number, info in enumerate(iter(archive.next, None), 1):
            limits.require_few(number)
            yield info
            archive.members.clear()  # type: ignore[attr-defined]  # else it keeps them all
        while self.compressed and self._file.read(1 << 20):  # a checksum is at the end
            self.seek(self.tell())


class _Header(tarfile.TarInfo):
    """A header whose damage is an error; Python's own reader takes it for the end of the archive."""

    @classmethod
    def fromtarfile(cls, archive: tarfile.TarFile) -> Self:
        begin = archive.offset
        try:
            info = super().fromtarfile(archive)
        except tarfile.EOFHeaderError:  # type: ignore[attr-defined]
            raise
        except tarfile.HeaderError as error:
            if begin == 0 and cast("Unpacked", archive.fileobj).compressed:
                raise DataError(
                    "its compressed content is not a tar archive: unpack it, or pack the files as tar or zip"
                ) from error
            raise DataError(f"it is damaged or cut short: {error}") from error
        if info.size < 0:
            raise DataError(f"{info.name} has a negative size")
        return info
