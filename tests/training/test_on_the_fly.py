"""Trainings whose pictures are decoded on the fly: the same weights, and an end as orderly as any other."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch

from pictures import write_folder
from recollect.errors import PictureError, Stopped
from recollect.modelfile import load_model
from recollect.training import loop
from recollect.training.config import make_config
from recollect.training.runfolder import RunFolder
from recollect.training.train import train

pytestmark = pytest.mark.usefixtures("no_curves")
SETTINGS = {
    "stage1.steps": "6",
    "stage1.batch": "8",
    "stage1.evaluations": "2",
    "stage2.steps": "4",
    "stage2.views": "2",
    "stage2.episodes": "2",
    "stage2.evaluations": "1",
    "select_tasks": "4",
    "checkpoint_seconds": "0",
}
OPTIONS = {"extractor": "c32f", "size": 16, "threads": 1}


@pytest.fixture(autouse=True)
def no_thread_stays():
    before = threading.active_count()
    yield
    assert threading.active_count() == before


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    return write_folder(tmp_path_factory.mktemp("zoo"), dict.fromkeys(("cat", "dog", "emu", "fox"), 12))


def configured(pictures, **options):
    return make_config({}, {"data": str(pictures), **OPTIONS, **options}, SETTINGS)


@pytest.fixture(scope="module")
def kept(pictures, tmp_path_factory):
    """The weights of a run that kept its pictures, in a cache that no other test looks into."""
    folder = tmp_path_factory.mktemp("kept")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RECOLLECT_CACHE", str(folder / "cache"))
        train(configured(pictures), folder / "run")
    assert (folder / "cache" / "images").exists()
    return load_model(folder / "run").state_dict()


def assert_weights(run, expected):
    found = load_model(run).state_dict()
    assert found.keys() == expected.keys()
    for name in found:
        assert torch.equal(found[name], expected[name]), name


def test_a_training_on_the_fly_ends_with_the_same_weights(pictures, kept, tmp_path):
    train(configured(pictures, cache_gb=0), tmp_path / "run")
    assert not (Path(os.environ["RECOLLECT_CACHE"]) / "images").exists()
    assert_weights(tmp_path / "run", kept)


@pytest.mark.parametrize("later", [0, 16])
def test_a_stopped_training_goes_on_with_any_limit_to_the_same_weights(
    pictures, kept, tmp_path, monkeypatch, later
):
    out, real = tmp_path / "run", loop.save_checkpoint

    def stop_at_step_three(path, state):
        real(path, state)
        if state.step == 3:
            os.kill(os.getpid(), signal.SIGINT)

    with monkeypatch.context() as patch:
        patch.setattr(loop, "save_checkpoint", stop_at_step_three)
        with pytest.raises(Stopped, match="step 4 of 6 of stage 1"):
            train(configured(pictures, cache_gb=0), out)
    assert load_model(out).spec.generator == "mean"
    train(make_config(RunFolder(out).config().model_dump(), {"cache_gb": later}), out, resume=True)
    assert_weights(out, kept)


def test_a_picture_that_goes_bad_during_training_is_named(tmp_path, monkeypatch):
    folder = write_folder(tmp_path / "zoo", {"cat": 12, "dog": 12})
    real = loop.save_checkpoint

    def spoil(path, state):
        real(path, state)
        for picture in folder.glob("cat/*.png"):
            picture.write_bytes(b"no picture")

    monkeypatch.setattr(loop, "save_checkpoint", spoil)
    config = configured(folder, cache_gb=0).model_copy(
        update={"stage1": configured(folder).stage1.model_copy(update={"steps": 60})}
    )
    with pytest.raises(PictureError, match=r"zoo/cat/\d+\.png: [^\n]*$"):
        train(config, tmp_path / "run")


@pytest.mark.slow
def test_minutes_can_be_measured_on_the_fly(pictures, tmp_path):
    words = {"data": str(pictures), **OPTIONS, "cache_gb": 0, "minutes": 0.05}
    train(make_config({}, words, {**SETTINGS, "stage1.steps": "9999999"}), tmp_path / "run")
    assert RunFolder(tmp_path / "run").config().stage1.steps < 9999999


def wait_until(condition, seconds=120):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_a_signal_ends_the_run_and_the_threads_that_decode_in_order(pictures, tmp_path, number):
    out = tmp_path / "run"
    command = f"train {pictures} --out {out} --threads 1 --extractor c32f --size 16 --cache-gb 0"
    settings = {**SETTINGS, "stage1.steps": "1000000", "stage1.evaluations": "1"}
    words = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    process = subprocess.Popen(
        [sys.executable, "-m", "recollect.cli", *command.split(), *words],
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    wait_until(lambda: RunFolder(out).checkpoint(1).exists() or process.poll() is not None)
    os.killpg(process.pid, number)  # as a terminal does on Ctrl-C
    _, complaint = process.communicate(timeout=120)
    assert "Traceback" not in complaint
    assert process.returncode == 130
    assert complaint.count("\n") == 1
    assert "holds a usable model" in complaint
    assert load_model(out).spec.generator == "mean"
