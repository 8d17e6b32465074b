"""`recollect reproduce table2` on a few glyphs: a row for each extractor, trained here or beforehand."""

import json
import shlex
import shutil

import pytest
import torch
from reproductions import read, timeless, words_of

from colours import train_quickly
from killing import kill_when
from pictures import tree
from recollect.data import glyphs
from recollect.errors import ConfigError, Stopped
from recollect.evaluation.evaluate import evaluation_report
from recollect.model.spec import Calibration
from recollect.modelfile import load_model, read_header
from recollect.reproduce import page, plan
from recollect.reproduce import run as running
from recollect.reproduce.results import write_json
from recollect.reproduce.rows import PAPER_IMAGES, TABLE_2, TABLES, TASK_SEED
from recollect.training import train as whole_training
from recollect.training.budget import Speed
from recollect.training.config import make_config, preset_names, read_preset
from recollect.training.runfolder import RunFolder
from recollect.training.train import train

SETTINGS = {
    "threads": "1",
    "select_tasks": "8",
    "checkpoint_seconds": "0",
    "stage1.steps": "6",
    "stage1.batch": "64",
    "stage1.evaluations": "2",
    "stage2.steps": "4",
    "stage2.views": "1",
    "stage2.episodes": "2",
    "stage2.evaluations": "2",
}
WISHES = {"tasks": 20, "queries": 3, "settings": SETTINGS}
EXTRACTORS = ("c32f", "c64f", "c128f")


def few_glyphs(patch):
    """Draw few pictures, and train on them quickly."""
    train_quickly(patch)
    patch.setattr(glyphs, "BASE_PICTURES", 12)
    patch.setattr(glyphs, "OTHER_PICTURES", 10)
    patch.setattr(glyphs, "HELD_PICTURES", 4)


@pytest.fixture(autouse=True)
def _few_glyphs(monkeypatch):
    few_glyphs(monkeypatch)


def reproduced(folder, said=None, **wishes):
    say = ([] if said is None else said).append
    return running.reproduce("table2", "glyphs", folder, say, **{**WISHES, **wishes})


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A reproduction that nothing interrupted."""
    folder = tmp_path_factory.mktemp("whole")
    with pytest.MonkeyPatch.context() as patch:
        few_glyphs(patch)
        patch.setenv("RECOLLECT_CACHE", str(folder.parent / "whole-cache"))
        torch.set_num_threads(1)
        reproduced(folder)
    return folder


def lines_of(path, start):
    text = path.read_text(encoding="utf-8")
    return [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith(f"| {start} | ")]


def test_each_row_is_a_run_of_its_extractor_with_any_number_of_shots(finished):
    assert sorted(path.name for path in (finished / "runs").iterdir()) == sorted(EXTRACTORS)
    for name in EXTRACTORS:
        header = read_header(finished / "runs" / name)
        assert (header.spec.extractor, header.spec.generator) == (name, "attention")
        assert header.spec.shot_aware
        assert load_model(finished / "runs" / name).generator.fading != 0, "nothing was learned"
        config = RunFolder(finished / "runs" / name).config()
        assert (config.shots, config.select) == ("mixed", "both")


def test_the_page_shows_what_evaluate_measures_on_test_categories(finished):
    report = evaluation_report(
        finished / "runs" / "c64f", "glyphs", part="test", queries=3, tasks=20, seed=TASK_SEED
    )
    for result, line in zip(report["results"], lines_of(finished / "table2.md", "c64f")[:2], strict=True):
        cells = [f"{result[name]['mean']:.2f} ± " for name in ("novel", "base", "both")]
        assert line[1] == str(result["shots"])
        assert [cell[: len(one)] for cell, one in zip(line[2:], cells, strict=True)] == cells


def test_both_is_as_predicted_where_base_vectors_stay_in_stage_2(finished, tmp_path, monkeypatch):
    monkeypatch.setattr(whole_training, "_calibrate", lambda *_: Calibration(bias=-50.0))
    settings = SETTINGS | {"stage2.learn_base": "false", "shifted": "2"}
    reproduced(tmp_path, extractors=("c32f",), settings=settings)
    looks = "means over five views: a picture in place and shifted by 2 px to each side"
    assert lines_of(tmp_path / "table2.md", "c32f")[2][5:] == [looks, "fixed", "Both"]
    assert lines_of(finished / "table2.md", "c32f")[2][5:] == ["of one view", "learned", "Both"]
    report = evaluation_report(
        tmp_path / "runs" / "c32f", "glyphs", part="test", queries=3, tasks=20, seed=TASK_SEED
    )
    for result, line in zip(report["results"], lines_of(tmp_path / "table2.md", "c32f")[:2], strict=True):
        assert result["both"] != result["both_calibrated"]
        for place, name in ((4, "both"), (5, "both_calibrated")):
            assert line[place].startswith(f"{result[name]['mean']:.2f} ± ")
    assert "calibrated" not in (finished / "table2.md").read_text(encoding="utf-8")
    assert "both_calibrated" not in read(finished / "results" / "c32f.json")["right"]["1"]


@pytest.mark.slow
def test_the_page_says_which_model_was_distilled_and_counts_its_images(finished, tmp_path):
    shutil.copytree(finished / "runs" / "c64f", tmp_path / "first")
    one, settings = tmp_path / "new", SETTINGS | {"stage1.teacher": json.dumps(str(tmp_path / "first"))}
    reproduced(one, extractors=("c32f",), settings=settings)
    text = (one / "table2.md").read_text(encoding="utf-8")
    assert lines_of(one / "table2.md", "c32f")[2][4] == "first"
    assert "The images of a teacher are counted; its minutes are not." in text
    assert lines_of(one / "table2.md", "c32f")[3][1] == f"{2 * 6 * 64}"
    shutil.rmtree(tmp_path / "first")
    (one / "results" / "c32f.json").unlink()
    reproduced(one, extractors=("c32f",), settings=settings)  # the run has its copy
    assert (one / "results" / "c32f.json").exists()
    assert "teacher are counted" not in (finished / "table2.md").read_text(encoding="utf-8")


@pytest.mark.slow
def test_a_reproduction_killed_in_the_middle_goes_on_and_gives_the_same_page(finished, tmp_path):
    folder = tmp_path / "killed"
    kill_when(folder / "runs" / "c64f" / "stage2.checkpoint.safetensors", lambda: reproduced(folder))
    done = tree(folder / "results")
    assert sorted(done) == ["c32f.json"]
    stamps = {path: path.stat().st_mtime_ns for path in folder.glob("runs/c32f/*")}
    said = []
    reproduced(folder, said)
    assert said[0] == "[2/3] c64f"
    assert {path: path.stat().st_mtime_ns for path in stamps} == stamps, "finished work was touched"
    assert tree(folder / "results")["c32f.json"] == done["c32f.json"]
    assert timeless(folder, tmp_path / "one") == timeless(finished, tmp_path / "other")


def trained_alone(finished, folder, **settings):
    """Train c32f as its command on the page says, before there is any reproduction."""
    words = shlex.split(read(finished / "results" / "c32f.json")["commands"][0])
    said = dict(words[place + 1].split("=", 1) for place, word in enumerate(words) if word == "--set")
    preset = read_preset(words[words.index("--preset") + 1])
    train(make_config(preset, {"data": "glyphs", "seed": 0}, said | settings), folder / "runs" / "c32f")


@pytest.mark.slow
def test_a_run_that_was_trained_on_its_own_is_taken_over(finished, tmp_path):
    trained_alone(finished, tmp_path / "new")
    weights = tmp_path / "new" / "runs" / "c32f" / "model.safetensors"
    stamp = weights.stat().st_mtime_ns
    reproduced(tmp_path / "new")
    assert weights.stat().st_mtime_ns == stamp
    assert timeless(tmp_path / "new", tmp_path / "one") == timeless(finished, tmp_path / "other")


def test_a_run_with_another_configuration_is_refused_before_anything_is_trained(finished, tmp_path):
    trained_alone(finished, tmp_path / "new", **{"stage2.steps": "5", "stage1.steps": "2"})
    with pytest.raises(ConfigError, match=r"runs/c32f was begun with another .*stage1.steps: 2 → 6"):
        reproduced(tmp_path / "new")
    assert [path.name for path in (tmp_path / "new" / "runs").iterdir()] == ["c32f"]


def test_a_run_of_another_data_set_is_refused_by_name(finished, tmp_path, monkeypatch):
    folder = shutil.copytree(finished, tmp_path / "copy")
    (folder / "results" / "c64f.json").unlink()
    config = folder / "runs" / "c64f" / "config.json"
    config.write_text(
        json.dumps(read(config) | {"data": "cifar-fs:images.zip", "data_key": "other"}, indent=1)
    )
    with pytest.raises(ConfigError, match="c64f learns from the pictures of cifar-fs:") as found:
        reproduced(folder)
    assert "\n" not in str(found.value)


def test_the_folder_of_a_single_run_is_refused(finished, refused):
    run = finished / "runs" / "c32f"
    before = tree(run)
    assert f"{run} is the folder of a single run" in refused("reproduce", "table2", "glyphs", "--out", run)
    assert tree(run) == before


def test_rows_of_extractors_are_chosen_by_name(finished, refused, run, tmp_path):
    out = ("--out", tmp_path / "new")
    told = refused("reproduce", "table2", "glyphs", *out, "--extractors", "c32f,resnet10")
    assert "--extractors resnet10: choose some of c32f,c64f,c128f,resnet" in told
    told = refused("reproduce", "table1", "glyphs", *out, "--extractors", "c32f")
    assert "--set extractor=" in told
    assert not (tmp_path / "new").exists()
    shutil.copytree(finished / "runs" / "c32f", tmp_path / "new" / "runs" / "c32f")
    options = ("--tasks", 20, "--queries", 3, *words_of(SETTINGS), "--note", "Beside other work.")
    code, _, _ = run("reproduce", "table2", "glyphs", *out, "--extractors", "c32f", *options)
    text = (tmp_path / "new" / "table2.md").read_text(encoding="utf-8")
    assert code == 0
    assert "--extractors c32f " in text
    assert "of evaluation in all. Beside other work.\n" in text
    options = (*options[:-1], "Alone.")  # a remark may change, or be left out
    assert run("reproduce", "table2", "glyphs", *out, "--extractors", "c32f", *options)[0] == 0
    assert run("reproduce", "table2", "glyphs", *out, "--extractors", "c32f", *options[:-2])[0] == 0
    assert "of evaluation in all. Alone.\n" in (tmp_path / "new" / "table2.md").read_text(encoding="utf-8")
    assert "| c64f |" not in text
    assert "Unfinished" not in text


def test_rows_may_be_added_later(finished, tmp_path):
    one = tmp_path / "new"
    for name in ("c64f", "c32f"):
        shutil.copytree(finished / "runs" / name, one / "runs" / name)
        reproduced(one, extractors=(name,))
    assert read(one / "plan.json")["keys"] == ["c32f", "c64f"]
    text = (one / "table2.md").read_text(encoding="utf-8")
    assert "| c32f | 1 |" in text
    assert "| c64f | 1 |" in text
    assert "--extractors c32f,c64f " in text
    before = tree(one)
    reproduced(one, extractors=("c64f",))
    assert tree(one) == before
    with pytest.raises(ConfigError, match="tasks: 20 → 30"):
        reproduced(one, extractors=("c128f",), tasks=30)
    assert read(one / "plan.json")["keys"] == ["c32f", "c64f"]


@pytest.mark.slow
def test_trainings_with_other_seeds_may_be_added_later(finished, tmp_path):
    one = tmp_path / "new"
    shutil.copytree(finished / "runs" / "c32f", one / "runs" / "c32f")
    reproduced(one, extractors=("c32f",))
    first = tree(one / "results")
    reproduced(one, extractors=("c32f",), seeds=2)
    both = tree(one / "results")
    assert sorted(both) == ["c32f-seed-1.json", "c32f.json"]
    assert both["c32f.json"] == first["c32f.json"]
    assert read(one / "results" / "c32f-seed-1.json")["seed"] == 1
    files = [read(one / "results" / f"c32f{seed}.json")["report"]["results"][0] for seed in ("", "-seed-1")]
    apart = [abs(files[0][name]["mean"] - files[1][name]["mean"]) / 2**0.5 for name in ("novel", "base")]
    told = lines_of(one / "table2.md", "c32f")[3][1:3]
    assert [float(cell) for cell in told] == pytest.approx(apart, abs=0.02)
    assert lines_of(one / "table2.md", "all rows") == []
    assert "How far trainings differ" not in (finished / "table2.md").read_text(encoding="utf-8")
    assert "; 2 trainings, with different seeds, of each model." in (one / "table2.md").read_text(
        encoding="utf-8"
    )
    before = tree(one)
    reproduced(one, extractors=("c32f",))
    assert tree(one) == before


def test_figures_stay_on_the_page_while_other_seeds_are_trained(finished, tmp_path, monkeypatch):
    one = tmp_path / "new"
    shutil.copytree(finished / "runs" / "c32f", one / "runs" / "c32f")
    reproduced(one, extractors=("c32f",))
    cells = lines_of(one / "table2.md", "c32f")

    def stop(*words):
        raise Stopped("stopped")

    monkeypatch.setattr(running, "_result", stop)
    with pytest.raises(Stopped):
        reproduced(one, extractors=("c32f",), seeds=2)
    assert lines_of(one / "table2.md", "c32f") == cells
    assert "1 of 2 trainings are done" in (one / "table2.md").read_text(encoding="utf-8")


def test_seeds_of_another_recipe_are_refused(finished, tmp_path):
    one = tmp_path / "new"
    shutil.copytree(finished / "runs" / "c32f", one / "runs" / "c32f")
    reproduced(one, extractors=("c32f",))
    config = read(one / "runs" / "c32f" / "config.json")
    config["stage2"]["dropout"] = 0.5
    write_json(one / "runs" / "c32f" / "config.json", config)
    with pytest.raises(ConfigError, match="dropout"):
        reproduced(one, extractors=("c32f",), seeds=2)
    assert read(one / "plan.json")["seeds"] == 1


def test_rows_are_not_added_where_minutes_were_shared_out(finished, tmp_path):
    plan = {**read(finished / "plan.json"), "keys": ["c32f"], "minutes": 5.0}
    write_json(tmp_path / "plan.json", plan)
    with pytest.raises(ConfigError, match=r"keys: .*c32f.* → .*c64f"):
        reproduced(tmp_path, extractors=("c64f",), minutes=5.0)
    with pytest.raises(ConfigError, match="seeds: 1 → 2"):
        reproduced(tmp_path, extractors=("c32f",), minutes=5.0, seeds=2)


def test_published_figures_stand_beside_ours_on_the_paper_s_data_alone(finished, tmp_path):
    assert "paper |" not in (finished / "table2.md").read_text(encoding="utf-8")
    timeless(finished, tmp_path)
    write_json(tmp_path / "plan.json", {**read(tmp_path / "plan.json"), "data": "mini-imagenet:images"})
    made = page.write_page(tmp_path)
    one, five, recipe, seen = lines_of(made, "c128f")
    assert recipe[1:] == ["64", "–", "–", "–", "of one view", "learned", "Both"]
    assert one[3:5] + one[6:8] + one[9:] == ["55.95", "56.62", "70.72", "70.80", "49.08", "49.44"]
    assert five[3:5] + five[6:8] + five[9:] == ["73.00", "72.82", "70.90", "71.00", "59.35", "59.05"]
    assert seen[1:3] == ["384", "0 %"]
    words = read(tmp_path / "results" / "c128f.json")
    write_json(tmp_path / "results" / "c128f.json", {**words, "images_seen": PAPER_IMAGES // 5})
    assert lines_of(page.write_page(tmp_path), "c128f")[3][1:3] == ["3,072,000", "20 %"]


@pytest.mark.parametrize(
    ("preset", "row", "wanted"),
    [
        ("mini-imagenet-c64f", "c32f", "mini-imagenet-c32f"),
        ("mini-imagenet-c64f", "c64f", "mini-imagenet-c64f"),
        ("mini-imagenet-c32f", "c128f", "mini-imagenet-c128f"),
        ("cifar-fs-c64f", "c32f", "cifar-fs-c32f"),
        ("demo", "c128f", "demo"),
        ("paper", "c32f", "paper"),
    ],
)
def test_a_row_takes_its_extractor_s_own_preset(finished, preset, row, wanted):
    made = plan.read_plan(finished).model_copy(update={"preset": preset})
    (one,) = [some for some in TABLE_2.rows if some.key == row]
    assert plan.preset_of(made, one) == wanted
    assert wanted in preset_names()


def test_a_row_of_mini_imagenet_is_what_train_does_with_its_preset(finished):
    words = {"data": "mini-imagenet:x.zip", "preset": "mini-imagenet-c64f", "settings": {}, "decided": {}}
    made = plan.read_plan(finished).model_copy(update=words)
    for training in TABLE_2.only(EXTRACTORS).trainings(1):
        preset = f"mini-imagenet-{training.row.key}"
        assert plan.config_of(made, training, "x") == make_config(read_preset(preset), {"data": "x"})


def test_table_1_trains_base_vectors_in_stage_2_whatever_the_preset(finished):
    words = {"table": "table1", "keys": TABLES["table1"].usual, "data": "mini-imagenet:x.zip"}
    words |= {"preset": "mini-imagenet-c64f", "settings": {}, "decided": {}}
    made = plan.read_plan(finished).model_copy(update=words)
    for training in TABLES["table1"].trainings(1):
        config = plan.config_of(made, training, "x")
        assert config.stage2.learn_base
        assert config.select == "novel"


def test_minutes_are_for_all_rows_in_proportion_to_their_recipes(tmp_path, monkeypatch):
    monkeypatch.setattr(plan, "measure", lambda *words: Speed(stage1_step=1.0, stage2_step=0.5, picture=0.0))
    made = plan.make_plan(tmp_path, "table2", "glyphs", minutes=1, **WISHES)
    # Three times 6 steps of a second and 4 of half a second: 24 s, and 0.9 · 60 s are 2.25 times that.
    assert made.decided == {"demo": {"stage1.steps": "14", "stage2.steps": "9"}}


def test_minutes_of_all_rows_count_cheap_first_steps_and_teachers(finished, tmp_path, monkeypatch):
    teacher = json.dumps(str(finished / "runs" / "c64f"))
    settings = SETTINGS | {"stage1.small.size": "16", "stage1.small.until": "0.5", "stage1.teacher": teacher}
    monkeypatch.setattr(plan, "measure", lambda *words: Speed(1.0, 0.5, picture=0.0, teacher=0.5))
    made = plan.make_plan(tmp_path, "table2", "glyphs", minutes=1, **{**WISHES, "settings": settings})
    size = read_header(finished / "runs" / "c64f").spec.preprocessing.size
    step = 0.5 * (16 / size) ** 2 + 0.5 + 0.5 * 0.5
    assert made.decided["demo"]["stage1.steps"] == str(round(6 * 0.9 * 60 / (3 * (6 * step + 4 * 0.5))))


def test_resnet_is_left_out_unless_it_is_asked_for():
    assert TABLES["table2"].usual == EXTRACTORS
    assert TABLE_2.extractors == (*EXTRACTORS, "resnet")
