import os
import struct
import tracemalloc
import zipfile

import pytest

from pictures import write_folder, write_picture, write_zip
from recollect.data import files as files_module
from recollect.data.files import open_files
from recollect.errors import DataError, PictureError


@pytest.fixture
def photos(tmp_path):
    return write_folder(tmp_path / "photos", {"cat": 2, "dog": 1})


NAMES = ("cat/000.png", "cat/001.png", "dog/000.png")


@pytest.fixture(params=["folder", "zip", "deflated zip"])
def opened(request, photos, tmp_path):
    if request.param == "folder":
        return photos
    method = zipfile.ZIP_DEFLATED if request.param == "deflated zip" else zipfile.ZIP_STORED
    return write_zip(tmp_path / "photos.zip", photos, method=method)


def test_files_come_sorted_with_their_bytes(opened, photos):
    files = open_files(opened)
    assert files.names == NAMES
    for name in NAMES:
        assert files.read(name) == (photos / name).read_bytes()


def test_an_item_says_where_the_picture_lies(opened):
    item = open_files(opened).item("cat", "cat/000.png")
    assert (item.category, item.name, item.place) == ("cat", "cat/000.png", f"{opened}/cat/000.png")


def test_hidden_files_and_what_is_no_picture_are_passed_over(photos, tmp_path):
    for name in (
        ".hidden.png",
        "cat/._000.png",
        ".git/a.png",
        "__MACOSX/cat/a.png",
        "cat/notes.txt",
        "cat/a",
    ):
        (photos / name).parent.mkdir(parents=True, exist_ok=True)
        (photos / name).write_bytes(b"")
    (photos / "cat" / "folder.png").mkdir()
    (photos / "cat" / "nowhere.png").symlink_to(tmp_path / "nowhere.png")
    assert open_files(photos).names == NAMES
    assert open_files(write_zip(tmp_path / "photos.zip", photos)).names == NAMES


def test_capitals_in_a_suffix_do_not_matter(photos):
    (photos / "cat" / "000.png").rename(photos / "cat" / "000.PNG")
    assert "cat/000.PNG" in open_files(photos).names


def test_the_key_changes_when_a_file_is_added_removed_renamed_or_altered(photos):
    keys = [open_files(photos).key]
    assert open_files(photos).key == keys[0]
    write_picture(photos / "cat" / "new.png", 9)
    keys.append(open_files(photos).key)
    (photos / "cat" / "new.png").rename(photos / "cat" / "newer.png")
    keys.append(open_files(photos).key)
    os.utime(photos / "cat" / "newer.png", ns=(1, 1))
    keys.append(open_files(photos).key)
    assert len(set(keys)) == 4
    (photos / "cat" / "newer.png").unlink()
    assert open_files(photos).key == keys[0]


def test_the_key_of_an_archive_changes_with_its_content_and_not_with_its_place(photos, tmp_path):
    first = open_files(write_zip(tmp_path / "a.zip", photos)).key
    assert open_files(write_zip(tmp_path / "b.zip", photos)).key == first
    write_picture(photos / "cat" / "000.png", 77)
    assert open_files(write_zip(tmp_path / "c.zip", photos)).key != first


@pytest.mark.parametrize("name", ["nowhere", "x" * 5000, "notes.txt/below"])
def test_a_path_with_nothing_there_is_named(tmp_path, name):
    (tmp_path / "notes.txt").write_text("")
    with pytest.raises(DataError, match=name):
        open_files(tmp_path / name)


def test_a_folder_without_pictures_says_what_is_expected(tmp_path):
    (tmp_path / "notes.txt").write_text("")
    with pytest.raises(DataError, match="holds no pictures: one sub-folder per category"):
        open_files(tmp_path)


def test_an_archive_without_pictures_says_what_is_expected(tmp_path):
    with zipfile.ZipFile(tmp_path / "empty.zip", "w"):
        pass
    with pytest.raises(DataError, match=r"empty\.zip holds no pictures"):
        open_files(tmp_path / "empty.zip")


def test_a_file_that_is_no_archive_is_refused_by_name(tmp_path):
    (tmp_path / "photos.rar").write_bytes(b"Rar!" + bytes(100))
    with pytest.raises(DataError, match=r"photos\.rar is not a zip archive, or it is damaged"):
        open_files(tmp_path / "photos.rar")


def test_an_archive_damaged_anywhere_gives_its_files_or_our_own_error(photos, tmp_path):
    content = write_zip(tmp_path / "photos.zip", photos, method=zipfile.ZIP_DEFLATED).read_bytes()
    directory = content.index(b"PK\x01\x02")
    path = tmp_path / "damaged.zip"
    refused = 0
    places = [*range(60), *range(directory, len(content))]
    for place in places:
        for value in (content[place] ^ 0xFF, content[place] ^ 0x01):
            path.write_bytes(content[:place] + bytes([value]) + content[place + 1 :])
            try:
                files = open_files(path)
                for name in files.names:
                    files.read(name)
            except (DataError, PictureError):
                refused += 1
    assert refused > len(places) // 2
    for length in range(0, len(content), 37):
        path.write_bytes(content[:length])
        with pytest.raises(DataError, match=r"damaged\.zip"):
            open_files(path)


def test_a_file_whose_checksum_is_wrong_is_named(photos, tmp_path):
    path = write_zip(tmp_path / "photos.zip", photos)
    content = bytearray(path.read_bytes())
    content[content.index((photos / "cat" / "001.png").read_bytes()) + 60] ^= 0xFF
    path.write_bytes(content)
    files = open_files(path)
    assert files.read("cat/000.png")
    with pytest.raises(PictureError, match=r"cannot read cat/001\.png in .*photos\.zip"):
        files.read("cat/001.png")


def declare_size(path, size):
    """Let the archive's directory say another unpacked size of its first file."""
    content = bytearray(path.read_bytes())
    struct.pack_into("<I", content, content.index(b"PK\x01\x02") + 24, size)
    path.write_bytes(content)


def test_a_file_that_would_unpack_to_too_much_is_refused_before_it_is_read(photos, tmp_path):
    path = write_zip(tmp_path / "photos.zip", photos)
    declare_size(path, files_module.MAX_FILE_BYTES + 1)
    with pytest.raises(PictureError, match=r"photos\.zip/cat/000\.png would unpack to 256 MiB"):
        open_files(path).read("cat/000.png")


def test_a_file_that_unpacks_to_more_than_it_says_takes_no_more_memory(tmp_path):
    path = tmp_path / "bomb.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("cat/0.png", bytes(64 << 20))
    declare_size(path, 1000)
    files = open_files(path)
    tracemalloc.start()
    try:
        with pytest.raises(PictureError, match=r"cat/0\.png"):
            files.read("cat/0.png")
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()


def test_an_encrypted_file_is_named(photos, tmp_path):
    path = write_zip(tmp_path / "photos.zip", photos)
    content = bytearray(path.read_bytes())
    content[content.index(b"PK\x01\x02") + 8] |= 1
    path.write_bytes(content)
    with pytest.raises(PictureError, match=r"cannot read cat/000\.png.*encrypted"):
        open_files(path).read("cat/000.png")


def test_a_file_that_vanishes_or_may_not_be_read_is_named(photos):
    files = open_files(photos)
    (photos / "cat" / "000.png").unlink()
    with pytest.raises(PictureError, match=r"cannot read .*cat/000\.png: No such file"):
        files.read("cat/000.png")


def test_names_that_climb_out_of_an_archive_are_passed_over(photos, tmp_path):
    path = write_zip(tmp_path / "photos.zip", photos)
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("../secret.png", b"")
        archive.writestr("cat/../../secret.png", b"")
    assert open_files(path).names == NAMES
