"""The graph of an extractor that is an ONNX file itself, with what stands before and after it."""

import numpy as np
import onnx
import torch
from onnx import compose, version_converter

from recollect.errors import ModelError, brief
from recollect.export.notation import OPSET, joined, plain, prepare_graph, written
from recollect.model.extractors.onnx import Interface, OnnxExtractor
from recollect.model.model import Model

_BODY = "extractor/"  # before the names of what the file has
_KINDS = {np.float32: ("float", 1), np.float16: ("float16", 10), np.uint8: ("uint8", 2)}


def around(model: Model, extractor: OnnxExtractor) -> onnx.ModelProto:
    """Return the graph from `pixels` uint8 (n, h, w, 3) to `features` (n, d)."""
    given = extractor.interface
    if given.single:
        raise ModelError(f"{extractor.name} takes one picture at a time: export it for any number of them")
    if model.spec.mirrored or model.spec.shifted:
        kind = "mirrored" if model.spec.mirrored else "shifted"
        raise ModelError(f"{extractor.name}: a {kind} model on an ONNX file cannot be exported")
    body = _converted(extractor)
    (output,) = (one for one in body.graph.output if one.name == given.output)
    before = joined(prepare_graph(model.spec.preprocessing), _normalise(model, given), "prepared")
    after = _finish(model, given, output.type.tensor_type)
    body.ir_version = after.ir_version = before.ir_version = max(body.ir_version, before.ir_version)
    whole = compose.merge_models(
        before, body, io_map=[("x", given.input)], outputs=[f"{_BODY}{given.output}"], prefix2=_BODY
    )
    return plain(compose.merge_models(whole, after, io_map=[(f"{_BODY}{given.output}", "found")]))


def _converted(extractor: OnnxExtractor) -> onnx.ModelProto:
    body = onnx.load_model_from_string(extractor.session.content)
    versions = [one.version for one in body.opset_import if one.domain in {"", "ai.onnx"}]
    if versions == [OPSET]:
        return body
    try:
        return version_converter.convert_version(body, OPSET)
    except Exception as error:
        raise ModelError(
            f"{extractor.name} cannot be brought from opset {versions} to {OPSET}: {brief(error)}"
        ) from error


def _normalise(model: Model, given: Interface) -> onnx.ModelProto:
    """Return the graph from `prepared` pictures to `x`, what the file takes."""
    (kind, number), size = _KINDS[given.kind], model.spec.preprocessing.size
    turn = "Transpose <perm = [0, 2, 3, 1]>" if given.last else "Identity"
    lines = ["numbers = Cast <to = 1> (prepared)", "shifted = Sub (numbers, mean)"]
    lines += [
        "scaled = Div (shifted, std)",
        f"turned = {turn} (scaled)",
        f"x = Cast <to = {number}> (turned)",
    ]
    shape = f"n, {size}, {size}, 3" if given.last else f"n, 3, {size}, {size}"
    weights = {"mean": model.mean.view(3, 1, 1), "std": model.std.view(3, 1, 1)}
    inputs = f"uint8[n, 3, {size}, {size}] prepared"
    return written("normalise", inputs, f"{kind}[{shape}] x", lines, weights)


def _finish(model: Model, given: Interface, kind: onnx.TypeProto.Tensor) -> onnx.ModelProto:
    """Return the graph from what the file gives, vectors or maps, to `features`."""
    maps = len(kind.shape.dim) == 4
    pool = "ReduceMean <keepdims = 0> (output, axes)" if maps else "Identity (output)"
    lines = ["output = Cast <to = 1> (found)", f"pooled = {pool}", "features = Sub (pooled, centre)"]
    words = {number: name for name, number in _KINDS.values()}
    found = f"{words[kind.elem_type]}[{'n, b, c, d' if maps else 'n, b'}] found"
    weights = {"centre": model.centre, "axes": torch.tensor([1, 2] if given.last else [2, 3])}
    return written("finish", found, f"float[n, {model.width}] features", lines, weights)
