"""A four-block ConvNet with a linear head whose weights differ from task to task, for all tasks at once.

What is learned on a support, and that learning's own derivative, are passed through this network many times.
`torch.func` runs it over tasks (`vmap`) with weights put in from outside (`functional_call`). torch turns a
convolution under vmap into a grouped one, which is slow on a CPU, and slower yet to differentiate twice. Here
a convolution of many tasks has its own rule. Batch norm always takes the statistics of the current batch; of
the first block these follow from the covariance of the pictures' patches, which no weight changes, so that
its normalisation costs no pass over its large maps.
"""

from collections.abc import Iterable
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.grad import conv2d_weight

from recollect.model.extractors.conv4 import Conv4

_EPSILON = 1e-5  # of batch norm
_SMALL = 8  # maps up to this size are convolved as matrix products over all tasks
_KERNEL = 3
Statistics = list[tuple[Tensor, Tensor]]  # mean and variance of each block's channels


class Patches(NamedTuple):
    """Pictures as a 3×3 convolution sees them; every part may have a dimension of tasks in front."""

    values: Tensor  # (n · h · w, 9 · 3 + 1), the last always 1
    mean: Tensor  # (9 · 3,)
    covariance: Tensor  # (9 · 3, 9 · 3)


class TaskNetwork(nn.Module):
    """The blocks of `Conv4`, and a linear head."""

    def __init__(self, extractor: Conv4, head: nn.Linear) -> None:
        super().__init__()
        self.extractor, self.head = extractor, head

    def forward(
        self, pictures: Patches, size: int, statistics: Statistics | None = None
    ) -> tuple[Tensor, Statistics]:
        """Score n pictures of `size` × `size`, (n, ways); also return each block's batch statistics.

        With `statistics`, these take the place of the batch's own.
        """
        found: Statistics = []
        x = pictures.values  # of a single task under vmap
        for index, block in enumerate(self.extractor.blocks):
            convolution, norm, _, *relu = cast("Iterable[Any]", block)
            given = statistics[index] if statistics else None
            if index == 0:
                x, own = _first(pictures, convolution.weight, norm, given)
                x = x.view(-1, size, size, x.shape[1]).permute(0, 3, 1, 2)
            else:
                x, own = _normalised(convolve(x, convolution.weight), norm, given)
            found.append(own)
            x = F.max_pool2d(x, 2)
            x = x.relu() if relu else x
        return self.head(x.flatten(1)), found


class PlainNetwork(TaskNetwork):
    """The same for the pictures (n, 3, h, w) of a single task, of torch's own layers, and not for `vmap`."""

    def forward(self, pictures: Tensor) -> Tensor:  # type: ignore[override]
        """Score n pictures: (n, ways)."""
        x = pictures
        for block in self.extractor.blocks:
            convolution, norm, _, *relu = cast("Iterable[Any]", block)
            x = F.conv2d(x, convolution.weight, padding=1)
            x = F.batch_norm(x, None, None, norm.weight, norm.bias, training=True, eps=_EPSILON)
            x = F.max_pool2d(x, 2)
            x = x.relu() if relu else x
        scores: Tensor = self.head(x.flatten(1))
        return scores


def patches(pictures: Tensor) -> Patches:
    """Return the patches of normalised pictures (tasks, n, h, w, 3)."""
    values = _columns(pictures)
    mean = values.mean(1)
    second = values.mT @ values / values.shape[1]
    return Patches(F.pad(values, (0, 1), value=1.0), mean, second - mean.unsqueeze(2) * mean.unsqueeze(1))


def _first(
    pictures: Patches, weight: Tensor, norm: nn.BatchNorm2d, given: tuple[Tensor, Tensor] | None
) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """Return the normalised maps (n · h · w, channels) of the first block, in a single product."""
    matrix = weight.permute(2, 3, 1, 0).flatten(0, 2)
    own = pictures.mean @ matrix, ((pictures.covariance @ matrix) * matrix).sum(0)
    mean, variance = given or own
    scale = norm.weight * (variance + _EPSILON).rsqrt()
    bias = norm.bias - mean * scale
    return pictures.values @ torch.cat([matrix * scale, bias.unsqueeze(0)]), own


def _normalised(
    x: Tensor, norm: nn.BatchNorm2d, given: tuple[Tensor, Tensor] | None
) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    mean = x.mean((0, 2, 3))
    centred = x - mean[:, None, None]
    own = mean, centred.square().mean((0, 2, 3))
    if given is not None:
        centred = x - given[0][:, None, None]
    scale = norm.weight * ((given or own)[1] + _EPSILON).rsqrt()
    return centred * scale[:, None, None] + norm.bias[:, None, None], own


def convolve(x: Tensor, weight: Tensor) -> Tensor:
    """Return a 3×3 convolution with zero padding, (n, in, h, w) → (n, out, h, w), fast under `vmap`."""
    result: Tensor = _Convolution.apply(x, weight)  # type: ignore[no-untyped-call]
    return result


class _Convolution(torch.autograd.Function):
    """A convolution that `vmap` turns into `_Form`."""

    @staticmethod
    def forward(x: Tensor, weight: Tensor) -> Tensor:
        return F.conv2d(x, weight, padding=1)

    @staticmethod
    def setup_context(ctx: object, inputs: object, output: object) -> None:
        """Keep nothing: it is only ever used under vmap."""

    @staticmethod
    def vmap(
        info: "torch.autograd.function.VmapInfo",  # type: ignore[name-defined]
        dims: tuple[int | None, int | None],
        *parts: Tensor,
    ) -> tuple[Tensor, int]:
        """Move the tasks to the front."""
        x, weight = (
            part.expand(info.batch_size, *part.shape) if dim is None else part.movedim(dim, 0)
            for part, dim in zip(parts, dims, strict=True)
        )
        return _form("maps", x, weight, None), 0


def _form(wanted: str, x: Tensor | None, weight: Tensor | None, maps: Tensor | None) -> Tensor:
    result: Tensor = _Form.apply(wanted, x, weight, maps)  # type: ignore[no-untyped-call]
    return result


class _Form(torch.autograd.Function):
    """The derivative of ⟨conv(x, weight), maps⟩ with respect to the one of the three that is `wanted`.

    The form is linear in each, so the derivatives of a derivative are again of this kind: any order is exact.
    Pictures (tasks, n, in, h, w), weights (tasks, out, in, 3, 3), maps (tasks, n, out, h, w).
    """

    @staticmethod
    def forward(
        ctx: "torch.autograd.function.FunctionCtx",
        wanted: str,
        x: Tensor,
        weight: Tensor,
        maps: Tensor,  # the wanted one is `None`
    ) -> Tensor:
        ctx.wanted = wanted  # type: ignore[attr-defined]
        ctx.save_for_backward(x, weight, maps)
        if wanted == "maps":
            return _maps(x, weight)
        if wanted == "weight":
            return _weights(x, maps)
        # The same convolution with weights mirrored, and inputs and outputs exchanged.
        return _maps(maps, weight.flip(3, 4).transpose(1, 2))

    @staticmethod
    def backward(ctx: "torch.autograd.function.FunctionCtx", *given: Tensor) -> tuple[Tensor | None, ...]:
        """Return the derivatives with respect to the two parts, by what was `given` for the third."""
        names = ("x", "weight", "maps")
        parts = dict(zip(names, ctx.saved_tensors, strict=True))  # type: ignore[attr-defined]
        parts[ctx.wanted] = given[0]  # type: ignore[attr-defined]
        needed = ctx.needs_input_grad[1:]  # type: ignore[attr-defined]
        return None, *(
            _form(name, **{**parts, name: None}) if need else None
            for name, need in zip(names, needed, strict=True)
        )


def _maps(x: Tensor, weight: Tensor) -> Tensor:
    if x.shape[-1] > _SMALL:
        found = [F.conv2d(one, own, padding=1) for one, own in zip(x, weight, strict=True)]
        return torch.stack([one.permute(0, 2, 3, 1) for one in found]).permute(0, 1, 4, 2, 3)
    columns = _columns(x.permute(0, 1, 3, 4, 2))
    product = columns @ weight.permute(0, 3, 4, 2, 1).flatten(1, 3)
    return product.view(len(x), x.shape[1], *x.shape[3:], -1).permute(0, 1, 4, 2, 3)


def _weights(x: Tensor, maps: Tensor) -> Tensor:
    inputs, outputs = x.shape[2], maps.shape[2]
    if x.shape[-1] > _SMALL:
        shape = (outputs, inputs, _KERNEL, _KERNEL)
        found = [
            conv2d_weight(one, shape, own, padding=1)  # type: ignore[no-untyped-call]
            for one, own in zip(x, maps, strict=True)
        ]
        return torch.stack(found)
    rows = maps.permute(0, 1, 3, 4, 2).flatten(1, 3)
    product = rows.mT @ _columns(x.permute(0, 1, 3, 4, 2))
    return product.view(len(x), outputs, _KERNEL, _KERNEL, inputs).permute(0, 1, 4, 2, 3)


def _columns(x: Tensor) -> Tensor:
    """Return the 3×3 neighbourhood of every pixel: (tasks, n, h, w, c) → (tasks, n · h · w, 9 · c)."""
    tasks, count, height, width, channels = x.shape
    padded = F.pad(x, (0, 0, 1, 1, 1, 1))
    one, two, three, four, five = padded.stride()
    shape = (tasks, count, height, width, _KERNEL, _KERNEL, channels)
    windows = padded.as_strided(shape, (one, two, three, four, three, four, five))
    return windows.reshape(tasks, count * height * width, -1)
