"""`recollect plot methods`: accuracy on new categories against minutes of training, from result files."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from recollect.errors import DataError
from recollect.evaluation.plots import COLOURS, plain, save_figure
from recollect.methods import find_method
from recollect.reproduce.results import Result, read_json
from recollect.reproduce.rows import TABLES, Row

_MARKS = "osD^vPX*<>"


class Point(NamedTuple):
    """What a training reached, and in which time."""

    name: str
    row: str
    shots: int
    minutes: float
    mean: float
    ci95: float
    tasks: int


def plot_methods(paths: Sequence[Path], out: Path) -> dict[str, Any]:
    """Draw the results in these files, or in the folders of reproductions, to `out`; return the points."""
    points = sorted(point for path in _files(paths) for point in read_points(path))
    save_figure(times_figure(points), out)
    return {"picture": str(out), "points": [point._asdict() for point in points]}


def _files(paths: Sequence[Path]) -> list[Path]:
    found: list[Path] = []
    for path in paths:
        inside = (
            sorted(path.glob("results/*.json")) or sorted(path.glob("*.json")) if path.is_dir() else [path]
        )
        if not inside:
            raise DataError(f"{path} holds no results: name a folder that `recollect reproduce` wrote")
        found += inside
    return found


def read_points(path: Path) -> list[Point]:
    """Return what a result file says: a point for each number of shots."""
    words = read_json(
        path, Result, "is not a result file of table 1 or 2, or is damaged: leave it out, or make it again"
    )
    if words["kind"] != "extractor":
        raise DataError(
            f"{path} stands on the stage 1 of another training, whose time it does not count: leave it out"
        )
    row, report = _row(str(words.get("row"))), words["report"]
    extractor = row.settings.get("extractor")
    ours = f"ours, {extractor}" if extractor else row.title
    label = find_method(row.method).title if row.method else ours
    try:
        return [
            Point(
                label,
                row.key,
                int(result["shots"]),
                float(words["training_seconds"]) / 60,
                float(result["novel"]["mean"]),
                float(result["novel"]["ci95"]),
                int(report["tasks"]),
            )
            for result in report["results"]
        ]
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(f"{path} is damaged: make it again with `recollect reproduce`") from error


def _row(key: str) -> Row:
    for table in reversed(TABLES.values()):
        for row in table.rows:
            if row.key == key:
                return row
    return Row(key, key, {})


def times_figure(points: Sequence[Point]) -> Figure:
    """Draw a panel for each number of shots; a method has the same colour and mark in all of them."""
    shots = sorted({point.shots for point in points})
    names = list(dict.fromkeys(point.name for point in sorted(points, key=lambda one: (one.minutes, one))))
    figure = Figure(figsize=(1.2 + 4.6 * len(shots), 4.9), layout="constrained")
    grid = figure.subplots(1, len(shots), squeeze=False, sharex=True)[0]
    least, most = (pick(max(point.minutes, 0.01) for point in points) for pick in (min, max))
    for axes, count in zip(grid, shots, strict=True):
        for index, name in enumerate(names):
            mine = [point for point in points if point.shots == count and point.name == name]
            axes.errorbar(
                [max(point.minutes, 0.01) for point in mine],
                [point.mean for point in mine],
                yerr=[point.ci95 for point in mine],
                fmt=_MARKS[index % len(_MARKS)],
                color=COLOURS[index % len(COLOURS)],
                markersize=8,
                markeredgecolor="white",
                capsize=3,
                label=plain(name, 48),
            )
        axes.set_title(f"{count} shot{'s' if count > 1 else ''}", fontsize=12)
        axes.set_xscale("log")
        axes.set_xlim(least / 1.6, most * 1.6)
        _label(axes)
    grid[0].set_ylabel("Novel accuracy, %", fontsize=11)
    handles, labels = grid[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, fontsize=10, frameon=False)
    tasks = " or ".join(str(count) for count in sorted({point.tasks for point in points}))
    figure.suptitle(f"Accuracy against time of training; 95 % intervals over {tasks} tasks", fontsize=11)
    return figure


def _label(axes: Axes) -> None:
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.set_xlabel("minutes of training", fontsize=11)
    axes.grid(color="#e6e6e6", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def times_text(report: dict[str, Any]) -> str:
    """Return what `plot methods` prints."""
    lines = [
        f"{point['name']}, {point['shots']} shots: {point['mean']:.2f} ± {point['ci95']:.2f} % after "
        f"{point['minutes']:.1f} minutes"
        for point in report["points"]
    ]
    return "\n".join([*lines, str(report["picture"])])
