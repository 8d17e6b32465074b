"""What a reproduction will do, fixed before it starts and kept in its folder."""

import os
import platform
import shlex
from collections.abc import Mapping
from importlib.metadata import version
from math import inf
from pathlib import Path
from typing import Annotated, Any

import torch
from pydantic import Field

from recollect.data.catalogue import load_data
from recollect.data.splits import Part, Split
from recollect.data.tasks import TaskShape, task_sampler
from recollect.errors import ConfigError, DataError
from recollect.methods import find_method
from recollect.model.spec import Value
from recollect.pretrained import is_pretrained
from recollect.reproduce.results import write_json
from recollect.reproduce.rows import SELECTED, SHOTS, TABLES, TASK_SEED, Settings, Table, Training
from recollect.system import machine
from recollect.system.disk import read_kept
from recollect.training.budget import Speed, judged_pictures, measure
from recollect.training.config import Config, Positive, default_preset, make_config, read_preset
from recollect.training.stage1 import BalancedBatches
from recollect.training.train import new_model, resolve

MOST_SEEDS = 1000
_MARGIN = 0.9
# The numbers of steps and nothing else: another setting could name code to import.
Decided = dict[
    Annotated[str, Field(pattern=r"^stage[12]\.steps$")], Annotated[str, Field(pattern=r"^\d{1,10}$")]
]
_RECIPES = {"cifar-fs": "cifar-fs-c64f-table"}  # where the tables have one of their own


class Plan(Value):
    """Everything that determines a reproduction's results, except where the data and the results are."""

    table: str
    data: str  # its kind and the last part of its path
    preset: str | None
    settings: Settings  # that were asked for, of every training
    decided: Decided
    seeds: Annotated[int, Field(ge=1, le=MOST_SEEDS)]
    tasks: Positive
    queries: Positive | None  # of each novel category; default: what is usual for the data
    minutes: float | None
    images: int  # that every training of an extractor sees, the last few of an episode more or less
    pictures: str  # what the training pictures were
    machine: str
    versions: str

    @property
    def rows(self) -> Table:
        """Return the table that is reproduced."""
        return TABLES[self.table]


def plan_file(folder: Path) -> Path:
    """Return where a reproduction's plan lies."""
    return folder / "plan.json"


def read_plan(folder: Path) -> Plan:
    """Return the plan of a reproduction that was begun in a folder."""
    path = plan_file(folder)
    try:
        plan = Plan.model_validate_json(read_kept(path))
        if plan.table in TABLES:
            return plan
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror or error}") from error
    except ValueError:
        pass
    raise ConfigError(
        f"{path} is damaged, or was written by another version of recollect: choose another --out"
    )


def make_plan(
    folder: Path,
    table: str,
    data: str,
    *,
    preset: str | None = None,
    settings: Mapping[str, str] | None = None,
    seeds: int = 1,
    tasks: int | None = None,
    queries: int | None = None,
    minutes: float | None = None,
) -> Plan:
    """Return the plan kept in the folder, which must be for the same, or decide on one."""
    taken = sorted(TABLES[table].decided & set(settings or {}))
    if taken:
        raise ConfigError(f"--set {taken[0]}: the rows of {table} set it themselves")
    if not 1 <= seeds <= MOST_SEEDS:
        raise ConfigError(f"--seeds {seeds}: choose 1 to {MOST_SEEDS}")
    if minutes is not None and not 0 < minutes < inf:
        raise ConfigError(f"--minutes {minutes:g}: a number above 0 is needed")
    preset = preset or _RECIPES.get(data.partition(":")[0]) or default_preset(data)
    asked: dict[str, Any] = {
        "table": table,
        "data": shown(data),
        "preset": preset,
        "seeds": seeds,
        "tasks": tasks or TABLES[table].tasks,
        "queries": queries,
        "minutes": minutes,
        "settings": dict(settings or {}),
    }
    if plan_file(folder).exists():
        plan = read_plan(folder)
        begun = plan.model_dump()
        other = [f"{name}: {begun[name]} → {asked[name]}" for name in asked if begun[name] != asked[name]]
        if other:
            raise ConfigError(
                f"{folder} holds another reproduction ({'; '.join(other)}): choose another --out"
            )
        return plan
    config, split = _common(preset, data, asked["settings"])
    require_tasks(split, data, TABLES[table].part, queries)
    threads = machine.prepare(config.threads)
    stage1 = config.stage1.resolved(len(split.base_train))
    config = config.model_copy(update={"stage1": stage1, "device": str(machine.find_device(config.device))})
    share = 1.0 if minutes is None else affordable(config, split, TABLES[table], seeds, minutes)
    steps = max(1, round(share * (stage1.steps or 1)))
    plan = Plan(
        **asked,
        decided={"stage1.steps": str(steps), "stage2.steps": str(max(1, round(share * config.stage2.steps)))},
        images=steps * BalancedBatches(split.base_train.labels, stage1.batch, 0).batch,
        pictures=split.base_train.key,
        machine=f"{processor()}, {threads} threads, {config.device}",
        versions=f"recollect {version('recollect')}, torch {torch.__version__}",
    )
    for training in plan.rows.trainings(1):
        own = config_of(plan, training, data, folder).model_copy(update={"stage1_from": None})
        method = find_method(own.method)
        method.check(resolve(method.settled(own), split), split)
    return plan


def _common(preset: str | None, data: str, settings: Settings) -> tuple[Config, Split]:
    """Return what all trainings have in common: the recipe, with what was asked for, and the pictures."""
    config = make_config(_recipe(preset), {"data": data}, settings)
    if is_pretrained(config.extractor):
        raise ConfigError(f"reproduce is of the paper's extractors, and '{config.extractor}' is none of them")
    return config, load_data(data, size=config.size, split=config.split, skip_bad=config.skip_bad)


def _recipe(preset: str | None) -> dict[str, Any]:
    return read_preset(preset) if preset else {}


def require_pictures(plan: Plan, data: str) -> None:
    """Refuse to go on with other pictures than those that a reproduction was begun with."""
    _, split = _common(plan.preset, data, plan.settings)
    if split.base_train.key != plan.pictures:
        raise ConfigError(
            f"the pictures of {data} are not those that this was begun with: choose another --out"
        )


def keep_plan(folder: Path, plan: Plan) -> None:
    """Write the plan, before anything is done."""
    if not plan_file(folder).exists():
        write_json(plan_file(folder), plan.model_dump())


def require_tasks(split: Split, data: str, part: Part, queries: int | None) -> None:
    """Refuse data that the tasks of a table cannot be drawn from."""
    if split.val is None or split.test is None:
        raise DataError(
            f"{shown(data)} reserves no validation and test categories, on which the tables are measured: "
            "--set split='\"1\"' reserves some of a folder's"
        )
    novel, base = split.evaluated(part)
    task_sampler(base, novel).check(TaskShape(5, max(SHOTS), queries or split.queries))


def affordable(config: Config, split: Split, table: Table, seeds: int, minutes: float) -> float:
    """Return the factor for all steps with which the whole table fits into `minutes`."""
    learning = waiting = 0.0
    judged = judged_pictures(split)
    speeds: dict[str, Speed] = {}
    for training in table.trainings(seeds):
        extractor = training.row.settings.get("extractor", config.extractor)
        if extractor not in speeds:
            own = config.model_copy(update={"extractor": extractor, "generator": "attention"})
            speeds[extractor] = measure(own, new_model(own, split), split)
        speed = speeds[extractor]
        waiting += speed.picture * judged
        if training.kind == "extractor":
            learning += speed.stage1_step * (config.stage1.steps or 1)
            waiting += speed.picture * judged * config.stage1.evaluations
        elif training.kind == "generator":
            learning += speed.stage2_step * config.stage2.steps
            waiting += speed.picture * config.stage2.views * len(split.base_train)
    share = (60 * minutes * _MARGIN - waiting) / learning
    if share * (config.stage1.steps or 1) < config.stage1.evaluations:
        raise ConfigError(
            f"--minutes {minutes:g} is too short here: all trainings of {table.name} as the recipe has them "
            f"take {(learning + waiting) / 60:.0f} minutes, of which {waiting / 60:.0f} cannot be saved"
        )
    return share


def settings_of(plan: Plan, training: Training, runs: str) -> Settings:
    """Return all settings of a training; `runs` is how to write the folder of the runs."""
    own = dict(training.row.settings)
    if training.shots is not None:
        own["shots"] = str(training.shots)
    if training.stage1 is not None:
        own["stage1_from"] = f"{runs}/{training.stage1}"
    return {**SELECTED, **plan.settings, **plan.decided, **own}


def config_of(plan: Plan, training: Training, data: str, folder: Path) -> Config:
    """Return the configuration of a training."""
    options = {"data": data, "seed": training.seed}
    return make_config(_recipe(plan.preset), options, settings_of(plan, training, str(folder / "runs")))


def commands_of(plan: Plan, training: Training) -> list[str]:
    """Return the commands that do the same as a training and its evaluation, inside the folder."""
    data, out = shlex.quote(plan.data), f"runs/{training.name}"
    words = ["recollect", "train", data]
    words += ["--preset", plan.preset] if plan.preset else []
    words += [*set_words(settings_of(plan, training, "runs")), "--seed", str(training.seed), "--out", out]
    shots = ",".join(map(str, training.evaluated))
    evaluation = f"recollect evaluate {out} {data} --categories {plan.rows.part} --shots {shots}"
    return [" ".join(words), f"{evaluation}{tasks_words(plan)} --seed {TASK_SEED}"]


def set_words(settings: Settings) -> list[str]:
    """Return settings as a command has them."""
    return [f"--set {shlex.quote(f'{key}={value}')}" for key, value in settings.items()]


def tasks_words(plan: Plan) -> str:
    """Return the options that say which tasks are drawn."""
    return f" --tasks {plan.tasks}" + ("" if plan.queries is None else f" --queries {plan.queries}")


def shown(data: str) -> str:
    """Return DATA without the folders it is in, which do not concern a page's readers.

    >>> shown("cifar-fs:/home/ann/images.zip"), shown("/home/ann/photos/"), shown("glyphs")
    ('cifar-fs:images.zip', 'photos', 'glyphs')
    """
    kind, colon, path = data.partition(":")
    if not colon or os.path.exists(data):  # noqa: PTH110 -- never raises
        return Path(data).name or data
    return f"{kind}:{Path(path).name}"


def processor() -> str:
    """Return what the machine computes with."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    except OSError:
        names = []
    return f"{os.cpu_count()} × {names[0] if names else platform.processor() or platform.machine()}"
