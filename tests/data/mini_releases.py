"""Small copies of mini-ImageNet in its four layouts, for tests."""

import pickle

import numpy as np
import pytest
from archives import pack
from PIL import Image

from pictures import pixels_of, tree
from recollect.data import mini_imagenet

SIZE = 8

EACH = 8  # pictures of a category: 6 / 1 / 1 of a base one

ADDED = 2 * EACH + 2  # the line that comes after the header and the pictures of two categories

CATEGORIES = {"train": ("n01", "n02", "n03"), "val": ("n04", "n05"), "test": ("n06", "n07")}

PHASES = {"train_phase_train": (0, 6), "train_phase_val": (6, 7), "train_phase_test": (7, 8)}

BASE_PARTS = ("base_train", "base_val", "base_test")


def pictures(category):
    return np.stack([pixels_of(100 * int(category[1:]) + number, SIZE) for number in range(EACH)])


def file_of(category, number):
    return f"{category}{number:08}.jpg"


def write_csvs(root, folder):
    """Write JPEGs into a folder, or into one for each category or set, and the CSV files beside them."""
    for part, categories in CATEGORIES.items():
        lines = ["filename,label"]
        for category in categories:
            place = root / folder.format(category=category, part=part)
            place.mkdir(parents=True, exist_ok=True)
            for number, pixels in enumerate(pictures(category)):
                file = file_of(category, number)
                Image.fromarray(pixels).save(place / file, quality=100, subsampling=0)
                lines.append(f"{file},{category}")
        (root / f"{part}.csv").write_text("\n".join(lines) + "\n")


def write_pickle(path, content, protocol=4):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(pickle.dumps(content, protocol))


def phase_content(categories, start=0, stop=EACH, *, names=True):
    """What a file of the release with five pickles holds; labels count through all sets."""
    labels = {category: int(category[1:]) - 1 for category in categories}
    content = {
        "data": np.concatenate([pictures(category)[start:stop] for category in categories]),
        "labels": [label for label in labels.values() for _ in range(stop - start)],
    }
    return content | ({"catname2label": labels} if names else {})


def cache_content(categories):
    """What a file of the release with three pickles holds, the categories' rows mixed."""
    count = len(categories)
    return {
        "image_data": np.stack([pictures(category) for category in categories], 1).reshape(-1, SIZE, SIZE, 3),
        "class_dict": {
            category: list(range(index, EACH * count, count)) for index, category in enumerate(categories)
        },
    }


def phase_file(part):
    return f"miniImageNet_category_split_{part}.pickle"


def cache_file(part):
    return f"mini-imagenet-cache-{part}.pkl"


def write_phases(root, *, names=True, form=dict, protocol=4):
    for part, (start, stop) in PHASES.items():
        content = phase_content(CATEGORIES["train"], start, stop, names=names)
        write_pickle(root / phase_file(part), form(content), protocol)
    for part in ("val", "test"):
        content = phase_content(CATEGORIES[part], names=names)
        write_pickle(root / phase_file(part), form(content), protocol)


def write_caches(root, *, form=dict, protocol=4):
    for part, categories in CATEGORIES.items():
        write_pickle(root / cache_file(part), form(cache_content(categories)), protocol)


LAYOUTS = {
    "images": lambda root: write_csvs(root, "images"),
    "folder per category": lambda root: write_csvs(root, "{category}"),
    "folders inside sets": lambda root: write_csvs(root, "{part}/{category}"),
    "five pickles": write_phases,
    "three pickles": write_caches,
}

EXACT = ("five pickles", "three pickles")


def load(path, size=SIZE, **options):
    """Load a small copy, whose pickles hold pictures of `SIZE` and not of 84."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mini_imagenet, "SIZE", SIZE)
        return mini_imagenet.load(path, size=size, **options)


def number_of(category, picture):
    """Return which of a category's pictures this is nearest to; JPEG alters the pixels a little."""
    distances = np.abs(pictures(category).astype(int) - picture).mean(axis=(1, 2, 3))
    assert distances.min() < 2
    return int(distances.argmin())


def contents(images):
    """Return the pictures of an image set as (category, number), in order."""
    pixels = images.take(np.arange(len(images)))
    names = [images.categories[label] for label in images.labels]
    return [(name, number_of(name, picture)) for name, picture in zip(names, pixels, strict=True)]


def assert_whole(split):
    assert split.flips
    assert split.categories == CATEGORIES["train"]
    base = [contents(getattr(split, part)) for part in BASE_PARTS]
    assert [len(part) for part in base] == [18, 3, 3]
    for part in base:
        assert {name for name, _ in part} == {*CATEGORIES["train"]}
    assert sorted(base[0] + base[1] + base[2]) == everything("train")
    for part, images in (("val", split.val), ("test", split.test)):
        assert images.categories == CATEGORIES[part]
        # Within a category the order is the same everywhere, so that tasks are.
        assert sorted(contents(images), key=lambda picture: picture[0]) == everything(part)


def everything(part):
    return [(name, number) for name in CATEGORIES[part] for number in range(EACH)]


def packed(form, folder, place, top=""):
    """Return a folder as it is, or packed back to front: archives come in any order."""
    if form == "folder":
        return folder
    contents = [(f"{top}{name}", content) for name, content in reversed(tree(folder).items())]
    return pack(place / f"mini.{form}", form, contents)
