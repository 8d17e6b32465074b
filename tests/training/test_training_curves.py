"""`curves.png`: what a run's metrics say, and never the end of a finished training."""

import json
import logging

import numpy as np
import pytest
from PIL import Image

from pictures import disk_room
from recollect.training import curves
from recollect.training.curves import draw_curves, training_figure
from recollect.training.runfolder import RunFolder


def stage_lines(stage, steps=(50, 100, 150, 200)):
    lines = [
        {
            "stage": stage,
            "step": step,
            "loss": 4 / step,
            "accuracy": step / 4,
            "rate": 0.1 * stage,
            "seconds": 1.0,
        }
        for step in steps
    ]
    for step, both, selected in ((100, 30.0, True), (150, 40.0, True), (200, 35.0, False)):
        figures = {"novel": both + 20, "base": both + 25, "both": both, "ausuc": both / 2}
        by = "ausuc" if stage == 1 else "both"
        lines.append({"stage": stage, "step": step, **figures, "selected": selected, "by": by})
    return lines


def points(axes):
    return {line.get_label(): tuple(map(list, line.get_data())) for line in axes.lines}


def test_both_stages_are_drawn_side_by_side_with_the_points_of_the_metrics():
    figure = training_figure(stage_lines(1) + stage_lines(2))
    upper, lower, rates = figure.axes[:2], figure.axes[2:4], figure.axes[4:]
    for stage in (1, 2):
        axes = upper[stage - 1]
        assert f"stage {stage}, model selected by {'AUSUC' if stage == 1 else 'Both'}" == axes.get_title()
        drawn = points(axes)
        assert drawn["training"] == ([50, 100, 150, 200], [12.5, 25, 37.5, 50])
        assert drawn["validation Both"] == ([100, 150, 200], [30, 40, 35])
        assert drawn["validation Novel"] == ([100, 150, 200], [50, 60, 55])
        assert drawn["validation Base"] == ([100, 150, 200], [55, 65, 60])
        assert drawn["selected"] == ([150] * 3, [60, 65, 40]), "the last model that was selected"
        (loss,) = lower[stage - 1].lines
        assert np.allclose(loss.get_data(), ([50, 100, 150, 200], [0.08, 0.04, 4 / 150, 0.02]))
        (rate,) = rates[stage - 1].collections
        assert rate.get_paths()[0].vertices[:, 1].max() == pytest.approx(0.1 * stage)


def test_a_run_that_took_stage_one_over_draws_stage_two_alone():
    figure = training_figure(stage_lines(2))
    assert [axes.get_title() for axes in figure.axes if axes.get_title()] == [
        "stage 2, model selected by Both"
    ]


@pytest.mark.parametrize(
    "lines",
    [
        [{"stage": 1, "step": 2, "loss": 4.1, "accuracy": 2.0, "rate": 0.1}],
        [{"stage": 1, "step": 2, "novel": 1.0, "base": 2.0, "both": 1.5, "selected": False}],
        [{"stage": 1, "step": 2, "novel": 1.0, "base": 2.0, "both": 1.5, "selected": True}],
        [{"stage": 1, "step": 2}],
    ],
)
def test_short_metrics_are_drawn_as_far_as_they_go(lines, tmp_path):
    folder = folder_with(tmp_path, lines)
    draw_curves(folder)
    with Image.open(folder.curves) as image:
        assert image.format == "PNG"
        assert image.width > 500


def folder_with(path, lines):
    path.joinpath("metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return RunFolder(path)


def test_without_metrics_nothing_is_drawn(tmp_path, caplog):
    draw_curves(folder_with(tmp_path, []))
    draw_curves(RunFolder(tmp_path / "nowhere"))
    assert not list(tmp_path.glob("*.png"))
    assert not caplog.messages


def test_a_full_disk_is_one_warning(tmp_path, caplog):
    folder = folder_with(tmp_path, stage_lines(1))
    with disk_room(1000):
        draw_curves(folder)
    (message,) = caplog.messages
    assert "curves.png could not be drawn: no room on the disk" in message
    assert "\n" not in message
    assert [file.name for file in tmp_path.iterdir()] == ["metrics.jsonl"]


def test_a_broken_matplotlib_is_one_warning(tmp_path, caplog, monkeypatch):
    def broken(_lines):
        raise ImportError("matplotlib\nis broken")

    monkeypatch.setattr(curves, "training_figure", broken)
    draw_curves(folder_with(tmp_path, stage_lines(1)))
    assert [(record.levelno, record.getMessage().split(" could ")[1]) for record in caplog.records] == [
        (logging.WARNING, "not be drawn: matplotlib is broken")
    ]
