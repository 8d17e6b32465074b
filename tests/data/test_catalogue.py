import pytest
from archives import KINDS, pack_folder

from pictures import write_folder
from recollect.data import catalogue
from recollect.data.catalogue import load_data
from recollect.errors import DataError


@pytest.fixture
def zoo(tmp_path):
    return write_folder(tmp_path / "zoo", {"cat": 8, "dog": 8})


@pytest.mark.parametrize("prefix", ["", "folder:"])
def test_a_folder_is_found_with_and_without_its_layout(zoo, prefix):
    assert load_data(f"{prefix}{zoo}", size=16).categories == ("cat", "dog")


def test_a_relative_path_is_a_folder_too(zoo, monkeypatch):
    monkeypatch.chdir(zoo.parent)
    assert load_data("zoo", size=16).categories == ("cat", "dog")


def test_a_folder_with_a_colon_in_its_name_is_a_folder(zoo, monkeypatch):
    monkeypatch.chdir(zoo.parent)
    zoo.rename("zoo:2024")
    assert load_data("zoo:2024", size=16).categories == ("cat", "dog")
    assert load_data("folder:zoo:2024", size=16).categories == ("cat", "dog")


def test_every_option_reaches_the_loader(monkeypatch):
    asked = []
    monkeypatch.setitem(
        catalogue._LOADERS, "cifar-fs", lambda path, **options: asked.append((str(path), options))
    )
    load_data("cifar-fs:a/b.zip", size=40, split="3", skip_bad=True, cache_gb=0.5)
    assert asked == [("a/b.zip", {"size": 40, "split": "3", "skip_bad": True, "cache_gb": 0.5})]


def test_pictures_that_would_take_more_than_the_limit_are_decoded_on_the_fly(zoo):
    assert load_data(str(zoo), size=16, cache_gb=0).base_train.on_the_fly
    assert not load_data(str(zoo), size=16).base_train.on_the_fly


@pytest.mark.parametrize("kind", KINDS)
def test_what_cannot_be_read_out_of_order_is_not_decoded_on_the_fly(zoo, kind):
    packed = str(pack_folder(zoo.parent / f"zoo.{kind}", kind, zoo))
    if kind in {"zip", "tar"}:
        assert load_data(packed, size=16, cache_gb=0).base_train.on_the_fly
        return
    with pytest.raises(DataError, match=r"is in a compressed tar.* --cache-gb 1$"):
        load_data(packed, size=16, cache_gb=0)
    kept = load_data(packed, size=16, cache_gb=1)
    assert load_data(packed, size=16, cache_gb=0).base_train.key == kept.base_train.key  # it is in the cache


@pytest.mark.parametrize("data", ["imagenette:photos", "glyph:", "x" * 5000 + ":y"])
def test_an_unknown_layout_lists_the_known_ones(data):
    with pytest.raises(DataError, match=r"glyphs, cifar-fs:PATH, .*folder:PATH, or a folder"):
        load_data(data)


@pytest.mark.parametrize("data", ["nowhere", "folder:nowhere", "cifar-fs:nowhere", "folder:", "x" * 5000])
def test_data_that_is_not_there_is_refused(tmp_path, monkeypatch, data):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match=r"there is no|cannot look at|holds no pictures"):
        load_data(data)


@pytest.mark.parametrize("options", [{"size": 16}, {"split": "1"}])
def test_glyphs_come_as_they_are(options):
    with pytest.raises(DataError, match="leave --size and --split out"):
        load_data("glyphs", **options)
