import numpy as np
import pytest
import torch
from PIL import Image

from recollect.evaluation.curves import joint_figure
from recollect.evaluation.evaluate import evaluate
from recollect.evaluation.plots import save_figure


@pytest.fixture(scope="module")
def evaluated(make_model, make_split):
    answers = {}
    results = evaluate(
        make_model(), make_split(), shots=(1, 3), ways=3, queries=4, tasks=30, seed=5, keep=answers
    )
    return {"results": results, "tasks": 30, "ways": 3, "categories": "test"}, answers


def mean_accuracies(given, beta):
    """n(β) and b(β) in percent, task by task and query by query."""
    novel, base = [], []
    for task in range(len(given.novel_gap)):
        hits = [
            bool(right) and gap.item() < beta
            for gap, right in zip(given.novel_gap[task], given.novel_right[task], strict=True)
        ]
        kept = [
            bool(right) and gap.item() >= beta
            for gap, right in zip(given.base_gap[task], given.base_right[task], strict=True)
        ]
        novel.append(sum(hits) / len(hits))
        base.append(sum(kept) / len(kept))
    return 100 * sum(novel) / len(novel), 100 * sum(base) / len(base)


def test_curves_are_the_mean_over_tasks_at_every_beta(evaluated):
    report, answers = evaluated
    (axes,) = joint_figure(report, answers).axes
    curves = axes.lines[::2]
    assert len(curves) == 2
    for curve, (shots, given) in zip(curves, answers.items(), strict=True):
        assert f"{shots} shot" in curve.get_label()
        points = np.column_stack(curve.get_data())
        for beta in (-1e9, -1.3, -0.2, 0.0, 0.4, 2.5, 1e9):
            distance = np.abs(points - mean_accuracies(given, beta)).max(axis=1).min()
            assert distance < 1e-9, (shots, beta)


def test_curves_run_from_base_alone_to_novel_alone(evaluated):
    report, answers = evaluated
    (axes,) = joint_figure(report, answers).axes
    for curve, result in zip(axes.lines[::2], report["results"], strict=True):
        x, y = curve.get_data()
        assert (x[0], y[0]) == pytest.approx((0, result["base"]["mean"]), abs=0.01)
        assert (x[-1], y[-1]) == pytest.approx((result["novel"]["mean"], 0), abs=0.01)
        assert (np.diff(x) >= 0).all()
        assert (np.diff(y) <= 0).all()
    assert axes.get_xlim()[0] == axes.get_ylim()[0] == 0


def test_the_point_without_beta_and_the_area_are_told(evaluated):
    report, answers = evaluated
    (axes,) = joint_figure(report, answers).axes
    words = [text.get_text() for text in axes.get_legend().get_texts()]
    for index, result in enumerate(report["results"]):
        novel, base = result["novel_in_joint"]["mean"], result["base_in_joint"]["mean"]
        (x,), (y,) = axes.lines[2 * index + 1].get_data()
        assert (x, y) == (novel, base)
        assert (x, y) == pytest.approx(mean_accuracies(answers[result["shots"]], 0.0), abs=0.01)
        assert f"AUSUC {result['ausuc']['mean']:.1f} ± {result['ausuc']['ci95']:.1f} %" in words[2 * index]
        assert words[2 * index + 1] == f"β = 0: novel {novel:.1f}, base {base:.1f}"


def test_what_is_kept_for_the_picture_changes_no_figure(evaluated, make_model, make_split):
    report, answers = evaluated
    plain = evaluate(make_model(), make_split(), shots=(1, 3), ways=3, queries=4, tasks=30, seed=5)
    assert plain == report["results"]
    assert all(given.novel_gap.shape == (30, 12) for given in answers.values())
    assert all(given.base_right.dtype == torch.bool for given in answers.values())


def test_the_picture_is_a_png_of_a_sensible_size(evaluated, tmp_path):
    save_figure(joint_figure(*evaluated), tmp_path / "joint.png")
    with Image.open(tmp_path / "joint.png") as image:
        assert image.format == "PNG"
        assert 600 < image.width < 2000
        assert 600 < image.height < 2000
