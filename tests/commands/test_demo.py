"""The demonstration, cut short: everything it promises to show is there and true."""

import json

import pytest

from colours import train_quickly
from recollect.commands import demo
from recollect.data import glyphs
from recollect.errors import ConfigError
from recollect.modelfile import read_header
from recollect.training.config import read_preset


@pytest.fixture
def short(monkeypatch):
    """Fewer pictures, steps and tasks, and no pictures of the training."""
    train_quickly(monkeypatch)
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

    demo.train_generators(demo.load_data("glyphs"), tmp_path / "demo", seed=0)  # again in the same place


def test_the_demonstration_never_clears_another_run(short, tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "model.safetensors").write_bytes(b"somebody's work")
    with pytest.raises(ConfigError, match="already holds a run"):
        demo.run_demo(tmp_path)
    assert (tmp_path / "model" / "model.safetensors").read_bytes() == b"somebody's work"
