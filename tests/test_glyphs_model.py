"""`glyphs`, the ready-made model of characters: what `recollect demo` trains."""

import numpy as np
import pytest

from recollect import Recognizer
from recollect.data import glyphs
from recollect.data.catalogue import load_data
from recollect.evaluation.evaluate import load_trained
from recollect.modelfile import is_ready, read_header
from recollect.training.config import make_config, read_preset
from recollect.training.train import resolve


@pytest.fixture(scope="module")
def recognizer():
    return Recognizer.load("glyphs")


def right(recognizer, name, pictures):
    return [answers[0].category == name for answers in recognizer.predict(pictures, top=1, unknown=False)]


def test_it_comes_with_the_package_and_knows_the_base_characters(recognizer):
    assert is_ready("glyphs")
    found = [one for name in glyphs.BASE for one in right(recognizer, name, glyphs.render(name, 3, seed=9))]
    assert np.mean(found) > 0.85


def test_it_is_taught_a_character_from_three_pictures(recognizer):
    found = []
    for name in glyphs.TEST[:5]:
        pictures = glyphs.render(name, 13, seed=9)
        recognizer.teach(name, pictures[:3])
        found += right(recognizer, name, pictures[3:])
    assert np.mean(found) > 0.7


def test_it_is_the_model_of_the_demo(monkeypatch):
    for name in ("BASE_PICTURES", "OTHER_PICTURES", "HELD_PICTURES"):
        monkeypatch.setattr(glyphs, name, 8 if name != "HELD_PICTURES" else 2)
    provenance = read_header("glyphs").provenance
    config = resolve(make_config(read_preset("demo"), {"data": "glyphs"}), load_data("glyphs"))
    assert provenance["finished"]
    made = {key: value for key, value in provenance["config"].items() if key not in {"threads", "data_key"}}
    expected = config.model_dump(mode="json")
    for stage in ("stage1", "stage2"):
        expected[stage]["steps"] = made[stage]["steps"]  # of more pictures
    assert made == {key: value for key, value in expected.items() if key in made}


def test_it_can_be_evaluated_on_what_it_was_trained_on(monkeypatch):
    for name in ("BASE_PICTURES", "OTHER_PICTURES", "HELD_PICTURES"):
        monkeypatch.setattr(glyphs, name, 8 if name != "HELD_PICTURES" else 2)
    model, split, _ = load_trained("glyphs", "glyphs")
    assert split.categories == model.spec.categories == glyphs.BASE
