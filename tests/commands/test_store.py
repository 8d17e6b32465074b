"""Where the commands keep what was taught."""

import gc
import os
import shutil

import pytest

from pictures import tree
from recollect import Recognizer


def test_another_store_can_be_named(model, photos, answer, tmp_path, names):
    for place in (tmp_path / "mine.sqlite", f"sqlite:///{tmp_path / 'url.sqlite'}"):
        answer("teach", model, "okapi", photos / "okapi", "--store", place)
        assert names(model, "--store", place) == ["okapi"]
        answer("rename", model, "okapi", "tapir", "--store", place)
        found = answer("predict", model, photos / "tapir", "--among", "novel", "--store", place)
        assert found["predictions"][0]["answers"][0]["category"] == "tapir"
        answer("forget", model, "tapir", "--store", place)
    assert (tmp_path / "url.sqlite").is_file()
    assert not (model / "taught.sqlite").exists()


def test_reading_leaves_no_files(model, photos, answer, taught, run, names):
    for place in ((), ("--store", "memory:")):
        before = tree(model)
        for words in (("categories", model), ("predict", model, photos / "okapi")):
            answer(*words, *place)
            assert run(*words, *place)[0] == 0
        assert tree(model) == before
    (model / "taught.sqlite").unlink()
    assert names(model) == []
    assert [path.name for path in model.iterdir()] == ["model.safetensors"]


def test_what_may_only_be_read_is_read(taught, photos, answer, run, names):
    taught.chmod(0o555)
    try:
        if os.access(taught, os.W_OK):
            pytest.skip("nothing is read-only for this user")
        assert names(taught) == ["okapi", "tapir"]
        assert len(answer("predict", taught, photos / "okapi")["predictions"]) == 3
        assert "read-only" in run("forget", taught, "okapi")[2]
    finally:
        taught.chmod(0o755)


def test_a_saved_recogniser_brings_its_categories_along(taught, photos, answer, refused, tmp_path, names):
    saved = tmp_path / "elsewhere" / "zoo.safetensors"
    Recognizer.load(taught, taught / "taught.sqlite").save(saved)
    gc.collect()  # Python closes a connection to SQLite when it collects it
    assert names(saved) == ["okapi", "tapir"]
    for words in (("forget", saved, "yeti"), ("rename", saved, "okapi", "tapir")):
        refused(*words)
    assert [path.name for path in saved.parent.iterdir()] == ["zoo.safetensors"]
    answer("forget", saved, "tapir")
    assert names(saved) == ["okapi"]
    answer("teach", saved, "quoll", photos / "tapir")
    assert names(saved) == ["okapi", "quoll"]


def test_a_copied_folder_brings_its_store_along(taught, answer, tmp_path, names):
    shutil.copytree(taught, tmp_path / "copy")
    shutil.rmtree(taught)
    assert names(tmp_path / "copy") == ["okapi", "tapir"]


def test_copying_a_store_that_is_in_use(taught, photos, answer, run, refused, tmp_path, names):
    with Recognizer.load(taught, "default") as open_elsewhere:
        open_elsewhere.teach("quoll", sorted((photos / "okapi").iterdir()))
        copied = tmp_path / "backup.sqlite"
        report = answer("store", "copy", taught / "taught.sqlite", copied)
        assert report == {
            "from": str(taught / "taught.sqlite"), "to": str(copied), "categories": 3, "examples": 8,
        }  # fmt: skip
    assert [path.name for path in tmp_path.glob("backup*")] == ["backup.sqlite"]
    assert names(taught, "--store", copied) == ["okapi", "tapir", "quoll"]
    assert "exists already" in refused("store", "copy", taught / "taught.sqlite", copied)
    assert answer("store", "copy", taught, tmp_path / "again.sqlite")["from"] == str(taught / "taught.sqlite")
    assert "there is no store at" in refused("store", "copy", "imagenet", tmp_path / "more.sqlite")
    assert "there is no store at" in refused("store", "copy", tmp_path / "nothing", tmp_path / "x")
    assert "cannot write" in refused("store", "copy", copied, copied / "x")
    (tmp_path / "text").write_text("no store " * 99)
    assert "cannot be copied" in refused("store", "copy", tmp_path / "text", tmp_path / "x")
    assert "name a file" in refused("store", "copy", "memory:", tmp_path / "x")
    _, said, _ = run("store", "copy", copied, tmp_path / "second.sqlite")
    held = "8 examples of 3 categories, taught ones and corrected base ones"
    assert said == f"Copied {copied} to {tmp_path / 'second.sqlite'}: {held}\n"
