import bz2
import gzip
import lzma
import os
import re
import stat
import struct
import tarfile
import time
import tracemalloc
import zipfile
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from archives import KINDS, pack, pack_folder

from mutations import COUNT, refusals
from pictures import write_folder, write_picture, write_zip
from recollect.data import folder, imagenet, imageset, limits, omniglot, tars
from recollect.data.files import open_files
from recollect.errors import DataError, PictureError


def key_of(files):
    return files.stamp([*files.names, *files.others])


@pytest.fixture
def photos(tmp_path):
    return write_folder(tmp_path / "photos", {"cat": 2, "dog": 1})


NAMES = ("cat/000.png", "cat/001.png", "dog/000.png")
CONTENT = bytes(range(256)) * 50


@pytest.fixture(params=["folder", *KINDS])
def opened_with_notes(request, photos, tmp_path):
    for name in ("train.pickle", "cat/notes.txt", ".DS_Store", "__MACOSX/cat/notes.txt", "cat/.hidden"):
        (photos / name).parent.mkdir(parents=True, exist_ok=True)
        (photos / name).write_bytes(CONTENT)
    return photos if request.param == "folder" else pack_folder(tmp_path / "packed", request.param, photos)


@pytest.fixture(params=["folder", "zip", "deflated zip", *KINDS[1:]])
def opened(request, photos, tmp_path):
    if request.param == "folder":
        return photos
    if request.param == "deflated zip":
        return write_zip(tmp_path / "photos.zip", photos, method=zipfile.ZIP_DEFLATED)
    return pack_folder(tmp_path / "photos.archive", request.param, photos)


def test_files_come_sorted_with_their_bytes(opened, photos):
    files = open_files(opened)
    assert files.names == NAMES
    for name in NAMES:
        assert files.read(name) == (photos / name).read_bytes()


def test_an_item_says_where_the_picture_lies(opened):
    item = open_files(opened).item("cat", "cat/000.png")
    assert (item.category, item.relative, item.name) == ("cat", "cat/000.png", f"{opened}/cat/000.png")


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
    keys = [key_of(open_files(photos))]
    assert key_of(open_files(photos)) == keys[0]
    write_picture(photos / "cat" / "new.png", 9)
    keys.append(key_of(open_files(photos)))
    (photos / "cat" / "new.png").rename(photos / "cat" / "newer.png")
    keys.append(key_of(open_files(photos)))
    os.utime(photos / "cat" / "newer.png", ns=(1, 1))
    keys.append(key_of(open_files(photos)))
    assert len(set(keys)) == 4
    (photos / "cat" / "newer.png").unlink()
    assert key_of(open_files(photos)) == keys[0]


def test_the_key_of_an_archive_changes_with_its_content_and_not_with_its_place(photos, tmp_path):
    first = key_of(open_files(write_zip(tmp_path / "a.zip", photos)))
    assert key_of(open_files(write_zip(tmp_path / "b.zip", photos))) == first
    write_picture(photos / "cat" / "000.png", 77)
    assert key_of(open_files(write_zip(tmp_path / "c.zip", photos))) != first


@pytest.mark.parametrize("name", ["nowhere", "x" * 5000, "notes.txt/below"])
def test_a_path_with_nothing_there_is_named(tmp_path, name):
    (tmp_path / "notes.txt").write_text("")
    with pytest.raises(DataError, match=name):
        open_files(tmp_path / name)


@pytest.mark.parametrize("kind", ["folder", *KINDS])
@pytest.mark.parametrize(
    ("layout", "expected"),
    [
        (folder, "one sub-folder per category"),
        (imagenet, r"train/<wnid>/\*\.JPEG and val/"),
        (omniglot, r"images_background/<alphabet>/<character>/\*\.png and images_evaluation/"),
    ],
)
def test_without_pictures_each_layout_says_what_is_expected(tmp_path, layout, expected, kind):
    path = tmp_path / "notes"
    if kind == "folder":
        path.mkdir()
        (path / "notes.txt").write_text("")
    else:
        pack(path, kind, [("notes.txt", b"")])
    with pytest.raises(DataError, match=f"notes holds no pictures: {expected}"):
        layout.load(path)


@pytest.mark.parametrize("kind", ["folder", *KINDS])
def test_files_are_found_down_to_the_same_depth_in_folders_and_archives(tmp_path, kind):
    names = ["/".join("abcdefghij"[:depth]) + "/0.png" for depth in range(1, 11)]
    for name in names:
        (tmp_path / "photos" / name).parent.mkdir(parents=True)
        (tmp_path / "photos" / name).write_bytes(b"x")
    path = tmp_path / "photos"
    opened = path if kind == "folder" else pack_folder(tmp_path / "packed", kind, path)
    assert sorted(open_files(opened).names) == sorted(names[: limits.MAX_DEPTH])


@pytest.mark.parametrize("kind", KINDS)
def test_an_archive_of_too_many_entries_is_refused(photos, tmp_path, monkeypatch, kind):
    path = pack_folder(tmp_path / "packed", kind, photos)
    monkeypatch.setattr(limits, "MAX_ENTRIES", len(NAMES))
    assert open_files(path).names == NAMES
    monkeypatch.setattr(limits, "MAX_ENTRIES", len(NAMES) - 1)
    with pytest.raises(DataError, match=r"packed: it has more than 2 entries: refused, pack fewer files"):
        open_files(path)


def test_folders_and_long_names_in_a_tar_count_as_entries(tmp_path, monkeypatch):
    with tarfile.open(tmp_path / "photos", "w") as archive:
        for number in range(4):
            info = tarfile.TarInfo(f"folder-{number}")
            info.type = tarfile.DIRTYPE
            archive.addfile(info)
    assert open_files(tmp_path / "photos").names == ()
    monkeypatch.setattr(limits, "MAX_ENTRIES", 3)
    with pytest.raises(DataError, match="more than 3 entries"):
        open_files(tmp_path / "photos")


@pytest.mark.parametrize("content", [b"", b"some text", b"long text " * 1000])
@pytest.mark.parametrize("compress", [gzip.compress, bz2.compress, lzma.compress])
def test_something_compressed_that_is_no_tar_is_called_so(tmp_path, compress, content):
    (tmp_path / "train.gz").write_bytes(compress(content))
    with pytest.raises(DataError, match=r"train\.gz: its compressed content is not a tar archive: unpack it"):
        open_files(tmp_path / "train.gz")


def test_a_file_that_is_no_archive_is_refused_by_name(tmp_path):
    (tmp_path / "photos.rar").write_bytes(b"Rar!" + bytes(100))
    with pytest.raises(DataError, match=r"photos\.rar is neither a zip nor a tar archive, or it is damaged"):
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
    assert len(places) // 2 < refused < 2 * len(places)
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
    with pytest.raises(PictureError, match=r"cannot read .*photos\.zip/cat/001\.png: Bad CRC"):
        files.read("cat/001.png")


def declare_size(path, size):
    """Let the archive's directory say another unpacked size of its first file."""
    content = bytearray(path.read_bytes())
    struct.pack_into("<I", content, content.index(b"PK\x01\x02") + 24, size)
    path.write_bytes(content)


def test_a_file_that_would_unpack_to_too_much_is_refused_before_it_is_read(photos, tmp_path):
    path = write_zip(tmp_path / "photos.zip", photos)
    declare_size(path, limits.MAX_FILE_BYTES + 1)
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
    with pytest.raises(PictureError, match=r"cannot read .*cat/000\.png.*encrypted"):
        open_files(path).read("cat/000.png")
    with pytest.raises(DataError, match=r"cannot read .*cat/000\.png.*encrypted"):
        open_files(path).open("cat/000.png")


def test_a_file_that_vanishes_or_may_not_be_read_is_named(photos):
    files = open_files(photos)
    (photos / "cat" / "000.png").unlink()
    with pytest.raises(PictureError, match=r"cannot read .*cat/000\.png: No such file"):
        files.read("cat/000.png")
    with pytest.raises(DataError, match=r"cannot read .*cat/000\.png: No such file"):
        files.open("cat/000.png")


@pytest.mark.parametrize(
    "name",
    [
        "../secret.png",
        "cat/../../secret.png",
        "/etc/secret.png",
        "C:/secret.png",
        "..\\secret.png",
        "./../x.png",
    ],
)
@pytest.mark.parametrize("kind", KINDS)
def test_names_that_lead_out_of_an_archive_are_refused_by_name(tmp_path, kind, name):
    path = pack(tmp_path / "photos", kind, [("cat/000.png", b"x"), (name, b"x")])
    with pytest.raises(DataError, match=rf"photos: the name {re.escape(repr(name))} leads out"):
        open_files(path)


@pytest.mark.parametrize("again", ["cat/000.png", "./cat/000.png", "cat//000.png"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_a_name_that_comes_twice_is_refused(tmp_path, kind, again):
    path = pack(tmp_path / "photos", kind, [("cat/000.png", b"x"), (again, b"y")])
    with pytest.raises(DataError, match=r"photos: cat/000\.png is in the archive twice"):
        open_files(path)


def test_every_regular_file_that_is_not_hidden_is_a_picture_or_among_the_others(opened_with_notes):
    files = open_files(opened_with_notes)
    assert files.names == NAMES
    assert sorted(files.others) == ["cat/notes.txt", "train.pickle"]
    assert files.size("train.pickle") == len(CONTENT)
    with files.open("train.pickle") as stream:
        assert stream.read(10) == CONTENT[:10]
        assert stream.read() == CONTENT[10:]
    assert files.read("train.pickle") == CONTENT


def test_names_of_a_tar_archive_come_in_its_order(tmp_path):
    names = ["dog/1.png", "cat/2.png", "dog/0.png"]
    path = pack(tmp_path / "photos", "tar.gz", [(name, b"x") for name in names])
    assert list(open_files(path).names) == names


def test_files_without_a_picture_are_taken_where_no_picture_is_expected(tmp_path):
    path = pack(tmp_path / "photos", "tar.gz", [("train", b"x")])
    assert open_files(path).others == ("train",)
    with pytest.raises(DataError, match="photos holds no pictures: some are expected"):
        open_files(path, "some are expected")


def test_the_key_changes_with_what_is_no_picture_too(photos):
    (photos / "labels.csv").write_text("a")
    files = open_files(photos)
    os.utime(photos / "labels.csv", ns=(1, 1))
    changed = open_files(photos)
    assert key_of(changed) != key_of(files)
    assert changed.stamp(NAMES) == files.stamp(NAMES)
    assert changed.stamp(["labels.csv"]) != files.stamp(["labels.csv"])


@pytest.mark.parametrize("kind", KINDS)
def test_threads_may_read_files_in_any_order(tmp_path, kind):
    contents = {f"cat/{number:04}.png": bytes([number % 251]) * 700 for number in range(200)}
    files = open_files(pack(tmp_path / "photos", kind, contents.items()))
    names = sorted(contents, key=lambda name: contents[name], reverse=True)
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(files.read, names)) == [contents[name] for name in names]


def test_a_compressed_tar_is_decoded_in_one_pass(tmp_path, monkeypatch):
    photos = write_folder(tmp_path / "photos", {"cat": 150, "dog": 150}, size=4)
    path = pack_folder(tmp_path / "packed", "tar.gz", photos)
    starts = []
    content = tars.Unpacked.content
    monkeypatch.setattr(
        tars.Unpacked, "content", lambda self, start, size: starts.append(start) or content(self, start, size)
    )
    packed = folder.read_library(path, 4, skip_bad=False)
    assert starts == sorted(starts)
    assert len(starts) == 300
    plain = folder.read_library(photos, 4, skip_bad=False)
    assert packed.names == plain.names
    np.testing.assert_array_equal(packed.pixels, plain.pixels)


def test_large_files_of_a_compressed_tar_do_not_wait_in_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(imageset, "_LARGE", 100_000)
    monkeypatch.setattr(imageset.os, "cpu_count", lambda: 8)
    content = np.random.default_rng(0).bytes(1 << 20)
    path = pack(tmp_path / "photos", "tar.gz", [(f"cat/{number}.png", content) for number in range(40)])
    items, _ = folder.find_items(path, 4)
    source = imageset.Undecoded(items, 4, None)
    tracemalloc.start()
    try:
        assert all(isinstance(one, PictureError) for one in imageset.decoded(source, "", skip_bad=True))
        assert tracemalloc.get_traced_memory()[1] < 12 << 20
    finally:
        tracemalloc.stop()


def test_an_index_of_very_many_files_keeps_no_headers(tmp_path, monkeypatch):
    path = pack(tmp_path / "photos", "tar", [(f"cat/{number}.png", b"") for number in range(50)])
    kept = []
    next_of = tarfile.TarFile.next
    monkeypatch.setattr(tarfile.TarFile, "next", lambda self: kept.append(len(self.members)) or next_of(self))
    assert len(open_files(path).names) == 50
    assert max(kept) <= 1


def test_a_negative_size_in_a_tar_is_refused(tmp_path):
    info = tarfile.TarInfo("cat/0.png")
    block = bytearray(info.tobuf())
    block[124:136] = b"\xff" * 10 + b"\xfe\x00"  # −512 in base 256: back to this header
    block[148:156] = b"%06o\0 " % (sum(block[:148]) + 8 * 32 + sum(block[156:512]))
    (tmp_path / "photos").write_bytes(bytes(block) + bytes(2048))
    with pytest.raises(DataError, match=r"photos: .*cat/0\.png has a negative size"):
        open_files(tmp_path / "photos")


@pytest.mark.parametrize("form", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT, tarfile.USTAR_FORMAT])
def test_every_form_of_tar_is_read(tmp_path, form):
    long = (
        f"{'l' * 90}/{'ö' * 40}/{'s' * 9}.png"
        if form != tarfile.USTAR_FORMAT
        else f"{'l' * 90}/{'s' * 90}.png"
    )
    path = pack(tmp_path / "photos", "tar", [("cat/0.png", b"one"), (long, b"two"), ("cat/2.png", b"")], form)
    files = open_files(path)
    assert [files.read(name) for name in files.names] == [b"one", b"two", b""]
    assert files.names == ("cat/0.png", long, "cat/2.png")


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE])
def test_links_and_devices_in_a_tar_are_refused_and_never_followed(tmp_path, kind):
    (tmp_path / "secret.png").write_bytes(b"secret")
    path = tmp_path / "photos"
    with tarfile.open(path, "w") as archive:
        info = tarfile.TarInfo("cat/link.png")
        info.type, info.linkname = kind, str(tmp_path / "secret.png")
        archive.addfile(info)
    with pytest.raises(DataError, match=r"cat/link\.png is a link or a device"):
        open_files(path)


def test_a_link_in_a_zip_is_refused(tmp_path):
    info = zipfile.ZipInfo("cat/link.png")
    info.external_attr = (stat.S_IFLNK | 0o777) << 16
    with zipfile.ZipFile(tmp_path / "photos", "w") as archive:
        archive.writestr(info, "/etc/passwd")
    with pytest.raises(DataError, match=r"cat/link\.png is a link"):
        open_files(tmp_path / "photos")


@pytest.mark.parametrize("kind", ["tar.gz", "tar.bz2", "tar.xz"])
def test_a_tar_that_unpacks_to_far_more_than_it_is_is_refused_soon(tmp_path, monkeypatch, kind):
    monkeypatch.setattr(limits, "ANY_BYTES", 1 << 18)
    path = pack(tmp_path / "photos", kind, [("cat/0.png", b"x"), ("cat/1.png", bytes(8 << 20))])
    started = time.process_time()
    with pytest.raises(DataError, match=r"photos: it would unpack from .* bytes to more than"):
        open_files(path)
    assert time.process_time() - started < 2


def test_a_header_that_claims_to_be_huge_is_refused(tmp_path):
    info = tarfile.TarInfo("x")
    info.type, info.size = tarfile.XHDTYPE, 1 << 30
    with gzip.open(tmp_path / "photos", "wb") as file:
        file.write(info.tobuf() + bytes(1 << 22))
    with pytest.raises(DataError, match="a header of 1073741824 bytes is refused"):
        open_files(tmp_path / "photos")


def test_a_zip_entry_that_claims_to_unpack_to_far_more_than_it_is_is_refused(photos, tmp_path):
    path = write_zip(tmp_path / "photos.zip", photos)
    declare_size(path, limits.ANY_BYTES + 1)
    files = open_files(path)
    with pytest.raises(PictureError, match=r"cat/000\.png: it would unpack from"):
        files.read("cat/000.png")
    for look in (files.open, files.credible_size):
        with pytest.raises(DataError, match=r"photos\.zip/cat/000\.png: it would unpack from"):
            look("cat/000.png")
    assert files.credible_size("cat/001.png") == files.size("cat/001.png")


@pytest.mark.parametrize("kind", KINDS)
def test_an_archive_that_is_cut_short_is_named(photos, tmp_path, kind):
    content = pack_folder(tmp_path / "whole", kind, photos).read_bytes()
    path = tmp_path / "short"
    for part in (0.02, 0.2, 0.4):
        path.write_bytes(content[: int(len(content) * part)])
        with pytest.raises(DataError, match="short"):
            open_files(path)


@pytest.mark.parametrize("kind", KINDS)
def test_a_damaged_archive_gives_its_files_or_our_own_error(photos, tmp_path, kind):
    content = pack_folder(tmp_path / "whole", kind, photos).read_bytes()

    def read_all(path):
        files = open_files(path)
        for name in (*files.names, *files.others):
            files.read(name)
            with files.open(name) as stream:
                stream.read()

    refused = refusals(read_all, tmp_path / "damaged", content)
    # A checksum over everything, but for what is appended, is in the last three.
    least, most = {"zip": (0.9, 1), "tar": (0.3, 1)}.get(kind, (0.9, 1.01))
    assert least * COUNT < len(refused) < most * COUNT
    assert all("damaged" in line for line in refused)  # the file's name
