"""`recollect export --onnx`: a folder of ONNX files and what goes with them, checked against torch."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

from recollect.backends.choice import compare, remember
from recollect.backends.exported import (
    CATEGORIES,
    CLASSIFIER,
    EXTRACTOR,
    FILES,
    GENERATOR,
    VECTORS,
    Export,
)
from recollect.backends.onnx import OnnxBackend
from recollect.backends.torch import TorchBackend
from recollect.export.checking import check
from recollect.export.graphs import classifier_graph, extractor_graph, generator_graph
from recollect.export.int8 import quantised
from recollect.images import Picture
from recollect.modelfile import EXPORT_NAME, FILE_NAME
from recollect.recognition.recognizer import Recognizer
from recollect.recognition.results import Rule
from recollect.system.disk import replacing_folder
from recollect.system.progress import say


def export_onnx(
    backend: TorchBackend,
    recognizer: Recognizer,
    out: Path,
    pictures: Sequence[Picture],
    *,
    int8: bool = False,
) -> dict[str, Any]:
    """Write the folder, whole or not at all, and return what its files were found to be.

    They are compared with torch on some pictures, on which int8 weights are calibrated too.
    """
    say("exporting the extractor")
    extractor = extractor_graph(backend.model)
    graphs = {GENERATOR: generator_graph(backend.model), CLASSIFIER: classifier_graph(backend.model)}
    if int8:
        say("quantising the extractor to int8")
        extractor = quantised(extractor, pictures, backend.header.spec.preprocessing)
    with replacing_folder(out) as part:
        recognizer.save(part / FILE_NAME)
        for name, graph in {EXTRACTOR: extractor, **graphs}.items():
            onnx.save(graph, part / name)
        rule = recognizer.rule()
        np.save(part / VECTORS, rule.vectors)
        (part / CATEGORIES).write_text(_words(backend, rule), encoding="utf-8")
        export = Export(
            recollect=version("recollect"),
            fingerprint=backend.fingerprint,
            files={name: hashlib.sha256((part / name).read_bytes()).hexdigest() for name in FILES},
            int8=int8,
        )
        _write(part, export)
        say("comparing with torch")
        checked = check(recognizer, part, pictures, strict=not int8)
        checked["milliseconds"] = compare(backend, OnnxBackend(part))
        _write(part, export.model_copy(update={"checked": checked}))
        remember(part, checked["milliseconds"], str(backend.device))
    return checked


def _write(folder: Path, export: Export) -> None:
    (folder / EXPORT_NAME).write_text(json.dumps(export.model_dump(mode="json"), indent=1), encoding="utf-8")


def _words(backend: TorchBackend, rule: Rule) -> str:
    """Return categories.json: what the rows of vectors.npy are, and how scores become answers."""
    spec = backend.header.spec
    base = len(rule.vectors) - len(rule.offsets)
    fading = getattr(backend.model.generator, "fading", None)

    def rows(offsets: npt.NDArray[np.float64]) -> list[float]:
        return [0.0] * base + [round(float(value), 6) for value in offsets]

    words = {
        "categories": [asdict(category) for category in rule.categories],
        "classifier": spec.classifier,
        "generator": spec.generator,
        "fading": None if fading is None else float(fading.detach()),
        "temperature": rule.temperature,
        "offsets": rows(rule.offsets),
        "unknown": rule.unknown
        and {
            "threshold": rule.threshold,
            "offsets": rows(rule.unknown_offsets),
            "steepness": rule.unknown.steepness,
            "offset": rule.unknown.offset,
        },
    }
    return json.dumps(words, ensure_ascii=False, indent=1)
