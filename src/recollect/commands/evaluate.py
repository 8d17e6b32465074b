"""`recollect evaluate`: the report of a model on few-shot tasks, and the curve beside it."""

from pathlib import Path
from typing import Any

from rich.table import Column, Table

from recollect.commands.printing import json_text
from recollect.errors import RecollectError
from recollect.evaluation.evaluate import evaluation_report
from recollect.methods import find_method
from recollect.modelfile import read_header
from recollect.system import machine
from recollect.system.disk import write_text
from recollect.system.progress import say

_COLUMNS = {
    "novel": "Novel",
    "base": "Base",
    "both": "Both",
    "both_calibrated": "Both, calibrated",
    "novel_in_joint": "novel in joint",
    "base_in_joint": "base in joint",
    "harmonic": "harmonic",
    "delta": "Δ",
    "ausuc": "AUSUC",
}

_CAPTION = (
    "Novel, Base: pictures of novel and of base categories, each among their own. Both, in joint: among all "
    "of them. Calibrated: with the bias that `predict` adds to the scores of taught categories. Δ: what the "
    "joint choice costs. AUSUC: area under the curve of --plot."
)


def evaluate(
    model: Path,
    data: str,
    *,
    shots: str | None,
    threads: int | None,
    curve: bool,
    **options: Any,  # noqa: ANN401
) -> tuple[dict[str, Any], dict[int, Any]]:
    """Return the result of `recollect evaluate`, and what `--plot` draws if `curve` asks for it."""
    method = find_method(read_header(model).method)
    if curve and not method.joint:
        raise RecollectError(f"--plot: {method.title} do not score base categories, so there is no curve")
    numbers = None if shots is None else parse_shots(shots)
    machine.prepare(threads)
    kept: dict[int, Any] = {}
    report = evaluation_report(model, data, shots=numbers, keep=kept if curve else None, by=method, **options)
    return report, kept


def evaluation_table(report: dict[str, Any]) -> Table:
    """Return a table of every figure, in percent, with its 95 % interval."""
    title = f"{report['tasks']} tasks with {report['ways']} novel categories each, accuracy in %"
    columns = (Column(heading, justify="right") for heading in ("shots", *_COLUMNS.values()))
    table = Table(*columns, title=title, title_justify="left", caption=_CAPTION, caption_justify="left")
    for result in report["results"]:
        table.add_row(str(result["shots"]), *(_cell(result[name]) for name in _COLUMNS))
    return table


def write_report(path: Path, report: dict[str, Any]) -> None:
    """Write the report as JSON."""
    write_text(path, json_text(report))
    say(f"wrote {path}")


def draw_curve(path: Path, report: dict[str, Any], kept: dict[int, Any]) -> None:
    """Draw base against novel accuracy to a PNG file."""
    from recollect.evaluation.curves import joint_figure
    from recollect.evaluation.plots import save_figure

    save_figure(joint_figure(report, kept), path)
    say(f"wrote {path}")


def parse_shots(text: str) -> list[int]:
    """Return the numbers of --shots."""
    try:
        numbers = [int(part) for part in text.split(",")]
    except ValueError:
        numbers = []
    if not numbers or min(numbers) < 1:
        raise RecollectError(f"--shots {text[:40]}: write numbers from 1 up with commas between, such as 1,5")
    return numbers


def _cell(figure: dict[str, float] | None) -> str:
    return "–" if figure is None else f"{figure['mean']:.2f} ± {figure['ci95']:.2f}"
