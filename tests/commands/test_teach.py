"""`recollect teach`, on a model and pictures of its own."""

import json
import shutil

import pytest

from pictures import disk_room, write_folder, write_picture
from recollect import Recognizer
from recollect.model.spec import Calibration, Unknown
from recollect.modelfile import save_model
from recollect.store.sqlite import SqliteStore


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


def test_teaching_a_folder_teaches_each_sub_folder(model, photos, answer, run, names):
    (photos / ".hidden").mkdir()
    (photos / "okapi" / "notes.txt").write_text("seen on Monday")
    (photos / "README.txt").write_text("two animals")
    result = answer("teach", model, "--from", photos)
    assert [(one["name"], one["added"]) for one in result["taught"]] == [("okapi", 3), ("tapir", 2)]
    assert names(model) == ["okapi", "tapir"]
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
    taught, photos, answer, monkeypatch, names
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
    assert names(taught) == ["zebra", "tapir"]


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


def test_a_base_category_is_taught_and_forgotten_again(model, photos, answer, run, names):
    shutil.move(photos / "tapir", photos / "base-1")
    told = answer("teach", model, "--from", photos)["taught"]
    assert [(one["id"], one["name"], one["examples"]) for one in told] == [(1, "base-1", 2), (8, "okapi", 3)]
    code, said, _ = run("forget", model, "base-1")
    assert (code, said) == (
        0,
        "Removed 2 pictures from the base category 'base-1', which is as it was before.\n",
    )
    assert names(model) == ["okapi"]
    assert answer("forget", model, "okapi")["origin"] == "novel"


def test_a_folder_need_not_be_spelled_as_its_category_is(taught, answer, run, tmp_path):
    more = write_folder(tmp_path / "more", {"aardvark": 1, "TAPIR": 1, "Base-2": 1})
    told = answer("teach", taught, "--from", more)["taught"]
    assert [(one["name"], one["examples"]) for one in told] == [("base-2", 1), ("tapir", 3), ("aardvark", 1)]
    checked = json.loads(run("check", taught, more, "--json")[1])["categories"]
    assert {one["category"] for one in checked} == {"base-2", "tapir", "aardvark"}


def test_a_full_disk_teaches_nothing_of_a_folder(taught, answer, run, tmp_path, names):
    more = write_folder(tmp_path / "more", {f"animal-{n}": 20 for n in range(20)})
    with disk_room(80_000):
        code, said, err = run("teach", taught, "--from", more)
    assert (code, said) == (2, "")
    assert err.count("\n") == 1
    assert "what was taught before is intact" in err
    assert names(taught) == ["okapi", "tapir"]
