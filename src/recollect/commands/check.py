"""`recollect check`: how well a recogniser does on a person's own labelled pictures."""

import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table
from rich.text import Text

from recollect.commands.teach import reading
from recollect.data.arrays import Pixels
from recollect.data.folder import find_items
from recollect.data.imageset import Item, Undecoded, decoded
from recollect.errors import DataError, PictureError, one_line
from recollect.evaluation.confusion import Confusion
from recollect.model.spec import Preprocessing
from recollect.modelfile import read_header
from recollect.store import fold

log = logging.getLogger(__name__)
BATCH = 256  # pictures that are answered at a time
UNKNOWN = "(unknown)"  # in place of a category's name


def check_folder(
    model: Path,
    folder: Path,
    store: str | None = None,
    *,
    skip_bad: bool = False,
    extractor: str | None = None,
) -> tuple[dict[str, Any], Confusion]:
    """Let a recogniser answer as `predict` does: the result of `recollect check`, and the counts.

    In percent: `accuracy` over all `pictures`, `mean_accuracy` over the categories. `categories` has for
    each `category` its `origin` (base or novel), `pictures`, `accuracy`, and under `confused_with` the most
    frequent wrong answer (`category`, or "(unknown)") with its `share` of the pictures, or null. `unknown`
    names the sub-folders (`category`, `pictures`) that are no categories of the model and count nowhere else.
    `warnings`, where there are any, say what must be known to read the figures.
    """
    header = read_header(model)
    items, key = find_items(folder, header.spec.preprocessing.size)
    with reading(model, store, extractor) as recognizer:
        known = [category.name for category in recognizer.categories()]
        names, spelled = frozenset(known), {fold(name): name for name in known}
        asked = [
            replace(item, category=spelled[fold(item.category)])
            for item in items
            if fold(item.category) in spelled
        ]
        unknown = Counter(item.category for item in items if fold(item.category) not in spelled)
        if not asked:
            raise DataError(
                f"no sub-folder of {folder} is a category of {model}: there are {_some(sorted(unknown))}, "
                f"and the model knows {_some(known)}"
            )
        answered: Counter[tuple[str, str | None]] = Counter()  # what is true and what was said, None: unknown
        for batch, pixels in _decoded(asked, header.spec.preprocessing, skip_bad=skip_bad):
            for item, (answer, *_) in zip(batch, recognizer.predict(list(pixels), top=1), strict=True):
                said = None if answer.origin == "unknown" else answer.category
                answered[item.category, said] += 1
    if not answered:
        raise DataError(f"no picture of {folder} can be read")
    # Somebody may have taught or renamed a category since: its new name is an answer too.
    new = sorted({said for _, said in answered if said is not None} - names)
    confusion = _confusion(answered, [*known, *new])
    warnings = _warnings(folder, unknown, new, same=key == header.trained_on.key)
    for warning in warnings:
        log.warning("%s", one_line(warning))
    report = {
        "model": str(model),
        "data": str(folder),
        **_figures(confusion, set(header.spec.categories)),
        "unknown": [{"category": name, "pictures": count} for name, count in sorted(unknown.items())],
        **({"warnings": warnings} if warnings else {}),
    }
    return report, confusion


def check_table(report: dict[str, Any]) -> Table:
    """Return a row for each category, and below them the accuracy of all."""
    right = f"{report['accuracy']:.1f} % of {report['pictures']} pictures are recognised"
    table = Table(
        title=f"{right}; mean over {len(report['categories'])} categories {report['mean_accuracy']:.1f} %",
        title_justify="left",
    )
    for heading in ("category", "origin", "pictures", "accuracy, %", "most often taken for"):
        table.add_column(heading, justify="right" if heading in {"pictures", "accuracy, %"} else "left")
    for row in report["categories"]:
        wrong = row["confused_with"]
        answer = "" if wrong is None else f"{wrong['category']} ({wrong['share']:.1f} %)"
        # Not plain strings: a name may hold what rich takes for markup.
        table.add_row(
            Text(row["category"]),
            row["origin"],
            str(row["pictures"]),
            f"{row['accuracy']:.1f}",
            Text(answer),
        )
    return table


def _decoded(
    items: Sequence[Item], prepare: Preprocessing, *, skip_bad: bool
) -> Iterator[tuple[list[Item], Pixels]]:
    """Yield pictures in batches, decoded as the model wants them."""
    source = Undecoded(items, prepare.size, prepare.short_side)
    results = zip(items, decoded(source, "checking", skip_bad=skip_bad), strict=True)
    while some := list(islice(results, BATCH)):
        kept: list[Item] = []
        pixels: list[Pixels] = []
        for item, result in some:
            if isinstance(result, PictureError):
                log.warning("left out: %s", result)
            else:
                kept.append(item)
                pixels.append(result)
        if kept:
            yield kept, np.stack(pixels)


def _confusion(answered: Counter[tuple[str, str | None]], known: Sequence[str]) -> Confusion:
    """Return the counts of the categories that were asked for; a last column if any was called unknown."""
    asked = {true for true, _ in answered}
    rows = [name for name in known if name in asked]
    columns: list[str | None] = [*known]
    if any(said is None for _, said in answered):
        columns.append(None)
    row, column = ({name: place for place, name in enumerate(names)} for names in (rows, columns))
    counts = np.zeros((len(rows), len(columns)), np.int64)
    for (true, said), count in answered.items():
        counts[row[true], column[said]] = count
    return Confusion(counts, tuple(rows), tuple(UNKNOWN if name is None else name for name in columns))


def _figures(confusion: Confusion, base: set[str]) -> dict[str, Any]:
    counts, own = confusion.counts, confusion.own()
    totals, right = counts.sum(axis=1), counts[np.arange(len(own)), own]
    wrong = counts.copy()
    wrong[np.arange(len(own)), own] = 0
    categories = []
    for row, name in enumerate(confusion.true):
        worst = int(wrong[row].argmax())
        share = _percent(wrong[row, worst] / totals[row])
        confused = {"category": confusion.predicted[worst], "share": share} if wrong[row, worst] else None
        categories.append(
            {
                "category": name,
                "origin": "base" if name in base else "novel",
                "pictures": int(totals[row]),
                "accuracy": _percent(right[row] / totals[row]),
                "confused_with": confused,
            }
        )
    return {
        "pictures": int(totals.sum()),
        "accuracy": _percent(right.sum() / totals.sum()),
        "mean_accuracy": _percent((right / totals).mean()),
        "categories": categories,
    }


def _warnings(folder: Path, unknown: Counter[str], new: Sequence[str], *, same: bool) -> list[str]:
    warnings = []
    if same:
        warnings.append(f"the model was trained on {folder}: most of these pictures are no test of it")
    if unknown:
        names = _some([f"{name} ({count})" for name, count in sorted(unknown.items())])
        warnings.append(f"not a category of this model, left out with its pictures: {names}")
    if new:
        warnings.append(f"taught or renamed by another process while this was measured: {_some(new)}")
    return warnings


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def _percent(share: float) -> float:
    return round(100 * float(share), 2)
