"""`recollect check`: how well a recogniser does on your own labelled pictures."""

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from rich.table import Column, Table
from rich.text import Text

from recollect.commands import pictures
from recollect.commands.opening import Target, spellings
from recollect.commands.printing import NEVER_UNKNOWN
from recollect.data.folder import find_items
from recollect.errors import DataError, counted, listed, one_line
from recollect.evaluation.confusion import UNKNOWN, Confusion, confusion_figure
from recollect.modelfile import read_header
from recollect.recognition.recognizer import Recognizer
from recollect.store import Server, fold, store_place
from recollect.system.progress import say

log = logging.getLogger(__name__)


class _Answers(NamedTuple):
    """What a recogniser knew, and how often each category's pictures got each answer (`None`: unknown)."""

    origins: Mapping[str, str]  # by category
    spelled: dict[str, str]  # a category's own spelling, by `fold`
    counts: Counter[tuple[str, str | None]]

    @classmethod
    def of(cls, recognizer: Recognizer, base: Sequence[str]) -> "_Answers":
        """Start counting; `base` are the names in the model, under which renamed categories are known too."""
        possible = [category for category in recognizer.categories() if not category.hidden]
        return cls({one.name: one.origin for one in possible}, spellings(possible, base), Counter())


def check(
    target: Target, folder: Path, *, against: str | None = None, skip_bad: bool = False
) -> tuple[dict[str, Any], Confusion]:
    """Let a recogniser answer as `predict` does: the result of `recollect check`, and the counts.

    In percent: `accuracy` over all `pictures` of known categories, `mean_accuracy` over the categories.
    `called_unknown` counts those pictures that were called unknown. `categories` has for each `category` its
    `origin` (base or novel), `pictures`, `accuracy`, and under `confused_with` the most frequent wrong answer
    (`category`, or "unknown") with its `share` of the pictures, or null. `unknown` has the same for
    sub-folders that are no category of the model: there `accuracy` is the share called unknown, or null for a
    model that never says so. `left_out` has each bad `picture` with the `reason`. With `against`, every
    category also has its accuracy with that store (`accuracy_against`, null where only one of them knows it),
    and `against` has both over the categories that both know. `warnings` say what you must know to read the
    figures.
    """
    header = read_header(target.model)
    items, key = find_items(folder, header.spec.preprocessing.size, skip_bad=skip_bad)
    bad: list[dict[str, str]] = []
    with ExitStack() as stack:
        targets = [target] if against is None else [target, replace(target, store=against)]
        opened = [stack.enter_context(one.load()) for one in targets]
        answers = [_Answers.of(recognizer, header.spec.categories) for recognizer in opened]
        untaught = Counter(item.category for item in items if fold(item.category) not in answers[0].spelled)
        can_refuse = header.calibration.unknown is not None
        asked = [item for item in items if can_refuse or fold(item.category) in answers[0].spelled]
        if not asked:
            raise DataError(
                f"no sub-folder of {folder} is a category of {target.model}: there are "
                f"{listed(sorted(untaught))}, and the model knows {listed([*answers[0].origins])}"
            )
        prepare = header.spec.preprocessing
        for good, pixels in pictures.read(asked, prepare, "checking", skip_bad=skip_bad, bad=bad):
            for recognizer, one in zip(opened, answers, strict=True):
                for item, (best, *_) in zip(good, recognizer.predict(pixels, top=1), strict=True):
                    true = one.spelled.get(fold(item.category), item.category)
                    one.counts[true, None if best.origin == "unknown" else best.category] += 1
    first = answers[0]
    # Somebody may have taught or renamed a category since: its new name is an answer too.
    new = sorted({said for _, said in first.counts if said is not None} - {*first.origins})
    confusion = _confusion(first.counts, [*first.origins, *new], sorted(untaught))
    report: dict[str, Any] = {"model": str(target.model), "data": str(folder)}
    report |= _figures(confusion, first.origins)
    if not can_refuse:
        none: dict[str, Any] = {"accuracy": None, "confused_with": None}
        report["unknown"] = [
            {"category": name, "pictures": untaught[name], **none} for name in sorted(untaught)
        ]
    if against is not None:
        place = store_place(against)
        _compare(report, str(place) if isinstance(place, Server) else against, answers[1])  # no password
    warnings = _warnings(folder, untaught, new, same=key == header.trained_on.key, can_refuse=can_refuse)
    for warning in warnings:
        log.warning("%s", one_line(warning))
    extra = {"left_out": bad, "warnings": warnings}
    return {**report, **{name: value for name, value in extra.items() if value}}, confusion


def check_table(report: dict[str, Any]) -> Table:
    """Return a row for each category, and above them the accuracy of all."""
    compared = "against" in report
    headings = ("pictures", "accuracy, %", *(("against, %",) if compared else ()))
    figures = [Column(heading, justify="right") for heading in headings]
    table = Table("category", "origin", *figures, title=_title(report), title_justify="left")
    table.add_column("most often taken for")
    worst_first = sorted(report["categories"], key=itemgetter("accuracy"))
    for row in [*worst_first, *report["unknown"]]:
        wrong = row["confused_with"]
        answer = "" if wrong is None else f"{wrong['category']} ({wrong['share']:.1f} %)"
        # Not plain strings: a name may hold what rich takes for markup.
        table.add_row(
            Text(row["category"]),
            row.get("origin", "not known"),
            str(row["pictures"]),
            _cell(row["accuracy"]),
            *([_cell(row["accuracy_against"])] if compared else []),
            Text(answer),
        )
    return table


def draw_confusion(path: Path, confusion: Confusion) -> None:
    """Draw which categories are taken for which to a PNG file."""
    from recollect.evaluation.plots import save_figure

    save_figure(confusion_figure(confusion), path)
    say(f"wrote {path}")


def _title(report: dict[str, Any]) -> str:
    lines = []
    if report["categories"]:
        mean = f"; mean over {len(report['categories'])} categories {report['mean_accuracy']:.1f} %"
        lines.append(
            f"{report['accuracy']:.1f} % of {counted(report['pictures'], 'picture')} recognised"
            f"{mean if len(report['categories']) > 1 else ''}"
        )
    if report["called_unknown"]:
        lines.append(f"{counted(report['called_unknown'], 'picture')} of known categories called unknown")
    if "against" in report and report["against"]["categories"]:
        other = report["against"]
        lines.append(
            f"{counted(other['categories'], 'category')} in both stores: {other['accuracy']:.1f} % with this "
            f"one, {other['accuracy_against']:.1f} % {_store_words(other['store'])}"
        )
    asked = [row for row in report["unknown"] if row["accuracy"] is not None]
    if asked:
        count = sum(row["pictures"] for row in asked)
        right = sum(row["accuracy"] * row["pictures"] for row in asked) / count
        lines.append(f"{right:.1f} % of {counted(count, 'picture')} of other things called unknown")
    return "\n".join(lines)


def _store_words(store: str) -> str:
    return "before anything was taught" if store == "memory:" else f"with {store}"


def _cell(accuracy: float | None) -> str:
    return "–" if accuracy is None else f"{accuracy:.1f}"


def _confusion(
    counts: Counter[tuple[str, str | None]], known: Sequence[str], untaught: Sequence[str]
) -> Confusion:
    """Return the counts of the categories that were asked for; those nobody taught come last."""
    asked = {true for true, _ in counts}
    rows = [name for name in (*known, *untaught) if name in asked]
    columns: list[str | None] = [*known]
    if any(said is None for _, said in counts) or asked & {*untaught}:
        columns.append(None)
    row, column = ({name: place for place, name in enumerate(names)} for names in (rows, columns))
    table = np.zeros((len(rows), len(columns)), np.int64)
    for (true, said), count in counts.items():
        table[row[true], column[said]] = count
    return Confusion(table, tuple(rows), tuple(UNKNOWN if name is None else name for name in columns))


def _figures(confusion: Confusion, origins: Mapping[str, str]) -> dict[str, Any]:
    totals, wrong = confusion.counts.sum(axis=1), confusion.wrong()
    right = totals - wrong.sum(axis=1)
    rows: dict[bool, list[dict[str, Any]]] = {True: [], False: []}
    for place, name in enumerate(confusion.true):
        worst = int(wrong[place].argmax())
        share = _percent(wrong[place, worst] / totals[place])
        confused = {"category": confusion.predicted[worst], "share": share} if wrong[place, worst] else None
        origin = {"origin": origins[name]} if name in origins else {}
        accuracy = _percent(right[place] / totals[place])
        figures = {"pictures": int(totals[place]), "accuracy": accuracy, "confused_with": confused}
        rows[name in origins].append({"category": name, **origin, **figures})
    known = np.array([name in origins for name in confusion.true])
    right, totals = right[known], totals[known]
    unknown = [place for place, name in enumerate(confusion.predicted) if name == UNKNOWN]
    return {
        "pictures": int(totals.sum()),
        "called_unknown": int(confusion.counts[known][:, unknown].sum()),
        "accuracy": _percent(right.sum() / totals.sum()) if len(totals) else None,
        "mean_accuracy": _percent((right / totals).mean()) if len(totals) else None,
        "categories": rows[True],
        "unknown": rows[False],
    }


def _compare(report: dict[str, Any], store: str, other: _Answers) -> None:
    """Put the accuracies with another store beside those of a report."""
    both = []
    for row in [*report["categories"], *report["unknown"]]:
        name = other.spelled.get(fold(row["category"]))
        hits = other.counts[name or row["category"], name]
        asked = sum(count for (true, _), count in other.counts.items() if true == (name or row["category"]))
        known = "origin" in row
        row["accuracy_against"] = _percent(hits / asked) if asked and known == (name is not None) else None
        if known and name is not None:
            both.append((row["pictures"], row["accuracy"], row["accuracy_against"]))
    weights, here, there = np.array(both).reshape(-1, 3).T
    report["against"] = {"store": store, "categories": len(both), "pictures": int(weights.sum())}
    for key, values in (("accuracy", here), ("accuracy_against", there)):
        report["against"][key] = round(float(np.average(values, weights=weights)), 2) if both else None


def _warnings(
    folder: Path, untaught: Counter[str], new: Sequence[str], *, same: bool, can_refuse: bool
) -> list[str]:
    warnings = []
    if same:
        warnings.append(
            f"the model was trained on {folder}, so this does not tell how good it is on new pictures"
        )
    if not can_refuse:
        warnings.append(NEVER_UNKNOWN)
    if untaught:
        names = listed([f"{name} ({count})" for name, count in sorted(untaught.items())])
        what = "so 'unknown' is the right answer for them" if can_refuse else "left out with their pictures"
        warnings.append(f"not categories of this model (or hidden), {what}: {names}")
    if new:
        warnings.append(f"taught or renamed by another process while this was measured: {listed(new)}")
    return warnings


def _percent(share: float) -> float:
    return round(100 * float(share), 2)
