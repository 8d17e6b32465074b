"""The confusion matrix: which categories are mistaken for which, and its figure."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST = 40  # categories in a picture
CULPRITS = 15  # wrong answers shown besides them
UNKNOWN = "unknown"  # the answer that names no category
WRITTEN = 25  # with up to this many, cells show their shares
_INCHES = {True: 0.42, False: 0.27}  # of a cell, with and without a number in it


@dataclass(frozen=True)
class Confusion:
    """`counts[i, j]` pictures of the category `true[i]` were taken for `predicted[j]`."""

    counts: npt.NDArray[np.int64]
    true: tuple[str, ...]
    predicted: tuple[str, ...]  # every one of `true`, or `UNKNOWN` for those that nobody taught

    def own(self) -> npt.NDArray[np.int64]:
        """Return the right answer's place among the predicted ones for each true category."""
        place = {name: index for index, name in enumerate(self.predicted)}
        return np.array([place[name] if name in place else place[UNKNOWN] for name in self.true])

    def wrong(self) -> npt.NDArray[np.int64]:
        """Return the counts without those of right answers."""
        wrong = self.counts.copy()
        wrong[np.arange(len(wrong)), self.own()] = 0
        return wrong


def shown_shares(confusion: Confusion) -> tuple[list[str], list[str], npt.NDArray[np.float64]]:
    """Return which true categories a picture shows, which answers, and shares (rows, columns) in percent.

    Of more than `MOST` categories, those with the most mistakes are shown: pictures of theirs taken for
    others, and of others taken for them. Columns are these, the other answers that were given wrongly most
    often, `UNKNOWN`, and last, if anything is left, all other answers together.
    """
    own, counts, wrong = confusion.own(), confusion.counts, confusion.wrong()
    mistakes = wrong.sum(axis=1) + wrong.sum(axis=0)[own]
    rows = np.sort(np.argsort(-mistakes, kind="stable")[:MOST])
    given = counts[rows].sum(axis=0)
    unknown = [place for place, name in enumerate(confusion.predicted) if name == UNKNOWN and given[place]]
    mine = [place for place in dict.fromkeys(own[rows].tolist()) if place not in unknown]
    others = [place for place in np.argsort(-given, kind="stable").tolist() if given[place]]
    culprits = [place for place in others if place not in {*mine, *unknown}][:CULPRITS]
    columns = [*mine, *culprits, *unknown]
    names = [confusion.predicted[place] for place in columns]
    total = counts[rows].sum(axis=1, keepdims=True)
    shown = counts[np.ix_(rows, columns)]
    rest = total - shown.sum(axis=1, keepdims=True)
    if rest.any():
        shown, names = np.concatenate([shown, rest], axis=1), [*names, "(other)"]
    return [confusion.true[row] for row in rows], names, 100 * shown / total


def confusion_figure(confusion: Confusion) -> "Figure":
    """Draw true categories in rows and predicted ones in columns, as shares of each row in percent."""
    from matplotlib.colors import PowerNorm
    from matplotlib.figure import Figure

    from recollect.evaluation.plots import plain

    names, answers, shares = shown_shares(confusion)
    columns = [plain(name) for name in answers]
    known = {*confusion.predicted}
    rows = [plain(name if name in known else f"{name} (not known)") for name in names]
    written = len(names) <= WRITTEN
    side = _INCHES[written]
    figure = Figure(figsize=(max(2.5, side * len(columns)), max(2.0, side * len(names))))
    axes = figure.add_axes((0, 0, 1, 1))  # the file is cut to what is drawn, labels included
    axes.imshow(shares, cmap="Blues", norm=PowerNorm(0.6, 0, 100), aspect="auto")
    axes.set_xticks(range(len(columns)), columns, rotation=90, fontsize=9)
    axes.set_yticks(range(len(names)), rows, fontsize=9)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    axes.set_xticks(np.arange(len(columns) - 1) + 0.5, minor=True)
    axes.set_yticks(np.arange(len(names) - 1) + 0.5, minor=True)
    axes.grid(which="minor", color="white", linewidth=1)
    axes.tick_params(which="minor", length=0)
    axes.set_xlabel("predicted category", fontsize=11)
    axes.set_ylabel("true category", fontsize=11)
    title = "How the pictures of each category are recognised, in %"
    if len(names) < len(confusion.true):
        title += f"\n(the {len(names)} of {len(confusion.true)} categories with the most mistakes)"
    axes.set_title(title, fontsize=11)
    if written:
        for (row, column), share in np.ndenumerate(shares):
            if share >= 0.5:
                colour = "white" if share > 40 else "black"
                axes.text(column, row, f"{share:.0f}", ha="center", va="center", fontsize=9, color=colour)
    else:
        bar = figure.colorbar(axes.images[0], ax=axes, fraction=0.03, pad=0.02, ticks=(0, 5, 20, 50, 100))
        bar.outline.set_visible(False)
        bar.set_label("% of the category's pictures", fontsize=10)
    return figure
