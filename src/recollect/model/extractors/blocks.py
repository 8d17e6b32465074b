"""The blocks of `Conv4` in C, where there is a compiler: about twice as fast as torch's layers on a CPU.

`blocks.c` computes a 3×3 convolution, batch norm, 2×2 max-pooling and ReLU with fewer multiplications
(Winograd) and fewer passes over memory. The results are torch's, up to rounding.
"""

import ctypes
import threading
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from recollect.system import compiled, workers

Result = TypeVar("Result")
_COLOURS = 3
_VECTOR = 16  # channels that are computed together
# Winograd's transform of filters, for tiles of 4×4: u = G g Gᵀ.
_FILTERS = (
    (1 / 4, 0, 0),
    (-1 / 6, -1 / 6, -1 / 6),
    (-1 / 6, 1 / 6, -1 / 6),
    (1 / 24, 1 / 12, 1 / 6),
    (1 / 24, -1 / 12, 1 / 6),
    (0, 0, 1),
)
_POINTER, _SIZE, _FLAG = ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int
_ARGUMENTS = {
    "scratch_floats": [_SIZE] * 4,
    "convolution": [_POINTER] * 4 + [_SIZE] * 5 + [_POINTER],
    "pooling": [_POINTER] * 6 + [_SIZE] * 4 + [_FLAG],
    "block": [_POINTER] * 5 + [_SIZE] * 5 + [_FLAG, _POINTER],
    "back_moments": [_POINTER] * 5 + [_SIZE] * 2 + [_FLAG],
    "back_convolution": [_POINTER] * 9 + [_SIZE] * 5 + [_FLAG, _POINTER],
}


@cache
def _functions() -> Any:  # noqa: ANN401
    found = compiled.library(Path(__file__).with_name("blocks.c"))
    if found is not None:
        for name, arguments in _ARGUMENTS.items():
            getattr(found, name).argtypes, getattr(found, name).restype = arguments, None
        found.scratch_floats.restype = _SIZE
    return found


def usable(channels: tuple[int, ...], x: Tensor) -> bool:
    """Return whether blocks with so many channels can be computed here for the pictures `x`."""
    # Gradients of the pictures themselves are left to torch.
    plain = x.device.type == "cpu" and x.dtype == torch.float32 and not x.requires_grad and len(x) > 0
    return plain and not any(count % _VECTOR for count in channels) and _functions() is not None


def learning(block: nn.Sequential, x: Tensor) -> Tensor:
    """Return what a block makes of the pictures `x` in training; its running statistics are updated."""
    layers: list[Any] = list(block)
    convolution, norm, _, *relu = layers
    z, mean, variance = _Learning.apply(  # type: ignore[no-untyped-call]
        x, convolution.weight, norm.weight, norm.bias, norm.eps, bool(relu)
    )
    with torch.no_grad():
        norm.num_batches_tracked += 1
        norm.running_mean.lerp_(mean, norm.momentum)
        norm.running_var.lerp_(variance, norm.momentum)
    return cast("Tensor", z)


def known(block: nn.Sequential) -> Callable[[Tensor], Tensor]:
    """Return what computes a block in evaluation mode, with its weights as they are now."""
    layers: list[Any] = list(block)
    convolution, norm, _, *relu = layers
    with torch.no_grad():
        filters = _transformed(convolution.weight)
        scale = norm.weight * (norm.running_var + norm.eps).rsqrt()
        shift = norm.bias - norm.running_mean * scale

    def compute(x: Tensor) -> Tensor:
        pictures = _channels_last(x)
        count, height, width, inputs = pictures.shape
        outputs = len(scale)
        z = torch.empty(count, height // 2, width // 2, outputs)

        def work(first: int, last: int, scratch: Tensor) -> None:
            _functions().block(
                _at(pictures, first),
                _at(filters),
                _at(scale),
                _at(shift),
                _at(z, first),
                last - first,
                height,
                width,
                inputs,
                outputs,
                bool(relu),
                _at(scratch),
            )

        _in_threads(count, work, (height, width, inputs, outputs))
        return z.permute(0, 3, 1, 2)

    return compute


class _Learning(torch.autograd.Function):
    """A block in training: pictures, filters, γ and β → maps, mean and variance of each channel."""

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401
        x: Tensor,
        weight: Tensor,
        gamma: Tensor,
        beta: Tensor,
        epsilon: float,
        relu: bool,
    ) -> tuple[Tensor, Tensor, Tensor]:
        pictures, filters = _channels_last(x), _transformed(weight)
        count, height, width, inputs = pictures.shape
        outputs = len(weight)
        y = torch.empty(count, height, width, outputs)
        most = torch.empty(count, height // 2, width // 2, outputs)
        z, place = torch.empty_like(most), torch.empty_like(most, dtype=torch.uint8)
        shape = (height, width, inputs, outputs)

        def convolve(first: int, last: int, scratch: Tensor) -> Tensor:
            sums = torch.zeros(2, outputs, dtype=torch.double)
            _functions().convolution(
                _at(pictures, first),
                _at(filters),
                _at(y, first),
                _at(sums),
                last - first,
                *shape,
                _at(scratch),
            )
            return sums

        own = torch.stack(_in_threads(count, convolve, shape)).sum(0)
        sums, number = _over_processes(own, count * height * width)
        mean = sums[0] / number
        variance = (sums[1] / number - mean.square()).clamp_min(0)
        deviation = (variance + epsilon).rsqrt()
        scale = (gamma * deviation).float()
        shift = (beta - mean * gamma * deviation).float()

        def pool(first: int, last: int, _: Tensor) -> None:
            places = _at(most, first), _at(place, first), _at(z, first)
            _functions().pooling(
                _at(y, first), _at(scale), _at(shift), *places, last - first, height, width, outputs, relu
            )

        _in_threads(count, pool, shape)
        ctx.save_for_backward(pictures, filters, y, most, place, scale, shift, mean, deviation, gamma)
        ctx.relu, ctx.number = relu, number
        unbiased = variance * number / (number - 1)
        found = mean.float(), unbiased.float()
        ctx.mark_non_differentiable(*found)
        return z.permute(0, 3, 1, 2), *found

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        """Return the gradients of pictures (but for the first block's), filters, γ and β."""
        pictures, filters, y, most, place, scale, shift, mean, deviation, gamma = ctx.saved_tensors
        count, height, width, inputs = pictures.shape
        outputs, pooled = y.shape[3], (height // 2) * (width // 2)
        shape = (height, width, inputs, outputs)
        given = _channels_last(gradient)

        def moments(first: int, last: int, _: Tensor) -> Tensor:
            sums = torch.zeros(2, outputs, dtype=torch.double)
            places = _at(given, first), _at(most, first), _at(scale), _at(shift), _at(sums)
            _functions().back_moments(*places, (last - first) * pooled, outputs, ctx.relu)
            return sums

        own = torch.stack(_in_threads(count, moments, shape)).sum(0)
        sums, _number = _over_processes(own, 0)
        # dy = γ / σ · (g − mean of g − ŷ · mean of g ŷ), as a sum of multiples of g, of y and of 1
        by_gradient = gamma * deviation
        by_y = -by_gradient * deviation.square() * (sums[1] - mean * sums[0]) / ctx.number
        constant = -by_gradient * sums[0] / ctx.number - by_y * mean
        channels = torch.stack([scale, shift, by_gradient.float(), by_y.float(), constant.float()])
        first_block = inputs == _COLOURS
        dx = torch.empty_like(pictures[:0] if first_block else pictures)
        back = filters if first_block else filters.transpose(1, 2).contiguous()

        def convolve(first: int, last: int, scratch: Tensor) -> Tensor:
            changes = torch.zeros_like(filters)
            _functions().back_convolution(
                _at(pictures, first),
                _at(back),
                _at(y, first),
                _at(most, first),
                _at(place, first),
                _at(given, first),
                _at(channels),
                0 if first_block else _at(dx, first),
                _at(changes),
                last - first,
                *shape,
                ctx.relu,
                _at(scratch),
            )
            return changes

        changes = torch.stack(_in_threads(count, convolve, shape)).sum(0)
        dgamma = (own[1] - mean * own[0]) * deviation
        dx_seen = None if first_block else dx.permute(0, 3, 1, 2)
        return dx_seen, _filters_of(changes), dgamma.float(), own[0].float(), None, None


def _transformed(weight: Tensor) -> Tensor:
    """Return filters (out, in, 3, 3) as `blocks.c` wants them: (36, in, out), or (9, 3, out) of colours."""
    if weight.shape[1] == _COLOURS:
        return weight.permute(2, 3, 1, 0).flatten(0, 1).contiguous()
    g = torch.tensor(_FILTERS)
    return torch.einsum("pi,ocij,qj->pqco", g, weight, g).flatten(0, 1).contiguous()


def _filters_of(changes: Tensor) -> Tensor:
    """Return gradients of `_transformed` filters as those of the filters."""
    if changes.shape[1] == _COLOURS:
        return changes.view(3, 3, *changes.shape[1:]).permute(3, 2, 0, 1)
    g = torch.tensor(_FILTERS)
    return torch.einsum("pqco,pi,qj->ocij", changes.view(6, 6, *changes.shape[1:]), g, g)


def _channels_last(x: Tensor) -> Tensor:
    return x.permute(0, 2, 3, 1).contiguous()


def _at(values: Tensor, first: int = 0) -> int:
    """Return where a tensor's values begin, or those of its row `first`."""
    return values.data_ptr() + first * values.stride(0) * values.element_size()


def _over_processes(sums: Tensor, number: int) -> tuple[Tensor, float]:
    """Add up what the processes of a training found."""
    both = workers.total_of(torch.cat([sums.flatten(), torch.tensor([number], dtype=sums.dtype)]))
    return both[:-1].view_as(sums), float(both[-1])


def _in_threads(
    count: int, work: Callable[[int, int, Tensor], Result], shape: tuple[int, int, int, int]
) -> list[Result]:
    """Share pictures among as many threads as torch has; `work` gets the first, the last and memory."""
    parts = min(torch.get_num_threads(), count)
    bounds = [count * part // parts for part in range(parts + 1)]
    scratch = torch.empty(parts, _functions().scratch_floats(*shape))
    results: dict[int, Result] = {}

    def run(part: int) -> None:
        results[part] = work(bounds[part], bounds[part + 1], scratch[part])

    threads = [threading.Thread(target=run, args=[part]) for part in range(1, parts)]
    for thread in threads:
        thread.start()
    run(0)
    for thread in threads:
        thread.join()
    return [results[part] for part in range(parts)]
