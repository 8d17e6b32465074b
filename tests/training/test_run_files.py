"""Run folders: altered files are refused in one line, and no model is saved that is not finite."""

import json
import os
import shutil
import threading
from dataclasses import replace
from math import inf, nan
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from mutations import COUNT, mutations
from recollect.errors import ConfigError, Diverged, RecollectError, Stopped, StorageError
from recollect.modelfile import load_model, read_header
from recollect.training import loop
from recollect.training import train as training
from recollect.training.checkpoints import Checkpoint, load_checkpoint, save_checkpoint
from recollect.training.config import NEWER_SECTIONS, make_config
from recollect.training.runfolder import RunFolder
from recollect.training.train import train

SETTINGS = {
    "stage1.steps": "6",
    "stage1.batch": "14",
    "stage1.evaluations": "2",
    "stage2.steps": "6",
    "stage2.views": "2",
    "stage2.episodes": "2",
    "stage2.evaluations": "2",
    "select_tasks": "6",
    "checkpoint_seconds": "0",
}


def be_quick(patch, split):
    """Train on pictures in memory; draw no curves, and calibrate on few tasks."""
    patch.setattr(training, "load_data", lambda *_, **__: split)
    patch.setattr(training, "draw_curves", lambda _: None)
    patch.setattr("recollect.training.calibration._TASKS", 20)


@pytest.fixture(autouse=True)
def _quick(monkeypatch, tiny_split):
    be_quick(monkeypatch, tiny_split)


def configured(**settings):
    options = {"data": "synthetic", "extractor": "c32f", "size": 16, "threads": 1, "device": "cpu"}
    return make_config({}, options, {**SETTINGS, **settings})


def stop_at(monkeypatch, out, stage, step):
    """Ask the run to stop after a step of a stage."""
    stop, real = threading.Event(), loop.save_checkpoint

    def stopping(path, state):
        real(path, state)
        if path == RunFolder(out).checkpoint(stage) and state.step == step - 1:
            stop.set()

    class Stop:
        __enter__ = staticmethod(lambda: stop)
        __exit__ = staticmethod(lambda *_: None)

    monkeypatch.setattr(loop, "save_checkpoint", stopping)
    monkeypatch.setattr(training, "stop_on_signals", Stop)


@pytest.fixture(scope="module")
def template(tmp_path_factory, make_split):
    out = tmp_path_factory.mktemp("runs") / "stopped"
    with pytest.MonkeyPatch.context() as patch:
        be_quick(patch, make_split())
        stop_at(patch, out, 1, 4)
        with pytest.raises(Stopped, match="step 4 of 6 of stage 1"):
            train(configured(), out)
    return out


@pytest.fixture
def stopped(template, tmp_path):
    """A run that was stopped after step 4 of stage 1."""
    return Path(shutil.copytree(template, tmp_path / "stopped"))


def resume(out):
    train(RunFolder(out).config(), out, resume=True)


def lines_of(out):
    """The metrics but for times."""
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return [{name: value for name, value in line.items() if name != "seconds"} for line in lines]


def trained(folder, split):
    """Return a run that was not stopped, with a line of metrics after every fourth step."""
    with pytest.MonkeyPatch.context() as patch:
        be_quick(patch, split)
        patch.setattr(loop, "LOG_EVERY", 4)
        train(configured(), folder)
    return folder


@pytest.fixture(scope="module")
def whole(tmp_path_factory, make_split):
    return trained(tmp_path_factory.mktemp("whole"), make_split())


@pytest.fixture(scope="module")
def plain(tmp_path_factory, make_split):
    return trained(tmp_path_factory.mktemp("plain"), make_split(size=32))


@pytest.mark.parametrize(("stage", "step"), [(1, 2), (1, 4), (1, 5), (2, 3), (2, 5)])
def test_a_resumed_run_has_the_metrics_of_one_that_was_not_stopped(tmp_path, monkeypatch, whole, stage, step):
    monkeypatch.setattr(loop, "LOG_EVERY", 4)
    with monkeypatch.context() as patch:
        stop_at(patch, tmp_path / "broken", stage, step)
        with pytest.raises(Stopped):
            train(configured(), tmp_path / "broken")
    resume(tmp_path / "broken")
    assert lines_of(tmp_path / "broken") == lines_of(whole)


@pytest.mark.parametrize(
    ("setting", "step"),
    [
        ({"stage1.muon": "0.5"}, 2),
        ({"mirrored": "true"}, 5),
        ({"stage1.small.size": "16"}, 2),
    ],
)
def test_a_resumed_run_of_any_recipe_ends_with_the_same_weights(
    tmp_path, monkeypatch, make_split, plain, step, setting
):
    be_quick(monkeypatch, make_split(size=32))
    train(configured(**setting), tmp_path / "whole")
    with monkeypatch.context() as patch:
        stop_at(patch, tmp_path / "broken", 1, step)
        with pytest.raises(Stopped):
            train(configured(**setting), tmp_path / "broken")
    resume(tmp_path / "broken")
    runs = (tmp_path / "whole", tmp_path / "broken", plain)
    whole, broken, other = (load_model(run).state_dict() for run in runs)
    assert all(torch.equal(whole[name], broken[name]) for name in whole)
    assert not all(torch.equal(whole[name], other[name]) for name in whole), "the setting changes something"


def test_pictures_that_mean_something_else_mirrored_are_refused_for_a_mirrored_model(monkeypatch, tiny_split):
    be_quick(monkeypatch, replace(tiny_split, flips=False))
    with pytest.raises(ConfigError, match="mirror images of synthetic are of other categories"):
        train(configured(mirrored="true"), Path("nowhere"))


def test_a_resumed_run_of_a_shifted_model_ends_with_the_same_model(tmp_path, monkeypatch, make_split):
    be_quick(monkeypatch, make_split(size=32))
    train(configured(shifted="3"), tmp_path / "whole")
    with monkeypatch.context() as patch:
        stop_at(patch, tmp_path / "broken", 2, 2)
        with pytest.raises(Stopped):
            train(configured(shifted="3"), tmp_path / "broken")
    resume(tmp_path / "broken")
    whole, broken = (read_header(tmp_path / name) for name in ("whole", "broken"))
    assert (whole.spec, whole.calibration) == (broken.spec, broken.calibration)
    assert whole.spec.shifted == 3
    weights = [load_model(tmp_path / name).state_dict() for name in ("whole", "broken")]
    assert all(torch.equal(value, weights[1][name]) for name, value in weights[0].items())


def test_pictures_cannot_be_shifted_out_of_sight(monkeypatch, tiny_split):
    be_quick(monkeypatch, tiny_split)
    with pytest.raises(ConfigError, match="shifted=16 leaves nothing of pictures of 16×16: use less than 16"):
        train(configured(shifted="16"), Path("nowhere"))


def test_a_checkpoint_keeps_everything(tmp_path):
    tensors = [{"a": torch.randn(3)} for _ in range(3)]
    pending = {"losses": torch.rand(4), "shares": torch.rand(4)}
    for best, value in ((tensors[2], 61.5), ({}, -inf)):
        save_checkpoint(tmp_path / "c", Checkpoint(7, tensors[0], tensors[1], best, value, 1.5, pending))
        found = load_checkpoint(tmp_path / "c")
        assert (found.step, found.best_value, found.seconds) == (7, value, 1.5)
        for group, kept in (
            ("weights", tensors[0]),
            ("momentum", tensors[1]),
            ("best", best),
            ("pending", pending),
        ):
            assert {k: v.tolist() for k, v in getattr(found, group).items()} == {
                k: v.tolist() for k, v in kept.items()
            }


METRICS = {
    "not json": "{",
    "no line of ours": "[]",
    "a word": '{"stage": "1", "step": 2}',
    "no step": '{"stage": 1}',
    "a step that is none": '{"stage": 1, "step": 1.5}',
    "many digits": '{"stage": 1, "step": ' + "9" * 5000 + "}",
    "many brackets": "[" * 100_000,
    "a list": '{"stage": 1, "step": 2, "loss": [1]}',
    "no number": '{"stage": 1, "step": 2, "loss": NaN}',
    "something else": '{"stage": 1, "step": 2, "lost": 1}',
}


@pytest.mark.parametrize("text", METRICS.values(), ids=METRICS)
def test_altered_metrics_are_refused_by_line(stopped, text):
    metrics = stopped / "metrics.jsonl"
    metrics.write_text(f"{metrics.read_text()}{text}\n")
    number = len(metrics.read_text().splitlines())
    with pytest.raises(ConfigError, match=rf"line {number} of .*metrics.jsonl is damaged: delete that line"):
        resume(stopped)


def test_a_last_line_of_metrics_that_was_cut_short_is_no_damage(stopped):
    with (stopped / "metrics.jsonl").open("a") as metrics:
        metrics.write('{"stage": 1, "st')
    resume(stopped)
    assert read_header(stopped).provenance["finished"]


def test_metrics_that_are_no_text_are_refused(stopped):
    (stopped / "metrics.jsonl").write_bytes(b"\xff\xfe\n")
    with pytest.raises(ConfigError, match=r"metrics.jsonl is damaged: delete it"):
        resume(stopped)


@pytest.mark.parametrize("name", ["config.json", "metrics.jsonl", "stage1.checkpoint.safetensors"])
@pytest.mark.parametrize("kind", ["fifo", "folder", "link"])
def test_what_is_no_file_is_refused_and_does_not_block(stopped, name, kind):
    (stopped / name).unlink()
    if kind == "fifo":
        os.mkfifo(stopped / name)
    elif kind == "folder":
        (stopped / name).mkdir()
    else:
        (stopped / name).symlink_to("/dev/zero")
    with pytest.raises(ConfigError, match=name):
        resume(stopped)


def test_a_folder_in_place_of_a_checkpoint_that_is_no_longer_needed_is_told(whole, tmp_path):
    run = Path(shutil.copytree(whole, tmp_path / "run"))
    (run / "model.safetensors").unlink()
    RunFolder(run).checkpoint(1).mkdir()
    with pytest.raises(StorageError, match=r"stage1\.checkpoint\.safetensors: Is a directory"):
        resume(run)


ABOUT = {
    "nothing": {},
    "a word for a step": {"step": "4"},
    "step 0": {"step": 0},
    "half a step": {"step": 1.5},
    "beyond the end": {"step": 7},
    "the best of none": {"best_value": -inf},
    "no number": {"best_value": nan},
    "a list": {"seconds": []},
    "negative": {"seconds": -1},
    "another format": {"format": 2},
    "more": {"more": 1},
}


@pytest.mark.parametrize("change", ABOUT.values(), ids=ABOUT)
def test_an_altered_header_of_a_checkpoint_is_refused(stopped, change):
    path = RunFolder(stopped).checkpoint(1)
    state = load_checkpoint(path)
    about = {
        "format": 1,
        "step": state.step,
        "best_value": state.best_value,
        "seconds": state.seconds,
        **change,
    }
    save_file(load_file(path), path, {"checkpoint": json.dumps(about if change else [])})
    with pytest.raises(ConfigError, match=r"the checkpoint .*stage1.checkpoint.safetensors"):
        resume(stopped)


def without(tensors, start):
    return {name: value for name, value in tensors.items() if not name.startswith(start)}


TENSORS = {
    "no weights": lambda tensors: without(tensors, "weights/"),
    "one weight less": lambda tensors: without(tensors, "weights/classifier.weight"),
    "no best model": lambda tensors: without(tensors, "best/"),
    "half a best model": lambda tensors: without(tensors, "best/classifier"),
    "no number": lambda tensors: tensors | {"best/classifier.scale": torch.tensor(nan)},
    "other shapes": lambda tensors: tensors | {"weights/classifier.weight": torch.zeros(2, 2)},
    "momentum that would be spread": lambda tensors: tensors | {"momentum/classifier.weight": torch.zeros(1)},
    "momentum of nothing": lambda tensors: tensors | {"momentum/nothing": torch.zeros(1)},
    "losses of nothing": lambda tensors: without(tensors, "pending/shares"),
    "losses of some": lambda tensors: tensors | {"pending/losses": torch.zeros(9)},
    "losses in a table": lambda tensors: (
        tensors | {f"pending/{n}": torch.zeros(2, 2) for n in ("losses", "shares")}
    ),
}


@pytest.mark.parametrize("change", TENSORS.values(), ids=TENSORS)
def test_altered_tensors_of_a_checkpoint_are_refused(stopped, change):
    path = RunFolder(stopped).checkpoint(1)
    state = load_checkpoint(path)
    about = {"format": 1, "step": state.step, "best_value": state.best_value, "seconds": state.seconds}
    save_file(change(load_file(path)), path, {"checkpoint": json.dumps(about)})
    with pytest.raises(ConfigError, match=r"the checkpoint .*stage1.checkpoint.safetensors"):
        resume(stopped)


@pytest.mark.parametrize(
    "name", ["config.json", "metrics.jsonl", "stage1.checkpoint.safetensors", "model.safetensors"]
)
def test_damage_to_a_file_of_a_run_is_told_or_the_run_goes_on(stopped, tmp_path, name):
    content, told = (stopped / name).read_bytes(), []
    for number, damaged in enumerate(mutations(content, max(8, COUNT // 30))):
        out = Path(shutil.copytree(stopped, tmp_path / str(number)))
        (out / name).write_bytes(damaged)
        try:
            resume(out)
            load_model(out)
        except RecollectError as error:
            told.append(str(error))
        shutil.rmtree(out)
    assert told
    assert max(map(len, told)) < 1000


@pytest.mark.parametrize("section", NEWER_SECTIONS)
def test_a_run_that_an_older_version_began_without_a_section_is_resumed(stopped, section):
    words = json.loads((stopped / "config.json").read_text())
    del words[section]
    (stopped / "config.json").write_text(json.dumps(words))
    assert RunFolder(stopped).config().model_dump(mode="json")[section]
    resume(stopped)
    assert read_header(stopped).provenance["finished"]


def test_a_run_that_lacks_another_setting_is_not(stopped):
    words = json.loads((stopped / "config.json").read_text())
    del words["episodic"]
    (stopped / "config.json").write_text(json.dumps(words))
    with pytest.raises(ConfigError, match="written by another version of recollect"):
        resume(stopped)


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"data": 3}', "[" * 100_000, '{"seed": ' + "9" * 5000 + "}", "\0"]
)
def test_an_altered_configuration_is_refused(stopped, text):
    (stopped / "config.json").write_text(text)
    with pytest.raises(
        ConfigError, match=r"config.json was written by another version of recollect or altered"
    ):
        RunFolder(stopped).config()


@pytest.mark.parametrize("stage", [1, 2])
@pytest.mark.parametrize("step", [2, 3])
def test_a_run_that_diverged_leaves_no_model_that_is_not_finite(tmp_path, monkeypatch, stage, step):
    """With a rate that is far too high, whether it is stopped or judged before anything is logged."""
    out = tmp_path / "run"
    settings = {f"stage{stage}.schedule.peak": "1e30"}
    stop_at(monkeypatch, out, stage, step)
    with pytest.raises(Diverged, match=rf"stage {stage} diverged .* --set stage{stage}.schedule.peak="):
        train(configured(**settings), out)
    assert (out / "model.safetensors").exists() == (stage == 2)
    for path in out.glob("*.safetensors"):
        assert all(tensor.isfinite().all() for tensor in load_file(path).values()), path


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("stage1.pad=99999999", r"'stage1.pad' = 99999999: .*4096"),
        ("stage1.pad=16", "stage1.pad=16 leaves nothing of pictures of 16×16"),
        (f"stage1.steps={'9' * 5000}", r"'stage1.steps' = '9+…: "),
        (f"shots={'9' * 400}", "shots"),
        (f"stage1={'[' * 100_000}", r"'stage1' = '\[+…: "),
        ("stage1.passes=1e300", "'stage1.passes' = 1e\\+300: "),
        ("stage2.episodes=99999999999", "'stage2.episodes' = 99999999999: "),
    ],
)
def test_settings_beyond_all_measure_are_refused_in_one_short_line(tmp_path, setting, words):
    key, _, value = setting.partition("=")
    with pytest.raises(RecollectError, match=words) as found:
        train(configured(**{key: value}), tmp_path / "run")
    assert len(str(found.value)) < 300
    assert not (tmp_path / "run").exists()


def test_thousands_of_digits_for_shots_are_refused_in_one_short_line(refused, tmp_path):
    assert len(refused("train", "glyphs", "--shots", "9" * 5000, "--out", tmp_path / "run")) < 300
