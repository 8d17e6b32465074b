"""mini-ImageNet as its four layouts come: the same pictures, split the same way."""

import shutil

import mini_releases
import numpy as np
import pytest
from mini_releases import (
    BASE_PARTS,
    CATEGORIES,
    EACH,
    EXACT,
    LAYOUTS,
    PHASES,
    SIZE,
    assert_whole,
    cache_content,
    cache_file,
    contents,
    file_of,
    load,
    packed,
    pictures,
    write_caches,
    write_csvs,
    write_phases,
    write_pickle,
)
from PIL import Image

from pictures import tree
from recollect.data import mini_imagenet
from recollect.data.catalogue import load_data
from recollect.errors import DataError
from recollect.model.spec import Preprocessing
from recollect.system.disk import cache_folder


@pytest.mark.parametrize("form", ["folder", "zip", "tar.gz"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_gives_the_same_pictures_in_folder_and_archive(releases, tmp_path, layout, form):
    split = load(packed(form, releases / layout, tmp_path))
    assert_whole(split)
    if layout in EXACT:
        for images in (*(getattr(split, part) for part in BASE_PARTS), split.val, split.test):
            found = images.take(np.arange(len(images)))
            wanted = np.stack([pictures(category)[number] for category, number in contents(images)])
            np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_one_more_folder_around_everything_does_not_matter(releases, tmp_path, layout):
    assert_whole(load(packed("zip", releases / layout, tmp_path, "mini-imagenet/")))


def test_layouts_that_number_pictures_alike_hold_out_the_same_ones(releases):
    splits = [load(releases / layout) for layout in LAYOUTS if layout != "five pickles"]
    for part in BASE_PARTS:
        assert len({tuple(sorted(contents(getattr(split, part)))) for split in splits}) == 1


def test_pictures_are_not_held_out_in_the_order_of_their_numbers(releases):
    held = contents(load(releases / "three pickles").base_val)
    assert len({number for _, number in held}) > 1


def test_the_release_with_base_pictures_of_its_own_keeps_them(releases):
    split = load(releases / "five pickles")
    for part, (start, stop) in zip(BASE_PARTS, PHASES.values(), strict=True):
        wanted = [(name, number) for name in CATEGORIES["train"] for number in range(start, stop)]
        assert contents(getattr(split, part)) == wanted


def test_where_there_are_several_layouts_the_one_with_base_pictures_of_its_own_is_taken(releases, copy_of):
    folder = copy_of("images")
    for layout in ("three pickles", "five pickles"):
        shutil.copytree(releases / layout, folder, dirs_exist_ok=True)
    assert contents(load(folder).base_val) == contents(load(releases / "five pickles").base_val)


def test_an_incomplete_layout_beside_a_complete_one_is_passed_over(copy_of):
    folder = copy_of("images")
    (folder / cache_file("train")).write_bytes(b"half a download")
    assert_whole(load(folder))


def as_python_2(content):
    """Python 2 wrote text as bytes."""
    if isinstance(content, dict):
        return {as_python_2(key): as_python_2(value) for key, value in content.items()}
    return content.encode() if isinstance(content, str) else content


@pytest.mark.parametrize("protocol", [2, 4, 5])
@pytest.mark.parametrize("form", [dict, as_python_2])
@pytest.mark.parametrize("write", [write_phases, write_caches])
def test_pickles_of_every_age_are_read(tmp_path, write, form, protocol):
    write(tmp_path, form=form, protocol=protocol)
    assert_whole(load(tmp_path))


def test_labels_may_be_an_array_and_rows_too(tmp_path):
    def arrays(content):
        if "labels" in content:
            return content | {"labels": np.array(content["labels"], np.int32)}
        rows = {name: np.array(rows) for name, rows in content["class_dict"].items()}
        return content | {"class_dict": rows}

    for write in (write_phases, write_caches):
        write(tmp_path / write.__name__, form=arrays)
        assert_whole(load(tmp_path / write.__name__))


def test_categories_without_names_are_called_by_their_numbers(tmp_path):
    write_phases(tmp_path, names=False)
    split = load(tmp_path)
    assert split.categories == ("category 00", "category 01", "category 02")
    assert split.test.categories == ("category 05", "category 06")


@pytest.mark.parametrize("layout", LAYOUTS)
def test_pictures_come_at_84_unless_a_size_is_asked_for(tmp_path, monkeypatch, layout):
    monkeypatch.setattr(mini_releases, "SIZE", 84)
    LAYOUTS[layout](tmp_path)
    split = mini_imagenet.load(tmp_path)
    for part in (*BASE_PARTS, "val", "test"):
        assert getattr(split, part).size == 84


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_set_comes_with_the_published_normalisation(releases, layout):
    split = load(releases / layout)
    for images in (*(getattr(split, part) for part in BASE_PARTS), split.val, split.test):
        assert images.preprocessing == Preprocessing(
            size=SIZE, mean=(120.396, 115.594, 104.540), std=(70.682, 68.276, 72.545)
        )


@pytest.mark.parametrize("form", ["folder", "zip"])
@pytest.mark.parametrize("layout", EXACT)
def test_pickles_that_would_take_more_than_the_limit_are_refused_with_the_remedy(
    releases, tmp_path, layout, form
):
    path = packed(form, releases / layout, tmp_path)
    size = 7 * EACH * 3 * SIZE**2  # of all sets together; each of them is smaller
    with pytest.raises(DataError, match=rf"{path.name} would take up to .* more than .*--cache-gb 1$"):
        load(path, cache_gb=(size - 1) / 1e9)
    assert tree(cache_folder()) == {}
    assert_whole(load(path, cache_gb=2 * size / 1e9))
    assert_whole(load(path, cache_gb=0))  # it is in the cache


def test_listed_pictures_are_decoded_on_the_fly_above_the_limit(releases):
    split = load(releases / "images", cache_gb=0)
    assert split.base_train.on_the_fly
    assert_whole(split)


def test_pickled_pictures_are_resized_as_files_are(releases, tmp_path):
    write_csvs(tmp_path, "images")
    for category in ("n04", "n05"):
        for number, pixels in enumerate(pictures(category)):
            Image.fromarray(pixels).save(tmp_path / "images" / file_of(category, number), "PNG")
    files, pickles = (load(path, size=11).val for path in (tmp_path, releases / "five pickles"))
    assert files.labels.tolist() == pickles.labels.tolist()
    every = np.arange(2 * EACH)
    np.testing.assert_array_equal(files.take(every), pickles.take(every))


def test_a_second_load_reads_no_pickle_again(releases, monkeypatch):
    for layout in EXACT:
        load(releases / layout)

    def refuse(*_):
        raise AssertionError("read again")

    monkeypatch.setattr(mini_imagenet, "read_record", refuse)
    for layout in EXACT:
        assert_whole(load(releases / layout))
    with pytest.raises(AssertionError, match="read again"):
        load(releases / "three pickles", size=SIZE + 1)


def test_an_altered_pickle_or_csv_file_is_read_again(copy_of):
    folder = copy_of("three pickles")
    load(folder)
    content = cache_content(CATEGORIES["val"])
    content["class_dict"]["n99"] = content["class_dict"].pop("n05")
    write_pickle(folder / cache_file("val"), content)
    assert load(folder).val.categories == ("n04", "n99")
    shutil.rmtree(folder)
    write_csvs(folder, "images")
    load(folder)
    (folder / "val.csv").write_text((folder / "val.csv").read_text().replace(",n05", ",n99"))
    assert load(folder).val.categories == ("n04", "n99")


def test_the_command_line_knows_it_by_name(releases):
    assert_whole(load_data(f"mini-imagenet:{releases / 'images'}", size=SIZE))


def test_a_split_of_ones_own_is_refused(releases):
    with pytest.raises(DataError, match="published split of its own: leave --split out"):
        load(releases / "images", split="1")
