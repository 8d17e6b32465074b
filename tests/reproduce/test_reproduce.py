"""`recollect reproduce`: from pictures to page, through kills, with nothing done twice."""

import json
import shlex
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from reproductions import read, timeless, words_of

from colours import SETTINGS, train_quickly, write_colours
from killing import kill_when
from pictures import tree
from recollect.errors import ConfigError, DataError, Diverged, Stopped
from recollect.evaluation.tsne import tsne_report
from recollect.methods import find_method
from recollect.modelfile import load_model, read_header, save_model
from recollect.reproduce import page, plan, rows
from recollect.reproduce import run as running
from recollect.reproduce.figure import _summary
from recollect.reproduce.results import FIGURES, Place, Results, interval, packed, unpacked, write_json
from recollect.training.budget import Speed
from recollect.training.config import make_config
from recollect.training.runfolder import RunFolder

# Few enough to be quick, and one of each kind.
FEW = ("matching", "cosine-mean", "cosine-attention", "dot-mean", "nearest-mean")
TABLE = rows.TABLE_1.only(FEW)
WISHES = {"tasks": 30, "queries": 3, "settings": SETTINGS}
PAGES = Path(__file__).parents[2].glob("docs/results/**/table[12].md")
COMMITTED = sorted(path.parent for path in PAGES)


def few_rows(patch):
    """Let table 1 have but few rows, and train them quickly."""
    train_quickly(patch)
    patch.setitem(rows.TABLES, "table1", TABLE)


@pytest.fixture(autouse=True)
def _few_rows(monkeypatch):
    few_rows(monkeypatch)


@pytest.fixture(scope="module")
def colours(tmp_path_factory):
    return write_colours(tmp_path_factory.mktemp("colours") / "pictures")


def reproduced(colours, folder, said=None):
    return running.reproduce("table1", str(colours), folder, ([] if said is None else said).append, **WISHES)


@pytest.fixture(scope="module")
def finished(colours, tmp_path_factory):
    """A reproduction that nothing interrupted."""
    folder = tmp_path_factory.mktemp("whole")
    with pytest.MonkeyPatch.context() as patch:
        few_rows(patch)
        patch.setenv("RECOLLECT_CACHE", str(folder.parent / "whole-cache"))
        torch.set_num_threads(1)
        reproduced(colours, folder)
    return folder


def test_every_training_is_a_finished_run_with_its_result(finished):
    names = [training.name for training in TABLE.trainings(1)]
    assert sorted(path.name for path in (finished / "runs").iterdir()) == sorted(names)
    for name in names:
        header = read_header(finished / "runs" / name)
        assert header.provenance["finished"]
        assert not header.spec.shot_aware, "trained for one number of shots"
        words = read(finished / "results" / f"{name}.json")
        assert words["report"]["model"] == f"runs/{name}"
        assert words["report"]["categories"] == "val"


def test_a_stage_1_and_what_stands_on_it_are_trained_together():
    groups = [training.stage1 or training.name for training in rows.TABLE_1.trainings(2)]
    runs = [name for name, before in zip(groups, [None, *groups], strict=False) if name != before]
    own = ["cosine-mean", "dot-mean", "relu-mean"]
    others = [f"{method}-{shots}-shot" for method in ("matching", "prototypical") for shots in (1, 5)]
    assert runs == [*own, *others, *(f"{name}-seed-1" for name in [*own, *others])]
    names = [training.name for training in rows.TABLE_1.trainings(2)]
    for training in rows.TABLE_1.trainings(2):
        assert training.stage1 is None or names.index(training.stage1) < names.index(training.name)


def test_right_answers_by_task_give_the_figures_that_evaluate_gives(finished):
    results = Results(finished, TABLE, 1)
    compared = 0
    for training in results.trainings:
        for found in results.files[training.name]["report"]["results"]:
            for figure in FIGURES:
                measured = results.measured(Place(training.row.key, found["shots"], figure))
                if found[figure] is None:
                    assert measured is None
                else:
                    assert round(measured.mean, 2) == pytest.approx(found[figure]["mean"], abs=0.0101)
                    assert round(measured.ci95, 2) == pytest.approx(found[figure]["ci95"], abs=0.0101)
                    compared += 1
    assert compared == 2 + 6 * 4


def test_the_table_shows_what_the_result_files_say(finished):
    text = (finished / "table1.md").read_text(encoding="utf-8")
    words = read(finished / "results" / "cosine-attention-5-shot.json")
    novel = words["report"]["results"][0]["novel"]
    (line,) = [
        line for line in text.splitlines() if line.startswith("| cosine, attention | ") and "±" in line
    ]
    assert f"{novel['mean']:.2f} ± " in line.split(" | ")[4]
    (line,) = [
        line for line in text.splitlines() if line.startswith("| Matching Networks | ") and "±" in line
    ]
    assert line.count("–") == 4, "Base and Both of Matching Networks"
    assert "saw about 192 images" in text
    assert "Unfinished" not in text
    assert str(finished) not in text


def test_the_html_page_needs_no_other_file(finished):
    text = (finished / "table1.html").read_text(encoding="utf-8")
    assert 'src="data:image/png;base64,' in text
    assert "http" not in text
    markdown = (finished / "table1.md").read_text(encoding="utf-8")
    assert text.count("<tr>") == markdown.count("\n|") - markdown.count("| --- |")


def test_silhouettes_are_those_of_plot_tsne(finished, colours, tmp_path):
    words = read(finished / "tsne.json")
    own = words["silhouettes"]["as each classifier sees features"]
    for name, row in (("cosine", "cosine-mean"), ("dot product", "dot-mean")):
        report = tsne_report(finished / "runs" / row, str(colours), tmp_path / "one.png", part="val")
        assert round(own[name], 4) == report["silhouette"]
        assert words["shown"] == report["shown"]
    assert own["difference"]["mean"] == pytest.approx(own["cosine"] - own["dot product"], abs=2e-4)
    assert (finished / "tsne.png").read_bytes().startswith(b"\x89PNG")


def test_the_interval_of_silhouettes_is_student_s_over_categories():
    words = _summary({"cosine": np.array([0.3, 0.5, 0.1]), "dot product": np.array([0.1, 0.2, 0.0])})
    assert words["difference"]["mean"] == 0.2
    assert words["difference"]["ci95"] == pytest.approx(4.30265 * 0.1 / 3**0.5, abs=1e-5)


def test_what_is_finished_is_not_done_again(finished, colours, tmp_path, monkeypatch):
    before = tree(finished)
    monkeypatch.setattr(running, "find_method", lambda name: pytest.fail("trained again"))
    monkeypatch.setattr(running, "compare_features", lambda *words: pytest.fail("drawn again"))
    monkeypatch.setattr(plan, "load_data", lambda *words: pytest.fail("decided again"))
    said = []
    assert reproduced(colours, finished, said) == finished / "table1.md"
    assert said == []
    assert tree(finished) == before


@pytest.mark.slow
def test_a_reproduction_killed_in_the_middle_goes_on_and_gives_the_same_page(finished, colours, tmp_path):
    folder = tmp_path / "killed"
    # In the middle of a stage 1 on which others stand, after a finished training.
    shutil.copytree(finished / "runs" / "matching-1-shot", folder / "runs" / "matching-1-shot")
    (folder / "results").mkdir()
    for name in ("plan.json", "results/matching-1-shot.json"):
        shutil.copyfile(finished / name, folder / name)
    begun = folder / "runs" / "cosine-mean" / "stage1.checkpoint.safetensors"
    kill_when(begun, lambda: reproduced(colours, folder))
    done = tree(folder / "results")
    assert sorted(done) == ["matching-1-shot.json"]
    stamps = {path: path.stat().st_mtime_ns for path in folder.glob("runs/matching-*/*")}
    said = []
    reproduced(colours, folder, said)
    assert said[0].startswith("[1/7] cosine-mean, about 0 minutes left")
    assert {path: path.stat().st_mtime_ns for path in stamps} == stamps, "finished work was touched"
    assert {name: tree(folder / "results")[name] for name in done} == done
    assert timeless(folder, tmp_path / "one") == timeless(finished, tmp_path / "other")


@pytest.mark.parametrize(
    "folder", [None, *COMMITTED], ids=lambda path: "made here" if path is None else path.name
)
def test_a_page_is_made_of_its_result_files_and_nothing_else(folder, finished, tmp_path, monkeypatch):
    if folder is not None:
        monkeypatch.undo()
    folder = folder or finished
    names = ["plan.json", "tsne.json", "tsne.png"]
    for name in [*names, *(f"results/{path.name}" for path in folder.glob("results/*.json"))]:
        if (folder / name).exists():
            (tmp_path / name).parent.mkdir(exist_ok=True)
            shutil.copyfile(folder / name, tmp_path / name)
    made = page.write_page(tmp_path)
    for name in (made.name, made.with_suffix(".html").name):
        assert (tmp_path / name).read_bytes() == (folder / name).read_bytes()


def test_every_page_in_the_documentation_is_looked_at():
    assert {path.name for path in COMMITTED} >= {
        "table1-cifar-fs-c64f",
        "table1-mini-imagenet",
        "table2-cifar-fs",
        "table2-mini-imagenet",
        "table2-mini-imagenet-distilled",
    }
    assert not [path for path in COMMITTED for page in path.glob("*.md") if "Unfinished" in page.read_text()]


def test_a_figure_that_is_gone_is_drawn_again(finished, colours, tmp_path):
    folder = shutil.copytree(finished, tmp_path / "copy")
    (folder / page.PICTURE).unlink()
    reproduced(colours, folder)
    assert (folder / page.PICTURE).read_bytes() == (finished / page.PICTURE).read_bytes()


def test_the_commands_on_the_page_train_the_same(finished, colours):
    from recollect.training.config import differences

    for training in TABLE.trainings(1):
        trains, evaluates = read(finished / "results" / f"{training.name}.json")["commands"]
        assert trains in (finished / "table1.md").read_text(encoding="utf-8")
        words = shlex.split(trains)
        assert words[:3] == ["recollect", "train", "pictures"]
        settings = dict(words[place + 1].split("=", 1) for place, word in enumerate(words) if word == "--set")
        ran = RunFolder(finished / "runs" / training.name).config()
        told = make_config(
            {}, {"data": str(colours), "seed": int(words[words.index("--seed") + 1])}, settings
        )
        settled = find_method(told.method).settled(told)
        resolved = {"data_key", "device", "split", "stage1_from"}
        other = [one for one in differences(ran, settled) if one.split(":")[0] not in resolved]
        assert other == []
        assert told.stage1_from == (None if training.stage1 is None else f"runs/{training.stage1}")
        assert f"evaluate runs/{training.name} pictures --categories val" in evaluates
        assert evaluates.endswith("--seed 1"), "not on the tasks by which it was selected"


@pytest.mark.parametrize(("what", "made"), [("table1", "table1.md"), ("figure-tsne", "tsne.png")])
def test_the_command_goes_on_with_what_is_there(what, made, finished, colours, run, monkeypatch):
    monkeypatch.setattr(running, "find_method", lambda name: pytest.fail("trained again"))
    options = ("--out", finished, "--tasks", 30, "--queries", 3, *words_of(SETTINGS))
    code, out, err = run("reproduce", what, colours, *options)
    assert (code, out, err) == (0, f"{finished / made}\n", "")
    code, out, _ = run("reproduce", what, colours, *options, "--json")
    assert json.loads(out) == {"made": str(finished / made), "folder": str(finished)}


def test_a_wrong_call_is_refused_before_anything_is_written(refused, tmp_path, colours):
    out = ("--out", tmp_path / "new")
    assert "nowhere" in refused("reproduce", "table1", tmp_path / "nowhere", *out)
    assert "table9" in refused("reproduce", "table9", colours, *out)
    assert "reserves no validation" in refused("reproduce", "table1", colours, *out)
    told = refused("reproduce", "table1", colours, *out, *words_of(SETTINGS))
    assert "needs 20 (shots: 5, queries: 15)" in told


@pytest.mark.parametrize(
    "setting", ["last_relu=true", "method=matching", "seed=5", "select=both", "stage1_from=runs/x", "shots=1"]
)
def test_what_rows_decide_cannot_be_set(setting, refused, tmp_path, colours):
    told = refused("reproduce", "table1", colours, "--out", tmp_path / "new", "--set", setting)
    assert f"--set {setting.split('=')[0]}: the rows of table1 set it themselves" in told
    assert not (tmp_path / "new").exists()


def test_only_extractors_of_the_paper_are_reproduced(refused, tmp_path, colours):
    words = ("--out", tmp_path / "new", "--set", "extractor=efficientnet-lite0")
    assert "'efficientnet-lite0' is none of them" in refused("reproduce", "table1", colours, *words)


@pytest.mark.parametrize("minutes", ["nan", "inf", "0", "-1"])
def test_minutes_that_are_none(minutes, refused, tmp_path, colours):
    told = refused("reproduce", "table1", colours, "--out", tmp_path / "new", "--minutes", minutes)
    assert f"--minutes {minutes}" in told


def test_a_row_that_cannot_be_trained_is_told_before_any_is(refused, tmp_path, colours):
    # Episodes of 1 shot could be drawn, those of 5 could not.
    settings = words_of({**SETTINGS, "episodic.queries": "12"})
    options = ("--out", tmp_path / "new", "--tasks", 30, "--queries", 3, *settings)
    assert "episodes of Matching Networks" in refused("reproduce", "table1", colours, *options)
    assert not (tmp_path / "new").exists()


def test_other_pictures_of_the_same_name_are_refused(finished, tmp_path):
    other = write_colours(tmp_path / "pictures", pictures=13)
    folder = shutil.copytree(finished, tmp_path / "copy")
    (folder / "results" / "dot-mean.json").unlink()
    with pytest.raises(ConfigError, match="not those that this was begun with"):
        reproduced(other, folder)


def test_pictures_may_move_while_a_reproduction_is_interrupted(finished, colours, tmp_path):
    moved = shutil.copytree(colours, tmp_path / "elsewhere" / "pictures", copy_function=shutil.copy2)
    folder = shutil.copytree(finished, tmp_path / "copy")
    (folder / "results" / "dot-mean.json").unlink()
    reproduced(moved, folder)
    ours, theirs = (read(one / "results" / "dot-mean.json")["right"] for one in (folder, finished))
    assert ours == theirs


def test_an_interrupted_reproduction_leaves_a_page(finished, colours, tmp_path, monkeypatch):
    def stop(*words):
        raise Stopped("stopped")

    folder = shutil.copytree(finished, tmp_path / "copy")
    (folder / "results" / "dot-mean.json").unlink()
    monkeypatch.setattr(running, "_result", stop)
    with pytest.raises(Stopped):
        reproduced(colours, folder)
    text = (folder / "table1.md").read_text(encoding="utf-8")
    assert f"| dot product, mean |{' – |' * 6}" in text


def test_a_training_that_diverges_does_not_keep_the_others_back(finished, colours, tmp_path, monkeypatch):
    def diverge(training, *words):
        if training.name == "cosine-mean":
            raise Diverged("stage 1 diverged")
        return result(training, *words)

    folder, result = shutil.copytree(finished, tmp_path / "copy"), running._result
    before = read(folder / "results" / "dot-mean.json")["right"]
    for name in ("cosine-mean", "cosine-attention-1-shot", "dot-mean"):
        (folder / "results" / f"{name}.json").unlink()
    monkeypatch.setattr(running, "_result", diverge)
    with pytest.raises(Diverged, match="but cosine-mean, cosine-attention-1-shot diverged"):
        reproduced(colours, folder)
    assert read(folder / "results" / "dot-mean.json")["right"] == before
    assert "Unfinished: 5 of 7 trainings are done" in (folder / "table1.md").read_text(encoding="utf-8")


def test_a_run_on_another_stage_1_is_refused(finished, colours, tmp_path):
    folder = shutil.copytree(finished, tmp_path / "copy")
    (folder / "results" / "cosine-attention-1-shot.json").unlink()
    runs = folder / "runs"
    own = runs / "cosine-attention-1-shot" / "stage1.safetensors"
    save_model(own, load_model(own), {**read_header(own).provenance, "stage1_seconds": 77})
    reproduced(colours, folder)  # the same weights from another training
    (folder / "results" / "cosine-attention-1-shot.json").unlink()
    shutil.copy(runs / "dot-mean" / "stage1.safetensors", own)
    with pytest.raises(ConfigError, match="1-shot was built on a different stage 1 from that of cosine-mean"):
        reproduced(colours, folder)


def test_a_result_on_another_stage_1_is_refused(finished, colours, tmp_path):
    folder = shutil.copytree(finished, tmp_path / "copy")
    first = folder / "results" / "cosine-mean.json"
    write_json(first, {**read(first), "stage1": read(folder / "results" / "dot-mean.json")["stage1"]})
    with pytest.raises(
        DataError,
        match=r"cosine-attention-5-shot, nearest-mean were built on a different stage 1 from cosine-mean",
    ):
        page.write_page(folder)
    write_json(first, {**read(first), "stage1": None})  # as an earlier version did
    page.write_page(folder)


def test_another_reproduction_in_the_same_folder_is_refused(finished, colours):
    before = tree(finished)
    with pytest.raises(ConfigError, match="tasks: 30 → 40"):
        running.reproduce("table1", str(colours), finished, print, **{**WISHES, "tasks": 40})
    assert tree(finished) == before


def test_minutes_decide_the_steps_once(colours, tmp_path, monkeypatch):
    monkeypatch.setattr(plan, "measure", lambda *words: Speed(stage1_step=1.0, stage2_step=0.5, picture=0.0))
    made = plan.make_plan(tmp_path, "table1", str(colours), minutes=2, **WISHES)
    # Four extractors of 8 steps and two generators of 4 half seconds: 36 s; 0.9 · 120 s are three times that.
    assert made.decided == {"": {"stage1.steps": "24", "stage2.steps": "12"}}
    plan.keep_plan(tmp_path, made)
    monkeypatch.setattr(plan, "measure", lambda *words: pytest.fail("measured again"))
    assert plan.make_plan(tmp_path, "table1", str(colours), minutes=2, **WISHES) == made
    assert plan.read_plan(tmp_path) == made


def test_too_few_minutes_are_refused_with_how_many_it_takes(colours, tmp_path):
    with pytest.raises(ConfigError, match=r"take \d+ minutes, of which \d+ cannot be saved"):
        plan.make_plan(tmp_path / "new", "table1", str(colours), minutes=1e-4, **WISHES)
    assert not (tmp_path / "new").exists()


def test_data_without_reserved_categories_is_refused(colours, tmp_path):
    settings = {key: value for key, value in SETTINGS.items() if key != "split"}
    with pytest.raises(DataError, match="--set split="):
        plan.make_plan(tmp_path / "new", "table1", str(colours), **{**WISHES, "settings": settings})
    assert not (tmp_path / "new").exists()


def test_the_paper_s_numbers_stand_beside_ours_on_its_own_data_alone(finished, tmp_path):
    assert "(74.92)" not in (finished / "table1.md").read_text(encoding="utf-8")
    timeless(finished, tmp_path)
    words = read(tmp_path / "plan.json")
    write_json(tmp_path / "plan.json", {**words, "data": "mini-imagenet:images"})
    text = page.write_page(tmp_path).read_text(encoding="utf-8")
    (line,) = [
        line for line in text.splitlines() if line.startswith("| cosine, attention | ") and "±" in line
    ]
    cells = line.strip("| ").split(" | ")
    assert [cell.split(" ")[-1] for cell in cells[1:]] == [
        "(58.55)", "(70.73)", "(50.50)", "(74.92)", "(70.88)", "(60.50)",
    ]  # fmt: skip


def test_trainings_with_other_seeds_widen_an_interval(finished, tmp_path):
    timeless(finished, tmp_path)
    first = tmp_path / "results" / "cosine-mean.json"
    words = read(first)
    other = json.loads(json.dumps(words))
    other["right"]["1"]["novel"] = packed(unpacked(words["right"]["1"]["novel"]) // 2)
    write_json(tmp_path / "results" / "cosine-mean-seed-1.json", other)
    place = Place("cosine-mean", 1, "novel")
    one, two = (unpacked(some["right"]["1"]["novel"]) / 15 * 100 for some in (words, other))
    alone = TABLE.only(("cosine-mean",))
    found = Results(tmp_path, alone, 2).measured(place)
    assert found.mean == pytest.approx((one.mean() + two.mean()) / 2)
    assert one.mean() > two.mean()
    # Variance of the mean: that of tasks, and that of two trainings, half their squared difference, over two.
    of_tasks, of_seeds = ((one + two) / 2).var() / len(one), (one.mean() - two.mean()) ** 2 / 4
    assert found.ci95 == pytest.approx((1.96**2 * of_tasks + 12.7062**2 * of_seeds) ** 0.5)
    assert Results(tmp_path, alone, 3).measured(place) == found, "the third is not there yet"
    assert Results(tmp_path, TABLE, 2).measured(place).mean == pytest.approx(one.mean()), "other rows lack it"


def test_how_far_trainings_differ_is_told_for_each_row_and_for_all(finished, tmp_path):
    timeless(finished, tmp_path)
    for path in (tmp_path / "results").glob("*.json"):
        words = read(path)
        for shots in words["right"]:
            by = 2 if words["row"] == "cosine-mean" else 1
            words["right"][shots]["novel"] = packed(unpacked(words["right"][shots]["novel"]) + by)
        write_json(path.with_name(f"{path.stem}-seed-1.json"), words)
    plan = {**read(tmp_path / "plan.json"), "seeds": 2}
    write_json(tmp_path / "plan.json", plan)
    text = page.write_page(tmp_path).read_text(encoding="utf-8")
    text = text.partition("## How far trainings differ")[2].partition("\n## ")[0]
    told = {line.split("|")[1].strip(): line.split("|")[2:4] for line in text.splitlines() if line[:1] == "|"}
    asked = read(tmp_path / "results" / "cosine-mean.json")["report"]
    point = 100 / (asked["ways"] * asked["queries"]) / 2**0.5  # one more right answer in every task
    rows = [row for row in told if row not in {"", "---", "all rows"}]
    assert float(told["cosine, mean"][0]) == pytest.approx(2 * point, abs=0.006)
    assert float(told["dot product, mean"][0]) == pytest.approx(point, abs=0.006)
    assert float(told["dot product, mean"][1]) == 0, "Base is the same"
    mean = ((4 + len(rows) - 1) / len(rows)) ** 0.5 * point
    assert float(told["all rows"][0]) == pytest.approx(mean, abs=0.006)


@pytest.mark.parametrize("seeds", [2, 3, 5])
@pytest.mark.parametrize("noise", [2, 8])
def test_intervals_over_trainings_hold_the_truth_as_often_as_they_say(seeds, noise):
    rng = np.random.default_rng(seeds)
    within = 0
    for _ in range(2000):
        values = (
            rng.normal(0, 1, (seeds, 1)) + rng.normal(0, noise, (1, 100)) + rng.normal(0, 1, (seeds, 100))
        )
        mean, ci95 = interval(values)
        within += abs(mean) <= ci95
    assert 0.94 <= within / 2000 <= 0.99
