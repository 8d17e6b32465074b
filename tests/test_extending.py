"""The page on extending is true: its code, put where it says, trains and evaluates."""

import importlib.util
import re
import shlex
import sys
from pathlib import Path

import pytest

from pictures import write_picture
from recollect import methods
from recollect.data import catalogue
from recollect.model.extractors import base

PAGE = (Path(__file__).parents[1] / "docs" / "extending.md").read_text(encoding="utf-8")
BLOCKS = dict(re.findall(r'```python title="([^"]+)"\n(.*?)```', PAGE, re.DOTALL))
QUICK = shlex.split(
    "--size 16 --threads 1 --device cpu --generator mean --set stage1.steps=2 --set select_tasks=4"
)


@pytest.fixture
def written(tmp_path, monkeypatch):
    """Return a maker of modules from the blocks of the page."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def module(title):
        path = tmp_path / Path(title).name
        path.write_text(BLOCKS[title], encoding="utf-8")
        found = importlib.util.spec_from_file_location(path.stem, path)
        made = importlib.util.module_from_spec(found)
        monkeypatch.setitem(sys.modules, path.stem, made)
        found.loader.exec_module(made)
        return made

    return module


@pytest.fixture
def photos(tmp_path):
    for place in range(30):
        write_picture(tmp_path / "photos" / "abc"[place % 3] / f"{place}.jpg", place)
    return tmp_path / "photos"


def ok(answer):
    code, out, err = answer
    assert code == 0, err
    return out


def test_every_block_is_tried_here():
    assert {Path(title).stem for title in BLOCKS} == {"mynet", "tiny", "flat", "nearest_neighbour"}
    assert PAGE.count("```python") == len(BLOCKS)


def test_a_network_of_your_own(written, photos, tmp_path, run):
    written("mynet.py")
    ok(run("train", photos, "--extractor", "module:mynet:build", "--out", tmp_path / "run", *QUICK))
    known = ok(run("categories", tmp_path / "run", "--extractor", "module:mynet:build"))
    assert "3 base categories" in known


def test_an_extractor(written, photos, tmp_path, run, monkeypatch):
    monkeypatch.setattr(base, "_BUILDERS", dict(base._BUILDERS))
    written("src/recollect/model/extractors/tiny.py")
    ok(run("train", photos, "--extractor", "tiny", "--out", tmp_path / "run", *QUICK))
    assert '"extractor": "tiny"' in ok(run("info", tmp_path / "run", "--json"))


def test_a_data_layout(written, photos, tmp_path, run, monkeypatch):
    for picture in sorted(photos.glob("*/*.jpg")):
        write_picture(tmp_path / "flat" / f"{picture.parent.name}_{picture.stem}.jpg", int(picture.stem))
    monkeypatch.setitem(catalogue._LOADERS, "flat", written("src/recollect/data/flat.py").load)
    flat = f"flat:{tmp_path / 'flat'}"
    ok(run("train", flat, "--extractor", "c32f", "--out", tmp_path / "run", *QUICK))
    assert "3 base categories" in ok(run("categories", tmp_path / "run"))


def test_a_method(written, photos, tmp_path, run, monkeypatch):
    made = written("src/recollect/methods/nearest_neighbour.py").NearestNeighbour()
    monkeypatch.setitem(methods.METHODS, made.name, made)
    ok(
        run(
            "train",
            photos,
            "--extractor",
            "c32f",
            "--set",
            f"method={made.name}",
            "--out",
            tmp_path / "run",
            *QUICK,
        )
    )
    report = ok(
        run("evaluate", tmp_path / "run", photos, "--ways", 2, "--queries", 1, "--shots", 1, "--tasks", 4)
    )
    assert "novel" in report.lower()
