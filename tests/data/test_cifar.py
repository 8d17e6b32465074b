import json
import os
import shutil
from importlib import resources
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from pictures import pixels_of, write_picture, write_zip
from recollect.data import cifar
from recollect.errors import DataError, PictureError

WORDS = json.loads(resources.files("recollect.data").joinpath("cifar-fs.json").read_text(encoding="utf-8"))
ALL = sorted([*WORDS["train"], *WORDS["val"], *WORDS["test"]])
TRAIN, TEST = 3, 2  # pictures of a category here


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A folder laid out like CIFAR-100, few pictures of each category, every one different."""
    root = tmp_path_factory.mktemp("cifar")
    for label, category in enumerate(ALL):
        for part, count in (("train", TRAIN), ("test", TEST)):
            for number in range(count):
                seed = 100 * label + 10 * number + (part == "test")
                path = root / part / category / f"{number:04}.png"
                path.parent.mkdir(parents=True, exist_ok=True)
                Image.fromarray(pixels_of(seed, 8)).save(path, compress_level=1)
    return root


@pytest.fixture
def folder(whole, tmp_path):
    """A copy that a test may alter; unaltered files are links."""
    shutil.copytree(whole, tmp_path / "cifar", copy_function=os.link)
    return tmp_path / "cifar"


@pytest.fixture(autouse=True)
def few_pictures(monkeypatch):
    monkeypatch.setattr(cifar, "VAL_PICTURES", 1)


def pixels(images):
    return {picture.tobytes() for picture in images.take(np.arange(len(images)))}


def written(part, categories, count):
    return {
        pixels_of(100 * ALL.index(category) + 10 * number + (part == "test"), 8).tobytes()
        for category in categories
        for number in range(count)
    }


def assert_published(split):
    assert split.categories == tuple(sorted(WORDS["train"]))
    base_train, base_val, base_test = (
        pixels(part) for part in (split.base_train, split.base_val, split.base_test)
    )
    assert base_test == written("test", WORDS["train"], TEST)
    assert not base_train & base_val
    assert base_train | base_val == written("train", WORDS["train"], TRAIN)
    assert np.bincount(split.base_train.labels).tolist() == [2] * 64
    assert np.bincount(split.base_val.labels).tolist() == [1] * 64
    for part, images in (("val", split.val), ("test", split.test)):
        assert images.categories == tuple(WORDS[part])
        assert pixels(images) == written("train", WORDS[part], TRAIN) | written("test", WORDS[part], TEST)


def test_the_published_split_is_64_16_20_without_overlap():
    assert [len(WORDS[part]) for part in ("train", "val", "test")] == [64, 16, 20]
    assert len(set(ALL)) == 100


@pytest.mark.parametrize("top", [None, "", "cifar100/images/"])
def test_base_tests_are_the_official_test_pictures_in_folder_and_archive(whole, tmp_path, top):
    path = whole if top is None else write_zip(tmp_path / "cifar.zip", whole, top)
    split = cifar.load(path, size=8)
    assert split.flips
    assert_published(split)


def test_which_pictures_are_for_validation_is_the_same_everywhere(whole, tmp_path):
    here = cifar.load(whole, size=8)
    there = cifar.load(write_zip(tmp_path / "moved.zip", whole, "elsewhere/"), size=8)
    assert pixels(here.base_val) == pixels(there.base_val)


def test_pictures_come_at_32_unless_a_size_is_asked_for(whole):
    assert cifar.load(whole).base_train.size == 32


def test_a_missing_category_is_named(folder):
    for part in ("train", "test"):
        shutil.rmtree(folder / part / "wolf")
    with pytest.raises(DataError, match="lacks 1 categories of CIFAR-100, 'wolf'"):
        cifar.load(folder, size=8)


def test_a_category_that_cifar_does_not_have_is_named(folder):
    write_picture(folder / "train" / "okapi" / "0.png")
    with pytest.raises(DataError, match="'okapi', which is not a category"):
        cifar.load(folder, size=8)


@pytest.mark.parametrize("stray", ["stray.png", "train/stray.png", "valid/apple/stray.png"])
def test_another_layout_is_refused_by_the_first_file_that_shows_it(folder, stray):
    write_picture(folder / stray)
    with pytest.raises(DataError, match=rf"{stray}: train/<category>/\*\.png and test/"):
        cifar.load(folder, size=8)


def test_a_base_category_without_official_test_pictures_is_named(folder):
    shutil.rmtree(folder / "test" / "wolf")
    with pytest.raises(DataError, match="category 'wolf'"):
        cifar.load(folder, size=8)


def test_a_copy_without_test_pictures_is_refused(folder):
    shutil.rmtree(folder / "test")
    with pytest.raises(DataError, match="category 'apple'"):
        cifar.load(folder, size=8)


def test_a_base_category_with_nothing_left_to_learn_from_is_named(whole, monkeypatch):
    monkeypatch.setattr(cifar, "VAL_PICTURES", TRAIN)
    with pytest.raises(DataError, match="category 'apple' has 5 pictures, too few"):
        cifar.load(whole, size=8)


def spoil(path):
    path.unlink()
    path.write_bytes(b"no picture")


def test_a_picture_that_does_not_decode_is_named_or_left_out(folder):
    spoil(folder / "train" / "baby" / "0001.png")
    with pytest.raises(PictureError, match=r"train/baby/0001\.png"):
        cifar.load(folder, size=8)
    split = cifar.load(folder, size=8, skip_bad=True)
    assert len(split.test) == 20 * (TRAIN + TEST) - 1


def test_a_category_of_which_nothing_decodes_is_named(folder):
    for path in folder.glob("*/baby/*.png"):
        spoil(path)
    with pytest.raises(DataError, match="no picture of 'baby'"):
        cifar.load(folder, size=8, skip_bad=True)


def test_a_split_of_ones_own_is_refused(whole):
    with pytest.raises(DataError, match="leave --split out"):
        cifar.load(whole, split="1")


@pytest.mark.data
@pytest.mark.skipif(
    "RECOLLECT_DATA" not in os.environ, reason="RECOLLECT_DATA does not say where cifar-100/images.zip is"
)
def test_the_real_cifar_fs_has_the_published_numbers(monkeypatch):
    monkeypatch.setattr(cifar, "VAL_PICTURES", 50)
    split = cifar.load(Path(os.environ["RECOLLECT_DATA"]) / "cifar-100" / "images.zip")
    for images, categories, each in (
        (split.base_train, 64, 450),
        (split.base_val, 64, 50),
        (split.base_test, 64, 100),
        (split.val, 16, 600),
        (split.test, 20, 600),
    ):
        assert images.size == 32
        assert np.bincount(images.labels).tolist() == [each] * categories
    rows = [part.rows for part in (split.base_train, split.base_val, split.base_test, split.val, split.test)]
    assert len(np.unique(np.concatenate(rows))) == 60_000
