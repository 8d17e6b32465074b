import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional as F

from recollect.data.augment import Augmentation, crop


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
