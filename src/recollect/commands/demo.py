"""`recollect demo`: train, teach and compare on built-in characters, in about two minutes."""

import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from matplotlib.figure import Figure
from rich.console import Group
from rich.table import Column, Table
from rich.text import Text

from recollect.backends.torch import TorchBackend
from recollect.commands.printing import require_writable
from recollect.data.catalogue import load_data
from recollect.data.imageset import ImageSet
from recollect.data.splits import Split
from recollect.data.tasks import TaskShape
from recollect.errors import Stopped
from recollect.evaluation.evaluate import model_figures
from recollect.evaluation.metrics import summary
from recollect.evaluation.pages import as_html, code, grid, heading, paragraph, picture
from recollect.evaluation.plots import RIGHT, WRONG, grouped_bars, save_figure, show_picture
from recollect.evaluation.tsne import project, sample, tsne_figure
from recollect.features import FeatureSet, extract
from recollect.model.model import Model
from recollect.modelfile import load_model
from recollect.recognition.recognizer import Recognizer
from recollect.system.disk import write_text
from recollect.training.config import make_config, read_preset
from recollect.training.loop import stop_on_signals
from recollect.training.runfolder import RunFolder
from recollect.training.stage2 import make_views
from recollect.training.train import learn_stage_one, learn_stage_two, resolve

TASKS = 600
SHOTS = (1, 5)
SHOWN = 7  # query pictures of each taught character in the picture

_HEADINGS = ("shots", "generator", "Novel", "Base", "Both", "Both − mean (paired)")
_WORDS = (
    "Each task teaches five unseen characters from 1 or 5 pictures each (shots). Novel: other pictures of "
    "the five, among the five. Base: pictures of the 64 trained characters, among the 64. Both: all these "
    "pictures, among all 69. The generator makes the vector of a taught character: the mean of its pictures, "
    "or learned (average, attention). ± is the 95 % confidence interval; differences are paired by task."
)
Pixels = npt.NDArray[np.uint8]


def run_demo(out: Path, **options: Any) -> dict[str, Any]:  # noqa: ANN401
    """Train, compare the generators, teach five characters, draw: the result of `recollect demo`.

    The options are those of a training: `seed`, `threads`, `device`.
    """
    require_writable(out, folder=True)
    began = time.perf_counter()
    split = load_data("glyphs")
    try:
        models = train_generators(split, out, **options)
    except Stopped as reason:
        raise Stopped(f"{reason}; run the same command again to resume") from reason
    trained = time.perf_counter() - began
    test = split.test
    if test is None:
        raise ValueError("the built-in data has no test categories")
    novel = extract(models["attention"], test)
    comparison = compare(models, novel, extract(models["attention"], split.base_test))
    teaching = teach_five(models["attention"], split, test)
    pictures = {
        "demo.png": teaching_figure(teaching, comparison),
        "tsne.png": tsne_figure(project(sample(novel, each=30), models["attention"].classifier)),
    }
    for name, figure in pictures.items():
        save_figure(figure, out / name)
    result = {
        "model": str(out / "model"),
        "report": str(out / "report.html"),
        "pictures": [str(out / name) for name in pictures],
        "tasks": TASKS,
        "generators": comparison,
        "taught": teaching.facts,
        "training_seconds": round(trained, 1),
        "seconds": round(time.perf_counter() - began, 1),
    }
    write_text(out / "report.html", _report(result, [out / name for name in pictures]))
    return result


def train_generators(split: Split, out: Path, **options: Any) -> dict[str, Model]:  # noqa: ANN401
    """Train stage 1 once, and stage 2 once for each generator that learns; return the three models.

    Resumes what was interrupted, and starts again where everything is finished.
    """
    config = resolve(make_config(read_preset("demo"), {"data": "glyphs", **options}), split)
    first, second = RunFolder(out / "model"), RunFolder(out / "average")
    other = {"generator": "average", "stage1_from": str(first.path)}
    configs = {first: config, second: make_config(config.model_dump(), other)}
    left = [folder for folder, own in configs.items() if not folder.finished(own)] or [*configs]
    for folder in left:
        folder.restart(configs[folder])
    with stop_on_signals() as stop:
        views = make_views(learn_stage_one(config, split, first, stop), split, config, stop)
        for folder in left:
            model = learn_stage_one(configs[folder], split, folder, stop)
            learn_stage_two(model, configs[folder], split, folder, stop, views)
    return {
        "mean": load_model(first.stage_one_model),
        "average": load_model(second.model),
        "attention": load_model(first.model),
    }


def compare(models: dict[str, Model], novel: FeatureSet, base: FeatureSet) -> list[dict[str, Any]]:
    """Evaluate every generator on the same tasks; differences from plain means are paired by task."""
    rows = []
    for shots in SHOTS:
        found = {
            kind: model_figures(model, novel, base, TaskShape(5, shots, 15), TASKS, seed=0)
            for kind, model in models.items()
        }
        rows += [
            {
                "shots": shots,
                "generator": kind,
                **{name: summary(figures[name]) for name in ("novel", "base", "both")},
                "both_minus_mean": summary(figures["both"] - found["mean"]["both"]),
            }
            for kind, figures in found.items()
        ]
    return rows


class Teaching(NamedTuple):
    """Five characters taught from one picture each, and the answers for other pictures of them."""

    facts: dict[str, Any]
    examples: dict[str, Pixels]  # the picture each was taught from
    queries: dict[str, Pixels]  # other pictures of each (n, 32, 32, 3)
    answers: dict[str, list[str]]


def teach_five(model: Model, split: Split, novel: ImageSet) -> Teaching:
    """Teach five test characters from one picture each; compare base scores before and after."""
    recognizer = Recognizer(TorchBackend(model))
    base_pixels = split.base_test.take(np.arange(len(split.base_test)))
    before = recognizer.scores(base_pixels).base
    examples, queries = {}, {}
    for label, name in list(enumerate(novel.categories))[::4]:  # one of every few scripts
        pixels = novel.take(np.flatnonzero(novel.labels == label))
        examples[name], queries[name] = pixels[0], pixels[1:]
        recognizer.teach(name, pixels[0])
    after, taught, _ = recognizer.scores(base_pixels)
    labels = split.base_test.labels
    answers = {
        name: [best[0].category for best in recognizer.predict(pixels, top=1)]
        for name, pixels in queries.items()
    }
    right = [answer == name for name, given in answers.items() for answer in given]
    facts = {
        "characters": list(examples),
        "base_scores_bit_identical": bool(np.array_equal(before, after)),
        "base_accuracy_before": _percent(before.argmax(1) == labels),
        "base_accuracy_after": _percent(np.concatenate([after, taught], axis=1).argmax(1) == labels),
        "novel_accuracy_in_joint": _percent(np.array(right)),
        "choices": len(recognizer.categories()),
    }
    for name in examples:
        recognizer.forget(name)
    facts["base_scores_after_forgetting_bit_identical"] = bool(
        np.array_equal(before, recognizer.scores(base_pixels)[0])
    )
    return Teaching(facts, examples, queries, answers)


def teaching_figure(teaching: Teaching, comparison: list[dict[str, Any]]) -> Figure:
    """Draw the taught characters with answers for other pictures of them, and the generators' accuracies."""
    figure = Figure(figsize=(11, 8.2))
    upper, lower = np.asarray(figure.subfigures(2, 1, height_ratios=(1.9, 1)))
    grid = upper.subplots(
        len(teaching.examples), SHOWN + 1, gridspec_kw={"hspace": 0.45, "top": 0.92, "bottom": 0.02}
    )
    choices = teaching.facts["choices"]
    upper.suptitle(
        f"Taught from the one picture on the left; answers among {choices} characters", fontsize=11
    )
    for row, (name, example) in zip(grid, teaching.examples.items(), strict=True):
        show_picture(row[0], example, name)
        for axes, pixels, answer in zip(
            row[1:], teaching.queries[name], teaching.answers[name], strict=False
        ):
            show_picture(axes, pixels, answer, RIGHT if answer == name else WRONG)
    for axes, shots in zip(lower.subplots(1, 2), SHOTS, strict=True):
        rows = [row for row in comparison if row["shots"] == shots]
        names = ("novel", "base", "both")
        grouped_bars(
            axes,
            {row["generator"]: [row[name]["mean"] for name in names] for row in rows},
            {row["generator"]: [row[name]["ci95"] for name in names] for row in rows},
            ("Novel (5-way)", "Base (64-way)", "Both (69-way)"),
        )
        axes.set_ylabel(f"accuracy, %, {shots} shot{'s' if shots > 1 else ''}", fontsize=9)
    return figure


def demo_text(result: dict[str, Any]) -> Group:
    """Return what the demo prints."""
    columns = (Column(name, justify="left" if name == "generator" else "right") for name in _HEADINGS)
    title = f"Unseen characters, {result['tasks']} tasks, accuracy in %"
    table = Table(*columns, title=title, title_justify="left")
    for row in _rows(result, digits=1):
        table.add_row(*row)
    lines = [
        _WORDS,
        "",
        *_teaching_lines(result["taught"]),
        "",
        f"Report: {result['report']}",
        "Try next:",
        *_next_steps(result),
    ]
    return Group(table, Text("\n".join(lines)))


def _teaching_lines(facts: dict[str, Any]) -> list[str]:
    words = {True: "bit-identical", False: "CHANGED"}
    identical = words[facts["base_scores_bit_identical"]]
    restored = words[facts["base_scores_after_forgetting_bit_identical"]]
    before, after = facts["base_accuracy_before"], facts["base_accuracy_after"]
    recognised, choices = facts["novel_accuracy_in_joint"], facts["choices"]
    return [
        f"Taught {', '.join(facts['characters'])} from one picture each.",
        f"Their other pictures are recognised in {recognised:.1f} % of cases, among {choices} characters.",
        f"Base scores after teaching: {identical}; after forgetting again: {restored}.",
        f"Base characters recognised among all: {before:.1f} % before teaching, {after:.1f} % after.",
    ]


def _next_steps(result: dict[str, Any]) -> list[str]:
    return [
        f"  recollect evaluate {result['model']} glyphs --shots 1,2,5,10",
        "  recollect train FOLDER --extractor efficientnet-lite0 --out runs/mine     (a folder per category)",
    ]


def _report(result: dict[str, Any], pictures: list[Path]) -> str:
    title = "Learning characters without forgetting"
    words = (
        "A c32f network learned 64 characters of eleven scripts; then it met characters it had never seen. "
        f"Accuracy in % over {result['tasks']} tasks. {_WORDS}"
    )
    took = f"Training took {result['training_seconds']:.0f} s, everything {result['seconds']:.0f} s."
    blocks = [
        heading(1, title),
        paragraph(words),
        grid(_HEADINGS, _rows(result, digits=2)),
        heading(2, "Five characters, one picture each"),
        *map(paragraph, _teaching_lines(result["taught"])),
        *(picture(path, path.stem) for path in pictures),
        heading(2, "Try next"),
        code([step.strip() for step in _next_steps(result)]),
        paragraph(took),
    ]
    return as_html(title, blocks)


def _rows(result: dict[str, Any], digits: int) -> list[list[str]]:
    """Return the cells below `_HEADINGS`."""

    def cell(figure: dict[str, float], sign: str = "") -> str:
        return f"{figure['mean']:{sign}.{digits}f} ± {figure['ci95']:.{digits}f}"

    return [
        [
            str(row["shots"]),
            row["generator"],
            *(cell(row[name]) for name in ("novel", "base", "both")),
            "" if row["generator"] == "mean" else cell(row["both_minus_mean"], "+"),
        ]
        for row in result["generators"]
    ]


def _percent(right: npt.NDArray[np.bool_]) -> float:
    return round(100 * float(right.mean()), 2)
