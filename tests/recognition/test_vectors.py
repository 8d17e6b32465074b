"""A table of vectors: every product keeps every bit, whatever else is put in or dropped."""

import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recollect.recognition import vectors
from recollect.recognition.vectors import VectorTable, dots, mean, unit

WIDTH = 8


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Few rows at a time, so that few vectors already make a table grow and take several turns."""
    monkeypatch.setattr(vectors, "_FIRST_ROWS", 2)
    monkeypatch.setattr(vectors, "_CACHED_BYTES", 5 * 4 * WIDTH)


SOME = np.random.default_rng(0).standard_normal((103, WIDTH)).astype(np.float32)
FEATURES = SOME[100:]


def vector_of(number):
    return SOME[number % 100]


def columns(table):
    """Return the bits of every vector's products by its id."""
    found = table.products(FEATURES)
    assert found.shape == (len(FEATURES), len(table))
    return {id_: column.tobytes() for id_, column in zip(table.ids, found.T, strict=True)}


def bytes_of(table):
    return sum(block.nbytes for block in table._blocks)


steps = st.lists(st.tuples(st.sampled_from(["put", "put", "drop"]), st.integers(0, 29)), max_size=60)


@given(steps)
def test_a_table_is_a_dictionary_whose_products_never_move(steps):
    table, expected = VectorTable(WIDTH), {}
    for number, (step, id_) in enumerate(steps):
        before = columns(table)
        if step == "put":
            expected[id_] = vector_of(number)
            table.put(id_, expected[id_])
        elif id_ in expected:
            table.drop(id_)
            del expected[id_]
        after = columns(table)
        assert table.ids == sorted(expected)
        assert {other: after[other] for other in after if other != id_} == {
            other: before[other] for other in before if other != id_
        }
    if expected:
        wanted = FEATURES @ np.stack([expected[id_] for id_ in sorted(expected)]).T
        np.testing.assert_allclose(table.products(FEATURES), wanted, rtol=1e-4, atol=1e-5)


@given(st.integers(0, 40), st.integers(1, 40), st.randoms())
def test_what_is_put_and_dropped_again_leaves_every_bit(kept, more, random):
    table = VectorTable(WIDTH)
    for id_ in range(kept):
        table.put(id_, vector_of(id_))
    before = columns(table)
    added = list(range(kept, kept + more))
    for id_ in added:
        table.put(id_, vector_of(id_))
    random.shuffle(added)
    for id_ in added:
        table.drop(id_)
    assert columns(table) == before


@pytest.mark.parametrize("absent", [-1, 3, 9])
def test_what_is_not_there_cannot_be_dropped_and_nothing_else_is(absent):
    table = VectorTable(WIDTH)
    for id_ in (1, 5):
        table.put(id_, vector_of(id_))
    before = columns(table)
    with pytest.raises(KeyError):
        table.drop(absent)
    assert columns(table) == before


def test_unit_vectors_have_length_one_and_none_stays_none():
    found = unit(np.concatenate([FEATURES, np.zeros((1, WIDTH), np.float32)]))
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), [1, 1, 1, 0], rtol=1e-6)
    np.testing.assert_allclose(found[0] * np.linalg.norm(FEATURES[0]), FEATURES[0], rtol=1e-6)
    np.testing.assert_array_equal(unit(FEATURES[1]), found[1])


def test_an_empty_table_has_no_products():
    assert VectorTable(WIDTH).products(FEATURES).shape == (3, 0)


def test_many_dropped_vectors_give_their_memory_back():
    table = VectorTable(WIDTH)
    for id_ in range(1000):
        table.put(id_, vector_of(id_))
    full = bytes_of(table)
    for id_ in range(3, 1000):
        table.drop(id_)
    assert bytes_of(table) < full / 50
    assert table._blocks[0].base is None  # a part of an array would hold the whole of it
    table.put(2000, vector_of(5))
    assert table.ids == [0, 1, 2, 2000]


@given(st.lists(st.integers(0, 99), min_size=1, max_size=60, unique=True), st.integers(1, 3), st.randoms())
def test_a_product_depends_on_its_two_vectors_alone(numbers, count, random):
    """Not on the other features, not on the other vectors, not on how the table came about."""
    table = VectorTable(WIDTH)
    for id_ in range(60):
        table.put(id_, vector_of(id_))
    order = random.sample(range(60), 60)
    for id_ in order[:30]:
        table.drop(id_)
    left = sorted(order[30:])
    expected = {id_: [np.vecdot(f, vector_of(id_)).tobytes() for f in FEATURES] for id_ in left}
    found = table.products(FEATURES[:count])
    for column, id_ in enumerate(left):
        assert [value.tobytes() for value in found[:, column]] == expected[id_][:count]
    some = dots(FEATURES, SOME[numbers])
    assert np.array_equal(some, dots(FEATURES, SOME)[:, numbers])


@given(st.permutations(range(20)))
def test_the_order_of_examples_changes_no_bit_of_their_mean(order):
    assert np.array_equal(mean(SOME[list(order)]), mean(SOME[:20]))
    np.testing.assert_allclose(mean(SOME[:20]), SOME[:20].mean(axis=0), rtol=1e-4, atol=1e-6)


def test_products_are_the_callers_own():
    table = VectorTable(WIDTH)
    table.put(1, vector_of(1))
    found = table.products(FEATURES)
    found *= 2
    np.testing.assert_array_equal(table.products(FEATURES), found / 2)


def test_vectors_that_come_and_go_take_no_more_memory_than_the_most_of_them():
    table = VectorTable(WIDTH)
    for kept in range(0, 40, 2):
        for id_ in range(kept, 100):
            table.put(id_, vector_of(id_))
        most = bytes_of(table)
        for id_ in range(kept + 2, 100):
            table.drop(id_)
        assert most <= 1.6 * 100 * WIDTH * 4


@pytest.mark.parametrize("count", [0, 1, 2, 3, 30])
def test_a_pickle_holds_every_bit_and_little_else(count):
    table = VectorTable(WIDTH)
    for id_ in range(count):
        table.put(id_, vector_of(id_))
    word = pickle.dumps(table)
    assert len(word) < 1000 + 4 * count * WIDTH * 4
    again = pickle.loads(word)
    assert columns(again) == columns(table)
    for one in (again, table):
        for id_ in range(count, count + 40):
            one.put(id_, vector_of(id_))
    assert columns(again) == columns(table)


def test_vectors_from_a_file_that_is_mapped_read_only_can_be_added_to():
    table = VectorTable(WIDTH)
    table.put(1, vector_of(1))
    state = table.__getstate__()
    state["_blocks"] = [block.copy() for block in state["_blocks"]]
    state["_blocks"][0].flags.writeable = False
    again = VectorTable.__new__(VectorTable)
    again.__setstate__(state)
    again.put(2, vector_of(2))
    again.put(1, vector_of(3))
    assert again.ids == [1, 2]
    np.testing.assert_array_equal(again.products(FEATURES)[:, 0], table_of(3).products(FEATURES)[:, 0])


def table_of(number):
    table = VectorTable(WIDTH)
    table.put(0, vector_of(number))
    return table
