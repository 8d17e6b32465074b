"""`recollect reproduce table3`: from pictures to page, through a kill, with nothing done twice."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from reproductions import read, words_of

from colours import train_quickly, write_colours
from killing import kill_when
from pictures import tree
from recollect.data.lowshot import benchmark_groups, stand_in_groups
from recollect.errors import ConfigError, DataError, Diverged, Stopped
from recollect.methods.lowshot import SYSTEMS
from recollect.reproduce import run as running
from recollect.reproduce.claims import FAILS, HOLDS
from recollect.reproduce.lowshot import page, rows
from recollect.reproduce.lowshot import run as lowshot_run
from recollect.reproduce.lowshot.plan import read_plan
from recollect.reproduce.lowshot.results import LowShotResults
from recollect.reproduce.results import Place, write_json
from recollect.training.config import LowShot, make_config, read_preset

METHODS = ["prototypical", "logistic-h", "batch-sgm", "mean", "attention", "attention-mixed"]
SETTINGS = {
    "extractor": "c32f",
    "size": "16",
    "threads": "1",
    "select_tasks": "4",
    "checkpoint_seconds": "0",
    "stage1.steps": "6",
    "stage1.batch": "24",
    "stage1.evaluations": "1",
    "lowshot.steps": "3",
    "lowshot.logistic_steps": "3",
    "lowshot.logistic_batch": "20",
    "lowshot.centroids": "2",
}
WISHES = {"methods": METHODS, "draws": 5, "shots": [1, 3], "settings": SETTINGS}


@pytest.fixture(autouse=True)
def _quickly(monkeypatch):
    train_quickly(monkeypatch)


@pytest.fixture(scope="module")
def colours(tmp_path_factory):
    return write_colours(tmp_path_factory.mktemp("colours") / "pictures")


def reproduced(colours, folder, said=None, **more):
    said = [] if said is None else said
    return running.reproduce("table3", str(colours), folder, said.append, **WISHES | more)


@pytest.fixture(scope="module")
def finished(colours, tmp_path_factory):
    """A reproduction that nothing interrupted."""
    folder = tmp_path_factory.mktemp("whole")
    with pytest.MonkeyPatch.context() as patch:
        train_quickly(patch)
        patch.setenv("RECOLLECT_CACHE", str(folder.parent / "whole-cache"))
        torch.set_num_threads(1)
        reproduced(colours, folder)
    return folder


def timeless(folder, copy):
    """Copy what a page is made of, with all times 0, and return the page's bytes."""
    for path in [folder / "plan.json", *folder.glob("results/*.json")]:
        there = copy / path.relative_to(folder)
        there.parent.mkdir(parents=True, exist_ok=True)
        words = read(path)
        if path.parent.name == "results":
            words |= {key: 0.0 for key in words if key.endswith("_seconds")}
        write_json(there, words)
    page.write_page(copy)
    return tree(copy)


def test_every_row_has_a_result_for_every_number_of_shots(finished):
    names = {f"{key}-{shots}-shot" for key in METHODS for shots in (1, 3)}
    trained = {"cosine", "dot", "batch-sgm"}
    assert {path.stem for path in (finished / "results").iterdir()} == names | trained
    assert {path.name for path in (finished / "runs").iterdir()} == trained
    config = read(finished / "runs" / "batch-sgm" / "config.json")
    assert config["stage1"]["loss"] == "batch-sgm"
    assert config["classifier"] == "dot"
    groups = stand_in_groups([f"c{number:02}" for number in range(18)])
    assert read(finished / "split.json") == {"val": [*groups.novel_val], "test": [*groups.novel_test]}
    assert json.loads(config["split"]) == read(finished / "split.json")


def test_the_page_shows_what_the_result_files_say(finished):
    text = (finished / "table3.md").read_text(encoding="utf-8")
    words = read(finished / "results" / "attention-3-shot.json")
    right, asked = np.array(words["right"]["all top-1"]), words["asked"]["all"]
    mean, ci95 = 100 * right.mean() / asked, 196 * right.std() / asked / 5**0.5
    tables = text.split("## Top-1")[1].split("\n\n")
    (line,) = [line for line in tables[2].splitlines() if line.startswith("| Cosine classifier & attention")]
    assert line.split(" | ")[2].rstrip(" |") == f"{mean:.2f} ± {ci95:.2f}"
    assert "(46.02)" not in text, "the paper's figures are of ImageNet"
    assert "Unfinished" not in text
    assert str(finished) not in text
    assert "7 base categories. Asked: 4 base and 6 novel ones" in text
    html = (finished / "table3.html").read_text(encoding="utf-8")
    assert html.count("<tr>") == text.count("\n|") - text.count("| --- |")


def test_the_page_begins_with_what_holds_of_the_papers_order(finished):
    text = (finished / "table3.md").read_text(encoding="utf-8")
    assert text.index("## What holds of the paper's order") < text.index("## Top-5")
    (line,) = [line for line in text.splitlines() if line.startswith("| The order of every two rows |")]
    orders = rows.paper_orders(tuple(METHODS), (1, 3))
    for words in line.split(" | ")[1:]:
        assert sum(int(word) for word in words.rstrip(" |").split(" / ")) == len(orders)
    for name in ("table3.png", "table3-order.png"):
        assert f"]({name})" in text
        with Image.open(finished / name) as shown:
            assert shown.width > 800
    assert (finished / "table3.html").read_text(encoding="utf-8").count("data:image/png;base64,") == 2


def test_draws_and_numbers_of_queries(finished):
    for path in (finished / "results").glob("*-shot.json"):
        words = read(path)
        assert words["asked"] == {"novel": 12, "all": 20, "prior": 20}
        assert all(len(counts) == 5 for counts in words["right"].values())
        assert max(words["right"]["novel top-5"]) <= 12
        five, one = (np.array(words["right"][f"all top-{k}"]) for k in (5, 1))
        assert (five >= one).all()


def test_what_is_finished_is_not_done_again(finished, colours, monkeypatch):
    before = tree(finished)
    monkeypatch.setattr(lowshot_run, "_do", lambda *words: pytest.fail("done again"))
    said = []
    assert reproduced(colours, finished, said) == finished / "table3.md"
    assert said == []
    assert tree(finished) == before


@pytest.mark.slow
def test_a_killed_reproduction_ends_with_the_same_page(finished, colours, tmp_path, monkeypatch):
    folder = tmp_path / "killed"
    monkeypatch.setenv("RECOLLECT_CACHE", str(tmp_path / "cache"))
    kill_when(folder / "results" / "prototypical-1-shot.json", lambda: reproduced(colours, folder))
    left = {path.name for path in (folder / "results").iterdir()}
    assert len(left) < 2 * len(METHODS)
    said = []
    reproduced(colours, folder, said)
    assert not any("plain means" in line for line in said), "what was finished is not done again"
    assert timeless(folder, tmp_path / "one") == timeless(finished, tmp_path / "other")


def test_the_page_in_the_documentation_is_made_of_its_result_files(tmp_path, monkeypatch):
    monkeypatch.undo()
    kept = Path(__file__).parents[2] / "docs" / "results" / "table3-cifar-100"
    shutil.copytree(kept / "results", tmp_path / "results")
    for name in ("plan.json", "split.json"):
        shutil.copyfile(kept / name, tmp_path / name)
    made = page.write_page(tmp_path)
    for name in (made.name, made.with_suffix(".html").name):
        assert (tmp_path / name).read_bytes() == (kept / name).read_bytes()


def test_a_stage_1_that_diverges_does_not_keep_the_others_back(finished, colours, tmp_path, monkeypatch):
    def diverge(plan, data, folder, kind, seed):
        if kind == "dot":
            raise Diverged("stage 1 diverged")
        return stage_one(plan, data, folder, kind, seed)

    folder, stage_one = shutil.copytree(finished, tmp_path / "copy"), lowshot_run._stage_one
    before = read(folder / "results" / "mean-1-shot.json")["right"]
    kinds = {key: SYSTEMS[key].stage1 for key in ("mean", "prototypical", "batch-sgm")}
    assert [*kinds.values()] == ["cosine", "dot", "batch-sgm"]
    for key in kinds:
        (folder / "results" / f"{key}-1-shot.json").unlink()
    monkeypatch.setattr(lowshot_run, "_stage_one", diverge)
    with pytest.raises(
        Diverged, match=r"everything except prototypical-1-shot is on.*stage1\.schedule\.peak"
    ):
        reproduced(colours, folder)
    assert read(folder / "results" / "mean-1-shot.json")["right"] == before
    assert not (folder / "results" / "prototypical-1-shot.json").exists()
    assert (folder / "results" / "batch-sgm-1-shot.json").exists()


def test_scores_that_are_not_finite_do_not_keep_other_results_back(finished, colours, tmp_path, monkeypatch):
    def count(teach, half, examples, shots, prior):
        if shots == 1:
            raise Diverged("scores are not finite")
        return count_right(teach, half, examples, shots, prior)

    folder, count_right = shutil.copytree(finished, tmp_path / "copy"), lowshot_run.count_right
    lost = [f"{key}-{shots}-shot" for key in ("attention", "attention-mixed") for shots in (1, 3)]
    for name in lost:
        (folder / "results" / f"{name}.json").unlink()
    monkeypatch.setattr(lowshot_run, "count_right", count)
    with pytest.raises(Diverged, match="everything except attention-1-shot, attention-mixed-1-shot is on"):
        reproduced(colours, folder)
    there = [(folder / "results" / f"{name}.json").exists() for name in lost]
    assert there == [False, True, False, True]


def test_what_a_stage_1_took_is_written_again_if_it_is_gone(finished, colours, tmp_path):
    folder = shutil.copytree(finished, tmp_path / "copy")
    path = folder / "results" / "cosine.json"
    path.unlink()
    page.write_page(folder)
    assert "| stage 1, cosine | – | – | – |" in (folder / "table3.md").read_text(encoding="utf-8")
    reproduced(colours, folder)
    assert path.read_bytes() == (finished / "results" / "cosine.json").read_bytes()
    assert (folder / "table3.md").read_bytes() == (finished / "table3.md").read_bytes()


def test_what_a_stage_1_took_is_there_though_its_rows_were_interrupted(
    finished, colours, tmp_path, monkeypatch
):
    def interrupted(*_):
        raise Stopped("stopped")

    folder = shutil.copytree(finished, tmp_path / "copy")
    (folder / "results" / "mean-1-shot.json").unlink()
    (folder / "results" / "cosine.json").unlink()
    monkeypatch.setattr(lowshot_run, "_features", interrupted)
    with pytest.raises(Stopped):
        reproduced(colours, folder)
    assert "| stage 1, cosine | 144 |" in (folder / "table3.md").read_text(encoding="utf-8")


def test_features_that_are_not_finite_keep_no_other_stage_1_back(finished, colours, tmp_path, monkeypatch):
    def extract(plan, model, pictures, check):
        if model.classifier.kind == "cosine":
            raise Diverged("features are not finite")
        return features(plan, model, pictures, check)

    folder, features, said = shutil.copytree(finished, tmp_path / "copy"), lowshot_run._features, []
    for key in ("mean", "prototypical"):
        (folder / "results" / f"{key}-1-shot.json").unlink()
    monkeypatch.setattr(lowshot_run, "_features", extract)
    with pytest.raises(Diverged, match="everything except mean-1-shot is on the page"):
        reproduced(colours, folder, said)
    assert "stage 1 'cosine': features are not finite" in said
    assert (folder / "results" / "prototypical-1-shot.json").exists()


def test_a_stage_1_trained_with_other_settings_of_systems_is_taken_over(finished, colours, tmp_path):
    folder = shutil.copytree(finished, tmp_path / "copy")
    (folder / "results" / "mean-1-shot.json").unlink()
    path = folder / "runs" / "cosine" / "config.json"
    words = read(path)
    write_json(path, {**words, "lowshot": LowShot(steps=77).model_dump(mode="json")})
    before = (folder / "runs" / "cosine" / "model.safetensors").read_bytes()
    reproduced(colours, folder)
    assert (folder / "runs" / "cosine" / "model.safetensors").read_bytes() == before


def test_a_page_is_made_of_its_result_files_without_runs(finished, tmp_path):
    folder = shutil.copytree(finished, tmp_path / "copy", ignore=shutil.ignore_patterns("runs"))
    page.write_page(folder)
    assert (folder / "table3.md").read_bytes() == (finished / "table3.md").read_bytes()
    assert "| stage 1, cosine | 144 |" in (folder / "table3.md").read_text(encoding="utf-8")


def test_a_split_of_one_s_own_is_in_the_commands(finished):
    plan = read_plan(finished)
    assert "--split" not in page.whole_command(plan)
    val, *rest = plan.groups.base_val
    moved = {"base_val": tuple(rest), "base_test": (*plan.groups.base_test, val)}
    own = plan.model_copy(update={"groups": plan.groups.model_copy(update=moved)})
    assert " --split groups.json " in page.whole_command(own)


def test_another_reproduction_is_refused(finished, colours, tmp_path):
    with pytest.raises(ConfigError, match=r"draws: 5 → 6\): choose another --out"):
        reproduced(colours, finished, draws=6)
    with pytest.raises(ConfigError, match="--set classifier: the rows of table3 set it themselves"):
        reproduced(colours, tmp_path, settings={"classifier": "dot"})
    with pytest.raises(ConfigError, match=r"--methods nonsense: choose some of prototypical,"):
        reproduced(colours, tmp_path, methods=["nonsense"])
    with pytest.raises(
        DataError, match=r"category 'c\d\d' has 10 pictures to draw examples from, and 11 shots"
    ):
        reproduced(colours, tmp_path, shots=[11])
    other = tmp_path / "other"
    shutil.copytree(finished, other)
    (other / "results" / "mean-1-shot.json").write_text("{}")
    with pytest.raises(DataError, match=r"mean-1-shot.json is damaged or of another version"):
        reproduced(colours, other)
    (other / "plan.json").write_text("{}")
    with pytest.raises(ConfigError, match="is damaged, of another table, or was written by another version"):
        reproduced(colours, other)


def test_a_stage_1_of_another_recipe_is_refused(finished, colours, tmp_path):
    other = tmp_path / "other"
    shutil.copytree(finished, other)
    (other / "results" / "mean-1-shot.json").unlink()
    words = read(other / "runs" / "cosine" / "config.json")
    words["stage1"]["batch"] = 12
    write_json(other / "runs" / "cosine" / "config.json", words)
    with pytest.raises(ConfigError, match=r"another configuration \(stage1.batch: 12 → 24\)"):
        reproduced(colours, other)


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--tasks", "5"], "--tasks is not an option of table3"),
        (["--split", "nowhere.json"], "--split nowhere.json: a JSON file"),
        (["--shots", "one"], "--shots one: write numbers from 1 up"),
    ],
)
def test_a_wrong_call_is_one_line(run, colours, tmp_path, words, reason):
    code, out, error = run("reproduce", "table3", colours, "--out", tmp_path / "out", *words)
    assert code == 2
    assert not out
    assert len(error.splitlines()) == 1
    assert reason in error
    assert run("reproduce", "table1", colours, "--out", tmp_path / "out", "--draws", "5")[0] == 2


def test_the_papers_numbers_are_those_of_its_table():
    assert rows.published("attention", "novel", 1) == "46.02"
    assert rows.published("attention", "prior", 5) == "71.24"
    assert rows.published("batch-sgm", "all", 20) == "78.5"
    assert rows.published("batch-sgm", "novel", 20) is None
    assert rows.published("mean", "all", 1) is None
    sums = {
        key: sum(float(word) for words in own.values() for word in words if word != "–")
        for key, own in rows.FIGURES_OF_THE_PAPER.items()
    }
    assert sums["prototypical"] == pytest.approx(962.4)
    assert {*rows.FIGURES_OF_THE_PAPER} <= {*SYSTEMS}


def test_orders_put_the_papers_higher_row_first():
    orders = rows.paper_orders(("logistic", "attention", "batch-sgm", "mean"), (1, 20))
    texts = [order.comparison.text for order in orders]
    assert "attention − logistic, Novel, 1-shot" in texts
    assert "batch-sgm − logistic, All, 20-shot" in texts
    assert not any("mean" in text for text in texts), "of which the paper has no numbers"
    assert len(texts) == 6 + 2 + 2


def write_result(folder, key, shots, right):
    names = [f"{figure} top-{k}" for figure in ("novel", "all", "prior") for k in (5, 1)]
    words = {
        "system": key,
        "shots": shots,
        "seed": 0,
        "asked": {"novel": 100, "all": 200, "prior": 200},
        "prior": {"5": 0.8, "1": 0.7},
        "right": dict.fromkeys(names, right),
        "training_seconds": 1.0,
        "evaluation_seconds": 1.0,
    }
    write_json(folder / "results" / f"{key}-{shots}-shot.json", words)


def test_differences_are_paired_by_draw(tmp_path):
    write_result(tmp_path, "attention", 1, [60, 40, 50])
    write_result(tmp_path, "logistic", 1, [58, 38, 48])
    results = LowShotResults(tmp_path, ("attention", "logistic"), (1,), 1)
    found = results.combined({Place("attention", 1, "all top-5"): 1, Place("logistic", 1, "all top-5"): -1})
    assert found == (pytest.approx(1.0), pytest.approx(0.0))
    assert results.measured(Place("attention", 1, "novel top-5")).mean == pytest.approx(50)
    assert results.combined({Place("attention", 2, "all top-5"): 1}) is None
    (claim,) = [
        one
        for one in rows.claims(("attention", "logistic"), (1,))
        if "above Logistic regression." in one.text
    ]
    assert {one.verdict for one in page.judge(claim, results)} == {HOLDS}
    assert page._counted([FAILS, HOLDS, FAILS]) == "1 / 2 / 0"


def write_imagenet(root, train, val):
    """Write ImageNet's layout with all its 1000 wnids and tiny pictures."""
    rng = np.random.default_rng(0)
    for wnid in benchmark_groups().names:
        colour = rng.integers(0, 256, 3)
        for part, count in (("train", train), ("val", val)):
            folder = root / part / wnid
            folder.mkdir(parents=True)
            for number in range(count):
                pixels = np.clip(colour + rng.normal(0, 30, (12, 12, 3)), 0, 255).astype(np.uint8)
                Image.fromarray(pixels).save(folder / f"{wnid}_{number}.JPEG")
    return root


@pytest.mark.slow
def test_imagenet_from_the_first_command_to_the_page(run, tmp_path):
    data = write_imagenet(tmp_path / "imagenet", 4, 1)
    words = ["reproduce", "table3", f"imagenet:{data}", "--shots", "1", "--draws", "2", "--threads", "1"]
    words += ["--methods", "attention"]
    settings = {
        "extractor": "c32f", "size": "16", "select_tasks": "2", "stage1.steps": "2", "stage1.batch": "16",
        "lowshot.steps": "2", "lowshot.queries": "1",
    }  # fmt: skip
    words += words_of(settings)
    code, _, error = run(*words, "--out", tmp_path / "out")
    assert code == 0, error
    text = (tmp_path / "out" / "table3.md").read_text(encoding="utf-8")
    assert "389 base categories. Asked: 196 base and 311 novel ones" in text
    assert "chosen on the other 193 and 300" in text
    assert "(46.02)" in text
    assert "--preset imagenet-lowshot" in text
    result = read(tmp_path / "out" / "results" / "attention-1-shot.json")
    assert result["asked"] == {"novel": 311, "all": 507, "prior": 507}
    config = read(tmp_path / "out" / "runs" / "cosine" / "config.json")
    assert make_config(read_preset("imagenet-lowshot"), {"data": "imagenet:x"}).extractor == "resnet10"
    assert config["stage1"]["crops"]
    assert config["stage1"]["jitter"] == 0.4
    missing = sorted(benchmark_groups().names)[500]
    for part in ("train", "val"):
        shutil.rmtree(data / part / missing)
    code, _, error = run(*words, "--out", tmp_path / "other")
    assert code == 2
    assert error.splitlines()[-1].count(f"the low-shot benchmark names {missing}, of which imagenet:") == 1
