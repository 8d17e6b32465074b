"""EfficientNet-Lite: the network of Tan & Le without squeeze-and-excitation, for weights learned on ImageNet.

Lite1 is deeper than Lite0, Lite2 deeper and wider, and each expects larger pictures. Stem, first and last
stage and the final 1280 channels are the same in all of them.
"""

from collections.abc import Iterator
from math import ceil
from typing import NamedTuple, Self

from torch import Tensor, nn
from torch.nn import functional as F

from recollect.model.extractors.base import Extractor, folded, register
from recollect.model.spec import Preprocessing

WIDTH = 1280
_STEM = 32
_EPSILON, _MOMENTUM = 1e-3, 0.01  # of batch norm, as the weights were learned


class _Stage(NamedTuple):
    kernel: int
    stride: int
    expansion: int
    channels: int
    blocks: int


_STAGES = (
    _Stage(3, 1, 1, 16, 1),
    _Stage(3, 2, 6, 24, 2),
    _Stage(5, 2, 6, 40, 2),
    _Stage(3, 2, 6, 80, 3),
    _Stage(5, 1, 6, 112, 3),
    _Stage(5, 2, 6, 192, 4),
    _Stage(3, 1, 6, 320, 1),
)


class _Conv(nn.Conv2d):
    """A convolution without bias whose output has ⌈size / stride⌉ pixels a side.

    Where the zeros around a picture cannot be the same on both sides, there is one more below and to the
    right: so the weights were learned.
    """

    def __init__(self, inputs: int, outputs: int, kernel: int, *, stride: int = 1, groups: int = 1) -> None:
        super().__init__(inputs, outputs, kernel, stride=stride, groups=groups, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        (kernel, _), (stride, _) = self.kernel_size, self.stride
        down, right = ((ceil(side / stride) - 1) * stride + kernel - side for side in x.shape[2:])
        if down == right and down % 2 == 0:
            padding = (down // 2, right // 2)
        else:
            x = F.pad(x, (right // 2, right - right // 2, down // 2, down - down // 2))
            padding = (0, 0)
        return F.conv2d(x, self.weight, self.bias, self.stride, padding, self.dilation, self.groups)


def _layers(
    inputs: int, outputs: int, kernel: int, *, stride: int = 1, groups: int = 1, relu: bool = True
) -> Iterator[nn.Module]:
    yield _Conv(inputs, outputs, kernel, stride=stride, groups=groups)
    yield nn.BatchNorm2d(outputs, eps=_EPSILON, momentum=_MOMENTUM)
    if relu:
        yield nn.ReLU6(inplace=True)


class _Block(nn.Module):
    """1×1 conv to more channels, depthwise conv, 1×1 conv to fewer; added to its input where shapes allow."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int, expansion: int) -> None:
        super().__init__()
        inner = inputs * expansion
        self.body = nn.Sequential(
            *(_layers(inputs, inner, 1) if expansion > 1 else ()),
            *_layers(inner, inner, kernel, stride=stride, groups=inner),
            *_layers(inner, outputs, 1, relu=False),
        )
        self.added = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.body(x)
        return out + x if self.added else out


class EfficientNetLite(Extractor):
    """Stem, seven stages of inverted bottlenecks, 1×1 conv to 1280, ReLU6, global average; d = 1280.

    The last ReLU is always there, as it was when the weights were learned.
    """

    def __init__(self, *, width: float, depth: float) -> None:
        super().__init__()
        self.stem = nn.Sequential(*_layers(3, _STEM, 3, stride=2))
        blocks: list[nn.Module] = []
        inputs = _STEM
        for stage in _STAGES:
            outputs = _rounded(stage.channels * width)
            scaled = stage not in {_STAGES[0], _STAGES[-1]}
            for block in range(ceil(stage.blocks * depth) if scaled else stage.blocks):
                stride = stage.stride if block == 0 else 1
                blocks.append(_Block(inputs, outputs, stage.kernel, stride, stage.expansion))
                inputs = outputs
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Sequential(*_layers(inputs, WIDTH, 1))

    def feature_size(self, size: int) -> int:
        """Return 1280: padding keeps a pixel at any size."""
        return WIDTH if size >= 1 else 0

    def forward(self, x: Tensor) -> Tensor:
        """Return the features (n, 1280)."""
        features: Tensor = self.head(self.blocks(self.stem(x)))
        return features.mean(dim=(2, 3))

    def for_inference(self) -> Self:
        """Return a copy whose convolutions do the work of batch norm."""
        return folded(self)


def _rounded(channels: float) -> int:
    """Return the multiple of 8 nearest to a number of channels, at most a tenth below it."""
    nearest = int(channels + 4) // 8 * 8
    return nearest + 8 if nearest < 0.9 * channels else nearest


def _published(size: int) -> Preprocessing:
    return Preprocessing(size=size, mean=(127.0, 127.0, 127.0), std=(128.0, 128.0, 128.0))


register("efficientnet-lite0", lambda _: EfficientNetLite(width=1.0, depth=1.0), _published(224))
register("efficientnet-lite1", lambda _: EfficientNetLite(width=1.0, depth=1.1), _published(240))
register("efficientnet-lite2", lambda _: EfficientNetLite(width=1.1, depth=1.2), _published(260))
