"""Writing files so that a reader sees the old one or the new one, never half of one."""

import errno
import os
import re
import secrets
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout
from platformdirs import user_cache_path, user_data_path

from recollect.errors import StorageError

_STALE_SECONDS = 24 * 3600
_OWN_STREAM = re.compile(r"/dev/(std(out|err)|fd/\d+)|/proc/(self|\d+)/fd/\d+")
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
                "the file that was there is intact"
            ) from error
        raise StorageError(f"cannot write {path}: {error.strerror or error}") from error


@contextmanager
def replacing_file(path: Path) -> Iterator[Path]:
    """Give a temporary path beside `path`; when the block succeeds, it becomes `path`, on disk, at once.

    What is written to a device such as /dev/stdout goes there; it is not replaced.
    """
    with clear_write_errors(path):
        if _is_device(path):
            with tempfile.TemporaryDirectory() as folder:
                yield Path(folder, path.name)
                with Path(folder, path.name).open("rb") as file, path.open("ab") as device:
                    shutil.copyfileobj(file, device)
            return
        make_folder(path.parent)
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
        make_folder(path.parent)
        _remove_stale(path)
        part = _part(path)
        part.mkdir(mode=_mode(part))
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
    """Lock a folder for one writer, and remove what a killed one left; refuse if another holds it."""
    lock = FileLock(folder / ".lock")  # links are not followed, nothing is emptied
    with clear_write_errors(folder):
        make_folder(folder)
        if not _is_plain(folder / ".lock"):
            raise StorageError(f"{folder / '.lock'} is not a file that recollect wrote: remove it")
        try:
            lock.acquire(timeout=0)
        except Timeout as error:
            raise StorageError(f"another process is writing to {folder}: wait for it to end") from error
    try:
        for part in folder.glob(".*.part"):
            remove_file(part)
        yield
    finally:
        lock.release()


def _is_plain(path: Path) -> bool:
    """Say whether a path is a regular file, and no link to one, or nothing yet."""
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except FileNotFoundError:
        return True


def _is_device(path: Path) -> bool:
    """Say whether a path is a device to write to; refuse one that is neither that nor a file."""
    # Links are not followed: a folder from elsewhere may have one to a disk. Those of the system are meant.
    own = _OWN_STREAM.fullmatch(str(path)) is not None
    try:
        mode = (path.stat() if own else path.lstat()).st_mode
    except FileNotFoundError:
        return False
    if stat.S_ISREG(mode) or stat.S_ISLNK(mode):
        return own
    if not (stat.S_ISCHR(mode) and path.is_relative_to("/dev")) and not (own and stat.S_ISFIFO(mode)):
        raise StorageError(f"{path} is not a regular file, and is left as it is: choose another name")
    return True


def make_folder(folder: Path) -> None:
    """Make a folder and those around it; in the cache, which holds photographs, for their owner alone."""
    for each in reversed((folder, *folder.parents)):
        if not each.is_dir():
            each.mkdir(mode=_mode(each), exist_ok=True)


def _mode(folder: Path) -> int:
    return 0o700 if folder.is_relative_to(cache_folder()) else 0o777


def _remove_stale(path: Path) -> None:
    """Remove what killed writers of `path` left a day ago or earlier; a younger one may still be at work."""
    for part in path.parent.glob(f".{path.name}.*.part"):
        with suppress(FileNotFoundError):  # its writer has just finished
            if time.time() - part.stat().st_mtime > _STALE_SECONDS:
                shutil.rmtree(part, ignore_errors=True)


def require_regular(path: Path) -> None:
    """Raise an `OSError` unless a path is a regular file: opening a FIFO blocks, and a device never ends."""
    if not stat.S_ISREG(path.stat().st_mode):
        raise OSError(errno.EINVAL, "it is not a regular file")


def read_kept_bytes(path: Path, most: int = 1 << 26) -> bytes:
    """Read a file that we once wrote and anybody may have altered since.

    Raises an `OSError` for what is no regular file or too large.
    """
    require_regular(path)
    with path.open("rb") as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise OSError(errno.EFBIG, f"it is larger than {most >> 20} MiB")
    return content


def read_kept(path: Path) -> str:
    """Read such a file of text; also raises a `ValueError` for what is no text."""
    return read_kept_bytes(path).decode()


def write_text(path: Path, text: str) -> None:
    """Write a small text file, whole or not at all; bytes of a path that are no text are written escaped."""
    with replacing_file(path) as part:
        part.write_text(text, encoding="utf-8", errors="backslashreplace")


def remove_file(path: Path) -> None:
    """Remove a file, if it is there."""
    with clear_write_errors(path):
        path.unlink(missing_ok=True)


def cache_folder() -> Path:
    """Return where decoded pictures and features are kept: $RECOLLECT_CACHE, or the user's cache folder."""
    return Path(os.environ.get("RECOLLECT_CACHE") or user_cache_path("recollect", appauthor=False))


def data_folder() -> Path:
    """Return where the user's own data is kept: what was taught to models that come with the package."""
    return user_data_path("recollect", appauthor=False)


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
