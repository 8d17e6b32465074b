"""What the answers of a recogniser are worth, on test categories that nothing was tuned on.

    python -m benchmarks.answers MODEL DATA --out FOLDER

writes `answers.json` and three pictures: every test category taught one after the other, the calibration
error before and after, unknown pictures among known ones; and Both with and without the bias.
"""

import argparse
import json
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

import numpy as np
import torch
from matplotlib.figure import Figure

from recollect.data.catalogue import load_data
from recollect.data.tasks import TaskShape, task_sampler
from recollect.errors import DataError
from recollect.evaluation.evaluate import figures, model_scores
from recollect.evaluation.metrics import summary
from recollect.evaluation.plots import save_figure
from recollect.evaluation.reliability import auroc, calibration_error, reliability
from recollect.features import cached_features
from recollect.model.spec import MOST_SHOTS, bias_at
from recollect.modelfile import load_model, read_header
from recollect.recognition.scoring import clearance
from recollect.system import machine
from recollect.system.disk import write_text
from recollect.training.calibration import FEW_SHOTS, WAYS, calibrate, joint_queries, score_tasks

SHOTS = 5  # pictures that a category is taught from
LESSONS = 10  # random orders and pictures
TASKS = 600
BIASED_WAYS = (1, 5, 20)  # for which Both is reported with and without the bias
BLUE, ORANGE, GREEN, GREY = "#2f6fb5", "#d9822b", "#2e8b57", "#667085"


@dataclass(frozen=True)
class Lesson:
    """An order of categories, and the pictures (categories, shots) that each is taught from."""

    order: np.ndarray
    support: np.ndarray

    @property
    def swapped(self):
        """Return the lesson that begins with the second half."""
        half = len(self.order) // 2
        return Lesson(np.roll(self.order, -half), np.roll(self.support, -half, axis=0))


def draw_lesson(labels, shots, seed):
    """Draw a lesson over all categories; row j of `support` is of category `order[j]`."""
    rng = np.random.default_rng(seed)
    order = rng.permutation(labels.max() + 1)
    support = [rng.choice(np.flatnonzero(labels == category), shots, replace=False) for category in order]
    return Lesson(order, np.stack(support))


class Sight:
    """What a model sees of the test pictures: base scores, and those of categories that a lesson teaches."""

    def __init__(self, model, calibration, novel, base):
        self.model, self.calibration, self.novel, self.base = model, calibration, novel, base
        with torch.inference_mode():
            self.terms = model.terms(novel.features)
            self.over_base = {
                "base": model.classifier(base.features),
                "novel": model.classifier(novel.features),
            }

    def taught(self, lesson):
        """Return the scores (n, categories) of base and of novel pictures over the lesson's categories."""
        classifier = self.model.classifier
        with torch.inference_mode():
            vectors = self.model.generator.compose(self.terms[lesson.support])
            return {
                name: classifier.scores(some.features, vectors).numpy()
                for name, some in (("base", self.base), ("novel", self.novel))
            }

    def bias(self, taught):
        """Return what is added to the scores of taught categories while there are so many."""
        return np.float32(bias_at(self.calibration.bias, taught))

    def queries(self, lesson):
        """Return the novel pictures that nothing is taught from, and the places of their categories."""
        rows = np.setdiff1d(np.arange(len(self.novel.labels)), lesson.support)
        return rows, np.argsort(lesson.order)[self.novel.labels.numpy()[rows]]


def lesson_accuracies(sight, lesson):
    """Return accuracy on base pictures, on taught ones' other pictures and over all known categories.

    After 0, 1, 2, … categories of the lesson; overall, every known category weighs the same.
    """
    base_labels = sight.base.labels.numpy()
    rows, places = sight.queries(lesson)
    taught = sight.taught(lesson)
    base_best, base_choice = (part.numpy() for part in sight.over_base["base"].max(1))
    novel_best = sight.over_base["novel"].numpy().max(1)[rows]
    found = {"base": [], "taught": [], "overall": []}
    for count in range(len(lesson.order) + 1):
        bias = sight.bias(count)
        over = np.pad(taught["base"][:, :count], ((0, 0), (1, 0)), constant_values=-np.inf).max(1) + bias
        right = (base_choice == base_labels) & (base_best >= over)  # of equal scores the base one comes first
        each = np.bincount(base_labels, right) / np.bincount(base_labels)
        of_taught = np.array([])
        if count:
            mine = places < count
            scores = taught["novel"][rows[mine], :count] + bias
            right_novel = (scores.argmax(1) == places[mine]) & (scores.max(1) > novel_best[mine])
            of_taught = np.bincount(places[mine], right_novel) / np.bincount(places[mine])
            found["taught"].append(100 * right_novel.mean())
        found["base"].append(100 * right.mean())
        found["overall"].append(100 * np.concatenate([each, of_taught]).mean())
    return found


def one_by_one(sight, seed):
    """Teach every test category, one after the other, in several orders."""
    lessons = [draw_lesson(sight.novel.labels.numpy(), SHOTS, [seed, 1, number]) for number in range(LESSONS)]
    runs = [lesson_accuracies(sight, lesson) for lesson in lessons]
    curves = {name: np.array([run[name] for run in runs]) for name in runs[0]}
    return {
        "shots": SHOTS,
        "orders": LESSONS,
        **{
            name: {"mean": _rounded(values.mean(0)), "sd": _rounded(values.std(0))}
            for name, values in curves.items()
        },
    }


def confidences(sight, seed):
    """Return confidence and rightness of answers in tasks, before and after calibration."""
    sampler = task_sampler(sight.base, sight.novel)
    score = model_scores(sight.model, sight.novel, sight.base)
    scored = score_tasks(sampler, score, WAYS, FEW_SHOTS, TASKS, 20, seed)
    found = {}
    for name, bias, temperature in (
        ("before", 0.0, 1.0),
        ("after", sight.bias(WAYS), sight.calibration.temperature),
    ):
        queries = joint_queries([some.biased(bias) for some in scored.values()])
        confidence, choice = (queries.scores / temperature).softmax(1).max(1)
        found[name] = confidence.numpy(), (choice == queries.targets).numpy()
    return found


def calibration_report(answers):
    """Return the calibration error before and after, with the bins behind it."""
    report = {"ways": WAYS, "shots": f"1 to {MOST_SHOTS}", "tasks": TASKS}
    for name, (confidence, right) in answers.items():
        groups = reliability(confidence, right)
        report[name] = {
            "ece": round(100 * calibration_error(confidence, right), 2),
            "accuracy": round(100 * float(right.mean()), 2),
            "confidence": round(100 * float(confidence.mean()), 2),
            "bins": [
                {"answers": int(n), "confidence": round(100 * c, 2), "accuracy": round(100 * a, 2)}
                for n, c, a in zip(*groups, strict=True)
            ],
        }
    return report


def clearances(sight, lesson):
    """Teach the first half of a lesson: how far base, taught and unknown pictures clear the threshold."""
    half = len(lesson.order) // 2
    rows, places = sight.queries(lesson)
    taught = sight.taught(lesson)
    best = {
        name: np.maximum(
            sight.over_base[name].numpy().max(1), taught[name][:, :half].max(1) + sight.bias(half)
        )
        for name in ("base", "novel")
    }
    cleared = {name: clearance(values, half, sight.calibration.unknown) for name, values in best.items()}
    return {
        "base": cleared["base"],
        "taught": cleared["novel"][rows[places < half]],
        "unknown": cleared["novel"][rows[places >= half]],
    }


def unknown_report(parts):
    """Return how known and unknown pictures are told apart, averaged over lessons."""
    found = {
        "auroc": [auroc(np.concatenate([one["base"], one["taught"]]), one["unknown"]) for one in parts],
        "auroc_base": [auroc(one["base"], one["unknown"]) for one in parts],
        "auroc_taught": [auroc(one["taught"], one["unknown"]) for one in parts],
        "known_called_unknown": [(np.concatenate([one["base"], one["taught"]]) < 0).mean() for one in parts],
        "base_called_unknown": [(one["base"] < 0).mean() for one in parts],
        "taught_called_unknown": [(one["taught"] < 0).mean() for one in parts],
        "unknown_accepted": [(one["unknown"] >= 0).mean() for one in parts],
    }
    return {
        "shots": SHOTS,
        "lessons": len(parts),
        **{
            name: {
                "mean": round(100 * float(np.mean(values)), 2),
                "sd": round(100 * float(np.std(values)), 2),
            }
            for name, values in found.items()
        },
    }


def bias_report(sight, seed):
    """Return Both and the harmonic mean with and without the bias, on the same tasks."""
    score = model_scores(sight.model, sight.novel, sight.base)

    def biased(tasks):
        scores, bias = score(tasks), sight.bias(tasks.ways.shape[1])
        return replace(scores, novel_novel=scores.novel_novel + bias, base_novel=scores.base_novel + bias)

    names = ("both", "harmonic", "novel_in_joint", "base_in_joint")
    rows = []
    for ways, shots in product(BIASED_WAYS, (1, 5)):
        tasks = task_sampler(sight.base, sight.novel).draw(TaskShape(ways, shots, 15), TASKS, seed)
        without, with_it = figures(score, tasks), figures(biased, tasks)
        rows.append(
            {
                "ways": ways,
                "shots": shots,
                "tasks": TASKS,
                "without": {name: summary(without[name]) for name in names},
                "with": {name: summary(with_it[name]) for name in names},
                "gain": {name: summary(with_it[name] - without[name]) for name in names},
            }
        )
    return rows


def teaching_figure(report):
    """Draw accuracy after each taught category, with a band of one standard deviation."""
    figure = Figure(figsize=(7.5, 4.6))
    axes = figure.add_subplot()
    styles = {
        "base": ("pictures of base categories", BLUE),
        "taught": ("pictures of the categories taught so far", ORANGE),
        "overall": ("all known categories, each weighing the same", GREY),
    }
    for name, (label, colour) in styles.items():
        mean, sd = (np.array(report[name][part]) for part in ("mean", "sd"))
        steps = np.arange(len(report["base"]["mean"]))[-len(mean) :]
        style = "--" if name == "overall" else "-"
        axes.plot(steps, mean, style, color=colour, label=label, marker="o", markersize=3)
        axes.fill_between(steps, mean - sd, mean + sd, color=colour, alpha=0.18, linewidth=0)
    axes.set_xlabel(f"categories taught, {report['shots']} pictures each")
    axes.set_ylabel("accuracy among all categories, %")
    axes.set_xticks(np.arange(0, len(report["base"]["mean"]), 2))
    axes.set_ylim(0, 100)
    axes.grid(axis="y", color="#e3e6ea", linewidth=0.8)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=9, loc="upper right")
    axes.set_title(
        f"Test categories taught one by one: mean and standard deviation of {report['orders']} orders",
        fontsize=10,
    )
    return figure


def reliability_figure(report):
    """Draw accuracy against confidence, before and after, with the share of answers below."""
    figure = Figure(figsize=(8.6, 5.0))
    grid = figure.subplots(2, 2, sharex=True, sharey="row", height_ratios=(3.4, 1))
    for column, name in enumerate(("before", "after")):
        bins = report[name]["bins"]
        total = sum(one["answers"] for one in bins)
        bins = [one for one in bins if one["answers"] > total / 1000]  # of fewer, accuracy says nothing
        confidence, accuracy, answers = (
            np.array([one[part] for one in bins]) for part in ("confidence", "accuracy", "answers")
        )
        upper, lower = grid[:, column]
        upper.plot([0, 100], [0, 100], color=GREY, linewidth=1, linestyle="--", label="as sure as right")
        upper.vlines(confidence, accuracy, confidence, color=ORANGE, linewidth=5, alpha=0.45, label="gap")
        upper.plot(confidence, accuracy, color=BLUE, marker="o", markersize=4, label="accuracy of a bin")
        lower.bar(confidence, 100 * answers / answers.sum(), width=5, color=BLUE, alpha=0.6)
        upper.set_title(f"{name} calibration: error {report[name]['ece']:.1f} %", fontsize=11)
        lower.set_xlabel("confidence, %")
        upper.set_xlim(0, 100)
        upper.set_ylim(0, 100)
        for axes in (upper, lower):
            axes.spines[["top", "right"]].set_visible(False)
            axes.grid(color="#eceef1", linewidth=0.8)
            axes.set_axisbelow(True)
    grid[0, 0].set_ylabel("accuracy, %")
    grid[1, 0].set_ylabel("answers, %")
    grid[0, 0].legend(frameon=False, fontsize=9, loc="upper left")
    figure.align_ylabels(grid[:, 0])
    figure.tight_layout()
    return figure


def unknown_figure(parts, report):
    """Draw how far known and unknown pictures clear the threshold."""
    figure = Figure(figsize=(7.5, 4.2))
    axes = figure.add_subplot()
    pooled = {name: np.concatenate([one[name] for one in parts]) for name in parts[0]}
    every = np.concatenate(list(pooled.values()))
    bins = np.linspace(*np.quantile(every, (0.0005, 0.9995)), 45)
    labels = {"base": ("base", BLUE), "taught": ("taught", GREEN), "unknown": ("unknown", ORANGE)}
    for name, (label, colour) in labels.items():
        values = pooled[name]
        weights = np.full(len(values), 100 / len(values))
        called = report["base_called_unknown" if name == "base" else "taught_called_unknown"]["mean"]
        called = 100 - report["unknown_accepted"]["mean"] if name == "unknown" else called
        axes.hist(
            values, bins, weights=weights, histtype="stepfilled", facecolor=(colour, 0.15), edgecolor=colour,
            linewidth=1.6, label=f"{label}: {called:.1f} % called unknown",
        )  # fmt: skip
    axes.axvline(0, color="black", linewidth=1, linestyle="--")
    axes.text(0, axes.get_ylim()[1], "unknown ◂ ", ha="right", va="top", fontsize=9)
    axes.set_xlabel("best score above the threshold")
    axes.set_ylabel("pictures, %")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=9, title="pictures of categories", loc="upper right")
    axes.set_title(f"Half of the test categories taught, half unknown: AUROC {report['auroc']['mean']:.1f} %")
    return figure


def measure(model, calibration, novel, base, out, seed=0):
    """Measure everything, draw the pictures and return the report."""
    sight = Sight(model, calibration, novel, base)
    teaching = one_by_one(sight, seed)
    save_figure(teaching_figure(teaching), out / "one-by-one.png")
    calibrated = calibration_report(confidences(sight, seed))
    save_figure(reliability_figure(calibrated), out / "reliability.png")
    strangers = None
    if calibration.unknown is not None:
        lessons = [draw_lesson(novel.labels.numpy(), SHOTS, [seed, 2, number]) for number in range(LESSONS)]
        parts = [clearances(sight, one) for lesson in lessons for one in (lesson, lesson.swapped)]
        strangers = unknown_report(parts)
        save_figure(unknown_figure(parts, strangers), out / "unknown.png")
    return {
        "calibration": calibration.model_dump(),
        "one_by_one": teaching,
        "reliability": calibrated,
        "unknown": strangers,
        "bias": bias_report(sight, seed),
    }


def _rounded(values):
    return [round(float(value), 2) for value in values]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("model", help="a model file or a run folder")
    parser.add_argument("data", help="the data that it was trained on, such as cifar-fs:PATH")
    parser.add_argument("--out", type=Path, required=True, help="folder for the report and the pictures")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    machine.prepare()
    header, model = read_header(options.model), load_model(options.model)
    split = load_data(
        options.data,
        size=header.spec.preprocessing.size,
        split=header.trained_on.split,
        skip_bad=header.trained_on.skip_bad,
    )
    if split.test is None or split.categories != header.spec.categories:
        raise DataError(f"{options.data} has no test categories, or is not what {options.model} learned from")
    calibration = header.calibration
    if not calibration.report:  # of a model from before there were any
        novel = None if split.val is None else cached_features(model, split.val)
        calibration = calibrate(model, novel, cached_features(model, split.base_val))
    test, base_test = cached_features(model, split.test), cached_features(model, split.base_test)
    report = measure(model, calibration, test, base_test, options.out, options.seed)
    report = {"model": options.model, "data": options.data, "seed": options.seed, **report}
    write_text(options.out / "answers.json", json.dumps(report, indent=1) + "\n")
    print(json.dumps({name: report[name] for name in ("unknown", "bias")}, indent=1))
    print(options.out / "answers.json")


if __name__ == "__main__":
    main()
