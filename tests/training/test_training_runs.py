"""Whole trainings on a small folder of pictures: the same weights whatever happens on the way."""

import json
import os
import signal
import threading

import numpy as np
import pytest
import torch
from PIL import Image

from killing import kill_when
from pictures import write_folder
from recollect.data.catalogue import load_data
from recollect.errors import ConfigError, DataError, ModelError, Stopped, StorageError
from recollect.evaluation.evaluate import evaluate
from recollect.features import extract
from recollect.model.spec import Calibration
from recollect.modelfile import load_model, read_header, save_model
from recollect.system.disk import locked
from recollect.training import curves, loop
from recollect.training.config import make_config
from recollect.training.runfolder import RunFolder
from recollect.training.train import train

pytestmark = pytest.mark.usefixtures("no_curves")
training_figure = curves.training_figure
SETTINGS = {
    "stage1.steps": "12",
    "stage1.batch": "16",
    "stage1.evaluations": "3",
    "stage2.steps": "12",
    "stage2.views": "2",
    "stage2.episodes": "2",
    "stage2.evaluations": "3",
    "select_tasks": "8",
    "checkpoint_seconds": "0",
}
OPTIONS = {"extractor": "c32f", "size": 16, "threads": 1}


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """A folder of 6 categories, each a colour with noise, of different sizes."""
    root = tmp_path_factory.mktemp("pictures")
    rng = np.random.default_rng(0)
    for label in range(6):
        folder = root / f"colour{label}"
        folder.mkdir()
        colour = rng.integers(0, 256, 3)
        for index in range(14 + 2 * label):
            pixels = np.clip(colour + rng.normal(0, 40, (16, 16, 3)), 0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(folder / f"{index}.png")
    return root


def configured(pictures, **options):
    return make_config({}, {"data": str(pictures), **OPTIONS, **options}, SETTINGS)


def weights(run):
    return load_model(run).state_dict()


def assert_same(first, second):
    assert first.keys() == second.keys()
    for name in first:
        assert torch.equal(first[name], second[name]), name


@pytest.fixture(scope="module")
def finished(pictures, tmp_path_factory):
    """A run that nothing interrupted."""
    out = tmp_path_factory.mktemp("runs") / "whole"
    train(configured(pictures), out)
    return out


def test_a_finished_run_holds_a_model_with_its_configuration_and_metrics(finished):
    header = read_header(finished)
    assert header.provenance["finished"]
    assert header.provenance["images_seen"] == 12 * 16
    assert header.provenance["episodes_seen"] == 12 * 2
    best = [line for line in RunFolder(finished).metrics() if line.get("selected") and line["stage"] == 2][-1]
    assert header.provenance["validation"] == {name: best[name] for name in ("novel", "base", "both")}
    assert header.spec.generator == "attention"
    stages = {(line["stage"], "both" in line) for line in RunFolder(finished).metrics()}
    assert stages == {(1, False), (1, True), (2, False), (2, True)}
    assert not list(finished.glob("*checkpoint*"))
    assert (finished / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_a_picture_that_cannot_be_drawn_does_not_lose_a_training(pictures, tmp_path, monkeypatch, caplog):
    def broken(_lines):
        raise MemoryError("no memory for a picture")

    with monkeypatch.context() as patch:
        patch.setattr(curves, "training_figure", broken)
        train(configured(pictures), tmp_path / "run")
    assert read_header(tmp_path / "run").provenance["finished"]
    assert len(caplog.messages) == 2, "once for each stage"
    assert all("curves.png could not be drawn: no memory" in message for message in caplog.messages)
    assert not (tmp_path / "run" / "curves.png").exists()
    monkeypatch.setattr(curves, "training_figure", training_figure)
    train(RunFolder(tmp_path / "run").config(), tmp_path / "run", resume=True)
    assert (tmp_path / "run" / "curves.png").exists(), "a finished run that is resumed gets its picture"


def test_the_same_seed_gives_the_same_weights_and_another_seed_others(pictures, finished, tmp_path):
    train(configured(pictures), tmp_path / "again")
    assert_same(weights(finished), weights(tmp_path / "again"))
    train(configured(pictures, seed=1), tmp_path / "other")
    assert not torch.equal(
        weights(finished)["classifier.weight"], weights(tmp_path / "other")["classifier.weight"]
    )


@pytest.mark.parametrize("stage", [1, 2])
def test_a_run_killed_in_the_middle_and_resumed_ends_with_the_same_weights(
    pictures, finished, tmp_path, stage
):
    out = tmp_path / "killed"
    checkpoint = RunFolder(out).checkpoint(stage)
    kill_when(checkpoint, lambda: train(configured(pictures), out), later=0.3)
    from recollect.training.checkpoints import load_checkpoint

    if stage == 2:  # killed there, the run holds what stage 1 had learned
        assert load_model(out).spec.generator == "mean"

    assert 0 < load_checkpoint(checkpoint).step < 12

    train(RunFolder(out).config(), out, resume=True)
    assert_same(weights(finished), weights(out))
    assert read_header(out).calibration == read_header(finished).calibration
    steps = [(line["stage"], line["step"], "both" in line) for line in RunFolder(out).metrics()]
    assert len(steps) == len(set(steps)), "a step was logged twice"


@pytest.mark.parametrize("stage", [1, 2])
def test_a_run_asked_to_stop_leaves_a_usable_model_and_goes_on_later(
    pictures, finished, tmp_path, stage, monkeypatch
):
    out = tmp_path / "stopped"
    real = loop.save_checkpoint

    def stop_at_step_five(path, state):
        real(path, state)
        if path == RunFolder(out).checkpoint(stage) and state.step == 5:
            os.kill(os.getpid(), signal.SIGINT)

    with monkeypatch.context() as patch:
        patch.setattr(loop, "save_checkpoint", stop_at_step_five)
        with pytest.raises(Stopped, match=f"step 6 of 12 of stage {stage}"):
            train(configured(pictures), out)
    model = load_model(out)
    assert model.spec.generator == ("mean" if stage == 1 else "attention")
    assert not read_header(out).provenance["finished"]
    train(RunFolder(out).config(), out, resume=True)
    assert_same(weights(finished), weights(out))


def test_resuming_a_finished_run_changes_nothing(finished):
    before = (finished / "model.safetensors").stat().st_mtime_ns
    train(RunFolder(finished).config(), finished, resume=True)
    assert (finished / "model.safetensors").stat().st_mtime_ns == before


def test_resuming_with_another_configuration_is_refused_by_name(pictures, finished):
    config = make_config(RunFolder(finished).config().model_dump(), {"seed": 7}, {"stage2.steps": "13"})
    with pytest.raises(ConfigError, match=r"seed: 0 → 7.*stage2.steps: 12 → 13"):
        train(config, finished, resume=True)


def test_pictures_that_changed_since_the_run_began_are_refused(pictures, finished, tmp_path):
    out = tmp_path / "run"
    config = RunFolder(finished).config().model_copy(update={"data_key": "another"})
    RunFolder(out).keep(config)
    with pytest.raises(ConfigError, match="have changed"):
        train(config, out, resume=True)


def test_minutes_become_a_fixed_number_of_steps(pictures, tmp_path):
    config = make_config(
        {},
        {"data": str(pictures), **OPTIONS, "minutes": 0.05},
        {**SETTINGS, "stage1.steps": "9999999", "stage2.steps": "50"},
    )
    train(config, tmp_path / "run")
    kept = RunFolder(tmp_path / "run").config()
    assert kept.stage1.steps < 9999999
    assert 1 <= kept.stage2.steps <= 50
    logged = max(line["step"] for line in RunFolder(tmp_path / "run").metrics() if line["stage"] == 1)
    assert logged == kept.stage1.steps


def test_the_mean_generator_needs_no_stage_two(pictures, tmp_path):
    train(configured(pictures, generator="mean"), tmp_path / "run")
    assert {line["stage"] for line in RunFolder(tmp_path / "run").metrics()} == {1}
    assert read_header(tmp_path / "run").provenance["finished"]
    assert read_header(tmp_path / "run").calibration.report["ece_after"] >= 0


def test_the_ridge_generator_needs_no_stage_two_but_the_pictures_moments(pictures, tmp_path):
    train(configured(pictures, generator="ridge"), tmp_path / "run")
    model, split = load_model(tmp_path / "run"), load_data(str(pictures), size=16)
    assert {line["stage"] for line in RunFolder(tmp_path / "run").metrics()} == {1}
    assert read_header(tmp_path / "run").calibration.report
    z = torch.nn.functional.normalize(extract(model, split.base_train).features).double()
    expected = (z.T @ z)[tuple(torch.triu_indices(model.width, model.width))].float()
    torch.testing.assert_close(model.generator.moments, expected)
    figures = evaluate(model, split, shots=[1], ways=2, queries=1, tasks=10)[0]
    assert figures["novel"]["mean"] > 50
    with pytest.raises(ConfigError, match="leave out --classifier dot"):
        configured(pictures, generator="ridge", classifier="dot")


def test_a_finished_run_is_calibrated_and_what_it_learned_on_the_way_is_not(finished):
    found = read_header(finished).calibration
    assert found.temperature != 1
    assert found.report["harmonic_after"] >= found.report["harmonic_before"]
    assert read_header(finished / "stage1.safetensors").calibration == Calibration()


def test_a_calibration_that_fails_does_not_lose_the_training(
    pictures, finished, tmp_path, monkeypatch, caplog
):
    def failing(*_, **__):
        raise ZeroDivisionError("no such luck")

    monkeypatch.setattr("recollect.training.train.calibrate", failing)
    train(configured(pictures), tmp_path / "run")
    header = read_header(tmp_path / "run")
    assert header.provenance["finished"]
    assert header.calibration == Calibration()
    assert "not calibrated" in caplog.text
    assert "no such luck" in caplog.text
    assert_same(weights(finished), weights(tmp_path / "run"))


@pytest.mark.parametrize("options", [{}, {"classifier": "dot", "generator": "mean"}], ids=["usual", "dot"])
def test_two_categories_of_eight_pictures_are_enough(tmp_path, options, caplog):
    data = write_folder(tmp_path / "data", {"cat": 8, "dog": 8})
    train(configured(data, **options), tmp_path / "run")
    found = read_header(tmp_path / "run").calibration
    assert "not calibrated" not in caplog.text
    assert 0.05 <= found.temperature <= 20
    assert found.unknown is None  # too few pictures to know a share of 5 % from


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"size": 8}, ModelError, "8×8 are too small"),
        ({"shots": 40}, DataError, r"category 'colour0' has 10 pictures and needs 43"),
        ({"extractor": "c33f"}, ModelError, "no extractor is called 'c33f'"),
        ({"minutes": 0.0001}, ConfigError, "too short"),
    ],
)
def test_what_cannot_be_trained_is_refused_before_anything_is_written(
    pictures, tmp_path, options, error, words
):
    with pytest.raises(error, match=words):
        train(configured(pictures, **options), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_reserved_categories_are_never_trained_on_and_travel_with_the_model(pictures, tmp_path):
    split = tmp_path / "split.json"
    split.write_text(json.dumps({"val": ["colour1"], "test": ["colour2", "colour3"]}))
    train(configured(pictures, split=str(split)), tmp_path / "run")
    split.unlink()
    header = read_header(tmp_path / "run")
    assert header.spec.categories == ("colour0", "colour4", "colour5")
    from recollect.evaluation.evaluate import evaluation_report

    report = evaluation_report(
        tmp_path / "run", str(pictures), part="test", shots=[1, 2], ways=2, queries=3, tasks=20, seed=0
    )
    assert [result["shots"] for result in report["results"]] == [1, 2]
    for result in report["results"]:
        assert 0 <= result["both"]["mean"] <= 100


def test_training_in_a_thread_does_not_touch_signals(pictures, tmp_path):
    done = []
    worker = threading.Thread(target=lambda: done.append(train(configured(pictures), tmp_path / "run")))
    worker.start()
    worker.join()
    assert done == [len(load_data(str(pictures), size=16).base_val)], "the number of held-out pictures"
    assert read_header(tmp_path / "run").provenance["finished"]


def test_stage_one_of_another_run_is_taken_over_unchanged(pictures, finished, tmp_path):
    config = make_config(
        RunFolder(finished).config().model_dump(), {"generator": "average", "stage1_from": str(finished)}
    )
    train(config, tmp_path / "run")
    theirs, ours = weights(finished / "stage1.safetensors"), weights(tmp_path / "run")
    assert read_header(tmp_path / "run").spec.generator == "average"
    for name in theirs:
        if name.startswith("extractor"):
            assert torch.equal(theirs[name], ours[name])
    assert {line["stage"] for line in RunFolder(tmp_path / "run").metrics()} == {2}


def test_stage_one_of_another_kind_of_model_is_refused(finished, tmp_path):
    config = make_config(
        RunFolder(finished).config().model_dump(), {"last_relu": True, "stage1_from": str(finished)}
    )
    with pytest.raises(ConfigError, match="another last_relu"):
        train(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("place", ["nothing", "model.safetensors", "glyphs"])
def test_stage_one_is_that_of_a_run(finished, tmp_path, place):
    named = str(finished / place) if place.endswith("safetensors") else place
    config = make_config(RunFolder(finished).config().model_dump(), {"stage1_from": named})
    with pytest.raises(
        ConfigError, match=r"stage1_from=.*: name the folder of a run whose stage 1 is finished"
    ):
        train(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_stage_one_that_was_selected_on_other_categories_is_refused(pictures, tmp_path):
    first = configured(pictures, split='{"val": ["colour1"], "test": ["colour2"]}', generator="mean")
    train(first, tmp_path / "first")
    swapped = configured(
        pictures, split='{"val": ["colour2"], "test": ["colour1"]}', stage1_from=str(tmp_path / "first")
    )
    with pytest.raises(ConfigError, match="another data or split"):
        train(swapped, tmp_path / "run")


def stopping_at(step):
    """Return a function that saves checkpoints, and asks the run to stop after a step's."""
    real = loop.save_checkpoint

    def save(path, state):
        real(path, state)
        if state.step == step:
            os.kill(os.getpid(), signal.SIGINT)

    return save


def distilling(run, teacher, **options):
    """Return the configuration of a run, to be trained again with a teacher."""
    return make_config(
        RunFolder(run).config().model_dump(), options, {"stage1.teacher": json.dumps(str(teacher))}
    )


def test_a_resumed_run_learns_from_the_same_teacher(finished, tmp_path, monkeypatch):
    teacher = tmp_path / "teacher.safetensors"
    teacher.write_bytes((finished / "model.safetensors").read_bytes())
    config = distilling(finished, teacher, generator="mean")
    train(config, tmp_path / "whole")
    out = tmp_path / "run"
    monkeypatch.setattr(loop, "save_checkpoint", stopping_at(5))
    with pytest.raises(Stopped, match="step 6 of 12"):
        train(config, out)
    teacher.unlink()
    train(config, out, resume=True)
    assert_same(weights(tmp_path / "whole"), weights(out))
    plain = weights(finished / "stage1.safetensors")
    assert any(not torch.equal(value, plain[name]) for name, value in weights(out).items())
    taught_by, seen = (read_header(run).provenance["images_seen"] for run in (finished, out))
    assert seen == 2 * taught_by, "its own pictures and its teacher's"


def test_a_teacher_must_know_the_categories_and_nothing_that_is_held_out(pictures, finished, tmp_path):
    split = '{"val": ["colour1"], "test": ["colour2"]}'
    train(configured(pictures, generator="mean", split=split), tmp_path / "reserved")
    learned_from = read_header(finished).trained_on
    for name, images, wrong in (
        ("reserved", None, "it must be a model of the categories"),
        ("unfinished", None, "its stage 1 is not finished: resume it first"),
        ("negative", -5, "its stage 1 is not finished: resume it first"),
        ("endless", 10**30, "its stage 1 is not finished: resume it first"),
    ):
        teacher = tmp_path / name
        if name != "reserved":
            teacher = teacher.with_suffix(".safetensors")
            facts = {} if images is None else {"images_seen": images}
            save_model(teacher, load_model(finished), facts, learned_from)
        with pytest.raises(ConfigError, match=rf"stage1.teacher={teacher}: {wrong}"):
            train(distilling(finished, teacher), tmp_path / "run")
    moved = '{"val": ["colour2"], "test": ["colour1"]}'
    with pytest.raises(ConfigError, match="the same --split"):
        train(distilling(tmp_path / "reserved", tmp_path / "reserved", split=moved), tmp_path / "run")
    with pytest.raises(ConfigError, match="and --size"):
        train(distilling(finished, finished, size=20), tmp_path / "run")
    damaged = load_model(finished)
    with torch.no_grad():
        damaged.classifier.weight.fill_(torch.nan)
    save_model(tmp_path / "damaged.safetensors", damaged, {"images_seen": 9}, learned_from)
    with pytest.raises(ModelError, match="damaged"):
        train(distilling(finished, tmp_path / "damaged.safetensors"), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_run_whose_teacher_was_deleted_does_not_go_on_with_another(finished, tmp_path, monkeypatch):
    config, out = distilling(finished, finished, generator="mean"), tmp_path / "run"
    monkeypatch.setattr(loop, "save_checkpoint", stopping_at(5))
    with pytest.raises(Stopped, match="step 6 of 12"):
        train(config, out)
    (out / "teacher.safetensors").unlink()
    with pytest.raises(ModelError, match=r"teacher\.safetensors"):
        train(config, out, resume=True)


@pytest.mark.parametrize(
    "options", [{"extractor": "efficientnet-lite0"}, {"method": "matching"}, {"stage1_from": "elsewhere"}]
)
def test_only_a_stage_1_of_the_papers_method_learns_from_a_teacher(pictures, options):
    options = {"data": str(pictures), **options}
    with pytest.raises(ConfigError, match=r"stage1\.teacher: (only the paper's method|stage1_from)"):
        make_config({}, options, {"stage1.teacher": "elsewhere"})


def test_a_run_stopped_before_its_generator_was_judged_keeps_the_plain_means(pictures, tmp_path, monkeypatch):
    out = tmp_path / "run"
    real = loop.save_checkpoint

    def stop_at_step_one(path, state):
        real(path, state)
        if path == RunFolder(out).checkpoint(2) and state.step == 1:
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(loop, "save_checkpoint", stop_at_step_one)
    with pytest.raises(Stopped, match="step 2 of 12 of stage 2"):
        train(configured(pictures), out)
    assert load_model(out).spec.generator == "mean"


def test_two_trainings_in_one_folder_do_not_mix(pictures, tmp_path):
    with locked(tmp_path / "run"), pytest.raises(StorageError, match="another process"):
        train(configured(pictures), tmp_path / "run")


def test_leftovers_of_another_run_are_refused(pictures, finished, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "stage1.safetensors").write_bytes((finished / "stage1.safetensors").read_bytes())
    with pytest.raises(ConfigError, match="already holds a run"):
        train(configured(pictures), tmp_path / "run")


def test_a_checkpoint_of_another_model_is_refused(pictures, finished, tmp_path):
    from recollect.training.checkpoints import Checkpoint, save_checkpoint

    out = tmp_path / "run"
    RunFolder(out).keep(RunFolder(finished).config())
    save_checkpoint(RunFolder(out).checkpoint(1), Checkpoint(step=3, weights={"foreign": torch.zeros(2)}))
    with pytest.raises(ConfigError, match="belongs to another model"):
        train(RunFolder(out).config(), out, resume=True)
