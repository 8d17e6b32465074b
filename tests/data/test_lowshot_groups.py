"""The low-shot benchmark's groups: read by name, complete, apart; its halves share no picture."""

import json
import random
from dataclasses import replace

import numpy as np
import pytest

from pictures import write_folder
from recollect.data.catalogue import load_data
from recollect.data.lowshot import (
    GROUPS,
    benchmark_groups,
    find_groups,
    half_of,
    read_groups,
    stand_in_groups,
)
from recollect.data.splits import Reserved, own_split
from recollect.errors import DataError

NAMES = [f"n{number:08}" for number in range(12)]
OURS = {
    "base_val": NAMES[:2],
    "base_test": NAMES[2:5],
    "novel_val": NAMES[5:8],
    "novel_test": NAMES[8:],
}


def written(path, words):
    path.write_text(json.dumps(words))
    return str(path)


def test_the_benchmarks_groups_are_those_of_the_paper():
    groups = benchmark_groups()
    assert [len(getattr(groups, name)) for name in GROUPS] == [193, 196, 300, 311]
    assert len(set(groups.names)) == 1000
    assert json.loads(groups.reserved) == {"val": [*groups.novel_val], "test": [*groups.novel_test]}


def test_the_published_index_file_is_read_through_its_names_which_are_not_sorted(tmp_path):
    shuffled = random.Random(0).sample(NAMES, len(NAMES))
    places = {group: [shuffled.index(name) for name in names] for group, names in OURS.items()}
    words = {
        "label_names": shuffled,
        "base_classes": places["base_val"] + places["base_test"],
        "novel_classes": places["novel_val"] + places["novel_test"],
        "base_classes_1": places["base_val"],
        "base_classes_2": places["base_test"],
        "novel_classes_1": places["novel_val"],
        "novel_classes_2": places["novel_test"],
    }
    published = read_groups(written(tmp_path / "index.json", words))
    assert published == read_groups(written(tmp_path / "ours.json", OURS))
    assert published.base_val == tuple(NAMES[:2])
    words["novel_classes_1"] = [*places["novel_val"], 12]
    with pytest.raises(DataError, match="12 is no position in label_names"):
        read_groups(written(tmp_path / "index.json", words))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (
            {"novel_val": [*NAMES[5:8], NAMES[0]]},
            f"names '{NAMES[0]}' in base_val and in novel_val: a category is in one group, once",
        ),
        ({"base_val": [NAMES[0]] * 2}, f"names '{NAMES[0]}' twice in base_val"),
        ({"base_val": NAMES[:1]}, "base_val needs at least 2 categories"),
        (
            {"novel_val": "x"},
            r"novel_val, novel_test, or the index file.*\(novel_val is not a list of names\)",
        ),
        ({"more": []}, r"is expected \(more is unknown\)"),
    ],
)
def test_a_wrong_file_is_refused_in_one_line(tmp_path, change, reason):
    with pytest.raises(DataError, match=reason) as refused:
        read_groups(written(tmp_path / "split.json", OURS | change))
    assert "\n" not in str(refused.value)


def test_every_category_is_in_a_group_and_every_name_is_a_category(tmp_path):
    split = written(tmp_path / "split.json", OURS)
    assert find_groups("folder:x", split, NAMES).novel_test == tuple(NAMES[8:])
    with pytest.raises(DataError, match=f"names {NAMES[3]}, of which folder:x has no pictures"):
        find_groups("folder:x", split, [name for name in NAMES if name != NAMES[3]])
    with pytest.raises(DataError, match=r"puts okapi of folder:x in no group"):
        find_groups("folder:x", split, [*NAMES, "okapi"])
    lacking = sorted(benchmark_groups().names)[1:]
    with pytest.raises(DataError, match="the low-shot benchmark names n01440764, of which imagenet:x has no"):
        find_groups("imagenet:x", None, lacking)


def test_the_stand_in_depends_on_names_alone():
    names = [f"c{number}" for number in range(100)]
    groups = stand_in_groups(names)
    assert stand_in_groups(names[::-1]) == groups
    assert sorted(groups.names) == sorted(names)
    assert stand_in_groups([name.upper() for name in names]) != groups
    with pytest.raises(DataError, match="at least 10 categories, and the data have 9"):
        stand_in_groups(names[:9])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_folder(tmp_path_factory.mktemp("lowshot") / "pictures", dict.fromkeys(NAMES, 12))


@pytest.fixture
def groups(tmp_path):
    return read_groups(written(tmp_path / "split.json", OURS))


def test_a_half_has_its_own_categories_and_no_picture_twice(folder, groups):
    split = load_data(str(folder), size=8, split=groups.reserved)
    halves = {part: half_of(split, groups, part, 5) for part in ("val", "test")}
    assert split.categories == tuple(NAMES[:5])
    for part, half in halves.items():
        assert half.novel_queries.categories == tuple(OURS[f"novel_{part}"])
        assert [split.categories[column] for column in half.columns] == OURS[f"base_{part}"]
        assert not {*half.examples.rows} & {*half.novel_queries.rows}
        own = getattr(split, part)
        assert sorted([*half.examples.rows, *half.novel_queries.rows]) == sorted(own.rows)
        assert set(np.bincount(half.novel_queries.labels)) == {2}, "as many as base ones: a tenth, or two"
        assert {*half.base_queries.rows} <= {*split.base_test.rows}
        names = [half.base_queries.categories[label] for label in half.base_queries.labels]
        row_of = dict(zip(split.base_test.rows, split.base_test.labels, strict=True))
        assert names == [split.categories[row_of[row]] for row in half.base_queries.rows]
    again = half_of(split, groups, "test", 5)
    assert np.array_equal(again.novel_queries.rows, halves["test"].novel_queries.rows)
    rows = [{*half.base_queries.rows, *half.novel_queries.rows} for half in halves.values()]
    assert not rows[0] & rows[1]


def test_a_category_with_too_few_pictures_is_named(folder, groups):
    split = load_data(str(folder), size=8, split=groups.reserved)
    with pytest.raises(
        DataError, match=f"'{NAMES[8]}' has 10 pictures to draw examples from, and 11 shots need"
    ):
        half_of(split, groups, "test", 11)


def test_pictures_that_a_data_set_keeps_for_testing_are_asked(folder, groups):
    split = load_data(str(folder), size=8, split=groups.reserved)
    assert split.set_aside == frozenset()
    kept = split.test.rows[::4]
    half = half_of(replace(split, set_aside=frozenset(kept.tolist())), groups, "test", 5)
    assert sorted(half.novel_queries.rows) == sorted(kept)
    with pytest.raises(DataError, match=f"'{NAMES[9]}' has no test pictures: add some"):
        half_of(replace(split, set_aside=frozenset(kept[:3].tolist())), groups, "test", 5)


def test_a_published_split_gives_way_to_names_and_not_to_a_number():
    published = Reserved(("a",), ("b",))
    assert own_split("made", published, None, "abcd") == published
    assert own_split("made", published, '{"val": ["c"], "test": ["d"]}', "abcd") == Reserved(("c",), ("d",))
    with pytest.raises(DataError, match="made has a published split of its own: leave --split out, or name"):
        own_split("made", published, "1", "abcd")
