"""The demonstration, cut short: everything it promises to show is there and true."""

import json
import threading
from contextlib import contextmanager
from functools import partial

import pytest
from sklearn.manifold import TSNE

from colours import train_quickly
from recollect.commands import demo
from recollect.data import glyphs
from recollect.errors import ConfigError, Stopped
from recollect.modelfile import read_header
from recollect.training import loop
from recollect.training.config import read_preset


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    """A cache for characters, which are drawn once for all tests here."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def short(monkeypatch, drawn):
    """Fewer pictures, steps and tasks, and no pictures of the training."""
    train_quickly(monkeypatch)
    monkeypatch.setenv("RECOLLECT_CACHE", str(drawn))
    monkeypatch.setattr("sklearn.manifold.TSNE", partial(TSNE, max_iter=250))
    monkeypatch.setattr(glyphs, "BASE_PICTURES", 12)
    monkeypatch.setattr(glyphs, "OTHER_PICTURES", 20)
    monkeypatch.setattr(glyphs, "HELD_PICTURES", 4)
    monkeypatch.setattr(demo, "TASKS", 20)

    def preset(name):
        values = read_preset(name)
        values["stage1"] |= {"steps": 6, "evaluations": 1}
        values["stage2"] |= {"steps": 6, "views": 1, "evaluations": 1}
        return {**values, "select_tasks": 10}

    monkeypatch.setattr(demo, "read_preset", preset)


@pytest.mark.slow
def test_the_demonstration_trains_teaches_measures_and_draws(short, tmp_path, capsys):
    result = demo.run_demo(tmp_path / "demo")
    rows = [(row["shots"], row["generator"]) for row in result["generators"]]
    assert rows == [(shots, kind) for shots in (1, 5) for kind in ("mean", "average", "attention")]
    taught = result["taught"]
    assert taught["base_scores_bit_identical"]
    assert taught["base_scores_after_forgetting_bit_identical"]
    assert taught["base_accuracy_after"] <= taught["base_accuracy_before"]
    assert taught["choices"] == 69
    assert read_header(tmp_path / "demo" / "model").spec.generator == "attention"
    assert read_header(tmp_path / "demo" / "average").spec.generator == "average"
    for name in ("demo.png", "tsne.png"):
        assert (tmp_path / "demo" / name).read_bytes().startswith(b"\x89PNG")
    report = (tmp_path / "demo" / "report.html").read_text(encoding="utf-8")
    assert report.count("data:image/png;base64,") == 2
    assert all(name in report for name in taught["characters"])
    json.dumps(result)
    from rich.console import Console

    Console().print(demo.demo_text(result))
    assert "bit-identical" in capsys.readouterr().out

    assert "Novel: other pictures of the five, among the five." in report


@pytest.mark.slow
def test_an_interrupted_demonstration_is_resumed_and_a_finished_one_starts_again(
    short, tmp_path, monkeypatch
):
    @contextmanager
    def stopped():
        stop = threading.Event()
        stop.set()
        yield stop

    said = "stopped at step 1 of 6 of stage 1; run the same command again to resume"
    with monkeypatch.context() as patch:
        patch.setattr(demo, "stop_on_signals", stopped)
        with pytest.raises(Stopped, match=said):
            demo.run_demo(tmp_path)
    resumed, split = [], demo.load_data("glyphs")
    load = loop.load_checkpoint
    monkeypatch.setattr(loop, "load_checkpoint", lambda path: resumed.append(path.parent.name) or load(path))
    demo.train_generators(split, tmp_path, threads=1)
    assert resumed == ["model"]

    first, second = (tmp_path / name / "model.safetensors" for name in ("model", "average"))
    before = first.read_bytes()
    second.unlink()
    demo.train_generators(split, tmp_path)  # only what is missing
    assert (first.read_bytes(), second.exists()) == (before, True)
    first.with_name("metrics.jsonl").write_text("")
    demo.train_generators(split, tmp_path)  # everything, as all is finished
    assert first.with_name("metrics.jsonl").read_text().count('"stage": 1') > 0


def test_the_demonstration_never_clears_another_run(short, tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "model.safetensors").write_bytes(b"somebody's work")
    with pytest.raises(ConfigError, match="already holds a run"):
        demo.run_demo(tmp_path)
    assert (tmp_path / "model" / "model.safetensors").read_bytes() == b"somebody's work"
