"""ONNX graphs of a model: its preprocessing and extractor, its generator, its classifier."""

import io
import logging
import warnings
from contextlib import redirect_stdout
from typing import Any

import onnx
import torch
from torch import Tensor, nn

from recollect.export.around import around
from recollect.export.notation import OPSET, joined, prepare_graph, written
from recollect.model.classifier import unit
from recollect.model.extractors.onnx import OnnxExtractor
from recollect.model.generator import STEP, AttentionGenerator, AverageGenerator, RidgeGenerator
from recollect.model.model import Model, appearances


class _Extractor(nn.Module):
    """Prepared pictures (n, 3, size, size) → features (n, d)."""

    mean: Tensor
    std: Tensor
    centre: Tensor | None

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.extractor = model.extractor.for_inference()
        self.spec = model.spec
        self.register_buffer("mean", model.mean.view(3, 1, 1))
        self.register_buffer("std", model.std.view(3, 1, 1))
        self.register_buffer("centre", model.centre if model.spec.centred else None)

    def forward(self, prepared: Tensor) -> Tensor:
        # All in one batch: as passes of their own, each would get its own copy of the weights in int8.
        shown = torch.cat(appearances(prepared.to(self.mean.dtype), self.spec))
        features: Tensor = self.extractor((shown - self.mean) / self.std)
        if self.spec.looks > 1:
            features = features.view(self.spec.looks, -1, features.shape[1]).mean(0)
        return features if self.centre is None else features - self.centre


def extractor_graph(model: Model) -> onnx.ModelProto:
    """Return the graph of preprocessing and extractor: `pixels` uint8 (n, h, w, 3) → `features` (n, d)."""
    prepare = model.spec.preprocessing
    if isinstance(model.extractor, OnnxExtractor):
        return around(model, model.extractor)
    pictures = torch.zeros(2, 3, prepare.size, prepare.size, dtype=torch.uint8)
    return joined(prepare_graph(prepare), exported(_Extractor(model), pictures), "prepared")


def generator_graph(model: Model) -> onnx.ModelProto:
    """Return the graph of the generator: `features` (n, d) → `terms`, and with attention its weights.

    Written out, because torch takes seconds to export it; the export checks it against torch.
    """
    generator, width = model.generator, model.width
    lines, weights = _view(model, "features", "z"), {}
    outputs = {"terms": width}
    if isinstance(generator, RidgeGenerator):
        lines += ["steps = Div (z, step)", "whole = Round (steps)", "rounded = Mul (whole, step)"]
        lines += ["terms = Clip (rounded, least, most)"]
        weights = {
            "step": torch.tensor(STEP),
            "least": torch.tensor(STEP - 1),
            "most": torch.tensor(1 - STEP),
        }
    elif isinstance(generator, AttentionGenerator):
        lines += ["average = Mul (z, phi_avg)", "query = Gemm <transB = 1> (z, phi_q, phi_q_bias)"]
        lines += [*_unit("query", "unit_query"), "cosines = MatMul (unit_query, keys)"]
        lines += ["logits = Mul (cosines, sharpness)", "attention = Softmax <axis = -1> (logits)"]
        lines += ["leaned = MatMul (attention, memory)", "attended = Mul (leaned, phi_att)"]
        aware = generator.fading is not None
        lines += [
            "terms = Concat <axis = -1> (average, attended)" if aware else "terms = Add (average, attended)"
        ]
        outputs = {"terms": 2 * width if aware else width, "attention": len(generator.keys)}
        weights = {
            "phi_avg": generator.phi_avg, "phi_att": generator.phi_att, "phi_q": generator.phi_q.weight,
            "phi_q_bias": generator.phi_q.bias, "keys": unit(generator.keys).T,
            "sharpness": generator.sharpness, "memory": model.classifier.view(model.classifier.weight),
        }  # fmt: skip
    elif isinstance(generator, AverageGenerator):
        lines, weights = [*lines, "terms = Mul (z, phi_avg)"], {"phi_avg": generator.phi_avg}
    else:
        lines += ["terms = Identity (z)"]
    found = ", ".join(f"float[n, {size}] {name}" for name, size in outputs.items())
    return written("generator", f"float[n, {width}] features", found, lines, weights)


def classifier_graph(model: Model) -> onnx.ModelProto:
    """Return the graph of the classifier: `features` (n, d) and `vectors` (k, d) → `scores` (n, k)."""
    lines = [
        *_view(model, "features", "z"),
        *_view(model, "vectors", "w"),
        "columns = Transpose <perm = [1, 0]> (w)",
    ]
    lines += ["products = MatMul (z, columns)", "scores = Mul (products, scale)"]
    given = f"float[n, {model.width}] features, float[k, {model.width}] vectors"
    return written("classifier", given, "float[n, k] scores", lines, {"scale": model.classifier.scale})


def _unit(name: str, result: str) -> list[str]:
    """Return the lines that divide rows by their L2 norm."""
    return [
        f"{name}_squares = ReduceSumSquare <keepdims = 1> ({name}, last_axis)",
        f"{name}_floor = Max ({name}_squares, tiny)",
        f"{name}_length = Sqrt ({name}_floor)",
        f"{result} = Div ({name}, {name}_length)",
    ]


def _view(model: Model, name: str, result: str) -> list[str]:
    """Return the lines that show rows as the classifier sees them."""
    return _unit(name, result) if model.classifier.kind == "cosine" else [f"{result} = Identity ({name})"]


def exported(module: nn.Module, pictures: Tensor) -> onnx.ModelProto:
    """Return a module as a graph from `prepared` pictures, any number of them, to `features`."""
    log = logging.getLogger("torch.onnx")
    level = log.level
    try:
        log.setLevel(logging.ERROR)
        with warnings.catch_warnings(), redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            program: Any = torch.onnx.export(
                module.eval(),
                (pictures,),
                input_names=["prepared"],
                output_names=["features"],
                dynamic_shapes=({0: torch.export.Dim("n")},),
                opset_version=OPSET,
                dynamo=True,
                verbose=False,
            )
    finally:
        log.setLevel(level)
    graph: onnx.ModelProto = program.model_proto
    _forget_origins(graph)
    return graph


def _forget_origins(model: onnx.ModelProto) -> None:
    """Remove what torch notes beside every node: names and paths of source files."""
    graph = model.graph
    for part in (
        model,
        graph,
        *graph.node,
        *graph.input,
        *graph.output,
        *graph.value_info,
        *graph.initializer,
    ):
        del part.metadata_props[:]
        if hasattr(part, "doc_string"):
            part.doc_string = ""
