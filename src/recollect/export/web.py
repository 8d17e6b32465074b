"""`recollect export --web`: a folder for any web server, which teaches and recognises in the browser."""

import json
import shutil
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from recollect.backends.torch import TorchBackend
from recollect.export.graphs import extractor_graph, generator_graph
from recollect.export.runtime import runtime_files
from recollect.model.generator import RidgeGenerator
from recollect.modelfile import is_drawn
from recollect.recognition.recognizer import Recognizer
from recollect.serve import PAGE
from recollect.system.disk import replacing_folder
from recollect.system.progress import say

MODEL = "model"  # the folder of what belongs to the model
_OWN = Path(__file__).parent / "web"  # what stands in the place of the service, and beside it
_LEFT_OUT = {"service.js"}
_LICENCE = "onnxruntime-LICENSE.txt"
_ENCODING = '<meta charset="utf-8">'
# A static server sends no headers of ours; WebAssembly needs 'wasm-unsafe-eval'.
_POLICY = (
    "default-src 'none'; script-src 'self' 'wasm-unsafe-eval'; style-src 'self'; img-src 'self' blob: data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'"
)


def export_web(
    backend: TorchBackend, recognizer: Recognizer, out: Path, runtime: Path | None = None
) -> dict[str, int]:
    """Write the folder, whole or not at all; return the size of each of its files."""
    scripts = runtime_files(runtime)  # before anything slow
    say("exporting the extractor")
    extractor, generator = extractor_graph(backend.model), generator_graph(backend.model)
    with replacing_folder(out) as part:
        for path in [*_page(), *_OWN.iterdir(), *scripts]:
            shutil.copyfile(path, part / path.name)
        start = part / "index.html"
        policy = f'{_ENCODING}\n    <meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        start.write_text(start.read_text(encoding="utf-8").replace(_ENCODING, policy, 1), encoding="utf-8")
        shutil.copyfile(_licence(), part / _LICENCE)
        model = part / MODEL
        model.mkdir()
        onnx.save(extractor, model / "extractor.onnx")
        onnx.save(generator, model / "generator.onnx")
        (model / "taught.safetensors").write_bytes(recognizer.backup())
        base = recognizer.rule().vectors[: len(backend.header.spec.categories)]
        base.astype("<f4").tofile(model / "vectors.bin")
        if isinstance(backend.model.generator, RidgeGenerator):
            inverse = np.linalg.inv(backend.model.generator.regularised().cpu().numpy())
            inverse.astype("<f4").tofile(model / "inverse.bin")
        words = json.dumps(_words(backend), ensure_ascii=False)
        (model / "model.json").write_text(words, encoding="utf-8")
    return {path.relative_to(out).as_posix(): path.stat().st_size for path in sorted(out.rglob("*.*"))}


def _page() -> list[Path]:
    return [path for path in PAGE.iterdir() if path.name not in _LEFT_OUT]


def _licence() -> Path:
    """Return the licence of onnxruntime, which its package for Python brings along."""
    found = find_spec("onnxruntime")
    if found is None or found.origin is None:
        raise ImportError("onnxruntime")
    return Path(found.origin).parent / "LICENSE"


def _words(backend: TorchBackend) -> dict[str, Any]:
    """Return model.json: what the page computes answers from."""
    header, model = backend.header, backend.model
    prepare, generator = header.spec.preprocessing, model.generator
    fading = getattr(generator, "fading", None)
    return {
        "fingerprint": backend.fingerprint,
        "categories": header.spec.categories,
        "classifier": header.spec.classifier,
        "generator": header.spec.generator,
        "fading": None if fading is None else float(fading.detach()),
        "width": model.width,
        "terms": model.width * (2 if header.spec.shot_aware else 1),
        "scale": backend.scale,
        "side": prepare.short_side or prepare.size,
        "drawn": is_drawn(header),
        "calibration": header.calibration.model_dump(mode="json"),
    }
