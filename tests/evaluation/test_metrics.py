import math
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from recollect.evaluation.metrics import (
    METRICS,
    Answers,
    Scores,
    answer_figures,
    answers,
    ausuc,
    harmonic,
    joint_curve,
    mean_curve,
    summary,
    task_figures,
)

# Scores are whole numbers: sums and differences are exact, and ties are frequent.


def argmax(values):
    return max(range(len(values)), key=lambda index: (values[index], -index))


def joint_accuracies(task, beta):
    """n(β) and b(β): accuracies of novel and base queries when β is added to every novel score."""
    ways_start = len(task["novel_queries"][0][0])
    novel_hits = [
        argmax([*base, *(score + beta for score in novel)]) == ways_start + target
        for base, novel, target in task["novel_queries"]
    ]
    base_hits = [
        argmax([*base, *(score + beta for score in novel)]) == target
        for base, novel, target in task["base_queries"]
    ]
    return sum(novel_hits) / len(novel_hits), sum(base_hits) / len(base_hits)


def reference_ausuc(task):
    """Trapezoids under the curve of joint accuracies, tried at a β on either side of every gap."""
    gaps = {
        max(base) - max(novel)
        for base, novel, _ in (*task["novel_queries"], *task["base_queries"])
        if max(base) > -math.inf
    }
    betas = sorted({-1000.0, 1000.0} | {gap + side for gap in gaps for side in (-0.25, 0, 0.25)})
    points = [joint_accuracies(task, beta) for beta in betas]
    return sum((x1 - x0) * (y0 + y1) / 2 for (x0, y0), (x1, y1) in pairwise(points))


def reference_figures(task):
    novel = [argmax(scores) == target for _, scores, target in task["novel_queries"]]
    base = [argmax(scores) == target for scores, _, target in task["base_queries"]]
    n, b = joint_accuracies(task, 0)
    novel_share, base_share = sum(novel) / len(novel), sum(base) / len(base)
    return {
        "novel": novel_share,
        "base": base_share,
        "both": (n * len(novel) + b * len(base)) / (len(novel) + len(base)),
        "novel_in_joint": n,
        "base_in_joint": b,
        "harmonic": 0.0 if n + b == 0 else 2 * n * b / (n + b),
        "delta": ((b - base_share) + (n - novel_share)) / 2,
        "ausuc": reference_ausuc(task),
    }


def answers_of(tasks):
    def stacked(part, place):
        return torch.tensor([[query[place] for query in task[part]] for task in tasks])

    scores = Scores(
        novel_base=stacked("novel_queries", 0).float(),
        novel_novel=stacked("novel_queries", 1).float(),
        base_base=stacked("base_queries", 0).float(),
        base_novel=stacked("base_queries", 1).float(),
    )
    return answers(scores, stacked("novel_queries", 2), stacked("base_queries", 2))


def figures_of(tasks):
    return answer_figures(answers_of(tasks))


@st.composite
def drawn_tasks(draw):
    categories, ways = draw(st.integers(1, 4)), draw(st.integers(1, 3))
    novel_count, base_count, count = draw(st.integers(1, 6)), draw(st.integers(1, 6)), draw(st.integers(1, 3))
    score = st.integers(-3, 3)

    def query(among):
        return st.tuples(
            st.lists(score, min_size=categories, max_size=categories),
            st.lists(score, min_size=ways, max_size=ways),
            st.integers(0, among - 1),
        )

    return [
        {
            "novel_queries": draw(st.lists(query(ways), min_size=novel_count, max_size=novel_count)),
            "base_queries": draw(st.lists(query(categories), min_size=base_count, max_size=base_count)),
        }
        for _ in range(count)
    ]


@given(tasks=drawn_tasks())
def test_every_figure_equals_a_slow_count(tasks):
    found = figures_of(tasks)
    assert tuple(found) == METRICS
    for index, task in enumerate(tasks):
        for name, value in reference_figures(task).items():
            assert found[name][index].item() == pytest.approx(value, abs=1e-6), name


@given(tasks=drawn_tasks())
def test_figures_keep_their_bounds(tasks):
    found = figures_of(tasks)
    assert (found["delta"] <= 1e-9).all()
    assert (found["novel_in_joint"] <= found["novel"]).all()
    assert (found["base_in_joint"] <= found["base"]).all()
    assert (found["ausuc"] >= -1e-6).all()
    assert (found["ausuc"] <= found["novel"] * found["base"] + 1e-6).all()
    # The curve falls and goes through (n, b): the rectangle left below that point is under it.
    assert (found["ausuc"] >= found["novel_in_joint"] * found["base_in_joint"] - 1e-6).all()
    for name in ("novel", "base", "both", "novel_in_joint", "base_in_joint", "harmonic"):
        assert ((found[name] >= 0) & (found[name] <= 1)).all()


@given(tasks=drawn_tasks(), beta=st.integers(-8, 8))
def test_the_area_does_not_depend_on_a_constant_added_to_novel_scores(tasks, beta):
    moved = [
        {
            part: [(base, [score + beta for score in novel], target) for base, novel, target in queries]
            for part, queries in task.items()
        }
        for task in tasks
    ]
    torch.testing.assert_close(figures_of(tasks)["ausuc"], figures_of(moved)["ausuc"])


def test_figures_of_a_task_counted_by_hand():
    # Two base categories, two ways.
    task = {
        "novel_queries": [
            ([1, 0], [5, 0], 0),  # right, in joint too
            ([6, 0], [5, 0], 0),  # right among novel, base wins the joint (gap 1)
            ([0, 0], [5, 0], 1),  # wrong
            ([0, 9], [2, 3], 1),  # right among novel, base wins by 6
        ],
        "base_queries": [
            ([4, 0], [3, 0], 0),  # right by 1
            ([4, 0], [9, 0], 0),  # right among base, novel wins by 5
        ],
    }
    found = {name: values.item() for name, values in figures_of([task]).items()}
    assert found["novel"] == 3 / 4
    assert found["base"] == 1
    assert found["novel_in_joint"] == 1 / 4
    assert found["base_in_joint"] == 1 / 2
    assert found["both"] == pytest.approx(2 / 6)
    assert found["harmonic"] == pytest.approx(2 * (1 / 4) * (1 / 2) / (3 / 4))
    assert found["delta"] == pytest.approx(((1 / 2 - 1) + (1 / 4 - 3 / 4)) / 2)
    # As β rises: −5 loses a base query (y 1 → ½); −5 also turns the wrong query, which gains nothing;
    # −4 gains (x ¼); at 1 a novel query (x ½) and the other base query (y 0) turn together; 6 gains (x ¾).
    # Area: ¼ · ½ before β = 1, then ¼ · (½ + 0) / 2, then nothing.
    assert found["ausuc"] == pytest.approx(1 / 8 + 1 / 16)


def test_a_perfect_recogniser_has_every_figure_at_its_best():
    task = {
        "novel_queries": [([0, 0], [9, 1], 0), ([0, 0], [1, 9], 1)],
        "base_queries": [([9, 0], [0, 0], 0), ([0, 9], [0, 0], 1)],
    }
    found = {name: values.item() for name, values in figures_of([task]).items()}
    best = dict.fromkeys(METRICS, 1.0) | {"delta": 0.0}
    assert found == pytest.approx(best)


def test_a_recogniser_that_never_sees_novel_categories():
    task = {
        "novel_queries": [([50, 0], [9, 1], 0), ([50, 0], [1, 9], 1)],
        "base_queries": [([59, 0], [0, 0], 0), ([0, 59], [0, 0], 1)],
    }
    found = {name: values.item() for name, values in figures_of([task]).items()}
    assert (found["novel"], found["base"], found["both"]) == (1, 1, 0.5)
    assert (found["novel_in_joint"], found["base_in_joint"], found["harmonic"]) == (0, 1, 0)
    assert found["delta"] == -0.5
    assert found["ausuc"] == pytest.approx(1)  # a constant added to novel scores would mend everything


def test_on_a_tie_the_base_category_comes_first():
    task = {"novel_queries": [([2, 1], [2, 1], 0)], "base_queries": [([2, 1], [2, 1], 0)]}
    found = {name: values.item() for name, values in figures_of([task]).items()}
    assert found["novel_in_joint"] == 0
    assert found["base_in_joint"] == 1
    assert found["ausuc"] == pytest.approx(0.5)  # both queries turn at β = 0: a straight line


def test_hidden_base_categories_never_win():
    hidden = -math.inf
    scores = Scores(
        novel_base=torch.tensor([[[hidden, -9.0]]]),
        novel_novel=torch.tensor([[[-8.0, -10.0]]]),
        base_base=torch.tensor([[[hidden, -9.0]]]),
        base_novel=torch.tensor([[[-10.0, -11.0]]]),
    )
    found = task_figures(scores, torch.tensor([[0]]), torch.tensor([[1]]))
    for name in METRICS:
        assert found[name].item() == pytest.approx(0.0 if name == "delta" else 1.0)


def test_the_area_of_one_step_after_another_is_exact():
    right = torch.tensor([[True, True]])
    given = Answers(torch.tensor([[0.0, 2.0]]), right, torch.tensor([[1.0, 3.0]]), right)
    novel, base = joint_curve(given)
    assert novel.tolist() == [[0, 0.5, 0.5, 1, 1]]
    assert base.tolist() == [[1, 1, 0.5, 0.5, 0]]
    assert ausuc(given).item() == pytest.approx(1 * 0.5 + 0.5 * 0.5)


@given(tasks=drawn_tasks())
def test_the_mean_curve_is_the_mean_over_tasks_at_every_beta(tasks):
    novel, base = mean_curve(answers_of(tasks))
    found = list(zip(novel.tolist(), base.tolist(), strict=True))
    gaps = {
        max(scores) - max(novel_scores)
        for task in tasks
        for scores, novel_scores, _ in (*task["novel_queries"], *task["base_queries"])
    }
    expected = []
    for beta in sorted({-1000.0, *(gap + 0.25 for gap in gaps)}):
        points = [joint_accuracies(task, beta) for task in tasks]
        expected.append([sum(values) / len(tasks) for values in zip(*points, strict=True)])
    # Queries that change sides together share a point, which the curve then holds several times.
    distinct = [point for index, point in enumerate(found) if index == 0 or point != found[index - 1]]
    steps = [point for index, point in enumerate(expected) if index == 0 or point != expected[index - 1]]
    assert len(distinct) == len(steps)
    for point, step in zip(distinct, steps, strict=True):
        assert point == pytest.approx(step, abs=1e-9)
    assert found[0] == pytest.approx((0, figures_of(tasks)["base"].mean().item()))
    assert found[-1] == pytest.approx((figures_of(tasks)["novel"].mean().item(), 0), abs=1e-9)


def test_harmonic_mean_of_nothing_is_nothing():
    found = harmonic(torch.tensor([0.0, 0.0, 0.5, 1.0]), torch.tensor([0.0, 0.7, 0.5, 0.5]))
    torch.testing.assert_close(found, torch.tensor([0.0, 0.0, 0.5, 2 / 3]))


@given(st.lists(st.floats(-1, 1), min_size=1, max_size=30))
def test_the_interval_is_two_standard_errors_wide_to_either_side(values):
    mean = sum(values) / len(values)
    sigma = math.sqrt(sum((value - mean) ** 2 for value in values) / len(values))
    found = summary(torch.tensor(values, dtype=torch.float64))
    assert found["mean"] == pytest.approx(100 * mean, abs=0.0051)
    assert found["ci95"] == pytest.approx(100 * 1.96 * sigma / math.sqrt(len(values)), abs=0.0051)


def test_the_interval_of_a_hand_computed_case():
    # σ = 0.2 with 1/n, √4 = 2.
    assert summary(torch.tensor([0.3, 0.3, 0.7, 0.7])) == {"mean": 50.0, "ci95": 19.6}
    assert summary(torch.tensor([0.25])) == {"mean": 25.0, "ci95": 0.0}
