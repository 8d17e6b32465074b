"""`recollect export`: a model for programs without torch."""

import os
import shlex
from collections.abc import Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from recollect.commands.opening import Target
from recollect.commands.printing import require_writable
from recollect.errors import ExtraError, ModelError
from recollect.images import Picture
from recollect.system.sessions import REMEDY

if TYPE_CHECKING:
    from recollect.backends.torch import TorchBackend

_MOST = 500  # pictures that both backends see
_BUILT_IN = 64
BUILT_IN = "built-in characters"


def export_onnx(
    target: Target, out: Path, folder: Path | None = None, *, int8: bool = False
) -> dict[str, Any]:
    """Export a model with its taught categories: the result of `recollect export --onnx`.

    `folder` with the size of each of its `files` in bytes; whether it is `int8`; the `pictures` on which it
    was compared with torch, and what was found: how many pictures, the largest difference of `scores`, the
    shares of them with the same `top5` and `first` answers, the least `cosine` between features, and between
    those of pictures that the graph resized (`whole_cosine`), and the `milliseconds` of one picture.
    """
    _require(out)
    pictures = compared_on(folder)
    from recollect.export.folder import export_onnx

    with replace(target, backend="torch").load() as recognizer:
        backend = cast("TorchBackend", recognizer.backend)
        checked = export_onnx(backend, recognizer, out, pictures, int8=int8)
    return {
        "model": target.name,
        "folder": str(out),
        "files": {path.name: path.stat().st_size for path in sorted(out.iterdir())},
        "int8": int8,
        "pictures": str(folder) if folder else BUILT_IN,
        "checked": checked,
    }


def export_web(target: Target, out: Path, runtime: Path | None = None) -> dict[str, Any]:
    """Export a page that needs no service: the result of `recollect export --web`.

    `folder` with the size of each of its `files` in bytes.
    """
    _require(out)
    from recollect.export.web import export_web

    with replace(target, backend="torch").load() as recognizer:
        files = export_web(cast("TorchBackend", recognizer.backend), recognizer, out, runtime)
    return {"model": target.name, "folder": str(out), "files": files}


def web_text(result: dict[str, Any]) -> str:
    """Return what `export --web` prints."""
    size = sum(result["files"].values()) / 1e6
    return (
        f"{result['folder']}: {len(result['files'])} files, {size:.1f} MB. Put it on any web server, or try: "
        f"python -m http.server --bind 127.0.0.1 --directory {shlex.quote(result['folder'])}"
    )


def _require(out: Path) -> None:
    """Refuse to export without what it needs, or over something."""
    for package in ("onnx", "onnxscript", "onnxruntime"):
        if find_spec(package) is None:
            raise ExtraError(f"to export needs {package}: {REMEDY}")
    if os.path.lexists(out):
        raise ModelError(f"{out} exists already: choose another name")
    require_writable(out, folder=True)


def compared_on(folder: Path | None) -> Sequence[Picture]:
    """Return pictures of a folder and its sub-folders, evenly chosen, or built-in ones."""
    if folder is None:
        from recollect.data.glyphs import BASE, render

        return [picture for name in list(BASE)[:_BUILT_IN] for picture in render(name, 1)]
    from recollect.data.folder import find_items, find_pictures

    found: Sequence[Any] = (
        find_pictures(folder, recursive=True) if folder.is_dir() else find_items(folder, 1)[0]
    )
    return [found[len(found) * place // _MOST] for place in range(_MOST)] if len(found) > _MOST else found


def export_text(result: dict[str, Any]) -> str:
    """Return what `export` prints: how much was written, and how it compares with torch."""
    checked, times = result["checked"], result["checked"]["milliseconds"]
    where = "" if result["pictures"] == BUILT_IN else f" from {result['pictures']}"
    kind = "built-in pictures" if result["pictures"] == BUILT_IN else "pictures"
    lines = [
        _size(result["folder"], result["files"]),
        _comparison(checked, f"{checked['pictures']} {kind}{where}"),
        f"One picture takes {times['onnx']:.1f} ms, with torch {times['torch']:.1f} ms.",
    ]
    if result["int8"] and result["pictures"] == BUILT_IN:
        lines.append("Note: calibrated on built-in characters. Give --pictures with photographs like yours.")
    lines.append(f"Use it: recollect predict {shlex.quote(result['folder'])} PICTURE…")
    return "\n".join(lines)


def _size(folder: str, files: dict[str, int]) -> str:
    whole, extractor = sum(files.values()) / 1e6, files["extractor.onnx"] / 1e6
    return f"{folder}: {len(files)} files, {whole:.1f} MB, of which extractor.onnx has {extractor:.1f} MB."


def _comparison(checked: dict[str, Any], pictures: str) -> str:
    return (
        f"Compared with torch on {pictures}: scores differ by at most {checked['scores']:.1g}; "
        f"{100 * checked['top5']:.1f} % have the same five best answers, {100 * checked['first']:.1f} % the "
        f"same best one; features have a cosine of at least {checked['cosine']:.4f}."
    )
