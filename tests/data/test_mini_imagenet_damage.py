"""mini-ImageNet with something wrong: told in one line, and nothing half-written."""

import os
import pickle
import shutil

import numpy as np
import pytest
from mini_releases import (
    ADDED,
    CATEGORIES,
    EACH,
    EXACT,
    SIZE,
    assert_whole,
    cache_content,
    cache_file,
    contents,
    file_of,
    load,
    packed,
    phase_content,
    phase_file,
    write_pickle,
)

from mutations import COUNT, mutations
from pictures import tree, write_picture
from recollect.data import imageset, mini_imagenet
from recollect.data.splits import Split
from recollect.errors import DataError, PictureError, RecollectError
from recollect.system.disk import cache_folder


def spoil(path):
    path.write_bytes(b"no picture")


def test_a_picture_that_does_not_decode_is_named_or_left_out(copy_of):
    folder = copy_of("images")
    spoil(folder / "images" / file_of("n04", 3))
    with pytest.raises(PictureError, match=rf"images/{file_of('n04', 3)}.*--skip-bad"):
        load(folder)
    split = load(folder, skip_bad=True)
    assert ("n04", 3) not in contents(split.val)
    assert len(split.val) == 2 * EACH - 1


def test_which_pictures_are_held_out_does_not_depend_on_those_left_out(copy_of, releases):
    folder = copy_of("images")
    train, val = (contents(load(releases / "images").base_train), contents(load(folder).base_val))
    spoil(folder / "images" / file_of(*train[0]))
    assert contents(load(folder, skip_bad=True).base_val) == val


def test_a_category_of_which_nothing_decodes_is_named(copy_of):
    folder = copy_of("folder per category")
    for path in (folder / "n04").iterdir():
        spoil(path)
    with pytest.raises(DataError, match="no picture of 'n04'"):
        load(folder, skip_bad=True)


def edit(name, change):
    """Let a test alter the text of a file."""
    return lambda folder: (folder / name).write_text(change((folder / name).read_text()))


def put(name, content):
    return lambda folder: (folder / name).write_bytes(content)


def remove(name):
    return lambda folder: (folder / name).unlink()


def add_line(line, name="val.csv"):
    return edit(name, lambda text: f"{text}{line}\n")


FIRST = file_of("n04", 0)

WRONG_CSVS = {
    "another header": (
        edit("val.csv", lambda text: text.replace("filename", "file")),
        r"val\.csv: the header filename,label is expected, not 'file,label'",
    ),
    "no header": (edit("val.csv", lambda text: text.partition("\n")[2]), r"val\.csv: the header"),
    "one more column": (edit("val.csv", lambda text: text.replace(",", ",0,")), r"val\.csv: the header"),
    "a line of one word": (
        add_line("okapi"),
        rf"val\.csv, line {ADDED}: a file name and a label are expected, not 'okapi'",
    ),
    "a line without a label": (add_line(f"{FIRST},"), rf"val\.csv, line {ADDED}: a file name and a label"),
    "nothing": (put("val.csv", b""), r"val\.csv is empty"),
    "only a header": (put("val.csv", b"filename,label\n"), r"val\.csv lists no pictures"),
    "no text": (put("val.csv", b"filename,label\n\xff\xfe,n04\n"), r"val\.csv is not UTF-8 text"),
    "an open quote": (add_line('"a.jpg,n04'), rf"val\.csv, line {ADDED} is damaged"),
    "a picture that is not there": (
        add_line("okapi.jpg,n04"),
        rf"val\.csv, line {ADDED}: 'okapi\.jpg' is not among the pictures",
    ),
    "a picture that was removed": (
        remove(f"images/{FIRST}"),
        rf"val\.csv, line 2: '{FIRST}' is not among the pictures",
    ),
    "a picture twice": (
        add_line(f"{FIRST},n04"),
        rf"val\.csv, line {ADDED}: '{FIRST}' is listed a second time",
    ),
    "a picture in two files": (
        add_line(f"{FIRST},n06", "test.csv"),
        rf"test\.csv, line {ADDED}: '{FIRST}' is listed a second time",
    ),
    "a category in two files": (
        edit("test.csv", lambda text: text.replace(",n06", ",n04")),
        "'n04' is both in val and in test",
    ),
    "a name that climbs out": (
        add_line("../okapi.jpg,n04"),
        rf"line {ADDED}: '\.\./okapi\.jpg' leads out of the data set",
    ),
    "a name that climbs out and back": (
        add_line(f"images/../images/{FIRST},n04"),
        "leads out of the data set",
    ),
    "an absolute name": (add_line(f"/images/{FIRST},n04"), "leads out of the data set"),
    "no file": (remove("val.csv"), r"incomplete mini-ImageNet: of \*\.csv, val\.csv is missing"),
    "two of a file": (
        lambda folder: shutil.copy(folder / "val.csv", folder / "images"),
        r"holds both images/val\.csv and val\.csv",
    ),
    "one base category": (
        edit("train.csv", lambda text: text.replace(",n02", ",n01").replace(",n03", ",n01")),
        "fewer than 2 base categories",
    ),
    "too few pictures": (
        edit("train.csv", lambda text: "".join(text.splitlines(keepends=True)[:20])),
        "category 'n03' has 3 pictures, too few",
    ),
}


def test_two_pictures_of_one_name_are_named(copy_of):
    folder = copy_of("folder per category")
    shutil.copy(folder / "n04" / FIRST, folder / "n05" / FIRST)
    with pytest.raises(DataError, match=rf"holds both n04/{FIRST} and n05/{FIRST}: remove or rename"):
        load(folder)


@pytest.mark.parametrize(
    ("header", "end"),
    [("\ufefffilename,label", "\n"), ("filename, label", "\r\n\r\n"), ('"filename","label"', "\r")],
)
def test_csv_files_as_other_programs_write_them_are_read(copy_of, header, end):
    folder = copy_of("images")
    for part in CATEGORIES:
        path = folder / f"{part}.csv"
        lines = [header, *path.read_text().splitlines()[1:]]
        path.write_text(end.join(lines), newline="")
    assert_whole(load(folder))


def test_pictures_in_no_csv_file_are_passed_over(copy_of):
    folder = copy_of("images")
    write_picture(folder / "images" / "okapi.jpg")
    assert_whole(load(folder))


def with_phase(**changes):
    return lambda folder: write_pickle(folder / phase_file("val"), phase_content(CATEGORIES["val"]) | changes)


def with_cache(**changes):
    return lambda folder: write_pickle(folder / cache_file("val"), cache_content(CATEGORIES["val"]) | changes)


def as_array(dtype=np.uint8, shape=(2 * EACH, SIZE, SIZE, 3)):
    return np.zeros(shape, dtype)


def with_both_keys(folder):
    content = phase_content(CATEGORIES["val"])
    write_pickle(folder / phase_file("val"), content | {b"labels": content["labels"]})


def rows_of(first, second):
    return {"n04": first, "n05": second}


HALF, REST = list(range(EACH)), list(range(EACH, 2 * EACH))

IN_PHASE, IN_CACHE = r"category_split_val\.pickle", r"cache-val\.pkl"

WRONG_PHASES = {
    "pixels of another kind": (
        with_phase(data=as_array(np.float32)),
        rf"{IN_PHASE}: 'data' must be uint8 \(n, 8, 8, 3\), not float32",
    ),
    "pixels of another shape": (
        with_phase(data=as_array(shape=(16, 3, SIZE, SIZE))),
        rf"{IN_PHASE}: 'data' must be .* not uint8 \(16, 3, 8, 8\)",
    ),
    "pictures of another size": (
        with_phase(data=as_array(shape=(16, 1, 1, 3))),
        rf"{IN_PHASE}: 'data' must be .* not uint8 \(16, 1, 1, 3\)",
    ),
    "flat pixels": (with_phase(data=as_array(shape=(16, 192))), rf"{IN_PHASE}: 'data' must be"),
    "no pixels": (
        with_phase(data=as_array(shape=(0, SIZE, SIZE, 3)), labels=[]),
        rf"{IN_PHASE}: 'data' must be",
    ),
    "endless pictures of no pixels": (
        with_phase(data=as_array(shape=(10**12, 0, 0, 3))),
        rf"{IN_PHASE}: 'data' must be",
    ),
    "a list for pixels": (with_phase(data=[1, 2]), rf"{IN_PHASE} holds no array 'data'"),
    "too few labels": (with_phase(labels=[3] * 15), rf"{IN_PHASE}: 'labels' must be 16 whole numbers"),
    "labels that are no numbers": (
        with_phase(labels=["n04"] * 16),
        rf"{IN_PHASE}: 'labels' must be 16 whole numbers",
    ),
    "labels with a fraction": (with_phase(labels=[0.5] * 16), rf"{IN_PHASE}: 'labels' must be"),
    "labels beyond numbers": (
        with_phase(labels=[10**30] * 16),
        rf"{IN_PHASE} is damaged.*a number has 100 bits",
    ),
    "labels as a table": (with_phase(labels=np.zeros((16, 1), int)), rf"{IN_PHASE}: 'labels' must be"),
    "no labels at all": (with_phase(labels=None), rf"{IN_PHASE}: 'labels' must be"),
    "a category in two sets": (
        with_phase(catname2label={"n01": 3, "n05": 4}),
        "'n01' is both in train and in val",
    ),
    "a category as text and as bytes": (
        with_phase(catname2label={"n04": 3, b"n04": 4}),
        rf"{IN_PHASE} names the category 'n04' twice",
    ),
    "two names of one label": (
        with_phase(catname2label={"n04": 3, "n05": 3}),
        rf"{IN_PHASE}: 'n04' and 'n05' have one label",
    ),
    "labels as text and as bytes": (
        with_both_keys,
        rf"{IN_PHASE} has an entry twice",
    ),
    "no dictionary": (
        lambda folder: write_pickle(folder / phase_file("val"), [1]),
        rf"{IN_PHASE} holds a list where a dict is expected",
    ),
    "another dictionary": (
        lambda folder: write_pickle(folder / phase_file("val"), {}),
        rf"{IN_PHASE} holds no array 'data'",
    ),
    "no file": (
        remove(phase_file("val")),
        r"incomplete mini-ImageNet: of miniImageNet_\w+_\*\.pickle, .*split_val\.pickle is missing",
    ),
    "no validation pictures of a base category": (
        lambda folder: write_pickle(
            folder / phase_file("train_phase_val"), phase_content(CATEGORIES["train"][1:], 6, 7)
        ),
        r"'n01' is in one of .*train_phase_train\.pickle and .*train_phase_val\.pickle only",
    ),
    "no training pictures of a base category": (
        lambda folder: write_pickle(
            folder / phase_file("train_phase_train"), phase_content(CATEGORIES["train"][1:], 0, 6)
        ),
        r"'n01' is in one of .*train_phase_train\.pickle and .*train_phase_val\.pickle only",
    ),
}

WRONG_CACHES = {
    "pixels of another kind": (
        with_cache(image_data=as_array(np.int64)),
        rf"{IN_CACHE}: 'image_data' must be uint8 \(n, 8, 8, 3\), not int64",
    ),
    "pictures of another size": (
        with_cache(image_data=as_array(shape=(16, 84, 42, 3))),
        rf"{IN_CACHE}: 'image_data' must be .* not uint8 \(16, 84, 42, 3\)",
    ),
    "a category as text and as bytes": (
        with_cache(class_dict={"n04": HALF, b"n04": REST}),
        rf"{IN_CACHE} names the category 'n04' twice",
    ),
    "a row too many": (
        with_cache(class_dict=rows_of(HALF, [*REST, 16])),
        rf"{IN_CACHE}: 'n05' must have numbers from 0 to 15",
    ),
    "a row below 0": (with_cache(class_dict=rows_of(HALF, [-1, *REST[:-1]])), "'n05' must have numbers"),
    "rows that overlap": (
        with_cache(class_dict=rows_of(HALF, [7, *REST])),
        rf"{IN_CACHE}: picture 7 is both of 'n04' and of 'n05'",
    ),
    "a row twice": (
        with_cache(class_dict=rows_of([*HALF, 3], REST)),
        "picture 3 is both of 'n04' and of 'n04'",
    ),
    "a row of no category": (
        with_cache(class_dict=rows_of(HALF, REST[1:])),
        rf"{IN_CACHE}: picture 8 is of no category",
    ),
    "a category of no rows": (with_cache(class_dict=rows_of([*HALF, *REST], [])), "'n05' must have numbers"),
    "rows that are no numbers": (with_cache(class_dict=rows_of(HALF, "8")), "'n05' must have numbers"),
    "no rows at all": (with_cache(class_dict=[HALF, REST]), rf"{IN_CACHE}: 'class_dict' must say"),
    "no class_dict": (
        lambda folder: write_pickle(folder / cache_file("val"), {"image_data": as_array()}),
        rf"{IN_CACHE}: 'class_dict' must say",
    ),
    "no file": (
        remove(cache_file("val")),
        r"incomplete mini-ImageNet: of mini-imagenet-cache-\*\.pkl, mini-imagenet-cache-val\.pkl is missing",
    ),
}


def laughing_labels():
    """Lists of lists that stand for 10^40 numbers and take no room."""
    labels = [1] * 10
    for _ in range(40):
        labels = [labels] * 10
    return labels


WRONG_PHASES["labels that would fill any memory"] = (
    with_phase(labels=laughing_labels()),
    rf"{IN_PHASE}: 'labels' must be",
)


WRONG = {
    f"{layout}: {what}": (layout, *case)
    for layout, cases in {
        "images": WRONG_CSVS,
        "five pickles": WRONG_PHASES,
        "three pickles": WRONG_CACHES,
    }.items()
    for what, case in cases.items()
}


@pytest.mark.parametrize(("layout", "damage", "complaint"), WRONG.values(), ids=WRONG)
def test_wrong_files_are_named(copy_of, layout, damage, complaint):
    folder = copy_of(layout)
    damage(folder)
    with pytest.raises(DataError, match=complaint):
        load(folder)


@pytest.mark.parametrize("layout", EXACT)
def test_pickles_cut_short_are_named_and_nothing_half_written_stays(copy_of, layout):
    folder = copy_of(layout)
    path = next(folder.glob("*test*"))
    content = path.read_bytes()
    for length in (0, 1, 50, len(content) // 2, len(content) - 1):
        path.write_bytes(content[:length])
        with pytest.raises(DataError, match=path.name):
            load(folder)
    assert_cache_whole()


class Evil:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("form", ["folder", "zip", "tar.gz"])
@pytest.mark.parametrize("change", [with_phase, with_cache])
def test_a_pickle_that_would_execute_something_is_refused_and_does_not(copy_of, tmp_path, change, form):
    folder = copy_of("five pickles" if change is with_phase else "three pickles")
    change(data=Evil(tmp_path / "made"), class_dict=Evil(tmp_path / "made"))(folder)
    with pytest.raises(DataError, match=r"val\.p.*mkdir"):
        load(packed(form, folder, tmp_path))
    assert not (tmp_path / "made").exists()
    pickle.loads(pickle.dumps(Evil(tmp_path / "made")))
    assert (tmp_path / "made").exists()


@pytest.mark.parametrize("other", ["notes.txt", "cat/0.png", "labels.csv", "mini-imagenet-cache-all.pkl"])
def test_a_folder_of_none_of_the_layouts_is_told_of_all_four(tmp_path, other):
    write_picture(tmp_path / "cat" / "1.png")
    (tmp_path / other).write_bytes(b"")
    with pytest.raises(
        DataError,
        match=r"not a layout of mini-ImageNet: .*images/.*folder per category.*category_split.*cache",
    ):
        load(tmp_path)


@pytest.mark.parametrize("form", ["zip", "tar.gz"])
@pytest.mark.parametrize("layout", ["images", "five pickles", "three pickles"])
def test_archives_cut_short_are_named(releases, tmp_path, layout, form):
    path = packed(form, releases / layout, tmp_path)
    content = path.read_bytes()
    for share in (0.2, 0.5, 0.9):
        path.write_bytes(content[: int(share * len(content))])
        with pytest.raises(RecollectError, match=path.name):
            load(path)
    assert_cache_whole()


def assert_cache_whole():
    """Every entry of the picture cache reads back: nothing in it was left half-written."""
    folder = cache_folder() / "images"
    for entry in folder.iterdir() if folder.exists() else ():
        assert not entry.name.startswith(".")
        assert imageset._open_library(entry, entry.name, SIZE) is not None


def attempt(path):
    """Load what may be damaged, with an empty cache: a split or an error of ours, and whole entries."""
    shutil.rmtree(cache_folder(), ignore_errors=True)
    try:
        return isinstance(load(path), Split)
    except RecollectError:
        return False
    finally:
        assert_cache_whole()


MUTATED = {
    "images": "train.csv",
    "folder per category": "test.csv",
    "five pickles": phase_file("train_phase_train"),
    "three pickles": cache_file("train"),
}


@pytest.mark.parametrize(("layout", "name"), MUTATED.items(), ids=MUTATED)
def test_a_file_damaged_anywhere_gives_a_split_or_our_own_error(copy_of, layout, name):
    folder = copy_of(layout)
    assert attempt(folder)
    results = []
    for content in mutations((folder / name).read_bytes()):
        (folder / name).write_bytes(content)
        results.append(attempt(folder))
    assert COUNT / 6 < results.count(False) < COUNT + (name == "train.csv")  # which has to list every picture


@pytest.mark.parametrize("form", ["zip", "tar.gz"])
@pytest.mark.parametrize("layout", ["images", "three pickles"])
def test_an_archive_damaged_anywhere_gives_a_split_or_our_own_error(releases, tmp_path, layout, form):
    path = packed(form, releases / layout, tmp_path)
    assert attempt(path)
    results = []
    for content in mutations(path.read_bytes()):
        path.write_bytes(content)
        results.append(attempt(path))
    assert results.count(False) > 0.8 * COUNT  # nearly every byte of such an archive is checked


@pytest.mark.parametrize(
    ("layout", "damage", "complaint"),
    [
        (
            "images",
            WRONG_CSVS["a picture that is not there"][0],
            f"val.csv, line {ADDED}: 'okapi.jpg' is not among",
        ),
        ("five pickles", with_phase(labels=Evil("made")), "split_val.pickle"),
        ("three pickles", remove(cache_file("val")), "mini-imagenet-cache-val.pkl is missing"),
    ],
)
def test_the_command_line_ends_with_code_2_and_one_line(
    run, monkeypatch, copy_of, tmp_path, layout, damage, complaint
):
    folder = copy_of(layout)
    damage(folder)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(mini_imagenet, "SIZE", SIZE)
    before = tree(tmp_path)
    code, out, err = run("train", f"mini-imagenet:{folder}", "--out", tmp_path / "out")
    assert (code, out) == (2, "")
    assert err.startswith("recollect: ")
    assert err.count("\n") == 1
    assert complaint in err
    assert tree(tmp_path) == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mini"]


@pytest.mark.parametrize("words", [("train",), ("reproduce", "table2")], ids=["train", "table2"])
@pytest.mark.parametrize(
    ("damage", "complaint"),
    [
        (lambda folder: [path.unlink() for path in (folder / "images").glob("n04*")],
         f"val.csv, line 2: '{FIRST}' is not among the pictures of PATH, nor are {EACH - 1} others"),
        (add_line(f"{FIRST},n04"), f"val.csv, line {ADDED}: '{FIRST}' is listed a second time"),
    ],
    ids=["pictures are missing", "a picture is listed twice"],
)  # fmt: skip
def test_an_archive_that_contradicts_its_lists_is_refused_in_one_line(
    refused, copy_of, tmp_path, words, damage, complaint
):
    folder = copy_of("images")
    damage(folder)
    (tmp_path / "packed").mkdir()
    path = packed("zip", folder, tmp_path / "packed")
    told = refused(*words, f"mini-imagenet:{path}", "--out", tmp_path / "out")
    assert complaint.replace("PATH", str(path)) in told
    assert not (tmp_path / "out").exists()
