"""The interface of a feature extractor, and the registry that finds one by name."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from math import sqrt

import torch
from torch import Tensor, nn

from recollect.errors import ModelError
from recollect.model.draws import only_shapes


class Extractor(nn.Module, ABC):
    """F(x | θ): pictures (n, 3, size, size) → features (n, d)."""

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

    def freeze(self) -> None:
        """Stop learning: batch norm in evaluation mode, no gradients; dropout stays as the paper has it.

        In the authors' runs the dropout of `resnet` stays active on the frozen extractor in stage 2.
        """
        self.eval().requires_grad_(requires_grad=False)
        for module in self.modules():
            if isinstance(module, nn.Dropout):
                module.train()


_BUILDERS: dict[str, Callable[[bool], Extractor]] = {}


def register(name: str, build: Callable[[bool], Extractor]) -> None:
    """Make `build(last_relu)` known under `name`."""
    _BUILDERS[name] = build


def extractor_names() -> list[str]:
    """Return the names that `build_extractor` knows."""
    return sorted(_BUILDERS)


def build_extractor(name: str, *, last_relu: bool = False, size: int) -> tuple[Extractor, int]:
    """Build the extractor `name` and return it with its feature size d for `size` × `size` pictures."""
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
