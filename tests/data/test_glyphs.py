import re

import numpy as np
import pytest
from PIL import Image, ImageFilter

from recollect.data import glyphs
from recollect.errors import DataError

ALL = glyphs.BASE + glyphs.VALIDATION + glyphs.TEST


def clean(category, typeface, degrees=0):
    """The upright character turned, as large as its box allows, blurred; (576,), mean 0, length 1."""
    turned = glyphs.mask(category, typeface).rotate(degrees, Image.Resampling.BILINEAR, expand=True)
    turned = turned.crop(turned.getbbox())
    turned.thumbnail((22, 22))
    centred = Image.new("L", (24, 24))
    centred.paste(turned, ((24 - turned.width) // 2, (24 - turned.height) // 2))
    pixels = np.asarray(centred.filter(ImageFilter.GaussianBlur(1.2)), float).ravel()
    pixels -= pixels.mean()
    return pixels / np.linalg.norm(pixels)


def test_one_hundred_categories_in_three_disjoint_parts():
    assert [len(glyphs.BASE), len(glyphs.VALIDATION), len(glyphs.TEST)] == [64, 16, 20]
    assert len(set(ALL)) == 100


def test_every_script_is_in_every_part():
    base, validation, test = (
        {name.split("-")[0] for name in part} for part in (glyphs.BASE, glyphs.VALIDATION, glyphs.TEST)
    )
    assert base == validation == test


def test_names_are_safe_as_file_names():
    assert [name for name in ALL if not re.fullmatch(r"[a-z]+(-[a-z]+)+", name)] == []


def test_every_category_has_several_typefaces():
    for category in ALL:
        faces = glyphs.typefaces(category)
        assert len(faces) >= 2, category
        assert "DejaVuSans" in faces, category


@pytest.mark.parametrize("typeface", glyphs._TYPEFACES)
def test_no_two_categories_look_alike(typeface):
    names = [name for name in ALL if typeface in glyphs.typefaces(name)]
    upright = np.stack([clean(name, typeface) for name in names])
    for degrees in (-30, -20, -10, 0, 10, 20, 30):
        likeness = upright @ np.stack([clean(name, typeface, degrees) for name in names]).T
        np.fill_diagonal(likeness, 0)
        first, second = np.unravel_index(likeness.argmax(), likeness.shape)
        assert likeness[first, second] < 0.87, f"{names[first]} and {names[second]} at {degrees} degrees"


def test_pictures_of_a_category_are_rgb_and_all_different():
    for category in ALL:
        pictures = glyphs.render(category, 6)
        assert pictures.dtype == np.uint8
        assert pictures.shape == (6, 32, 32, 3)
        assert len({picture.tobytes() for picture in pictures}) == 6, category


def test_the_same_seed_gives_the_same_pixels_and_another_seed_gives_others():
    first = glyphs.render("greek-xi", 5, seed=3)
    glyphs.render("latin-g", 2, seed=3)
    assert np.array_equal(first, glyphs.render("greek-xi", 5, seed=3))
    others = glyphs.render("greek-xi", 5, seed=4)
    assert all((first[i] != others[i]).any() for i in range(5))


@pytest.mark.parametrize("count", [0, 1, 7])
def test_the_first_pictures_do_not_depend_on_how_many_follow(count):
    assert np.array_equal(glyphs.render("hebrew-shin", count), glyphs.render("hebrew-shin", 40)[:count])


def test_categories_do_not_share_their_random_numbers():
    # Were pose and colours the same for every category, the corners would tell a task's pictures apart.
    corners = {glyphs.render(name, 1)[0, 0, 0].tobytes() for name in ALL}
    assert len(corners) > 90


def test_an_unknown_category_is_named_with_what_there_is():
    with pytest.raises(DataError, match=r"klingon-a.*latin-g"):
        glyphs.render("klingon-a", 1)
