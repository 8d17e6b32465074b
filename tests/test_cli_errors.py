"""A mistake of the caller's is exit code 2 and one line that says what and how to mend it."""

import errno
import json
import os
import re
import shutil
import subprocess
import sys

import pytest
import torch
import typer
from PIL import Image
from safetensors.torch import load_file, save_file

import recollect
from pictures import disk_room, tree, write_folder, write_picture
from recollect import cli
from recollect.commands.printing import NEVER_UNKNOWN
from recollect.modelfile import save_model
from recollect.system import disk

pytestmark = pytest.mark.usefixtures("no_curves")
COUNTS = {"ant": 13, "bee": 13, "cat": 13, "dog": 13, "emu": 9, "okapi": 4}
SPLIT = '{"val": ["dog"], "test": ["emu", "okapi"]}'
QUICK = ("--extractor", "c32f", "--size", "16", "--threads", "1", "--device", "cpu")
STEPS = ("stage1.steps=2", "stage2.steps=2", "stage2.views=1", "select_tasks=4")
SETTINGS = tuple(word for setting in STEPS for word in ("--set", setting))
TASKS = ("--queries", "2", "--ways", "2", "--tasks", "3", "--shots", "1")


@pytest.fixture(scope="module")
def zoo(tmp_path_factory):
    return write_folder(tmp_path_factory.mktemp("data") / "zoo", COUNTS)


@pytest.fixture(scope="module")
def trained(tmp_path_factory, zoo):
    """A finished run, made by the command line itself."""
    out = tmp_path_factory.mktemp("runs") / "zoo"
    (out.parent / "split.json").write_text(SPLIT)
    environment = {
        **os.environ,
        "RECOLLECT_CACHE": str(out.parent / "cache"),
        "OMP_NUM_THREADS": "1",
    }
    words = ["train", zoo, *QUICK, *SETTINGS, "--split", out.parent / "split.json", "--out", out, "--json"]
    done = subprocess.run(
        [sys.executable, "-m", "recollect.cli", *map(str, words)],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )
    assert (done.returncode, done.stderr) == (0, "")
    said = json.loads(done.stdout)
    assert (said["run"], said["model"]) == (str(out), str(out / "model.safetensors"))
    assert set(said["validation"]) == {"novel", "base", "both"}
    assert said["warnings"] == [NEVER_UNKNOWN]
    return out


def train(data, out, *more):
    return ("train", data, *QUICK, *SETTINGS, "--out", out, *more)


def commands(group, *before):
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, *before, name)
        else:
            yield (*before, name)


@pytest.fixture
def out(tmp_path):
    return tmp_path / "out"


def test_a_right_call_is_not_refused(run, trained, zoo, tmp_path):
    code, said, err = run("evaluate", trained, zoo, *TASKS, "--json", "--out", tmp_path / "report.json")
    assert (code, err) == (0, f"wrote {tmp_path / 'report.json'}\n")
    assert json.loads(said) == json.loads((tmp_path / "report.json").read_text())
    quiet = run("evaluate", trained, zoo, *TASKS, "--quiet", "--json", "--out", tmp_path / "report.json")
    assert (quiet[0], quiet[2]) == (0, "")


def test_a_process_ends_with_code_2_and_one_line(tmp_path):
    words = [sys.executable, "-m", "recollect.cli", "train", "imagenette:x", "--out", str(tmp_path / "out")]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("recollect: 'imagenette:x' is not a known data set")
    assert done.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        ("imagenette:photos", "is not a known data set"),
        ("no/such/folder", "there is no folder or archive at no/such/folder"),
        ("cifar-fs:no/such/folder", "there is no folder or archive at no/such/folder"),
        ("x" * 5000, "name too long"),
        ("two\nlines", r"there is no folder or archive at two\nlines"),
    ],
)
def test_unknown_and_missing_data(refused, out, data, complaint):
    assert complaint in refused(*train(data, out))


def test_an_empty_folder(refused, out, tmp_path):
    (tmp_path / "empty").mkdir()
    assert "empty holds no pictures" in refused(*train(tmp_path / "empty", out))


def test_a_folder_without_categories(refused, out, tmp_path):
    write_picture(tmp_path / "photos" / "a.png")
    assert "a sub-folder per category" in refused(*train(tmp_path / "photos", out))


def test_a_damaged_archive(refused, out, tmp_path):
    (tmp_path / "zoo.zip").write_bytes(b"PK\x03\x04 and then nothing")
    assert "zoo.zip is neither a zip nor a tar archive" in refused(*train(tmp_path / "zoo.zip", out))


def test_a_picture_that_does_not_decode_is_named(refused, run, out, tmp_path):
    zoo = write_folder(tmp_path / "zoo", {"ant": 13, "bee": 13, "cat": 13, "dog": 13})
    (zoo / "bee" / "005.png").write_bytes(b"no picture")
    said = refused(*train(zoo, out))
    assert "zoo/bee/005.png" in said
    assert "--skip-bad" in said
    code, _, err = run(*train(zoo, out, "--skip-bad"))
    assert code == 0
    assert err.startswith("left out: ")
    assert "bee/005.png" in err
    assert "--skip-bad" in refused(*train(zoo, tmp_path / "second"))


def test_a_category_too_small_to_train_on_is_named_with_the_number_needed(refused, out, zoo):
    said = refused(*train(zoo, out))
    assert "training needs at least 8 pictures of each category, and 'okapi' has 4 pictures" in said


def test_a_category_too_small_for_an_episode_is_named_with_the_number_needed(refused, out, zoo):
    said = refused(*train(zoo, out, "--split", '{"test": ["okapi"]}', "--shots", "5"))
    assert "'emu' has 5 pictures and needs 8 (shots: 5, queries: 3)" in said


def test_a_validation_category_too_small_for_a_task_is_named(refused, out, tmp_path):
    zoo = write_folder(tmp_path / "zoo", {"ant": 13, "bee": 13, "cat": 13, "dog": 13, "quoll": 1})
    said = refused(*train(zoo, out, "--split", '{"val": ["quoll"]}'))
    assert "'quoll' has 1 pictures and needs 2" in said


def test_a_single_category(refused, out, tmp_path):
    zoo = write_folder(tmp_path / "zoo", {"ant": 13})
    assert "training needs at least 2" in refused(*train(zoo, out))


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("--size", "8"), "8×8 are too small for the extractor 'c32f'; use --size 16 or more"),
        (("--extractor", "vgg"), "no extractor is called 'vgg'; there are: c128f, c32f"),
        (("--preset", "fast"), "no preset is called 'fast'; there are: "),
        (("--device", "abacus"), "the device 'abacus' cannot be used here"),
        (("--device", "meta"), "the device 'meta' cannot be used here"),
        (("--shots", "0"), "'shots' = 0"),
        (("--shots", "many"), "'shots' = 'many'"),
        (("--shots", "9" * 5000), "--shots: a number of 5000 digits is too large"),
        (("--set", f"shots={'9' * 5000}"), "'shots' = '999"),
        (("--set", f"shots={'[' * 100_000}"), "'shots' = '[[["),
        (("--seed", "-1"), "'seed' = -1"),
        (("--threads", "0"), "'--threads': it must be greater than or equal to 1"),
        (("--threads", "2147483648"), "'--threads'"),
        (("--size", "0"), "'size' = 0"),
        (("--minutes", "0"), "'minutes' = 0"),
        (("--minutes", "inf"), "'minutes' = inf"),
        (("--minutes", "nan"), "'minutes' = nan"),
        (("--minutes", "0.0001"), "--minutes 0.0001 is too short here"),
        (("--set", "nothing=1"), "there is no setting 'nothing'\n"),
        (("--set", "stage1.nothing=1"), "there is no setting 'stage1.nothing'\n"),
        (("--set", "stage1.steps"), "--set stage1.steps: write key=value"),
        (("--set", "stage1.steps=few"), "'stage1.steps' = 'few'"),
        (("--set", "stage1.steps.x=1"), "'steps' holds no settings of its own"),
        (("--set", "stage1=1"), "'stage1' = 1"),
        (("--set", "=1"), "there is no setting ''\n"),
        (("--set", "stage1.schedule.peak=-1"), "'stage1.schedule.peak' = -1"),
        (("--set", "stage1.schedule.kind=sine"), "'stage1.schedule' = "),
        (("--split", "no-such-file.json"), "--split no-such-file.json: a number, or a JSON file"),
        (("--split", '{"val": ["yeti"]}'), "'yeti', which is not a category"),
        (("--split", '{"val": ["ant"], "test": ["ant"]}'), "'ant' twice"),
        (("--split", '{"test": ["ant", "bee", "cat", "emu", "okapi"]}'), "fewer than 2 base categories"),
    ],
)
def test_wrong_options_of_train(refused, out, zoo, words, complaint):
    assert complaint in refused(*train(zoo, out, "--split", SPLIT, *words))


def test_a_learning_rate_may_be_set_alone_as_a_diverging_run_advises(run, out, zoo):
    code, _, err = run(*train(zoo, out, "--split", SPLIT, "--set", "stage1.schedule.peak=0.02"))
    assert (code, err) == (0, "")
    assert json.loads((out / "config.json").read_text())["stage1"]["schedule"]["peak"] == 0.02


def test_a_run_that_diverges_says_what_to_lower(run, out, zoo):
    code, _, err = run(*train(zoo, out, "--split", SPLIT, "--set", "stage1.schedule.peak=1e30"))
    assert code == 2
    assert err.startswith("recollect: stage 1 diverged")
    assert "--set stage1.schedule.peak=" in err
    assert err.count("\n") == 1


@pytest.fixture
def copied(trained, tmp_path):
    """A copy of the finished run that a test may alter."""
    shutil.copytree(trained, tmp_path / "run")
    return tmp_path / "run"


@pytest.fixture
def unfinished(copied):
    """The same before its first step."""
    for name in ("model.safetensors", "stage1.safetensors", "metrics.jsonl"):
        (copied / name).unlink()
    return copied


def test_a_folder_that_holds_a_run_is_not_written_over(refused, copied, zoo):
    assert "already holds a run: continue it with --resume" in refused(*train(zoo, copied, "--split", SPLIT))


@pytest.mark.parametrize("kind", ["", "folder:"])
@pytest.mark.parametrize("inner", [".", "run", "aa/run"])
def test_a_run_is_not_written_among_its_pictures(refused, zoo, kind, inner):
    before = tree(zoo)
    assert "lies among the pictures of" in refused(*train(f"{kind}{zoo}", zoo / inner))
    assert tree(zoo) == before


def test_a_resume_with_another_configuration_names_what_differs(refused, copied, zoo):
    said = refused(
        "train", zoo, "--out", copied, "--resume", "--seed", "3", "--set", "stage1.steps=9", "--shots", "2"
    )
    assert "another configuration (" in said
    for difference in ("seed: 0 → 3", "stage1.steps: 2 → 9", "shots: mixed → 2"):
        assert difference in said
    assert "extractor" not in said


def test_a_resume_with_the_same_words_is_not_refused(run, trained, copied, zoo):
    split = trained.parent / "split.json"
    code, _, err = run(*train(zoo, copied, "--split", split, "--resume"))
    assert (code, err) == (0, f"{copied} is finished: there is nothing to resume\n")
    assert tree(copied) == tree(trained)


def test_a_resume_with_other_threads_is_said_and_allowed(run, trained, unfinished, zoo):
    code, _, err = run("train", zoo, "--out", unfinished, "--resume", "--threads", "2")
    assert (code, err.count("\n")) == (0, 1)
    assert err.startswith("begun with 1 thread on cpu: the weights may differ in their last digits")
    assert (
        load_file(unfinished / "model.safetensors").keys() == load_file(trained / "model.safetensors").keys()
    )


def test_what_was_taught_before_a_training_was_resumed_is_said_not_to_fit(run, copied, zoo):
    store = copied / "taught.sqlite"
    words = ("train", zoo, "--out", copied, "--resume", "--json")
    assert json.loads(run(*words)[1])["warnings"] == [NEVER_UNKNOWN]  # of 12 held-out pictures
    code, _, err = run("teach", copied / "stage1.safetensors", "yak", zoo / "emu", "--store", store)
    assert code == 0, err
    code, said, _ = run(*words)
    assert code == 0
    assert f"the store {store} belongs to another model" in json.loads(said)["warnings"][1]
    assert "Note: this model never answers 'unknown'" in run(*words[:-1])[1]
    store.unlink()
    run("teach", copied, "yak", zoo / "emu")
    assert json.loads(run(*words)[1])["warnings"] == [NEVER_UNKNOWN]


@pytest.mark.parametrize("made", [False, True])
def test_a_resume_without_a_run(refused, out, zoo, made):
    if made:
        out.mkdir()
    assert "holds no run to resume: leave --resume out" in refused(*train(zoo, out, "--resume"))


def test_an_out_that_is_a_file(refused, out, zoo):
    out.write_text("mine")
    assert "holds no run to resume" in refused(*train(zoo, out, "--resume"))
    assert "cannot write" in refused(*train(zoo, out, "--split", SPLIT))


@pytest.mark.parametrize("content", [b"", b"{}", b"\xff\xfe", b'{"data": "x", "unheard_of": 1}'])
def test_a_resume_of_a_configuration_that_cannot_be_read(refused, copied, zoo, content):
    (copied / "config.json").write_bytes(content)
    assert "config.json was written by another version" in refused("train", zoo, "--out", copied, "--resume")


def test_a_resume_of_a_recipe_that_left_a_setting_out(refused, unfinished, zoo):
    config = json.loads((unfinished / "config.json").read_text())
    del config["stage2"]["dropout"]
    (unfinished / "config.json").write_text(json.dumps(config))
    assert "config.json was written by another version" in refused(
        "train", zoo, "--out", unfinished, "--resume"
    )


def test_a_resume_with_another_data_set(refused, unfinished):
    told = refused("train", "glyphs", "--out", unfinished, "--resume")
    begun = json.loads((unfinished / "config.json").read_text())["data"]
    assert f"{unfinished} learns from the pictures of {begun}, and those of glyphs are others" in told


def test_a_resume_when_the_pictures_have_changed(refused, unfinished, tmp_path):
    config = json.loads((unfinished / "config.json").read_text())
    zoo = write_folder(tmp_path / "zoo", COUNTS)
    (unfinished / "config.json").write_text(json.dumps({**config, "data": str(zoo)}))
    assert "have changed since" in refused("train", zoo, "--out", unfinished, "--resume")


def test_a_checkpoint_of_another_format(refused, unfinished, zoo):
    path = unfinished / "stage1.checkpoint.safetensors"
    save_file({"weights/x": torch.ones(1)}, path, metadata={"checkpoint": '{"format": 99, "step": 1}'})
    said = refused("train", zoo, "--out", unfinished, "--resume")
    assert "stage1.checkpoint.safetensors was written by another version of recollect" in said


def test_a_damaged_checkpoint(refused, unfinished, zoo):
    (unfinished / "stage1.checkpoint.safetensors").write_bytes(b"cut short")
    assert "is damaged: delete it" in refused("train", zoo, "--out", unfinished, "--resume")


def test_a_damaged_stage_one_model(refused, unfinished, zoo):
    (unfinished / "stage1.safetensors").write_bytes(b"cut short")
    said = refused("train", zoo, "--out", unfinished, "--resume")
    assert "stage1.safetensors is not a model file, or it is damaged" in said


def test_a_full_disk_before_the_first_step(refused, out, zoo, monkeypatch):
    def full(_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(disk.os, "fsync", full)
    assert "no room on the disk" in refused(*train(zoo, out, "--split", SPLIT))


def test_a_full_disk_during_training_is_one_line_and_the_run_goes_on_later(run, trained, out, zoo):
    with disk_room(100_000):  # enough for the configuration and the decoded pictures, not for a model
        code, _, err = run(*train(zoo, out, "--split", SPLIT))
    assert code == 2
    assert err.startswith("recollect: no room on the disk to write ")
    assert err.count("\n") == 1
    assert {name for name in tree(out) if "safetensors" in name or ".part" in name} == set()
    assert run(*train(zoo, out, "--split", SPLIT, "--resume"))[0] == 0
    again, first = (load_file(folder / "model.safetensors") for folder in (out, trained))
    assert all(torch.equal(first[name], again[name]) for name in first)


def test_a_folder_that_may_not_be_written_to(refused, out, zoo):
    out.mkdir()
    out.chmod(0o555)
    if os.access(out, os.W_OK):
        pytest.skip("nothing is read-only for this user")
    try:
        assert "cannot write" in refused(*train(zoo, out, "--split", SPLIT))
    finally:
        out.chmod(0o755)


def test_a_category_too_small_for_a_task_is_named_with_the_number_needed(refused, trained, zoo):
    said = refused("evaluate", trained, zoo, "--ways", "2", "--shots", "1,3", "--queries", "2")
    assert "'okapi' has 4 pictures and needs 5 (shots: 3, queries: 2)" in said


def test_fewer_categories_than_ways(refused, trained, zoo):
    said = refused("evaluate", trained, zoo, "--ways", "3", "--shots", "1", "--queries", "1")
    assert "tasks of 3 ways need as many categories and there are 2" in said


def test_fewer_held_out_base_pictures_than_queries(refused, trained, zoo):
    words = ("--categories", "val", "--ways", "1", "--shots", "1", "--queries", "7")
    said = refused("evaluate", trained, zoo, *words)
    assert "tasks ask for 7 pictures of base categories and 6 are held out" in said


@pytest.mark.parametrize("shots", ["", "0", "1,", "one", "1;5", "-1", "1,0", "9" * 5000])
def test_wrong_shots_of_evaluate(refused, trained, zoo, shots):
    said = refused("evaluate", trained, zoo, f"--shots={shots}")
    assert "write numbers from 1 up with commas between" in said
    assert len(said) < 200


def test_a_model_on_a_folder_with_no_reserved_categories(refused, run, tmp_path, make_model):
    folder = write_folder(tmp_path / "plain", {"ant": 13, "bee": 13})
    model = tmp_path / "m.safetensors"
    save_model(model, make_model(categories=("ant", "bee")))
    said = refused("evaluate", model, folder, "--ways", "1", "--queries", "15", "--shots", "1")
    assert "'ant' has 2 pictures and needs 16 (shots: 1, queries: 15)" in said
    code, said, err = run("evaluate", model, folder, "--ways", "1", "--tasks", "3", "--json")
    report = json.loads(said)
    assert (code, report["queries"], [result["shots"] for result in report["results"]]) == (0, 1, [1])
    assert report["warnings"] == err.splitlines()
    assert report["warnings"][0].startswith(f"the model was trained on all categories of {folder}: some of ")
    assert report["warnings"][1:] == [
        "some categories have too few pictures for 5 shots: only 1 shot is measured",
        "some categories have few pictures, so queries=1 and not 15",
    ]


def test_a_model_on_other_data(refused, trained, tmp_path):
    other = write_folder(tmp_path / "other", {"ant": 13, "fly": 13, "dog": 9, "emu": 9, "okapi": 9})
    said = refused("evaluate", trained, other, *TASKS)
    assert "has other categories than" in said
    assert "'fly' only in the data" in said
    assert f"measure it on these pictures with `recollect check {trained} FOLDER`" in said


def test_a_model_whose_reserved_categories_the_data_lacks(refused, trained, tmp_path):
    other = write_folder(tmp_path / "other", {"ant": 13, "bee": 13})
    assert "is not a category of the data" in refused("evaluate", trained, other, *TASKS)


def test_a_missing_model(refused, tmp_path, zoo):
    assert "there is no model at" in refused("evaluate", tmp_path / "nowhere", zoo)
    assert "holds no model.safetensors" in refused("evaluate", tmp_path, zoo)


def test_a_damaged_model(refused, copied, zoo):
    path = copied / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-10])
    assert "is not a model file, or it is damaged" in refused("evaluate", copied, zoo)


def test_plain_means_on_the_stage_one_of_another_run_need_no_training(run, trained, zoo, tmp_path):
    out = tmp_path / "means"
    words = [
        "--split",
        trained.parent / "split.json",
        "--generator",
        "mean",
        "--set",
        f"stage1_from={trained}",
    ]
    code, said, err = run("train", zoo, *QUICK, *SETTINGS, *words, "--out", out)
    assert (code, said.splitlines()[0], err) == (0, str(out / "model.safetensors"), "")
    assert "Right answers" not in said


@pytest.mark.parametrize(
    "words",
    [
        ("evaluate", "MODEL", "ZOO", *TASKS, "--out", "FILE/report.json"),
        ("evaluate", "MODEL", "ZOO", *TASKS, "--plot", "FILE/drawn.png"),
        ("plot", "tsne", "MODEL", "ZOO", "--out", "FILE/drawn.png"),
        ("check", "MODEL", "ZOO", "--out", "FILE/drawn.png"),
        ("refit", "MODEL", "--out", "FILE/new"),
        ("new", "FILE/new", "--extractor", "efficientnet-lite0"),
        ("train", "ZOO", *QUICK, "--out", "FILE/run"),
        ("reproduce", "table2", "glyphs", "--out", "FILE/made"),
        ("demo", "--out", "FILE/demo"),
    ],
    ids=lambda words: " ".join((words[0], words[-2])),
)
def test_an_out_that_cannot_be_written_is_refused_before_the_work(refused, trained, zoo, tmp_path, words):
    (tmp_path / "file").write_text("")
    places = {"MODEL": str(trained), "ZOO": str(zoo), "FILE": str(tmp_path / "file")}
    said = refused(*(re.sub("MODEL|ZOO|FILE", lambda found: places[found[0]], word) for word in words))
    assert said.startswith(f"recollect: cannot write {tmp_path / 'file'}")


@pytest.mark.parametrize("out", ["/", "."])
def test_a_folder_in_place_of_a_drawing_is_refused(refused, trained, zoo, out):
    said = refused("plot", "tsne", trained, zoo, "--out", out)
    assert said.strip() == f"recollect: cannot write {out}: Is a directory"


def full_disk(monkeypatch):
    def full(_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(disk.os, "fsync", full)


def test_a_report_that_cannot_be_written_is_still_shown(run, trained, zoo, tmp_path, monkeypatch):
    run("evaluate", trained, zoo, *TASKS)  # so that all features are in the cache
    full_disk(monkeypatch)
    for words in (("--out", tmp_path / "report.json"), ("--plot", tmp_path / "drawn.png")):
        code, out, err = run("evaluate", trained, zoo, *TASKS, *words)
        assert code == 2
        assert "Novel" in out, "what was computed is not lost"
        assert "recollect: no room on the disk to write" in err


def test_a_picture_of_the_evaluation_is_drawn_and_the_report_stays_as_it_is(run, trained, zoo, tmp_path):
    plot = tmp_path / "made" / "joint.png"
    code, said, err = run("evaluate", trained, zoo, *TASKS, "--json", "--plot", plot)
    assert (code, err) == (0, f"wrote {plot}\n")
    with Image.open(plot) as image:
        assert image.format == "PNG"
    without = json.loads(run("evaluate", trained, zoo, *TASKS, "--json")[1])
    assert json.loads(said) | {"seconds": 0} == without | {"seconds": 0}


def test_a_picture_that_cannot_be_written_costs_no_result(run, trained, zoo, tmp_path, monkeypatch):
    full_disk(monkeypatch)
    code, out, err = run("check", trained, zoo, "--out", tmp_path / "drawn.png")
    assert code == 2
    assert "ategor" in out, "what was computed is not lost"
    assert "recollect: no room on the disk to write" in err


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no /dev/full here")  # noqa: PTH110
@pytest.mark.parametrize("words", [("info",), ("categories", "--all", "--json"), ("--help",)])
def test_standard_output_that_takes_nothing_is_one_line(trained, words):
    command = [words[0], str(trained), *words[1:]] if words != ("--help",) else ["--help"]
    with open("/dev/full", "w") as full:  # noqa: PTH123
        done = subprocess.run(
            [sys.executable, "-m", "recollect.cli", *command],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert (done.returncode, done.stderr) == (
        2,
        "recollect: cannot write to standard output: No space left on device\n",
    )


@pytest.mark.parametrize(
    ("words", "closed"), [("info", "1>&-"), ("info --json", "1>&- 2>&-"), ("categories --all", "1>&-")]
)
def test_streams_that_the_caller_closed_are_no_error(trained, words, closed):
    program = f'exec "$0" -m recollect.cli {words} "$1" {closed}'
    done = subprocess.run(
        ["sh", "-c", program, sys.executable, str(trained)], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_long_name_is_shortened_in_an_error(refused, trained):
    told = refused("predict", trained, "--device", "[" * 100_000, "okapi.png")
    assert told.startswith("recollect: the device '[[[")
    assert len(told) < 2100


def test_a_reader_that_has_seen_enough_is_no_error(trained):
    command = f"{sys.executable} -m recollect.cli info {trained} --json | true; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("name", ["drawn.jpg", "drawn", "drawn.png.txt"])
def test_only_png_files_are_drawn(refused, trained, zoo, tmp_path, name):
    for words in (
        ("evaluate", trained, zoo, *TASKS, "--plot"),
        ("plot", "tsne", trained, zoo, "--out"),
        ("check", trained, zoo, "-o"),
    ):
        assert "name a .png file, such as" in refused(*words, tmp_path / name)


def test_tsne_prints_the_file_and_the_silhouette(run, trained, zoo, tmp_path):
    out = tmp_path / "tsne.png"
    code, said, err = run("plot", "tsne", trained, zoo, "--out", out, "--json")
    assert (code, err) == (0, "")
    report = json.loads(said)
    assert (report["picture"], report["shown"], report["pictures"]) == (str(out), ["emu", "okapi"], 13)
    code, said, _ = run("plot", "tsne", trained, zoo, "--out", out)
    last = f"13 pictures of 2 test categories, silhouette {report['silhouette']:.3f}"
    assert said.splitlines() == [str(out), last]


def test_what_tsne_cannot_draw(refused, trained, zoo, tmp_path):
    out = ("--out", tmp_path / "tsne.png")
    assert "a t-SNE needs at least two categories" in refused(
        "plot", "tsne", trained, zoo, "--categories", "val", *out
    )
    assert "there is no model at" in refused("plot", "tsne", tmp_path / "nothing", zoo, *out)
    assert "Missing option '--out'" in refused("plot", "tsne", trained, zoo)
    other = write_folder(tmp_path / "other", {"ant": 13, "fly": 13, "dog": 9, "emu": 9, "okapi": 9})
    assert "has other categories than" in refused("plot", "tsne", trained, other, *out)


def test_a_check_prints_a_row_for_each_category_and_draws(run, trained, zoo, tmp_path):
    out, left_out = tmp_path / "made" / "confusion.png", "left out with their pictures"
    code, said, err = run("check", trained, zoo, "-o", out)
    assert code == 0
    assert all(name in said for name in ("ant", "bee", "cat"))
    assert err.splitlines() == [
        f"the model was trained on {zoo}, so this does not tell how good it is on new pictures",
        NEVER_UNKNOWN,
        f"not categories of this model (or hidden), {left_out}: dog (13), emu (9), okapi (4)",
        f"wrote {out}",
    ]
    with Image.open(out) as image:
        assert image.format == "PNG"
    report = json.loads(run("check", trained, zoo, "--json")[1])
    assert [row["category"] for row in report["categories"]] == ["ant", "bee", "cat"]
    assert f"{report['accuracy']:.1f} % of 39 pictures" in said


def test_what_cannot_be_checked(refused, run, trained, zoo, tmp_path):
    assert "there is no model at" in refused("check", tmp_path / "nothing", zoo)
    assert "there is no folder or archive" in refused("check", trained, tmp_path / "nothing")
    other = write_folder(tmp_path / "other", {"yak": 2})
    assert "no sub-folder of" in refused("check", trained, other)
    mine = write_folder(tmp_path / "mine", {"ant": 2})
    (mine / "ant" / "000.png").write_bytes(b"no picture")
    assert "mine/ant/000.png" in refused("check", trained, mine)
    code, said, err = run("check", trained, mine, "--skip-bad", "--json")
    assert (code, json.loads(said)["pictures"]) == (0, 1)
    assert "left out: " in err


def test_info_of_a_run_and_of_what_is_none(run, refused, trained, tmp_path):
    code, said, err = run("info", trained, "--json")
    assert (code, err) == (0, "")
    info = json.loads(said)
    assert (info["extractor"], info["base_categories"], info["provenance"]["finished"]) == ("c32f", 3, True)
    assert re.search(r"(?m)^unknown +this model never answers 'unknown': ", run("info", trained)[1])
    (tmp_path / "picture.png").write_bytes(b"\x89PNG")
    assert "is not a model file, or it is damaged" in refused("info", tmp_path / "picture.png")
    assert "there is no model at" in refused("info", tmp_path / "nothing")


@pytest.mark.parametrize(
    "words",
    [
        ("plot",),
        ("plot", "tsne"),
        ("plot", "nonsense"),
        ("check", "model"),
        ("info",),
        ("train",),
        ("train", "glyphs", "--nonsense"),
        ("train", "glyphs", "--classifier", "euclid"),
        ("train", "glyphs", "--seed", "many"),
        ("evaluate", "model", "data", "--ways", "0"),
        ("evaluate", "model", "data", "--categories", "all"),
        ("nonsense",),
    ],
)
def test_words_that_the_command_line_does_not_know_end_with_code_2(run, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, out, err = run(*words)
    assert (code, out) == (2, "")
    assert err.startswith("recollect: ")
    assert err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_the_help_of_split_shows_both_forms_of_it(run):
    said = " ".join(run("train", "--help")[1].replace("│", " ").split())
    assert 'a JSON file such as {"val": ["okapi"], "test": ["tapir"]}, or a number that draws' in said


@pytest.mark.parametrize("words", [(), *commands(typer.main.get_command(cli.app))], ids=" ".join)
def test_help_shows_flags_without_a_type(run, words):
    said = run(*words, "--help")[1]
    assert "--help" in said
    assert "<bool>" not in said


@pytest.mark.parametrize("words", [*commands(typer.main.get_command(cli.app))], ids=" ".join)
def test_help_shows_arguments_as_people_write_them(run, words):
    said = run(*words, "--help")[1]
    assert "{" not in said.partition("Arguments")[0]
    arguments = said.partition("Arguments")[2].partition("Options")[0]
    assert not re.search(r"<\w+(\[\w+\])?>", arguments)


def test_a_bug_is_shown_as_it_is(run, monkeypatch, zoo, out):
    def broken(*_, **__):
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr("recollect.training.train.load_data", broken)
    with pytest.raises(ZeroDivisionError, match="a bug"):
        run(*train(zoo, out))


@pytest.mark.parametrize("words", [(), *commands(typer.main.get_command(cli.app))], ids=" ".join)
def test_every_command_tells_the_version(run, words):
    assert run(*words, "--version") == (0, f"{recollect.__version__}\n", "")
    assert "--version" in run(*words, "--help")[1]
