"""The blocks of `Conv4` in C, where there is a compiler: about twice as fast as torch's layers on a CPU.

`blocks.c` computes a 3×3 convolution, batch norm, 2×2 max-pooling and ReLU with fewer multiplications
(Winograd) and fewer passes over memory. The results are torch's, up to rounding.
"""

import ctypes
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from recollect.system import compiled, workers

_SOURCE = Path(__file__).with_name("blocks.c")
_left_to_torch: list[bool] = []
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
    "convolution": [_POINTER] * 4 + [_SIZE] * 6 + [_POINTER],
    "pooling": [_POINTER] * 6 + [_SIZE] * 4 + [_FLAG, _SIZE],
    "block": [_POINTER] * 5 + [_SIZE] * 5 + [_FLAG, _SIZE, _POINTER],
    "back_moments": [_POINTER] * 5 + [_SIZE] * 2 + [_FLAG, _SIZE],
    "back_convolution": [_POINTER] * 9 + [_SIZE] * 5 + [_FLAG, _SIZE, _POINTER],
}


def _functions() -> Any:  # noqa: ANN401
    found = compiled.library(_SOURCE)
    if found is not None and found.block.argtypes is None:
        for name, arguments in _ARGUMENTS.items():
            getattr(found, name).argtypes, getattr(found, name).restype = arguments, None
        found.scratch_floats.restype = _SIZE
    return found


def available() -> bool:
    """Return whether blocks can be computed in C here."""
    return not _left_to_torch and _functions() is not None


def leave_to_torch() -> None:
    """Compute nothing in C from now on, as where another process of a training cannot."""
    _left_to_torch.append(True)


def usable(blocks: Sequence[nn.Sequential], x: Tensor, *, training: bool) -> bool:
    """Return whether C can compute these blocks for the pictures x (n, 3, h, w); otherwise torch must."""
    # Gradients of the pictures themselves, and other kinds of tensors and of derivatives, are left to torch.
    kinds = [type(x) is Tensor or type(x) is nn.Parameter, x.ndim == 4, _is_plain(x), not x.requires_grad]
    modes = [torch.is_autocast_enabled("cpu"), torch.compiler.is_compiling(), _transforms_active()]
    if not all(kinds) or any(modes) or not available():
        return False
    count, inputs, *sides = x.shape
    layers: list[list[Any]] = [list(block) for block in blocks]
    channels = [convolution.out_channels for convolution, *_ in layers]
    return (
        count > 0
        and inputs == _COLOURS
        and min(sides) >= 2 ** len(blocks)
        and not any(number % _VECTOR for number in channels)
        and all(norm.training == training for _, norm, *_ in layers)
        and all(_is_plain(weight) for block in blocks for weight in block.parameters())
    )


def learning(block: nn.Sequential, x: Tensor) -> Tensor:
    """Return what a block makes of the pictures `x` in training; its running statistics are updated."""
    layers: list[Any] = list(block)
    convolution, norm, _, *relu = layers
    together = type(norm) is not nn.BatchNorm2d  # statistics are those of all processes
    z, mean, variance = _Learning.apply(  # type: ignore[no-untyped-call]
        x, convolution.weight, norm.weight, norm.bias, norm.eps, bool(relu), together
    )
    with torch.no_grad():
        norm.num_batches_tracked += 1
        norm.running_mean.lerp_(mean, norm.momentum)
        norm.running_var.lerp_(variance, norm.momentum)
    return cast("Tensor", z).permute(0, 3, 1, 2)


def known(blocks: Sequence[nn.Sequential]) -> list[Callable[[Tensor], Tensor]]:
    """Return functions that compute the blocks in evaluation mode, with their weights as they are now.

    There are none where C cannot be used.
    """
    plain = all(_is_plain(weight) for block in blocks for weight in block.parameters())
    return [_known(block) for block in blocks] if plain and available() else []


def _known(block: nn.Sequential) -> Callable[[Tensor], Tensor]:
    layers: list[Any] = list(block)
    convolution, norm, _, *relu = layers
    with torch.no_grad():
        filters = _transformed(convolution.weight)
        scale = norm.weight * (norm.running_var + norm.eps).rsqrt()
        shift = norm.bias - norm.running_mean * scale

    def compute(x: Tensor) -> Tensor:
        pictures = _channels_last(x)
        count, height, width, inputs = pictures.shape
        shape = (height, width, inputs, len(scale))
        z = _empty(count, height // 2, width // 2, len(scale))
        call = (count, *shape, bool(relu), *_parts(count, shape))
        _call("block", pictures, filters, scale, shift, z, *call)
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
        together: bool,
    ) -> tuple[Tensor, Tensor, Tensor]:
        pictures, filters = _channels_last(x), _transformed(weight)
        count, height, width, inputs = pictures.shape
        shape = (height, width, inputs, len(weight))
        parts, scratch = _parts(count, shape)
        y = _empty(count, height, width, len(weight))
        moments = _empty(parts, 2, len(weight), dtype=torch.double).zero_()
        _call("convolution", pictures, filters, y, moments, count, *shape, parts, scratch)
        sums, number = _over_processes(moments.sum(0), count * height * width, together)
        mean = sums[0] / number
        variance = (sums[1] / number - mean.square()).clamp_min(0)
        deviation = (variance + epsilon).rsqrt()
        scale = (gamma * deviation).float()
        shift = (beta - mean * gamma * deviation).float()
        most = _empty(count, height // 2, width // 2, len(weight))
        z, place = torch.empty_like(most), torch.empty_like(most, dtype=torch.uint8)
        _call("pooling", y, scale, shift, most, place, z, count, height, width, len(weight), relu, parts)
        ctx.save_for_backward(pictures, filters, y, most, place, scale, shift, mean, deviation, gamma)
        ctx.relu, ctx.number, ctx.together = relu, number, together
        unbiased = variance * number / (number - 1)
        found = mean.float(), unbiased.float()
        ctx.mark_non_differentiable(*found)
        return z, *found

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        """Return the gradients of pictures (but for the first block's), filters, γ and β."""
        pictures, filters, y, most, place, scale, shift, mean, deviation, gamma = ctx.saved_tensors
        count, height, width, inputs = pictures.shape
        shape, given = (height, width, inputs, y.shape[3]), gradient.contiguous()
        parts, scratch = _parts(count, shape)
        moments = _empty(parts, 2, y.shape[3], dtype=torch.double).zero_()
        pixels = count * (height // 2) * (width // 2)
        _call("back_moments", given, most, scale, shift, moments, pixels, y.shape[3], ctx.relu, parts)
        own = moments.sum(0)
        sums, _number = _over_processes(own, 0, ctx.together)
        # dy = γ / σ · (g − mean of g − ŷ · mean of g ŷ), as a sum of multiples of g, of y and of 1
        by_gradient = gamma * deviation
        by_y = -by_gradient * deviation.square() * (sums[1] - mean * sums[0]) / ctx.number
        constant = -by_gradient * sums[0] / ctx.number - by_y * mean
        channels = torch.stack([scale, shift, by_gradient.float(), by_y.float(), constant.float()])
        colours = inputs == _COLOURS
        dx = _empty(0) if colours else torch.empty_like(pictures)
        back = filters if colours else filters.transpose(1, 2).contiguous()
        changes = _empty(parts, *filters.shape).zero_()
        call = (count, *shape, ctx.relu, parts, scratch)
        _call("back_convolution", pictures, back, y, most, place, given, channels, dx, changes, *call)
        dgamma = (own[1] - mean * own[0]) * deviation
        dx_seen = None if colours else dx.permute(0, 3, 1, 2)
        return dx_seen, _filters_of(changes.sum(0)), dgamma.float(), own[0].float(), None, None, None


def _transformed(weight: Tensor) -> Tensor:
    """Return filters (out, in, 3, 3) in the layout of `blocks.c`: (36, in, out); colours (9, 3, out)."""
    outputs, inputs = weight.shape[:2]
    filters = weight.permute(2, 3, 1, 0).reshape(9, inputs, outputs).contiguous()
    return filters if inputs == _COLOURS else (_transform() @ filters.flatten(1)).view(-1, inputs, outputs)


def _filters_of(changes: Tensor) -> Tensor:
    """Return gradients of `_transformed` filters as those of the filters."""
    inputs, outputs = changes.shape[1:]
    filters = changes if inputs == _COLOURS else _transform().T @ changes.flatten(1)
    return filters.view(3, 3, inputs, outputs).permute(3, 2, 0, 1)


@cache
def _transform() -> Tensor:
    """Return G ⊗ G (36, 9), by which G g Gᵀ is one product."""
    with torch.inference_mode(mode=False):
        g = torch.tensor(_FILTERS, dtype=torch.float32, device="cpu")
        return torch.kron(g, g)


def _channels_last(x: Tensor) -> Tensor:
    return x.permute(0, 2, 3, 1).contiguous()


def _is_plain(values: Tensor) -> bool:
    return values.device.type == "cpu" and values.dtype == torch.float32


def _transforms_active() -> bool:
    """Return whether torch.func differentiates or batches what is computed."""
    return bool(torch._C._are_functorch_transforms_active())  # noqa: SLF001


def _empty(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return memory for C, whatever torch's defaults are."""
    return torch.empty(shape, dtype=dtype, device="cpu")


def _call(name: str, *arguments: Tensor | int) -> None:
    """Call a function of `blocks.c`, with the memory of tensors."""
    tensors = [one for one in arguments if isinstance(one, Tensor)]
    kinds = {torch.float32, torch.double, torch.uint8}
    if not all(one.device.type == "cpu" and one.dtype in kinds and one.is_contiguous() for one in tensors):
        raise ValueError("blocks.c takes dense tensors on the CPU")  # it would write anywhere
    getattr(_functions(), name)(*(one.data_ptr() if isinstance(one, Tensor) else one for one in arguments))


def _parts(count: int, shape: tuple[int, int, int, int]) -> tuple[int, Tensor]:
    """Return among how many threads so many pictures are shared, and the threads' working memory."""
    parts = min(torch.get_num_threads(), count)
    return parts, _empty(parts, _functions().scratch_floats(*shape))


def _over_processes(sums: Tensor, number: int, together: bool) -> tuple[Tensor, float]:
    """Add up what the processes of a training found, if they compute together."""
    if not together:
        return sums, number
    both = workers.total_of(torch.cat([sums.flatten(), torch.tensor([number], dtype=sums.dtype)]))
    return both[:-1].view_as(sums), float(both[-1])
