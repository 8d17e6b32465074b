"""The four-block ConvNets of the paper: C32F, C64F, C128F."""

from collections.abc import Callable
from functools import partial, reduce
from math import isqrt
from typing import cast

from torch import Tensor, nn
from torch.nn import functional as F

from recollect.model.extractors import blocks
from recollect.model.extractors.base import Extractor, register


class Conv4(Extractor):
    """4 × [3×3 conv without bias, BN, ReLU, 2×2 max-pool], flattened; no ReLU in block 4 by default.

    Max-pooling and ReLU commute, so pooling goes first and ReLU sees a quarter of the values.
    """

    def __init__(self, channels: tuple[int, int, int, int], *, last_relu: bool) -> None:
        super().__init__()
        self.channels = channels
        layers_of_blocks = []
        for index, (inputs, outputs) in enumerate(zip((3, *channels[:-1]), channels, strict=True)):
            layers: list[nn.Module] = [
                nn.Conv2d(inputs, outputs, 3, padding=1, bias=False),
                nn.BatchNorm2d(outputs),
                nn.MaxPool2d(2),
            ]
            if index < len(channels) - 1 or last_relu:
                layers.append(nn.ReLU(inplace=True))
            layers_of_blocks.append(nn.Sequential(*layers))
        self.blocks = nn.Sequential(*layers_of_blocks)

    def feature_size(self, size: int) -> int:
        """Return channels × (size / 16)²."""
        return int(self.channels[-1] * (size // 16) ** 2)

    def stretch(self, features: Tensor, size: int) -> Tensor:
        """Return the map of smaller pictures, interpolated to that of `size` × `size`."""
        side = isqrt(features.shape[1] // self.channels[-1])
        maps = features.view(len(features), self.channels[-1], side, side)
        return F.interpolate(maps, size=size // 16, mode="bilinear").flatten(1)

    def forward(self, x: Tensor) -> Tensor:
        """Return the flattened map of the last block, (n, d)."""
        if self.training and blocks.usable(self._blocks, x, training=True):
            maps = reduce(lambda maps, block: blocks.learning(block, maps), self._blocks, x)
        else:
            maps = self.blocks(x)
        return maps.flatten(1)

    def for_extraction(self) -> Callable[[Tensor], Tensor]:
        """Return a function that extracts with the weights as they are now, in C if possible."""
        computed = blocks.known(self._blocks)

        def extract(x: Tensor) -> Tensor:
            if computed and blocks.usable(self._blocks, x, training=False):
                return reduce(lambda maps, block: block(maps), computed, x).flatten(1)
            features: Tensor = self(x)
            return features

        return extract

    @property
    def _blocks(self) -> list[nn.Sequential]:
        return cast("list[nn.Sequential]", list(self.blocks))


def _conv4(last_relu: bool, *, channels: tuple[int, int, int, int]) -> Conv4:
    return Conv4(channels, last_relu=last_relu)


register("c32f", partial(_conv4, channels=(32, 32, 32, 32)))
register("c64f", partial(_conv4, channels=(64, 64, 64, 64)))
register("c128f", partial(_conv4, channels=(64, 64, 128, 128)))
