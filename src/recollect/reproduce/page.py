"""The page of a reproduction, in Markdown and HTML, from its plan and result files and nothing else."""

import base64
import html
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from recollect.errors import DataError
from recollect.reproduce.claims import CLAIMS, Judged, judge, judge_compactness, overall
from recollect.reproduce.plan import Plan, read_plan, set_words, tasks_words
from recollect.reproduce.results import FIGURES, Compactness, Measured, Place, Results, read_json
from recollect.reproduce.rows import SHOTS, TABLE_1, TASK_SEED, Row
from recollect.system.disk import read_kept_bytes, write_text

TSNE, PICTURE = "tsne.json", "tsne.png"
_COMPACT = "Cosine features of unseen categories are more compact."
_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 72rem; margin: 2rem auto; color: #222 }
table { border-collapse: collapse; margin: 1rem 0; font-size: 0.9rem }
th, td { border-bottom: 1px solid #ddd; padding: 0.25rem 0.6rem; text-align: right; white-space: nowrap }
th:first-child, td:first-child { text-align: left; white-space: normal }
th { border-bottom: 2px solid #888 }
pre { background: #f5f5f5; padding: 0.8rem; overflow-x: auto; font-size: 0.8rem }
img { max-width: 100% }
"""


class Heading(NamedTuple):
    """A heading."""

    level: int
    text: str


class Paragraph(NamedTuple):
    """A few sentences."""

    text: str


class Grid(NamedTuple):
    """A table."""

    head: Sequence[str]
    rows: Sequence[Sequence[str]]


class Code(NamedTuple):
    """Commands, one in a line."""

    lines: Sequence[str]


class Image(NamedTuple):
    """A picture in the page's folder."""

    file: str
    text: str


Block = Heading | Paragraph | Grid | Code | Image


def write_page(folder: Path) -> Path:
    """Write `<table>.md` and `<table>.html` of a reproduction; return the first."""
    plan = read_plan(folder)
    blocks = page(folder)
    path = folder / f"{plan.table}.md"
    write_text(path, as_markdown(blocks))
    write_text(path.with_suffix(".html"), as_html(blocks, folder))
    return path


def page(folder: Path) -> list[Block]:
    """Return the page of a reproduction, from the files in its folder."""
    plan = read_plan(folder)
    results = Results(folder, plan.rows, plan.seeds)
    blocks: list[Block] = [
        Heading(1, f"{plan.rows.title} of the paper on {plan.data}"),
        Paragraph(_introduction(plan)),
        *_unfinished(plan, results),
        _figures(plan, results),
    ]
    if plan.rows is TABLE_1:
        blocks += _claims(folder, results, plan.seeds)
    return [*blocks, *_circumstances(plan, results)]


def _introduction(plan: Plan) -> str:
    seeds = "one training" if plan.seeds == 1 else f"{plan.seeds} trainings with different seeds"
    beside = " In brackets: the paper's numbers, of C128F and its own recipe." if _published(plan) else ""
    return (
        f"Accuracy in percent, mean and 95 % interval over {plan.tasks} tasks of 5 ways on "
        f"{'validation' if plan.rows.part == 'val' else 'test'} categories, the same for every row; {seeds} "
        f"for each cell. Every training of an extractor saw about {plan.images:,} images. Generators, "
        "Matching and Prototypical Networks were trained for 1 and for 5 shots apart, as in the paper. "
        f"Models were selected by Novel on other tasks of validation categories.{beside} {plan.rows.notes}"
    ).rstrip()


def _unfinished(plan: Plan, results: Results) -> list[Block]:
    done, all_of_them = len(results.files), len(list(plan.rows.trainings(plan.seeds)))
    if done == all_of_them:
        return []
    return [
        Paragraph(f"Unfinished: {done} of {all_of_them} trainings are done, and the others are missing here.")
    ]


def _figures(plan: Plan, results: Results) -> Grid:
    head = ["", *(f"{shots}-shot {figure.capitalize()}" for shots in SHOTS for figure in FIGURES)]
    rows = []
    for row in plan.rows.rows:
        cells = [_cell(plan, results, row, shots, figure) for shots in SHOTS for figure in FIGURES]
        rows.append([row.title, *cells])
    return Grid(head, rows)


def _cell(plan: Plan, results: Results, row: Row, shots: int, figure: str) -> str:
    text = _measured(results.measured(Place(row.key, shots, figure)))
    if not _published(plan) or shots not in row.paper:
        return text
    return f"{text} ({row.paper[shots][FIGURES.index(figure)]})"


def _published(plan: Plan) -> bool:
    """Return whether the paper has numbers for this data."""
    return plan.data.startswith("mini-imagenet:")


def _measured(found: Measured | None) -> str:
    return "–" if found is None else f"{found.mean:.2f} ± {found.ci95:.2f}"


def _what_varies(seeds: int) -> str:
    if seeds == 1:
        return (
            "There is one training of each row: intervals are of the tasks alone, and say nothing of how far "
            "another training would differ."
        )
    return f"Intervals are of the tasks and of the {seeds} trainings of each row."


def _claims(folder: Path, results: Results, seeds: int) -> list[Block]:
    judged = [(claim.text, judge(claim, results), 2) for claim in CLAIMS]
    pictures: list[Block] = []
    if (folder / TSNE).exists():
        words = read_json(folder / TSNE, Compactness)
        judged.append((_COMPACT, judge_compactness(words["silhouettes"]), 4))
        pictures = [
            Image(PICTURE, "t-SNE of features of unseen categories, cosine and dot product side by side"),
            Paragraph(_silhouettes(words)),
        ]
    overview = Grid(
        ["Claim", "Verdict"], [[text, overall([one.verdict for one in found])] for text, found, _ in judged]
    )
    details: list[Block] = []
    for text, found, digits in judged:
        details += [
            Paragraph(text),
            Grid(["Comparison", "Difference", "Verdict"], _compared(found, digits)),
        ]
    return [
        Heading(2, "The paper's claims"),
        Paragraph(
            "A comparison holds if the 95 % interval of the paired difference, task by task, lies where the "
            "claim says, does not hold if it lies on the other side, and is undecided between. A claim holds "
            f"if all its comparisons do; one that does not refutes it. {_what_varies(seeds)}"
        ),
        overview,
        *pictures,
        Heading(2, "Every comparison"),
        *details,
    ]


def _compared(found: list[Judged], digits: int) -> list[list[str]]:
    return [
        [
            one.text,
            "–" if one.found is None else f"{one.found.mean:+.{digits}f} ± {one.found.ci95:.{digits}f}",
            one.verdict,
        ]
        for one in found
    ]


def _silhouettes(words: dict[str, Any]) -> str:
    parts = [
        f"{how}, cosine {some['cosine']:.3f} and dot product {some['dot product']:.3f}"
        for how, some in words["silhouettes"].items()
    ]
    return (
        f"{words['pictures']} pictures of validation categories. Silhouettes before the projection "
        f"(−1 to 1): {'; '.join(parts)}."
    )


def _circumstances(plan: Plan, results: Results) -> list[Block]:
    rows = []
    for row in plan.rows.rows:
        files = results.of_row(row.key)
        if files:
            episodes = {file["episodes_seen"] for file in files if file["episodes_seen"]}
            rows.append(
                [
                    row.title,
                    _numbers({file["images_seen"] for file in files}),
                    _numbers(episodes) or "–",
                    f"{sum(file['training_seconds'] for file in files) / 60:.1f}",
                    f"{sum(file['evaluation_seconds'] for file in files):.0f}",
                ]
            )
    files = list(results.files.values())
    trained = sum(file["training_seconds"] for file in files)
    evaluated = sum(file["evaluation_seconds"] for file in files)
    seeds = "seed 0" if plan.seeds == 1 else f"seeds 0 to {plan.seeds - 1}"
    return [
        Heading(2, "How it was made"),
        Paragraph(
            f"Machine: {plan.machine}. {plan.versions}. Trainings with {seeds}, tasks with seed {TASK_SEED}. "
            f"{trained / 60:.0f} minutes of training and {evaluated / 60:.0f} of evaluation in all. "
            "Minutes are of a row's own training: generators, and methods on features of stage 1, stand on "
            "the stage 1 of another row, and their images are its."
        ),
        Grid(["", "Images", "Episodes", "Minutes of training", "Seconds of evaluation"], rows),
        Paragraph("All of it in one command, or each row by its own:"),
        Code([_whole_command(plan)]),
        Code([command for file in files for command in file["commands"]]),
    ]


def _whole_command(plan: Plan) -> str:
    words = [f"recollect reproduce {plan.table} {shlex.quote(plan.data)}"]
    words += [f"--preset {plan.preset}"] if plan.preset else []
    words += [f"--minutes {plan.minutes:g}"] if plan.minutes else []
    words += [f"--seeds {plan.seeds}{tasks_words(plan)}", *set_words(plan.settings)]
    return " ".join(words)


def _numbers(values: set[int]) -> str:
    return " / ".join(f"{value:,}" for value in sorted(values))


def as_markdown(blocks: Sequence[Block]) -> str:
    """Return blocks as Markdown."""
    parts = []
    for block in blocks:
        match block:
            case Heading(level, text):
                parts.append(f"{'#' * level} {text}")
            case Paragraph(text):
                parts.append(text)
            case Grid(head, rows):
                ruled = [head, ["---", *["--:"] * (len(head) - 1)], *rows]
                parts.append("\n".join(f"| {' | '.join(row)} |" for row in ruled))
            case Code(lines):
                parts.append("\n".join(f"    {line}" for line in lines))
            case Image(file, text):
                parts.append(f"![{text}]({file})")
    return "\n\n".join(parts) + "\n"


def as_html(blocks: Sequence[Block], folder: Path) -> str:
    """Return blocks as one HTML file, pictures inside it."""
    title = next((block.text for block in blocks if isinstance(block, Heading)), "")
    parts = []
    for block in blocks:
        match block:
            case Heading(level, text):
                parts.append(f"<h{level}>{html.escape(text)}</h{level}>")
            case Paragraph(text):
                parts.append(f"<p>{html.escape(text)}</p>")
            case Grid(head, rows):
                table = [_html_row(head, "th"), *(_html_row(row, "td") for row in rows)]
                parts.append("<table>\n" + "\n".join(table) + "\n</table>")
            case Code(lines):
                parts.append(f"<pre>{html.escape(chr(10).join(lines))}</pre>")
            case Image(file, text):
                data = base64.b64encode(_content(folder / file)).decode()
                parts.append(f'<img alt="{html.escape(text)}" src="data:image/png;base64,{data}">')
    return (
        f'<!doctype html>\n<html lang="en">\n<meta charset="utf-8">\n<title>{html.escape(title)}</title>\n'
        f"<style>{_STYLE}</style>\n" + "\n".join(parts) + "\n</html>\n"
    )


def _content(picture: Path) -> bytes:
    try:
        return read_kept_bytes(picture)
    except OSError as error:
        raise DataError(
            f"cannot read {picture}: {error.strerror or error}; delete {TSNE} to draw it again"
        ) from error


def _html_row(cells: Sequence[str], tag: str) -> str:
    return "<tr>" + "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in cells) + "</tr>"
