"""Models whose generator knows how many examples a category has: their vectors, stores and files."""

import json

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from plain import PROBES, pictures, same
from recollect import Recognizer
from recollect.backends.torch import TorchBackend
from recollect.errors import ModelError
from recollect.model.generator import AttentionGenerator
from recollect.modelfile import load_model, read_header, save_model
from recollect.recognition.vectors import unit

SEEDS = (1, 2, 3, 4, 5, 6)


@pytest.fixture
def model(make_model):
    made = make_model(shot_aware=True)
    with torch.no_grad():
        made.generator.fading.fill_(0.6)
    return made


@pytest.mark.parametrize("fading", [-1e4, 200.0, float("nan")])
def test_a_weight_that_no_training_gives_is_refused(model, fading):
    with torch.no_grad():
        model.generator.fading.fill_(fading)
    with pytest.raises(ModelError, match="fading"):
        TorchBackend(model)


def test_order_changes_no_bit(model):
    one, other = (Recognizer(TorchBackend(model)) for _ in range(2))
    for seed in SEEDS:
        one.teach("okapi", pictures(seed))
    for seed in reversed(SEEDS):
        other.teach("okapi", pictures(seed))
    assert same(one.scores(PROBES), other.scores(PROBES))


def test_a_vector_is_the_mean_with_attention_weighted_by_the_number_of_examples(model):
    backend = TorchBackend(model)
    recognizer = Recognizer(backend)
    recognizer.teach("okapi", pictures(*SEEDS))
    z = unit(recognizer.features(pictures(*SEEDS)))
    attended = backend.attend(recognizer.features(pictures(*SEEDS))) @ unit(backend.base_vectors)
    phi_avg, phi_att = (getattr(model.generator, name).detach().numpy() for name in ("phi_avg", "phi_att"))
    vector = phi_avg * z.mean(0) + 6**-0.6 * phi_att * attended.mean(0)
    expected = backend.scale * unit(recognizer.features(PROBES)) @ unit(vector)
    np.testing.assert_allclose(recognizer.scores(PROBES)[1][:, 0], expected, rtol=1e-4, atol=1e-4)


def test_what_was_taught_survives_a_store_and_a_file(model, tmp_path):
    save_model(tmp_path / "model.safetensors", model)
    with Recognizer.load(tmp_path / "model.safetensors", tmp_path / "taught.sqlite") as recognizer:
        recognizer.teach("okapi", pictures(*SEEDS))
        recognizer.teach("tapir", pictures(7))
        expected = recognizer.scores(PROBES)
        recognizer.save(tmp_path / "whole.safetensors")
        assert len(recognizer.examples("okapi")) == len(SEEDS)
    for opened in (
        Recognizer.load(tmp_path / "model.safetensors", tmp_path / "taught.sqlite"),
        Recognizer.load(tmp_path / "whole.safetensors"),
    ):
        with opened:
            assert same(opened.scores(PROBES), expected)
    assert read_header(tmp_path / "whole.safetensors").spec.shot_aware


def test_terms_of_one_part_in_its_file_are_refused(model, tmp_path):
    recognizer = Recognizer(TorchBackend(model))
    recognizer.teach("okapi", pictures(1))
    path = tmp_path / "whole.safetensors"
    recognizer.save(path)
    with safe_open(path, "np") as file:
        metadata = file.metadata()
    tensors = load_file(path)
    tensors["taught.terms"] = tensors["taught.terms"][:, : model.width].copy()
    save_file(tensors, path, metadata)
    with pytest.raises(ModelError, match="'terms' does not fit the header"):
        Recognizer.load(path)


def test_a_file_from_before_gives_the_same_scores(make_model, tmp_path):
    model, path = make_model(), tmp_path / "model.safetensors"
    save_model(path, model)
    expected = Recognizer(TorchBackend(model))
    expected.teach("okapi", pictures(*SEEDS))
    with safe_open(path, "np") as file:
        words = json.loads(file.metadata()["recollect"])
    assert words["spec"].pop("shot_aware") is False
    save_file(load_file(path), path, {"recollect": json.dumps(words)})
    generator = load_model(path).generator
    assert isinstance(generator, AttentionGenerator)
    assert generator.fading is None
    with Recognizer.load(path) as recognizer:
        recognizer.teach("okapi", pictures(*SEEDS))
        assert same(recognizer.scores(PROBES), expected.scores(PROBES))
        assert recognizer._backend.fingerprint == TorchBackend(model).fingerprint
