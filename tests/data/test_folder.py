import io
import os
import shutil
import struct
import zipfile
from collections import Counter

import numpy as np
import pytest
from archives import pack, pack_folder
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from mutations import COUNT, refusals
from pictures import pixels_of, tree, write_folder, write_picture, write_zip
from recollect.data import folder, imageset
from recollect.data.splits import MIN_PICTURES
from recollect.errors import DataError, PictureError
from recollect.system.disk import cache_folder

ZOO = {"cat": 12, "dog": 9, "emu": 8}


@pytest.fixture
def zoo(tmp_path):
    return write_folder(tmp_path / "zoo", ZOO)


def names_in(images, library):
    return {library.names[row] for row in images.rows}


def parts_of(split):
    return [split.base_train, split.base_val, split.base_test]


def assert_same_split(one, other):
    assert one.categories == other.categories
    for mine, theirs in zip(parts_of(one), parts_of(other), strict=True):
        np.testing.assert_array_equal(mine.labels, theirs.labels)
        np.testing.assert_array_equal(mine.take(np.arange(len(mine))), theirs.take(np.arange(len(theirs))))


def test_every_category_is_a_base_category_and_every_picture_is_used_once(zoo):
    split = folder.load(zoo, size=16)
    assert split.categories == ("cat", "dog", "emu")
    assert (split.val, split.test) == (None, None)
    assert split.flips
    rows = np.concatenate([part.rows for part in parts_of(split)])
    assert sorted(rows) == list(range(sum(ZOO.values())))
    for part in (split.base_val, split.base_test):
        assert np.bincount(part.labels).tolist() == [2, 2, 2]


def test_pictures_keep_their_category(zoo):
    split = folder.load(zoo, size=16)
    expected = {
        pixels_of(seed).tobytes(): category
        for seed, category in enumerate(name for name, count in ZOO.items() for _ in range(count))
    }
    for part in parts_of(split):
        for index in range(len(part)):
            pixels = part.take(np.array([index]))[0]
            assert expected[pixels.tobytes()] == part.categories[part.labels[index]]


def test_pictures_of_any_kind_decode(tmp_path):
    kinds = tmp_path / "zoo" / "kinds"
    kinds.mkdir(parents=True)
    red = Image.new("RGB", (20, 16), (250, 10, 10))
    Image.new("L", (20, 16), 90).save(kinds / "grey.png")
    red.quantize(4).save(kinds / "palette.png")
    red.convert("CMYK").save(kinds / "cmyk.jpg", quality=95)
    Image.fromarray(np.full((16, 20), 90 * 257, np.uint16)).save(kinds / "sixteen-bit.png")
    red.save(kinds / "animated.gif", save_all=True, append_images=[Image.new("RGB", (20, 16), "blue")])
    Image.new("RGBA", (20, 16), (0, 0, 0, 0)).save(kinds / "transparent.webp", lossless=True)
    halves = Image.new("RGB", (16, 16), "white")
    halves.paste((0, 0, 0), (0, 0, 16, 8))  # black above white
    exif = Image.Exif()
    exif[0x0112] = 6  # to be shown turned clockwise: black right of white
    halves.save(kinds / "turned.jpg", exif=exif, quality=95)

    library = folder.read_library(tmp_path / "zoo", 16, skip_bad=False)
    shown = {name.split("/")[1]: library.pixels[row].astype(int) for row, name in enumerate(library.names)}
    for name, colour in {
        "grey.png": (90, 90, 90),
        "palette.png": (250, 10, 10),
        "cmyk.jpg": (250, 10, 10),
        "sixteen-bit.png": (90, 90, 90),
        "animated.gif": (250, 10, 10),
        "transparent.webp": (255, 255, 255),
    }.items():
        assert np.abs(shown[name] - colour).max() <= 6, name
    assert shown["turned.jpg"][:, :7].min() > 245
    assert shown["turned.jpg"][:, 9:].max() < 10


def test_pictures_come_at_84_unless_a_size_is_asked_for(zoo):
    assert folder.load(zoo).base_train.size == 84
    assert folder.load(zoo, size=20).base_train.size == 20


@pytest.mark.parametrize("top", ["", "my zoo/"])
def test_an_archive_gives_the_same_split_as_the_folder(zoo, tmp_path, top):
    archive = write_zip(tmp_path / "zoo.zip", zoo, top)
    assert_same_split(folder.load(zoo, size=16), folder.load(archive, size=16))


def test_a_copy_elsewhere_gives_the_same_split(zoo, tmp_path):
    copy = write_folder(tmp_path / "elsewhere" / "copy", ZOO)
    assert_same_split(folder.load(zoo, size=16), folder.load(copy, size=16))


@settings(max_examples=15)
@given(extra=st.sets(st.sampled_from(["000.gif", "zebra.png", "a b.png", "ü.png"])))
def test_pictures_of_another_category_do_not_change_which_are_held_out(tmp_path_factory, extra):
    root = tmp_path_factory.mktemp("zoo")
    write_folder(root, ZOO)
    before = held_names(root, "cat")
    for number, name in enumerate(extra):
        write_picture(root / "dog" / name, 100 + number)
    assert held_names(root, "cat") == before


def held_names(root, category):
    library = folder.read_library(root, 16, skip_bad=False)
    split = folder.load(root, size=16)
    wanted = split.categories.index(category)
    return [
        {library.names[row] for row, label in zip(part.rows, part.labels, strict=True) if label == wanted}
        for part in parts_of(split)
    ]


def test_a_second_call_does_not_decode_again(zoo, monkeypatch):
    first = folder.load(zoo, size=16)

    def refuse(*_, **__):
        raise AssertionError("decoded again")

    monkeypatch.setattr(imageset, "read_pixels", refuse)
    assert_same_split(folder.load(zoo, size=16), first)
    with pytest.raises(AssertionError, match="decoded again"):
        folder.load(zoo, size=17)


def test_a_file_that_is_no_picture_does_not_count(zoo):
    before = folder.load(zoo, size=16).base_train.key
    (zoo / "cat" / "notes.txt").write_text("a fine cat")
    assert folder.load(zoo, size=16).base_train.key == before


def test_a_changed_file_makes_a_new_entry(zoo):
    before = folder.load(zoo, size=16)
    path = write_picture(zoo / "cat" / "000.png", 999)
    os.utime(path, ns=(1, 1))
    after = folder.load(zoo, size=16)
    assert after.base_train.key != before.base_train.key
    everything = np.concatenate([part.take(np.arange(len(part))) for part in parts_of(after)])
    assert (everything == pixels_of(999)).all(axis=(1, 2, 3)).any()


@pytest.fixture
def zoo_with_bad(zoo):
    content = (zoo / "cat" / "003.png").read_bytes()
    (zoo / "cat" / "003.png").write_bytes(content[: len(content) // 2])
    (zoo / "emu" / "zzz.jpg").write_bytes(b"no picture at all")
    return zoo


def test_a_picture_that_does_not_decode_is_named_and_nothing_is_kept(zoo_with_bad):
    for _ in range(2):
        with pytest.raises(PictureError, match=r"zoo/cat/003\.png.*--skip-bad"):
            folder.load(zoo_with_bad, size=16)
        assert tree(cache_folder()) == {}


def test_skip_bad_leaves_such_pictures_out_reports_them_and_binds_no_later_call(zoo_with_bad, caplog):
    split = folder.load(zoo_with_bad, size=16, skip_bad=True)
    assert sum(len(part) for part in parts_of(split)) == sum(ZOO.values()) - 1
    assert "left out" in caplog.text
    assert "cat/003.png" in caplog.text
    assert "emu/zzz.jpg" in caplog.text
    with pytest.raises(PictureError, match=r"cat/003\.png"):
        folder.load(zoo_with_bad, size=16)


def test_bad_pictures_in_an_archive_are_named_or_left_out(zoo_with_bad, tmp_path):
    path = write_zip(tmp_path / "zoo.zip", zoo_with_bad)
    content = bytearray(path.read_bytes())
    content[content.index((zoo_with_bad / "dog" / "000.png").read_bytes()) + 60] ^= 0xFF  # checksum
    struct.pack_into("<I", content, content.index(b"PK\x01\x02") + 24, 1 << 30)  # cat/000.png: size
    path.write_bytes(content)
    with pytest.raises(PictureError, match=r"cat/000\.png would unpack to"):
        folder.load(path, size=16)
    library = folder.read_library(path, 16, skip_bad=True)
    missing = {"cat/000.png", "cat/003.png", "dog/000.png"}
    wanted = {f"{name}/{number:03}.png" for name, count in ZOO.items() for number in range(count)}
    assert set(library.names) == wanted - missing


def test_a_folder_where_nothing_decodes_is_refused_even_with_skip_bad(tmp_path):
    for name in ("cat/a.png", "dog/b.png"):
        (tmp_path / "zoo" / name).parent.mkdir(parents=True)
        (tmp_path / "zoo" / name).write_bytes(b"no picture")
    with pytest.raises(DataError, match="fewer than 2 base categories"):
        folder.load(tmp_path / "zoo", size=16, skip_bad=True)


@pytest.mark.parametrize(
    ("files", "complaint"),
    [
        (["000.png", "001.png"], r"zoo/000\.png: a sub-folder per category"),
        (["cat/000.png", "stray.png"], r"zoo/stray\.png: a sub-folder per category"),
        (["cat/000.png", "dog/young/000.png"], r"zoo/dog/young/000\.png: a sub-folder"),
        (["train/cat/000.png", "test/cat/000.png"], r"name the layout"),
        (["a/b/cat/000.png", "a/b/dog/000.png"], r"zoo/a/b/cat/000\.png: a sub-folder"),
    ],
)
def test_pictures_at_the_wrong_depth_are_named(tmp_path, files, complaint):
    for name in files:
        write_picture(tmp_path / "zoo" / name)
    with pytest.raises(DataError, match=complaint):
        folder.load(tmp_path / "zoo", size=16)


def test_one_folder_around_all_categories_is_looked_through(zoo, tmp_path):
    (tmp_path / "outer").mkdir()
    zoo.rename(tmp_path / "outer" / "zoo")
    assert folder.load(tmp_path / "outer", size=16).categories == ("cat", "dog", "emu")


def test_empty_and_missing_folders_are_refused(tmp_path):
    with pytest.raises(DataError, match="holds no pictures"):
        folder.load(tmp_path, size=16)
    with pytest.raises(DataError, match="there is no folder or archive at"):
        folder.load(tmp_path / "nowhere", size=16)


def test_a_single_category_is_refused(tmp_path):
    with pytest.raises(DataError, match="at least 2"):
        folder.load(write_folder(tmp_path / "zoo", {"cat": 12}), size=16)


@pytest.mark.parametrize("count", [1, MIN_PICTURES - 1])
def test_a_category_too_small_to_be_split_is_named_with_the_number_needed(tmp_path, count):
    zoo = write_folder(tmp_path / "zoo", {"cat": 12, "okapi": count, "dog": 12})
    pictures = "1 picture" if count == 1 else f"{count} pictures"
    with pytest.raises(
        DataError, match=rf"at least {MIN_PICTURES} pictures .* and 'okapi' has {pictures}: add"
    ):
        folder.load(zoo, size=16)
    split = folder.load(zoo, size=16, split='{"test": ["okapi"]}')
    assert split.test is not None
    assert len(split.test) == count


def test_all_categories_that_are_too_small_are_named(tmp_path):
    zoo = write_folder(tmp_path / "zoo", {"cat": 12} | {f"small-{n}": 2 for n in range(7)})
    with pytest.raises(
        DataError, match=r"'small-0' has 2 pictures, .*'small-4' has 2 pictures and 2 more: add"
    ):
        folder.load(zoo, size=16)


@pytest.mark.parametrize("top", ["", "photos/"])
def test_pictures_beside_the_categories_are_left_out_if_asked(tmp_path, caplog, top):
    root = write_folder(tmp_path / "zoo" / top, {"cat": 12, "dog": 12})
    write_picture(root / "stray.png")
    write_picture(root / "dog" / "young" / "000.png")
    with pytest.raises(DataError, match=r"000\.png: a sub-folder per category .* --skip-bad"):
        folder.load(tmp_path / "zoo", size=16)
    split = folder.load(tmp_path / "zoo", size=16, skip_bad=True)
    assert split.categories == ("cat", "dog")
    assert sum(map(len, parts_of(split))) == 24
    (line,) = caplog.messages
    assert f"left out {top}dog/young/000.png, {top}stray.png: not right in a category's folder" in line


def test_a_category_called_unknown_is_refused(tmp_path):
    zoo = write_folder(tmp_path / "zoo", {"cat": 12, "dog": 12, "Unknown": 12})
    with pytest.raises(
        DataError, match="zoo/Unknown: 'unknown' is the answer for pictures of no known category"
    ):
        folder.load(zoo, size=16)


def test_the_smallest_category_allowed_leaves_pictures_in_all_three_sets(tmp_path):
    split = folder.load(write_folder(tmp_path / "zoo", {"cat": MIN_PICTURES, "dog": MIN_PICTURES}), size=16)
    assert [np.bincount(part.labels).tolist() for part in parts_of(split)] == [[4, 4], [2, 2], [2, 2]]


def test_a_split_reserves_categories_whole(zoo):
    split = folder.load(write_folder(zoo, {"fox": 5}), size=16, split='{"val": ["fox"], "test": ["cat"]}')
    assert split.categories == ("dog", "emu")
    assert split.val is not None
    assert split.test is not None
    assert (split.val.categories, len(split.val)) == (("fox",), 5)
    assert (split.test.categories, len(split.test)) == (("cat",), 12)


def test_a_split_that_leaves_one_base_category_is_refused(zoo):
    with pytest.raises(DataError, match="fewer than 2 base categories"):
        folder.load(zoo, size=16, split="1")


@pytest.mark.skipif(os.name == "nt", reason="file names are text there")
def test_file_names_that_are_no_text_are_read_and_such_categories_refused(zoo):
    odd = os.fsencode(zoo / "cat") + b"/caf\xe9.png"
    with open(odd, "wb") as file:  # noqa: PTH123 -- a path of bytes
        file.write((zoo / "cat" / "000.png").read_bytes())
    assert len(folder.read_library(zoo, 16, skip_bad=False).names) == sum(ZOO.values()) + 1
    assert folder.load(zoo, size=16).categories == ("cat", "dog", "emu")
    os.rename(zoo / "dog", os.fsencode(zoo) + b"/caf\xe9")  # noqa: PTH104
    with pytest.raises(DataError, match="is not valid text: rename it"):
        folder.load(zoo, size=16)


def test_a_damaged_archive_gives_a_split_or_a_clear_error(tmp_path):
    zoo = write_folder(tmp_path / "zoo", {"cat": MIN_PICTURES, "dog": MIN_PICTURES}, size=4)
    for kind in ("zip", "tar", "tar.gz"):
        content = pack_folder(tmp_path / "whole", kind, zoo).read_bytes()
        assert folder.load(tmp_path / "whole", size=4).categories == ("cat", "dog")
        refused = refusals(lambda path: folder.load(path, size=4), tmp_path / "damaged", content)
        assert COUNT / 3 < len(refused) < COUNT + (kind == "tar.gz"), kind  # of which every byte is checked
        assert not [line for line in refused if "\n" in line]


CONTROL = "c\na\x1b[31mt"


@pytest.mark.parametrize("kind", ["zip", "tar", "tar.gz"])
def test_names_with_control_characters_stay_on_one_line(tmp_path, caplog, kind):
    picture = write_picture(tmp_path / "0.png").read_bytes()
    good = [(f"{name}/{number}.png", picture) for name in ("ant", "bee") for number in range(MIN_PICTURES)]
    strange = [(f"ant/{CONTROL}.png", b"no picture"), (f"{CONTROL}/notes.cr2", b"")]
    path = pack(tmp_path / "zoo", kind, [*good, *strange])
    assert folder.load(path, size=16, skip_bad=True).categories == ("ant", "bee")
    assert len(caplog.messages) == 2
    with pytest.raises(PictureError) as refused:
        folder.load(path, size=16)
    for line in (*caplog.messages, str(refused.value)):
        assert r"c\na\x1b[31mt" in line
        assert line.isprintable()
    with pytest.raises(DataError) as refused:
        folder.load(pack(tmp_path / "deep", kind, [(f"a/{CONTROL}/c/0.png", b"x"), *good]), size=16)
    assert r"a/c\na\x1b[31mt/c/0.png: a sub-folder per category" in str(refused.value)


@pytest.mark.parametrize("kind", [None, "zip", "tar"])
def test_ignored_formats_and_empty_categories_are_one_warning(zoo, tmp_path, caplog, monkeypatch, kind):
    monkeypatch.setattr("recollect.images.reads_heic", lambda: False)
    for name in ("emu/1.heic", "emu/2.HEIC", "gnu/3.nef"):
        (zoo / name).parent.mkdir(exist_ok=True)
        (zoo / name).write_bytes(b"x")
    (zoo / "yak").mkdir()
    path = zoo if kind is None else tmp_path / f"zoo.{kind}"
    if kind:
        shutil.make_archive(zoo, kind, zoo)
    items, _ = folder.find_items(path, 16)
    assert len(items) == sum(ZOO.values())
    (line,) = caplog.messages
    assert line == (
        f"{path}: ignored 2 .heic, 1 .nef (emu/1.heic, for example): convert to JPEG or PNG, or read HEIC "
        "with pip install 'recollect[heic]'; left out 'gnu', 'yak': no pictures that can be read"
    )


def test_pictures_right_in_a_folder_or_below_it(zoo, caplog, monkeypatch):
    write_picture(zoo / "loose.png")
    (zoo / "one.dng").write_bytes(b"x")
    assert folder.find_pictures(zoo) == [zoo / "loose.png"]
    (line,) = caplog.messages
    assert line.startswith(
        f"{zoo}: ignored 1 .dng (one.dng, for example): convert to JPEG or PNG; its sub-folders"
    )
    assert folder.find_pictures(zoo, recursive=True) == sorted(zoo.rglob("*.png"))
    monkeypatch.setattr("recollect.images.reads_heic", lambda: False)
    (zoo / "phone").mkdir()
    (zoo / "phone" / "1.heic").write_bytes(b"x")
    with pytest.raises(
        PictureError, match=r"phone: there are no pictures directly .*1 \.heic .*recollect\[heic\]"
    ):
        folder.find_pictures(zoo / "phone")


def test_folders_that_link_in_circles_are_read_once(zoo, caplog):
    before = folder.find_items(zoo, 16)
    for number in range(12):
        (zoo / f"l{number}").symlink_to(".")
        (zoo / "cat" / f"l{number}").symlink_to("..")
    assert folder.find_items(zoo, 16)[1] == before[1]
    assert len(caplog.messages) == 1


def test_a_link_to_a_folder_elsewhere_is_followed_and_a_second_one_is_reported(zoo, tmp_path, caplog):
    elsewhere = write_folder(tmp_path / "elsewhere", {"yak": 3})
    (zoo / "ape").symlink_to(elsewhere / "yak")
    (zoo / "yak").symlink_to(elsewhere / "yak")
    (zoo / "aardvark").symlink_to("cat")  # comes first by name, but the folder itself goes before
    (zoo / "nowhere.png").symlink_to("nothing")
    items, _ = folder.find_items(zoo, 16)
    assert Counter(item.category for item in items) == {**ZOO, "ape": 3}
    assert caplog.messages == [f"{zoo}: left out aardvark, yak, links to folders read already"]


def test_a_link_that_cannot_be_followed_is_one_line(zoo):
    (zoo / "cat" / "bad.png").symlink_to("x" * 300)  # longer than any name may be
    with pytest.raises(DataError, match=r"cannot look at .*cat/bad\.png: File name too long$"):
        folder.find_items(zoo, 16)
    with pytest.raises(DataError, match=r"cannot look at .*cat/bad\.png: File name too long$"):
        folder.find_pictures(zoo / "cat")


def test_an_archive_in_memory_order_does_not_matter(zoo, tmp_path):
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for file in sorted(zoo.rglob("*.png"), reverse=True):
            archive.write(file, file.relative_to(zoo).as_posix())
    (tmp_path / "backwards.zip").write_bytes(stream.getvalue())
    assert_same_split(folder.load(tmp_path / "backwards.zip", size=16), folder.load(zoo, size=16))
