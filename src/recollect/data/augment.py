"""Augmentation of whole batches: zero padding, random crop, horizontal flip; smaller pictures."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F


@dataclass(frozen=True)
class Augmentation:
    """Pad by `pad` pixels, crop back to the picture's size at random, mirror every second picture."""

    pad: int
    flip: bool

    def __call__(
        self, pixels: Tensor, generator: torch.Generator, part: slice = slice(None), whole: int | None = None
    ) -> Tensor:
        """Return augmented pixels: uint8 (n, size, size, 3) → the same shape.

        They may be a part of a whole batch: each picture then becomes what it would in the whole one.
        """
        count = len(pixels) if whole is None else whole
        top = torch.randint(0, 2 * self.pad + 1, (count, 1), generator=generator)
        left = torch.randint(0, 2 * self.pad + 1, (count, 1), generator=generator)
        mirrored = torch.rand(count, 1, generator=generator) < (0.5 if self.flip else 0.0)
        return crop(pixels, self.pad, top[part], left[part], mirrored[part])


def shrink(pixels: Tensor, size: int) -> Tensor:
    """Return smaller pictures: uint8 (n, h, w, 3) → (n, size, size, 3)."""
    # Seen as (n, 3, h, w), bytes with the channels last have a kernel of their own.
    planes = pixels.permute(0, 3, 1, 2)
    return F.interpolate(planes, size=size, mode="bilinear", antialias=True).permute(0, 2, 3, 1)


def crop(pixels: Tensor, pad: int, top: Tensor, left: Tensor, mirrored: Tensor) -> Tensor:
    """Cut a window of the original size from each zero-padded picture, and mirror some.

    Pixels (n, h, w, 3); `top`, `left` in 0 … 2·pad and `mirrored`, each (n, 1).
    """
    count, height, width, channels = pixels.shape
    padded = F.pad(pixels, (0, 0, pad, pad, pad, pad))
    columns = torch.arange(width)
    rows = (top + torch.arange(height)).unsqueeze(2)
    columns = (left + torch.where(mirrored, columns.flip(0), columns)).unsqueeze(1)
    # One selection of flat pixel positions is four times quicker than indexing.
    picture = torch.arange(count).view(-1, 1, 1) * (height + 2 * pad)
    positions = (picture + rows) * (width + 2 * pad) + columns
    return padded.view(-1, channels).index_select(0, positions.view(-1)).view(count, height, width, channels)
