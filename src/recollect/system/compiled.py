"""C code of our own, compiled for this processor when it is first needed, if there is a compiler."""

import ctypes
import hashlib
import logging
import os
import platform
import shlex
import shutil
import stat
import subprocess
import tempfile
from pathlib import Path

from recollect.errors import StorageError
from recollect.system.disk import cache_folder, make_folder

log = logging.getLogger(__name__)
OFF = "RECOLLECT_COMPILE"  # set to 0, nothing is compiled and torch does everything
# Torch brings an OpenMP library of the same name, which is loaded already: both share their threads.
_FLAGS = ("-fopenmp", "-O3", "-std=gnu11", "-fno-math-errno", "-fPIC", "-shared")
_SECONDS = 120  # that a compiler may take
_libraries: dict[Path, ctypes.CDLL | None] = {}  # by source; `None` where it failed


def library(source: Path) -> ctypes.CDLL | None:
    """Return the functions of a C file, or `None` if it cannot be compiled or loaded; tries it once."""
    if source not in _libraries:
        _libraries[source] = _load(source)
    return _libraries[source]


def forget_failures() -> None:
    """Try again what could not be compiled, as when the disk was full."""
    for source in [source for source, found in _libraries.items() if found is None]:
        del _libraries[source]


def _load(source: Path) -> ctypes.CDLL | None:
    if os.environ.get(OFF) == "0" or os.name != "posix":
        return None
    try:
        named = shlex.split(os.environ.get("CC", ""))
        compiler = named or ["cc"]
        if shutil.which(compiler[0]) is None:
            level = logging.WARNING if named else logging.INFO
            log.log(level, "no C compiler is called '%s': training on the CPU takes longer", compiler[0])
            return None
        return ctypes.CDLL(str(_compiled(compiler, source)))
    except StorageError as error:
        log.warning("%s; until then training on the CPU takes about twice as long", error)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        said = (getattr(error, "stderr", b"") or b"").decode(errors="replace").strip().splitlines()
        log.info("%s could not be compiled: %s", source.name, said[-1] if said else error)
    return None


def _compiled(compiler: list[str], source: Path) -> Path:
    """Return the path of the library, compiling it if necessary.

    It is kept where nobody else can write; otherwise anyone could make us run their code. Its name has the
    digests of what it was compiled from and of its content, so that a damaged one is compiled again.
    """
    native = "-mcpu=native" if platform.machine() in {"arm64", "aarch64"} else "-march=native"
    command = [*compiler, *_FLAGS, native]
    # What a compiler defines for this processor names both: a folder may be shared by several machines.
    target = _run([*command, "-dM", "-E", "-x", "c", os.devnull])
    made_of = b"\0".join([target, *map(os.fsencode, command), source.read_bytes()])
    name = f"{source.stem}-{hashlib.sha256(made_of).hexdigest()[:32]}"
    folder = cache_folder() / "compiled"
    make_folder(folder)
    _require_ours(folder)
    for path in folder.glob(f"{name}-*.so"):
        if not path.is_symlink() and path.name == _name_by_content(name, path):
            _require_ours(path)
            return path
    with tempfile.TemporaryDirectory(dir=folder) as place:
        made = Path(place, "library")
        _run([*command, "-o", str(made), str(source)])
        made.chmod(0o700)
        return made.rename(folder / _name_by_content(name, made))


def _name_by_content(name: str, library_file: Path) -> str:
    return f"{name}-{hashlib.sha256(library_file.read_bytes()).hexdigest()[:32]}.so"


def _require_ours(path: Path) -> None:
    """Refuse a file or folder that others could have written, or whose place they could have taken."""
    found = path.lstat()
    if stat.S_ISLNK(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o022:
        raise StorageError(f"{path} could have been changed by others: remove it")
    for parent in path.resolve().parents:
        mode = parent.stat().st_mode
        if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
            raise StorageError(f"everyone may write to {parent}: set RECOLLECT_CACHE to another folder")


def _run(command: list[str]) -> bytes:
    return subprocess.run(command, check=True, capture_output=True, timeout=_SECONDS).stdout  # noqa: S603
