import shutil
import zipfile

import numpy as np
import pytest
from PIL import Image

from mutations import COUNT, refusals
from pictures import pixels_of, write_zip
from recollect.data import imagenet
from recollect.data.catalogue import load_data
from recollect.errors import DataError, PictureError
from recollect.images import read_pixels

WNIDS = ("n01440764", "n01443537", "n01484850", "n02084071")
TRAIN, VAL = 6, 3  # pictures of a category here
SIZE, SHORT = 8, 9


def write_imagenet(root, wnids=WNIDS, train=TRAIN, val=VAL):
    seed = 0
    for part, count in (("train", train), ("val", val)):
        for wnid in wnids:
            (root / part / wnid).mkdir(parents=True)
            for number in range(count):
                name = f"{wnid}_{number}.JPEG" if part == "train" else f"ILSVRC2012_val_{seed:08}.JPEG"
                Image.fromarray(pixels_of(seed, 20)[:16]).save(root / part / wnid / name)
                seed += 1
    return root


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return write_imagenet(tmp_path_factory.mktemp("imagenet"))


@pytest.fixture
def folder(whole, tmp_path):
    """A copy that a test may alter."""
    shutil.copytree(whole, tmp_path / "imagenet")
    return tmp_path / "imagenet"


def written(root, pattern):
    """Return {wnid: its pictures}, short side resized to 9 and the centre of 8 × 8 kept."""
    found = {}
    for path in root.glob(pattern):
        found.setdefault(path.parent.name, set()).add(read_pixels(path, SIZE, SHORT).tobytes())
    return found


def pictures_of(images):
    pixels = images.take(np.arange(len(images)))
    return {
        wnid: {picture.tobytes() for picture in pixels[images.labels == label]}
        for label, wnid in enumerate(images.categories)
    }


@pytest.mark.parametrize("top", [None, "", "ILSVRC/"])
@pytest.mark.parametrize("cache_gb", [16, 0])
def test_base_tests_are_the_official_val_pictures_in_folder_and_archive(whole, tmp_path, top, cache_gb):
    path = whole if top is None else write_zip(tmp_path / "imagenet.zip", whole, top)
    split = load_data(f"imagenet:{path}", size=SIZE, cache_gb=cache_gb)
    assert (split.categories, split.val, split.test, split.flips) == (WNIDS, None, None, True)
    assert pictures_of(split.base_test) == written(whole, "val/*/*")
    train, val = pictures_of(split.base_train), pictures_of(split.base_val)
    for wnid, pictures in written(whole, "train/*/*").items():
        assert (len(train[wnid]), len(val[wnid])) == (4, 2)
        assert train[wnid] | val[wnid] == pictures


def test_which_pictures_are_for_validation_is_the_same_everywhere(whole, tmp_path):
    there = imagenet.load(write_zip(tmp_path / "moved.zip", whole, "elsewhere/"), size=SIZE)
    assert pictures_of(imagenet.load(whole, size=SIZE).base_val) == pictures_of(there.base_val)


def test_reserved_categories_come_with_all_their_pictures(whole):
    split = imagenet.load(whole, size=SIZE, split=f'{{"val": ["{WNIDS[1]}"], "test": ["{WNIDS[3]}"]}}')
    assert split.categories == (WNIDS[0], WNIDS[2])
    everything = written(whole, "*/*/*")
    assert pictures_of(split.val) == {WNIDS[1]: everything[WNIDS[1]]}
    assert pictures_of(split.test) == {WNIDS[3]: everything[WNIDS[3]]}
    assert len(everything[WNIDS[1]]) == TRAIN + VAL
    numbered = imagenet.load(whole, size=SIZE, split="1")
    assert (len(numbered.val.categories), len(numbered.test.categories)) == (1, 1)


def test_a_split_that_leaves_one_base_category_or_names_another_is_refused(whole):
    with pytest.raises(DataError, match="fewer than 2 base categories"):
        imagenet.load(
            whole, size=SIZE, split=f'{{"val": ["{WNIDS[1]}"], "test": ["{WNIDS[0]}", "{WNIDS[3]}"]}}'
        )
    with pytest.raises(DataError, match="names 'n99999999', which is not a category"):
        imagenet.load(whole, size=SIZE, split='{"test": ["n99999999"]}')


def test_the_published_preprocessing_travels_with_the_pictures(whole):
    prepared = imagenet.load(whole).base_train.preprocessing
    assert (prepared.size, prepared.short_side) == (224, 256)
    np.testing.assert_allclose(np.array(prepared.mean) / 255, [0.485, 0.456, 0.406], atol=1e-6)
    np.testing.assert_allclose(np.array(prepared.std) / 255, [0.229, 0.224, 0.225], atol=1e-6)
    assert imagenet.load(whole, size=SIZE).base_test.preprocessing.short_side == SHORT


def test_fifty_training_pictures_are_for_validation_and_fewer_of_few():
    assert [imagenet.held(count).val for count in (1300, 732, 500, 400, 40, 6)] == [50, 50, 50, 40, 4, 2]


def add(name):
    def write(folder):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels_of(0)).save(folder / name)

    return write


def flatten(folder):
    for path in list((folder / "val").glob("*/*")):
        path.rename(folder / "val" / path.name)


def remove(name):
    return lambda folder: shutil.rmtree(folder / name)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (remove("train"), r"holds no pictures in train/: train/<wnid>/\*\.JPEG and val/<wnid>"),
        (remove("val"), "holds no pictures in val/"),
        (remove(f"train/{WNIDS[2]}"), f"train has no pictures of {WNIDS[2]}, which the other"),
        (remove(f"val/{WNIDS[2]}"), f"val has no pictures of {WNIDS[2]}, which the other"),
        (flatten, r"val/ILSVRC2012_val_\d+\.JPEG: the pictures of val/ are not in sub-folders: .*move each"),
        (add("train/okapi/1.JPEG"), "'okapi' is not a wnid such as n01440764"),
        (add("stray.JPEG"), r"stray\.JPEG: train/<wnid>"),
        (add("train/stray.JPEG"), r"train/stray\.JPEG: train/<wnid>"),
        (add("extra/n01440764/1.JPEG"), r"extra/n01440764/1\.JPEG: train/<wnid>"),
    ],
)
def test_another_layout_is_refused_by_name(folder, change, complaint):
    change(folder)
    with pytest.raises(DataError, match=complaint):
        imagenet.load(folder, size=SIZE)


def test_imagenets_own_unlabelled_test_pictures_are_passed_over(folder):
    add("test/ILSVRC2012_test_00000001.JPEG")(folder)
    assert imagenet.load(folder, size=SIZE).categories == WNIDS


def test_missing_and_empty_folders_are_refused(tmp_path):
    with pytest.raises(DataError, match="there is no folder or archive at"):
        imagenet.load(tmp_path / "nowhere")
    with pytest.raises(DataError, match="holds no pictures"):
        imagenet.load(tmp_path)


@pytest.mark.parametrize("cache_gb", [16, 0])
def test_a_picture_that_does_not_decode_is_named_or_left_out(folder, cache_gb):
    bad = folder / "train" / WNIDS[0] / f"{WNIDS[0]}_2.JPEG"
    bad.write_bytes(bad.read_bytes()[:200])
    options = {"size": SIZE, "cache_gb": cache_gb}
    with pytest.raises(PictureError, match=rf"{WNIDS[0]}_2\.JPEG.*--skip-bad"):
        load_data(f"imagenet:{folder}", **options)
    split = load_data(f"imagenet:{folder}", skip_bad=True, **options)
    assert len(split.base_train) + len(split.base_val) == TRAIN * len(WNIDS) - 1


def test_a_category_of_which_nothing_decodes_is_named(folder):
    for bad in folder.glob(f"*/{WNIDS[1]}/*"):
        bad.write_bytes(b"no picture")
    with pytest.raises(DataError, match=f"no picture of '{WNIDS[1]}'"):
        imagenet.load(folder, size=SIZE, skip_bad=True)


def test_a_category_too_small_to_hold_pictures_out_is_named(tmp_path):
    root = write_imagenet(tmp_path / "small", train=2)
    with pytest.raises(DataError, match=f"category '{WNIDS[0]}' has 5 pictures, too few"):
        imagenet.load(root, size=SIZE)


def test_an_archive_that_is_cut_short_is_refused(whole, tmp_path):
    path = write_zip(tmp_path / "imagenet.zip", whole)
    path.write_bytes(path.read_bytes()[:-500])
    with pytest.raises(DataError, match=r"imagenet\.zip"):
        imagenet.load(path, size=SIZE)


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize("name", ["../outside.JPEG", f"train/{WNIDS[0]}/{WNIDS[0]}_0.JPEG"])
def test_an_archive_with_unsafe_or_double_names_is_refused(whole, tmp_path, name):
    path = write_zip(tmp_path / "imagenet.zip", whole)
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr(name, b"")
    with pytest.raises(DataError, match=name.rpartition("/")[2]):
        imagenet.load(path, size=SIZE)


@pytest.mark.parametrize("cache_gb", [16, 0])
def test_damaged_archives_give_a_split_or_a_clear_error(tmp_path, cache_gb):
    root = write_imagenet(tmp_path / "whole", WNIDS[:2], train=3, val=1)
    whole = write_zip(tmp_path / "whole.zip", root).read_bytes()
    refused = refusals(
        lambda path: load_data(f"imagenet:{path}", size=SIZE, cache_gb=cache_gb),
        tmp_path / "damaged.zip",
        whole,
    )
    assert COUNT / 3 < len(refused) < COUNT
    assert not [line for line in refused if "\n" in line]
