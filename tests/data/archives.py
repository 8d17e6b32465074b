"""Archives of every kind that is read, for tests."""

import io
import tarfile
import zipfile
from collections.abc import Iterable
from pathlib import Path

from pictures import tree

KINDS = ("zip", "tar", "tar.gz", "tar.bz2", "tar.xz")


def pack(
    path: Path, kind: str, contents: Iterable[tuple[str, bytes]], form: int = tarfile.DEFAULT_FORMAT
) -> Path:
    """Write an archive of the kind with these names and contents, in this order."""
    if kind == "zip":
        with zipfile.ZipFile(path, "w") as archive:
            for name, content in contents:
                archive.writestr(name, content)
    else:
        mode = f"w:{kind.removeprefix('tar').removeprefix('.')}"
        with tarfile.open(path, mode, format=form) as archive:  # type: ignore[call-overload]
            for name, content in contents:
                info = tarfile.TarInfo(name)
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content))
    return path


def pack_folder(path: Path, kind: str, folder: Path, top: str = "") -> Path:
    """Pack every file below `folder`, with `top` before its name."""
    return pack(path, kind, [(f"{top}{name}", content) for name, content in tree(folder).items()])
