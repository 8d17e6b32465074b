"""`recollect store backup` and `restore`: what was taught as one file."""

import json

import pytest

from pictures import write_picture
from recollect import Recognizer
from recollect.modelfile import save_model


@pytest.fixture
def model(tmp_path, tiny_model):
    save_model(tmp_path / "zoo" / "model.safetensors", tiny_model)
    return tmp_path / "zoo"


def test_a_backup_brings_back_what_was_taught(run, model, tmp_path):
    picture = write_picture(tmp_path / "a.png", 1)
    assert run("teach", model, "okapi", picture)[0] == 0
    code, words, err = run("store", "backup", model, tmp_path / "b.safetensors", "--json")
    assert code == 0, err
    assert json.loads(words) == {
        "from": str(model), "to": str(tmp_path / "b.safetensors"), "categories": 1, "examples": 1,
    }  # fmt: skip
    before = Recognizer.load(model, "default").scores(picture)
    assert run("forget", model, "okapi")[0] == 0
    code, words, _ = run("store", "restore", model, tmp_path / "b.safetensors", "--json")
    assert json.loads(words)["restored"] == {"okapi": 1}
    assert (Recognizer.load(model, "default").scores(picture).novel == before.novel).all()
    code, words, _ = run("store", "restore", model, tmp_path / "b.safetensors")
    assert code == 0
    assert "has everything" in words


def test_what_cannot_be_restored_is_one_line(refused, run, model, tmp_path, make_model):
    assert "cannot read" in refused("store", "restore", model, tmp_path / "none.safetensors")
    (tmp_path / "text").write_text("text")
    assert "not a backup" in refused("store", "restore", model, tmp_path / "text")
    save_model(tmp_path / "other.safetensors", make_model(seed=1))
    assert run("store", "backup", tmp_path / "other.safetensors", tmp_path / "o.safetensors")[0] == 0
    assert "another model" in refused("store", "restore", model, tmp_path / "o.safetensors")
    assert "exists already" in refused("store", "backup", model, tmp_path / "o.safetensors")
