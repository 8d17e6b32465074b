"""Training curves: loss, accuracies and learning rate, from a run's metrics."""

import logging
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from recollect.training.runfolder import RunFolder

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

log = logging.getLogger(__name__)
Lines = list[Mapping[str, Any]]
_JUDGED = {"novel": "o", "base": "s", "both": "D"}  # validation figures, with their marks
_RATE = "#3d8ab3"


def draw_curves(folder: RunFolder) -> None:
    """Draw the run's `curves.png`; a failure is only a warning, so that it never costs a run."""
    try:
        figure = training_figure(folder.metrics())
        if figure is not None:
            from recollect.evaluation.plots import save_figure

            save_figure(figure, folder.curves)
    except Exception as error:  # noqa: BLE001
        log.warning("%s could not be drawn: %s", folder.curves, " ".join(str(error).split()))


def training_figure(lines: Iterable[Mapping[str, Any]]) -> "Figure | None":
    """Draw each stage in the metrics: accuracies above, loss and learning rate below."""
    from matplotlib.figure import Figure

    lines = [line for line in lines if {"stage", "step"} <= line.keys()]
    stages = sorted({line["stage"] for line in lines})
    if not stages:
        return None
    figure = Figure(figsize=(1.4 + 5 * len(stages), 6), layout="constrained")
    grid = figure.subplots(2, len(stages), sharex="col", sharey="row", squeeze=False, height_ratios=(3, 2))
    for column, stage in enumerate(stages):
        mine = [line for line in lines if line["stage"] == stage]
        upper, lower = grid[:, column]
        _draw_accuracies(upper, mine)
        _draw_loss(lower, mine, last=column == len(stages) - 1)
        upper.set_title(f"stage {stage}{_selected_by(mine)}", fontsize=11)
        lower.set_xlabel("step", fontsize=11)
        lower.set_xlim(left=0)
        for axes in (upper, lower):
            axes.grid(color="#e6e6e6", linewidth=0.8)
            axes.set_axisbelow(True)
            axes.spines[["top", "right"]].set_visible(False)
    grid[0, 0].set_ylabel("accuracy, %", fontsize=11)
    grid[1, 0].set_ylabel("loss", fontsize=11)
    legends = (zip(*axes.get_legend_handles_labels(), strict=True) for axes in grid[0])
    named = {label: handle for legend in legends for handle, label in legend}
    figure.legend(
        named.values(), named.keys(), loc="outside upper center", ncols=5, fontsize=10, frameon=False
    )
    return figure


def _draw_accuracies(axes: "Axes", lines: Lines) -> None:
    from recollect.evaluation.plots import COLOURS

    axes.plot(*_series(lines, "accuracy"), color="#777777", linewidth=1.2, label="training")
    for (name, marker), colour in zip(_JUDGED.items(), COLOURS, strict=False):
        label = f"validation {name.capitalize()}"
        axes.plot(
            *_series(lines, name), marker=marker, color=colour, linewidth=0.8, markersize=5, label=label
        )
    steps, values = _series(_selected(lines), *_JUDGED)
    if steps:
        axes.plot(
            steps,
            values,
            "o",
            color="black",
            fillstyle="none",
            markersize=12,
            label="selected",
            clip_on=False,
        )
    axes.set_ylim(0, 100)


def _draw_loss(axes: "Axes", lines: Lines, *, last: bool) -> None:
    from recollect.evaluation.plots import COLOURS

    axes.plot(*_series(lines, "loss"), color="#777777", linewidth=1.2)
    axes.set_ylim(bottom=0)
    beside = axes.twinx()
    beside.fill_between(*_series(lines, "rate"), color=COLOURS[5], alpha=0.25, linewidth=0)
    beside.set_ylim(bottom=0)
    beside.tick_params(labelsize=9, colors=_RATE, length=0)
    beside.spines[:].set_visible(False)
    if last:
        beside.set_ylabel("learning rate", fontsize=11, color=_RATE)
    axes.set_zorder(beside.get_zorder() + 1)  # the loss before the rate
    axes.patch.set_visible(False)


def _selected(lines: Lines) -> Lines:
    return [line for line in lines if line.get("selected")][-1:]


def _selected_by(lines: Lines) -> str:
    figures = {"ausuc": "AUSUC"} | {name: name.capitalize() for name in _JUDGED}
    return "".join(
        f", model selected by {figures.get(str(line.get('by')), '?')}" for line in _selected(lines)
    )


def _series(lines: Lines, *names: str) -> tuple[list[float], list[float]]:
    """Return steps and values of every line that has one of the names."""
    points = [(line["step"], line[name]) for name in names for line in lines if name in line]
    return [step for step, _ in points], [value for _, value in points]
