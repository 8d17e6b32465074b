"""The page of table 3, in Markdown and HTML, from its plan and result files and nothing else."""

import shlex
from collections import Counter
from collections.abc import Iterable
from itertools import chain
from pathlib import Path

from recollect.data.lowshot import are_usual
from recollect.evaluation.lowshot import DRAWS, FIGURES, SHOTS, TOP, named
from recollect.evaluation.pages import Block, as_html, as_markdown, code, grid, heading, paragraph, picture
from recollect.evaluation.plots import save_figure
from recollect.methods.lowshot import SYSTEMS
from recollect.reproduce.claims import FAILS, HOLDS, UNDECIDED, judge, overall
from recollect.reproduce.lowshot.pictures import accuracy_figure, order_figure
from recollect.reproduce.lowshot.plan import (
    GROUPS,
    SPLIT,
    LowShotPlan,
    read_plan,
    stage_one_settings,
)
from recollect.reproduce.lowshot.results import LowShotResults, StageOneResult
from recollect.reproduce.lowshot.rows import MISPRINT, NAME, TITLES, claims, judged_orders, published
from recollect.reproduce.page import signed
from recollect.reproduce.plan import set_words
from recollect.reproduce.results import Place, read_json, result_file
from recollect.reproduce.rows import name_of
from recollect.system.disk import write_text

ACCURACY, ORDER = "table3.png", "table3-order.png"


def write_page(folder: Path) -> Path:
    """Write `table3.md`, `table3.html` and their pictures; return the first."""
    plan = read_plan(folder)
    results = LowShotResults(folder, plan.keys, plan.shots, plan.seeds)
    title = f"Table 3 of the paper on {plan.data}"
    blocks = [
        heading(1, title),
        paragraph(_introduction(plan)),
        *_unfinished(results),
        *_claims(plan, results),
        *_order_picture(folder, plan, results),
        heading(2, "Top-5"),
        *(_figures(plan, results, figure, 5) for figure in FIGURES),
        heading(2, "Top-1"),
        *(_figures(plan, results, figure, 1) for figure in FIGURES),
        *_accuracy_picture(folder, plan, results),
        *_order(plan, results),
        *_circumstances(folder, plan, results),
        *_comparisons(plan, results),
    ]
    path = folder / f"{NAME}.md"
    write_text(path, as_markdown(blocks))
    write_text(path.with_suffix(".html"), as_html(title, blocks))
    return path


def _has_numbers(plan: LowShotPlan) -> bool:
    """Return whether the paper's numbers are of these data."""
    return plan.data.startswith("imagenet:")


def _introduction(plan: LowShotPlan) -> str:
    groups = plan.groups
    beside = (
        " In brackets: the paper's figures, top-5. At N' = 5 it prints 72.72 for All with prior of "
        "attention, which repeats All; 71.24 here is from its authors' later run."
        if _has_numbers(plan)
        else " The paper's figures are of ImageNet; only the order of its rows is compared."
    )
    return (
        f"Accuracy in percent, mean and 95 % interval over {plan.draws} draws of N' examples of each novel "
        f"category. Learned: {len(groups.base_val) + len(groups.base_test)} base categories. Asked: "
        f"{len(groups.base_test)} base and {len(groups.novel_test)} novel ones, all at once; settings and μ "
        f"were chosen on the other {len(groups.base_val)} and {len(groups.novel_val)}. Novel: pictures of "
        "novel categories among these. All: all pictures among all these categories. All with prior: "
        f"probabilities inside novel categories times μ, inside base categories times 1 − μ.{beside}"
    )


def _unfinished(results: LowShotResults) -> list[Block]:
    done = len(results.files)
    text = f"Unfinished: {done} of {results.wanted} results are there, and the others are missing here."
    return [] if done == results.wanted else [paragraph(text)]


def _figures(plan: LowShotPlan, results: LowShotResults, figure: str, k: int) -> Block:
    head = [TITLES[figure], *(f"N' = {shots}" for shots in plan.shots)]
    lines = []
    for key in plan.keys:
        line = [SYSTEMS[key].title]
        for shots in plan.shots:
            found = results.measured(Place(key, shots, named(figure, k)))
            text = "–" if found is None else f"{found.mean:.2f} ± {found.ci95:.2f}"
            known = published(key, figure, shots) if _has_numbers(plan) and k == 5 else None
            star = "*" if (key, figure, shots) == MISPRINT else ""
            line.append(f"{text} ({known}{star})" if known else text)
        lines.append(line)
    return grid(head, lines)


def _accuracy_picture(folder: Path, plan: LowShotPlan, results: LowShotResults) -> list[Block]:
    if not results.files:
        return []
    save_figure(accuracy_figure(plan, results), folder / ACCURACY, dpi=110)
    return [picture(folder / ACCURACY, "Every figure of every row against the number of examples")]


def _order_picture(folder: Path, plan: LowShotPlan, results: LowShotResults) -> list[Block]:
    if not _verdicts(plan, results, 5):
        return []
    save_figure(order_figure(plan, results), folder / ORDER, dpi=110)
    return [picture(folder / ORDER, "How many of the paper's orders of every two rows hold here")]


def _verdicts(plan: LowShotPlan, results: LowShotResults, k: int) -> dict[tuple[str, int], list[str]]:
    """Return whether two rows stand in the paper's order here, by figure and number of shots."""
    found: dict[tuple[str, int], list[str]] = {}
    for order, judged in judged_orders(plan.keys, plan.shots, results, k):
        found.setdefault((order.figure, order.shots), []).append(judged)
    return found


def _order(plan: LowShotPlan, results: LowShotResults) -> list[Block]:
    """Count how often two rows stand in the paper's order here."""
    found = {k: _verdicts(plan, results, k) for k in TOP}
    if not found[5]:
        return []
    places = sorted(found[5], key=lambda place: (FIGURES.index(place[0]), place[1]))
    rows = [
        [TITLES[figure], str(shots), *(_counted(found[k][figure, shots]) for k in TOP)]
        for figure, shots in places
    ]
    total = ["all of them", "", *(_counted(chain(*found[k].values())) for k in TOP)]
    return [
        heading(2, "The order of the paper's rows"),
        paragraph(
            "Every two rows of which the paper has different numbers (top-5): whether the one that is higher "
            "there is higher here, by the 95 % interval of the difference, draw by draw. As in the paper / "
            "the other way round / undecided."
        ),
        grid(["", "N'", *(f"top-{k}" for k in TOP)], [*rows, total]),
    ]


def _counted(verdicts: Iterable[str]) -> str:
    counts = Counter(verdicts)
    return " / ".join(str(counts[one]) for one in (HOLDS, FAILS, UNDECIDED))


def _claims(plan: LowShotPlan, results: LowShotResults) -> list[Block]:
    """Say first of all which of the paper's claims hold."""
    judged = {
        k: [[one.verdict for one in judge(claim, results)] for claim in claims(plan.keys, plan.shots, k)]
        for k in TOP
    }
    texts = [claim.text for claim in claims(plan.keys, plan.shots)]
    if not texts:
        return []
    rows = [
        [text, *(f"{overall(judged[k][number])} ({_counted(judged[k][number])})" for k in TOP)]
        for number, text in enumerate(texts)
    ]
    total = [
        "The order of every two rows",
        *(_counted(chain(*_verdicts(plan, results, k).values())) for k in TOP),
    ]
    varies = (
        "There is one training of each row. Intervals are over the draws alone: another training, or other "
        "query pictures, may change a figure by more."
        if plan.seeds == 1
        else f"Intervals are over the draws and the {plan.seeds} trainings of each row, but not over other "
        "query pictures."
    )
    return [
        heading(2, "What holds of the paper's order"),
        paragraph(
            "The paper's claims are of top-5 accuracy. A comparison holds if the 95 % interval of the paired "
            "difference lies above 0, does not hold if it lies below, and is undecided between. A claim "
            "holds if all its comparisons hold, and does not hold if any of them does not. In brackets: how "
            "many "
            f"comparisons hold / do not hold / are undecided. {varies}"
        ),
        grid(["Claim", *(f"top-{k}" for k in TOP)], [*rows, total]),
    ]


def _comparisons(plan: LowShotPlan, results: LowShotResults) -> list[Block]:
    found: list[Block] = []
    for five, one in zip(*(claims(plan.keys, plan.shots, k) for k in TOP), strict=True):
        lines = [
            [high.text, signed(high.found, 2), high.verdict, signed(low.found, 2), low.verdict]
            for high, low in zip(judge(five, results), judge(one, results), strict=True)
        ]
        head = ["Comparison", *(word for k in TOP for word in (f"Difference, top-{k}", "Verdict"))]
        found += [paragraph(five.text), grid(head, lines)]
    return [heading(2, "Every comparison"), *found] if found else []


def _circumstances(folder: Path, plan: LowShotPlan, results: LowShotResults) -> list[Block]:
    trainings, minutes = [], 0.0
    for kind, seed in plan.trainings:
        name = name_of(kind, None, seed)
        path = result_file(folder, name)
        seen, took = "–", "–"
        if path.exists():
            facts = read_json(path, StageOneResult)
            seen, took = f"{facts['images_seen']:,}", f"{facts['training_seconds'] / 60:.1f}"
            minutes += facts["training_seconds"] / 60
        trainings.append([f"stage 1, {name}", seen, took, "–"])
    systems = []
    for key in plan.keys:
        files = results.of(key)
        learned = sum(file["training_seconds"] for file in files) / 60
        answered = sum(file["evaluation_seconds"] for file in files) / 60
        minutes += learned
        if files:
            systems.append([SYSTEMS[key].title, "–", f"{learned:.1f}", f"{answered:.1f}"])
    priors = [
        [SYSTEMS[key].title, *(_prior(results, key, shots) for shots in plan.shots)]
        for key in plan.keys
        if results.of(key)
    ]
    return [
        heading(2, "How it was made"),
        paragraph(
            f"Machine: {plan.machine}. {plan.versions}. {minutes:.0f} minutes of training in all, stage 1 "
            f"included. {_NOTES}{f' {plan.note}' if plan.note else ''}"
        ),
        grid(["", "Images", "Minutes of training", "Minutes of evaluation"], [*trainings, *systems]),
        paragraph("μ for top-5 and for top-1, as the validation half chose it:"),
        grid(["", *(f"N' = {shots}" for shots in plan.shots)], priors),
        paragraph(
            "All of it in one command; a stage 1 alone by one of the others, in the folder of this page:"
        ),
        code([whole_command(plan)]),
        code([_training_command(plan, kind, seed) for kind, seed in plan.trainings]),
    ]


def _prior(results: LowShotResults, key: str, shots: int) -> str:
    chosen = [file["prior"] for file in results.of(key, shots)]
    return "; ".join(" / ".join(f"{prior[str(k)]:g}" for k in TOP) for prior in chosen) or "–"


_NOTES = (
    "Rows on stage 1 with dot product have a last ReLU, those with cosine none. Generators, Matching, "
    "Prototypical and Prototype Matching Nets learn for each N' separately, unless a row says otherwise. "
    "Matching Networks compare with N' centroids of each base category, the other networks with the mean "
    "of its training features. Members of a set see each other by attention in place of a bidirectional "
    "LSTM. "
    "Where there are as many examples as hallucination fills up to, it adds none."
)


def whole_command(plan: LowShotPlan) -> str:
    """Return the command that does all of it."""
    words = [f"recollect reproduce {NAME} {shlex.quote(plan.data)}"]
    words += [f"--methods {','.join(plan.keys)}"] if plan.keys != tuple(SYSTEMS) else []
    words += [] if are_usual(plan.groups, plan.data) else [f"--split {GROUPS}"]
    words += [f"--shots {','.join(map(str, plan.shots))}"] if plan.shots != SHOTS else []
    words += [f"--draws {plan.draws}"] if plan.draws != DRAWS else []
    words += [f"--preset {plan.preset}"] if plan.preset else []
    words += [f"--note {shlex.quote(plan.note)}"] if plan.note else []
    words += [f"--seeds {plan.seeds}", *set_words(plan.settings)]
    return " ".join(words)


def _training_command(plan: LowShotPlan, kind: str, seed: int) -> str:
    words = [f"recollect train {shlex.quote(plan.data)} --split {SPLIT}"]
    words += [f"--preset {plan.preset}"] if plan.preset else []
    words += [
        *set_words(stage_one_settings(plan, kind)),
        f"--seed {seed} --out runs/{name_of(kind, None, seed)}",
    ]
    return " ".join(words)
