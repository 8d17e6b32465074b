"""C code of our own, compiled for this processor when it is first needed, where there is a compiler."""

import ctypes
import hashlib
import logging
import os
import platform
import shutil
import subprocess
from functools import cache
from pathlib import Path

from recollect.errors import StorageError
from recollect.system.disk import cache_folder, replacing_file

log = logging.getLogger(__name__)
OFF = "RECOLLECT_COMPILE"  # set to 0, nothing is compiled and torch does everything
# OpenMP's library is that of torch, which is loaded first and has the same name: both share their threads.
_FLAGS = ("-fopenmp", "-O3", "-std=gnu11", "-fno-math-errno", "-fPIC", "-shared", "-w")
_SECONDS = 120  # that a compiler may take


@cache
def library(source: Path) -> ctypes.CDLL | None:
    """Return the functions of a C file, or `None` where they cannot be had; the log then says why."""
    if os.environ.get(OFF) == "0" or os.name != "posix":
        return None
    compiler = shutil.which(os.environ.get("CC") or "cc")
    if compiler is None:
        log.info("no C compiler is installed: training on the CPU takes about twice as long")
        return None
    try:
        return ctypes.CDLL(str(_compiled(compiler, source)))
    except (OSError, StorageError, subprocess.SubprocessError) as error:
        log.warning("%s could not be used, so that training on the CPU takes longer: %s", source.name, error)
        return None


def _compiled(compiler: str, source: Path) -> Path:
    """Return the library, from an earlier time or compiled now.

    It is kept where nobody else can write, or it would be a way to let us execute anything.
    """
    native = "-mcpu=native" if platform.machine() in {"arm64", "aarch64"} else "-march=native"
    command = [compiler, *_FLAGS, native]
    # What a compiler defines for this processor names both: a folder may be shared by several machines.
    target = _run([*command, "-dM", "-E", "-x", "c", os.devnull])
    content = source.read_bytes()
    name = hashlib.sha256(b"\0".join([target, " ".join(command).encode(), content])).hexdigest()[:32]
    folder = cache_folder() / "compiled"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = folder / f"{source.stem}-{name}.so"
    if not path.exists():
        with replacing_file(path) as part:
            _run([*command, "-o", str(part), str(source)])
            part.chmod(0o700)
    for place in (folder, path):
        found = place.lstat()
        if found.st_uid != os.geteuid() or found.st_mode & 0o022:
            raise StorageError(f"{place} belongs to somebody else, or others may write to it: remove it")
    return path


def _run(command: list[str]) -> bytes:
    return subprocess.run(command, check=True, capture_output=True, timeout=_SECONDS).stdout  # noqa: S603
