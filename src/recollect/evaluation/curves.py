"""Plot of an evaluation: what novel categories gain and base ones lose as novel scores are raised."""

from collections.abc import Mapping
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from recollect.evaluation.metrics import Answers, mean_curve
from recollect.evaluation.plots import COLOURS


def joint_figure(report: Mapping[str, Any], answers: Mapping[int, Answers]) -> Figure:
    """Draw base-in-joint against novel-in-joint accuracy, a curve for each number of shots of a report.

    They are mean curves, in percent, with the point β = 0 on each and its area in the legend.
    """
    figure = Figure(figsize=(7, 5.6))
    axes = figure.add_subplot()
    for index, result in enumerate(report["results"]):
        shots, colour = result["shots"], COLOURS[index % len(COLOURS)]
        novel, base = mean_curve(answers[shots])
        point = (result["novel_in_joint"]["mean"], result["base_in_joint"]["mean"])
        area = result["ausuc"]
        axes.plot(
            100 * novel.numpy(),
            100 * base.numpy(),
            color=colour,
            linewidth=2,
            label=f"{shots} shot{'s' if shots > 1 else ''}: AUSUC {area['mean']:.1f} ± {area['ci95']:.1f} %",
        )
        axes.plot(
            *point,
            "o",
            color=colour,
            markersize=8,
            markeredgecolor="white",
            label=f"β = 0: novel {point[0]:.1f}, base {point[1]:.1f}",
        )
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("novel queries right among all categories", fontsize=11)
    axes.set_ylabel("base queries right among all categories", fontsize=11)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(PercentFormatter())
    axes.grid(color="#e6e6e6", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(fontsize=10, frameon=False, loc="lower left")
    axes.set_title(
        f"{report['tasks']} tasks of {report['ways']} ways, {report['categories']} categories", fontsize=11
    )
    words = (
        "β is added to every novel score, from −∞ (upper left) to ∞ (lower right).\n"
        "Means over tasks at equal β; AUSUC is the mean of the tasks' own areas."
    )
    figure.text(0.5, -0.01, words, ha="center", va="top", fontsize=9, color="#444444")
    return figure
