"""onnxruntime-web: three files of an npm package, which are not ours to keep in the repository."""

import base64
import hashlib
import shutil
import subprocess
import tarfile
import tempfile
from pathlib import Path

from recollect.errors import ExtraError, brief, one_line
from recollect.system.disk import cache_folder, replacing_folder
from recollect.system.progress import say

VERSION = "1.30.0"
PACKAGE = f"onnxruntime-web@{VERSION}"
FILES = ("ort.wasm.min.mjs", "ort-wasm-simd-threaded.mjs", "ort-wasm-simd-threaded.wasm")
_SHA512 = "q0y+JrrtukXSzsBWEMccVfqX25LRmosXHF+CaRJmg8pZClzcV7svNc4rKY3jL02Vb7QmRMDs1SigqR4CXAfKYQ=="
_SECONDS = 600


def runtime_files(given: Path | None = None) -> list[Path]:
    """Return the three files: from a folder, from the cache, or fetched by npm, whose package is checked."""
    if given is not None:
        return _found(given / "dist" if (given / "dist").is_dir() else given)
    folder = cache_folder() / PACKAGE
    if not all((folder / name).is_file() for name in FILES):
        _fetch(folder)
    return _found(folder)


def _found(folder: Path) -> list[Path]:
    for name in FILES:
        if not (folder / name).is_file():
            raise ExtraError(f"{folder} lacks {name}: name the folder of the npm package {PACKAGE}")
    return [folder / name for name in FILES]


def _fetch(folder: Path) -> None:
    npm = shutil.which("npm")
    if npm is None:
        raise ExtraError(
            f"a web page needs {PACKAGE}, and there is no npm here to fetch it: install npm, or unpack that "
            "package and name its folder with --ort"
        )
    say(f"fetching {PACKAGE}")
    with tempfile.TemporaryDirectory() as place:
        try:
            # What npm keeps for itself goes with the folder: nothing is left at home.
            command = [npm, "pack", "--silent", "--cache", f"{place}/npm", PACKAGE]
            done = subprocess.run(  # noqa: S603
                command, capture_output=True, text=True, check=False, timeout=_SECONDS, cwd=place
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise ExtraError(
                f"npm could not fetch {PACKAGE} ({brief(error)}): name a folder with --ort"
            ) from error
        archives = list(Path(place).glob("*.tgz"))
        if done.returncode or len(archives) != 1:
            reason = one_line((done.stderr.strip().splitlines() or ["no reason given"])[-1])
            raise ExtraError(
                f"npm could not fetch {PACKAGE} ({reason}): try again, or name a folder with --ort"
            )
        unpack(archives[0], folder)


def unpack(archive: Path, folder: Path) -> None:
    """Take the three files out of the package, which must be the one that we know."""
    if hashlib.sha512(archive.read_bytes()).digest() != base64.b64decode(_SHA512):
        raise ExtraError(
            f"what npm fetched is not {PACKAGE}: its digest differs. Look at npm's registry setting"
        )
    with tarfile.open(archive) as package, replacing_folder(folder) as part:
        for name in FILES:
            content = package.extractfile(f"package/dist/{name}")
            if content is None:
                raise ExtraError(f"{PACKAGE} lacks {name}")
            (part / name).write_bytes(content.read())
