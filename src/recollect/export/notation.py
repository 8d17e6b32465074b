"""ONNX graphs from lines in ONNX's own notation, and how graphs are joined."""

from collections.abc import Mapping, Sequence

import onnx
from onnx import compose, numpy_helper, parser
from torch import Tensor

from recollect.model.spec import Preprocessing

OPSET = 20
IR = 10
PREPARE = "prepare/"  # before the names of nodes that only prepare pictures

# What `recollect.images.fit` does with Pillow. A picture of the right size stays as it is.
_PREPARE = """
<ir_version: {ir}, opset_import: ["" : {opset}]>
prepare (uint8[n, height, width, 3] pixels) => (uint8[n, 3, {size}, {size}] prepared)
<int64[2] size = {{{size}, {size}}}, int64[1] short_side = {{{short_side}}}, float half = {{0.5}},
 int64[2] axes = {{2, 3}}>
{{
  planes = Transpose <perm = [0, 3, 1, 2]> (pixels)
  batch = Shape <start = 0, end = 2> (planes)
  sides = Shape <start = 2, end = 4> (planes)
  equal = Equal (sides, size)
  equal_number = Cast <to = 7> (equal)
  fits_number = ReduceMin <keepdims = 1> (equal_number)
  fits = Cast <to = 9> (fits_number)
  short = ReduceMin <keepdims = 1> (sides)
  wanted = Where (fits, short, short_side)
  product = Mul (sides, wanted)
  full = Div (product, short)
  shape = Concat <axis = 0> (batch, full)
  resized = Resize <mode = "cubic", antialias = 1, cubic_coeff_a = -0.5, exclude_outside = 1>
            (planes, , , shape)
  rest = Sub (full, size)
  rest_number = Cast <to = 1> (rest)
  middle = Mul (rest_number, half)
  rounded = Round (middle)
  start = Cast <to = 7> (rounded)
  stop = Add (start, size)
  prepared = Slice (resized, start, stop, axes)
}}
"""


def prepare_graph(prepare: Preprocessing) -> onnx.ModelProto:
    """Return the graph that resizes and crops `pixels` (n, h, w, 3) to `prepared` (n, 3, size, size)."""
    text = _PREPARE.format(
        ir=IR, opset=OPSET, size=prepare.size, short_side=prepare.short_side or prepare.size
    )
    model = parser.parse_model(text)
    for node in model.graph.node:
        node.name = node.output[0]
    return model


def plain(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a model that names every set of operators once, and only those that it uses."""
    versions = {one.domain: one.version for one in model.opset_import}
    del model.opset_import[:]
    for domain in sorted({node.domain for node in model.graph.node}):
        model.opset_import.add(domain=domain, version=versions[domain])
    return model


def joined(first: onnx.ModelProto, second: onnx.ModelProto, between: str) -> onnx.ModelProto:
    """Return both graphs one after the other; `between` is what the first gives and the second takes."""
    first.ir_version = second.ir_version = max(first.ir_version, second.ir_version)
    given = first.graph.input[0].name
    merged = compose.merge_models(first, second, io_map=[(between, between)], prefix1=PREPARE)
    for node in merged.graph.node:
        for place, name in enumerate(node.input):
            if name == f"{PREPARE}{given}":
                node.input[place] = given
    merged.graph.input[0].name = given
    return plain(merged)


def written(
    name: str, inputs: str, outputs: str, lines: Sequence[str], weights: Mapping[str, Tensor]
) -> onnx.ModelProto:
    """Return the graph of some lines, with the weights that they use."""
    model = parser.parse_model(
        f'<ir_version: {IR}, opset_import: ["" : {OPSET}]> {name} ({inputs}) => ({outputs}) '
        f"<int64[1] last_axis = {{-1}}, float tiny = {{1e-24}}> {{ {' '.join(lines)} }}"
    )
    model.graph.initializer.extend(
        numpy_helper.from_array(values.detach().cpu().contiguous().numpy(), one)
        for one, values in weights.items()
    )
    used = {one for node in model.graph.node for one in node.input}
    kept = [one for one in model.graph.initializer if one.name in used]
    del model.graph.initializer[:]
    model.graph.initializer.extend(kept)
    return model
