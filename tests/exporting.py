"""Exported models and small ONNX files, for tests of what reads them."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper, parser

from recollect.backends.torch import TorchBackend
from recollect.export.folder import export_onnx
from recollect.modelfile import Header
from recollect.recognition.recognizer import Recognizer

ROOT = Path(__file__).parents[1]
_BLOCK = """
import sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"torch", "onnx", "onnxscript"}:
            raise ModuleNotFoundError(f"blocked: {name}", name=name)
sys.meta_path.insert(0, Blocked())
"""


def export(model, out, pictures, taught=None, **options):
    """Export a model that was taught some pictures by name; return what was found."""
    header = options.pop("header", None) or Header(spec=model.spec)
    backend = TorchBackend(model, header)
    recognizer = Recognizer(backend)
    for name, some in (taught or {}).items():
        recognizer.teach(name, some)
    return export_onnx(backend, recognizer, out, pictures, **options)


def without_torch(folder: Path) -> dict[str, str]:
    """Return an environment in which torch, onnx and onnxscript cannot be imported."""
    folder.mkdir(exist_ok=True)
    (folder / "sitecustomize.py").write_text(_BLOCK)
    others = os.environ.get("PYTHONPATH")
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), *([others] if others else [])])}


def run_without_torch(folder: Path, *words: object) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, *map(str, words)],
        env=without_torch(folder / "blocked"),
        capture_output=True,
        text=True,
        check=False,
    )


def graph(inputs: str, outputs: str, lines: str, weights=(), opset: int = 20, metadata=()) -> bytes:
    """Return the bytes of an ONNX file with these inputs, outputs and lines."""
    model = parser.parse_model(
        f'<ir_version: 10, opset_import: ["" : {opset}]> g ({inputs}) => ({outputs}) {{ {lines} }}'
    )
    model.graph.initializer.extend(
        numpy_helper.from_array(values, name) for name, values in dict(weights).items()
    )
    for key, value in dict(metadata).items():
        model.metadata_props.add(key=key, value=value)
    return model.SerializeToString()


def convolving(size="size", channels: int = 3, width: int = 8, metadata=()) -> bytes:
    """Return a model (n, 3, size, size) → maps (n, 8, size, size)."""
    kernel = np.random.default_rng(0).standard_normal((width, channels, 3, 3)).astype(np.float32)
    return graph(
        f"float[n, {channels}, {size}, {size}] x",
        f"float[n, {width}, a, b] y",
        "c = Conv <pads = [1, 1, 1, 1]> (x, k) y = Relu (c)",
        {"k": kernel},
        metadata=metadata,
    )


def outside(location: str) -> bytes:
    """Return a model whose weight lies in another file."""
    weight = TensorProto(name="k", data_type=1, dims=[8, 3, 3, 3], data_location=TensorProto.EXTERNAL)
    weight.external_data.add(key="location", value=location)
    model = onnx.load_model_from_string(convolving())
    del model.graph.initializer[:]
    model.graph.initializer.append(weight)
    return model.SerializeToString()


def strange() -> bytes:
    """Return a model with an operator that nobody has."""
    node = helper.make_node("Frobnicate", ["x"], ["y"], domain="some.vendor")
    value = [helper.make_tensor_value_info(name, 1, ["n", 3, 16, 16]) for name in ("x", "y")]
    made = helper.make_graph([node], "g", value[:1], value[1:])
    imports = [helper.make_opsetid("", 20), helper.make_opsetid("some.vendor", 1)]
    return helper.make_model(made, opset_imports=imports, ir_version=10).SerializeToString()
