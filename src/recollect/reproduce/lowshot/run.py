"""Table 3 from data to page: trains, saves features, lets every system learn and answer, writes the page."""

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import torch

from recollect.data.lowshot import half_of
from recollect.data.splits import Part, Split
from recollect.errors import ConfigError, Diverged, Stopped
from recollect.evaluation.lowshot import HalfFeatures, choose_prior, count_right, draw_examples
from recollect.features import FeatureSet, mapped_features
from recollect.methods import find_method
from recollect.methods.lowshot import SYSTEMS
from recollect.methods.lowshot.system import Base, System, root_mean_square, scaled
from recollect.model.model import Model
from recollect.modelfile import PAPER, load_model, read_header
from recollect.reproduce.lowshot.page import write_page
from recollect.reproduce.lowshot.plan import (
    GROUPS,
    SPLIT,
    LowShotPlan,
    load_pictures,
    make_plan,
    stage_one_config,
)
from recollect.reproduce.results import plan_file, result_file, write_json
from recollect.reproduce.rows import name_of
from recollect.system import machine
from recollect.system.disk import locked, write_text
from recollect.system.progress import bar
from recollect.training.loop import stop_on_signals
from recollect.training.runfolder import RunFolder
from recollect.training.train import resolve

SEED = {"val": 0, "test": 1}  # of the draws
PRIOR_DRAWS = 20  # of the validation half, by which μ is chosen
Say = Callable[[str], None]
Unit = tuple[System, int]  # a system at a number of shots


def reproduce_lowshot(data: str, folder: Path, say: Say, **wishes: Any) -> Path:  # noqa: ANN401
    """Reproduce table 3; return its page. Wishes are those of `make_plan`; what is finished is kept."""
    plan = make_plan(folder, data, **wishes)
    with locked(folder):
        write_json(plan_file(folder), plan.model_dump())
        write_text(folder / SPLIT, plan.groups.reserved + "\n")
        write_json(folder / GROUPS, plan.groups.model_dump())
        failed: list[str] = []  # results that are missing because something diverged
        try:
            for number, (kind, seed) in enumerate(plan.trainings, 1):
                first, left = name_of(kind, None, seed), list(_left(plan, folder, kind, seed))
                if left:
                    say(f"[{number}/{len(plan.trainings)}] stage 1 '{first}' and its rows")
                    try:
                        failed += _do(plan, data, folder, say, kind, seed, left)
                    except Diverged as reason:
                        say(f"stage 1 '{first}': {reason}")
                        failed += [name_of(system.key, shots, seed) for system, shots in left]
                elif not result_file(folder, first).exists():
                    _keep_facts(folder, first)
        finally:  # a page with what there is, too
            made = write_page(folder)
        if failed:
            raise Diverged(
                f"everything except {', '.join(failed)} is on the page, because trainings diverged (see "
                "above): start again in another --out with a lower rate, --set stage1.schedule.peak=… for a "
                "stage 1, lowshot.logistic_rate=… for logistic regression, lowshot.schedule.peak=… for "
                "generators, lowshot.network_rate=… for the other networks"
            )
        return made


def _left(plan: LowShotPlan, folder: Path, kind: str, seed: int) -> Iterator[Unit]:
    """Yield what has no result yet among the rows that stand on a stage 1."""
    for key in plan.keys:
        for shots in plan.shots:
            path = result_file(folder, name_of(key, shots, seed))
            if SYSTEMS[key].stage1 == kind and not path.exists():
                yield SYSTEMS[key], shots


def _do(
    plan: LowShotPlan, data: str, folder: Path, say: Say, kind: str, seed: int, left: Sequence[Unit]
) -> list[str]:
    """Train a stage 1, save its features, and let its systems learn and answer.

    Returns the names of the results that are missing, because a system diverged.
    """
    model, pictures = _stage_one(plan, data, folder, kind, seed)
    _keep_facts(folder, name_of(kind, None, seed))
    with stop_on_signals() as stop:
        check = _check(stop)
        base, halves = _features(plan, model, pictures, check)
        examples = {
            part: draw_examples(half.examples.labels.numpy(), draws, max(plan.shots), SEED[part])
            for (part, half), draws in zip(halves.items(), (PRIOR_DRAWS, plan.draws), strict=True)
        }
        failed: list[str] = []
        for system, together in _learned_together(left):
            say(f"{system.title}, {', '.join(f'{shots}-shot' for shots in together)}")
            began = time.perf_counter()
            try:
                learned = system.learn(base, plan.shots if system.mixed else together, plan.recipe, seed)
            except Diverged as reason:
                say(str(reason))
                failed += [name_of(system.key, shots, seed) for shots in together]
                continue
            teach = scaled(learned, base.factor)
            seconds = time.perf_counter() - began
            for shots in together:
                name = name_of(system.key, shots, seed)
                began = time.perf_counter()
                try:
                    prior = choose_prior(teach, halves["val"], examples["val"], shots)
                    right = count_right(teach, halves["test"], examples["test"], shots, prior)
                except Diverged as reason:
                    say(str(reason))
                    failed.append(name)
                    continue
                words = {
                    "system": system.key,
                    "shots": shots,
                    "seed": seed,
                    "asked": halves["test"].asked,
                    "prior": {str(k): value for k, value in prior.items()},
                    "right": {figure: counts.tolist() for figure, counts in right.items()},
                    "training_seconds": round(seconds, 1),
                    "evaluation_seconds": round(time.perf_counter() - began, 1),
                }
                seconds = 0.0  # learned once, counted once
                write_json(result_file(folder, name), words)
        return failed


def _keep_facts(folder: Path, name: str) -> None:
    """Write what a stage 1 took, for the page, if it is there and finished."""
    run = folder / "runs" / name
    if not RunFolder(run).model.exists():
        return
    facts = read_header(run).provenance
    if facts.get("finished"):
        words = {"images_seen": facts["images_seen"], "training_seconds": facts["stage1_seconds"]}
        write_json(result_file(folder, name), words)


def _learned_together(left: Iterable[Unit]) -> Iterator[tuple[System, tuple[int, ...]]]:
    """Yield what is learned at once: a system for each number of shots, or a mixed one for all of them."""
    for key, units in groupby(left, lambda unit: unit[0].key):
        counts = tuple(shots for _, shots in units)
        for together in [counts] if SYSTEMS[key].mixed else [(shots,) for shots in counts]:
            yield SYSTEMS[key], together


def _check(stop: threading.Event) -> Callable[[], None]:
    def check() -> None:
        if stop.is_set():
            raise Stopped("stopped while systems learned from features")

    return check


def _stage_one(plan: LowShotPlan, data: str, folder: Path, kind: str, seed: int) -> tuple[Model, Split]:
    """Train a stage 1, or go on with it, unless it is finished; return its model and the pictures."""
    config = stage_one_config(plan, kind, seed, data)
    pictures = load_pictures(data, config, plan.groups)
    if pictures.base_train.key != plan.pictures:
        raise ConfigError(
            f"the pictures of {data} are not those that this was begun with: choose another --out"
        )
    out = folder / "runs" / name_of(kind, None, seed)
    method, run = find_method(PAPER), RunFolder(out)
    if run.begun():  # it may have been trained on its own: what counts is its configuration
        begun = run.require_same(resolve(config, pictures))
        method.train(begun.model_copy(update={"data": data}), out, resume=True)
    else:
        method.train(config, out)
    device = machine.find_device(config.device)
    return load_model(out, config.extractor).to(device).eval().requires_grad_(False), pictures


def _features(
    plan: LowShotPlan, model: Model, pictures: Split, check: Callable[[], None]
) -> tuple[Base, dict[str, HalfFeatures]]:
    """Save the features of all pictures, and return them mapped."""
    parts: tuple[Part, Part] = ("val", "test")
    halves = {part: half_of(pictures, plan.groups, part, max(plan.shots)) for part in parts}
    kinds = ("base_queries", "examples", "novel_queries")
    sets = [pictures.base_train, *(getattr(half, name) for half in halves.values() for name in kinds)]
    with bar("saving features", sum(map(len, sets))) as show:

        def advance(count: int) -> None:
            check()
            show(count, "")

        learned, *others = (mapped_features(model, images, advance) for images in sets)
    device = model.mean.device
    cosine = model.classifier.kind == "cosine"
    factor = 1.0 if cosine else 1 / root_mean_square(learned.features)
    base = Base(learned.features, learned.labels, model, device, factor, check)

    def half(part: Part, base: FeatureSet, examples: FeatureSet, novel: FeatureSet) -> HalfFeatures:
        return HalfFeatures(torch.from_numpy(halves[part].columns), base, examples, novel, device)

    return base, {"val": half("val", *others[:3]), "test": half("test", *others[3:])}
