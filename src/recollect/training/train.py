"""A whole training: from a configuration to `model.safetensors` in a run folder."""

import platform
import threading
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from recollect import machine
from recollect.data.catalogue import load_data
from recollect.data.splits import Split, inline_split
from recollect.errors import ConfigError
from recollect.model.extractors import build_extractor
from recollect.model.model import Model
from recollect.model.spec import ModelSpec
from recollect.modelfile import load_model, read_header, save_model
from recollect.training.budget import fit_to_minutes
from recollect.training.config import Config
from recollect.training.loop import Stopped, run_stage, step_seed, stop_on_signals
from recollect.training.runfolder import RunFolder
from recollect.training.stage1 import BaseClassification, Judgement
from recollect.training.stage2 import EpisodicTraining, episodes_of, make_views


@dataclass(frozen=True)
class Trained:
    """What a training gave."""

    path: Path
    stopped: str | None = None  # where it was stopped, if it was


def train(config: Config, out: Path, *, resume: bool = False) -> Trained:
    """Train both stages in the folder `out`, or go on with the run there where it was interrupted."""
    folder = RunFolder(out)
    if resume:
        folder.require_same(config)
        if folder.model.exists() and read_header(folder.model).provenance.get("finished"):
            return Trained(out)
    else:
        folder.require_new()
    machine.find_device(config.device)
    build_extractor(
        config.extractor, size=config.size or 224
    )  # a wrong one is said before pictures are decoded
    split = load_data(config.data, size=config.size, split=config.split, skip_bad=config.skip_bad)
    if not resume:
        config = resolve(config, split)
        folder.keep(config)
    elif config.data_key != split.base_train.key:
        raise ConfigError(
            f"the pictures of {config.data} have changed since {out} was begun: start a new run"
        )
    machine.prepare(config.threads)
    with stop_on_signals() as stop:
        try:
            model = learn_base(config, split, folder, stop)
            learn_generator(model, config, split, folder, stop)
        except Stopped as reason:
            return Trained(out, str(reason))
    return Trained(out)


def resolve(config: Config, split: Split) -> Config:
    """Return the configuration with everything decided that was left open: threads, device, steps."""
    config = config.model_copy(
        update={
            "threads": machine.prepare(config.threads),
            "device": str(machine.find_device(config.device)),
            "split": inline_split(config.split),
            "stage1": config.stage1.resolved(len(split.base_train)),
            "data_key": split.base_train.key,
        }
    )
    model = new_model(config, split)
    if config.generator != "mean":
        episodes_of(split, config)
    Judgement(split, config.select_shots, config)  # refuses, by name, categories too small for a task
    return fit_to_minutes(config, model, split)


def new_model(config: Config, split: Split) -> Model:
    """Return an untrained model with plain means for a generator."""
    torch.manual_seed(step_seed(config.seed, 0, 0))
    spec = ModelSpec(
        extractor=config.extractor,
        last_relu=config.last_relu,
        classifier=config.classifier,
        generator="mean",
        preprocessing=split.base_train.preprocessing(),
        categories=split.categories,
    )
    return Model(spec).to(config.device)


def learn_base(config: Config, split: Split, folder: RunFolder, stop: threading.Event | None = None) -> Model:
    """Stage 1, unless the folder holds its result already; leaves a model that works with plain means."""
    if config.stage1_from is not None and not folder.stage_one_model.exists():
        folder.adopt_stage_one(RunFolder(Path(config.stage1_from)), new_model(config, split).spec)
    if folder.stage_one_model.exists():
        return load_model(folder.stage_one_model).to(config.device)
    model = new_model(config, split)
    try:
        seconds = run_stage(BaseClassification(model, split, config), folder, stop)
    except Stopped:
        save_model(folder.model, model, _provenance(config, finished=False))
        raise
    save_model(
        folder.stage_one_model,
        model,
        _provenance(config, finished=False, stage1_seconds=round(seconds)),
    )
    folder.checkpoint(1).unlink(missing_ok=True)
    return model


def learn_generator(
    model: Model,
    config: Config,
    split: Split,
    folder: RunFolder,
    stop: threading.Event | None = None,
    views: Tensor | None = None,
) -> None:
    """Stage 2 on a model that has been through stage 1; leaves the finished model in the folder."""
    first = read_header(folder.stage_one_model).provenance
    seconds = 0.0
    if config.generator != "mean":
        torch.manual_seed(step_seed(config.seed, 2, 0))
        model.replace_generator(config.generator, config.stage2.sharpness)
        if views is None:
            views = make_views(model, split, config)
        try:
            seconds = run_stage(EpisodicTraining(model, split, config, views), folder, stop)
        except Stopped:
            save_model(folder.model, model, _provenance(config, finished=False))
            raise
    facts = {
        "images_seen": first["images_seen"],
        "stage1_seconds": first["stage1_seconds"],
        "stage2_seconds": round(seconds),
    }
    save_model(folder.model, model, _provenance(config, finished=True, **facts))
    folder.checkpoint(2).unlink(missing_ok=True)


def _provenance(config: Config, *, finished: bool, **more: Any) -> dict[str, Any]:  # noqa: ANN401
    return {
        "finished": finished,
        "recollect": version("recollect"),
        "torch": torch.__version__,
        "machine": f"{platform.machine()}, {config.threads} threads, {config.device}",
        "images_seen": (config.stage1.steps or 0) * config.stage1.batch,
        "config": config.model_dump(mode="json"),
        **more,
    }
