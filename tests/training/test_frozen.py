"""Trainings on an extractor that brings its weights along."""

import sys
import threading
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from torch.nn import functional as F

from pretrained import needs_weights
from recollect.commands import train as train_command
from recollect.errors import ConfigError, ModelError, Stopped
from recollect.features import extract
from recollect.modelfile import fingerprint, load_model, read_header
from recollect.training import train as training
from recollect.training.config import default_preset, make_config, read_preset
from recollect.training.frozen import HeadClassification, best_scale, frozen_views
from recollect.training.runfolder import RunFolder
from recollect.training.selection import Judgement
from recollect.training.train import load_data, new_model, train

pytestmark = pytest.mark.usefixtures("no_curves")
CODE = """
import torch
from torch import nn

def build():
    with torch.random.fork_rng():
        torch.manual_seed(3)
        return nn.Sequential(
            nn.Conv2d(3, 8, 3, stride=2), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten()
        )
"""
NAME = "module:frozen_code:build"
SETTINGS = {
    "stage1.steps": "6",
    "stage2.steps": "4",
    "stage2.views": "2",
    "stage2.episodes": "2",
    "select_tasks": "8",
    "checkpoint_seconds": "0",
}


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """A folder of 4 categories, each a colour with noise."""
    root = tmp_path_factory.mktemp("pictures")
    rng = np.random.default_rng(0)
    for label in range(4):
        (root / f"colour{label}").mkdir()
        colour = rng.integers(0, 256, 3)
        for index in range(10 + label):
            pixels = np.clip(colour + rng.normal(0, 40, (16, 16, 3)), 0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(root / f"colour{label}" / f"{index}.png")
    return root


@pytest.fixture(autouse=True)
def code(tmp_path, monkeypatch):
    (tmp_path / "frozen_code.py").write_text(CODE)
    monkeypatch.syspath_prepend(tmp_path)
    yield
    sys.modules.pop("frozen_code", None)


def configured(pictures, **options):
    usual = {"extractor": NAME, "size": 16, "threads": 1, "generator": "attention"}
    options = {"data": str(pictures), **usual, **options}
    start = read_preset(
        default_preset("folder", options["extractor"], finetune=options.get("finetune", False))
    )
    return make_config(start, options, SETTINGS)


def test_a_frozen_extractor_stays_as_it_came_and_features_are_centred(pictures, tmp_path):
    config = configured(pictures)
    train(config, tmp_path / "run")
    model = load_model(tmp_path / "run", NAME)
    split = load_data(str(pictures), size=16)
    untrained = new_model(config.model_copy(update={"device": "cpu"}), split)
    for name, weight in untrained.extractor.state_dict().items():
        assert torch.equal(model.extractor.state_dict()[name], weight), name
    raw, centred = extract(untrained, split.base_train).features, extract(model, split.base_train).features
    torch.testing.assert_close(centred, raw - model.centre)
    assert (raw >= 0).all()
    assert centred.mean(0).norm() < 0.3 * raw.mean(0).norm()
    assert fingerprint(model) != fingerprint(untrained)
    header = read_header(tmp_path / "run")
    assert (header.spec.centred, header.spec.generator) == (True, "attention")
    assert header.calibration.report


def solved_plainly(features, labels, count):
    """(ZᵀZ + λI)⁻¹ZᵀY, its columns of unit length, transposed, for features (n, d): (count, d)."""
    z = F.normalize(features).double().numpy()
    vectors = np.linalg.solve(z.T @ z + 0.3 * np.eye(z.shape[1]), z.T @ np.eye(count)[labels]).T
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def test_ridge_solves_training_and_validation_pictures_and_learns_no_test_picture(pictures, tmp_path):
    config = configured(pictures, generator="ridge")
    train(config, tmp_path / "run")
    model, split = load_model(tmp_path / "run", NAME), load_data(str(pictures), size=16)
    learned, held = extract(model, split.base_train), extract(model, split.base_val)
    features, labels = torch.cat([learned.features, held.features]), torch.cat([learned.labels, held.labels])
    expected = solved_plainly(features, labels.numpy(), 4)
    np.testing.assert_allclose(model.classifier.weight.detach(), expected, rtol=1e-3, atol=1e-4)
    z = F.normalize(features)
    upper = torch.triu_indices(model.width, model.width)
    torch.testing.assert_close(model.generator.moments, (z.T @ z)[upper[0], upper[1]])
    means = torch.stack([learned.features[learned.labels == label].mean(0) for label in range(4)])
    torch.testing.assert_close(means.mean(0), torch.zeros(model.width), atol=1e-5, rtol=0)
    before = torch.from_numpy(solved_plainly(learned.features, learned.labels.numpy(), 4)).float()
    assert model.classifier.scale == best_scale(F.normalize(held.features) @ before.T, held.labels)
    header = read_header(tmp_path / "run")
    assert header.spec.generator == "ridge"
    assert header.calibration.report
    assert header.provenance["finished"]
    assert set(header.provenance["validation"]) == {"novel", "base", "both"}
    train(config, tmp_path / "again")
    other = load_model(tmp_path / "again", NAME).state_dict()
    assert all(torch.equal(other[name], weight) for name, weight in model.state_dict().items())
    with pytest.raises(ConfigError, match="has no stages on a frozen extractor"):
        configured(pictures, generator="ridge", stage1_from="elsewhere")


def test_ridge_learns_on_a_frozen_extractor_with_reserved_categories(pictures, tmp_path):
    reserved = '{"val": ["colour0"], "test": ["colour3"]}'
    train(configured(pictures, generator="ridge", split=reserved), tmp_path / "run")
    assert load_model(tmp_path / "run", NAME).spec.categories == ("colour1", "colour2")
    assert read_header(tmp_path / "run").provenance["finished"]


def test_stage_1_starts_from_means_with_the_scale_that_suits_them(pictures):
    config, split = (
        configured(pictures).model_copy(update={"device": "cpu"}),
        load_data(str(pictures), size=16),
    )
    model = new_model(config, split)
    frozen = frozen_views(new_model(config, split), split, config)
    stage = HeadClassification(model, split, config, frozen)
    labels = torch.from_numpy(split.base_train.labels)
    means = torch.stack([frozen.views.float()[:, labels == label].mean((0, 1)) for label in range(4)])
    assert means.mean(0).abs().max() < 1e-2 * frozen.centre.abs().max(), "views are centred"
    views = F.normalize(frozen.views.float(), dim=2)
    means = torch.stack([views[:, labels == label].sum((0, 1)) for label in range(4)])
    torch.testing.assert_close(model.classifier.weight.data, F.normalize(means))
    assert {id(parameter) for parameter in stage.learned()} == {
        id(model.classifier.weight),
        id(model.classifier.scale),
    }
    cosines = views[0] @ F.normalize(means).T
    losses = {scale: F.cross_entropy(scale * cosines, labels).item() for scale in range(5, 61)}
    best = min(losses, key=losses.get)
    assert best != 10, "else it might be the scale that any model starts with"
    assert model.classifier.scale.item() == pytest.approx(best, abs=1)


def test_it_is_judged_for_more_shots_than_pictures_are_held_out(pictures):
    split = load_data(str(pictures), size=16)
    frozen, trained = configured(pictures), configured(pictures, finetune=True)
    held = int(np.bincount(split.base_val.labels).min())
    assert held < 5
    assert [shape.shots for shape in Judgement(split, (1, 5), frozen).shapes] == [1, 5]
    assert [shape.shots for shape in Judgement(split, (1, 5), trained).shapes] == [1, held - 1]
    model = new_model(frozen.model_copy(update={"device": "cpu"}), split)
    judgement = Judgement(split, (1, 5), frozen)
    novel, base = judgement.features(model)
    assert novel is None
    torch.testing.assert_close(base.support.features, extract(model, split.base_train.first(10)).features)
    others = replace(base.support, features=-base.support.features)
    assert judgement.figures(model, None, base) != judgement.figures(
        model, None, replace(base, support=others)
    )


def test_fine_tuning_changes_the_extractor(pictures, tmp_path):
    config = configured(pictures, finetune=True)
    train(config, tmp_path / "run")
    model = load_model(tmp_path / "run", NAME)
    untrained = new_model(config.model_copy(update={"device": "cpu"}), load_data(str(pictures), size=16))
    first = "body.0.weight"
    assert not torch.equal(model.extractor.state_dict()[first], untrained.extractor.state_dict()[first])
    assert (model.centre != 0).any()
    taken = configured(pictures, generator="average").model_copy(
        update={"stage1_from": str(tmp_path / "run")}
    )
    with pytest.raises(ConfigError, match="has another --finetune"):
        train(taken, tmp_path / "other")


def test_an_interrupted_training_ends_with_the_same_weights(pictures, tmp_path, monkeypatch):
    train(configured(pictures), tmp_path / "whole")
    stop = threading.Event()
    judge = training.HeadClassification.judge

    def stopping(stage):
        stop.set()
        return judge(stage)

    with monkeypatch.context() as patch:
        patch.setattr(training, "stop_on_signals", lambda: nullcontext(stop))
        patch.setattr(training.HeadClassification, "judge", stopping)
        with pytest.raises(Stopped):
            train(configured(pictures), tmp_path / "broken")
    sys.modules.pop("frozen_code")
    with pytest.raises(ConfigError, match=f"name it again, with --extractor {NAME}"):
        RunFolder(tmp_path / "broken").config()
    assert "frozen_code" not in sys.modules
    train(RunFolder(tmp_path / "broken").config(NAME), tmp_path / "broken", resume=True)
    whole, broken = (load_model(tmp_path / name, NAME).state_dict() for name in ("whole", "broken"))
    assert all(torch.equal(whole[name], broken[name]) for name in whole)


def test_a_training_that_is_stopped_while_features_are_computed_can_go_on(
    run, pictures, tmp_path, monkeypatch
):
    out, small = tmp_path / "run", [word for name in SETTINGS.items() for word in ("--set", "=".join(name))]
    stop = threading.Event()
    stop.set()
    with monkeypatch.context() as patch:
        patch.setattr(training, "stop_on_signals", lambda: nullcontext(stop))
        code, _, err = run("train", pictures, "--extractor", NAME, "--size", 16, *small, "--out", out)
    assert code == 130
    hint = (
        f"while features were computed. Resume with: recollect train --resume --out {out} --extractor {NAME}"
    )
    assert hint in " ".join(err.split())
    code, said, err = run("train", "--resume", "--out", out, "--extractor", NAME)
    assert code == 0, err
    held_out = sum(max(2, len(list(one.iterdir())) // 10) for one in pictures.iterdir())
    assert f"Right answers in random tasks on {held_out} held-out pictures" in said
    assert read_header(out).provenance["finished"]


@pytest.fixture
def asked(run, pictures, tmp_path, monkeypatch):
    """Return the configuration that a call of `recollect train` asks for."""

    def configuration(*words):
        found = []
        learner = SimpleNamespace(train=lambda config, *_, **__: found.append(config))
        monkeypatch.setattr(train_command, "find_method", lambda _: learner)
        monkeypatch.setattr(train_command, "_warnings", lambda *_: [])  # there is no model to warn of
        code, _, err = run("train", pictures, *words, "--out", tmp_path / "run")
        assert code == 0, err
        return found[0]

    return configuration


@pytest.mark.parametrize(
    "words",
    [
        ("--extractor", NAME, "--finetune"),
        ("--extractor", NAME, "--preset", "finetune"),
        ("--set", f"extractor={NAME}", "--set", "finetune=true"),
    ],
)
def test_fine_tuning_has_its_recipe_however_it_is_asked_for(asked, words):
    config = asked(*words)
    assert (config.extractor, config.finetune, config.preset) == (NAME, True, "finetune")
    assert config.stage1.schedule.peak == 0.01


def test_a_preset_brings_its_extractor_and_its_schedule_may_be_changed(asked):
    config = asked("--preset", "pretrained")
    assert (config.extractor, config.frozen, config.generator) == ("efficientnet-lite0", True, "ridge")
    assert config.closed_form
    config = asked("--preset", "paper", "--set", "stage1.schedule.rates=[[10, 0.5]]")
    assert (config.extractor, config.stage1.schedule.rates) == ("c128f", ((10, 0.5),))


def test_a_dot_product_classifier_learns_on_a_frozen_extractor(pictures, tmp_path):
    train(configured(pictures, classifier="dot", generator="average"), tmp_path / "run")
    model = load_model(tmp_path / "run", NAME)
    found = model.classifier(extract(model, load_data(str(pictures), size=16).base_train).features)
    assert found.isfinite().all()


def test_a_model_file_never_causes_an_import(pictures, tmp_path):
    train(configured(pictures), tmp_path / "run")
    sys.modules.pop("frozen_code")
    with pytest.raises(ModelError, match=f"name it again, with --extractor {NAME}"):
        load_model(tmp_path / "run")
    with pytest.raises(ModelError, match="is 'module:frozen_code:build' and not 'module:os:getcwd'"):
        load_model(tmp_path / "run", "module:os:getcwd")
    assert "frozen_code" not in sys.modules


def test_what_makes_no_sense_is_refused(pictures, tmp_path):
    with pytest.raises(ConfigError, match="leave it out, or add --finetune"):
        train(configured(pictures, minutes=1), tmp_path / "run")
    with pytest.raises(ConfigError, match="'c32f' is not pretrained"):
        train(make_config({}, {"data": "glyphs", "extractor": "c32f", "finetune": True}), tmp_path / "run")
    assert not (tmp_path / "run").exists()
    with pytest.raises(ConfigError, match="'efficientnet-lite0' is pretrained and cannot be changed"):
        make_config({}, {"data": "glyphs", "extractor": "efficientnet-lite0", "last_relu": True})


@needs_weights
def test_a_published_network_learns_a_folder_from_its_weights(pictures, tmp_path):
    train(configured(pictures, extractor="efficientnet-lite0", size=32, generator="mean"), tmp_path / "run")
    header = read_header(tmp_path / "run")
    assert header.spec.preprocessing.mean == (127.0, 127.0, 127.0)
    assert "Apache-2.0" in header.provenance["weights_licence"]
    assert load_model(tmp_path / "run").width == 1280
