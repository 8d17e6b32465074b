"""Folders and archives of small pictures, for tests of everything that reads them."""

import contextlib
import resource
import struct
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
from PIL import Image

SIZE = 16


def pixels_of(seed: int, size: int = SIZE) -> np.ndarray:
    """Return noise that is the seed's own, (size, size, 3)."""
    return np.random.default_rng(seed).integers(0, 256, (size, size, 3), dtype=np.uint8)


def write_picture(path: Path, seed: int = 0, size: int = SIZE) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels_of(seed, size)).save(path)
    return path


def write_folder(root: Path, counts: Mapping[str, int], size: int = SIZE) -> Path:
    """Write `counts[category]` pictures in a sub-folder per category."""
    seed = 0
    for category, count in counts.items():
        for number in range(count):
            write_picture(root / category / f"{number:03}.png", seed, size)
            seed += 1
    return root


def write_zip(path: Path, folder: Path, top: str = "", method: int = zipfile.ZIP_STORED) -> Path:
    """Pack every file below `folder`, with `top` before its name."""
    with zipfile.ZipFile(path, "w", method) as archive:
        for file in sorted(folder.rglob("*")):
            if file.is_file():
                archive.write(file, f"{top}{file.relative_to(folder).as_posix()}")
    return path


def tree(folder: Path) -> dict[str, bytes]:
    """Return every file below a folder with its content."""
    return {
        file.relative_to(folder).as_posix(): file.read_bytes()
        for file in sorted(folder.rglob("*"))
        if file.is_file()
    }


@contextlib.contextmanager
def disk_room(size: int) -> Iterator[None]:
    """Let no file grow beyond `size` bytes: the system then fails writes as it does on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@contextlib.contextmanager
def memory_room(size: int) -> Iterator[None]:
    """Fail if this process grows by `size` bytes or more, whatever it needed before."""
    peak = Path("/proc/self/clear_refs")
    if peak.exists():
        peak.write_text("5", encoding="ascii")  # forget the most that it ever needed
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    yield
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < size >> 10  # in KiB


def png_of_size(width: int, height: int) -> bytes:
    """Return a PNG file that claims a size."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(b""))
        + chunk(b"IEND", b"")
    )
