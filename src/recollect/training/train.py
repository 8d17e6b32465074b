"""A whole training: from a configuration to `model.safetensors` in a run folder."""

import logging
import os
import platform
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from recollect.data.catalogue import load_data
from recollect.data.splits import Split, inline_split
from recollect.errors import ConfigError, Stopped, counted, one_line
from recollect.evaluation.evaluate import model_scores
from recollect.features import extract
from recollect.model.model import Learner, Model
from recollect.model.spec import Calibration, LearnerSpec, ModelSpec
from recollect.modelfile import PAPER, TrainedOn, find_model, load_model, read_header, save_model, stamp
from recollect.pretrained import is_pretrained, licence_of
from recollect.system import machine, workers
from recollect.system.disk import locked, remove_file
from recollect.system.progress import say
from recollect.training.budget import Measure, fit_to_minutes, judged_pictures, measure
from recollect.training.calibration import calibrate, with_bias
from recollect.training.config import Config
from recollect.training.curves import draw_curves
from recollect.training.frozen import FrozenViews, HeadClassification, centre_on, frozen_views
from recollect.training.loop import run_stage, step_seed, stop_on_signals
from recollect.training.ridge import (
    features_of,
    see_pictures,
    solve_on_all_pictures,
    solve_on_training_pictures,
)
from recollect.training.runfolder import STAGE_ONE_MODEL, RunFolder
from recollect.training.selection import HeldOut, Judgement
from recollect.training.stage1 import BaseClassification, augmentation, small_pictures
from recollect.training.stage2 import (
    EpisodicTraining,
    episodes_of,
    forget_views,
    require_memory,
    shared_views,
)
from recollect.training.starting import require_extractor, starting_model, suited
from recollect.training.teacher import load_teacher, require_teacher

log = logging.getLogger(__name__)
Learn = Callable[[Config, Split, RunFolder, threading.Event], None]
Check = Callable[[Config, Split], object]
_TOLD_TASKS = 100  # where nothing is selected, and each task has base vectors of its own to solve


def learn_both_stages(config: Config, split: Split, folder: RunFolder, stop: threading.Event) -> None:
    """Train the paper's model; on a frozen extractor, the generator `ridge` has a closed form."""
    if config.closed_form:
        learn_in_closed_form(config, split, folder, stop)
        return
    frozen = views_of_frozen(config, split, stop)
    if frozen:
        workers.part()
    model = learn_stage_one(config, split, folder, stop, frozen)
    machine.give_back_freed_memory()
    views, held_out = (frozen.views, frozen.held_out) if frozen else (None, None)
    if workers.count() > 1 and config.learns_generator:
        views = shared_views(model, split, config, stop)
    workers.part()
    learn_stage_two(model, config, split, folder, stop, views, held_out)


def help_to_learn(config: Config, split: Split, folder: RunFolder, stop: threading.Event) -> None:
    """Do the part of `learn_both_stages` that several processes share, in one that is not the first."""
    if config.closed_form:
        features_of(new_model(config, split), split, stop)
    elif views_of_frozen(config, split, stop) is None:
        model = learn_stage_one(config, split, folder, stop)
        if config.learns_generator:
            shared_views(model, split, config, stop)


def learn_in_closed_form(
    config: Config, split: Split, folder: RunFolder, stop: threading.Event | None = None
) -> None:
    """Solve everything in closed form; a run that is stopped starts again from the beginning."""
    began = time.monotonic()
    model = new_model(config, split)
    features = features_of(model, split, stop)
    workers.part()
    learned, held_out = solve_on_training_pictures(model, *features)
    calibration = _calibrate(model, config, split, held_out)
    told = config.model_copy(update={"select_tasks": min(_TOLD_TASKS, config.select_tasks)})
    figures = _figures_as_predicted(model, told, split, held_out, calibration)
    folder.forget_after(1, 0)
    folder.log(stage=1, step=1, **figures, selected=True)
    solve_on_all_pictures(model, learned, held_out[1])
    facts: dict[str, Any] = {
        "images_seen": len(split.base_train) + len(split.base_val),
        "stage1_seconds": round(time.monotonic() - began),
        "validation": folder.validation(1),
    }
    save_trained(folder.model, model, config, calibration, finished=True, **facts)


def views_of_frozen(config: Config, split: Split, stop: threading.Event) -> FrozenViews | None:
    """Return the views of a frozen extractor, which both stages share; `None` for any other.

    A reused stage 1 may have another centre, so its views are computed separately.
    """
    if not config.frozen or config.stage1_from is not None:
        return None
    return frozen_views(new_model(config, split), split, config, stop)


def train(
    config: Config,
    out: Path,
    *,
    resume: bool = False,
    learn: Learn = learn_both_stages,
    check: Check | None = None,
    speed_of: Measure = measure,
) -> int:
    """Train both stages in the folder `out`, or resume the run there; return how many pictures were held out.

    Methods that the paper's model is compared with pass their own `learn`, and a `check` that refuses what
    they cannot learn from before anything is written; `speed_of` is for --minutes.

    Raises `Stopped` when the run was asked to stop; once stage 1 has begun, `out` then holds a usable model
    (in closed form there is no stage 1, and none).

    Of several processes that `torchrun` started, the first does everything, and the others help it with stage
    1 and with the extraction of features.
    """
    if workers.started_together() and config.method != PAPER:
        raise ConfigError(f"the method '{config.method}' trains in one process: start it without torchrun")
    if not workers.is_first():
        with workers.joined(config.device):
            _help(config)
        return 0
    with ExitStack() as stack:
        called: list[Path | None] = []

        def call(folder: Path | None) -> None:
            """Join the others, which wait: not before the speed of this process alone is measured."""
            called.append(folder)
            stack.enter_context(workers.joined(config.device))
            workers.call_helpers(folder)

        try:
            return _train(config, out, learn, check, speed_of, call, resume=resume)
        finally:
            if not called:
                call(None)


def _help(config: Config) -> None:
    """Help the first process, in a folder that goes when the work is done."""
    with tempfile.TemporaryDirectory() as scratch:
        if not workers.await_call(Path(scratch)):
            return
        folder = RunFolder(Path(scratch))
        config = folder.config(config.extractor)
        machine.prepare(config.threads)
        with stop_on_signals() as stop:
            help_to_learn(config, _pictures(config), folder, stop)


def _pictures(config: Config) -> Split:
    return load_data(
        config.data,
        size=require_extractor(config),
        split=config.split,
        skip_bad=config.skip_bad,
        cache_gb=config.cache_gb,
    )


def _train(
    config: Config,
    out: Path,
    learn: Learn,
    check: Check | None,
    speed_of: Measure,
    call: Callable[[Path | None], None],
    *,
    resume: bool,
) -> int:
    folder = RunFolder(out)
    if resume:
        begun = folder.require_same(config)
        folder.require_pictures(config.data)  # before they are decoded
        if (begun.threads, begun.device) != (config.threads, config.device):
            say(
                f"begun with {counted(begun.threads or 1, 'thread')} on {begun.device}: the weights may "
                "differ in their last digits from those of an uninterrupted run"
            )
    else:
        folder.require_new()
        _require_apart(config.data, out)
    machine.find_device(config.device)  # fail before pictures are decoded
    split = _pictures(config)
    if not resume:
        config = resolve(config, split, speed_of)
        if check is not None:
            check(config, split)
    else:
        folder.require_pictures(config.data, split.base_train.key)
    machine.prepare(config.threads)
    held_out = judged_pictures(split)
    with locked(out):
        if not resume:
            folder.require_new()
            folder.keep(config)
        elif folder.finished(config):
            say(f"{out} is finished: there is nothing to resume")
            if not folder.curves.exists() and not config.closed_form:
                draw_curves(folder)
            return held_out
        if config.stage1.teacher is not None and not folder.teacher.exists() and not folder.begun_stage_one():
            folder.adopt_teacher(find_model(config.stage1.teacher))
        with stop_on_signals() as stop:
            call(out)
            learn(config, split, folder, stop)
    return held_out


def _require_apart(data: str, out: Path) -> None:
    """Refuse to write a run into the folder of its training pictures."""
    for place in (data, data.partition(":")[2]):
        if place and os.path.isdir(place):  # noqa: PTH112 -- never raises
            inner, outer = Path(os.path.realpath(out)), Path(os.path.realpath(place))
            # Where the working folder itself holds the pictures, the default place of runs lies in it.
            if inner.is_relative_to(outer) and outer != Path.cwd():
                raise ConfigError(f"--out {out} lies among the pictures of {place}: choose another folder")


def resolve(config: Config, split: Split, speed_of: Measure = measure) -> Config:
    """Return the configuration with everything resolved: threads, device, steps."""
    config = config.model_copy(
        update={
            "threads": machine.prepare(config.threads),
            "device": str(machine.find_device(config.device)),
            "split": inline_split(config.split),
            "stage1": config.stage1.resolved(len(split.base_train)),
            "data_key": split.base_train.key,
        }
    )
    if config.mirrored and not split.flips:
        raise ConfigError(f"mirrored: mirror images of {config.data} are of other categories; leave it out")
    if config.shifted >= split.base_train.size:
        side = split.base_train.size
        raise ConfigError(
            f"shifted={config.shifted} leaves nothing of pictures of {side}×{side}: use less than {side}"
        )
    model = new_model(config, split)
    augmentation(split, config.stage1)
    small_pictures(model, config.stage1)
    if config.learns_generator:
        episodes_of(split, config)
    if config.learns_generator or (config.frozen and not config.closed_form):
        require_memory(len(split.base_train), model.width, config)
    Judgement(split, config.select_shots, config)  # refuses, by name, categories too small for a task
    if config.stage1_from is not None:
        if not RunFolder(Path(config.stage1_from)).stage_one_model.is_file():
            raise ConfigError(
                f"stage1_from={config.stage1_from}: name the folder of a run whose stage 1 is finished; "
                f"there is no {STAGE_ONE_MODEL} in this one"
            )
        RunFolder(Path(config.stage1_from)).require_stage_one(
            model.spec, _trained_on(config), finetune=config.finetune
        )
    if config.stage1.teacher is not None:
        require_teacher(config.stage1.teacher, config, split.categories, _trained_on(config))
    return fit_to_minutes(config, model, split, speed_of)


def new_model(
    config: Config, split: Split, made_for: LearnerSpec | None = None, learner: Learner | None = None
) -> Model:
    """Return an untrained model with plain means for a generator, and with a method's own `learner`."""
    torch.manual_seed(step_seed(config.seed, 0, 0))
    spec = ModelSpec(
        extractor=config.extractor,
        last_relu=config.last_relu,
        classifier=config.classifier,
        generator="mean",
        preprocessing=suited(config.extractor, split.base_train),
        categories=split.categories,
        centred=is_pretrained(config.extractor),
        mirrored=config.mirrored,
        shifted=config.shifted,
        learner=made_for,
    )
    return starting_model(spec, learner).to(config.device)


def learn_stage_one(
    config: Config,
    split: Split,
    folder: RunFolder,
    stop: threading.Event | None = None,
    frozen: FrozenViews | None = None,
) -> Model:
    """Run stage 1, unless the folder already holds its result; the model then works with plain means."""
    model = new_model(config, split)
    if config.stage1_from is not None and not folder.stage_one_model.exists():
        folder.adopt_stage_one(RunFolder(Path(config.stage1_from)))
    if folder.stage_one_model.exists():
        folder.require_stage_one(model.spec, _trained_on(config), finetune=config.finetune)
        remove_file(folder.checkpoint(1))
        learned = load_model(folder.stage_one_model, config.extractor).to(config.device)
        learned.spec = model.spec
        return learned
    forget_views()
    if frozen is None and model.spec.centred:
        centre_on(model, split)
    teacher, seen_before = None, 0
    if config.stage1.teacher is not None:
        seen_before = require_teacher(folder.teacher, config, split.categories, _trained_on(config))
        teacher = load_teacher(folder.teacher, config)
    stage: BaseClassification | HeadClassification = (
        BaseClassification(model, split, config, teacher)
        if frozen is None
        else HeadClassification(model, split, config, frozen)
    )
    try:
        seconds = run_stage(stage, folder, stop) + (frozen.seconds if frozen else 0)
    except Stopped:
        save_trained(folder.model, model, config, validation=folder.validation(1))
        raise
    finally:
        stage.close()
    facts: dict[str, Any] = {
        "images_seen": seen_before + stage.images_seen,
        "stage1_seconds": round(seconds),
        "validation": folder.validation(1),
    }
    # From here on there is a usable model, whatever happens in stage 2.
    save_trained(folder.model, model, config, **facts)
    save_trained(folder.stage_one_model, model, config, **facts)
    remove_file(folder.checkpoint(1))
    draw_curves(folder)
    return model


def learn_stage_two(
    model: Model,
    config: Config,
    split: Split,
    folder: RunFolder,
    stop: threading.Event | None = None,
    views: Tensor | None = None,
    held_out: HeldOut | None = None,
) -> None:
    """Stage 2 on a model that has been through stage 1; leaves the finished model in the folder."""
    facts = stage_one_facts(folder)
    if not folder.model.exists():
        save_trained(folder.model, model, config, **facts)
    if config.learns_generator:
        began = time.monotonic()
        torch.manual_seed(step_seed(config.seed, 2, 0))
        model.replace_generator(config.generator, config.stage2.sharpness, shot_aware=config.shot_aware)
        if views is None:
            views = shared_views(model, split, config, stop)
        stage = EpisodicTraining(model, split, config, views, held_out)
        prepared = time.monotonic() - began
        try:
            facts["stage2_seconds"] = round(prepared + run_stage(stage, folder, stop))
        except Stopped:
            if stage.judged:  # an untrained generator is worse than plain means
                facts["validation"] = folder.validation(2)
                balance = (
                    _calibrate(model, config, split, stage.held_out) if config.balanced_by_bias else None
                )
                save_trained(folder.model, model, config, balance, **facts)
            raise
        facts |= {"episodes_seen": stage.steps * stage.episodes.count, "validation": folder.validation(2)}
        held_out = stage.held_out
    elif config.generator == "ridge":
        model.replace_generator("ridge")
        see_pictures(model, extract(model, split.base_train).features)
    calibration = _calibrate(model, config, split, held_out)
    if config.balanced_by_bias and held_out is not None:  # without the bias, Both says little
        found = _figures_as_predicted(model, config, split, held_out, calibration)
        facts["validation"] |= {"both_calibrated": found["both"]}
    save_trained(folder.model, model, config, calibration, finished=True, **facts)
    remove_file(folder.checkpoint(2))
    draw_curves(folder)


def stage_one_facts(folder: RunFolder) -> dict[str, Any]:
    """Return the provenance of a run's stage 1."""
    first = read_header(folder.stage_one_model).provenance
    return {name: first[name] for name in ("images_seen", "stage1_seconds", "validation") if name in first}


def _calibrate(model: Model, config: Config, split: Split, held_out: HeldOut | None) -> Calibration:
    """Calibrate; a failure here never costs a finished training."""
    try:
        features = held_out or Judgement(split, config.select_shots, config).features(model)
        return calibrate(model, *features, seed=config.seed, by_shots=config.balanced_by_bias)
    except Exception as error:  # noqa: BLE001
        reason = one_line(str(error).partition("\n")[0])
        log.warning("the model's scores are not calibrated: %s", reason)
        return Calibration()


def _figures_as_predicted(
    model: Model, config: Config, split: Split, held_out: HeldOut, calibration: Calibration
) -> dict[str, float]:
    """Return validation figures with the bias that `predict` adds."""
    score = with_bias(model_scores(model, *held_out), calibration)
    return Judgement(split, config.select_shots, config).figures(model, *held_out, score)


def _trained_on(config: Config) -> TrainedOn:
    return TrainedOn(split=config.split, skip_bad=config.skip_bad, key=config.data_key)


def save_trained(
    path: Path,
    model: Model,
    config: Config,
    calibration: Calibration | None = None,
    *,
    finished: bool = False,
    method: str = PAPER,
    **facts: Any,  # noqa: ANN401
) -> None:
    """Write a run's model file with its provenance."""
    provenance = {
        "finished": finished,
        **stamp(),
        "torch": torch.__version__,
        "machine": f"{platform.machine()}, {counted(config.threads or 1, 'thread')}, {config.device}",
        "config": config.model_dump(mode="json"),
        **({"weights_licence": licence} if (licence := licence_of(config.extractor)) else {}),
        **facts,
    }
    save_model(path, model, provenance, _trained_on(config), calibration, method)
