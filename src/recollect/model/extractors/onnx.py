"""Any ONNX model as extractor: `onnx:PATH` names a file that maps pictures to vectors or to maps.

It is used frozen, and kept whole among the weights of a model file. What the file does not say about its
input can be given: `onnx:PATH?mean=123.7,116.3,103.5&std=58.4,57.1,57.4&layout=nhwc&output=pooled`.
"""

import json
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qsl

import numpy as np
import torch
from torch import Tensor

from recollect.errors import ModelError, brief
from recollect.model.extractors.base import Extractor
from recollect.model.extractors.own import tried_width
from recollect.model.spec import ONNX, Channels, Preprocessing
from recollect.system.sessions import Session

_TYPES: dict[str, type[np.generic]] = {
    "tensor(float)": np.float32,
    "tensor(float16)": np.float16,
    "tensor(uint8)": np.uint8,
}
_SIZE = 224  # of pictures, if nothing says it
_IMAGENET = ((123.675, 116.28, 103.53), (58.395, 57.12, 57.375))
_RANGES = {  # metadata of ONNX's own standard: mean and std, of 255
    "NominalRange_0_255": (0.0, 1.0),
    "Normalized_0_1": (0.0, 255.0),
    "Normalized_1_1": (127.5, 127.5),
}
_OPTIONS = ("mean", "std", "layout", "output")


class Interface(NamedTuple):
    """What an ONNX model takes and gives."""

    input: str
    kind: type[np.generic]  # of its numbers
    last: bool  # channels are the last dimension, not the second
    size: int | None  # of pictures, if only one will do
    single: bool  # it takes one picture at a time
    output: str


class OnnxExtractor(Extractor):
    """A frozen ONNX model in onnxruntime; of maps, the mean over their pixels is the feature."""

    file: Tensor  # the bytes of the ONNX file

    def __init__(self, content: bytes, name: str, size: int) -> None:
        super().__init__()
        self.register_buffer("file", torch.frombuffer(bytearray(content), dtype=torch.uint8))
        self.name = name
        self.session = Session(content, f"the extractor {name}")
        self.interface = _interface(self.session, _options(name))
        if self.interface.size not in {None, size}:
            raise ModelError(
                f"the extractor {name} takes pictures of {self.interface.size}×{self.interface.size}, not of "
                f"{size}×{size}: leave out --size, or name that one"
            )
        self.width = tried_width(name, self, size)

    def feature_size(self, size: int) -> int:
        """Return d, which was found with pictures of the model's size."""
        return self.width if size >= 1 else 0

    def forward(self, x: Tensor) -> Tensor:
        """Return the features (n, d)."""
        given, kind = self.interface, self.interface.kind
        pictures = x.detach().cpu().numpy()
        pictures = pictures.transpose(0, 2, 3, 1) if given.last else pictures
        pictures = (np.rint(pictures).clip(0, 255) if kind is np.uint8 else pictures).astype(kind)
        parts = np.split(pictures, len(pictures)) if given.single else [pictures]
        found = [
            self.session.run([given.output], **{given.input: np.ascontiguousarray(part)})[0] for part in parts
        ]
        features = np.concatenate(found).astype(np.float32, copy=False)
        if features.ndim == 4:
            features = features.mean(axis=(1, 2) if given.last else (2, 3))
        return torch.from_numpy(features).to(x.device)


def onnx_extractor(name: str, size: int) -> OnnxExtractor:
    """Return the extractor that `onnx:PATH` names, for pictures of `size` × `size`."""
    return OnnxExtractor(_read(name), name, size)


def onnx_input(name: str) -> Preprocessing:
    """Return how pictures are prepared for `onnx:PATH`: as the caller or the file says, else ImageNet's."""
    session = Session(_read(name), f"the extractor {name}")
    options, said = _options(name), session.metadata
    given = _interface(session, options)
    if given.kind is np.uint8:
        if "mean" in options:
            raise ModelError(f"the extractor {name} takes bytes: leave out mean and std")
        return Preprocessing(size=given.size or _SIZE, mean=(0.0,) * 3, std=(1.0,) * 3)
    mean, std = _IMAGENET
    if said.get("Image.NominalPixelRange") in _RANGES:
        mean, std = ((value,) * 3 for value in _RANGES[said["Image.NominalPixelRange"]])
    words = {key: options.get(key, said.get(key)) for key in ("mean", "std")}
    if words["mean"] is not None and words["std"] is not None:
        mean, std = _channels(name, words["mean"], words["std"])
    return Preprocessing(size=given.size or _SIZE, mean=mean, std=std)


def path_of(name: str) -> Path:
    """Return the file that `onnx:PATH?…` names."""
    return Path(name.removeprefix(ONNX).partition("?")[0])


def _read(name: str) -> bytes:
    try:
        return path_of(name).read_bytes()
    except OSError as error:
        raise ModelError(f"the extractor {name} cannot be read: {brief(error)}") from error


def _options(name: str) -> dict[str, str]:
    found = dict(parse_qsl(name.partition("?")[2], keep_blank_values=True))
    for key in found.keys() - {*_OPTIONS}:
        raise ModelError(f"the extractor {name}: '{key}' is not one of {', '.join(_OPTIONS)}")
    if found.get("layout", "nchw").lower() not in {"nchw", "nhwc"}:
        raise ModelError(f"the extractor {name}: the layout is nchw or nhwc, not '{found['layout']}'")
    if ("mean" in found) != ("std" in found):
        raise ModelError(f"the extractor {name}: mean and std go together: give both, or neither")
    return found


def _channels(name: str, mean: str, std: str) -> tuple[Channels, Channels]:
    """Return mean and std of 255; those below 2 are of 1."""
    try:
        values = [[float(word) for word in text.strip("[]() ").split(",")] for text in (mean, std)]
        (red, green, blue), (one, two, three) = values
        factor = 255.0 if max(map(abs, [*values[0], *values[1]])) <= 2 else 1.0
        found = Preprocessing(
            size=1,
            mean=(red * factor, green * factor, blue * factor),
            std=(one * factor, two * factor, three * factor),
        )
    except ValueError as error:
        raise ModelError(
            f"the extractor {name}: mean and std are three numbers each, such as 123.7,116.3,103.5 and "
            "58.4,57.1,57.4"
        ) from error
    return found.mean, found.std


def _interface(session: Session, options: dict[str, str]) -> Interface:
    """Return what the graph takes and gives; refuse one that does not map pictures to features."""
    own = session.name
    if len(session.inputs) != 1:
        names = ", ".join(one.name for one in session.inputs) or "none"
        raise ModelError(f"{own} has {len(session.inputs)} inputs ({names}): expected one, of pictures")
    (given,) = session.inputs
    shape = list(given.shape or [])
    if given.type not in _TYPES or len(shape) != 4:
        raise ModelError(
            f"{own}: its input '{given.name}' is {given.type} of shape {_shown(shape)}: expected pictures, "
            "float or uint8 of shape (n, 3, height, width) or (n, height, width, 3)"
        )
    layout = options.get("layout", "").lower()
    last = layout == "nhwc" if layout else shape[1] != 3 and shape[3] == 3
    channels, sides = (shape[3], shape[1:3]) if last else (shape[1], shape[2:])
    if isinstance(channels, int) and channels != 3:
        raise ModelError(
            f"{own}: its input '{given.name}' has shape {_shown(shape)}: expected 3 channels, (n, 3, height, "
            "width) or (n, height, width, 3)"
        )
    fixed = {side for side in sides if isinstance(side, int) and side > 0}
    if len(fixed) > 1:
        raise ModelError(f"{own} takes pictures of {sides[0]}×{sides[1]}: only square ones can be used")
    if isinstance(shape[0], int) and shape[0] > 1:
        raise ModelError(
            f"{own} takes {shape[0]} pictures at a time: export it for any number of them, or for 1"
        )
    single = shape[0] == 1
    return Interface(
        given.name, _TYPES[given.type], last, next(iter(fixed), None), single, _output(session, options)
    )


def _output(session: Session, options: dict[str, str]) -> str:
    """Return the name of the first output that can be a feature, or of the one that was named."""
    asked = options.get("output")
    for one in session.outputs:
        usable = one.type in {"tensor(float)", "tensor(float16)"} and len(one.shape or []) in {0, 2, 4}
        if usable and asked in {None, one.name}:
            return str(one.name)
    shown = ", ".join(f"'{one.name}' {one.type} {_shown(one.shape)}" for one in session.outputs)
    raise ModelError(
        f"{session.name}: {'no output' if asked is None else repr(asked)} is a feature, (n, d) or (n, d, "
        f"height, width) of floats; its outputs are {shown}"
    )


def _shown(shape: Any) -> str:  # noqa: ANN401
    return json.dumps(list(shape or [])).replace('"', "").replace("[", "(").replace("]", ")")
