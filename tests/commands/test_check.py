"""`recollect check`: accuracies counted picture by picture."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console
from safetensors.numpy import load_file

from pictures import write_folder, write_picture, write_zip
from recollect import Recognizer
from recollect.commands import pictures
from recollect.commands.check import check, check_table
from recollect.commands.opening import Target
from recollect.commands.printing import NEVER_UNKNOWN
from recollect.data import folder as folder_data
from recollect.errors import DataError, ModelError, PictureError
from recollect.model.spec import Calibration, Unknown
from recollect.modelfile import TrainedOn, find_model, read_header, save_model, write_model
from recollect.recognition.opening import default_store

KNOWN = ("ant", "bee", "[red]cat", "dog")
COUNTS = {"ant": 12, "bee": 9, "[red]cat": 5, "yeti": 3, "yak": 2}


@pytest.fixture(scope="module")
def zoo(tmp_path_factory):
    return write_folder(tmp_path_factory.mktemp("check") / "zoo", COUNTS)


@pytest.fixture(scope="module")
def model(tmp_path_factory, make_model):
    path = tmp_path_factory.mktemp("check") / "m.safetensors"
    save_model(path, make_model(categories=KNOWN))
    return path


def check_folder(model, folder, store=None, **options):
    return check(Target(model, store), folder, **options)


def answers_of(recognizer, zoo, category):
    return [recognizer.predict(path, top=1)[0].category for path in sorted((zoo / category).iterdir())]


def expected_rows(recognizer, zoo, names, base=KNOWN):
    rows = []
    for name in names:
        answers = answers_of(recognizer, zoo, name)
        right = sum(answer == name for answer in answers)
        wrong = {}
        for answer in answers:
            if answer != name:
                wrong[answer] = wrong.get(answer, 0) + 1
        order = [known.name for known in recognizer.categories()]
        worst = max(wrong, key=lambda other: (wrong[other], -order.index(other)), default=None)
        rows.append(
            {
                "category": name,
                "origin": "base" if name in base else "novel",
                "pictures": len(answers),
                "accuracy": round(100 * right / len(answers), 2),
                "confused_with": worst
                and {"category": worst, "share": round(100 * wrong[worst] / len(answers), 2)},
            }
        )
    return rows


@pytest.mark.parametrize("batch", [256, 7])
def test_accuracies_are_those_of_one_prediction_after_the_other(model, zoo, monkeypatch, batch, caplog):
    monkeypatch.setattr(pictures, "BATCH", batch)
    report, confusion = check_folder(model, zoo)
    recognizer = Recognizer.load(model)
    rows = expected_rows(recognizer, zoo, KNOWN[:3])
    right = sum(round(row["accuracy"] * row["pictures"] / 100) for row in rows)
    assert json.loads(json.dumps(report)) == {
        "model": str(model),
        "data": str(zoo),
        "pictures": 26,
        "called_unknown": 0,
        "accuracy": round(100 * right / 26, 2),
        "mean_accuracy": pytest.approx(sum(row["accuracy"] for row in rows) / 3, abs=0.01),
        "categories": rows,
        "unknown": [
            {"category": name, "pictures": COUNTS[name], "accuracy": None, "confused_with": None}
            for name in ("yak", "yeti")
        ],
        "warnings": [
            NEVER_UNKNOWN,
            "not categories of this model (or hidden), left out with their pictures: yak (2), yeti (3)",
        ],
    }
    assert caplog.messages == report["warnings"]
    assert len({row["accuracy"] for row in rows}) > 1
    for row, name in enumerate(confusion.true):
        answers = answers_of(recognizer, zoo, name)
        assert confusion.counts[row].tolist() == [answers.count(other) for other in confusion.predicted]


def test_a_folder_of_a_known_name_in_another_spelling_is_of_that_category(model, zoo, tmp_path):
    other = Path(shutil.copytree(zoo, tmp_path / "other"))
    (other / KNOWN[0]).rename(other / KNOWN[0].upper())
    found, expected = (check_folder(model, folder)[0]["categories"] for folder in (other, zoo))
    assert found == expected


@pytest.mark.parametrize("store", [None, "elsewhere.sqlite"])
def test_taught_categories_are_checked_too(model, zoo, tmp_path, store):
    model = Path(shutil.copy(find_model(model), tmp_path / "own.safetensors"))
    kept = default_store(model) if store is None else tmp_path / store
    recognizer = Recognizer.load(model, kept)
    recognizer.teach("yeti", sorted((zoo / "yeti").iterdir()))
    report, _ = check_folder(model, zoo, store and str(kept))
    assert report["categories"] == expected_rows(recognizer, zoo, [*KNOWN[:3], "yeti"])
    assert report["categories"][-1]["origin"] == "novel"
    assert [one["category"] for one in report["unknown"]] == ["yak"]


def test_a_category_that_another_process_renames_meanwhile_has_a_column_of_its_own(
    model, zoo, tmp_path, monkeypatch
):
    model = Path(shutil.copy(find_model(model), tmp_path / "own.safetensors"))
    recognizer = Recognizer.load(model, default_store(model))
    recognizer.teach("yeti", sorted((zoo / "yeti").iterdir()))
    before, _ = check_folder(model, zoo)

    predict = Recognizer.predict

    def rename_first(self, *words, **options):
        if [one.name for one in recognizer.categories()][-1] == "yeti":
            recognizer.rename("yeti", "almas")
        return predict(self, *words, **options)

    monkeypatch.setattr(Recognizer, "predict", rename_first)
    report, confusion = check_folder(model, zoo)
    assert confusion.predicted == (*KNOWN, "yeti", "almas")
    assert confusion.counts.sum() == before["pictures"] == 29
    assert confusion.counts[:, 4].sum() == 0
    assert confusion.counts[3, 5] > 0
    assert report["warnings"][-1].endswith("by another process while this was measured: almas")


def calibrated(model, path, threshold):
    """A copy of a model that calls a picture unknown when its best score is below the threshold."""
    rule = Unknown(threshold=threshold, steepness=1, offset=0, false_alarms=0.05)
    words = read_header(model).model_copy(update={"calibration": Calibration(unknown=rule)})
    write_model(path, words, load_file(find_model(model)))
    return path


def test_a_picture_that_is_called_unknown_counts_as_such(model, zoo, tmp_path):
    report, confusion = check_folder(calibrated(model, tmp_path / "strict.safetensors", 1e6), zoo)
    assert report["accuracy"] == 0
    assert all(row["confused_with"] == {"category": "unknown", "share": 100} for row in report["categories"])
    assert report["called_unknown"] == report["pictures"] == 26
    assert "26 pictures of known categories called unknown" in str(check_table(report).title)
    assert confusion.counts.sum() == confusion.counts[:, -1].sum() == sum(COUNTS.values())


def test_a_renamed_category_is_checked_under_both_names_and_a_hidden_one_is_no_answer(model, zoo, tmp_path):
    with Recognizer.load(model, tmp_path / "own.sqlite") as recognizer:
        recognizer.rename("bee", "wasp")
        recognizer.hide("ant")
    report, _ = check_folder(model, zoo, str(tmp_path / "own.sqlite"))
    assert [(row["category"], row["pictures"]) for row in report["categories"]] == [
        ("wasp", 9),
        ("[red]cat", 5),
    ]
    assert [row["category"] for row in report["unknown"]] == ["ant", "yak", "yeti"]


@pytest.mark.parametrize("names", [("yeti", "yak"), ("ant", "bee", "yeti")])
def test_for_what_was_never_taught_unknown_is_the_right_answer(model, zoo, tmp_path, names):
    folder = tmp_path / "some"
    for name in names:
        shutil.copytree(zoo / name, folder / name)
    scores = Recognizer.load(model).scores([*sorted(folder.rglob("*.png"))]).base.max(axis=1)
    half = calibrated(model, tmp_path / "half.safetensors", float(sorted(scores)[len(scores) // 2]))
    report, confusion = check_folder(half, folder)
    recognizer = Recognizer.load(half)
    for row in report["unknown"]:
        answers = answers_of(recognizer, folder, row["category"])
        assert row["pictures"] == len(answers)
        assert row["accuracy"] == round(100 * answers.count("unknown") / len(answers), 2)
    assert [row["category"] for row in report["unknown"]] == sorted({*names} - {*KNOWN})
    assert report["pictures"] == sum(COUNTS[name] for name in names if name in KNOWN)
    assert (report["accuracy"] is None) == (not report["categories"])
    (warning,) = report["warnings"]
    assert "not categories of this model (or hidden), so 'unknown' is the right answer for them: " in warning
    assert " of other things called unknown" in str(check_table(report).title)
    assert confusion.predicted[-1] == "unknown"


def test_a_renamed_base_category_is_still_one(model, zoo, tmp_path):
    model = Path(shutil.copy(find_model(model), tmp_path / "own.safetensors"))
    with Recognizer.load(model, "default") as recognizer:
        recognizer.rename("bee", "yeti")
    rows = check_folder(model, zoo)[0]["categories"]
    assert [(row["category"], row["origin"]) for row in rows] == [
        ("ant", "base"), ("yeti", "base"), ("[red]cat", "base"),
    ]  # fmt: skip


def test_two_stores_are_compared(model, zoo, tmp_path):
    model = Path(shutil.copy(find_model(model), tmp_path / "own.safetensors"))
    with Recognizer.load(model, "default") as recognizer:
        recognizer.teach("yeti", sorted((zoo / "yeti").iterdir()))
        recognizer.teach("ants", sorted((zoo / "ant").iterdir()))  # which answers for the ants from now on
    (before, _), (after, _) = (check_folder(model, zoo, store) for store in ("memory:", None))
    report, _ = check_folder(model, zoo, against="memory:")
    old = {row["category"]: row["accuracy"] for row in before["categories"]}
    assert {row["category"]: row["accuracy_against"] for row in report["categories"]} == {**old, "yeti": None}
    assert [row["accuracy"] for row in report["categories"]] == [
        row["accuracy"] for row in after["categories"]
    ]
    both = report["against"]
    assert (both["store"], both["categories"], both["pictures"]) == ("memory:", 3, before["pictures"])
    assert both["accuracy_against"] == pytest.approx(before["accuracy"], abs=0.02)
    assert both["accuracy"] < both["accuracy_against"], "the lookalike took some of the ants"
    assert "3 categories in both stores: " in str(check_table(report).title)


def test_an_archive_is_as_good_as_its_folder(model, zoo, tmp_path):
    archive = write_zip(tmp_path / "zoo.zip", zoo)
    unlike = ("data",)
    reports = [check_folder(model, place)[0] for place in (zoo, archive)]
    first, second = ({name: report[name] for name in report if name not in unlike} for report in reports)
    assert first == second


def test_the_table_names_every_category_with_its_worst_confusion(model, zoo, capsys):
    report, _ = check_folder(model, zoo)
    Console(width=200).print(check_table(report))
    said = capsys.readouterr().out
    assert f"{report['accuracy']:.1f} % of 26 pictures recognised" in said
    assert f"mean over 3 categories {report['mean_accuracy']:.1f} %" in said
    rows = [line.split("│") for line in said.splitlines() if line.startswith("│")]
    shown = [float(row[4]) for row in rows[: len(report["categories"])]]
    assert shown == sorted(shown), "the worst come first"
    assert len({*shown}) > 1
    for row in report["categories"]:
        (line,) = [
            line
            for line in said.splitlines()
            if line.split("│")[1:2] and row["category"] in line.split("│")[1]
        ]
        assert f"{row['accuracy']:.1f}" in line
        if row["confused_with"]:
            assert f"{row['confused_with']['category']} ({row['confused_with']['share']:.1f} %)" in line


def test_pictures_are_prepared_as_the_model_wants_them(tmp_path, make_model, make_spec):
    prepare = make_spec().preprocessing.model_copy(update={"short_side": 24})
    save_model(tmp_path / "m.safetensors", make_model(categories=KNOWN, preprocessing=prepare))
    zoo = write_folder(tmp_path / "zoo", {"ant": 20, "bee": 20}, size=40)
    report, _ = check_folder(tmp_path / "m.safetensors", zoo)
    recognizer = Recognizer.load(tmp_path / "m.safetensors")
    assert report["categories"] == expected_rows(recognizer, zoo, ("ant", "bee"))


def test_a_folder_that_was_trained_on_is_told(tmp_path, make_model, zoo, caplog):
    key = folder_data.read_library(zoo, 16, skip_bad=False).key
    save_model(tmp_path / "m.safetensors", make_model(categories=KNOWN), trained_on=TrainedOn(key=key))
    report, _ = check_folder(tmp_path / "m.safetensors", zoo)
    told = f"the model was trained on {zoo}, so this does not tell how good it is on new pictures"
    assert report["warnings"][0] == told
    assert told in caplog.messages


def test_a_bad_picture_is_named_or_left_out(tmp_path, model, caplog):
    zoo = write_folder(tmp_path / "zoo", {"ant": 4, "bee": 3})
    (zoo / "ant" / "002.png").write_bytes(b"no picture")
    with pytest.raises(PictureError, match=r"zoo/ant/002.png.*--skip-bad"):
        check_folder(model, zoo)
    report, _ = check_folder(model, zoo, skip_bad=True)
    assert [row["pictures"] for row in report["categories"]] == [3, 3]
    assert "zoo/ant/002.png" in caplog.text
    for number in range(3):
        (zoo / "bee" / f"{number:03}.png").write_bytes(b"no picture")
    report, _ = check_folder(model, zoo, skip_bad=True)
    assert [row["category"] for row in report["categories"]] == ["ant"]


def test_a_folder_of_nothing_but_bad_pictures(tmp_path, model):
    zoo = tmp_path / "zoo"
    write_picture(zoo / "ant" / "a.png").write_bytes(b"no picture")
    with pytest.raises(PictureError, match=r"none of 1 picture can be read"):
        check_folder(model, zoo, skip_bad=True)


def test_a_folder_of_other_categories(tmp_path, model):
    zoo = write_folder(tmp_path / "zoo", {"yeti": 1, "yak": 1})
    with pytest.raises(
        DataError, match=r"no sub-folder of .*zoo is a category of .*there are yak, yeti, and"
    ):
        check_folder(model, zoo)


def test_names_with_control_characters_stay_on_one_line(model, tmp_path, caplog):
    zoo = write_folder(tmp_path / "zoo", {"ant": 2, "y\ne\x1bti": 1})
    check_folder(model, zoo)
    assert caplog.messages == [
        NEVER_UNKNOWN,
        r"not categories of this model (or hidden), left out with their pictures: y\ne\x1bti (1)",
    ]


def test_such_names_stay_on_one_line_in_the_tables_too(tmp_path, make_model, run):
    names = ("a\nn\x1b[31mt", "bee")
    save_model(tmp_path / "m.safetensors", make_model(categories=names))
    write_folder(tmp_path / "zoo", {names[0]: 2})
    for words in (
        ("check", tmp_path / "m.safetensors", tmp_path / "zoo"),
        ("info", tmp_path / "m.safetensors"),
    ):
        code, said, _ = run(*words)
        assert code == 0
        assert r"a\nn\x1b[31mt" in said
        assert "\x1b" not in said


@pytest.mark.slow
def test_without_a_picture_to_draw_matplotlib_is_not_loaded(model, zoo):
    code = (
        "import sys; from recollect import cli\n"
        "try:\n    cli.main()\nfinally:\n    print('matplotlib' in sys.modules)"
    )
    command = [sys.executable, "-c", code, "check", str(model), str(zoo)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "pictures recognised" in done.stdout
    assert done.stdout.splitlines()[-1] == "False"


def test_what_is_no_model_and_no_folder(tmp_path, model, zoo):
    with pytest.raises(ModelError, match="there is no model"):
        check_folder(tmp_path / "nothing", zoo)
    with pytest.raises(DataError, match="there is no folder"):
        check_folder(model, tmp_path / "nothing")


def test_only_a_batch_of_pictures_is_in_memory(model, tmp_path, monkeypatch):
    monkeypatch.setattr(pictures, "BATCH", 4)
    zoo = write_folder(tmp_path / "zoo", {"ant": 13})
    sizes = []
    predict = Recognizer.predict

    def watched(self, pixels, top):
        sizes.append(len(pixels))
        return predict(self, pixels, top)

    monkeypatch.setattr(Recognizer, "predict", watched)
    check_folder(model, zoo)
    assert sizes == [4, 4, 4, 1]
