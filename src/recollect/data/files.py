"""Files of a data set, in a folder or in a zip archive that is read without unpacking."""

import os
import zipfile
from abc import ABC, abstractmethod
from collections.abc import Iterator
from functools import partial
from pathlib import Path, PurePosixPath

from recollect.data.imageset import Item, digest
from recollect.errors import DataError, PictureError
from recollect.images import PICTURE_SUFFIXES

MAX_DEPTH = 4
MAX_FILE_BYTES = 256 << 20


class Files(ABC):
    """Picture files by their relative names, such as `train/apple/0001.png`, sorted."""

    path: Path
    names: tuple[str, ...]
    others: tuple[str, ...]  # files that are no pictures
    key: str  # changes when a file is added, removed or altered

    @abstractmethod
    def read(self, name: str) -> bytes:
        """Return the bytes of one file."""

    def item(self, category: str, name: str) -> Item:
        """Return one file as a picture to be decoded."""
        return Item(category, name, f"{self.path}/{name}", partial(self.read, name))


class FolderFiles(Files):
    """Picture files below a folder; hidden ones are passed over."""

    def __init__(self, path: Path) -> None:
        self.path = path
        files = sorted(file.relative_to(path) for file in _walk(path) if file.is_file())
        found = [(file.as_posix(), (path / file).stat()) for file in files if _is_picture(file)]
        self.names = tuple(name for name, _ in found)
        self.others = tuple(file.as_posix() for file in files if not _is_picture(file))
        self.key = digest([(name, stat.st_size, stat.st_mtime_ns) for name, stat in found])

    def read(self, name: str) -> bytes:
        """Return the bytes of one file."""
        try:
            return (self.path / name).read_bytes()
        except OSError as error:
            raise PictureError(f"cannot read {self.path / name}: {error.strerror or error}") from error


class ZipFiles(Files):
    """Picture files in a zip archive."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._archive = zipfile.ZipFile(path)
        # A damaged directory of the archive raises BadZipFile, and also ValueError, NotImplementedError, …
        except Exception as error:
            raise DataError(f"{path} is not a zip archive, or it is damaged: {error}") from error
        entries = {
            entry.filename: entry
            for entry in self._archive.infolist()
            if not entry.is_dir() and _is_picture(PurePosixPath(entry.filename))
        }
        self.names = tuple(sorted(entries))
        self.others = tuple(name for name in self._archive.namelist() if name not in entries)
        self.key = digest([(name, entries[name].CRC, entries[name].file_size) for name in self.names])

    def read(self, name: str) -> bytes:
        """Return the bytes of one file."""
        entry = self._archive.getinfo(name)
        if entry.file_size > MAX_FILE_BYTES:
            raise PictureError(f"{self.path}/{name} would unpack to {entry.file_size >> 20} MiB: refused")
        try:
            with self._archive.open(entry) as file:
                return file.read(entry.file_size)  # no more, whatever the entry really unpacks to
        # zlib.error, LZMAError, struct.error, BadZipFile, RuntimeError for an encrypted entry, and more.
        except Exception as error:
            raise PictureError(f"cannot read {name} in {self.path}: {error}") from error


def _walk(root: Path) -> Iterator[Path]:
    """Yield the files below a folder, through links too, but not so deep that a loop of them matters."""
    for folder, folders, names in os.walk(root, followlinks=True):
        if len(Path(folder).relative_to(root).parts) >= MAX_DEPTH:
            folders.clear()
        for name in names:
            yield Path(folder, name)


def open_files(path: Path) -> Files:
    """Open a folder or a zip archive."""
    try:
        if path.is_dir():
            files: Files = FolderFiles(path)
        elif path.is_file():
            files = ZipFiles(path)
        else:
            raise DataError(f"there is no folder or archive at {path}")
    except OSError as error:
        raise DataError(f"cannot look at {error.filename or path}: {error.strerror or error}") from error
    if not files.names:
        raise DataError(
            f"{path} holds no pictures: one sub-folder per category with {'/'.join(_some_suffixes())} files "
            "is expected"
        )
    return files


def _some_suffixes() -> list[str]:
    return sorted({"jpg", "png", "webp"} & {suffix.lstrip(".") for suffix in PICTURE_SUFFIXES})


def _is_picture(name: Path | PurePosixPath) -> bool:
    hidden = any(part.startswith((".", "__MACOSX")) for part in name.parts)
    return not hidden and name.suffix.lower() in PICTURE_SUFFIXES
