"""Which backend a recogniser computes with.

A model file has torch weights alone. An exported folder has these and ONNX graphs. There, "auto" takes
onnxruntime unless torch is loaded in this process already and was measured to be faster: to load torch takes
longer than thousands of predictions could win back. The measurement takes about a second, once for each
model, machine and pair of versions, and is remembered in the cache folder.
"""

import hashlib
import json
import logging
import platform
import sys
import time
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from recollect.backends import Backend, BackendName
from recollect.backends.exported import EXTRACTOR, find_export, read_export
from recollect.errors import ArgumentError, StorageError
from recollect.system.disk import cache_folder, read_kept, write_text
from recollect.system.machine import cores, find_device, usual_threads
from recollect.system.sessions import have_onnxruntime

_log = logging.getLogger(__name__)
_SECONDS = 0.3  # for each backend


def open_backend(
    model: str | Path, name: BackendName = "auto", device: str = "auto", extractor: str | None = None
) -> Backend:
    """Load a model with the backend called `name`."""
    if name not in {"auto", "torch", "onnx"}:
        raise ArgumentError(f"backend '{name}': choose 'auto', 'torch' or 'onnx'")
    if name == "onnx":
        return _onnx(model, device)
    folder = None if name == "torch" or device not in {"auto", "cpu"} or extractor else find_export(model)
    if folder is None or not have_onnxruntime():
        return _torch(model, device, extractor)
    if sys.modules.get("torch") is None or read_export(folder).int8:  # not now in 8 bits, now in 32
        return _onnx(model, device)
    return _faster(folder, device)


def measured(folder: Path, device: str = "auto") -> dict[str, float]:
    """Return the milliseconds that each backend takes for one picture, measured once on this machine."""
    place = str(find_device(device))
    path = _place(folder, place)
    try:
        words = json.loads(read_kept(path))
        found = {name: float(words[name]) for name in ("torch", "onnx")}
    except (OSError, ValueError, LookupError, TypeError):  # not there, or damaged: it can be measured again
        found = compare(_torch(folder, device, None), _onnx(folder, device))
        remember(folder, found, place)
    return found


def remember(folder: Path, found: dict[str, float], device: str) -> None:
    """Keep what was measured, with torch on this device."""
    try:
        write_text(_place(folder, device), json.dumps(found))
    except StorageError as error:
        _log.warning("which backend is faster is not remembered: %s", error)


def compare(torch: Backend, onnx: Backend) -> dict[str, float]:
    """Return the milliseconds that each backend takes for one picture: the median of alternating runs."""
    size = torch.header.spec.preprocessing.size
    picture = np.random.default_rng(0).integers(0, 256, (1, size, size, 3), np.uint8)
    backends = {"torch": torch, "onnx": onnx}
    for backend in backends.values():
        backend.embed(picture)  # the first pass is slow
    times: dict[str, list[float]] = {name: [] for name in backends}
    end = time.monotonic() + _SECONDS * len(backends)
    while time.monotonic() < end:
        for name, backend in backends.items():
            began = time.perf_counter()
            backend.embed(picture)
            times[name].append(time.perf_counter() - began)
    return {name: round(1000 * float(np.median(some)), 3) for name, some in times.items()}


def _faster(folder: Path, device: str) -> Backend:
    times = measured(folder, device)
    return _onnx(folder, device) if times["onnx"] <= times["torch"] else _torch(folder, device, None)


def _place(folder: Path, device: str) -> Path:
    files = read_export(folder).files
    words: list[Any] = [
        files[EXTRACTOR],
        device,
        usual_threads(),
        cores(),
        platform.machine(),
        platform.node(),
    ]
    words += [import_module(name).__version__ for name in ("torch", "onnxruntime")]
    key = hashlib.sha256(json.dumps(words).encode()).hexdigest()[:32]
    return cache_folder() / "backends" / f"{key}.json"


def _torch(model: str | Path, device: str, extractor: str | None) -> Backend:
    from recollect.backends.torch import TorchBackend

    return TorchBackend.load(model, extractor, device)


def _onnx(model: str | Path, device: str) -> Backend:
    from recollect.backends.onnx import OnnxBackend

    return OnnxBackend.load(model, device)
