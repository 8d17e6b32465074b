"""Results of evaluations for the screen."""

from typing import Any

from rich.table import Table

_COLUMNS = {
    "novel": "Novel",
    "base": "Base",
    "both": "Both",
    "novel_in_joint": "novel in joint",
    "base_in_joint": "base in joint",
    "harmonic": "harmonic",
    "delta": "Δ",
    "ausuc": "AUSUC",
}

_CAPTION = (
    "Novel, Base: pictures of novel and of base categories, each among their own. Both, in joint: among all "
    "of them. Δ: what the joint choice costs. AUSUC: area under the curve of --plot."
)


def evaluation_table(report: dict[str, Any]) -> Table:
    """Return a table of every figure, in percent, with its 95 % interval."""
    title = f"{report['tasks']} tasks with {report['ways']} novel categories each, accuracy in %"
    table = Table(title=title, title_justify="left", caption=_CAPTION, caption_justify="left")
    table.add_column("shots", justify="right")
    for heading in _COLUMNS.values():
        table.add_column(heading, justify="right")
    for result in report["results"]:
        cells = [_cell(result[name]) for name in _COLUMNS]
        table.add_row(str(result["shots"]), *cells)
    return table


def tsne_text(report: dict[str, Any]) -> str:
    """Return what `recollect plot tsne` prints."""
    shown = f"{report['pictures']} pictures of {len(report['shown'])} {report['categories']} categories"
    return f"{report['picture']}\n{shown}, silhouette {report['silhouette']:.3f}"


def _cell(figure: dict[str, float] | None) -> str:
    return "–" if figure is None else f"{figure['mean']:.2f} ± {figure['ci95']:.2f}"
