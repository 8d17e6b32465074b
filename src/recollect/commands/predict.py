"""`recollect predict`: answers for many pictures, as plain data, as a table and as CSV."""

import csv
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Group
from rich.table import Column, Table
from rich.text import Text

from recollect.commands import pictures
from recollect.commands.opening import Target
from recollect.commands.printing import PathText, common_folder, percent
from recollect.recognition.results import Among
from recollect.system.disk import replacing_file
from recollect.system.progress import say

COLOURS = {"base": "cyan", "novel": "green", "unknown": "yellow"}
_BAR = 12  # characters of a whole bar
_EIGHTHS = " ▏▎▍▌▋▊▉"


def predict(
    target: Target,
    paths: Sequence[Path],
    top: int = 5,
    among: Among = "all",
    *,
    unknown: bool = True,
    recursive: bool = False,
    skip_bad: bool = False,
) -> tuple[dict[str, Any], list[pictures.Named]]:
    """Return the result of `recollect predict`, and the pictures that it speaks of.

    `search` says how pictures were compared with taught categories: exact, with each of them, or through an
    index. `predictions` has for each `picture` whether it is `unknown`, and its `answers`, the best first:
    each with `category`, `probability`, and its `origin`: base, novel, or unknown for one that names none.
    `left_out`, where there are any, has each bad `picture` with the `reason`.
    """
    found = pictures.find(paths, recursive=recursive)
    prepare = target.described()
    predictions: list[dict[str, Any]] = []
    answered: list[pictures.Named] = []
    bad: list[dict[str, str]] = []
    search = "exact"
    with target.open() as recognizer:
        for some, pixels in pictures.read(found, prepare, "predicting", skip_bad=skip_bad, bad=bad):
            answered += some
            answers = recognizer.predict(pixels, top, among, unknown=unknown)
            search = recognizer.search
            predictions += [
                {
                    "picture": pictures.name_of(picture),
                    "unknown": given[0].origin == "unknown",
                    "answers": [asdict(answer) for answer in given],
                }
                for picture, given in zip(some, answers, strict=True)
            ]
    report = {"model": target.name, "search": search, "predictions": predictions}
    report |= {"left_out": bad} if bad else {}
    return report, answered


def write_csv(path: Path, report: dict[str, Any]) -> None:
    """Write a row for each picture: its path, then category, probability and origin of each answer."""
    most = max(len(one["answers"]) for one in report["predictions"])
    parts = ("category", "probability", "origin")
    names = [f"{part}_{rank}" if rank > 1 else part for rank in range(1, most + 1) for part in parts]
    with (
        replacing_file(path) as part,
        part.open("w", encoding="utf-8", errors="backslashreplace", newline="") as file,
    ):
        writer = csv.writer(file)
        writer.writerow(["picture", *names])
        for one in report["predictions"]:
            rounded = [{**answer, "probability": f"{answer['probability']:.6f}"} for answer in one["answers"]]
            writer.writerow([one["picture"], *(answer[name] for answer in rounded for name in parts)])
    say(f"wrote {path}")


def predict_table(report: dict[str, Any]) -> Group:
    """Return every answer for a single picture, or a row for each of many, with the best answers."""
    predictions = report["predictions"]
    columns = ("category", Column("probability", min_width=_BAR), Column(justify="right"), "origin")
    if len(predictions) == 1:
        table = Table(*columns, header_style="")
        for answer in predictions[0]["answers"]:
            table.add_row(*_cells(answer))
        return Group(PathText(predictions[0]["picture"]), table)
    table = Table("picture", *columns, Column("then", style="dim"), header_style="")
    folder = common_folder([one["picture"] for one in predictions])
    for one in predictions:
        first, *others = one["answers"]
        then = ", ".join(f"{other['category']} {percent(other['probability'])}" for other in others[:2])
        name = PathText(one["picture"].removeprefix(f"{folder}/") if folder else one["picture"])
        table.add_row(name, *_cells(first), Text(then))
    return Group(*([PathText(folder)] if folder else []), table)


def _cells(answer: dict[str, Any]) -> tuple[Text, Text, str, str]:
    """Return an answer's category, its probability as a bar and in words, and its origin."""
    whole, part = divmod(round(answer["probability"] * _BAR * 8), 8)
    texts = (answer["category"], "█" * whole + _EIGHTHS[part].strip())
    name, bar = (Text(text, style=COLOURS[answer["origin"]]) for text in texts)
    return name, bar, percent(answer["probability"]), answer["origin"]
