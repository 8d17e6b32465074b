"""An extractor with weights and activations of 8 bits."""

import logging
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import onnx

from recollect.export.notation import PREPARE, plain
from recollect.images import Picture, read_pixels
from recollect.model.spec import Preprocessing

_MOST = 100  # pictures for calibration


def quantised(
    extractor: onnx.ModelProto, pictures: Sequence[Picture], prepare: Preprocessing
) -> onnx.ModelProto:
    """Return the graph quantised statically and per channel, calibrated on some pictures.

    Dynamic quantisation, or one scale for all channels, would not keep the features.
    """
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process

    class Reader(CalibrationDataReader):  # type: ignore[misc]
        """Prepared pictures, one after the other."""

        def __init__(self, pictures: Sequence[Picture]) -> None:
            self._rest: Iterator[dict[str, Any]] = (
                {"pixels": read_pixels(picture, prepare.size, prepare.short_side)[None]}
                for picture in pictures
            )

        def get_next(self) -> dict[str, Any] | None:
            return next(self._rest, None)

    step = max(1, len(pictures) // _MOST)
    with tempfile.TemporaryDirectory() as folder:
        whole, ready, done = (Path(folder) / f"{name}.onnx" for name in ("whole", "ready", "done"))
        onnx.save(extractor, whole)
        level = logging.root.level
        try:
            logging.root.setLevel(logging.ERROR)
            quant_pre_process(whole, ready, skip_symbolic_shape=True)
            model = onnx.load(ready)
            onnx.save(plain(model), ready)
            inside = [node.name for node in model.graph.node if node.name.startswith(PREPARE)]
            quantize_static(
                ready,
                done,
                Reader(pictures[::step][:_MOST]),
                quant_format=QuantFormat.QDQ,
                per_channel=True,
                reduce_range=True,  # to 7 bits, whose products processors without VNNI can add in 16
                activation_type=QuantType.QUInt8,
                weight_type=QuantType.QInt8,
                nodes_to_exclude=inside,
            )
        finally:
            logging.root.setLevel(level)
        return onnx.load(done)
