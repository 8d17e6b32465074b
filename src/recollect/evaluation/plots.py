"""Helpers for figures, which are drawn without a display."""

import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from recollect.system.disk import replacing_file

RIGHT, WRONG = "#2e8b57", "#c0392b"
# Okabe and Ito's colours, which most people can tell apart.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")


def save_figure(figure: Figure, path: Path, dpi: int = 150) -> None:
    """Write a figure as PNG, whole or not at all."""
    with replacing_file(path) as part, warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph")  # a letter that the font lacks is drawn as a box
        figure.savefig(part, format="png", dpi=dpi, bbox_inches="tight", facecolor="white")


def plain(name: str, most: int = 24) -> str:
    r"""Return a category's name as matplotlib should write it: on one line, shortened, taken literally.

    Matplotlib reads text between two `$` as mathematics, and hides legend entries that start with `_`.

    >>> plain("$5 and $10"), plain("a" * 30)
    ('\\$5 and \\$10', 'aaaaaaaaaaaaaaaaaaaaaaa…')
    """
    name = " ".join(name.split())
    short = name if len(name) <= most else f"{name[: most - 1]}…"
    return ("\u200a" if short.startswith("_") else "") + short.replace("$", r"\$")


def show_picture(
    axes: Axes, pixels: npt.NDArray[np.uint8], title: str = "", frame: str | None = None
) -> None:
    """Show one picture with a title and, if asked, a coloured frame."""
    axes.imshow(pixels)
    axes.set(xticks=[], yticks=[])
    axes.set_title(title, fontsize=7, color=frame or "black", pad=3)
    for spine in axes.spines.values():
        spine.set_visible(frame is not None)
        spine.set_color(frame)
        spine.set_linewidth(2.5)


def grouped_bars(
    axes: Axes, groups: dict[str, Sequence[float]], errors: dict[str, Sequence[float]], names: Sequence[str]
) -> None:
    """Draw bars side by side: one group of bars per name, one colour per entry of `groups`, values on top."""
    width = 0.8 / len(groups)
    for index, (label, values) in enumerate(groups.items()):
        places = np.arange(len(names)) + (index - (len(groups) - 1) / 2) * width
        bars = axes.bar(places, values, width, yerr=errors[label], label=label, capsize=2)
        axes.bar_label(bars, fmt="%.0f", fontsize=7, padding=2)
    axes.set_xticks(np.arange(len(names)), names)
    axes.set_ylim(0, 100)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(fontsize=8, frameon=False, ncols=len(groups), loc="upper center", bbox_to_anchor=(0.5, 1.12))
