"""What a reproduction of table 3 will do, fixed before it starts and kept in its folder."""

from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import torch
from pydantic import Field

from recollect.data.catalogue import kind_of, load_data
from recollect.data.lowshot import Groups, find_groups, half_of, read_groups
from recollect.data.splits import Split
from recollect.errors import ConfigError, DataError, counted
from recollect.evaluation.lowshot import DRAWS, SHOTS
from recollect.methods.lowshot import SYSTEMS
from recollect.model.spec import Value
from recollect.pretrained import is_pretrained
from recollect.reproduce.lowshot.rows import DECIDED, NAME, STAGE_ONE
from recollect.reproduce.plan import MOST_SEEDS, processor, recipe_of, shown
from recollect.reproduce.results import plan_file
from recollect.reproduce.rows import Settings
from recollect.system import machine
from recollect.system.disk import read_kept
from recollect.training.config import Config, LowShot, Positive, default_preset, make_config
from recollect.training.runfolder import RunFolder
from recollect.training.train import resolve

SPLIT, GROUPS = "split.json", "groups.json"  # files in its folder
_RECIPES = {
    "imagenet": "imagenet-lowshot",
    "cifar-fs": "cifar-100-lowshot",
    "mini-imagenet": "mini-imagenet-lowshot",
}


class LowShotPlan(Value):
    """Everything that determines the results; `note` alone may change."""

    table: Literal["table3"] = "table3"
    keys: Annotated[tuple[str, ...], Field(min_length=1)]
    data: str
    preset: str | None
    settings: Settings
    seeds: Annotated[int, Field(ge=1, le=MOST_SEEDS)]
    draws: Annotated[int, Field(ge=2, le=100_000)]
    shots: Annotated[tuple[Annotated[int, Field(ge=1, le=10_000)], ...], Field(min_length=1)]
    note: str | None
    groups: Groups
    steps: Positive  # of stage 1
    recipe: LowShot  # of the systems on features
    pictures: str  # what the training pictures were
    machine: str
    versions: str

    @property
    def trainings(self) -> list[tuple[str, int]]:
        """Return the stage 1 and the seed of every training that the rows stand on."""
        needed = {SYSTEMS[key].stage1 for key in self.keys}
        return [(kind, seed) for seed in range(self.seeds) for kind in STAGE_ONE if kind in needed]


def read_plan(folder: Path) -> LowShotPlan:
    """Return the plan of a reproduction that was begun in a folder."""
    path = plan_file(folder)
    try:
        plan = LowShotPlan.model_validate_json(read_kept(path))
        if {*plan.keys} <= {*SYSTEMS}:
            return plan
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror or error}") from error
    except ValueError:
        pass
    raise ConfigError(
        f"{path} is damaged, of another table, or was written by another version of recollect: choose "
        "another --out"
    )


def make_plan(
    folder: Path,
    data: str,
    *,
    split: str | None = None,
    methods: Sequence[str] | None = None,
    preset: str | None = None,
    settings: Mapping[str, str] | None = None,
    seeds: int = 1,
    draws: int | None = None,
    shots: Sequence[int] | None = None,
    note: str | None = None,
) -> LowShotPlan:
    """Return the plan kept in the folder, which must be for the same, or decide on one."""
    taken = sorted(DECIDED & set(settings or {}))
    if taken:
        raise ConfigError(f"--set {taken[0]}: the rows of {NAME} set it themselves")
    if not 1 <= seeds <= MOST_SEEDS:
        raise ConfigError(f"--seeds {seeds}: choose 1 to {MOST_SEEDS}")
    wrong = [name for name in methods or () if name not in SYSTEMS]
    if wrong:
        raise ConfigError(f"--methods {','.join(wrong)}: choose some of {','.join(SYSTEMS)}")
    asked: dict[str, Any] = {
        "keys": tuple(key for key in SYSTEMS if methods is None or key in methods),
        "data": shown(data),
        "preset": preset or _RECIPES.get(kind_of(data)) or default_preset(data),
        "settings": dict(settings or {}),
        "seeds": seeds,
        "draws": draws or DRAWS,
        "shots": tuple(sorted(set(shots or SHOTS))),
        "note": note,
    }
    if plan_file(folder).exists():
        return _begun(folder, asked, split)
    if RunFolder(folder).begun():
        raise ConfigError(f"{folder} is the folder of a single run: choose another --out")
    config = make_config(recipe_of(asked["preset"]), {"data": data}, asked["settings"])
    if is_pretrained(config.extractor):
        raise ConfigError(f"reproduce is of the paper's extractors, and '{config.extractor}' is none of them")
    groups = find_groups(data, split, _all_categories(data, config))
    pictures = load_pictures(data, config, groups)
    for part in ("val", "test"):
        half_of(pictures, groups, part, max(asked["shots"]))
    _require_examples(pictures, max(asked["shots"]))
    device = machine.find_device(config.device)
    plan = LowShotPlan(
        **asked,
        groups=groups,
        steps=config.stage1.resolved(len(pictures.base_train)).steps or 1,
        recipe=config.lowshot,
        pictures=pictures.base_train.key,
        machine=f"{processor()}, {counted(machine.prepare(config.threads), 'thread')}, {device}",
        versions=f"recollect {version('recollect')}, torch {torch.__version__}",
    )
    for kind, seed in plan.trainings:
        resolve(stage_one_config(plan, kind, seed, data), pictures)
    return plan


def _begun(folder: Path, asked: dict[str, Any], split: str | None) -> LowShotPlan:
    """Return the plan in the folder; refuse one of something else."""
    plan = read_plan(folder)
    if split is not None:
        asked = {**asked, "groups": read_groups(split)}
    other = [name for name in sorted(asked.keys() - {"note"}) if getattr(plan, name) != asked[name]]
    if other:
        words = "; ".join(
            f"{name}" if name == "groups" else f"{name}: {getattr(plan, name)} → {asked[name]}"
            for name in other
        )
        raise ConfigError(f"{folder} holds another reproduction ({words}): choose another --out")
    return plan if asked["note"] is None else plan.model_copy(update={"note": asked["note"]})


def _all_categories(data: str, config: Config) -> list[str]:
    """Return the categories of the data, however their own split has them."""
    whole = load_data(data, size=config.size, skip_bad=config.skip_bad, cache_gb=config.cache_gb)
    reserved = [part.categories for part in (whole.val, whole.test) if part is not None]
    return sorted({*whole.categories, *(name for names in reserved for name in names)})


def load_pictures(data: str, config: Config, groups: Groups) -> Split:
    """Load the data, split as the benchmark has it."""
    return load_data(
        data, size=config.size, split=groups.reserved, skip_bad=config.skip_bad, cache_gb=config.cache_gb
    )


def _require_examples(pictures: Split, most: int) -> None:
    """Refuse base categories too small to act as novel ones with `most` examples and a query."""
    sizes = np.bincount(pictures.base_train.labels, minlength=len(pictures.categories))
    for name, size in zip(pictures.categories, sizes.tolist(), strict=True):
        if size <= most:
            raise DataError(
                f"base category '{name}' has {size} training pictures, and to act as a novel "
                f"one of {most} shots it needs {most + 1}: add pictures, or use fewer --shots"
            )


def stage_one_config(plan: LowShotPlan, kind: str, seed: int, data: str) -> Config:
    """Return the configuration of the training of a stage 1: an ordinary one with plain means."""
    options = {"data": data, "seed": seed, "split": plan.groups.reserved}
    return make_config(recipe_of(plan.preset), options, stage_one_settings(plan, kind))


def stage_one_settings(plan: LowShotPlan, kind: str) -> Settings:
    """Return the settings of the training of a stage 1."""
    own = {key: value for key, value in plan.settings.items() if not key.startswith("lowshot.")}
    return {**own, "stage1.steps": str(plan.steps), "generator": "mean", **STAGE_ONE[kind]}
