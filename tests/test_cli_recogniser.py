"""The commands teach, forget, rename, categories and predict, on a model and pictures of its own."""

import csv
import errno
import gc
import json
import os
import re
import shutil
import struct
import subprocess
import sys
import zlib

import numpy as np
import pytest
from PIL import Image

from pictures import disk_room, pixels_of, tree, write_folder, write_picture
from recollect import Recognizer
from recollect.commands import pictures
from recollect.model.spec import Calibration, Unknown
from recollect.modelfile import save_model
from recollect.recognition.recognizer import Prediction
from recollect.store.sqlite import SqliteStore
from recollect.system import disk


@pytest.fixture
def model(tmp_path, make_model):
    """A run folder with a model and nothing taught."""
    save_model(tmp_path / "run" / "model.safetensors", make_model())
    return tmp_path / "run"


@pytest.fixture
def photos(tmp_path):
    return write_folder(tmp_path / "photos", {"okapi": 3, "tapir": 2})


@pytest.fixture
def answer(run):
    """Run a right call with --json and return its result."""

    def ask(*words):
        code, out, err = run(*words, "--json")
        assert (code, err) == (0, "")
        return json.loads(out)

    return ask


@pytest.fixture
def taught(model, photos, answer):
    """The model with okapi and tapir taught."""
    answer("teach", model, "--from", photos)
    return model


def names(answer, model, *words):
    rows = answer("categories", model, *words)["categories"]
    return [row["name"] for row in rows if row["origin"] == "novel"]


def test_a_taught_category_is_kept_in_the_models_folder_and_recognised(model, photos, answer):
    result = answer("teach", model, "okapi", photos / "okapi" / "000.png", photos / "okapi" / "001.png")
    assert (result["model"], result["store"]) == (str(model), str(model / "taught.sqlite"))
    (one,) = result["taught"]
    assert (one["id"], one["name"], one["added"], one["examples"]) == (7, "okapi", 2, 2)
    assert len(one["leans_on"]) == 3
    assert all(each["category"].startswith("base-") and 0 < each["share"] < 1 for each in one["leans_on"])
    again = answer("teach", model, "okapi", photos / "okapi" / "002.png")["taught"][0]
    assert (again["id"], again["added"], again["examples"]) == (7, 1, 3)
    (found,) = answer("predict", model, photos / "okapi" / "000.png", "--among", "novel")["predictions"]
    assert [one["category"] for one in found["answers"]] == ["okapi"]
    assert sorted(path.name for path in model.iterdir()) == ["model.safetensors", "taught.sqlite"]


def test_the_commands_answer_as_a_recogniser_in_memory_does(taught, photos, answer):
    recognizer = Recognizer.load(taught)
    for name in ("okapi", "tapir"):
        recognizer.teach(name, sorted((photos / name).iterdir()))
    pictures = sorted(photos.rglob("*.png"))
    report = answer("predict", taught, *pictures, "--top", 3)
    assert report["model"] == str(taught)
    assert [one["picture"] for one in report["predictions"]] == [str(path) for path in pictures]
    for one, expected in zip(report["predictions"], recognizer.predict(pictures, top=3), strict=True):
        assert one["unknown"] == (expected[0].origin == "unknown")
        assert [(a["category"], a["origin"]) for a in one["answers"]] == [
            (e.category, e.origin) for e in expected
        ]
        assert [a["probability"] for a in one["answers"]] == pytest.approx(
            [e.probability for e in expected], rel=1e-4
        )


def test_teaching_a_folder_teaches_each_sub_folder(model, photos, answer, run):
    (photos / ".hidden").mkdir()
    (photos / "okapi" / "notes.txt").write_text("seen on Monday")
    (photos / "README.txt").write_text("two animals")
    result = answer("teach", model, "--from", photos)
    assert [(one["name"], one["added"]) for one in result["taught"]] == [("okapi", 3), ("tapir", 2)]
    assert names(answer, model) == ["okapi", "tapir"]
    more = write_folder(photos.parent / "more", {"okapi": 3, "tapir": 2}, size=40)
    _, said, _ = run("teach", model, "--from", more)
    assert said.splitlines() == [
        "Taught 'okapi' from 3 pictures, 6 in all.",
        "Taught 'tapir' from 2 pictures, 4 in all.",
        f"Kept in {model / 'taught.sqlite'}",
    ]


def test_a_picture_that_was_taught_before_is_left_out_unless_it_is_to_be_kept(model, photos, answer, run):
    first, second, third = (photos / "okapi" / f"00{number}.png" for number in range(3))
    (one,) = answer("teach", model, "okapi", first, second, first)["taught"]
    assert (one["added"], one["examples"], one["skipped"]) == (2, 2, [str(first)])
    (one,) = answer("teach", model, "okapi", second, third)["taught"]
    assert (one["added"], one["examples"], one["skipped"]) == (1, 3, [str(second)])
    assert one["duplicates"] == []
    _, said, _ = run("teach", model, "--from", photos)
    assert said.splitlines()[:2] == [
        "Added nothing to 'okapi', which was taught these pictures before.",
        "Taught 'tapir' from 2 pictures.",
    ]
    more = write_picture(photos / "more.png", seed=99)
    _, said, _ = run("teach", model, "tapir", photos / "tapir", more)
    assert said.splitlines()[0] == "Taught 'tapir' from 1 picture, 3 in all."
    assert said.splitlines()[1].startswith("  Left out, because the category has them already: ")
    assert "tapir/000.png" in said
    (one,) = answer("teach", model, "okapi", second, "--keep-duplicates")["taught"]
    assert (one["added"], one["examples"], one["skipped"]) == (1, 4, [])
    assert one["duplicates"] == [{"picture": str(second), "category": "okapi"}]


def test_a_picture_that_was_taught_under_another_name_is_named_and_taught(model, photos, answer, run):
    first, second, third = (photos / "okapi" / f"00{number}.png" for number in range(3))
    answer("teach", model, "okapi", first, second, third)
    (one,) = answer("teach", model, "tapir", third, photos / "tapir")["taught"]
    assert (one["added"], one["skipped"]) == (3, [])
    assert one["duplicates"] == [{"picture": str(third), "category": "okapi"}]
    _, said, _ = run("teach", model, "tapir", first)
    assert "okapi/000.png ('okapi')" in said
    assert said.splitlines()[1].startswith("  Also taught to another category: ")
    _, said, _ = run("teach", model, "tapir", first, "--keep-duplicates")
    assert "  Also taught to another category: " in said
    assert "  Taught before, and counted again: " in said


def test_bad_pictures_are_left_out_of_what_is_taught_if_asked(model, photos, answer, run, refused):
    bad, stray = photos / "okapi" / "bad.png", write_picture(photos / "stray.png")
    bad.write_bytes(b"no picture")
    assert "stray.png: a sub-folder per category" in refused("teach", model, "--from", photos)
    code, out, err = run("teach", model, "--from", photos, "--skip-bad", "--json")
    assert code == 0
    result = json.loads(out)
    assert [(one["name"], one["added"]) for one in result["taught"]] == [("okapi", 3), ("tapir", 2)]
    assert [one["picture"] for one in result["left_out"]] == [str(bad)]
    assert f"left out {stray.name}: not right in a category's folder" in err
    assert f"left out: {bad}: this is not a picture" in err
    told = refused("teach", model, "okapi", photos / "okapi", "--store", model / "other.sqlite")
    assert f"{bad}: this is not a picture" in told
    assert "(--skip-bad leaves such pictures out)" in told
    code, out, _ = run("teach", model, "yak", photos / "okapi", "--skip-bad", "--json")
    assert [(one["name"], one["added"]) for one in json.loads(out)["taught"]] == [("yak", 3)]


def test_a_hidden_category_that_is_taught_is_said_to_be_hidden(model, photos, answer, run):
    answer("hide", model, "base-2")
    _, said, _ = run("teach", model, "base-2", photos / "okapi")
    hint = f"  It is hidden, so it is never an answer. To undo this: recollect unhide {model} base-2"
    assert hint in said.splitlines()
    answer("unhide", model, "base-2")
    _, said, _ = run("teach", model, "base-2", photos / "tapir")
    assert "It is hidden" not in said


def test_teaching_tells_what_it_did_though_another_process_changes_it_at_once(
    taught, photos, answer, monkeypatch
):
    add_all = SqliteStore.add_all

    def and_then_forget(store, lessons):
        kept = add_all(store, lessons)
        other = Recognizer.load(taught, taught / "taught.sqlite")
        other.rename("okapi", "zebra")
        other.forget("quoll")
        return kept

    monkeypatch.setattr(SqliteStore, "add_all", and_then_forget)
    shutil.move(photos / "tapir", photos / "quoll")
    told = answer("teach", taught, "--from", photos, "--keep-duplicates")["taught"]
    assert [(one["id"], one["name"], one["added"], one["examples"]) for one in told] == [
        (7, "okapi", 3, 6),
        (9, "quoll", 2, 2),
    ]
    assert [one["leans_on"] for one in told] == [[], []]  # there is nothing by these names any more
    assert names(answer, taught) == ["zebra", "tapir"]


def test_a_folder_stands_for_the_pictures_right_in_it(model, photos, answer):
    assert answer("teach", model, "okapi", photos / "okapi")["taught"][0]["examples"] == 3
    found = answer("predict", model, photos / "okapi", photos / "tapir" / "000.png")["predictions"]
    assert [one["picture"] for one in found] == [
        str(photos / name) for name in ("okapi/000.png", "okapi/001.png", "okapi/002.png", "tapir/000.png")
    ]


@pytest.mark.parametrize("generator", ["mean", "average"])
def test_a_model_without_attention_leans_on_nothing(tmp_path, make_model, photos, answer, generator):
    save_model(tmp_path / "m.safetensors", make_model(generator=generator))
    result = answer("teach", tmp_path / "m.safetensors", "okapi", photos / "okapi")
    assert result["taught"][0]["leans_on"] == []
    assert result["store"] == str(tmp_path / "m.taught.sqlite")


def test_teaching_says_what_a_category_closely_resembles(tmp_path, make_model, photos, answer, run):
    never, always = (
        Unknown(threshold=threshold, steepness=1.0, offset=0.0, false_alarms=0.05)
        for threshold in (-1e5, 1e5)
    )
    calibrations = {"judges": never, "doubts": always, "judges not": None}
    for name, unknown in calibrations.items():
        model = make_model(generator="mean")
        model.classifier.scale.data.fill_(200.0)
        path = tmp_path / f"{name}.safetensors"
        save_model(path, model, calibration=Calibration(unknown=unknown))
        run("teach", path, "okapi", photos / "okapi")
        told = answer("teach", path, "twin", photos / "okapi")["taught"][0]["resembles"]
        assert (told is None) == (name != "judges")
    assert answer("forget", tmp_path / "judges.safetensors", "twin")
    _, said, _ = run("teach", tmp_path / "judges.safetensors", "twin", photos / "okapi")
    assert (
        "Its pictures resemble 'okapi' (>99 %). Check both with `recollect check`; if 'okapi' loses" in said
    )


def test_forgetting_and_renaming(taught, answer, run):
    result = answer("rename", taught, "okapi", "forest giraffe")
    assert (result["old"], result["new"]) == ("okapi", "forest giraffe")
    assert names(answer, taught) == ["forest giraffe", "tapir"]
    result = answer("forget", taught, "tapir")
    assert (result["forgotten"], result["examples"]) == ("tapir", 2)
    assert names(answer, taught) == ["forest giraffe"]
    assert run("rename", taught, "forest giraffe", "okapi")[1] == "'forest giraffe' is now called 'okapi'.\n"
    assert run("forget", taught, "okapi")[1] == "Forgot 'okapi' and its 3 pictures.\n"
    assert names(answer, taught) == []


def test_ids_stay_when_others_are_forgotten(taught, photos, answer):
    answer("forget", taught, "okapi")
    answer("teach", taught, "quoll", photos / "okapi")
    rows = answer("categories", taught)["categories"]
    assert [(row["id"], row["name"]) for row in rows[:2]] == [(8, "tapir"), (9, "quoll")]


def test_thumbnails_are_kept_only_if_asked_for(model, photos, answer):
    answer("teach", model, "okapi", photos / "okapi")
    answer("teach", model, "tapir", photos / "tapir", "--thumbnails")
    recognizer = Recognizer.load(model, model / "taught.sqlite")
    assert [example.thumbnail for example in recognizer.examples("okapi")] == [None] * 3
    assert all(example.thumbnail.startswith(b"\xff\xd8") for example in recognizer.examples("tapir"))


def test_another_store_can_be_named(model, photos, answer, tmp_path):
    for place in (tmp_path / "mine.sqlite", f"sqlite:///{tmp_path / 'url.sqlite'}"):
        answer("teach", model, "okapi", photos / "okapi", "--store", place)
        assert names(answer, model, "--store", place) == ["okapi"]
        answer("rename", model, "okapi", "tapir", "--store", place)
        found = answer("predict", model, photos / "tapir", "--among", "novel", "--store", place)
        assert found["predictions"][0]["answers"][0]["category"] == "tapir"
        answer("forget", model, "tapir", "--store", place)
    assert (tmp_path / "url.sqlite").is_file()
    assert not (model / "taught.sqlite").exists()


def test_reading_leaves_no_files(model, photos, answer, taught, run):
    for place in ((), ("--store", "memory:")):
        before = tree(model)
        for words in (("categories", model), ("predict", model, photos / "okapi")):
            answer(*words, *place)
            assert run(*words, *place)[0] == 0
        assert tree(model) == before
    (model / "taught.sqlite").unlink()
    assert names(answer, model) == []
    assert [path.name for path in model.iterdir()] == ["model.safetensors"]


def test_what_may_only_be_read_is_read(taught, photos, answer, run):
    taught.chmod(0o555)
    try:
        if os.access(taught, os.W_OK):
            pytest.skip("nothing is read-only for this user")
        assert names(answer, taught) == ["okapi", "tapir"]
        assert len(answer("predict", taught, photos / "okapi")["predictions"]) == 3
        assert "read-only" in run("forget", taught, "okapi")[2]
    finally:
        taught.chmod(0o755)


def test_a_saved_recogniser_brings_its_categories_along(taught, photos, answer, refused, tmp_path):
    saved = tmp_path / "elsewhere" / "zoo.safetensors"
    Recognizer.load(taught, taught / "taught.sqlite").save(saved)
    gc.collect()  # Python closes a connection to SQLite when it collects it
    assert names(answer, saved) == ["okapi", "tapir"]
    for words in (("forget", saved, "yeti"), ("rename", saved, "okapi", "tapir")):
        refused(*words)
    assert [path.name for path in saved.parent.iterdir()] == ["zoo.safetensors"]
    answer("forget", saved, "tapir")
    assert names(answer, saved) == ["okapi"]
    answer("teach", saved, "quoll", photos / "tapir")
    assert names(answer, saved) == ["okapi", "quoll"]


def test_a_copied_folder_brings_its_store_along(taught, answer, tmp_path):
    shutil.copytree(taught, tmp_path / "copy")
    shutil.rmtree(taught)
    assert names(answer, tmp_path / "copy") == ["okapi", "tapir"]


def test_the_list_of_categories_shows_taught_ones_and_the_first_base_ones(tmp_path, make_model, run, photos):
    model = tmp_path / "m.safetensors"
    save_model(model, make_model(categories=tuple(f"[b]{n}" for n in range(30))))
    run("teach", model, "okapi", photos / "okapi")
    _, some, _ = run("categories", model)
    assert "1 taught, 30 base categories" in some
    assert some.index("okapi") < some.index("[b]0")
    assert "[b]9" in some
    assert "[b]10" not in some
    assert "20 more base categories" in some
    _, everything, _ = run("categories", model, "--all")
    assert "[b]29" in everything
    assert "more base categories" not in everything


def test_base_categories_that_were_changed_come_before_the_others(taught, photos, answer):
    answer("hide", taught, "base-5")
    answer("teach", taught, "base-6", photos / "okapi" / "000.png")
    found = [row["name"] for row in answer("categories", taught)["categories"]]
    assert found == ["okapi", "tapir", "base-5", "base-6", *(f"base-{number}" for number in range(5))]


def test_answers_on_the_screen(taught, photos, run):
    _, one, _ = run("predict", taught, photos / "okapi" / "000.png", "--top", 4)
    assert "okapi/000.png" in one
    assert sum("base-" in line or "okapi" in line or "tapir" in line for line in one.splitlines()[1:]) >= 4
    assert "%" in one
    _, many, _ = run("predict", taught, photos / "okapi")
    assert [line.count("000.png") + line.count("002.png") for line in many.splitlines()].count(1) == 2


def test_unknown_pictures_are_told_apart(taught, photos, run, answer, monkeypatch):
    given = [Prediction("unknown", 0.8, "unknown"), Prediction("okapi", 0.15, "novel")]  # type: ignore[arg-type]
    monkeypatch.setattr(
        Recognizer,
        "predict",
        lambda _, pictures, *__, unknown: [given if unknown else given[1:] for _ in pictures],
    )
    for picture in (photos / "okapi", photos / "okapi" / "000.png"):
        report = answer("predict", taught, picture)
        assert all(one["unknown"] for one in report["predictions"])
        assert report["predictions"][0]["answers"] == [
            {"category": "unknown", "probability": 0.8, "origin": "unknown"},
            {"category": "okapi", "probability": 0.15, "origin": "novel"},
        ]
        code, said, _ = run("predict", taught, picture, "--sheet", taught / "sheet.png")
        assert code == 0
        assert "unknown" in said
        assert "15 %" in said
        known = answer("predict", taught, picture, "--no-unknown")["predictions"]
        assert [one["unknown"] for one in known] == [False] * len(known)
        assert known[0]["answers"][0]["category"] == "okapi"


@pytest.mark.parametrize("length", [10, 17, 28, 60, 120, 200])
def test_a_table_shows_the_names_of_files_however_deep_they_lie(taught, run, tmp_path, length):
    deep = tmp_path.joinpath(*["d" * min(50, length - start) for start in range(0, length, 50)])
    photos = write_folder(deep / "photos", {"okapi": 3, "tapir": 2})
    code, said, err = run("predict", taught, photos / "okapi", photos / "tapir")
    assert (code, err) == (0, "")
    assert all(f"│ {name} " in said for name in ("okapi/000.png", "okapi/002.png", "tapir/001.png"))
    assert said.splitlines()[0].strip().endswith("/photos")
    loose = write_picture(tmp_path / "loose.png")
    code, said, err = run("predict", taught, photos / "okapi", loose)
    assert (code, err) == (0, "")
    assert all(f"{name} │" in " ".join(said.split()) for name in ("okapi/000.png", "loose.png"))
    _, said, _ = run("predict", taught, photos / "okapi" / "001.png")
    assert said.splitlines()[0].strip().endswith("okapi/001.png")


@pytest.mark.parametrize("words", [("teach", "okapi"), ("predict",)])
def test_escape_sequences_in_paths_are_not_printed(model, photos, run, tmp_path, words):
    strange = tmp_path / "\x1b[31m\r\nrun"
    shutil.copytree(model, strange)
    command, *rest = words
    code, said, err = run(command, strange, *rest, photos / "okapi" / "000.png")
    assert (code, err) == (0, "")
    assert "\x1b" not in said
    assert "\r" not in said


def test_a_contact_sheet_is_drawn(taught, photos, run, tmp_path):
    sheet = tmp_path / "made" / "sheet.png"
    code, said, err = run("predict", taught, photos / "okapi", photos / "tapir", "--sheet", sheet)
    assert (code, err) == (0, f"wrote {sheet}\n")
    assert "tapir/001.png" in said
    with Image.open(sheet) as image:
        assert image.width > 5 * 276


def test_what_cannot_be_written_is_known_before_the_work(taught, photos, refused, tmp_path):
    (tmp_path / "file").write_text("")
    (tmp_path / "folder.png").mkdir()
    for words in (("--sheet", tmp_path / "file" / "sheet.png"), ("--csv", tmp_path / "file" / "answers.csv")):
        assert "cannot write" in refused("predict", taught, photos / "okapi", *words)
    assert "Is a directory" in refused(
        "predict", taught, photos / "okapi", "--sheet", tmp_path / "folder.png"
    )
    out = tmp_path / "file" / "features.npz"
    assert "cannot write" in refused("features", taught, photos / "okapi", "--out", out)


@pytest.mark.parametrize("words", [("--sheet", "sheet.png"), ("--csv", "answers.csv")])
def test_a_disk_that_fills_up_meanwhile_costs_no_answers(taught, photos, run, tmp_path, monkeypatch, words):
    def full(_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(disk.os, "fsync", full)
    code, said, err = run("predict", taught, photos / "okapi", words[0], tmp_path / words[1])
    assert code == 2
    assert "000.png" in said
    assert err.startswith("recollect: no room on the disk to write")


def test_a_single_picture_that_cannot_be_read_is_named_and_no_option_would_help(taught, tmp_path, refused):
    said = refused("predict", taught, tmp_path / "typo.png")
    assert "typo.png" in said
    assert "--skip-bad" not in said


def test_bad_pictures_are_left_out_if_asked(taught, photos, run, tmp_path):
    (photos / "okapi" / "001.png").write_bytes(b"no picture")
    (photos / "okapi" / "003.png").write_bytes(png_of_size(100_000, 100_000))
    code, said, err = run("predict", taught, photos / "okapi")
    assert (code, said) == (2, "")
    assert "001.png" in err
    assert "--skip-bad" in err
    sheet = tmp_path / "sheet.png"
    code, said, err = run("predict", taught, photos / "okapi", "--skip-bad", "--json", "--sheet", sheet)
    assert code == 0
    report = json.loads(said)
    assert [one["picture"][-7:] for one in report["predictions"]] == ["000.png", "002.png"]
    assert [one["picture"][-7:] for one in report["left_out"]] == ["001.png", "003.png"]
    assert "too large" in report["left_out"][1]["reason"]
    assert err.count("left out: ") == 2
    for name in ("000.png", "002.png"):
        (photos / "okapi" / name).write_bytes(b"")
    code, said, err = run("predict", taught, photos / "okapi", "--skip-bad")
    assert (code, said) == (2, "")
    assert err.splitlines()[-1] == "recollect: none of 4 pictures can be read"


def test_sub_folders_that_are_not_read_are_named(taught, photos, run):
    write_picture(photos / "loose.png")
    code, out, err = run("predict", taught, photos, "--json")
    assert (code, len(json.loads(out)["predictions"])) == (0, 1)
    assert err == f"{photos}: its sub-folders were not read (predict and features take --recursive)\n"


def test_a_folder_is_read_to_its_depths_if_asked(taught, photos, answer):
    write_picture(photos / "okapi" / "more" / "deep" / "x.png")
    found = answer("predict", taught, photos, "--recursive")["predictions"]
    assert [one["picture"] for one in found] == sorted(map(str, photos.rglob("*.png")))


def test_answers_as_csv(taught, photos, run, answer, tmp_path):
    path = tmp_path / "answers.csv"
    code, _, err = run("predict", taught, photos / "okapi", "--csv", path, "--top", 2)
    assert (code, err) == (0, f"wrote {path}\n")
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    for row, one in zip(rows, answer("predict", taught, photos / "okapi")["predictions"], strict=True):
        first, second, *_ = one["answers"]
        assert (row["picture"], row["category"], row["origin"]) == (
            one["picture"], first["category"], first["origin"],
        )  # fmt: skip
        assert float(row["probability"]) == pytest.approx(first["probability"], abs=5e-7)
        assert len(row["probability"]) == len("0.123456")
        assert (row["category_2"], row["origin_2"]) == (second["category"], second["origin"])


@pytest.mark.parametrize("suffix", [".npz", ".csv"])
def test_features_are_those_of_the_recogniser(taught, photos, run, tmp_path, suffix):
    out = tmp_path / f"made{suffix}"
    (photos / "tapir" / "000.png").write_bytes(b"no picture")
    assert run("features", taught, photos / "tapir", "--out", out)[0] == 2
    assert not out.exists()
    code, said, err = run("features", taught, photos, "--recursive", "--skip-bad", "--out", out, "--json")
    assert code == 0, err
    report = json.loads(said)
    assert (report["out"], report["pictures"], report["width"]) == (str(out), 4, 32)
    assert len(report["left_out"]) == 1
    pictures = [path for path in sorted(photos.rglob("*.png")) if path != photos / "tapir" / "000.png"]
    if suffix == ".npz":
        with np.load(out) as file:
            names, values = file["pictures"].tolist(), file["features"]
    else:
        with out.open(newline="") as text:
            _, *rows = csv.reader(text)
        names, values = [row[0] for row in rows], np.array([row[1:] for row in rows], np.float32)
        assert max(len(digits.lstrip("-0.").partition("e")[0]) for row in rows for digits in row[1:]) <= 10
    assert names == [str(path) for path in pictures]
    np.testing.assert_allclose(values, Recognizer.load(taught).features(pictures), rtol=1e-5, atol=1e-6)


def test_only_npz_and_csv_files_are_written(taught, photos, refused, tmp_path):
    assert ".npz or .csv" in refused("features", taught, photos / "okapi", "--out", tmp_path / "made.txt")


def test_explaining_a_taught_category(taught, answer, run, refused):
    report = answer("explain", taught, "okapi", "--top", 2)
    expected = Recognizer.load(taught, "default").explain("okapi", 2)
    assert report["category"] == "okapi"
    assert [(row["category"], row["share"]) for row in report["leans_on"]] == [
        (name, pytest.approx(share)) for name, share in expected
    ]
    _, said, _ = run("explain", taught, "okapi")
    assert "'okapi' leans on" in said
    assert expected[0][0] in said
    assert "taught are: okapi, tapir" in refused("explain", taught, "yeti")


def test_a_base_category_can_be_hidden_and_renamed(taught, photos, answer, run, refused):
    def answers():
        (found,) = answer("predict", taught, photos / "okapi" / "000.png", "--top", 9)["predictions"]
        return [one["category"] for one in found["answers"]]

    before = answers()
    assert "base-1" in before
    assert answer("hide", taught, "base-1") == {
        "model": str(taught), "store": str(taught / "taught.sqlite"), "category": "base-1", "hidden": True,
    }  # fmt: skip
    assert answers() == [name for name in before if name != "base-1"]
    rows = answer("categories", taught)["categories"]
    assert [row["name"] for row in rows if row["hidden"]] == ["base-1"]
    assert "base, hidden" in run("categories", taught)[1]
    assert run("unhide", taught, "base-1") == (0, "'base-1' can be an answer again.\n", "")
    assert answers() == before
    assert run("rename", taught, "base-1", "ant")[0] == 0
    assert answers() == ["ant" if name == "base-1" else name for name in before]
    assert "is no longer an answer" in run("hide", taught, "ant")[1]
    assert "forget 'okapi' instead" in refused("hide", taught, "okapi")
    assert "no base category is called 'yeti'" in refused("unhide", taught, "yeti")
    assert refused("explain", taught, "ant").endswith(
        "'ant' is a base category, and nothing was taught to it\n"
    )


def test_copying_a_store_that_is_in_use(taught, photos, answer, run, refused, tmp_path):
    with Recognizer.load(taught, "default") as open_elsewhere:
        open_elsewhere.teach("quoll", sorted((photos / "okapi").iterdir()))
        copied = tmp_path / "backup.sqlite"
        report = answer("store", "copy", taught / "taught.sqlite", copied)
        assert report == {
            "from": str(taught / "taught.sqlite"), "to": str(copied), "categories": 3, "examples": 8,
        }  # fmt: skip
    assert [path.name for path in tmp_path.glob("backup*")] == ["backup.sqlite"]
    assert names(answer, taught, "--store", copied) == ["okapi", "tapir", "quoll"]
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


def test_a_picture_whose_name_is_no_text(taught, tmp_path, run):
    strange = os.fsdecode(os.fsencode(tmp_path) + b"/\xff\x1b[31m.png")
    Image.fromarray(pixels_of(1)).save(strange)
    for words in (("--json",), ()):
        code, said, err = run("predict", taught, strange, *words)
        assert (code, err) == (0, "")
        assert said.encode()
        assert "\x1b" not in said
        if words:
            assert json.loads(said)["predictions"][0]["picture"] == strange
        else:
            assert "\\udcff\\x1b[31m.png" in said


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
@pytest.mark.parametrize("words", [("--json",), ()], ids=["json", "table"])
def test_a_model_whose_path_is_no_text_in_any_encoding(model, encoding, words):
    strange = os.fsdecode(os.fsencode(model) + b"/b\xffd \xc3\xa9")
    shutil.copy(model / "model.safetensors", strange)
    done = subprocess.run(
        [sys.executable, "-m", "recollect.cli", "info", strange, *words],
        env={**os.environ, "PYTHONIOENCODING": f"{encoding}:strict"},
        capture_output=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    said = done.stdout.decode(encoding)
    assert json.loads(said)["file"] == strange if words else "\\udcffd" in said


def test_many_pictures_are_answered_batch_by_batch(taught, tmp_path, answer, monkeypatch):
    many = write_folder(tmp_path / "many", {"all": 7}) / "all"
    at_once = answer("predict", taught, many)
    monkeypatch.setattr(pictures, "BATCH", 3)
    in_parts = answer("predict", taught, many)
    assert [one["picture"] for one in in_parts["predictions"]] == sorted(map(str, many.iterdir()))
    for one, other in zip(at_once["predictions"], in_parts["predictions"], strict=True):
        assert one["answers"][0]["category"] == other["answers"][0]["category"]


# What is wrong is one line and exit code 2, and leaves every file as it was: also no new, empty store.

BAD_NAMES = {
    "": "a category needs a name that is not empty",
    " ": "a category needs a name that is not empty",
    "x" * 201: "has 201 characters: at most 200",
    "a\tb": "cannot be printed",
    "unknown": "the answer for pictures of no known category",
    "BASE-3": "'BASE-3' is a base category",
}


@pytest.mark.parametrize("name", [*BAD_NAMES][:-1])  # which the last one can be
def test_names_that_cannot_be_taught(model, photos, refused, name):
    assert BAD_NAMES[name] in refused("teach", model, name, photos / "okapi")


@pytest.mark.parametrize("name", BAD_NAMES)
def test_names_that_cannot_be_given(taught, refused, name):
    assert BAD_NAMES[name] in refused("rename", taught, "okapi", name)


@pytest.mark.parametrize("name", ["Okapi", "ｏｋａｐｉ"])
def test_another_spelling_of_a_taught_name(taught, photos, answer, refused, name):
    (one,) = answer("teach", taught, name, photos / "tapir")["taught"]
    assert (one["name"], one["examples"]) == ("okapi", 5)
    assert f"'{name}' is taught already as 'okapi'" in refused("rename", taught, "tapir", name)
    assert "it is spelled 'okapi'" in refused("forget", taught, name)


@pytest.mark.parametrize("words", [("forget", "yeti"), ("rename", "yeti", "bigfoot")])
def test_what_was_not_taught(model, photos, answer, refused, words):
    command, *rest = words
    assert "taught are: none" in refused(command, model, *rest)
    answer("teach", model, "--from", photos)
    assert "taught are: okapi, tapir" in refused(command, model, *rest)
    assert "no category called" in refused(command, model, "yeti", *rest[1:])


def png_of_size(width, height):
    """A PNG file that claims a size."""

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(b""))
        + chunk(b"IEND", b"")
    )


def cut_short(tmp_path):
    whole = write_picture(tmp_path / "whole.png").read_bytes()
    return whole[: len(whole) // 2]


BAD_PICTURES = {
    "nowhere": (None, "there is no such file"),
    "empty": (lambda _: b"", "the file is empty"),
    "text": (lambda _: b"no picture", "this is not a picture"),
    "cut short": (cut_short, "cut short or damaged"),
    "huge": (lambda _: png_of_size(100_000, 100_000), "too large"),
    "flat": (lambda _: png_of_size(0, 5), "bad.png"),
}


@pytest.mark.parametrize("kind", BAD_PICTURES)
def test_pictures_that_cannot_be_used(model, photos, refused, tmp_path, kind):
    make, complaint = BAD_PICTURES[kind]
    bad = tmp_path / "bad.png"
    if make is not None:
        bad.write_bytes(make(tmp_path))
    good = photos / "okapi" / "000.png"
    for words in (("teach", model, "okapi", good, bad), ("predict", model, good, bad)):
        said = refused(*words)
        assert "bad.png" in said
        assert complaint in said


def test_folders_without_pictures(model, refused, tmp_path):
    (tmp_path / "empty").mkdir()
    write_picture(tmp_path / "deep" / "below" / "a.png")
    assert "its sub-folders were not read (predict and" in refused("predict", model, tmp_path / "deep")
    for folder in (tmp_path / "empty", tmp_path / "deep"):
        assert "there are no pictures directly in this folder" in refused("predict", model, folder)
        assert "there are no pictures directly in this folder" in refused("teach", model, "okapi", folder)


@pytest.mark.parametrize(
    ("spoil", "complaint"),
    [
        (lambda photos: (photos / "tapir" / "001.png").write_bytes(b"?"), "tapir/001.png: this is not"),
        (lambda photos: write_picture(photos / "loose.png"), "loose.png: a sub-folder per category"),
        (lambda photos: write_picture(photos / "tapir" / "x" / "a.png"), "tapir/x/a.png: a sub-folder per"),
        (lambda photos: write_picture(photos / "Okapi" / "a.png"), "folders 'Okapi' and 'okapi' in"),
        (lambda photos: write_picture(photos / "okapi " / "a.png"), "are one name, spelled in two ways: put"),
        (lambda photos: write_picture(photos / ("x" * 201) / "a.png"), "has 201 characters"),
    ],
    ids=["bad picture", "loose", "deep", "spelling", "twice", "long"],
)
def test_a_folder_with_anything_wrong_teaches_nothing(model, photos, refused, spoil, complaint):
    spoil(photos)
    assert complaint in refused("teach", model, "--from", photos)


@pytest.mark.parametrize("kind", ["zip", "tar.gz"])
def test_an_archive_teaches_what_the_folder_teaches(model, photos, run, tmp_path, kind):
    packed = shutil.make_archive(tmp_path / "packed", {"tar.gz": "gztar"}.get(kind, kind), photos)
    reports = []
    for source in (photos, packed):
        code, out, err = run(
            "teach", model, "--from", source, "--store", tmp_path / f"{len(reports)}", "--json"
        )
        assert code == 0, err
        reports.append({one["name"]: (one["examples"], one["leans_on"]) for one in json.loads(out)["taught"]})
    assert reports[0] == reports[1]
    assert reports[0].keys() == {"okapi", "tapir"}


def test_bad_pictures_of_an_archive_are_named(model, photos, refused, tmp_path):
    (photos / "tapir" / "001.png").write_bytes(b"?")
    packed = shutil.make_archive(tmp_path / "packed", "zip", photos)
    assert "packed.zip/tapir/001.png: this is not" in refused("teach", model, "--from", packed)


def test_ignored_files_and_empty_categories_are_named_in_one_line(model, photos, run):
    (photos / "zebra").mkdir()
    for name in ("a.cr2", "b.CR2", "c.jxl", "notes.txt"):
        (photos / "tapir" / name).write_bytes(b"")
    for words in (("teach", model, "--from", photos), ("check", model, photos)):
        code, _, err = run(*words)
        assert code == 0, err
        (line,) = [line for line in err.splitlines() if "ignored" in line or "zebra" in line]
        assert line.endswith(
            "photos: ignored 2 .cr2, 1 .jxl (tapir/a.cr2, for example): convert to JPEG or PNG; "
            "left out 'zebra': no pictures that can be read"
        )
    for words in (("teach", model, "quagga", photos / "tapir"), ("predict", model, photos / "tapir")):
        code, _, err = run(*words)
        assert code == 0, err
        assert "tapir: ignored 2 .cr2, 1 .jxl (a.cr2, for example): convert to JPEG or PNG" in err


def test_a_base_category_is_taught_and_forgotten_again(model, photos, answer, run):
    shutil.move(photos / "tapir", photos / "base-1")
    told = answer("teach", model, "--from", photos)["taught"]
    assert [(one["id"], one["name"], one["examples"]) for one in told] == [(1, "base-1", 2), (8, "okapi", 3)]
    code, said, _ = run("forget", model, "base-1")
    assert (code, said) == (
        0,
        "Removed 2 pictures from the base category 'base-1', which is as it was before.\n",
    )
    assert names(answer, model) == ["okapi"]
    assert answer("forget", model, "okapi")["origin"] == "novel"


def test_a_folder_need_not_be_spelled_as_its_category_is(taught, answer, run, tmp_path):
    more = write_folder(tmp_path / "more", {"aardvark": 1, "TAPIR": 1, "Base-2": 1})
    told = answer("teach", taught, "--from", more)["taught"]
    assert [(one["name"], one["examples"]) for one in told] == [("base-2", 1), ("tapir", 3), ("aardvark", 1)]
    checked = json.loads(run("check", taught, more, "--json")[1])["categories"]
    assert {one["category"] for one in checked} == {"base-2", "tapir", "aardvark"}


def test_a_full_disk_teaches_nothing_of_a_folder(taught, answer, run, tmp_path):
    more = write_folder(tmp_path / "more", {f"animal-{n}": 20 for n in range(20)})
    with disk_room(80_000):
        code, said, err = run("teach", taught, "--from", more)
    assert (code, said) == (2, "")
    assert err.count("\n") == 1
    assert "what was taught before is intact" in err
    assert names(answer, taught) == ["okapi", "tapir"]


@pytest.mark.parametrize(
    "words",
    [
        ("teach",),
        ("teach", "MODEL"),
        ("teach", "MODEL", "okapi"),
        ("teach", "MODEL", "okapi", "--from", "PHOTOS"),
        ("teach", "MODEL", "okapi", "PHOTOS/okapi", "--from", "PHOTOS"),
        ("teach", "MODEL", "--from", "nowhere"),
        ("forget", "MODEL"),
        ("rename", "MODEL", "okapi"),
        ("categories",),
        ("predict", "MODEL"),
        ("predict", "MODEL", "PHOTOS/okapi", "--top", "0"),
        ("predict", "MODEL", "PHOTOS/okapi", "--among", "some"),
        ("predict", "MODEL", "PHOTOS/okapi", "--sheet", "sheet.jpg"),
        ("predict", "MODEL", "x" * 5000),
        ("predict", "MODEL", "nul\0byte"),
    ],
    ids=" ".join,
)
def test_wrong_calls(model, photos, refused, words):
    refused(*(word.replace("MODEL", str(model)).replace("PHOTOS", str(photos)) for word in words))


def test_a_message_quotes_a_path_as_it_is(model, refused, tmp_path):
    assert f"{tmp_path}/two  spaces" in refused("predict", model, tmp_path / "two  spaces.png")


def test_choosing_among_taught_categories_where_there_are_none(model, photos, refused):
    assert "teach some first" in refused("predict", model, photos / "okapi", "--among", "novel")


COMMANDS = {
    "teach": ("quoll", "PHOTOS/okapi"),
    "hide": ("base-1",),
    "unhide": ("base-1",),
    "explain": ("okapi",),
    "check": ("PHOTOS",),
    "forget": ("okapi",),
    "rename": ("okapi", "quoll"),
    "categories": (),
    "predict": ("PHOTOS/okapi",),
}


@pytest.fixture(params=COMMANDS)
def command(request, photos):
    """Every command in turn, as a function of the model: its words."""
    rest = [word.replace("PHOTOS", str(photos)) for word in COMMANDS[request.param]]
    return lambda model, *more: (request.param, model, *rest, *more)


def test_a_model_that_cannot_be_used(model, command, refused, tmp_path):
    assert "there is no model at" in refused(*command(tmp_path / "nowhere"))
    path = model / "model.safetensors"
    whole = path.read_bytes()
    for content in (whole[:-10], whole[:5], b"", whole.replace(b'"recollect"', b'"recollekt"', 1)):
        path.write_bytes(content)
        assert "model.safetensors" in refused(*command(model))
    path.write_bytes(re.sub(rb'(?<={\\"format\\":)\d', b"9", whole, count=1))
    assert "this version reads formats up to" in refused(*command(model))


def test_a_store_that_cannot_be_used(taught, make_model, command, refused, tmp_path):
    save_model(taught / "model.safetensors", make_model(seed=1))
    said = refused(*command(taught))
    assert "belongs to another model" in said
    assert "another store" in said
    (tmp_path / "text.sqlite").write_text("not a store, but long enough to be looked at by SQLite" * 50)
    assert "another store" in refused(*command(taught, "--store", tmp_path / "text.sqlite"))
    assert "no store of the kind 'ftp'" in refused(*command(taught, "--store", "ftp://x/y"))
    refused(*command(taught, "--store", tmp_path))
    refused(*command(taught, "--store", "x" * 5000))


def test_a_store_that_is_not_there_is_not_made_by_mistake(taught, command, refused, tmp_path):
    name, *rest = command(taught, "--store", tmp_path / "typo.sqlite")
    if name != "teach":
        assert "there is no store at" in refused(name, *rest)
    if name in {"teach", "forget", "rename", "hide", "unhide"}:
        assert "gone when the command ends" in refused(name, *rest[:-1], "memory:")


def test_features_that_are_no_numbers(tmp_path, make_model, photos, refused):
    broken = make_model()
    next(broken.extractor.parameters()).data.fill_(float("nan"))
    save_model(tmp_path / "m.safetensors", broken)
    for words in (("teach", "okapi"), ("predict",)):
        command, *rest = words
        said = refused(command, tmp_path / "m.safetensors", *rest, photos / "okapi")
        assert "numbers that are not finite" in said


# Starting up: what is not needed is not loaded.

HEAVY = {"torch", "numpy", "PIL", "sklearn", "scipy", "matplotlib", "safetensors", "sqlite3"}
SHOW = """
import json, sys
from recollect import cli
sys.argv[0] = "recollect"
try:
    cli.main()
finally:
    print(json.dumps(sorted({name.split(".")[0] for name in sys.modules})), file=sys.stderr)
"""


def loaded_by(*words):
    done = subprocess.run(
        [sys.executable, "-c", SHOW, *map(str, words)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout, set(json.loads(done.stderr.splitlines()[-1]))


@pytest.mark.parametrize("words", [("--help",), ("predict", "--help"), ("teach", "--help")], ids=" ".join)
def test_help_loads_nothing_heavy(words):
    said, modules = loaded_by(*words)
    assert "predict" in said or "--from" in said
    assert modules & HEAVY == set()


def test_predict_loads_only_what_it_computes_with(model, photos):
    said, modules = loaded_by("predict", model, photos / "okapi", "--json")
    assert len(json.loads(said)["predictions"]) == 3
    assert "torch" in modules
    # sympy comes with torch's compiler, which takes seconds.
    assert modules & {"sklearn", "scipy", "matplotlib", "pandas", "sympy"} == set()
