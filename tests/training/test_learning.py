"""What training does: what reaches the steps, what selects a model, which weights are kept."""

import itertools
import threading
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from recollect.data.tasks import TaskShape, task_sampler
from recollect.errors import Stopped
from recollect.evaluation.evaluate import model_figures, model_scores
from recollect.features import FeatureSet, category_means, extract
from recollect.model.spec import Calibration, bias_at
from recollect.modelfile import load_model, read_header
from recollect.training import loop
from recollect.training import train as training
from recollect.training.budget import Speed, fit_to_minutes, judged_pictures
from recollect.training.calibration import calibrate, with_bias
from recollect.training.config import Config, StageOne, StageTwo
from recollect.training.loop import Stage, run_stage
from recollect.training.runfolder import RunFolder
from recollect.training.schedules import OneCycle, Steps
from recollect.training.selection import Judgement
from recollect.training.stage1 import BaseClassification
from recollect.training.stage2 import EpisodicTraining, make_views


def configured(one=None, two=None, **options):
    stage1 = {"steps": 4, "batch": 14, "evaluations": 2, **(one or {})}
    stage2 = {"steps": 4, "episodes": 2, "ways": 2, "queries": 2, "base_queries": 5, "views": 2}
    stage2 |= {"evaluations": 2, **(two or {})}
    options = {"data": "synthetic", "extractor": "c32f", "size": 16, "select_tasks": 6, **options}
    return Config(device="cpu", threads=1, stage1=StageOne(**stage1), stage2=StageTwo(**stage2), **options)


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    """Draw no curves, and calibrate on few tasks."""
    monkeypatch.setattr(training, "draw_curves", lambda _: None)
    monkeypatch.setattr("recollect.training.calibration._TASKS", 20)


def new_folder(tmp_path):
    """Return an empty run folder."""
    path = next(path for number in itertools.count() if not (path := tmp_path / f"run-{number}").exists())
    path.mkdir()
    return RunFolder(path)


# What reaches the steps


def test_minutes_leave_time_for_looking_at_pictures_in_five_places(tiny_split, make_model):
    def speed(*_):
        return Speed(stage1_step=1.0, stage2_step=0.5, picture=0.1)

    steps = [
        fit_to_minutes(
            configured(minutes=10.0, shifted=shifted), make_model(), tiny_split, speed
        ).stage1.steps
        for shifted in (0, 3)
    ]
    assert steps[0] - steps[1] == pytest.approx(4 * 0.1 * judged_pictures(tiny_split), abs=1)


class Walk(Stage):
    """A stage of three weights that are drawn towards a place of their own in every step."""

    number, title, select = 1, "walk", "novel"

    def __init__(self, recipe, figures=(), **options):
        model = nn.Module()
        model.register_parameter("weights", nn.Parameter(torch.tensor([1.0, -2.0, 3.0])))
        super().__init__(model, recipe, Config(data="synthetic", **options))
        self.figures, self.trail = iter(figures), []

    def learned(self):
        return [self.model.weights]

    def loss(self, step):
        apart = self.model.weights - torch.tensor([step, 1.0, -step])
        return apart.square().sum() / 2, torch.tensor(0.5)

    @property
    def images_seen(self):
        return 0

    def judge(self):
        self.trail.append(self.model.weights.detach().clone())
        return {"novel": float(next(self.figures, len(self.trail)))}


@pytest.mark.parametrize(
    "schedule",
    [OneCycle(kind="one-cycle", peak=0.3, warm_up=0.4), Steps(kind="steps", rates=((1, 0.2), (3, 0.05)))],
    ids=["one-cycle", "steps"],
)
@pytest.mark.parametrize(("momentum", "decay"), [(0.5, 0.0), (0.8, 0.1)])
def test_a_step_is_nesterovs_with_decay_at_the_schedules_rate(schedule, momentum, decay, tmp_path):
    recipe = StageOne(steps=6, momentum=momentum, weight_decay=decay, schedule=schedule)
    stage = Walk(recipe)
    run_stage(stage, new_folder(tmp_path))
    weights, speed = np.array([1.0, -2.0, 3.0]), np.zeros(3)
    for step in range(6):
        slope = weights - np.array([step, 1, -step]) + decay * weights
        speed = momentum * speed + slope
        weights = weights - schedule.rate((step + 0.5) / 6) * (slope + momentum * speed)
    assert stage.model.weights.tolist() == pytest.approx(weights.tolist(), rel=1e-5)


def test_each_stage_takes_its_steps_by_its_own_recipe(tiny_split, tmp_path, monkeypatch):
    made = []

    class Spy(loop.Descent):
        def __init__(self, parameters, **settings):
            super().__init__(parameters, **settings)
            self.rates = []
            made.append(({**self.defaults, "muon": self.muon}, self.rates))

        def step(self):
            self.rates.append(self.param_groups[0]["lr"])
            super().step()

    monkeypatch.setattr(loop, "Descent", Spy)
    monkeypatch.setattr(training, "load_data", lambda *_, **__: tiny_split)
    one = {"momentum": 0.7, "weight_decay": 0.01, "schedule": OneCycle(kind="one-cycle", peak=0.02)}
    one["muon"] = 0.3
    two = {"momentum": 0.6, "weight_decay": 0.02, "schedule": Steps(kind="steps", rates=((1, 0.03),))}
    training.train(configured(one, two), tmp_path / "run")
    for (settings, rates), recipe in zip(made, (StageOne(**one), StageTwo(**two)), strict=True):
        assert settings["nesterov"]
        assert settings["muon"] == getattr(recipe, "muon", 0)
        assert (settings["momentum"], settings["weight_decay"]) == (recipe.momentum, recipe.weight_decay)
        assert rates == [recipe.schedule.rate(share) for share in (0.125, 0.375, 0.625, 0.875)]


def test_stage_1_changes_every_weight_and_the_statistics_of_batch_norm(tiny_split, make_model, tmp_path):
    model = make_model()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    run_stage(BaseClassification(model, tiny_split, configured()), new_folder(tmp_path))
    for name, value in model.state_dict().items():
        assert torch.equal(before[name], value) == name.startswith("generator"), name


@pytest.mark.parametrize("learn_base", [True, False])
def test_stage_2_changes_base_vectors_only_where_they_go_on_learning(
    tiny_split, make_model, tmp_path, learn_base
):
    model, config = make_model(), configured(two={"learn_base": learn_base})
    before = {name: value.clone() for name, value in model.state_dict().items()}
    stage = EpisodicTraining(model, tiny_split, config, make_views(model, tiny_split, config))
    run_stage(stage, new_folder(tmp_path))
    after = model.state_dict()
    for name in ("classifier.weight", "classifier.scale"):
        assert torch.equal(before[name], after[name]) != learn_base, name
    assert not torch.equal(before["generator.keys"], after["generator.keys"])
    for name in before:
        assert torch.equal(before[name], after[name]) or not name.startswith("extractor"), name


# What selects a model


class Untouchable:
    """Pictures that nobody may look at."""

    def __getattribute__(self, name):
        pytest.fail(f"test pictures were looked at: {name}")

    __len__ = __iter__ = __getitem__ = __getattribute__


def test_the_finished_model_is_calibrated_at_five_places_and_no_weight_depends_on_them(
    tiny_split, tmp_path, monkeypatch
):
    monkeypatch.setattr(training, "load_data", lambda *_, **__: tiny_split)
    seen = []
    monkeypatch.setattr(
        training, "calibrate", lambda _, *held_out, **__: seen.append(held_out) or Calibration()
    )
    for shifted in (0, 3):
        training.train(configured(shifted=shifted, generator="average"), tmp_path / f"shifted-{shifted}")
    plain, shifted = (load_model(tmp_path / f"shifted-{number}") for number in (0, 3))
    assert (plain.spec.shifted, shifted.spec.shifted) == (0, 3)
    learned = zip(plain.extractor.state_dict().values(), shifted.extractor.state_dict().values(), strict=True)
    assert all(torch.equal(one, other) for one, other in learned)
    for model, (novel, base) in zip((plain, shifted), seen, strict=True):
        for features, images in ((novel, tiny_split.val), (base, tiny_split.base_val)):
            torch.testing.assert_close(features.features, extract(model, images).features)
    assert not torch.allclose(seen[0][0].features, seen[1][0].features)
    again = configured(shifted=3, generator="average", stage1_from=str(tmp_path / "shifted-0"))
    training.train(again, tmp_path / "again")
    for name, value in shifted.state_dict().items():
        assert torch.equal(load_model(tmp_path / "again").state_dict()[name], value), "of the other's stage 1"
    assert load_model(tmp_path / "again").spec == shifted.spec
    torch.testing.assert_close(seen[2][0].features, seen[1][0].features)


@pytest.mark.parametrize("reserve", [True, False])
def test_training_never_looks_at_test_pictures(make_split, tmp_path, monkeypatch, reserve):
    split = make_split(reserve=reserve)
    split = replace(split, base_test=Untouchable(), test=Untouchable() if reserve else None)
    monkeypatch.setattr(training, "load_data", lambda *_, **__: split)
    training.train(configured(), tmp_path / "run")
    header = read_header(tmp_path / "run")
    assert header.provenance["finished"]
    assert header.calibration.report, "calibrated without them, too"


@pytest.mark.parametrize("learn_base", [True, False])
def test_where_base_vectors_stay_a_bias_by_shots_balances_the_scores(
    make_split, tmp_path, monkeypatch, learn_base
):
    split, run = make_split(reserve=True), tmp_path / "run"
    monkeypatch.setattr(training, "load_data", lambda *_, **__: split)
    config = configured(two={"learn_base": learn_base})
    training.train(config, run)
    header = read_header(run)
    assert (header.calibration.bias_rise == 0) == learn_base
    model, kept = load_model(run).eval(), RunFolder(run).validation(2)
    novel, base = extract(model, split.val), extract(model, split.base_val)
    score = with_bias(model_scores(model, novel, base), header.calibration)
    shapes = [TaskShape(5, count, 9 - count) for count in (1, 5)]
    found = [model_figures(model, novel, base, shape, 6, 0, score)["both"].mean().item() for shape in shapes]
    calibrated = {} if learn_base else {"both_calibrated": pytest.approx(100 * np.mean(found), abs=1e-3)}
    assert header.provenance["validation"] == kept | calibrated


def test_a_model_that_was_stopped_in_stage_2_has_its_bias(tiny_split, tmp_path, monkeypatch):
    monkeypatch.setattr(training, "load_data", lambda *_, **__: tiny_split)

    def stopped(stage, folder, stop):
        if stage.number == 2:
            stage.judged = True
            raise Stopped("by hand")
        return run_stage(stage, folder, stop)

    monkeypatch.setattr(training, "run_stage", stopped)
    with pytest.raises(Stopped):
        training.train(configured(two={"learn_base": False}), tmp_path / "run")
    header = read_header(tmp_path / "run")
    assert not header.provenance["finished"]
    assert header.calibration.bias_rise != 0


def by_hand(model, split, shots):
    """Return figures on validation categories and validation pictures, averaged over numbers of shots."""
    model.eval()
    novel, base = extract(model, split.val), extract(model, split.base_val)
    found = [model_figures(model, novel, base, TaskShape(5, count, 9 - count), 6, seed=0) for count in shots]
    return {
        name: np.mean([100 * one[name].mean().item() for one in found])
        for name in ("novel", "base", "both", "ausuc")
    }


@pytest.mark.parametrize("select", ["both", "novel", "ausuc"])
def test_models_are_judged_on_validation_categories_and_validation_pictures(tiny_split, make_model, select):
    model, config = make_model(), configured(two={"base_queries": 20}, select=select)
    views = make_views(model, tiny_split, config)
    stages = [
        (BaseClassification(model, tiny_split, config), (1,), "ausuc" if select == "both" else select),
        (EpisodicTraining(model, tiny_split, config, views), (1, 5), select),
    ]
    for stage, shots, figure in stages:
        assert stage.judge() == pytest.approx(by_hand(model, tiny_split, shots), abs=1e-3)
        assert stage.select == figure


def test_judging_changes_nothing_of_the_model(tiny_split, make_model):
    model = make_model().train()
    stage = BaseClassification(model, tiny_split, configured())
    before = {name: value.clone() for name, value in model.state_dict().items()}
    stage.judge()
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert model.training


@pytest.mark.parametrize(
    ("figures", "best"), [((1, 3, 2), 1), ((3, 2, 1), 0), ((1, 2, 3), 2), ((2, 2, 1), 1)]
)
def test_a_stage_ends_with_the_weights_that_were_judged_best(figures, best, tmp_path):
    stage = Walk(StageOne(steps=6, evaluations=3), figures)
    folder = new_folder(tmp_path)
    run_stage(stage, folder)
    assert torch.equal(stage.model.weights, stage.trail[best])
    assert not torch.equal(stage.trail[0], stage.trail[2])
    judged = [line for line in folder.metrics() if "novel" in line]
    assert [line["step"] for line in judged] == [2, 4, 6]
    assert [line["step"] for line in judged if line["selected"]][-1] == 2 * best + 2
    assert folder.validation(1) == {"novel": figures[best]}


def test_a_stage_that_is_stopped_has_the_weights_that_were_judged_best_so_far(tmp_path):
    stop, stage = threading.Event(), Walk(StageOne(steps=8, evaluations=4), (3, 1, 2))
    judge = stage.judge

    def stop_at_second():
        if len(stage.trail) == 1:
            stop.set()
        return judge()

    stage.judge = stop_at_second
    with pytest.raises(Stopped, match="step 4 of 8"):
        run_stage(stage, new_folder(tmp_path), stop)
    assert len(stage.trail) == 2
    assert torch.equal(stage.model.weights, stage.trail[0])
    assert not torch.equal(stage.trail[0], stage.trail[1])


def test_a_stage_that_goes_on_still_has_what_was_judged_best_before(tmp_path):
    folder, stop = new_folder(tmp_path), threading.Event()
    stop.set()
    recipe = StageOne(steps=3, evaluations=3)
    first = Walk(recipe, (3,))
    with pytest.raises(Stopped, match="step 1 of 3"):
        run_stage(first, folder, stop)
    second = Walk(recipe, (1, 2))
    run_stage(second, folder)
    assert len(second.trail) == 2
    assert torch.equal(second.model.weights, first.trail[0])


def test_a_run_saves_the_weights_that_were_judged_best_in_each_stage(tiny_split, tmp_path, monkeypatch):
    trail, figures = [], iter((5.0, 1.0, 7.0, 2.0))  # of two judgements in each stage

    def scripted(_judgement, model, *_):
        trail.append({name: value.clone() for name, value in model.state_dict().items()})
        return dict.fromkeys(("novel", "base", "both", "ausuc"), next(figures))

    monkeypatch.setattr(training, "load_data", lambda *_, **__: tiny_split)
    monkeypatch.setattr(Judgement, "figures", scripted)
    training.train(configured(), tmp_path / "run")
    for file, best in (("stage1.safetensors", trail[0]), ("model.safetensors", trail[2])):
        saved = load_model(tmp_path / "run" / file).state_dict()
        assert saved.keys() == best.keys()
        assert all(torch.equal(saved[name], best[name]) for name in saved), file
    assert not torch.equal(trail[0]["classifier.weight"], trail[1]["classifier.weight"])
    assert not torch.equal(trail[2]["classifier.weight"], trail[3]["classifier.weight"])
    assert read_header(tmp_path / "run").provenance["validation"]["both"] == 7


# What is made of scores


def clouds(sizes, seed, name, width=32):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
    centres = torch.randn(len(sizes), width, generator=generator)
    features = centres[labels] + 1.2 * torch.randn(len(labels), width, generator=generator)
    return FeatureSet(features, labels, tuple(f"{name}-{number}" for number in range(len(sizes))))


def test_the_temperature_is_the_best_for_scores_with_their_bias(make_model):
    model = make_model(generator="mean")
    novel, base = clouds([30] * 20, 1, "novel"), clouds([30] * 7, 2, "base")
    # What all pictures have in common lifts the scores of means, and not those of base vectors without it.
    base, novel = (replace(some, features=some.features + 1) for some in (base, novel))
    with torch.no_grad():
        model.classifier.weight.copy_(category_means(base.features - 1, base.labels, 7))
        model.classifier.scale.fill_(20)
    found = calibrate(model, novel, base)
    tasks = task_sampler(base, novel).draw(TaskShape(5, 3, 15), 200, 99)  # others than it was fitted on
    scores = model_scores(model, novel, base)(tasks)
    targets = torch.cat([tasks.novel_targets + 7, tasks.base_targets], 1).flatten()

    def loss(temperature, bias):
        joint = torch.cat(
            [
                torch.cat([scores.novel_base, scores.novel_novel + bias], 2),
                torch.cat([scores.base_base, scores.base_novel + bias], 2),
            ],
            1,
        )
        return F.cross_entropy(joint.flatten(0, 1) / temperature, targets).item()

    bias = bias_at(found.bias, 5)
    assert abs(bias) > 1
    grid = np.geomspace(0.5, 10, 60).tolist()
    best, without = (min(grid, key=lambda value: loss(value, some)) for some in (bias, 0.0))
    assert abs(np.log(without / best)) > 0.45, "else this would tell nothing"
    assert abs(np.log(found.temperature / best)) < 0.2
