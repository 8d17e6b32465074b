import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageEnhance
from torch.nn import functional as F

from recollect.data import augment
from recollect.data.augment import Augmentation, change_colours, crop, resized_crop


def drawn_pixels(count, size, seed):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (count, size, size, 3), generator=generator, dtype=torch.uint8)


def reference_crop(picture, pad, top, left, mirrored):
    """Cut one picture's window from it after padding with zeros, and mirror the window."""
    height, width, _ = picture.shape
    padded = F.pad(picture.permute(2, 0, 1), (pad, pad, pad, pad)).permute(1, 2, 0)
    window = padded[top : top + height, left : left + width]
    return window.flip(1) if mirrored else window


@given(count=st.integers(1, 4), size=st.integers(1, 7), pad=st.integers(0, 4), data=st.data())
def test_crop_equals_padding_cutting_and_mirroring_each_picture(count, size, pad, data):
    pixels = drawn_pixels(count, size, data.draw(st.integers(0, 999)))
    shifts = st.lists(st.integers(0, 2 * pad), min_size=count, max_size=count)
    top, left = data.draw(shifts), data.draw(shifts)
    mirrored = data.draw(st.lists(st.booleans(), min_size=count, max_size=count))
    found = crop(
        pixels,
        pad,
        torch.tensor(top).unsqueeze(1),
        torch.tensor(left).unsqueeze(1),
        torch.tensor(mirrored).unsqueeze(1),
    )
    expected = [reference_crop(*one) for one in zip(pixels, [pad] * count, top, left, mirrored, strict=True)]
    assert found.dtype == torch.uint8
    assert torch.equal(found, torch.stack(expected))


def windows_of(picture, pad, *, mirrored):
    shifts = range(2 * pad + 1)
    return [
        reference_crop(picture, pad, top, left, flip)
        for top in shifts
        for left in shifts
        for flip in ((False, True) if mirrored else (False,))
    ]


@given(pad=st.integers(0, 2), flip=st.booleans(), seed=st.integers(0, 2**31))
def test_every_result_is_a_window_of_its_own_padded_picture(pad, flip, seed):
    pixels = drawn_pixels(4, 5, seed)
    result = Augmentation(pad, flip)(pixels, torch.Generator().manual_seed(seed))
    assert result.shape == pixels.shape
    for before, after in zip(pixels, result, strict=True):
        assert any(torch.equal(after, window) for window in windows_of(before, pad, mirrored=flip))


def test_every_window_and_orientation_occurs():
    picture = drawn_pixels(1, 4, 0)
    result = Augmentation(1, flip=True)(picture.expand(600, -1, -1, -1), torch.Generator().manual_seed(0))
    for window in windows_of(picture[0], 1, mirrored=True):  # 18 of them, 33 times each on average
        assert 10 < (result == window).flatten(1).all(1).sum() < 70


def test_without_flips_orientation_stays():
    ramp = torch.arange(6, dtype=torch.uint8).view(1, 1, 6, 1).expand(200, 6, 6, 3).contiguous()
    result = Augmentation(2, flip=False)(ramp, torch.Generator().manual_seed(0)).int()
    inside = (result[:, 2:4, 1:] > 0) & (result[:, 2:4, :-1] > 0)
    steps = (result[:, 2:4, 1:] - result[:, 2:4, :-1])[inside]
    assert (steps == 1).all()
    flipped = Augmentation(2, flip=True)(ramp, torch.Generator().manual_seed(0)).int()
    assert (flipped[:, 2, 3] - flipped[:, 2, 2] < 0).any()


def test_nothing_to_do_leaves_pictures_as_they_are():
    pixels = drawn_pixels(5, 6, 0)
    assert torch.equal(Augmentation(0, flip=False)(pixels, torch.Generator().manual_seed(0)), pixels)


def test_the_given_generator_alone_decides():
    pixels, augmentation = drawn_pixels(16, 8, 0), Augmentation(2, flip=True)
    torch.manual_seed(1)
    first = augmentation(pixels, torch.Generator().manual_seed(7))
    torch.manual_seed(2)
    again = augmentation(pixels, torch.Generator().manual_seed(7))
    other = augmentation(pixels, torch.Generator().manual_seed(8))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


@pytest.mark.parametrize("flip", [False, True])
def test_the_pictures_handed_over_are_not_changed(flip):
    pixels = drawn_pixels(4, 5, 0)
    before = pixels.clone()
    Augmentation(2, flip)(pixels, torch.Generator().manual_seed(0))
    assert torch.equal(pixels, before)


def slow_resized_crop(picture, corner, sides, *, mirrored):
    """One output pixel after the other: where it lies in the picture, and its four neighbours, weighed."""
    size = picture.shape[0]
    result = torch.empty(size, size, 3)
    for row in range(size):
        for column in range(size):
            across = (size - 1 - column if mirrored else column) + 0.5
            x = (corner[0] + sides[0] * across / size) * size - 0.5
            y = (corner[1] + sides[1] * (row + 0.5) / size) * size - 0.5
            x, y = (min(max(float(value), 0.0), size - 1.0) for value in (x, y))
            left, top = int(x), int(y)
            right, bottom = min(left + 1, size - 1), min(top + 1, size - 1)
            upper = (1 - x + left) * picture[top, left] + (x - left) * picture[top, right]
            lower = (1 - x + left) * picture[bottom, left] + (x - left) * picture[bottom, right]
            result[row, column] = (1 - y + top) * upper + (y - top) * lower
    return result


def test_a_resized_crop_is_a_part_of_its_picture_enlarged():
    pixels = drawn_pixels(4, 6, 0)
    corner = torch.tensor([[0.0, 0.0], [0.25, 0.5], [0.1, 0.3], [0.4, 0.0]])
    sides = torch.tensor([[1.0, 1.0], [0.5, 0.5], [0.7, 0.4], [0.3, 0.9]])
    mirrored = torch.tensor([False, False, True, True])
    found = resized_crop(pixels, corner, sides, mirrored)
    for number in range(4):
        expected = slow_resized_crop(
            pixels[number].float(), corner[number], sides[number], mirrored=bool(mirrored[number])
        )
        torch.testing.assert_close(found[number], expected, atol=2e-3, rtol=0)
    torch.testing.assert_close(found[0], pixels[0].float(), atol=2e-3, rtol=0)


def test_colours_change_as_pillow_changes_them():
    pixels = drawn_pixels(3, 8, 1)
    factors = torch.tensor(
        [[1.4, 0.6, 1.0], [0.7, 1.3, 1.2], [0.6, 1.0, 1.4]]
    )  # of each kind, of each picture
    found = change_colours(pixels.float(), *factors)
    for number, picture in enumerate(pixels):
        image = Image.fromarray(picture.numpy())
        for enhance, own in zip(
            (ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color),
            factors[:, number],
            strict=True,
        ):
            image = enhance(image).enhance(float(own))
        torch.testing.assert_close(found[number], torch.tensor(np.asarray(image)).float(), atol=3, rtol=0)


def test_crops_and_jitter_are_drawn_for_every_picture():
    same = drawn_pixels(1, 16, 2).expand(64, -1, -1, -1)
    draw = torch.Generator().manual_seed(0)
    cut = Augmentation(2, flip=True, crops=True)(same, draw)
    assert cut.dtype == torch.uint8
    assert len({tuple(one.flatten().tolist()) for one in cut}) == 64
    flat = torch.full((64, 4, 4, 3), 100, dtype=torch.uint8)
    coloured = Augmentation(0, flip=False, jitter=0.4)(flat, draw)
    brightness = coloured.float().mean((1, 2, 3))
    assert 60 <= brightness.min() < 70
    assert 130 < brightness.max() <= 140
    again = Augmentation(0, flip=False, jitter=0.4)(flat, torch.Generator().manual_seed(0))
    assert not torch.equal(again, coloured), "random numbers are the generator's"


def test_crops_show_eight_to_a_hundred_percent_of_the_picture(monkeypatch):
    shown = []
    monkeypatch.setattr(augment, "resized_crop", lambda pixels, *place: shown.append(place) or pixels.float())
    Augmentation(0, flip=True, crops=True)(drawn_pixels(4000, 1, 0), torch.Generator().manual_seed(0))
    corner, sides, mirrored = shown[0]
    area, ratio = sides.prod(1), sides[:, 0] / sides[:, 1]
    assert 0.08 <= area.min() < 0.09
    assert area.max() > 0.95
    assert 0.75 <= ratio.min() + 1e-4 < 0.78
    assert 1.3 < ratio.max() - 1e-4 <= 4 / 3
    assert (corner >= 0).all()
    assert (corner + sides <= 1 + 1e-6).all()
    assert 0.45 < mirrored.float().mean() < 0.55
