"""The interface of a feature extractor, and the registry that finds one by name."""

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable
from math import sqrt
from typing import Self, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from recollect.errors import ModelError
from recollect.model.draws import only_shapes
from recollect.model.spec import Preprocessing, is_own_code

E = TypeVar("E", bound="Extractor")


class Extractor(nn.Module, ABC):
    """F(x | θ): pictures (n, 3, size, size) → features (n, d)."""

    learns_in_bfloat16 = False  # on CPUs that have it, because that is faster

    @abstractmethod
    def feature_size(self, size: int) -> int:
        """Return d for an input of `size` × `size`, or 0 where the arithmetic leaves no pixel."""

    @abstractmethod
    def forward(self, x: Tensor) -> Tensor:
        """Return the features (n, d) of normalised pictures (n, 3, size, size)."""

    def initialise(self) -> None:
        """Draw convolutions from N(0, 2 / (k² · out)); set batch norm to 1 / 0 and biases to 0."""
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                fan_out = module.kernel_size[0] * module.kernel_size[1] * module.out_channels
                nn.init.normal_(module.weight, std=sqrt(2 / fan_out))
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
            elif isinstance(module, nn.BatchNorm2d):
                nn.init.ones_(module.weight)
                nn.init.zeros_(module.bias)

    def stretch(self, features: Tensor, size: int) -> Tensor:  # noqa: ARG002
        """Return features of smaller pictures in the shape of those of `size` × `size`."""
        return features

    def freeze(self) -> None:
        """Stop learning: evaluation mode, no gradients."""
        self.eval().requires_grad_(requires_grad=False)

    def for_inference(self) -> Self:
        """Return an extractor that gives the same features in evaluation mode, faster if possible."""
        return self

    def for_extraction(self) -> Callable[[Tensor], Tensor]:
        """Return a function that computes the same features, up to rounding, of large numbers of pictures.

        The extractor must be in evaluation mode and stay as it is meanwhile. There are no gradients.
        """
        return self.for_inference()


_BUILDERS: dict[str, Callable[[bool], Extractor]] = {}
_INPUTS: dict[str, Preprocessing] = {}


def register(name: str, build: Callable[[bool], Extractor], published: Preprocessing | None = None) -> None:
    """Make `build(last_relu)` known under `name`; `published` is the input of weights that come with it."""
    _BUILDERS[name] = build
    if published is not None:
        _INPUTS[name] = published


def published_input(name: str) -> Preprocessing | None:
    """Return how pictures are prepared for the weights that come with an extractor, if any do."""
    return _INPUTS.get(name)


def extractor_names() -> list[str]:
    """Return the names that `build_extractor` knows."""
    return sorted(_BUILDERS)


def build_extractor(name: str, *, last_relu: bool = False, size: int) -> tuple[Extractor, int]:
    """Build the extractor `name` and return it with its feature size d for `size` × `size` pictures."""
    if is_own_code(name):
        raise ModelError(
            f"its extractor is your own code, which is never loaded from a model file: name it again, with "
            f'--extractor {name} (in Python extractor="{name}")'
        )
    if name not in _BUILDERS:
        raise ModelError(f"no extractor is called '{name}'; there are: {', '.join(extractor_names())}")
    extractor = _BUILDERS[name](last_relu)
    width = extractor.feature_size(size)
    if width == 0:
        smallest = next(s for s in range(1, 4097) if extractor.feature_size(s))
        raise ModelError(
            f"pictures of {size}×{size} are too small for the extractor '{name}'; "
            f"use --size {smallest} or more, or another extractor"
        )
    if not only_shapes():
        extractor.initialise()
    extractor.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # torch's stub lacks it
    return extractor, width


def fold_batch_norm(module: nn.Module) -> None:
    """Fold batch norm into the convolution before it, in every `Sequential`; for evaluation mode."""
    for name, child in module.named_children():
        fold_batch_norm(child)
        if isinstance(child, nn.Sequential):
            layers: list[nn.Module] = []
            for layer in child:
                if isinstance(layer, nn.BatchNorm2d) and layers and isinstance(layers[-1], nn.Conv2d):
                    layers[-1] = fuse_conv_bn_eval(layers[-1], layer)
                else:
                    layers.append(layer)
            setattr(module, name, nn.Sequential(*layers))


def folded(extractor: E) -> E:
    """Return a copy of an extractor, in evaluation mode and with its batch norm folded."""
    copied = copy.deepcopy(extractor).eval().requires_grad_(requires_grad=False)
    fold_batch_norm(copied)
    return copied
