import os
import pickle
import shutil
import tarfile
from pathlib import Path, PurePosixPath

import numpy as np
import pytest
from archives import pack, pack_folder
from PIL import Image

from mutations import COUNT, mutations
from pictures import pixels_of, tree, write_picture, write_zip
from recollect.data import cifar
from recollect.errors import DataError, PictureError, RecollectError
from recollect.images import read_pixels

WORDS = cifar._published()
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
    with pytest.raises(DataError, match="is missing 1 categories of CIFAR-100, such as 'wolf'"):
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
    with pytest.raises(DataError, match=r"has no picture of 'baby' that can be read"):
        cifar.load(folder, size=8, skip_bad=True)


def test_a_split_of_ones_own_is_refused(whole):
    with pytest.raises(DataError, match="leave --split out"):
        cifar.load(whole, split="1")


def test_a_split_by_names_takes_the_place_of_the_published_one(whole):
    published = cifar.load(whole, size=8)
    split = cifar.load(whole, size=8, split='{"val": ["apple"], "test": ["bee", "camel"]}')
    assert (split.val.categories, split.test.categories) == (("apple",), ("bee", "camel"))
    everything = {*published.categories, *published.val.categories, *published.test.categories}
    assert {*split.categories} == everything - {"apple", "bee", "camel"}
    kept = set(split.set_aside)
    assert {*split.base_test.rows} <= kept
    assert len(kept & {*split.test.rows}) == TEST * 2


FEW = {"train": ["apple", "bee"], "val": ["camel"], "test": ["baby"]}


def records(words, size, train=TRAIN, test=TEST):
    """Return (part, category, name, pixels) of pictures, every one different, with categories mixed."""
    names = sorted(name for part in words.values() for name in part)
    return [
        (
            part,
            name,
            f"{name}_s_{number:06}.png",
            pixels_of(1000 * label + 10 * number + (part == "test"), size),
        )
        for part, count in (("train", train), ("test", test))
        for number in range(count)
        for label, name in enumerate(names)
    ]


def official(words, size, **counts):
    """Return what the release for Python says of each part, and of the categories."""
    names = sorted(name for part in words.values() for name in part)
    told = {"meta": {"fine_label_names": names, "coarse_label_names": ["things"]}}
    for part in ("train", "test"):
        own = [record for record in records(words, size, **counts) if record[0] == part]
        told[part] = {
            "filenames": [name for _, _, name, _ in own],
            "batch_label": f"{part}ing batch 1 of 1",
            "fine_labels": [names.index(category) for _, category, _, _ in own],
            "coarse_labels": [0] * len(own),
            "data": np.stack([pixels.transpose(2, 0, 1).reshape(-1) for *_, pixels in own]),
        }
    return told


def old(value):
    """Return a value with bytes for words, as in a pickle of Python 2."""
    if isinstance(value, dict):
        return {key.encode(): old(part) for key, part in value.items()}
    if isinstance(value, list):
        return [old(part) for part in value]
    return value.encode() if isinstance(value, str) else value


def python_release(told, *, keys=old):
    return {name: pickle.dumps(keys(value), 2) for name, value in told.items()}


def binary_release(told):
    files = {
        f"{part}.bin": b"".join(
            bytes([coarse, fine]) + picture.tobytes()
            for coarse, fine, picture in zip(
                told[part]["coarse_labels"], told[part]["fine_labels"], told[part]["data"], strict=True
            )
        )
        for part in ("train", "test")
    }
    return files | {"fine_label_names.txt": "\n".join([*told["meta"]["fine_label_names"], "", ""]).encode()}


RELEASES = {"python": python_release, "binary": binary_release}


def write(root, files, top=""):
    for name, content in files.items():
        (root / top / name).parent.mkdir(parents=True, exist_ok=True)
        (root / top / name).write_bytes(content)
    return root


def write_pictures(root, words, size):
    for part, category, name, pixels in records(words, size):
        (root / part / category).mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(root / part / category / name)
    return root


@pytest.fixture
def few(monkeypatch):
    """Let CIFAR-100 have four categories."""
    monkeypatch.setattr(cifar, "_published", lambda: FEW)


@pytest.fixture
def small(monkeypatch, few):
    """Let its pictures be 2 × 2 too."""
    for name, value in (("SIZE", 2), ("PICTURE_BYTES", 12), ("RECORD_BYTES", 14)):
        monkeypatch.setattr(cifar, name, value)


def parts_of(split):
    return {
        name: (getattr(split, name).categories, pixels(getattr(split, name)))
        for name in ("base_train", "base_val", "base_test", "val", "test")
    }


@pytest.mark.parametrize("kind", RELEASES)
def test_an_official_release_of_all_categories_has_the_published_split(tmp_path, kind):
    told = official(WORDS, 32)
    split = cifar.load(write(tmp_path / "data", RELEASES[kind](told), f"cifar-100-{kind}"))
    assert split.flips
    assert split.categories == tuple(sorted(WORDS["train"]))
    assert (split.val.categories, split.test.categories) == (tuple(WORDS["val"]), tuple(WORDS["test"]))
    for images, part, count in (
        (split.base_train, "train", TRAIN - 1),
        (split.base_val, "train", 1),
        (split.base_test, "test", TEST),
    ):
        own = {bytes(p.tobytes()): name for which, name, _, p in records(WORDS, 32) if which == part}
        assert np.bincount(images.labels).tolist() == [count] * 64
        for row in range(len(images)):
            picture = images.take(np.array([row]))[0].tobytes()
            assert own[picture] == split.categories[images.labels[row]]
    assert len(split.test) == 20 * (TRAIN + TEST)


@pytest.mark.parametrize("size", [32, 16])
def test_pictures_and_releases_give_the_same_pixels_and_categories(tmp_path, few, size):
    told = official(FEW, 32)
    pictures = parts_of(cifar.load(write_pictures(tmp_path / "pictures", FEW, 32), size=size))
    assert pictures["test"][1] == {
        read_pixels(p, size).tobytes() for _, name, _, p in records(FEW, 32) if name == "baby"
    }
    # The names are the same in the release for Python, and so are the pictures held out by their names.
    assert parts_of(cifar.load(write(tmp_path / "python", python_release(told)), size=size)) == pictures
    binary = parts_of(cifar.load(write(tmp_path / "binary", binary_release(told)), size=size))
    for name in ("base_test", "val", "test"):
        assert binary[name] == pictures[name]
    for layout in (binary, pictures):
        assert not layout["base_train"][1] & layout["base_val"][1]
    assert (
        binary["base_train"][1] | binary["base_val"][1] == pictures["base_train"][1] | pictures["base_val"][1]
    )


@pytest.mark.parametrize("packed", ["folder", "zip", "tar", "tar.gz"])
@pytest.mark.parametrize("top", ["", "cifar-100/", "data/cifar-100/"])
@pytest.mark.parametrize("kind", RELEASES)
def test_a_release_is_found_in_a_folder_or_archive_at_any_place(tmp_path, small, kind, top, packed):
    files = RELEASES[kind](official(FEW, 2))
    here = parts_of(cifar.load(write(tmp_path / "here", files)))
    more = {**files, "file.txt~": b"", "README": b""}
    if packed == "folder":
        path = write(tmp_path / "there", more, top)
    else:
        path = pack(tmp_path / "there", packed, [(top + name, content) for name, content in more.items()])
    assert parts_of(cifar.load(path)) == here


@pytest.mark.parametrize("kind", ["tar", "tar.gz", "tar.xz"])
def test_pictures_are_read_from_a_tar_too(tmp_path, few, kind):
    folder = write_pictures(tmp_path / "pictures", FEW, 8)
    here = parts_of(cifar.load(folder, size=8))
    path = pack_folder(tmp_path / "packed", kind, folder, "images/")
    assert parts_of(cifar.load(path, size=8)) == here


def test_words_and_protocol_of_a_pickle_do_not_matter(tmp_path, small):
    told = official(FEW, 2)
    first = parts_of(cifar.load(write(tmp_path / "old", python_release(told))))
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        files = {name: pickle.dumps(value, protocol) for name, value in told.items()}
        assert parts_of(cifar.load(write(tmp_path / f"new-{protocol}", files))) == first


def test_a_second_load_reads_no_pixels_again(tmp_path, small, monkeypatch):
    path = write(tmp_path / "data", python_release(official(FEW, 2)))
    first = parts_of(cifar.load(path))
    monkeypatch.setattr(cifar, "read_pixels", None)
    assert parts_of(cifar.load(path)) == first
    os.utime(path / "meta", ns=(1, 1))
    with pytest.raises(TypeError):
        cifar.load(path)


@pytest.mark.parametrize("packed", ["folder", "zip", "tar.gz"])
@pytest.mark.parametrize("kind", RELEASES)
def test_a_release_that_would_take_more_than_the_limit_is_refused_with_the_remedy(
    tmp_path, small, cache, kind, packed
):
    files = RELEASES[kind](official(FEW, 2))
    path = write(tmp_path / "data", files)
    if packed != "folder":
        path = pack(tmp_path / "packed", packed, files.items())
    size = 20 * 12  # bytes of the decoded pictures; a pickle may seem to hold more
    with pytest.raises(
        DataError, match=rf"{path.name} would take up to .* GB decoded, more than .*--cache-gb 1$"
    ):
        cifar.load(path, cache_gb=(size - 1) / 1e9)
    assert not tree(cache)
    kept = parts_of(cifar.load(path, cache_gb=1e-3))
    assert parts_of(cifar.load(path, cache_gb=0)) == kept  # it is in the cache


def test_pictures_in_files_are_decoded_on_the_fly_above_the_limit(tmp_path, few):
    folder = write_pictures(tmp_path / "pictures", FEW, 8)
    lazy = cifar.load(folder, size=8, cache_gb=0)
    assert lazy.base_train.on_the_fly
    assert parts_of(lazy) == parts_of(cifar.load(folder, size=8))


def test_names_that_repeat_are_told_apart(tmp_path, small):
    told = official(FEW, 2)
    told["train"]["filenames"] = ["same.png"] * len(told["train"]["filenames"])
    split = cifar.load(write(tmp_path / "data", python_release(told)))
    assert np.bincount(split.base_val.labels).tolist() == [1, 1]
    assert not pixels(split.base_train) & pixels(split.base_val)


def without(key):
    return lambda told: told["train"].pop(key)


def first_name(value):
    return lambda told: told["train"]["filenames"].__setitem__(0, value)


def changed(part, key, value):
    return lambda told: told[part].update({key: value})


WRONG = {
    "no data": (without("data"), "train: an array 'data' of 12 bytes"),
    "no labels": (without("fine_labels"), "train: a list 'fine_labels'"),
    "no names": (without("filenames"), "train: a list 'filenames'"),
    "an empty name": (first_name(""), "train: picture 0 has no name"),
    "a list for a name": (first_name([["a"]]), "train: a list 'filenames' of words"),
    "another type": (changed("test", "data", np.zeros((8, 12), np.float32)), "test: an array 'data'"),
    "another shape": (changed("test", "data", np.zeros((8, 13), np.uint8)), "test: an array 'data'"),
    "a number for data": (changed("test", "data", 5), "test: an array 'data'"),
    "too few labels": (lambda told: told["train"]["fine_labels"].pop(), "train has 12 pictures, 11 labels"),
    "too few names": (
        lambda told: told["test"]["filenames"].pop(),
        "test has 8 pictures, 8 labels and 7 names",
    ),
    "a large label": (
        lambda told: told["train"]["fine_labels"].__setitem__(3, 4),
        r"train: the label 4 of camel_s_000000\.png is none of 0 … 3",
    ),
    "a negative label": (
        lambda told: told["train"]["fine_labels"].__setitem__(3, -1),
        "train: a list 'fine_labels' of numbers",
    ),
    "a word for a label": (
        lambda told: told["train"]["fine_labels"].__setitem__(3, "bee"),
        "train: a list 'fine_labels' of numbers",
    ),
    "no categories": (changed("meta", "fine_label_names", None), "meta has no list 'fine_label_names'"),
    "a category too few": (
        lambda told: told["meta"]["fine_label_names"].remove("bee"),
        "meta is missing 1 categories of CIFAR-100, such as 'bee'",
    ),
    "a category twice": (
        lambda told: told["meta"]["fine_label_names"].append("bee"),
        "meta names a category of CIFAR-100 twice",
    ),
    "another category": (
        lambda told: told["meta"]["fine_label_names"].append("okapi"),
        "meta holds 'okapi', which is not a category",
    ),
    "a category without pictures": (
        lambda told: [
            told[part].update(fine_labels=[0] * count) for part, count in (("train", 12), ("test", 8))
        ],
        "no picture of 'baby'|no picture of 'bee'",
    ),
}


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("RECOLLECT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_release_for_python_is_named_with_its_fault(tmp_path, small, cache, case):
    told = official(FEW, 2)
    spoil, message = WRONG[case]
    spoil(told)
    with pytest.raises(DataError, match=message):
        cifar.load(write(tmp_path / "data", python_release(told, keys=lambda value: value)))
    assert case == "a category without pictures" or not tree(cache)


def test_a_wrong_binary_release_is_named_with_its_fault(tmp_path, small, cache):
    files = binary_release(official(FEW, 2))
    for name, content, message in (
        ("train.bin", files["train.bin"][:-1], r"train\.bin is cut short or damaged: 167 bytes"),
        (
            "train.bin",
            b"\0\4" + files["train.bin"][2:],
            r"train\.bin: the label 4 of 00000\.png is none of 0 … 3",
        ),
        ("fine_label_names.txt", b"apple\nbee\ncamel\n", r"fine_label_names\.txt is missing 1 .* 'baby'"),
        ("fine_label_names.txt", b"apple\nbee\ncamel\nbaby\n\xff\n", r"fine_label_names\.txt holds"),
    ):
        with pytest.raises(DataError, match=message):
            cifar.load(write(tmp_path / "data", {**files, name: content}))
        assert not tree(cache)


@pytest.mark.parametrize("kind", RELEASES)
def test_a_file_that_a_release_lacks_is_named(tmp_path, small, kind):
    files = RELEASES[kind](official(FEW, 2))
    for lacking in files:
        path = write(tmp_path / lacking, {name: files[name] for name in files if name != lacking}, "cifar")
        with pytest.raises(DataError, match=f"cifar/{lacking} is missing"):
            cifar.load(path)


def test_what_is_no_cifar_at_all_is_told_what_is_expected(tmp_path):
    (tmp_path / "notes.txt").write_text("")
    with pytest.raises(
        DataError, match=r"is not CIFAR-100: .*train, test, meta.*train\.bin.*train/<category>"
    ):
        cifar.load(tmp_path)


class Attack:
    def __init__(self, command):
        self.command = command

    def __reduce__(self):
        return os.system, (self.command,)


@pytest.mark.parametrize("name", ["train", "test", "meta"])
@pytest.mark.parametrize("packed", ["folder", "tar.gz"])
def test_a_pickle_that_would_run_something_is_refused_and_runs_nothing(tmp_path, small, cache, name, packed):
    trace = tmp_path / "trace"
    told = official(FEW, 2)
    told[name]["batch_label"] = Attack(f"touch {trace}")
    files = python_release(told, keys=lambda value: value)
    folder = write(tmp_path / "data", files)
    path = folder if packed == "folder" else pack(tmp_path / "packed", packed, files.items())
    with pytest.raises(DataError, match=rf"{name} asks for '(posix|nt)\.system'.*refused"):
        cifar.load(path)
    assert not trace.exists()
    assert not tree(cache)
    pickle.loads(files[name])
    assert trace.exists()  # else the test would show nothing


def test_a_link_to_a_pickle_elsewhere_is_refused(tmp_path, small):
    folder = write(tmp_path / "data", python_release(official(FEW, 2)))
    with tarfile.open(tmp_path / "packed", "w:gz") as archive:
        archive.add(folder / "train", "train")
        archive.add(folder / "test", "test")
        info = tarfile.TarInfo("meta")
        info.type, info.linkname = tarfile.SYMTYPE, str(folder / "meta")
        archive.addfile(info)
    with pytest.raises(DataError, match="meta is a link"):
        cifar.load(tmp_path / "packed")


MUTATED = [
    ("python", "train"),
    ("python", "meta"),
    ("binary", "train.bin"),
    ("binary", "fine_label_names.txt"),
    *((layout, kind) for layout in ("python", "binary", "pictures") for kind in ("zip", "tar", "tar.gz")),
]


@pytest.mark.parametrize(("layout", "which"), MUTATED)
def test_damage_gives_a_split_or_our_own_error_and_leaves_nothing(tmp_path, small, cache, layout, which):
    if layout == "pictures":
        folder = write_pictures(tmp_path / "data", FEW, 2)
    else:
        folder = write(tmp_path / "data", RELEASES[layout](official(FEW, 2, train=2, test=1)))
    archive = which in {"zip", "tar", "tar.gz"}
    file = pack_folder(tmp_path / "packed", which, folder) if archive else folder / which
    path = file if archive else folder
    assert cifar.load(path)
    refused = 0
    for damaged in mutations(file.read_bytes()):
        file.write_bytes(damaged)
        shutil.rmtree(cache, ignore_errors=True)
        try:
            assert cifar.load(path).categories == ("apple", "bee")
        except RecollectError:
            refused += 1
            # A picture set may decode whole and prove too small afterwards; then it is whole in the cache.
            left = {PurePosixPath(name).name for name in tree(cache)}
            assert left in (set(), {"pixels.npy", "about.json"})
    assert COUNT / 10 < refused < COUNT + (which == "tar.gz")  # of which every byte is checked


@pytest.mark.slow
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
