import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recollect.data.imageset import Library
from recollect.data.splits import (
    MIN_PICTURES,
    Held,
    Reserved,
    held_tenth,
    inline_split,
    parse_split,
    require_pictures,
    split_pictures,
)
from recollect.errors import DataError


def library_of(counts, order=None, prefix=""):
    """A library with `counts[category]` pictures, in any order; only the names tell them apart."""
    categories = tuple(sorted(counts))
    names = [f"{prefix}{name}/{number}.png" for name in categories for number in range(counts[name])]
    labels = [label for label, name in enumerate(categories) for _ in range(counts[name])]
    order = list(range(len(names))) if order is None else order
    return Library(
        np.zeros((len(names), 1, 1, 3), np.uint8),
        np.array([labels[index] for index in order]),
        categories,
        tuple(names[index] for index in order),
        "key",
    )


def names_of(library, images):
    return {library.names[row] for row in images.rows}


def base_parts(split):
    return [split.base_train, split.base_val, split.base_test]


counts = st.dictionaries(st.sampled_from("abcdefgh"), st.integers(MIN_PICTURES, 40), min_size=3)


@given(counts=counts, data=st.data())
def test_base_pictures_come_in_three_disjoint_sets_that_cover_them(counts, data):
    names = sorted(counts)
    val = data.draw(st.sampled_from([(), (names[0],)]))
    test = data.draw(st.sampled_from([(), (names[-1],)]))
    library = library_of(counts)
    split = split_pictures(library, Reserved(val, test), held_tenth, flips=True)
    sets = [names_of(library, part) for part in base_parts(split)]
    assert sum(map(len, sets)) == len(set.union(*sets))
    base = [name for name in names if name not in {*val, *test}]
    assert split.categories == tuple(base)
    assert set.union(*sets) == {name for name in library.names if name.split("/")[0] in base}
    for category in base:
        held = held_tenth(counts[category])
        sizes = [len({name for name in one if name.startswith(f"{category}/")}) for one in sets]
        assert sizes == [counts[category] - held.val - held.test, held.val, held.test]


@given(counts=counts)
def test_reserved_categories_are_never_among_base_ones(counts):
    val, *_, test = names = sorted(counts)
    library = library_of(counts)
    split = split_pictures(library, Reserved((val,), (test,)), held_tenth, flips=True)
    assert split.categories == tuple(names[1:-1])
    assert names_of(library, split.val) == {f"{val}/{number}.png" for number in range(counts[val])}
    assert names_of(library, split.test) == {f"{test}/{number}.png" for number in range(counts[test])}
    reserved = names_of(library, split.val) | names_of(library, split.test)
    assert not any(names_of(library, part) & reserved for part in base_parts(split))


@given(counts=counts, data=st.data(), prefix=st.sampled_from(["", "zoo/", "a/b/"]))
def test_which_pictures_are_held_out_depends_on_their_names_alone(counts, data, prefix):
    order = data.draw(st.permutations(range(sum(counts.values()))))
    plain, mixed = library_of(counts), library_of(counts, order, prefix)
    one, other = (split_pictures(library, Reserved(), held_tenth, flips=True) for library in (plain, mixed))
    for mine, theirs in zip(base_parts(one), base_parts(other), strict=True):
        assert {prefix + name for name in names_of(plain, mine)} == names_of(mixed, theirs)


def test_pictures_are_not_held_out_in_the_order_of_their_names():
    library = library_of({"a": 40, "b": 40})
    split = split_pictures(library, Reserved(), held_tenth, flips=True)
    held = sorted(names_of(library, split.base_val))
    assert held != sorted(library.names)[: len(held)]
    numbers = [
        {name.split("/")[1] for name in held if name.startswith(category)} for category in ("a/", "b/")
    ]
    assert numbers[0] != numbers[1]


def test_labels_point_at_the_right_names():
    library = library_of({"a": 9, "b": 9, "c": 9, "d": 9}, order=list(range(35, -1, -1)))
    split = split_pictures(library, Reserved(("c",), ("b",)), held_tenth, flips=False)
    for images in (*base_parts(split), split.val, split.test):
        for row, label in zip(images.rows, images.labels, strict=True):
            assert library.names[row].split("/")[0] == images.categories[label]
    assert not split.flips


def test_official_test_pictures_are_exactly_the_test_set():
    library = library_of({"a": 12, "b": 12, "c": 12})
    official = [0, 5, 13, 14, 15, 30]
    split = split_pictures(library, Reserved(("c",)), lambda _: Held(2, 0), flips=True, test_rows=official)
    assert sorted(split.base_test.rows) == [0, 5, 13, 14, 15]
    assert sorted(np.concatenate([part.rows for part in base_parts(split)])) == list(range(24))
    assert np.bincount(split.base_val.labels).tolist() == [2, 2]
    assert split.val is not None
    assert len(split.val) == 12


def test_tasks_on_a_part_use_that_parts_base_pictures():
    split = split_pictures(
        library_of({"a": 12, "b": 12, "c": 9, "d": 9}), Reserved(("c",), ("d",)), held_tenth, flips=True
    )
    assert split.evaluated("val") == (split.val, split.base_val)
    assert split.evaluated("test") == (split.test, split.base_test)
    with pytest.raises(ValueError, match="part 'tset': 'val' or 'test' is expected"):
        split.evaluated("tset")


@pytest.mark.parametrize("held", [Held(3, 0), Held(0, 1), Held(1, 2), Held(5, 5)])
def test_a_base_category_that_leaves_a_set_empty_is_named(held):
    with pytest.raises(DataError, match="category 'b' has 3 pictures, too few"):
        split_pictures(
            library_of({"a": 20, "b": 3}),
            Reserved(),
            lambda n: held if n == 3 else Held(2, 2),
            flips=True,
        )


@pytest.mark.parametrize(("pictures", "held"), [(8, 2), (29, 2), (30, 3), (600, 60)])
def test_a_tenth_and_at_least_two_are_held_out(pictures, held):
    assert held_tenth(pictures) == (held, held)


def test_too_few_pictures_are_told_by_category_and_number():
    library = library_of({"cat": 8, "okapi": 7})
    with pytest.raises(DataError, match="at least 8 pictures of each category, and 'okapi' has 7 pictures: "):
        require_pictures(library, Reserved())
    require_pictures(library, Reserved(test=("okapi",)))


NAMES = [f"c{number:02}" for number in range(25)]


def test_nothing_is_reserved_unless_asked():
    assert parse_split(None, NAMES) == ((), ())


@given(seed=st.integers(0, 10**20), names=st.lists(st.text(min_size=1), min_size=4, unique=True))
def test_a_number_reserves_the_same_categories_whatever_their_order(seed, names):
    val, test = parse_split(str(seed), names)
    assert (val, test) == parse_split(str(seed), list(reversed(names)))
    assert not set(val) & set(test)
    assert {*val, *test} <= set(names)
    assert (len(val), len(test)) == (max(1, round(0.16 * len(names))), max(1, round(0.2 * len(names))))


def test_another_number_reserves_other_categories():
    assert len({parse_split(str(seed), NAMES) for seed in range(20)}) == 20


def test_a_file_names_the_categories(tmp_path):
    path = tmp_path / "split.json"
    path.write_text('{"val": ["c03"], "test": ["c07", "c01"]}', encoding="utf-8")
    assert parse_split(str(path), NAMES) == (("c03",), ("c07", "c01"))
    assert parse_split(inline_split(str(path)), NAMES) == parse_split(str(path), NAMES)


@pytest.mark.parametrize(
    ("words", "expected"),
    [({}, ((), ())), ({"val": ["c00"]}, (("c00",), ())), ({"test": ["c00"]}, ((), ("c00",)))],
)
def test_either_part_may_be_left_out(words, expected):
    assert parse_split(json.dumps(words), NAMES) == expected


@pytest.mark.parametrize("split", [None, "7", '{"val":["a"],"test":[]}'])
def test_a_split_that_names_no_file_travels_as_it_is(split):
    assert inline_split(split) == split


def test_a_split_written_over_several_lines_travels_in_one():
    assert inline_split(' {"val":\n ["a"]}') == '{"val":["a"],"test":[]}'


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ('{"val": ["okapi"]}', "'okapi', which is not a category of the data"),
        ('{"val": ["c01"], "test": ["c02", "c01"]}', "'c01' twice"),
        ('{"val": ["c01", "c01"]}', "'c01' twice"),
        ('{"validation": ["c01"]}', "is expected"),
        ('{"val": "c01"}', "is expected"),
        ('{"val": [1]}', "is expected"),
        ('{"val": {"c01": 1}}', "is expected"),
        ('{"val": null}', "is expected"),
        ('{"val": ["c01"', "is expected"),
    ],
)
def test_a_wrong_split_says_what_is_wrong(tmp_path, words, complaint):
    (tmp_path / "split.json").write_text(words)
    for split in (words, str(tmp_path / "split.json")):
        with pytest.raises(DataError, match=complaint):
            parse_split(split, NAMES)


@pytest.mark.parametrize("content", [b"", b"[]", b"3", b"\xff\xfe", b"[" * 100_000, b"val: c01"])
def test_a_file_of_something_else_is_refused_by_name(tmp_path, content):
    path = tmp_path / "split.json"
    path.write_bytes(content)
    for read in (lambda: parse_split(str(path), NAMES), lambda: inline_split(str(path))):
        with pytest.raises(DataError, match=r"split\.json: a number, or a JSON file"):
            read()


@pytest.mark.parametrize("split", ["nowhere.json", "-1", "0.5", "", "x" * 5000, "."])
def test_a_split_that_is_neither_number_nor_file_is_refused(split):
    with pytest.raises(DataError, match="a number, or a JSON file such as"):
        parse_split(split, NAMES)
