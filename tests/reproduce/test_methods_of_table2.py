"""`recollect reproduce table2 --methods …` on a few glyphs, and `recollect plot methods` on what it wrote."""

import shutil

import pytest
import torch
from reproductions import read, timeless
from test_table2 import SETTINGS, lines_of, reproduced
from test_table2 import few_glyphs as fewer_glyphs

from killing import kill_when
from recollect.data import glyphs
from recollect.errors import DataError
from recollect.methods import find_method
from recollect.modelfile import load_model
from recollect.reproduce import page, times
from recollect.reproduce.results import write_json
from recollect.reproduce.rows import TABLE_2
from recollect.training.runfolder import RunFolder

METHODS = ["maml", "temporal"]
FEW = {
    **SETTINGS,
    "stage1.steps": "2",
    "select_tasks": "2",
    "episodic.episodes": "2",
    "episodic.queries": "1",
    "meta.inner_steps": "1",
    "meta.test_steps": "1",
}
WISHES = {"methods": METHODS, "settings": FEW, "tasks": 4, "queries": 2}


def few_glyphs(patch):
    """Draw few pictures, but enough of each category for 5 shots."""
    fewer_glyphs(patch)
    patch.setattr(glyphs, "BASE_PICTURES", 14)


@pytest.fixture(autouse=True)
def _few_glyphs(monkeypatch):
    few_glyphs(monkeypatch)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("methods")
    with pytest.MonkeyPatch.context() as patch:
        few_glyphs(patch)
        patch.setenv("RECOLLECT_CACHE", str(folder.parent / "methods-cache"))
        torch.set_num_threads(1)
        reproduced(folder, **WISHES)
    return folder


def test_each_method_is_trained_for_each_number_of_shots(finished):
    names = [f"{name}-{shots}-shot" for name in METHODS for shots in (1, 5)]
    assert sorted(path.name for path in (finished / "runs").iterdir()) == sorted(names)
    for name in names:
        config = RunFolder(finished / "runs" / name).config()
        assert (config.method, config.shots) == (name.rpartition("-")[0][:-2], int(name[-6]))
        assert config.extractor == "c32f"
        load_model(finished / "runs" / name, learner=find_method(config.method).learner)


def test_the_page_says_which_methods_cannot_score_base_categories_and_how_maml_answers(finished):
    text = (finished / "table2.md").read_text(encoding="utf-8")
    for name in ("MAML, c32f", "Temporal convolutions, c32f"):
        one, five, *_ = lines_of(finished / "table2.md", name)
        assert one[1] == "1"
        assert five[1] == "5"
        for line in (one, five):
            assert " ± " in line[2]
            assert line[3:] == ["no base scores", "no base scores"]
    assert "by the statistics of all of them together" in text
    assert (
        "MAML (published values in brackets): 1 inner step in training and 1 on new tasks (5 and 10)" in text
    )
    assert "--methods maml,temporal" in text
    assert "--extractors" not in text
    assert "Cosine classifier" not in text, "there is no row of ours"


def test_published_figures_stand_beside_those_of_methods(finished, tmp_path):
    timeless(finished, tmp_path)
    write_json(tmp_path / "plan.json", {**read(tmp_path / "plan.json"), "data": "mini-imagenet:images"})
    one, five, *_ = lines_of(page.write_page(tmp_path), "MAML, c32f")
    assert one[3:] == ["48.70", "–", *["no base scores", "–", "–"] * 2]
    assert five[3:5] == ["63.10", "–"]


def test_on_cifar_fs_figures_published_on_it_or_else_on_mini_imagenet_stand_beside(finished, tmp_path):
    timeless(finished, tmp_path)
    write_json(tmp_path / "plan.json", {**read(tmp_path / "plan.json"), "data": "cifar-fs:images"})
    path = page.write_page(tmp_path)
    one, five, *_ = lines_of(path, "MAML, c32f")
    assert [one[-1], five[-1]] == ["58.9", "71.5"]
    one, five, *_ = lines_of(path, "Temporal convolutions, c32f")
    assert [one[-1], five[-1]] == ["55.71 on mini-ImageNet", "68.88 on mini-ImageNet"]
    assert "which is another problem" in path.read_text(encoding="utf-8")


@pytest.mark.slow
def test_a_reproduction_of_methods_that_was_killed_goes_on_and_gives_the_same_page(finished, tmp_path):
    folder = tmp_path / "killed"
    shutil.copytree(finished, folder)
    for name in ("maml-5-shot", "temporal-5-shot"):
        shutil.rmtree(folder / "runs" / name)
        (folder / "results" / f"{name}.json").unlink()
    begun = folder / "runs" / "maml-5-shot" / "stage1.checkpoint.safetensors"
    kill_when(begun, lambda: reproduced(folder, **WISHES))
    assert not (folder / "results" / "maml-5-shot.json").exists()
    reproduced(folder, **WISHES)
    assert timeless(folder, tmp_path / "one") == timeless(finished, tmp_path / "other")


def test_rows_of_methods_are_chosen_by_name(tmp_path, refused):
    out = ("--out", tmp_path / "new")
    told = refused("reproduce", "table2", "glyphs", *out, "--methods", "maml,snail")
    assert f"--methods snail: choose some of {','.join(TABLE_2.methods)}" in told
    told = refused("reproduce", "table1", "glyphs", *out, "--methods", "maml")
    assert "table2 takes some" in told


def test_methods_are_drawn_against_their_minutes(finished, tmp_path, run):
    for path in (finished / "results").iterdir():
        words = read(path)
        write_json(tmp_path / "made" / "results" / path.name, {**words, "training_seconds": 90.0})
    code, out, err = run("plot", "methods", tmp_path / "made", "--out", tmp_path / "times.png")
    assert code == 0, err
    assert (tmp_path / "times.png").read_bytes().startswith(b"\x89PNG")
    (result,) = read(finished / "results" / "maml-1-shot.json")["report"]["results"]
    found = [line for line in out.splitlines() if line.startswith("MAML, 1 shots")]
    assert found == [
        f"MAML, 1 shots: {result['novel']['mean']:.2f} ± {result['novel']['ci95']:.2f} % after 1.5 minutes"
    ]


def test_the_picture_has_a_panel_for_each_number_of_shots_and_a_mark_for_each_method(finished):
    points = [point for path in (finished / "results").iterdir() for point in times.read_points(path)]
    figure = times.times_figure(points)
    panels = [axes for axes in figure.axes if axes.get_title()]
    assert [axes.get_title() for axes in panels] == ["1 shot", "5 shots"]
    for axes, shots in zip(panels, (1, 5), strict=True):
        drawn = {
            (round(float(x), 6), round(float(y), 6))
            for container in axes.containers
            for x, y in zip(*container.lines[0].get_data(), strict=True)
        }
        assert drawn == {
            (round(max(point.minutes, 0.01), 6), round(point.mean, 6))
            for point in points
            if point.shots == shots
        }
    (legend,) = figure.legends
    assert len(legend.get_texts()) == len(METHODS)


def test_results_that_cannot_be_drawn_are_refused_in_a_line(finished, tmp_path, refused):
    picture = ("--out", tmp_path / "times.png")
    assert "holds no results" in refused("plot", "methods", tmp_path, *picture)
    path = tmp_path / "result.json"
    path.write_text("{}")
    assert f"{path} is not a result file of table 1 or 2" in refused("plot", "methods", path, *picture)
    words = read(finished / "results" / "maml-1-shot.json")
    write_json(path, {**words, "kind": "generator"})
    assert "stage 1 of another training" in refused("plot", "methods", path, *picture)
    write_json(path, {**words, "report": {**words["report"], "results": [{"shots": 1}]}})
    with pytest.raises(DataError, match="is damaged"):
        times.read_points(path)
