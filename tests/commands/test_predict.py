"""`recollect predict` and `features`: what they answer, write and load."""

import csv
import errno
import json
import os
import shutil
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

from pictures import pixels_of, png_of_size, write_folder, write_picture
from recollect import Recognizer
from recollect.commands import pictures
from recollect.recognition.recognizer import Prediction
from recollect.system import disk


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


def test_choosing_among_taught_categories_where_there_are_none(model, photos, refused):
    assert "teach some first" in refused("predict", model, photos / "okapi", "--among", "novel")


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
