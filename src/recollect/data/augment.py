"""Augmentation of whole batches: random crops, of one size or resized, flips, colours; smaller pictures.

Crops are cut from pictures as they were decoded, once, to a square: of ImageNet that is the centre of the
picture, and not the whole of it, from which the authors of published recipes cut.
"""

from dataclasses import dataclass
from math import log

import torch
from torch import Tensor
from torch.nn import functional as F

AREA = 0.08, 1.0  # of a picture that a resized crop shows
RATIO = 4 / 3  # the most of its width to its height, or the other way round
_GREY = torch.tensor([0.299, 0.587, 0.114])


@dataclass(frozen=True)
class Augmentation:
    """Pad by `pad` pixels, crop back to the picture's size at random, mirror every second picture.

    With `crops`, a random part of each picture is enlarged instead; `jitter` changes brightness, contrast and
    saturation, each by a factor in 1 ± jitter.
    """

    pad: int
    flip: bool
    crops: bool = False
    jitter: float = 0.0

    def __call__(
        self, pixels: Tensor, generator: torch.Generator, part: slice = slice(None), whole: int | None = None
    ) -> Tensor:
        """Return augmented pixels: uint8 (n, size, size, 3) → the same shape.

        They may be a part of a whole batch: each picture then becomes what it would in the whole one.
        """
        count = len(pixels) if whole is None else whole
        cut = self._resized_crop if self.crops else self._padded_crop
        pixels = cut(pixels, generator, part, count)
        if self.jitter:
            factors = 1 + self.jitter * (2 * torch.rand(3, count, generator=generator) - 1)
            pixels = change_colours(pixels.float(), *factors[:, part])
        return pixels if pixels.dtype == torch.uint8 else pixels.round_().clamp_(0, 255).to(torch.uint8)

    def _resized_crop(self, pixels: Tensor, generator: torch.Generator, part: slice, count: int) -> Tensor:
        """Cut 8 to 100 % of each picture's area, of sides 3:4 to 4:3, and enlarge it to the whole size."""
        area = torch.empty(count).uniform_(*AREA, generator=generator)
        ratio = torch.empty(count).uniform_(-log(RATIO), log(RATIO), generator=generator).exp()
        sides = torch.stack([(area * ratio).sqrt(), (area / ratio).sqrt()], dim=1).clamp(max=1)
        corner = torch.rand(count, 2, generator=generator) * (1 - sides)
        mirrored = torch.rand(count, generator=generator) < (0.5 if self.flip else 0.0)
        return resized_crop(pixels, corner[part], sides[part], mirrored[part])

    def _padded_crop(self, pixels: Tensor, generator: torch.Generator, part: slice, count: int) -> Tensor:
        top = torch.randint(0, 2 * self.pad + 1, (count, 1), generator=generator)
        left = torch.randint(0, 2 * self.pad + 1, (count, 1), generator=generator)
        mirrored = torch.rand(count, 1, generator=generator) < (0.5 if self.flip else 0.0)
        return crop(pixels, self.pad, top[part], left[part], mirrored[part])


def resized_crop(pixels: Tensor, corner: Tensor, sides: Tensor, mirrored: Tensor) -> Tensor:
    """Enlarge a part of each picture to the whole size: uint8 (n, h, w, 3) → float, the same shape.

    `corner` and `sides` (n, 2) are of the left upper corner and of width and height, in parts of the picture.
    """
    centre = 2 * corner + sides - 1  # in −1 … 1, as `affine_grid` counts
    theta = torch.zeros(len(pixels), 2, 3)
    theta[:, 0, 0] = torch.where(mirrored, -sides[:, 0], sides[:, 0])
    theta[:, 1, 1] = sides[:, 1]
    theta[:, :, 2] = centre
    planes = pixels.permute(0, 3, 1, 2).float()
    grid = F.affine_grid(theta, list(planes.shape), align_corners=False)
    cut = F.grid_sample(planes, grid, padding_mode="border", align_corners=False)
    return cut.permute(0, 2, 3, 1).contiguous()


def change_colours(values: Tensor, brightness: Tensor, contrast: Tensor, saturation: Tensor) -> Tensor:
    """Multiply brightness, then contrast, then saturation of each picture: values (n, h, w, 3), factors (n,).

    Contrast is that to the picture's mean grey, saturation that to each pixel's own grey.
    """
    values = (values * brightness.view(-1, 1, 1, 1)).clamp_(0, 255)
    mean = (values @ _GREY).mean(dim=(1, 2)).view(-1, 1, 1, 1)
    values = torch.lerp(mean, values, contrast.view(-1, 1, 1, 1)).clamp_(0, 255)
    grey = (values @ _GREY).unsqueeze(-1)
    return torch.lerp(grey, values, saturation.view(-1, 1, 1, 1)).clamp_(0, 255)


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
