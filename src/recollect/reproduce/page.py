"""The page of a reproduction, in Markdown and HTML, from its plan and result files and nothing else."""

import shlex
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from recollect.errors import DataError
from recollect.evaluation.pages import Block, as_html, as_markdown, code, grid, heading, paragraph, picture
from recollect.methods import find_method
from recollect.modelfile import PAPER
from recollect.reproduce.claims import CLAIMS, judge, judge_compactness, overall
from recollect.reproduce.plan import Plan, config_of, read_plan, set_words, tasks_words, usual_preset
from recollect.reproduce.results import CALIBRATED, FIGURES, Compactness, Measured, Place, Results, read_json
from recollect.reproduce.rows import PAPER_IMAGES, SHOTS, TABLE_1, TABLES, TASK_SEED, Row
from recollect.system.disk import write_text

TSNE, PICTURE = "tsne.json", "tsne.png"
_OF_RECIPES = (
    "Muon: the factor of its rate, for convolutions. Smaller first: the share of stage 1 that sees smaller "
    "pictures. Models were selected on tasks of validation categories; AUSUC is the area under the curve of "
    "base against novel accuracy."
)
_OWN = {"extractor": "", "preset": None}  # what recipes differ in that are otherwise the same
_COMPACT = "Cosine features of unseen categories are more compact."


def write_page(folder: Path) -> Path:
    """Write `<table>.md` and `<table>.html` of a reproduction; return the first."""
    plan = read_plan(folder)
    results = Results(folder, plan.rows, plan.seeds)
    title = f"{plan.rows.title} of the paper on {plan.data}"
    blocks = [
        heading(1, title),
        paragraph(_introduction(plan, results)),
        *_unfinished(plan, results),
        _figures(plan, results) if plan.table == TABLE_1.name else _figures_beside(plan, results),
        *(_claims(folder, results) if plan.table == TABLE_1.name else []),
        *_of_calibration(results),
        *(_recipes(plan, results) if plan.table != TABLE_1.name else []),
        *_spread(plan, results),
        *_circumstances(plan, results),
    ]
    path = folder / f"{plan.table}.md"
    write_text(path, as_markdown(blocks))
    write_text(path.with_suffix(".html"), as_html(title, blocks))
    return path


def _introduction(plan: Plan, results: Results) -> str:
    seeds = "one training" if results.seeds == 1 else f"{results.seeds} trainings, with different seeds,"
    seen = [file["images_seen"] for file in results.files.values()] if plan.table == TABLE_1.name else []
    images = f" Every training of an extractor saw about {min(seen):,} images{_small(plan)}." if seen else ""
    return (
        f"Accuracy in percent, mean and 95 % interval over {plan.tasks} tasks of 5 ways on "
        f"{'validation' if plan.rows.part == 'val' else 'test'} categories, the same for every row; {seeds} "
        f"of each model. {_what_varies(results.seeds)}{images}{_notes(plan, results)}{_beside(plan)}"
    )


def _small(plan: Plan) -> str:
    """Return which of its images a stage 1 saw smaller, if any."""
    first = next(training for training in plan.rows.trainings(1) if not training.row.method)
    small = config_of(plan, first, plan.data).stage1.small
    if small is None:
        return ""
    share, size = f"{100 * small.until:.0f} %", f"{small.size}×{small.size} pixels"
    return f"; stage 1 saw {share} of them at {size}, Matching and Prototypical Networks none"


def _notes(plan: Plan, results: Results) -> str:
    """Return what a reader must know of the table and of its rows, each once."""
    looks = map(_looks, results.files.values()) if plan.table == TABLE_1.name else []
    own = [f"Features are means over {words}." for words in looks if words]
    notes = dict.fromkeys([plan.rows.notes, *(row.note for row in plan.rows.rows), *own, *_departures(plan)])
    return "".join(f" {note}" for note in notes if note)


def _recipes(plan: Plan, results: Results) -> list[Block]:
    """Return what each row of the paper's method was made with: extractors have recipes of their own."""
    head = ["", "Batch", "Muon", "Smaller first", "Teacher", "Features", "W_base in stage 2", "Selected by"]
    figures = {"both": "Both", "novel": "Novel", "ausuc": "AUSUC"}
    rows, configs = [], []
    for training in plan.rows.trainings(1):
        files = [] if training.row.method else results.of_row(training.row.key)
        if files:
            config = config_of(plan, training, plan.data)
            configs.append(config)
            recipe, small = config.stage1, config.stage1.small
            rows.append(
                [
                    training.row.title,
                    str(recipe.batch),
                    f"{recipe.muon:g}" if recipe.muon else "–",
                    f"{100 * small.until:.0f} % at {small.size}×{small.size}" if small else "–",
                    Path(recipe.teacher).name if recipe.teacher else "–",
                    f"means over {_looks(files[0])}" if _looks(files[0]) else "of one view",
                    "fixed" if _calibrated(files[0]) else "learned",
                    figures[config.select],
                ]
            )
    if not rows:
        return []
    notes = [_OF_RECIPES]
    if len({config.model_copy(update=_OWN).model_dump_json() for config in configs}) > 1:
        notes.append("The recipes differ, so the rows do not compare extractors alone.")
    if any(row[4] != "–" for row in rows):
        notes.append("The images of a teacher are counted; its minutes are not.")
    return [heading(2, "Recipes"), grid(head, rows), paragraph(" ".join(notes))]


def _of_calibration(results: Results) -> list[Block]:
    words = (
        "Both, calibrated, has the bias that `predict` adds to novel scores. It depends on the number of "
        "shots and was fitted on validation categories."
    )
    return [paragraph(words)] if any(map(_calibrated, results.files.values())) else []


def _spread(plan: Plan, results: Results) -> list[Block]:
    """Return how far trainings of a row differ, where it has several."""
    if results.seeds == 1:
        return []
    head, cells = _cells()
    found = [(row.title, [results.spread(Place(row.key, *cell)) for cell in cells]) for row in plan.rows.rows]
    if len(found) > 1:
        columns = zip(*(line for _, line in found), strict=True)
        found.append(("all rows", [_root_mean_square(column) for column in columns]))
    rows = [[title, *("–" if one is None else f"{one:.2f}" for one in line)] for title, line in found]
    return [
        heading(2, "How far trainings differ"),
        paragraph(
            f"Standard deviations over the {results.seeds} trainings of each row, in points"
            f"{'. For all rows, their root mean square' if len(found) > 1 else ''}."
        ),
        grid(head, rows),
    ]


def _root_mean_square(values: Sequence[float | None]) -> float | None:
    squares = [value**2 for value in values if value is not None]
    return fmean(squares) ** 0.5 if squares else None


def _calibrated(file: dict[str, Any]) -> bool:
    """Return whether Both was measured with the bias, too: where W_base stays in stage 2."""
    return any(CALIBRATED in words for words in file["right"].values())


def _looks(file: dict[str, Any]) -> str:
    """Return over what the feature of a picture is a mean, where it is one."""
    mirrored, shifted = file.get("mirrored", False), file.get("shifted", 0)
    views = {
        (True, True): f"ten views: a picture in place and shifted by {shifted} px to each side, mirrored too",
        (False, True): f"five views: a picture in place and shifted by {shifted} px to each side",
        (True, False): "two views: a picture and its mirror image",
    }
    return views.get((mirrored, bool(shifted)), "")


def _departures(plan: Plan) -> list[str]:
    """Return how the recipes of methods depart from those that were published."""
    configs = [config_of(plan, training, plan.data) for training in plan.rows.trainings(1)]
    return [find_method(config.method).departures(config) for config in configs]


def _beside(plan: Plan) -> str:
    if _on_cifar_fs(plan):
        return (
            " Published: of the same method on CIFAR-FS (Bertinetto et al., 2019); where there is none, that "
            "of the paper's table 2 on mini-ImageNet, which is another problem."
        )
    if not _has_numbers(plan):
        return ""
    if plan.table == TABLE_1.name:
        return " In brackets: the paper's numbers, of C128F and its own recipe."
    return (
        " Beside our figures: those of the paper, and those of a later run that its authors published with "
        "their code (re-run)."
    )


def _unfinished(plan: Plan, results: Results) -> list[Block]:
    done, all_of_them = len(results.files), len(list(plan.rows.trainings(plan.seeds)))
    text = f"Unfinished: {done} of {all_of_them} trainings are done, and the others are missing here."
    return [] if done == all_of_them else [paragraph(text)]


def _cells() -> tuple[list[str], list[tuple[int, str]]]:
    """Return the columns of a table with a column for each number of shots and figure, and their heads."""
    cells = [(shots, figure) for shots in SHOTS for figure in FIGURES]
    return ["", *(f"{shots}-shot {figure.capitalize()}" for shots, figure in cells)], cells


def _figures(plan: Plan, results: Results) -> Block:
    head, cells = _cells()
    rows = [[row.title, *(_cell(plan, results, row, *cell) for cell in cells)] for row in plan.rows.rows]
    return grid(head, rows)


def _cell(plan: Plan, results: Results, row: Row, shots: int, figure: str) -> str:
    text = _measured(results, row, shots, figure)
    if not _has_numbers(plan) or shots not in row.paper:
        return text
    return f"{text} ({row.paper[shots][FIGURES.index(figure)]})"


def _figures_beside(plan: Plan, results: Results) -> Block:
    """Return a line for each number of shots, with columns for published figures beside ours."""
    sources = ["paper", "re-run"] if _has_numbers(plan) else []
    head = ["", "Shots", *(word for figure in FIGURES for word in (figure.capitalize(), *sources))]
    calibrated = any(map(_calibrated, results.files.values()))
    head += ["Both, calibrated"] * calibrated + ["published Novel"] * _on_cifar_fs(plan)
    lines = []
    for row in plan.rows.rows:
        joint = find_method(row.method or PAPER).joint
        for shots in SHOTS:
            line = [row.title, str(shots)]
            for place, figure in enumerate(FIGURES):
                known = [some.get(shots, ("–",) * 3)[place] for some in (row.paper, row.rerun)]
                able = joint or figure == "novel"
                own = _measured(results, row, shots, figure) if able else "no base scores"
                line += [own, *(known if sources else [])]
            line += [_measured(results, row, shots, CALIBRATED)] * calibrated
            line += [_elsewhere(row, shots)] * _on_cifar_fs(plan)
            lines.append(line)
    return grid(head, lines)


def _elsewhere(row: Row, shots: int) -> str:
    """Return what was published of a row on CIFAR-FS, or else on mini-ImageNet."""
    if shots in row.cifar_fs:
        return row.cifar_fs[shots]
    return f"{row.paper[shots][0]} on mini-ImageNet" if shots in row.paper else "–"


def _measured(results: Results, row: Row, shots: int, figure: str) -> str:
    found = results.measured(Place(row.key, shots, figure))
    return "–" if found is None else f"{found.mean:.2f} ± {found.ci95:.2f}"


def _has_numbers(plan: Plan) -> bool:
    """Return whether the paper has numbers for this data."""
    return plan.data.startswith("mini-imagenet:")


def _on_cifar_fs(plan: Plan) -> bool:
    return plan.table != TABLE_1.name and plan.data.startswith("cifar-fs:")


def _what_varies(seeds: int) -> str:
    if seeds == 1:
        return (
            "Intervals are over tasks alone: another training, or other pictures of the base categories, may "
            "change a figure by more."
        )
    return "Intervals are over tasks and trainings, but not over other pictures of the base categories."


def _picture(path: Path) -> Block:
    try:
        return picture(path, "t-SNE of features of unseen categories, cosine and dot product side by side")
    except OSError as error:
        raise DataError(
            f"cannot read {path}: {error.strerror or error}; delete {TSNE} to draw it again"
        ) from error


def _claims(folder: Path, results: Results) -> list[Block]:
    judged = [(claim.text, judge(claim, results), 2) for claim in CLAIMS]
    pictures: list[Block] = []
    if (folder / TSNE).exists():
        words = read_json(folder / TSNE, Compactness)
        judged.append((_COMPACT, judge_compactness(words["silhouettes"]), 4))
        pictures = [_picture(folder / PICTURE), paragraph(_silhouettes(words))]
    overview = grid(
        ["Claim", "Verdict"], [[text, overall([one.verdict for one in found])] for text, found, _ in judged]
    )
    details: list[Block] = []
    for text, found, digits in judged:
        rows = [[one.text, signed(one.found, digits), one.verdict] for one in found]
        details += [paragraph(text), grid(["Comparison", "Difference", "Verdict"], rows)]
    return [
        heading(2, "The paper's claims"),
        paragraph(
            "A comparison holds if the 95 % interval of the paired difference, task by task, lies where the "
            "claim says, does not hold if it lies on the other side, and is undecided between. A claim holds "
            "if all its comparisons hold, and does not hold if any of them does not. Otherwise it is "
            f"undecided or, while rows are missing, not measured. {_accounted(folder, results)}"
        ),
        overview,
        *pictures,
        heading(2, "Every comparison"),
        *details,
    ]


def _accounted(folder: Path, results: Results) -> str:
    several = results.seeds > 1
    words = (
        f"Verdicts account for the choice of tasks{' and for the training' * several}, but not for "
        f"{'the training or ' * (not several)}the choice of base pictures."
    )
    if (folder / TSNE).exists():
        words += (
            f" That of compactness accounts for the choice of categories alone{', with seed 0' * several}."
        )
    return words


def signed(found: Measured | None, digits: int) -> str:
    """Return a difference with its sign and interval."""
    return "–" if found is None else f"{found.mean:+.{digits}f} ± {found.ci95:.{digits}f}"


def _silhouettes(words: dict[str, Any]) -> str:
    parts = [
        f"{how}, cosine {some['cosine']:.3f} and dot product {some['dot product']:.3f}"
        for how, some in words["silhouettes"].items()
    ]
    return (
        f"{words['pictures']} pictures of validation categories. Silhouettes before the projection "
        f"(−1 to 1): {'; '.join(parts)}. Their intervals below are over categories."
    )


def _circumstances(plan: Plan, results: Results) -> list[Block]:
    rows = []
    for row in plan.rows.rows:
        files = results.of_row(row.key)
        if files:
            episodes = [file["episodes_seen"] for file in files if file["episodes_seen"]]
            seen = [file["images_seen"] for file in files]
            rows.append(
                [
                    row.title,
                    _numbers(seen),
                    *([f"{100 * max(seen) / PAPER_IMAGES:.0f} %"] if _has_numbers(plan) else []),
                    _numbers(episodes) or "–",
                    f"{sum(file['training_seconds'] for file in files) / 60:.1f}",
                    f"{sum(file['evaluation_seconds'] for file in files):.0f}",
                ]
            )
    files = list(results.files.values())
    trained = sum(file["training_seconds"] for file in files)
    evaluated = sum(file["evaluation_seconds"] for file in files)
    seeds = "seed 0" if plan.seeds == 1 else f"seeds 0 to {plan.seeds - 1}"
    ratio = [f"of the paper's {PAPER_IMAGES / 1e6:.1f} million"] if _has_numbers(plan) else []
    return [
        heading(2, "How it was made"),
        paragraph(
            f"Machine: {plan.machine}. {plan.versions}. Trainings with {seeds}, tasks with seed {TASK_SEED}. "
            f"{trained / 60:.0f} minutes of training and {evaluated / 60:.0f} of evaluation in all."
            f"{_shared(plan)}{f' {plan.note}' if plan.note else ''}"
        ),
        grid(["", "Images", *ratio, "Episodes", "Minutes of training", "Seconds of evaluation"], rows),
        paragraph("All of it in one command, or one row at a time:"),
        code([_whole_command(plan)]),
        code([command for file in files for command in file["commands"]]),
    ]


def _shared(plan: Plan) -> str:
    if all(row.stage1 is None for row in plan.rows.rows):
        return ""
    return (
        " Minutes are of a row's own training: generators, and methods on features of stage 1, stand on the "
        "stage 1 of another row, and their images are its."
    )


def _whole_command(plan: Plan) -> str:
    words = [f"recollect reproduce {plan.table} {shlex.quote(plan.data)}"]
    if plan.keys != TABLES[plan.table].usual:
        for option, rows in {"extractors": plan.rows.extractors, "methods": plan.rows.methods}.items():
            words += [f"--{option} {','.join(rows)}"] if rows else []
    words += [f"--preset {plan.preset}"] if plan.preset != usual_preset(plan.table, plan.data) else []
    words += [f"--minutes {plan.minutes:g}"] if plan.minutes else []
    words += [f"--note {shlex.quote(plan.note)}"] if plan.note else []
    words += [f"--seeds {plan.seeds}{tasks_words(plan)}", *set_words(plan.settings)]
    return " ".join(words)


def _numbers(values: list[int]) -> str:
    """Return different numbers in the order of the trainings, so of their shots."""
    return " / ".join(f"{value:,}" for value in dict.fromkeys(values))
