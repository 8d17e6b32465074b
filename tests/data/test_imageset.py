import errno
import io
import itertools
import json
import os
import threading

import numpy as np
import pytest
import torch
from PIL import Image

from pictures import disk_room, pixels_of
from recollect.data import imageset
from recollect.data.imageset import (
    ImageSet,
    Item,
    Library,
    batches,
    cached_library,
    decode,
    digest,
)
from recollect.errors import PictureError, StorageError
from recollect.system.disk import cache_folder


def png(array):
    stream = io.BytesIO()
    Image.fromarray(array).save(stream, "PNG")
    return stream.getvalue()


def items_of(count, bad=()):
    """`count` pictures of two categories; those at `bad` hold no picture."""
    return [
        Item(
            "ba"[number % 2],
            f"{'ba'[number % 2]}/{number}.png",
            f"/photos/{number}.png",
            lambda number=number: b"no picture" if number in bad else png(pixels_of(number)),
        )
        for number in range(count)
    ]


def decoded(count=6, bad=(), *, key="key", size=16, skip_bad=False, cache_gb=16):
    return decode(items_of(count, bad), key=key, size=size, skip_bad=skip_bad, cache_gb=cache_gb)


def cache_entries():
    folder = cache_folder() / "images"
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


def assert_whole(library, numbers=range(6)):
    assert library.categories == ("a", "b")
    assert [library.names[row] for row in range(len(numbers))] == [f"{'ba'[n % 2]}/{n}.png" for n in numbers]
    assert library.labels.tolist() == [1 - n % 2 for n in numbers]
    for row, number in enumerate(numbers):
        np.testing.assert_array_equal(library.pixels[row], pixels_of(number))


@pytest.fixture
def no_decoding(monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("decoded again")

    def start():
        monkeypatch.setattr(imageset, "read_pixels", refuse)

    return start


def test_decoding_keeps_every_picture_with_its_name_and_category():
    assert_whole(decoded())


def test_pixels_are_mapped_from_disk_and_cannot_be_changed():
    library = decoded()
    assert isinstance(library.pixels, np.memmap)
    with pytest.raises(ValueError, match="read-only"):
        library.pixels[0] = 0


def test_a_cache_hit_does_not_decode_again(no_decoding):
    decoded()
    no_decoding()
    assert_whole(decoded())
    with pytest.raises(AssertionError, match="decoded again"):
        decoded(key="another")


def test_more_pictures_than_are_decoded_ahead_stay_in_order(monkeypatch):
    monkeypatch.setattr(imageset.os, "cpu_count", lambda: 1)
    assert_whole(decoded(11), range(11))


@pytest.mark.parametrize("bad", [0, 3, 5])
def test_a_picture_that_does_not_decode_is_named_and_nothing_is_kept(bad):
    with pytest.raises(PictureError, match=rf"/photos/{bad}\.png.*--skip-bad"):
        decoded(bad=(bad,))
    assert cache_entries() == []


def test_with_skip_bad_such_a_picture_is_left_out_and_reported(caplog):
    library = decoded(bad=(1, 4), skip_bad=True)
    assert_whole(library, [0, 2, 3, 5])
    assert [record.getMessage().split(":")[0] for record in caplog.records] == ["left out"] * 2
    assert "/photos/1.png" in caplog.text
    assert "/photos/4.png" in caplog.text


def test_pictures_left_out_are_reported_from_the_cache_too(caplog, no_decoding):
    decoded(bad=(1,), skip_bad=True)
    no_decoding()
    caplog.clear()
    assert_whole(decoded(bad=(1,), skip_bad=True), [0, 2, 3, 4, 5])
    assert "/photos/1.png" in caplog.text


def test_what_was_decoded_with_skip_bad_is_refused_without_it():
    decoded(bad=(1,), skip_bad=True)
    with pytest.raises(PictureError, match=r"/photos/1\.png.*--skip-bad"):
        decoded(bad=(1,))


def entry():
    (folder,) = (cache_folder() / "images").iterdir()
    return folder


def edit_about(**changes):
    path = entry() / "about.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def fifo(name):
    remove(name)
    os.mkfifo(entry() / name)


def remove(name):
    (entry() / name).unlink()


def cut(name, length):
    path = entry() / name
    path.write_bytes(path.read_bytes()[:length])


DAMAGE = {
    "an older version": lambda: edit_about(version=0),
    "an older version with other words": lambda: (entry() / "about.json").write_text('{"version": 0}'),
    "pixels cut short": lambda: cut("pixels.npy", -100),
    "pixels emptied": lambda: cut("pixels.npy", 0),
    "pixels gone": lambda: remove("pixels.npy"),
    "a FIFO for pixels": lambda: fifo("pixels.npy"),
    "a FIFO for what they are": lambda: fifo("about.json"),
    "pixels of another kind": lambda: np.save(entry() / "pixels.npy", np.zeros((6, 16, 16, 3))),
    "flat pixels": lambda: np.save(entry() / "pixels.npy", np.zeros(4608, np.uint8)),
    "pictures of another size": lambda: np.save(entry() / "pixels.npy", np.zeros((6, 9, 9, 3), np.uint8)),
    "pictures of two channels": lambda: np.save(entry() / "pixels.npy", np.zeros((6, 16, 16, 2), np.uint8)),
    "pictures that are not square": lambda: np.save(
        entry() / "pixels.npy", np.zeros((6, 16, 8, 3), np.uint8)
    ),
    "names that are numbers": lambda: edit_about(names=[1] * 6),
    "fewer pixels": lambda: np.save(entry() / "pixels.npy", np.zeros((3, 16, 16, 3), np.uint8)),
    "no array": lambda: (entry() / "pixels.npy").write_bytes(b"\x93NUMPY garbage"),
    "a pickle": lambda: np.save(entry() / "pixels.npy", np.array([{}]), allow_pickle=True),
    "words cut short": lambda: cut("about.json", -9),
    "words emptied": lambda: cut("about.json", 0),
    "words gone": lambda: remove("about.json"),
    "words that are no words": lambda: (entry() / "about.json").write_bytes(b"\xff\xfe\x00"),
    "words of another kind": lambda: (entry() / "about.json").write_text("[1]"),
    "labels out of range": lambda: edit_about(labels=[0, 1, 2, 0, 1, 0]),
    "labels below 0": lambda: edit_about(labels=[0, 1, -1, 0, 1, 0]),
    "too few labels": lambda: edit_about(labels=[0]),
    "labels beyond numbers": lambda: edit_about(labels=[10**30] * 6),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_or_older_cache_is_decoded_again(damage, caplog, no_decoding):
    decoded()
    damage()
    assert_whole(decoded())
    assert "decoding again" in caplog.text
    no_decoding()
    assert_whole(decoded())


def test_a_cache_of_another_version_is_called_so(caplog):
    decoded()
    edit_about(version=imageset.CACHE_VERSION + 1)
    decoded()
    assert "written by another version" in caplog.text


def test_two_that_build_the_same_entry_at_once_both_succeed():
    both_inside = threading.Barrier(2, timeout=20)
    results = []

    def build(room):
        both_inside.wait()
        room(2)[:] = pixels_of(0)
        return {"categories": ["a"], "labels": [0, 0], "names": ["a/0", "a/1"], "bad": []}

    def work():
        results.append(cached_library("shared", 16, build)[0])

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 2
    for library in results:
        np.testing.assert_array_equal(library.pixels[1], pixels_of(0))
    assert cache_entries() == ["shared"]


def no_room(*_):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_full_disk_is_noticed_before_a_picture_is_decoded(monkeypatch, no_decoding):
    monkeypatch.setattr(os, "posix_fallocate", no_room)
    no_decoding()
    with pytest.raises(StorageError, match="no room on the disk"):
        decoded()
    assert cache_entries() == []


@pytest.mark.parametrize("room", [0, 100, 4000])
def test_a_disk_that_fills_up_leaves_no_half_written_cache(room):
    with disk_room(room), pytest.raises(StorageError, match="no room on the disk"):
        decoded()
    assert cache_entries() == []
    assert_whole(decoded())


def test_the_digest_tells_its_words_apart():
    words = [("a", 1), ("a1",), ("a", "1"), (["a"], 1), ("a", 1, None)]
    assert len({digest(*one) for one in words}) == len(words)
    assert digest("a", 1) == digest("a", 1)


def library_of(labels, categories=("a", "b", "c")):
    pixels = np.stack([pixels_of(row) for row in range(len(labels))])
    return Library(
        pixels, np.array(labels), categories, tuple(f"{row}.png" for row in range(len(labels))), "key"
    )


def test_selected_pictures_are_labelled_by_the_categories_asked_for():
    chosen = library_of([0, 1, 2, 1, 2]).select([4, 1, 2], ["c", "b"])
    assert chosen.labels.tolist() == [0, 1, 0]
    assert chosen.categories == ("c", "b")
    assert len(chosen) == 3
    assert chosen.size == 16
    np.testing.assert_array_equal(chosen.take(np.array([1, 0])), np.stack([pixels_of(1), pixels_of(4)]))


def test_the_first_pictures_of_each_category_keep_their_order():
    pixels = np.arange(6, dtype=np.uint8).reshape(6, 1, 1, 1) * np.ones((6, 1, 1, 3), np.uint8)
    images = ImageSet(pixels, np.arange(6), np.array([1, 0, 1, 1, 0, 2]), ("a", "b", "c"), "key")
    first = images.first(2)
    assert first.labels.tolist() == [1, 0, 1, 0, 2]
    assert first.take(np.arange(5))[:, 0, 0, 0].tolist() == [0, 1, 2, 4, 5]
    assert len(images.first(9)) == 6


def test_the_content_key_names_the_pictures_and_their_order():
    library = library_of([0, 0, 1])
    keys = [library.select(rows, ["a", "b"]).content_key() for rows in ([0, 1], [1, 0], [0, 2], [0])]
    assert len(set(keys)) == 4
    assert library.select([0, 1], ["a", "b"]).content_key() == keys[0]
    other = Library(library.pixels, library.labels, library.categories, library.names, "another key")
    assert other.select([0, 1], ["a", "b"]).content_key() != keys[0]


def test_normalisation_is_the_mean_and_deviation_of_the_selected_pictures():
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (2100, 2, 2, 3), dtype=np.uint8)
    rows = np.arange(1, 2100)
    images = ImageSet(pixels, rows, np.zeros(2099, np.int64), ("a",), "key")
    mean, std = images.normalisation()
    values = pixels[1:].reshape(-1, 3).astype(np.float64)
    np.testing.assert_allclose(mean, values.mean(0), atol=6e-4)
    np.testing.assert_allclose(std, values.std(0), atol=6e-4)


def test_pictures_all_of_one_colour_get_a_deviation_to_divide_by():
    images = ImageSet(np.full((2, 4, 4, 3), 9, np.uint8), np.arange(2), np.zeros(2, np.int64), ("a",), "key")
    prepared = images.preprocessing
    assert (prepared.size, prepared.mean, prepared.std) == (4, (9, 9, 9), (1, 1, 1))


def test_batches_cover_everything_once():
    assert [rows.tolist() for rows in batches(5, 2)] == [[0, 1], [2, 3], [4]]
    assert list(batches(0, 2)) == []


def on_the_fly(*arguments, **options):
    return decoded(*arguments, cache_gb=0, **options)


def whole_set(library):
    return library.select(range(len(library.labels)), library.categories)


def three_batches():
    return [np.array(rows) for rows in ([5, 0], [3], [1, 1, 4])]


def test_above_the_limit_nothing_is_kept_and_the_pixels_and_keys_are_the_same():
    lazy = on_the_fly()
    assert cache_entries() == []
    kept = decoded()
    first, second = whole_set(lazy), whole_set(kept)
    assert (first.on_the_fly, second.on_the_fly) == (True, False)
    assert (lazy.key, lazy.names, lazy.categories) == (kept.key, kept.names, kept.categories)
    assert first.content_key() == second.content_key()
    assert first.labels.tolist() == second.labels.tolist()
    assert first.normalisation() == second.normalisation()
    for (rows, pixels), (others, expected) in zip(
        first.stream(three_batches()), second.stream(three_batches()), strict=True
    ):
        assert rows.tolist() == others.tolist()
        np.testing.assert_array_equal(pixels, expected)


def test_the_limit_is_the_size_of_the_decoded_pictures():
    size = 6 * 16 * 16 * 3
    for gigabytes, lazy in ((size / 1e9, False), ((size - 1) / 1e9, True)):
        assert whole_set(decoded(key=f"limit {lazy}", cache_gb=gigabytes)).on_the_fly == lazy


def test_what_was_kept_before_is_used_whatever_the_limit():
    decoded()
    assert isinstance(on_the_fly().pixels, np.memmap)


def test_on_the_fly_a_bad_picture_is_named_before_the_work_begins():
    with pytest.raises(PictureError, match=r"/photos/3\.png.*--skip-bad"):
        on_the_fly(bad=(3,))
    assert list(cache_folder().rglob("*.json")) == []


def test_on_the_fly_bad_pictures_are_left_out_as_from_the_cache(caplog):
    lazy, kept = on_the_fly(bad=(1, 4), skip_bad=True), decoded(bad=(1, 4), skip_bad=True)
    assert lazy.names == kept.names
    assert caplog.text.count("left out") == 4
    np.testing.assert_array_equal(lazy.pixels[np.arange(4)], kept.pixels[np.arange(4)])


def test_pictures_are_checked_once(no_decoding):
    on_the_fly(bad=(1,), skip_bad=True)
    no_decoding()
    assert len(on_the_fly(bad=(1,), skip_bad=True).names) == 5
    with pytest.raises(PictureError, match=r"/photos/1\.png.*--skip-bad"):
        on_the_fly(bad=(1,))


def test_a_list_of_bad_pictures_that_cannot_be_kept_stops_nothing(caplog):
    cache_folder().mkdir(parents=True)
    (cache_folder() / "checked").write_text("a file where a folder should be")
    assert len(on_the_fly(bad=(1,), skip_bad=True).names) == 5
    assert "the list of bad pictures is not cached: cannot write" in caplog.text


@pytest.mark.parametrize("words", ["", "[1]", '{"version": 0}', '{"version": 1, "pictures": 5, "bad": []}'])
def test_a_damaged_list_of_bad_pictures_is_made_again(words):
    on_the_fly(bad=(1,), skip_bad=True)
    (path,) = (cache_folder() / "checked").iterdir()
    path.write_text(words)
    assert len(on_the_fly(bad=(1,), skip_bad=True).names) == 5


def test_a_picture_that_went_bad_since_is_named_in_one_line():
    bad = []
    images = whole_set(on_the_fly(bad=bad))
    bad.append(3)
    with pytest.raises(PictureError, match=r"^/photos/3\.png: [^\n]*$"):
        list(images.stream(three_batches()))


def test_a_stream_that_is_closed_leaves_no_thread_and_no_trace_in_random_numbers():
    images = whole_set(on_the_fly())
    before, state = threading.active_count(), torch.get_rng_state()
    stream = images.stream(np.array([row % 6]) for row in itertools.count())
    assert next(stream)[0].tolist() == [0]
    assert threading.active_count() > before
    stream.close()
    assert threading.active_count() == before
    assert torch.equal(torch.get_rng_state(), state)


def test_pictures_are_decoded_only_so_far_ahead():
    images, asked = whole_set(on_the_fly()), []

    def work():
        for row in itertools.count():
            asked.append(row)
            yield np.array([row % 6])

    stream = images.stream(work())
    for _ in range(3):
        next(stream)
    assert 3 <= len(asked) <= 3 + torch.get_num_threads()
    stream.close()


def test_of_very_many_pictures_a_sample_decides_whether_kept_or_not(monkeypatch):
    monkeypatch.setattr(imageset, "_SAMPLED_ABOVE", 100)
    monkeypatch.setattr(imageset, "_SAMPLE", 3)
    values = np.stack([pixels_of(row) for row in (0, 2, 4)]).reshape(-1, 3)
    for library in (on_the_fly(), decoded()):
        np.testing.assert_allclose(whole_set(library).normalisation()[0], values.mean(0), atol=6e-4)
