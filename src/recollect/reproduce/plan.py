"""What a reproduction will do, fixed before it starts and kept in its folder."""

import os
import platform
import shlex
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from math import inf
from pathlib import Path
from typing import Annotated, Any

import torch
from pydantic import Field

from recollect.data.catalogue import kind_of, load_data
from recollect.data.splits import Part, Split
from recollect.data.tasks import TaskShape, task_sampler
from recollect.errors import ConfigError, DataError, counted
from recollect.methods import find_method
from recollect.model.spec import Value
from recollect.modelfile import PAPER, fingerprint, load_model
from recollect.pretrained import is_pretrained
from recollect.reproduce.results import plan_file, result_file, write_json
from recollect.reproduce.rows import SHOTS, TABLES, TASK_SEED, Row, Settings, Table, Training
from recollect.system import machine
from recollect.system.disk import read_kept
from recollect.training.budget import Speed, judged_pictures, measure
from recollect.training.config import (
    Config,
    Positive,
    default_preset,
    make_config,
    preset_names,
    read_preset,
)
from recollect.training.runfolder import RunFolder
from recollect.training.train import new_model, resolve

MOST_SEEDS = 1000
_MARGIN = 0.9
# The numbers of steps and nothing else: another setting could name code to import.
Decided = dict[
    Annotated[str, Field(pattern=r"^stage[12]\.steps$")], Annotated[str, Field(pattern=r"^\d{1,10}$")]
]
_RECIPES = {  # where a table does not take the data's usual one
    ("table1", "cifar-fs"): "cifar-fs-c64f-table",
    ("table1", "mini-imagenet"): "mini-imagenet-c128f-table",
    ("table2", "cifar-fs"): "cifar-fs-c64f",
}


class Plan(Value):
    """Everything that determines a reproduction's results, except where the data and the results are.

    Rows and seeds may be added, and `note` may change.
    """

    table: str
    keys: Annotated[tuple[str, ...], Field(min_length=1)]  # of its rows
    data: str  # its kind and the last part of its path
    preset: str | None
    settings: Settings  # that were asked for, of every training
    decided: dict[str, Decided]  # by preset
    seeds: Annotated[int, Field(ge=1, le=MOST_SEEDS)]
    tasks: Positive
    queries: Positive | None  # of each novel category; default: what is usual for the data
    minutes: float | None
    note: str | None  # a remark for the page
    pictures: str  # what the training pictures were
    machine: str
    versions: str

    @property
    def rows(self) -> Table:
        """Return the table that is reproduced."""
        return TABLES[self.table].only(self.keys)


def read_plan(folder: Path) -> Plan:
    """Return the plan of a reproduction that was begun in a folder."""
    path = plan_file(folder)
    try:
        plan = Plan.model_validate_json(read_kept(path))
        if plan.table in TABLES and {*plan.keys} <= {row.key for row in TABLES[plan.table].rows}:
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
    extractors: Sequence[str] | None = None,
    methods: Sequence[str] | None = None,
    preset: str | None = None,
    settings: Mapping[str, str] | None = None,
    seeds: int = 1,
    tasks: int | None = None,
    queries: int | None = None,
    minutes: float | None = None,
    note: str | None = None,
) -> Plan:
    """Return the plan kept in the folder, which must be for the same, or decide on one.

    Rows and seeds that are asked for are added to those of a plan, unless its minutes were shared out among
    these.
    """
    taken = sorted(TABLES[table].decided & set(settings or {}))
    if taken:
        raise ConfigError(f"--set {taken[0]}: the rows of {table} set it themselves")
    if not 1 <= seeds <= MOST_SEEDS:
        raise ConfigError(f"--seeds {seeds}: choose 1 to {MOST_SEEDS}")
    if minutes is not None and not 0 < minutes < inf:
        raise ConfigError(f"--minutes {minutes:g}: a number above 0 is needed")
    asked: dict[str, Any] = {
        "table": table,
        "keys": _keys(TABLES[table], extractors, methods),
        "data": shown(data),
        "preset": preset or usual_preset(table, data),
        "seeds": seeds,
        "tasks": tasks or TABLES[table].tasks,
        "queries": queries,
        "minutes": minutes,
        "note": note,
        "settings": dict(settings or {}),
    }
    if plan_file(folder).exists():
        plan = read_plan(folder)
        begun = plan.model_dump()
        if minutes is None:
            both = {*plan.keys, *asked["keys"]}
            asked["keys"] = tuple(row.key for row in TABLES[table].rows if row.key in both)
            asked["seeds"] = max(plan.seeds, seeds)
        fixed = asked.keys() - ({"note"} if minutes is not None else {"note", "keys", "seeds"})
        other = [
            f"{name}: {begun[name]} → {asked[name]}" for name in sorted(fixed) if begun[name] != asked[name]
        ]
        if other:
            raise ConfigError(
                f"{folder} holds another reproduction ({'; '.join(other)}): choose another --out"
            )
        own = {"seeds": asked["seeds"]} | ({} if note is None else {"note": note})
        plan = plan.model_copy(update=own)
        return plan if plan.keys == asked["keys"] else _with_rows(plan, asked["keys"], data)
    if RunFolder(folder).begun():
        raise ConfigError(f"{folder} is the folder of a single run: choose another --out")
    config, split = _common(asked["preset"], data, asked["settings"])
    require_tasks(split, data, TABLES[table].part, queries)
    threads = machine.prepare(config.threads)
    plan = Plan(
        **asked,
        decided={},
        pictures=split.base_train.key,
        machine=f"{processor()}, {counted(threads, 'thread')}, {machine.find_device(config.device)}",
        versions=f"recollect {version('recollect')}, torch {torch.__version__}",
    )
    plan = _with_steps(plan, data, split)
    _require_trainable(plan, data, split)
    if minutes is not None:
        plan = _with_steps(plan, data, split, affordable(plan, data, split))
    return plan


def usual_preset(table: str, data: str) -> str | None:
    """Return the recipe of a table where none is asked for."""
    return _RECIPES.get((table, kind_of(data))) or default_preset(data)


def _with_rows(plan: Plan, keys: tuple[str, ...], data: str) -> Plan:
    """Return the plan with more rows; the steps of those that it had stay."""
    _, split = _common(plan.preset, data, plan.settings)
    more = _with_steps(plan.model_copy(update={"keys": keys}), data, split)
    more = more.model_copy(update={"decided": {**more.decided, **plan.decided}})
    _require_trainable(more, data, split)
    return more


def _require_trainable(plan: Plan, data: str, split: Split) -> None:
    for training in plan.rows.trainings(1):
        wanted = wanted_config(plan, training, data, split)
        find_method(wanted.method).check(wanted, split)


def _keys(table: Table, extractors: Sequence[str] | None, methods: Sequence[str] | None) -> tuple[str, ...]:
    """Return the rows that are reproduced: the usual ones, or those of extractors and methods asked for."""
    if extractors is None and methods is None:
        return table.usual
    if extractors is not None and not table.extractors:
        raise ConfigError(
            f"--extractors: all rows of {table.name} have the same, which --set extractor=… sets"
        )
    if methods is not None and not table.methods:
        raise ConfigError(f"--methods: {table.name} has always all of them; table2 takes some")
    known = {"--extractors": (extractors, table.extractors), "--methods": (methods, table.methods)}
    for option, (asked, rows) in known.items():
        wrong = [name for name in asked or () if name not in rows]
        if wrong or asked == []:
            raise ConfigError(f"{option} {','.join(wrong)}: choose some of {','.join(rows)}")
    chosen = {*(extractors or ()), *(methods or ())}
    return tuple(row.key for row in table.rows if row.key in chosen)


def _with_steps(plan: Plan, data: str, split: Split, share: float = 1.0) -> Plan:
    """Return the plan with the number of steps of each recipe, or a share of it."""
    decided = {}
    for training in plan.rows.trainings(1):
        config = config_of(plan, training, data)
        steps = {
            "stage1.steps": config.stage1.resolved(len(split.base_train)).steps or 1,
            "stage2.steps": config.stage2.steps,
        }
        decided[config.preset or ""] = {
            name: str(max(1, round(share * number))) for name, number in steps.items()
        }
    return plan.model_copy(update={"decided": decided})


def _common(preset: str | None, data: str, settings: Settings) -> tuple[Config, Split]:
    """Return what all trainings have in common: the recipe, with what was asked for, and the pictures."""
    config = make_config(recipe_of(preset), {"data": data}, settings)
    if is_pretrained(config.extractor):
        raise ConfigError(f"reproduce is of the paper's extractors, and '{config.extractor}' is none of them")
    return config, load_data(
        data, size=config.size, split=config.split, skip_bad=config.skip_bad, cache_gb=config.cache_gb
    )


def recipe_of(preset: str | None) -> dict[str, Any]:
    """Return what a preset states, nothing without one."""
    return read_preset(preset) if preset else {}


def keep_plan(folder: Path, plan: Plan) -> None:
    """Write the plan, before anything is done."""
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


def affordable(plan: Plan, data: str, split: Split) -> float:
    """Return the factor for all steps with which the whole table fits into the plan's minutes."""
    minutes = plan.minutes or inf
    learning = waiting = 0.0
    fewest = 1.0  # steps of stage 1 for each of its evaluations
    judged = judged_pictures(split)
    speeds: dict[str, Speed] = {}
    viewed: set[str] = set()
    for training in plan.rows.trainings(plan.seeds):
        config = config_of(plan, training, data)
        ours, stage1 = config.method == PAPER, config.stage1
        own = find_method(config.method) if training.row.key in plan.rows.methods else None
        kind = training.cost if own else config.extractor
        if kind not in speeds:
            config = config.model_copy(update={"device": str(machine.find_device(config.device))})
            measured = own.settled(config) if own else config.model_copy(update={"generator": "attention"})
            speeds[kind] = (own.speed if own else measure)(measured, new_model(measured, split), split)
        speed = speeds[kind]
        waiting += speed.picture * judged * (own.settled(config) if own else config).places
        if training.stage1 is None:
            mean = speed.stage1_mean(stage1, split.base_train.size) if ours else speed.stage1_step
            learning += mean * (stage1.steps or 1)
            waiting += speed.picture * judged * stage1.evaluations
            fewest = min(fewest, (stage1.steps or 1) / stage1.evaluations)
        if ours and config.learns_generator:
            learning += speed.stage2_step * config.stage2.steps
            first = training.stage1 or training.name  # generators on one stage 1 share its views
            waiting += 0 if first in viewed else speed.picture * config.stage2.views * len(split.base_train)
            viewed.add(first)
    share = (60 * minutes * _MARGIN - waiting) / learning
    if share * fewest < 1:
        raise ConfigError(
            f"--minutes {minutes:g} is too short here: all trainings of {plan.table} as the recipe has them "
            f"take {(learning + waiting) / 60:.0f} minutes, of which {waiting / 60:.0f} cannot be saved"
        )
    return share


def preset_of(plan: Plan, row: Row) -> str | None:
    """Return the recipe of a row: the plan's preset, or the like for the row's own method or extractor.

    Where the plan says `mini-imagenet-c64f`, a row of c32f takes `mini-imagenet-c32f`, and MAML
    `mini-imagenet-maml`.
    """
    extractor = row.settings.get("extractor")
    if plan.preset is None or extractor is None:
        return plan.preset
    usual = read_preset(plan.preset).get("extractor", "")
    likes = [plan.preset.replace(f"-{usual}", f"-{own}") for own in (row.method, extractor) if own]
    return next((like for like in likes if like in preset_names()), plan.preset)


def settings_of(plan: Plan, training: Training, runs: str) -> Settings:
    """Return all settings of a training; `runs` is how to write the folder of the runs."""
    own = dict(training.row.settings)
    if training.shots is not None:
        own["shots"] = str(training.shots)
    if training.stage1 is not None:
        own["stage1_from"] = f"{runs}/{training.stage1}"
    decided = plan.decided.get(preset_of(plan, training.row) or "", {})
    return {**plan.rows.settings, **plan.settings, **decided, **own}


def config_of(plan: Plan, training: Training, data: str, folder: Path | None = None) -> Config:
    """Return the configuration of a training."""
    options = {"data": data, "seed": training.seed}
    runs = str((folder or Path()) / "runs")
    return make_config(recipe_of(preset_of(plan, training.row)), options, settings_of(plan, training, runs))


def wanted_config(plan: Plan, training: Training, data: str, split: Split, *, begun: bool = False) -> Config:
    """Return the configuration of a training as its run keeps it, except where its stage 1 comes from.

    A run that has `begun` keeps a copy of its teacher, which may be gone from where it was.
    """
    config = config_of(plan, training, data)
    own = find_method(config.method).settled(config).model_copy(update={"stage1_from": None})
    teacher = own.stage1.teacher
    if not begun or teacher is None:
        return resolve(own, split)
    alone = own.model_copy(update={"stage1": own.stage1.model_copy(update={"teacher": None})})
    found = resolve(alone, split)
    return found.model_copy(update={"stage1": found.stage1.model_copy(update={"teacher": teacher})})


def require_runs(plan: Plan, trainings: Sequence[Training], data: str, folder: Path) -> None:
    """Refuse to go on with other pictures, or with runs that are not those of the plan.

    A run may have been trained on its own beforehand: what counts is its configuration.
    """
    _, split = _common(plan.preset, data, plan.settings)
    if split.base_train.key != plan.pictures:
        raise ConfigError(
            f"the pictures of {data} are not those that this was begun with: choose another --out"
        )
    for training in trainings:
        run = RunFolder(folder / "runs" / training.name)
        if run.begun():
            run.require_pictures(data, split.base_train.key)
            wanted = wanted_config(plan, training, data, split, begun=True)
            # Where a reproduction was moved, the same stage 1 has another path.
            begun = run.config()
            taken = begun.stage1_from if training.stage1 is not None else None
            run.require_same(wanted.model_copy(update={"stage1_from": taken}))
            _require_stage_one(run, folder, training)


def _require_stage_one(run: RunFolder, folder: Path, training: Training) -> None:
    """Refuse a run on another stage 1 than that of the table, whose rows are compared on the same."""
    if training.stage1 is None:
        return
    own, first = run.stage_one_model, RunFolder(folder / "runs" / training.stage1).stage_one_model
    if own.exists() and first.exists() and fingerprint(load_model(own)) != fingerprint(load_model(first)):
        raise ConfigError(
            f"{run.path} was built on a different stage 1 from that of {training.stage1}: to have it trained "
            f"again, delete it and, if it is there, {result_file(folder, training.name)}"
        )


def commands_of(plan: Plan, training: Training) -> list[str]:
    """Return the commands that do the same as a training and its evaluation, inside the folder."""
    data, out = shlex.quote(plan.data), f"runs/{training.name}"
    words = ["recollect", "train", data]
    preset = preset_of(plan, training.row)
    words += ["--preset", preset] if preset else []
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
    name = names[0] if names else platform.processor() or platform.machine()
    return f"{counted(os.cpu_count() or 1, 'logical core')} of {name}"
