"""A training's configuration: typed, with our defaults; a preset states only what differs."""

import copy
import tomllib
from collections.abc import Mapping
from difflib import get_close_matches
from importlib import resources
from math import ceil
from operator import attrgetter
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError

from recollect.data.catalogue import kind_of
from recollect.data.imageset import CACHE_GB
from recollect.errors import ConfigError
from recollect.model.spec import MOST_SIZE, PLACES, ClassifierKind, GeneratorKind, Value
from recollect.modelfile import PAPER
from recollect.pretrained import is_pretrained
from recollect.training.losses import LossKind
from recollect.training.schedules import OneCycle, Steps

Schedule = Annotated[OneCycle | Steps, Field(discriminator="kind")]
Positive = Annotated[int, Field(ge=1, lt=2**31)]
# Sections that runs begun with an older version lack. At their defaults they change nothing in such a run.
NEWER_SECTIONS = ("meta",)


def _added(default: object) -> Any:  # noqa: ANN401
    """Leave a setting that later versions added out of files where it has its default.

    The configuration of a run that was begun before then still says neither more nor less than ours.
    """
    return Field(exclude_if=lambda value: value == default)


class SmallFirst(Value):
    """Pictures of `size` × `size` for the first part of the steps, which then take less time."""

    size: Annotated[int, Field(ge=1, le=MOST_SIZE)]
    until: Annotated[float, Field(ge=0, le=1)] = 0.5  # share of the steps


class StageOne(Value):
    """Ordinary classification of the base categories: θ, W_base and τ are learned."""

    passes: Annotated[float, Field(gt=0, le=1e6)] = (
        40  # over the training pictures, where `steps` is not said
    )
    min_steps: Positive = 500  # a small folder is passed over more often
    steps: Positive | None = None
    batch: Annotated[int, Field(ge=2, lt=2**31)] = 128
    schedule: Schedule = OneCycle(kind="one-cycle", peak=0.1)
    momentum: Annotated[float, Field(gt=0, lt=1)] = 0.9
    weight_decay: Annotated[float, Field(ge=0)] = 5e-4
    muon: Annotated[float, Field(ge=0)] = 0.0  # convolutions: orthogonal steps of this times the rate; 0: SGD
    pad: Annotated[int, Field(ge=0, le=4096)] | None = None  # default: a tenth of the picture's size
    small: SmallFirst | None = None
    evaluations: Positive = 10  # how often a model may be selected
    loss: Annotated[LossKind, _added("cross-entropy")] = "cross-entropy"
    crops: Annotated[bool, _added(False)] = False  # random-resized crops in place of padded ones
    jitter: Annotated[float, Field(ge=0, lt=1), _added(0.0)] = 0.0  # of brightness, contrast, saturation
    flip: Annotated[bool, _added(True)] = True  # where a mirror image is of the same category
    teacher: Annotated[str | None, _added(None)] = None  # a model that knows these categories, to distil

    def small_share(self, size: int) -> float:
        """Return the time of the whole stage, relative to one with all pictures of `size` × `size`."""
        return 1 - self.small.until * (1 - (self.small.size / size) ** 2) if self.small else 1.0

    def resolved(self, pictures: int) -> "StageOne":
        """Return the same with the number of steps for this many training pictures."""
        if self.steps is not None:
            return self
        return self.model_copy(
            update={"steps": max(self.min_steps, ceil(self.passes * pictures / self.batch))}
        )


class StageTwo(Value):
    """Episodes on cached features: φ, keys and γ are learned, W_base and τ go on learning."""

    steps: Positive = 6000
    episodes: Positive = 8  # in a step
    ways: Positive = 5  # fake-novel categories of an episode
    queries: Positive = 3  # of each fake-novel category
    base_queries: Positive = 15
    max_shots: Positive = 5  # the most N' that `shots = "mixed"` draws, above 5 the less often, the larger
    views: Positive = 8  # augmented views of every training picture
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.25  # of features in an episode
    sharpness: Annotated[float, Field(gt=0)] = 10  # where γ starts
    learn_base: bool = True  # W_base and τ go on learning
    schedule: Schedule = OneCycle(kind="one-cycle", peak=0.1)
    momentum: Annotated[float, Field(gt=0, lt=1)] = 0.9
    weight_decay: Annotated[float, Field(ge=0)] = 5e-4
    evaluations: Positive = 10


class EpisodicRecipe(Value):
    """Episodes of pictures, for methods that learn from nothing else; the rest of their recipe is stage 1's.

    Their steps are as many as show about the same number of pictures as stage 1.
    """

    ways: Annotated[int, Field(ge=2, lt=2**31)] = 5
    queries: Positive = 6  # of each category
    episodes: Positive = 8  # in a step


class LowShot(Value):
    """The systems of the low-shot benchmark (table 3), which learn from saved features of stage 1.

    Steps of learning from episodes have one episode each, in which a `share` of the base categories acts as
    novel ones: 250 of 389 in the paper, with 1500 queries of these and 750 of the others.
    """

    steps: Positive = 1500
    share: Annotated[float, Field(gt=0, lt=1)] = 250 / 389
    queries: Positive = 6  # of each category that acts as a novel one; of the others in all half as many
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.5  # of features, while generators learn
    sharpness: Annotated[float, Field(gt=0)] = 30.0  # where γ starts
    schedule: Schedule = OneCycle(kind="one-cycle", peak=0.01)
    momentum: Annotated[float, Field(gt=0, lt=1)] = 0.9
    weight_decay: Annotated[float, Field(ge=0)] = 5e-4
    network_rate: Annotated[float, Field(gt=0)] = 1e-3  # Adam's, for networks on features
    logistic_steps: Positive = 300
    logistic_batch: Positive = 1000
    logistic_rate: Annotated[float, Field(gt=0)] = 0.1
    logistic_decay: Annotated[float, Field(ge=0)] = 1e-3
    centroids: Positive = 100  # of a base category, between which analogies are sought
    fill: Positive = 20  # examples that a novel category has after hallucination


class MetaRecipe(Value):
    """What methods that learn to learn have of their own: MAML, Meta-LSTM, temporal convolutions.

    Their outer optimiser is Adam; everything else is the recipe of episodes.
    """

    rate: Annotated[float, Field(gt=0)] | None = None  # Adam's, at its highest; default: the method's own
    schedule: Literal["one-cycle", "constant"] = "one-cycle"
    inner_steps: Positive | None = None  # of gradient descent on a support, in training; default: the same
    test_steps: Positive | None = None  # of it on a new task; default: the same
    inner_rate: Annotated[float, Field(gt=0)] = 0.01
    learn_rates: bool = False  # MAML: the inner rate of every layer is learned, and so starts there
    first_order: Annotated[float, Field(ge=0, le=1)] = 0  # MAML: share of the run that is of first order
    zero_head: Annotated[bool, _added(False)] = False  # MAML: the head starts at zero, and not at random
    # Of the pictures that a method from a trained classifier sees, the share by which that is trained.
    classify: Annotated[float, Field(gt=0, lt=1), _added(0.5)] = 0.5


class Config(Value):
    """Everything that determines the trained weights."""

    preset: str | None = None
    method: str = PAPER  # the paper's model, or one that it is compared with
    data: str
    extractor: str = "c64f"
    finetune: bool = False  # also train a pretrained extractor
    last_relu: bool = False
    mirrored: bool = False  # once trained, the mean feature of a picture and its mirror image
    # Once trained, the mean feature of a picture where it is and shifted by so many pixels to each side.
    shifted: Annotated[int, Field(ge=0, le=MOST_SIZE), _added(0)] = 0
    classifier: ClassifierKind = "cosine"
    generator: GeneratorKind = "attention"
    shots: Literal["mixed"] | Positive = "mixed"  # N' of an episode; mixed: a random one up to max_shots
    # The validation figure by which stage 2's model is kept.
    select: Literal["both", "novel", "ausuc"] = "both"
    select_tasks: Positive = 500
    split: str | None = None
    size: Annotated[int, Field(ge=1, le=MOST_SIZE)] | None = None
    seed: Annotated[int, Field(ge=0, lt=2**31)] = 0
    minutes: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    device: str = "auto"
    threads: Annotated[int, Field(ge=1, le=1024)] | None = None
    skip_bad: bool = False
    cache_gb: Annotated[float, Field(ge=0)] = CACHE_GB  # more than this is decoded on the fly
    stage1_from: str | None = None  # a run whose stage 1 is reused
    checkpoint_seconds: Annotated[float, Field(ge=0)] = 30
    data_key: str | None = None  # identifies the pictures at the start of the run
    stage1: StageOne = StageOne()
    stage2: StageTwo = StageTwo()
    episodic: EpisodicRecipe = EpisodicRecipe()
    lowshot: Annotated[LowShot, _added(LowShot())] = LowShot()
    meta: MetaRecipe = MetaRecipe()

    @property
    def frozen(self) -> bool:
        """Return whether the extractor is pretrained and stays frozen."""
        return is_pretrained(self.extractor) and not self.finetune

    @property
    def closed_form(self) -> bool:
        """Return whether everything is solved in closed form."""
        return self.frozen and self.generator == "ridge"

    @property
    def learns_generator(self) -> bool:
        """Return whether the generator has anything to learn in stage 2."""
        return self.generator in {"average", "attention"}

    @property
    def balanced_by_bias(self) -> bool:
        """Return whether W_base stays in stage 2, so that only a bias can balance base and novel scores.

        With a frozen extractor and few pictures a bias that depends on the number of shots was not measured.
        """
        ours = self.method == PAPER and self.learns_generator
        return ours and not self.stage2.learn_base and not self.frozen

    @property
    def shot_aware(self) -> bool:
        """Return whether the generator learns what the number of examples changes."""
        return self.generator == "attention" and self.shots == "mixed"

    @property
    def places(self) -> int:
        """Return at how many places the finished model looks at a picture."""
        return PLACES if self.shifted else 1

    @property
    def most_shots(self) -> int:
        """Return the largest N' of an episode."""
        return self.stage2.max_shots if self.shots == "mixed" else self.shots

    @property
    def select_shots(self) -> tuple[int, ...]:
        """Return the numbers of shots over which stage 2's selection is averaged."""
        return (1, self.stage2.max_shots) if self.shots == "mixed" else (self.shots,)


def preset_names() -> list[str]:
    """Return the presets that come with the package."""
    folder = resources.files("recollect.presets")
    return sorted(Path(file.name).stem for file in folder.iterdir() if file.name.endswith(".toml"))


def default_preset(
    data: str, extractor: str = "", *, finetune: bool = False, method: str = PAPER
) -> str | None:
    """Return the recipe for a pretrained extractor, for a method on a data set, or for a data set."""
    if is_pretrained(extractor):
        return "finetune" if finetune else "pretrained"
    kind = kind_of(data)
    of_method = f"{kind}-{method}"
    if of_method in preset_names():
        return of_method
    own = f"mini-imagenet-{extractor}"
    recipes = {
        "glyphs": "demo",
        "cifar-fs": "cifar-fs-c64f-quick",
        "mini-imagenet": own if own in preset_names() else "mini-imagenet-c64f",
        "omniglot": "omniglot-c64f",
    }
    return recipes.get(kind)


def read_preset(name: str) -> dict[str, Any]:
    """Return what a preset states."""
    if name not in preset_names():
        raise ConfigError(f"no preset is called '{name}'; there are: {', '.join(preset_names())}")
    text = resources.files("recollect.presets").joinpath(f"{name}.toml").read_text(encoding="utf-8")
    return {**tomllib.loads(text), "preset": name}


def make_config(
    start: Mapping[str, Any], options: Mapping[str, Any], settings: Mapping[str, str] | None = None
) -> Config:
    """Combine a preset (or a run's configuration), options and --set key=value; later ones win."""
    values: dict[str, Any] = copy.deepcopy(dict(start))
    values.update({key: value for key, value in options.items() if value is not None})
    for key, text in (settings or {}).items():
        *path, last = key.split(".")
        inner = values
        for name in path:
            inner = inner.setdefault(name, _schedule_of(path[0]) if name == "schedule" else {})
            if not isinstance(inner, dict):
                raise ConfigError(f"--set {key}={text}: '{name}' holds no settings of its own")
        inner[last] = _parse(text)
    config = _validated(values)
    for key, text in (settings or {}).items():
        if isinstance(_parse(text), bool) and not isinstance(attrgetter(key)(config), bool):
            raise ConfigError(f"--set {key}={text}: this setting is not switched on or off; give it a number")
    _require_consistent(config)
    return config


def _require_consistent(config: Config) -> None:
    """Refuse settings that do not go together."""
    if config.last_relu and is_pretrained(config.extractor):
        raise ConfigError(
            f"--last-relu: '{config.extractor}' is pretrained and cannot be changed; leave it out"
        )
    if config.generator == "ridge" and config.classifier != "cosine":
        raise ConfigError(
            "--generator ridge needs features of unit length: leave out --classifier dot, or name another "
            "--generator"
        )
    if config.frozen and config.stage1.loss != "cross-entropy":
        raise ConfigError(f"stage1.loss: the features of '{config.extractor}' are not learned; leave it out")
    if config.stage1.teacher is not None and (config.frozen or config.method != PAPER):
        raise ConfigError(
            "stage1.teacher: only the paper's method learns from a teacher, and no frozen extractor"
        )
    if config.stage1.teacher is not None and config.stage1_from is not None:
        raise ConfigError("stage1.teacher: stage1_from names a stage 1 that has been learned; leave one out")
    if config.closed_form and config.stage1_from is not None:
        raise ConfigError("stage1_from: --generator ridge has no stages on a frozen extractor; leave it out")


def _validated(values: dict[str, Any]) -> Config:
    """Return the configuration; say in one line what is wrong with it."""
    try:
        return Config.model_validate(values)
    except ValidationError as error:
        found = error.errors()
        unknown = [one["loc"] for one in found if one["type"] == "extra_forbidden"]
        if unknown:
            raise ConfigError(_unknown(_place(unknown[0]))) from error
        place = _place(found[0]["loc"])
        reasons = " or ".join(one["msg"] for one in found if _place(one["loc"]) == place)
        given = repr(found[0]["input"])
        given = given if len(given) < 200 else f"{given[:100]}…"
        raise ConfigError(f"setting '{place}' = {given}: {reasons}") from error


def _unknown(place: str) -> str:
    """Say that there is no such setting, and which ones are called almost the same."""
    names = _names(Config(data="", stage1=StageOne(small=SmallFirst(size=1))))
    close = get_close_matches(place, names, n=1, cutoff=0.8) or [
        name for name in names if name.endswith(f".{place}")
    ]
    return f"there is no setting '{place}'" + (f"; did you mean '{close[0]}'?" if close else "")


def _names(part: Value, prefix: str = "") -> list[str]:
    """Return the names of all settings, with their path."""
    names = []
    for name in type(part).model_fields:
        inner = getattr(part, name)
        names += [prefix + name, *(_names(inner, f"{prefix}{name}.") if isinstance(inner, Value) else [])]
    return names


def _schedule_of(stage: str) -> dict[str, Any]:
    """Return a stage's own schedule, of which --set may change one part."""
    stages: dict[str, StageOne | StageTwo | LowShot] = {
        "stage1": StageOne(),
        "stage2": StageTwo(),
        "lowshot": LowShot(),
    }
    return stages[stage].schedule.model_dump() if stage in stages else {}


def _place(path: tuple[int | str, ...]) -> str:
    """Return a setting's dotted name, without the kind that pydantic adds after a union."""
    pairs = zip(("", *path), path, strict=False)
    return ".".join(str(part) for before, part in pairs if before not in {"schedule", "shots"})


def differences(old: Config, new: Config) -> list[str]:
    """Return one phrase for each differing setting that affects the weights.

    The path of the pictures does not; `data_key` says which pictures they are. Threads and device affect no
    more than rounding, and `lowshot` affects what is made of a finished stage 1.
    """
    same = ("data", "checkpoint_seconds", "cache_gb", "threads", "device", "lowshot")
    new = new.model_copy(update={name: getattr(old, name) for name in same})
    before, after = _flat(old.model_dump()), _flat(new.model_dump())
    return [
        f"{key}: {before.get(key)} → {after.get(key)}"
        for key in {**before, **after}
        if before.get(key) != after.get(key)
    ]


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in values.items():
        flat |= _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return flat


def _parse(text: str) -> Any:  # noqa: ANN401
    """Read a value as TOML would, and as plain text where it is not TOML."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):  # also thousands of digits or brackets
        return text
