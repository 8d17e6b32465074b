"""A caller's own code as extractor: `module:package.module:callable` names what returns a torch module.

Only a caller may name one. No file is ever the reason for an import.
"""

import importlib
from typing import Any

import torch
from torch import Tensor, nn

from recollect.errors import ModelError, brief
from recollect.model.extractors.base import Extractor
from recollect.model.spec import OWN_CODE, is_own_code

_PROBES = 2


class OwnExtractor(Extractor):
    """Your own torch module, which was found to give finite, repeatable features (n, d)."""

    def __init__(self, body: nn.Module, width: int) -> None:
        super().__init__()
        self.body = body
        self.width = width

    def feature_size(self, size: int) -> int:
        """Return d, which was found with pictures of the model's size."""
        return self.width if size >= 1 else 0

    def forward(self, x: Tensor) -> Tensor:
        """Return the features (n, d)."""
        features: Tensor = self.body(x)
        return features


def own_extractor(name: str, size: int) -> OwnExtractor:
    """Call what `name` names and try what it returns on pictures of `size` × `size`."""
    module, colon, attribute = name.removeprefix(OWN_CODE).partition(":")
    if not is_own_code(name) or not colon or not module or not attribute:
        raise ModelError(f"the extractor {name}: {OWN_CODE}package.module:callable is expected")
    try:
        build = importlib.import_module(module)
    except Exception as error:  # whatever the code does when it is imported
        unfound = isinstance(error, ModuleNotFoundError) and f"{module}.".startswith(f"{error.name}.")
        remedy = "; name the folder that holds it in PYTHONPATH" if unfound else ""
        raise ModelError(
            f"the extractor {name}: cannot import {module}: {type(error).__name__}: {brief(error)}{remedy}"
        ) from error
    for part in attribute.split("."):
        if not hasattr(build, part):
            raise ModelError(f"the extractor {name}: {module} has no '{attribute}'")
        build = getattr(build, part)
    if not callable(build):
        raise ModelError(f"the extractor {name}: '{attribute}' of {module} cannot be called")
    try:
        body = build()
    except Exception as error:
        raise ModelError(
            f"the extractor {name}: {attribute}() failed: {type(error).__name__}: {brief(error)}"
        ) from error
    if not isinstance(body, nn.Module):
        raise ModelError(
            f"the extractor {name}: {attribute}() returned a {type(body).__name__} and no torch module"
        )
    return OwnExtractor(body, tried_width(name, body, size))


def tried_width(name: str, body: nn.Module, size: int) -> int:
    """Return d, or say what is wrong with the features of a few made-up pictures."""
    pictures = torch.randn(_PROBES, 3, size, size, generator=torch.Generator().manual_seed(0))
    try:
        with torch.inference_mode():
            first, second, alone = body.eval()(pictures), body(pictures), body(pictures[:1])
    except Exception as error:
        raise ModelError(
            f"the extractor {name}: the module fails on pictures ({_PROBES}, 3, {size}, {size}): "
            f"{type(error).__name__}: {brief(error)}"
        ) from error
    if wrong := _fault(first, second, alone):
        raise ModelError(f"the extractor {name}: the module {wrong}")
    if any(value.dtype == torch.bfloat16 for value in body.state_dict().values()):
        raise ModelError(
            f"the extractor {name}: the module has bfloat16 weights, which no model file can hold"
        )
    return int(first.shape[1])


def _fault(first: Any, second: Any, alone: Any) -> str | None:  # noqa: ANN401, PLR0911
    """Say what is wrong with features of some pictures, of the same again, and of the first alone."""
    for features in (first, second, alone):
        if not isinstance(features, Tensor):
            return f"returns a {type(features).__name__} and no tensor"
    if first.ndim != 2 or first.shape[0] != _PROBES or first.shape[1] == 0:
        return f"returns a tensor of shape {tuple(first.shape)} where ({_PROBES}, d) is expected"
    if first.dtype != torch.float32:
        return f"returns {str(first.dtype).removeprefix('torch.')} numbers where float32 is expected"
    if not first.isfinite().all():
        return "returns numbers that are not finite"
    if not torch.equal(first, second):
        return "returns other features for the same pictures in evaluation mode"
    if alone.shape != first[:1].shape:
        return f"returns a tensor of shape {tuple(alone.shape)} for one picture where (1, d) is expected"
    if not torch.allclose(alone, first[:1], rtol=1e-3, atol=1e-4 * float(first.abs().max())):
        return "returns other features for a picture when it is alone, in evaluation mode"
    return None
