"""From data to page: trains what is not trained yet, evaluates it, writes the page."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from recollect.errors import Diverged
from recollect.evaluation.evaluate import evaluation_report
from recollect.evaluation.metrics import Answers
from recollect.methods import find_method
from recollect.modelfile import fingerprint, load_model, read_header
from recollect.reproduce.figure import MODELS, compare_features
from recollect.reproduce.lowshot.rows import NAME as TABLE_3
from recollect.reproduce.lowshot.run import reproduce_lowshot
from recollect.reproduce.page import PICTURE, TSNE, write_page
from recollect.reproduce.plan import (
    Plan,
    commands_of,
    config_of,
    keep_plan,
    make_plan,
    recipe_of,
    require_runs,
)
from recollect.reproduce.results import Result, read_json, result_file, right_answers, write_json
from recollect.reproduce.rows import TABLE_1, TASK_SEED, Training
from recollect.system.disk import locked
from recollect.training.config import make_config
from recollect.training.runfolder import RunFolder

FIGURE = "figure-tsne"
Say = Callable[[str], None]


def reproduce(what: str, data: str, folder: Path, say: Say, **wishes: Any) -> Path:  # noqa: ANN401
    """Reproduce a table, or the t-SNE figure with the rows of table 1 that it needs; return what was made.

    Wishes are those of `make_plan`. What is finished is neither trained nor evaluated again.
    """
    if what == TABLE_3:
        return reproduce_lowshot(data, folder, say, **wishes)
    figure = what == FIGURE
    plan = make_plan(folder, TABLE_1.name if figure else what, data, **wishes)
    work = list(plan.rows.trainings(1 if figure else plan.seeds))
    if figure:
        work = [one for one in work if one.row.key in MODELS.values()]
    with locked(folder):
        # All trainings of a row have the same recipe, those with other seeds that are finished, too.
        rows = {one.row.key for one in work if not result_file(folder, one.name).exists()}
        if rows:
            require_runs(plan, [one for one in work if one.row.key in rows], data, folder)
        keep_plan(folder, plan)
        try:
            _do(work, plan, data, folder, say)
            if plan.table == TABLE_1.name:
                _draw(plan, data, folder, say)
        finally:  # a page with what there is, too
            made = folder / PICTURE if figure else write_page(folder)
        return made


def _do(work: list[Training], plan: Plan, data: str, folder: Path, say: Say) -> None:
    """Do every training that has no result yet."""
    left = [training for training in work if not result_file(folder, training.name).exists()]
    failed = []
    for training in left:
        say(f"[{work.index(training) + 1}/{len(work)}] {training.name}{_left(work, training, folder)}")
        if training.stage1 in failed:
            failed.append(training.name)
            continue
        try:
            write_json(result_file(folder, training.name), _result(training, plan, data, folder))
        except Diverged as reason:
            say(str(reason))
            failed.append(training.name)
    if failed:
        raise Diverged(
            f"everything else is on the page, but {', '.join(failed)} diverged: lower the learning rate of "
            "all trainings in another --out, such as --set stage2.schedule.peak=0.02"
        )


def _result(training: Training, plan: Plan, data: str, folder: Path) -> dict[str, Any]:
    """Train and evaluate; return the result file's content."""
    out = folder / "runs" / training.name
    config = config_of(plan, training, data, folder)
    method = find_method(config.method)
    if RunFolder(out).begun():
        method.train(RunFolder(out).config().model_copy(update={"data": data}), out, resume=True)
    else:
        method.train(config, out)
    began = time.perf_counter()
    keep: dict[int, Answers] = {}
    report = evaluation_report(
        out,
        data,
        part=plan.rows.part,
        shots=training.evaluated,
        queries=plan.queries,
        tasks=plan.tasks,
        seed=TASK_SEED,
        cache_gb=config.cache_gb,
        device=config.device,
        keep=keep,
        by=method,
    )
    header = read_header(out)
    facts, ways = header.provenance, report["ways"]
    biases: dict[int, float | None] = dict.fromkeys(keep)
    if config.balanced_by_bias:
        biases = {shots: float(header.calibration.biases([shots] * ways)[0]) for shots in keep}
    own = ("stage2_seconds",) if training.kind == "generator" else ("stage1_seconds", "stage2_seconds")
    learned = 0 if training.kind == "features" else sum(facts.get(name, 0) for name in own)
    return {
        "row": training.row.key,
        "kind": training.kind,
        "seed": training.seed,
        "commands": commands_of(plan, training),
        "images_seen": facts["images_seen"],
        "episodes_seen": facts.get("episodes_seen"),
        "training_seconds": learned,
        "evaluation_seconds": round(time.perf_counter() - began, 1),
        "mirrored": header.spec.mirrored,
        "shifted": header.spec.shifted,
        "stage1": _stage_one_of(out),
        "report": {**report, "model": f"runs/{training.name}", "data": plan.data},
        "right": {
            str(shots): right_answers(given, joint=method.joint, bias=biases[shots])
            for shots, given in keep.items()
        },
    }


def _stage_one_of(out: Path) -> str | None:
    """Return what tells the stage 1 of a run from every other, if it has one."""
    path = RunFolder(out).stage_one_model
    return fingerprint(load_model(path)) if path.exists() else None


def _left(work: list[Training], training: Training, folder: Path) -> str:
    """Say how long the work may take, once a training that takes as long as the next one is finished."""
    took: dict[str, list[float]] = {}
    for one in work:
        path = result_file(folder, one.name)
        if path.exists():
            words = read_json(path, Result)
            took.setdefault(one.cost, []).append(words["training_seconds"] + words["evaluation_seconds"])
    if training.cost not in took:
        return ""
    each = {cost: sum(seconds) / len(seconds) for cost, seconds in took.items()}
    unknown = min(each.values())
    left = sum(each.get(one.cost, unknown) for one in work if not result_file(folder, one.name).exists())
    return f", about {left / 60:.0f} minutes left"


def _draw(plan: Plan, data: str, folder: Path, say: Say) -> None:
    if not ((folder / TSNE).exists() and (folder / PICTURE).exists()):
        say("t-SNE figure")
        config = make_config(recipe_of(plan.preset), {"data": data}, plan.settings)
        words = compare_features(
            folder / "runs",
            data,
            folder / PICTURE,
            plan.rows.part,
            cache_gb=config.cache_gb,
            device=config.device,
        )
        write_json(folder / TSNE, words)
