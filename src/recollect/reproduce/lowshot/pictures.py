"""Pictures of table 3: accuracy against the number of examples, and the order of every two rows."""

from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import FixedLocator, NullLocator

from recollect.evaluation.lowshot import FIGURES, TOP, named
from recollect.evaluation.plots import COLOURS, RIGHT, WRONG
from recollect.methods.lowshot import SYSTEMS
from recollect.reproduce.claims import FAILS, HOLDS, UNDECIDED
from recollect.reproduce.lowshot.plan import LowShotPlan
from recollect.reproduce.lowshot.results import LowShotResults
from recollect.reproduce.lowshot.rows import TITLES, judged_orders
from recollect.reproduce.results import Place

_MARKS, _LINES = "osD^vPX", ("-", "--")
# Colours of the square and of the number, and the number's place in the square.
_SIDES = {
    HOLDS: (RIGHT, "#0b4a26", -0.27),
    FAILS: (WRONG, "#7d1a10", 0.0),
    UNDECIDED: ("#999999", "#444444", 0.27),
}


def accuracy_figure(plan: LowShotPlan, results: LowShotResults) -> Figure:
    """Draw every figure against N', top-5 above top-1; bars are 95 % intervals."""
    figure = Figure(figsize=(12, 7.5), layout="constrained")
    axes = figure.subplots(len(TOP), len(FIGURES), sharex=True, squeeze=False)
    for line, k in zip(axes, TOP, strict=True):
        for place, name in zip(line, FIGURES, strict=True):
            for number, key in enumerate(plan.keys):
                found = [
                    (shots, one)
                    for shots in plan.shots
                    if (one := results.measured(Place(key, shots, named(name, k)))) is not None
                ]
                place.errorbar(
                    [shots for shots, _ in found],
                    [one.mean for _, one in found],
                    [one.ci95 for _, one in found],
                    color=COLOURS[number % len(COLOURS)],
                    linestyle=_LINES[number // len(COLOURS) % 2],
                    marker=_MARKS[number % len(_MARKS)],
                    markersize=4,
                    linewidth=2.6 if key == "attention" else 1.1,
                    label=SYSTEMS[key].title,
                )
            place.set(xscale="log", title=f"{TITLES[name]}, top-{k}, %")
            place.xaxis.set_major_locator(FixedLocator(plan.shots))
            place.xaxis.set_minor_locator(NullLocator())
            place.set_xticklabels(list(map(str, plan.shots)))
            place.grid(axis="y", color="#eeeeee")
            place.spines[["top", "right"]].set_visible(False)
    for place in axes[-1]:
        place.set_xlabel("N', examples of each novel category")
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, fontsize=8, frameon=False)
    return figure


def order_figure(plan: LowShotPlan, results: LowShotResults) -> Figure:
    """Draw for every two rows how many of the paper's orders hold (green), not (red), or neither (grey)."""
    counts: dict[tuple[str, str], dict[str, int]] = {}
    for order, judged in judged_orders(plan.keys, plan.shots, results):
        pair = min(order.high, order.low), max(order.high, order.low)
        counts.setdefault(pair, dict.fromkeys(_SIDES, 0))[judged] += 1
    keys = [key for key in plan.keys if any(key in pair for pair in counts)]
    figure = Figure(figsize=(11, 6.2), layout="constrained")
    axes = figure.subplots()
    for (one, other), own in counts.items():
        row, column = sorted((keys.index(one), keys.index(other)), reverse=True)
        most, more = sorted(own, key=lambda kind: own[kind], reverse=True)[:2]
        most = most if own[most] > own[more] else UNDECIDED
        axes.add_patch(
            _square(column, row, _SIDES[most][0], 0.15 + 0.35 * own[most] / max(1, sum(own.values())))
        )
        for kind, (_, colour, shift) in _SIDES.items():
            axes.text(
                column + shift, row, str(own[kind]), color=colour, ha="center", va="center", fontsize=10
            )
    axes.set(xlim=(-0.5, len(keys) - 1.5), ylim=(len(keys) - 0.5, 0.5))
    titles = [SYSTEMS[key].title.replace("Cosine classifier & ", "").replace(" Networks", "") for key in keys]
    axes.set_xticks(range(len(keys) - 1), titles[:-1], rotation=25, ha="right", fontsize=8)
    axes.set_yticks(range(1, len(keys)), titles[1:], fontsize=8)
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0)
    axes.set_title(
        "The paper's order of two rows, top-5, at every figure and N': "
        "as in the paper (green) · the other way round (red) · undecided (grey)",
        fontsize=9,
    )
    return figure


def _square(column: float, row: float, colour: str, alpha: float) -> Rectangle:
    return Rectangle((column - 0.48, row - 0.46), 0.96, 0.92, color=colour, alpha=alpha, linewidth=0)
