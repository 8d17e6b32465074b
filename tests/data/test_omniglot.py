import os
import shutil
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from mutations import COUNT, refusals
from pictures import write_zip
from recollect.data import imageset, omniglot
from recollect.data.catalogue import load_data
from recollect.data.tasks import task_sampler
from recollect.errors import DataError, PictureError
from recollect.training.config import make_config
from recollect.training.selection import Judgement

WORDS = {
    "train": ["Greek/character01", "Latin/character01"],
    "val": ["Greek/character02"],
    "test": ["Tengwar/character01"],
}
ALL = [name for part in WORDS.values() for name in part]
SIZE = 8
PUBLISHED = omniglot.published()


def place(character):
    return f"images_{'evaluation' if character.startswith('T') else 'background'}/{character}"


def strokes(character, number):
    """Return a drawing's ink, (SIZE, SIZE): true where it is black."""
    return np.random.default_rng([ALL.index(character), number]).random((SIZE, SIZE)) < 0.3


def write_omniglot(root, drawings):
    for character in ALL:
        folder = root / place(character)
        folder.mkdir(parents=True)
        for number in range(drawings):
            Image.fromarray(~strokes(character, number)).save(folder / f"{number:02}.png")
    return root


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Four characters laid out like Omniglot, in 1-bit pictures."""
    return write_omniglot(tmp_path_factory.mktemp("omniglot"), 20)


@pytest.fixture
def folder(whole, tmp_path):
    """A copy that a test may alter."""
    shutil.copytree(whole, tmp_path / "omniglot")
    return tmp_path / "omniglot"


@pytest.fixture(autouse=True)
def four_characters(monkeypatch):
    monkeypatch.setattr(omniglot, "published", lambda: WORDS)


def parts_of(split):
    return {name: getattr(split, name) for name in ("base_train", "base_val", "base_test", "val", "test")}


def pictures_of(images):
    """Return {category: the set of its pictures}."""
    pixels = images.take(np.arange(len(images)))
    return {
        category: {picture.tobytes() for picture in pixels[images.labels == label]}
        for label, category in enumerate(images.categories)
    }


def drawn(character, number, turn=0):
    """Return a drawing as it must come: black on white, RGB, turned."""
    pixels = np.where(strokes(character, number)[..., None], 0, 255).astype(np.uint8)
    return np.rot90(np.broadcast_to(pixels, (SIZE, SIZE, 3)), turn).tobytes()


def turns(character):
    return [f"{character}/rot{angle}" for angle in ("000", "090", "180", "270")]


def test_the_published_split_is_1028_172_423_without_overlap():
    assert [len(PUBLISHED[part]) for part in ("train", "val", "test")] == [1028, 172, 423]
    assert len({name for part in PUBLISHED.values() for name in part}) == 1623


def test_every_rotation_is_a_category_with_its_drawings_turned(whole):
    split = omniglot.load(whole, size=SIZE)
    base = [turn for character in WORDS["train"] for turn in turns(character)]
    assert split.categories == tuple(base)
    assert split.val.categories == tuple(turns("Greek/character02"))
    assert split.test.categories == tuple(turns("Tengwar/character01"))
    found = {part: pictures_of(images) for part, images in parts_of(split).items()}
    together = found["val"] | found["test"]
    for category in base:
        together[category] = set().union(
            *(found[part][category] for part in ("base_train", "base_val", "base_test"))
        )
    for character in ALL:
        for turn, category in enumerate(turns(character)):
            assert together[category] == {drawn(character, number, turn) for number in range(20)}


def test_of_twenty_drawings_15_2_3_are_the_same_in_every_rotation(whole):
    split = omniglot.load(whole, size=SIZE)
    for part, count in (("base_train", 15), ("base_val", 2), ("base_test", 3)):
        images = parts_of(split)[part]
        assert np.bincount(images.labels).tolist() == [count] * 8
        for character in WORDS["train"]:
            held = [
                {
                    number
                    for number in range(20)
                    if drawn(character, number, turn) in pictures_of(images)[category]
                }
                for turn, category in enumerate(turns(character))
            ]
            assert held == [held[0]] * 4
    rows = np.concatenate([images.rows for images in parts_of(split).values()])
    assert sorted(rows) == list(range(4 * 20 * len(ALL)))


def test_characters_are_not_mirrored_come_at_28_and_are_asked_ten_times(whole):
    split = omniglot.load(whole)
    assert (split.flips, split.base_train.size, split.queries) == (False, 28, 10)
    shapes = Judgement(split, (1, 5), make_config({}, {"data": "omniglot"})).shapes
    assert [(shape.shots, shape.queries, shape.ways) for shape in shapes] == [(1, 10, 4), (5, 10, 4)]
    assert task_sampler(split.base_test, split.test).fit(shapes[1]) == shapes[1]


def test_each_drawing_is_decoded_once(whole, monkeypatch):
    names = []
    real = imageset.read_pixels

    def counting(item, *arguments):
        names.append(item.name)
        return real(item, *arguments)

    monkeypatch.setattr(imageset, "read_pixels", counting)
    omniglot.load(whole, size=SIZE)
    assert len(names) == len(set(names)) == 20 * len(ALL)


def test_on_the_fly_drawings_are_turned_alike(whole):
    lazy, kept = load_data(f"omniglot:{whole}", size=SIZE, cache_gb=0), omniglot.load(whole, size=SIZE)
    assert (lazy.test.on_the_fly, kept.test.on_the_fly) == (True, False)
    for part, images in parts_of(kept).items():
        assert pictures_of(parts_of(lazy)[part]) == pictures_of(images)


def two_archives(whole, to):
    to.mkdir()
    for name in omniglot.FOLDERS:
        write_zip(to / f"{name}.zip", whole / name, f"{name}/")
    return to


def folder_and_archive(whole, to):
    shutil.copytree(whole / "images_background", to / "images_background")
    write_zip(to / "images_evaluation.zip", whole / "images_evaluation", "images_evaluation/")
    return to


LAYOUTS = {
    "two folders": lambda whole, _: whole,
    "two archives": two_archives,
    "a folder and an archive": folder_and_archive,
    "one archive": lambda whole, to: write_zip(to.with_suffix(".zip"), whole),
    "one archive with a folder around": lambda whole, to: write_zip(
        to.with_suffix(".zip"), whole, "omniglot/python/"
    ),
    "one folder around": lambda whole, to: shutil.copytree(whole, to / "python").parent,
    "two folders around": lambda whole, to: shutil.copytree(whole, to / "omniglot" / "python").parent.parent,
}


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_every_layout_gives_the_same_pictures(whole, tmp_path, layout):
    path = layout(whole, tmp_path / "copy")
    split, expected = load_data(f"omniglot:{path}", size=SIZE), omniglot.load(whole, size=SIZE)
    for part, images in parts_of(expected).items():
        assert pictures_of(parts_of(split)[part]) == pictures_of(images)


def remove(name):
    return lambda folder: shutil.rmtree(folder / name)


def add(name):
    def write(folder):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("1", (SIZE, SIZE)).save(folder / name)

    return write


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (
            remove("images_background/Latin"),
            "is missing 1 of Omniglot's 4 characters, such as 'Latin/character01'",
        ),
        (remove("images_evaluation"), "there is no folder or archive at .*images_evaluation.zip"),
        (
            add("images_evaluation/Elvish/character01/01.png"),
            "'Elvish/character01', which is not a character",
        ),
        (add("images_evaluation/Latin/character01/99.png"), "'Latin/character01' has 21 drawings.*has 20"),
        (add("images_background/stray.png"), r"stray\.png: images_background/<alphabet>/<character>/\*\.png"),
        (lambda folder: (folder / place(ALL[0]) / "07.png").unlink(), f"'{ALL[0]}' has 19 drawings"),
    ],
)
def test_what_is_not_omniglot_is_named(folder, change, complaint):
    change(folder)
    with pytest.raises(DataError, match=complaint):
        omniglot.load(folder, size=SIZE)


def test_a_folder_of_something_else_is_refused(tmp_path):
    with pytest.raises(DataError, match="holds no pictures"):
        omniglot.load(tmp_path)
    with pytest.raises(DataError, match="there is no folder or archive at"):
        omniglot.load(tmp_path / "nowhere")
    add("photos/zoo/okapi/01.png")(tmp_path)
    with pytest.raises(DataError, match="is missing 4 of Omniglot's 4 characters"):
        omniglot.load(tmp_path)


def test_a_drawing_that_does_not_decode_is_named_or_left_out_in_all_rotations(folder):
    bad = folder / place("Tengwar/character01") / "03.png"
    bad.write_bytes(bad.read_bytes()[:50])
    with pytest.raises(PictureError, match=r"Tengwar/character01/03\.png.*--skip-bad"):
        omniglot.load(folder, size=SIZE)
    split = omniglot.load(folder, size=SIZE, skip_bad=True)
    for turn, (category, pictures) in enumerate(pictures_of(split.test).items()):
        expected = {drawn("Tengwar/character01", number, turn) for number in range(20) if number != 3}
        assert pictures == expected, category


def test_a_character_of_which_nothing_decodes_is_named(folder):
    for bad in (folder / place(ALL[1])).iterdir():
        bad.write_bytes(b"no picture")
    with pytest.raises(DataError, match=f"no drawing of '{ALL[1]}'"):
        omniglot.load(folder, size=SIZE, skip_bad=True)


def test_a_split_of_ones_own_is_refused(whole):
    with pytest.raises(DataError, match="leave --split out"):
        omniglot.load(whole, split="1")


def test_an_archive_with_unsafe_names_is_refused(whole, tmp_path):
    path = write_zip(tmp_path / "omniglot.zip", whole)
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("../outside.png", b"")
    with pytest.raises(DataError, match=r"outside\.png"):
        omniglot.load(path, size=SIZE)
    assert not (tmp_path.parent / "outside.png").exists()


def test_damaged_archives_give_a_split_or_a_clear_error(tmp_path, monkeypatch):
    monkeypatch.setattr(omniglot, "DRAWINGS", 6)
    archive = write_zip(tmp_path / "whole.zip", write_omniglot(tmp_path / "whole", 6)).read_bytes()
    refused = refusals(lambda path: omniglot.load(path, size=SIZE), tmp_path / "damaged.zip", archive)
    assert COUNT / 3 < len(refused) < COUNT
    assert not [line for line in refused if "\n" in line]


@pytest.mark.slow
@pytest.mark.data
@pytest.mark.skipif(
    "RECOLLECT_DATA" not in os.environ, reason="RECOLLECT_DATA does not say where omniglot/*.zip are"
)
def test_the_real_omniglot_has_the_published_numbers(monkeypatch):
    monkeypatch.setattr(omniglot, "published", lambda: PUBLISHED)
    split = omniglot.load(Path(os.environ["RECOLLECT_DATA"]) / "omniglot")
    for part, categories, each in (
        ("base_train", 4112, 15),
        ("base_val", 4112, 2),
        ("base_test", 4112, 3),
        ("val", 688, 20),
        ("test", 1692, 20),
    ):
        images = parts_of(split)[part]
        assert np.bincount(images.labels).tolist() == [each] * categories
    rows = np.concatenate([images.rows for images in parts_of(split).values()])
    assert sorted(rows) == list(range(4 * 32_460))
    assert 200 < split.base_train.normalisation()[0][0] < 250  # white paper
