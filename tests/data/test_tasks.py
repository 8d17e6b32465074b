from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from recollect.data.tasks import Tasks, TaskSampler, TaskShape
from recollect.errors import DataError


def labels_of(sizes, seed=0):
    return np.random.default_rng(seed).permutation(np.repeat(np.arange(len(sizes)), sizes))


def names_of(kind, sizes):
    return [f"{kind}-{index}" for index in range(len(sizes))]


def sampler_of(base, novel=None, seed=0):
    return TaskSampler(
        labels_of(base, seed),
        None if novel is None else labels_of(novel, seed + 1),
        base_names=names_of("base", base),
        novel_names=() if novel is None else names_of("novel", novel),
    )


def require_sound(tasks, shape, base_labels, novel_labels, *, fake):
    """Check everything that a task promises, one task at a time."""
    for task in range(len(tasks)):
        ways = tasks.ways[task].tolist()
        assert len(set(ways)) == shape.ways
        support = tasks.support[task].tolist()
        queries = tasks.novel_queries[task].tolist()
        targets = tasks.novel_targets[task].tolist()
        assert len(queries) == len(targets) == shape.ways * shape.queries
        for way, category in enumerate(ways):
            assert len(support[way]) == shape.shots
            assert all(novel_labels[row] == category for row in support[way])
            assert targets.count(way) == shape.queries
        assert all(novel_labels[row] == ways[way] for row, way in zip(queries, targets, strict=True))
        drawn = [row for rows in support for row in rows] + queries
        assert len(set(drawn)) == len(drawn)  # no support picture among the queries, nothing twice

        base_queries = tasks.base_queries[task].tolist()
        base_targets = tasks.base_targets[task].tolist()
        assert len(base_queries) == len(base_targets) == shape.base_count
        assert len(set(base_queries)) == len(base_queries)
        assert all(base_labels[row] == c for row, c in zip(base_queries, base_targets, strict=True))
        if fake:
            assert not set(base_targets) & set(ways)
            assert not set(base_queries) & set(drawn)


@st.composite
def settings_of_novel_tasks(draw):
    shape = TaskShape(
        ways=draw(st.integers(1, 4)),
        shots=draw(st.integers(1, 4)),
        queries=draw(st.integers(1, 4)),
        base_queries=draw(st.none() | st.integers(1, 12)),
    )
    need = shape.shots + shape.queries
    novel = draw(st.lists(st.integers(need, need + 5), min_size=shape.ways, max_size=shape.ways + 3))
    base = draw(st.lists(st.integers(0, 8), min_size=1, max_size=6).filter(lambda sizes: sum(sizes) > 0))
    base[0] += max(0, shape.base_count - sum(base))  # often just enough
    return shape, base, novel


@given(case=settings_of_novel_tasks(), seed=st.integers(0, 2**31))
def test_tasks_on_novel_categories_are_sound(case, seed):
    shape, base, novel = case
    tasks = sampler_of(base, novel, seed).draw(shape, 3, seed)
    assert len(tasks) == 3
    require_sound(tasks, shape, labels_of(base, seed), labels_of(novel, seed + 1), fake=False)


@st.composite
def settings_of_fake_novel_tasks(draw):
    shape = TaskShape(
        ways=draw(st.integers(1, 4)),
        shots=draw(st.integers(1, 3)),
        queries=draw(st.integers(1, 3)),
        base_queries=draw(st.none() | st.integers(1, 8)),
    )
    need = shape.shots + shape.queries
    count = draw(st.integers(shape.ways + 1, shape.ways + 4))
    sizes = draw(st.lists(st.integers(need, need + 6), min_size=count, max_size=count))
    remaining = sum(sorted(sizes)[: -shape.ways])
    if shape.base_count > remaining:
        shape = TaskShape(shape.ways, shape.shots, shape.queries, remaining)
    return shape, sizes


@given(case=settings_of_fake_novel_tasks(), seed=st.integers(0, 2**31))
def test_tasks_in_which_base_categories_play_novel_are_sound(case, seed):
    shape, sizes = case
    tasks = sampler_of(sizes, seed=seed).draw(shape, 3, seed)
    labels = labels_of(sizes, seed)
    require_sound(tasks, shape, labels, labels, fake=True)
    hidden = tasks.hidden(len(sizes))
    assert hidden.sum(1).tolist() == [shape.ways] * 3
    assert not hidden.gather(1, tasks.base_targets).any()
    assert hidden.gather(1, tasks.ways).all()


@given(case=settings_of_fake_novel_tasks(), seed=st.integers(0, 2**31))
def test_base_categories_that_play_novel_can_be_taught_from_other_pictures(case, seed):
    shape, sizes = case
    asked, given = [shape.queries] * len(sizes), [shape.shots + 1] * len(sizes)
    shape = replace(shape, base_queries=min(shape.base_count, shape.queries))
    labels, support_labels = labels_of(asked, seed), labels_of(given, seed + 1)
    sampler = TaskSampler(labels, None, base_names=names_of("base", sizes), support_labels=support_labels)
    tasks = sampler.draw(shape, 3, seed)
    for task in range(3):
        for way, category in enumerate(tasks.ways[task].tolist()):
            support = tasks.support[task, way].tolist()
            assert support_labels[support].tolist() == [category] * shape.shots
            assert len({*support}) == shape.shots
            queries = tasks.novel_queries[task][tasks.novel_targets[task] == way].tolist()
            assert sorted(queries) == np.flatnonzero(labels == category).tolist()
    assert not tasks.hidden(len(sizes)).gather(1, tasks.base_targets).any()
    fitted = sampler.fit(TaskShape(1, 50, 50))
    assert (fitted.shots, fitted.queries) == (shape.shots + 1, shape.queries)
    with pytest.raises(DataError, match=f"has {shape.queries} pictures and needs {shape.queries + 1}"):
        sampler.check(replace(shape, queries=shape.queries + 1))
    with pytest.raises(DataError, match=f"has {shape.shots + 1} pictures and needs {shape.shots + 2}"):
        sampler.check(replace(shape, shots=shape.shots + 2))


def test_hundreds_of_tasks_with_very_unbalanced_categories_are_sound():
    base, novel = [1, 0, 2, 40, 7], [20, 6, 300, 7, 6, 9]
    shape = TaskShape(ways=4, shots=3, queries=3, base_queries=30)
    tasks = sampler_of(base, novel).draw(shape, 600, 4)
    require_sound(tasks, shape, labels_of(base), labels_of(novel, 1), fake=False)


def test_the_paper_asks_for_as_many_base_as_novel_queries():
    assert TaskShape(5, 1, 15).base_count == 75
    assert TaskShape(5, 1, 15, base_queries=4).base_count == 4


def tensors(tasks):
    return (
        tasks.ways,
        tasks.support,
        tasks.novel_queries,
        tasks.novel_targets,
        tasks.base_queries,
        tasks.base_targets,
    )


@pytest.mark.parametrize("novel", [[9] * 8, None], ids=["novel", "fake-novel"])
def test_the_seed_decides_the_tasks(novel):
    shape = TaskShape(3, 2, 4, 6)
    first = sampler_of([10] * 7, novel).draw(shape, 300, 5)
    again = sampler_of([10] * 7, novel).draw(shape, 300, 5)
    other = sampler_of([10] * 7, novel).draw(shape, 300, 6)
    assert all(torch.equal(a, b) for a, b in zip(tensors(first), tensors(again), strict=True))
    for index in (0, 1, 2, 4, 5):
        assert not torch.equal(tensors(first)[index], tensors(other)[index])


def test_no_two_tasks_of_a_draw_repeat_each_other():
    tasks = sampler_of([20] * 10, [20] * 20).draw(TaskShape(5, 5, 10), 1000, 0)
    assert len({tuple(row) for row in tasks.support.flatten(1).tolist()}) == 1000
    assert len({tuple(row) for row in tasks.base_queries.tolist()}) == 1000


@pytest.mark.parametrize("novel", [[8] * 6, None], ids=["novel", "fake-novel"])
@pytest.mark.parametrize("count", [1, 255, 256, 257, 600])
def test_a_shorter_draw_is_the_beginning_of_a_longer_one(novel, count):
    sampler = sampler_of([10] * 5, novel)
    short, long = (sampler.draw(TaskShape(2, 1, 2), tasks, 3) for tasks in (count, 700))
    assert len(short) == count
    assert all(torch.equal(a, b) for a, b in zip(tensors(short), tensors(long[:count]), strict=True))


def test_the_tasks_of_a_seed_never_change():
    base, novel = np.repeat([0, 1, 2], [6, 4, 5]), np.repeat([1, 0, 3, 2], [6, 5, 7, 4])
    sampler = TaskSampler(base, novel, base_names="abc", novel_names="wxyz")
    tasks = sampler.draw(TaskShape(2, 1, 2, 4), 2, 2018)
    golden = Tasks(*map(torch.tensor, GOLDEN))
    assert all(torch.equal(a, b) for a, b in zip(tensors(tasks), tensors(golden), strict=True))


def test_the_fake_novel_tasks_of_a_seed_never_change():
    sampler = TaskSampler(np.repeat([1, 0, 3, 2], [6, 5, 7, 4]), None, base_names="abcd")
    tasks = sampler.draw(TaskShape(2, 1, 2, 3), 2, 2018)
    golden = Tasks(*map(torch.tensor, GOLDEN_FAKE))
    assert all(torch.equal(a, b) for a, b in zip(tensors(tasks), tensors(golden), strict=True))


def chi_square(counts):
    expected = counts.sum() / len(counts)
    return float(((counts - expected) ** 2).sum() / expected)


def test_categories_and_pictures_are_drawn_uniformly():
    # Degrees of freedom f: a chi-square above f + 4 √(2f) is a matter of one in ten thousand.
    sampler = sampler_of([50, 60, 70, 80, 90, 100, 110, 120], [20] * 12)
    tasks = sampler.draw(TaskShape(3, 2, 3, 10), 4000, 1)

    def bound(cells):
        return cells - 1 + 4 * (2 * (cells - 1)) ** 0.5

    assert chi_square(np.bincount(tasks.base_targets.flatten().numpy(), minlength=8)) < bound(8)
    assert chi_square(np.bincount(tasks.ways.flatten().numpy(), minlength=12)) < bound(12)
    assert chi_square(np.bincount(tasks.support.flatten().numpy(), minlength=240)) < bound(240)
    assert chi_square(np.bincount(tasks.novel_queries.flatten().numpy(), minlength=240)) < bound(240)
    labels = labels_of([50, 60, 70, 80, 90, 100, 110, 120])
    rows = np.bincount(tasks.base_queries.flatten().numpy(), minlength=680)
    for category in range(8):  # each category as often as the others, whatever its size
        of_category = rows[labels == category]
        assert chi_square(of_category) < bound(len(of_category))


def test_fake_novel_categories_and_the_remaining_ones_are_drawn_uniformly():
    tasks = sampler_of([30] * 9).draw(TaskShape(4, 1, 2, 6), 4000, 1)
    assert chi_square(np.bincount(tasks.ways.flatten().numpy(), minlength=9)) < 8 + 4 * 4
    assert chi_square(np.bincount(tasks.base_targets.flatten().numpy(), minlength=9)) < 8 + 4 * 4


@pytest.mark.parametrize("base", [[1], [3, 3], [1, 30, 2], [25] * 4, [1] * 40])
def test_asking_for_every_base_picture_ends_with_all_of_them(base):
    tasks = sampler_of(base, [4] * 3).draw(TaskShape(2, 1, 3, sum(base)), 40, 0)
    every = torch.arange(sum(base)).expand(40, -1)
    assert torch.equal(tasks.base_queries.sort(1).values, every)


def test_asking_for_every_remaining_picture_ends_with_all_of_them():
    tasks = sampler_of([5] * 6).draw(TaskShape(2, 2, 3, 20), 40, 0)
    drawn = torch.cat([tasks.support.flatten(1), tasks.novel_queries, tasks.base_queries], 1)
    assert torch.equal(drawn.sort(1).values, torch.arange(30).expand(40, -1))


def test_asking_for_every_picture_of_a_novel_category_ends_with_all_of_them():
    tasks = sampler_of([30], [7, 7]).draw(TaskShape(2, 3, 4), 20, 0)
    drawn = torch.cat([tasks.support.flatten(1), tasks.novel_queries], 1)
    assert torch.equal(drawn.sort(1).values, torch.arange(14).expand(20, -1))


def test_a_category_too_small_is_named_with_the_number_needed():
    with pytest.raises(DataError, match=r"'novel-2' has 5 pictures and needs 6 \(shots: 2, queries: 4\)"):
        sampler_of([50], [6, 6, 5, 6]).draw(TaskShape(2, 2, 4), 1, 0)
    sampler_of([50], [6, 6, 6, 6]).draw(TaskShape(2, 2, 4), 1, 0)


def test_a_category_without_any_picture_is_named():
    sampler = TaskSampler(labels_of([9]), labels_of([6, 6]), base_names=["b"], novel_names=["x", "y", "z"])
    with pytest.raises(DataError, match="'z' has 0 pictures and needs 2"):
        sampler.check(TaskShape(2, 1, 1))


def test_a_base_category_too_small_to_play_novel_is_named():
    with pytest.raises(DataError, match="'base-1' has 3 pictures and needs 4"):
        sampler_of([9, 3, 9]).check(TaskShape(1, 1, 3))


def test_more_ways_than_categories_is_an_error():
    with pytest.raises(DataError, match=r"5 ways .* there are 4.*--ways"):
        sampler_of([50], [9] * 4).check(TaskShape(5, 1, 1))
    sampler_of([50], [9] * 4).check(TaskShape(4, 1, 1))


def test_one_base_category_at_least_must_remain():
    with pytest.raises(DataError, match=r"4 ways .* there are 3"):
        sampler_of([50] * 4).check(TaskShape(4, 1, 1))
    sampler_of([50] * 4).check(TaskShape(3, 1, 1))


def test_more_base_queries_than_pictures_is_an_error():
    with pytest.raises(DataError, match="10 pictures of base categories and 9 are held out"):
        sampler_of([4, 5], [6] * 5).check(TaskShape(5, 1, 2))
    sampler_of([5, 5], [6] * 5).check(TaskShape(5, 1, 2))


def test_base_queries_are_counted_over_what_the_largest_fake_novel_categories_leave():
    with pytest.raises(DataError, match="12 pictures of base categories and 11 are held out"):
        sampler_of([20, 5, 30, 6]).check(TaskShape(2, 1, 2, 12))
    sampler_of([20, 5, 30, 6]).check(TaskShape(2, 1, 2, 11))


wanted_shapes = st.builds(
    TaskShape, st.integers(1, 6), st.integers(1, 6), st.integers(1, 6), st.none() | st.integers(1, 30)
)
sizes_of_two = st.lists(st.integers(2, 9), min_size=2, max_size=8)


@given(wanted=wanted_shapes, base=sizes_of_two, novel=st.none() | sizes_of_two)
def test_a_fitted_shape_can_always_be_drawn_and_asks_for_no_more(wanted, base, novel):
    sampler = sampler_of(base, novel)
    shape = sampler.fit(wanted)
    sampler.check(shape)
    assert 1 <= shape.ways <= wanted.ways
    assert 1 <= shape.shots <= wanted.shots
    assert 1 <= shape.queries <= wanted.queries
    assert 1 <= shape.base_count <= wanted.base_count


@given(case=settings_of_novel_tasks())
def test_a_shape_that_can_be_drawn_fits_as_it_is(case):
    wanted, base, novel = case
    shape = sampler_of(base, novel).fit(wanted)
    assert (shape.ways, shape.shots, shape.queries) == (wanted.ways, wanted.shots, wanted.queries)
    assert shape.base_count == wanted.base_count


def test_fake_novel_tasks_leave_half_of_the_categories_when_fitted():
    assert sampler_of([9] * 7).fit(TaskShape(5, 1, 2)).ways == 3


@settings(max_examples=30)
@given(start=st.integers(0, 12), stop=st.integers(0, 12))
def test_a_slice_of_tasks_holds_those_tasks(start, stop):
    tasks = sampler_of([9] * 4, [9] * 4).draw(TaskShape(2, 1, 2), 10, 0)
    some = tasks[start:stop]
    assert len(some) == len(range(10)[start:stop])
    assert all(torch.equal(a, b[start:stop]) for a, b in zip(tensors(some), tensors(tasks), strict=True))


GOLDEN = (
    [[1, 0], [0, 1]],
    [[[5], [6]], [[8], [1]]],
    [[0, 2, 8, 7], [10, 9, 2, 5]],
    [[0, 0, 1, 1], [0, 0, 1, 1]],
    [[10, 1, 11, 14], [7, 10, 1, 13]],
    [[2, 0, 2, 2], [1, 2, 0, 2]],
)
GOLDEN_FAKE = (
    [[1, 0], [0, 1]],
    [[[5], [6]], [[8], [1]]],
    [[0, 2, 8, 7], [10, 9, 2, 5]],
    [[0, 0, 1, 1], [0, 0, 1, 1]],
    [[14, 19, 16], [18, 15, 19]],
    [[3, 2, 3], [2, 3, 2]],
)


def test_a_shape_that_cannot_be_had_is_answered_with_one_that_can():
    labels = np.repeat(np.arange(5), 2)
    sampler = TaskSampler(labels, None, base_names=[f"c{index}" for index in range(5)])
    with pytest.raises(DataError, match=r"--ways 2 --shots 1 --queries 1 would do"):
        sampler.check(TaskShape(5, 1, 15))
    sampler.check(TaskShape(2, 1, 1))
