"""What the command predict does: answers for many pictures, as plain data and as a table."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from recollect.commands.printing import PathText, common_folder, percent
from recollect.recognition.recognizer import Among, Recognizer
from recollect.system.progress import bar

COLOURS = {"base": "cyan", "novel": "green", "unknown": "yellow"}
_AT_ONCE = 32  # pictures in memory at a time
_BAR = 12  # characters of a whole bar
_EIGHTHS = " ▏▎▍▌▋▊▉"


def predict_report(
    recognizer: Recognizer,
    model: Path,
    pictures: Sequence[Path],
    top: int = 5,
    among: Among = "all",
    *,
    unknown: bool = True,
) -> dict[str, Any]:
    """Return the result of `recollect predict`.

    `predictions` has for each `picture` whether it is `unknown`, and its `answers`, the best first: each
    with `category`, `probability`, and its `origin`: base, novel, or unknown for an answer that names none.
    """
    answers = []
    with bar("predicting", len(pictures)) as advance:
        for start in range(0, len(pictures), _AT_ONCE):
            some = pictures[start : start + _AT_ONCE]
            answers += recognizer.predict(some, top, among, unknown=unknown)
            advance(len(some), "")
    predictions = []
    for picture, given in zip(pictures, answers, strict=True):
        told: list[dict[str, Any]] = [
            {"category": one.category, "probability": one.probability, "origin": one.origin} for one in given
        ]
        nameless = told[0]["origin"] == "unknown"
        predictions.append({"picture": str(picture), "unknown": nameless, "answers": told})
    return {"model": str(model), "predictions": predictions}


def predict_table(report: dict[str, Any]) -> Group:
    """Return every answer for a single picture, or a row for each of many, with the best answers."""
    predictions = report["predictions"]
    table = Table(header_style="")
    if len(predictions) == 1:
        table.add_column("category")
        _add_probability(table)
        table.add_column("origin")
        for answer in predictions[0]["answers"]:
            table.add_row(_name(answer), *_probability(answer), answer["origin"])
        return Group(PathText(predictions[0]["picture"]), table)
    folder = common_folder([one["picture"] for one in predictions])
    table.add_column("picture")
    table.add_column("category")
    _add_probability(table)
    table.add_column("origin")
    table.add_column("then", style="dim")
    for one in predictions:
        first, *others = one["answers"]
        then = ", ".join(f"{other['category']} {percent(other['probability'])}" for other in others[:2])
        name = PathText(one["picture"].removeprefix(f"{folder}/") if folder else one["picture"])
        table.add_row(name, _name(first), *_probability(first), first["origin"], Text(then))
    return Group(*([PathText(folder)] if folder else []), table)


def _add_probability(table: Table) -> None:
    table.add_column("probability", min_width=_BAR)
    table.add_column("", justify="right")


def _name(answer: dict[str, Any]) -> Text:
    return Text(answer["category"], style=COLOURS[answer["origin"]])


def _probability(answer: dict[str, Any]) -> tuple[Text, str]:
    whole, part = divmod(round(answer["probability"] * _BAR * 8), 8)
    filled = "█" * whole + _EIGHTHS[part].strip()
    return Text(filled, style=COLOURS[answer["origin"]]), percent(answer["probability"])
