"""Writing files so that a reader sees the old one or the new one, never half of one."""

import errno
import os
import secrets
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from recollect.errors import StorageError

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None  # type: ignore[assignment]

_STALE_SECONDS = 24 * 3600
_NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


@contextmanager
def clear_write_errors(path: Path) -> Iterator[None]:
    """Turn the system's write errors for `path` into one that says what to do."""
    try:
        yield
    except OSError as error:
        if error.errno in _NO_ROOM:
            raise StorageError(
                f"no room on the disk to write {path}: free some space or choose another place; "
                "what stood there before is intact"
            ) from error
        raise StorageError(f"cannot write {path}: {error.strerror or error}") from error


@contextmanager
def replacing_file(path: Path) -> Iterator[Path]:
    """Give a temporary path beside `path`; when the block succeeds, it becomes `path`, on disk, at once."""
    with clear_write_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        part = _part(path)
        part.touch(exist_ok=False)
        try:
            yield part
            with part.open("rb+") as file:
                os.fsync(file.fileno())
            part.replace(path)
            _sync_folder(path.parent)
        finally:
            part.unlink(missing_ok=True)


@contextmanager
def replacing_folder(path: Path) -> Iterator[Path]:
    """Give a temporary folder beside `path`; when the block succeeds, it becomes `path`.

    Where another writer was faster, its folder stays and ours is dropped.
    """
    with clear_write_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        _remove_stale(path)
        part = _part(path)
        part.mkdir()
        try:
            yield part
            try:
                part.rename(path)
            except OSError as error:
                if error.errno not in {errno.ENOTEMPTY, errno.EEXIST}:
                    raise
            _sync_folder(path.parent)
        finally:
            shutil.rmtree(part, ignore_errors=True)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold a folder for one writer, and remove what a killed one left; where another has it, say so."""
    with clear_write_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        file = (folder / ".lock").open("w")
    with file:
        if fcntl is not None:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise StorageError(f"another process is writing to {folder}: wait for it to end") from error
        for part in folder.glob(".*.part"):
            part.unlink(missing_ok=True)
        yield


def _remove_stale(path: Path) -> None:
    """Remove what killed writers of `path` left a day ago or earlier; a younger one may still be at work."""
    for part in path.parent.glob(f".{path.name}.*.part"):
        if time.time() - part.stat().st_mtime > _STALE_SECONDS:
            shutil.rmtree(part, ignore_errors=True)


def write_text(path: Path, text: str) -> None:
    """Write a small text file, whole or not at all."""
    with replacing_file(path) as part:
        part.write_text(text, encoding="utf-8")


def cache_folder() -> Path:
    """Return where decoded pictures and features are kept: $RECOLLECT_CACHE, or the user's cache folder."""
    chosen = os.environ.get("RECOLLECT_CACHE")
    if chosen:
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "recollect"


def data_folder() -> Path:
    """Return where a user's own data is kept: what models that come with the package were taught."""
    return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "recollect"


def _part(path: Path) -> Path:
    """Return a name beside `path` that nobody else has."""
    return path.parent / f".{path.name}.{secrets.token_hex(4)}.part"


def _sync_folder(folder: Path) -> None:
    if os.name == "nt":  # a folder cannot be opened there
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
