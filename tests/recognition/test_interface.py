"""What a recogniser offers from Python: opening and closing, many pictures, features, scores, stores."""

from pathlib import Path

import numpy as np
import pytest
import torch

import recollect
from pictures import pixels_of, tree, write_picture
from plain import PROBES, PlainBackend, names_of, pictures
from recollect import ArgumentError, Category, Recognizer
from recollect.errors import ConfigError, RecollectError, StoreError
from recollect.modelfile import save_model
from recollect.recognition import recognizer as module
from recollect.recognition.opening import default_store


@pytest.fixture
def model(tmp_path, tiny_model):
    path = tmp_path / "zoo" / "model.safetensors"
    path.parent.mkdir()
    save_model(path, tiny_model)
    return path


def test_every_public_name_is_listed_and_there():
    listed = dir(recollect)
    assert {"Recognizer", "RecollectClassifier", "Prediction", "Category", "RecollectError"} <= set(listed)
    assert sorted(recollect.__all__) == sorted(listed)
    for name in listed:
        assert getattr(recollect, name) is not None
    errors = {name for name in vars(recollect.errors) if name.endswith("Error")}
    assert errors <= set(listed)


def test_a_closed_recogniser_says_so_and_can_be_closed_again(model, tmp_path):
    with Recognizer.load(model, tmp_path / "taught.sqlite") as recognizer:
        recognizer.teach("okapi", pixels_of(1))
    for call in (
        recognizer.categories,
        lambda: recognizer.predict(pixels_of(1)),
        lambda: recognizer.teach("tapir", pixels_of(2)),
    ):
        with pytest.raises(RecollectError, match="closed: load it again"):
            call()
    recognizer.close()
    assert "closed" in repr(recognizer)


def test_its_text_says_what_it_is(model, tmp_path):
    recognizer = Recognizer.load(model, tmp_path / "here.sqlite")
    recognizer.teach("okapi", pixels_of(1))
    recognizer.teach("base-2", pixels_of(2))
    assert repr(recognizer) == (
        f"<Recognizer: c32f, 7 base categories, 1 taught, kept in {tmp_path / 'here.sqlite'}>"
    )
    assert "kept in memory" in repr(Recognizer.load(model))


def test_a_closed_recogniser_stays_closed_when_its_store_appears(model, tmp_path):
    recognizer = Recognizer.load(model, tmp_path / "later.sqlite")
    recognizer.close()
    with Recognizer.load(model, tmp_path / "later.sqlite") as other:
        other.teach("okapi", pixels_of(1))
    with pytest.raises(RecollectError, match="closed: load it again"):
        recognizer.categories()


@pytest.mark.parametrize("device", ["auto", "cpu"])
def test_a_device_can_be_chosen(model, device):
    features = Recognizer.load(model, device=device).features(PROBES)
    np.testing.assert_array_equal(features, Recognizer.load(model).features(PROBES))


@pytest.mark.parametrize("device", ["meta", "abacus"])
def test_a_device_that_there_is_not_is_named(model, device):
    with pytest.raises(ConfigError, match=device):
        Recognizer.load(model, device=device)


def test_features_are_the_extractors(tiny_model, model):
    with torch.inference_mode():
        expected = tiny_model.embed(torch.from_numpy(np.stack(PROBES)))
    features = Recognizer.load(model).features(PROBES)
    assert features.dtype == np.float32
    np.testing.assert_allclose(features, expected.numpy(), rtol=1e-4, atol=1e-5)
    assert Recognizer.load(model).features(PROBES[0]).shape == (1, features.shape[1])


def test_scores_name_their_columns():
    recognizer = Recognizer(PlainBackend())
    recognizer.teach("okapi", pixels_of(1))
    recognizer.teach("tapir", pictures(2, 3))
    scores = recognizer.scores(PROBES)
    assert scores.base.shape == (3, 3)
    assert scores.novel.shape == (3, 2)
    assert scores.categories == tuple(recognizer.categories())
    assert scores.categories[3:] == (Category(3, "okapi", "novel", 1), Category(4, "tapir", "novel", 2))


class Counting(PlainBackend):
    """Notes how many pictures came at a time, and how many of those that were made are still held."""

    def __init__(self):
        super().__init__()
        self.batches = []

    def embed(self, pixels):
        self.batches.append(len(pixels))
        return super().embed(pixels)


class Noted(np.ndarray):
    """Pixels that count how many of them there are."""

    alive = most = 0

    def __array_finalize__(self, _):
        Noted.alive += 1
        Noted.most = max(Noted.most, Noted.alive)

    def __del__(self):
        Noted.alive -= 1


def stream(count):
    return (pixels_of(seed).view(Noted) for seed in range(count))


@pytest.mark.parametrize("call", ["predict", "features", "scores", "teach"])
def test_many_pictures_are_read_a_few_at_a_time(call):
    backend = Counting()
    recognizer = Recognizer(backend)
    recognizer.teach("okapi", pixels_of(1))
    backend.batches.clear()
    Noted.alive = Noted.most = 0
    given = ("tapir", stream(100)) if call == "teach" else (stream(100),)
    answer = getattr(recognizer, call)(*given)
    assert backend.batches == [32, 32, 32, 4]
    assert Noted.most <= 3 * 32  # the pictures, and views of them
    if call == "teach":
        assert answer.examples == 100
    else:
        assert len(answer.base if call == "scores" else answer) == 100


def test_a_list_a_generator_and_an_array_give_the_same_answers():
    recognizer = Recognizer(PlainBackend())
    many = [pixels_of(seed) for seed in range(40)]
    expected = recognizer.predict(many)
    assert len(expected) == 40
    assert recognizer.predict(iter(many)) == expected
    assert recognizer.predict(np.stack(many)) == expected
    np.testing.assert_array_equal(recognizer.features(iter(many)), recognizer.features(many))


def test_a_bad_picture_of_many_is_named_by_its_place(monkeypatch):
    monkeypatch.setattr(module, "_BATCH", 4)
    recognizer = Recognizer(PlainBackend())
    many = [*pictures(*range(6)), np.zeros((0, 0, 3), np.uint8)]
    with pytest.raises(RecollectError, match="picture 7 of 7: 0 × 0 pixels"):
        recognizer.predict(many)
    with pytest.raises(RecollectError, match="picture 7: 0 × 0 pixels"):
        recognizer.teach("okapi", iter(many))
    with pytest.raises(RecollectError, match="no pictures"):
        recognizer.predict(iter([]))
    assert names_of(recognizer)[3:] == []


@pytest.mark.parametrize(
    "wrong", [{"top": 0}, {"top": -1}, {"among": "old"}], ids=["top 0", "top -1", "among"]
)
def test_a_wrong_argument_is_a_value_error_before_any_picture_is_read(wrong):
    recognizer = Recognizer(PlainBackend())
    with pytest.raises(ValueError, match=next(iter(wrong))) as caught:
        recognizer.predict("no such picture.png", **wrong)
    assert isinstance(caught.value, ArgumentError)
    with pytest.raises(ArgumentError, match="top=0"):
        recognizer.explain("okapi", top=0)


@pytest.mark.parametrize("name", ["unknown", "Unknown", " UNKNOWN "])
def test_no_category_can_be_called_unknown(name):
    recognizer = Recognizer(PlainBackend())
    recognizer.teach("okapi", pixels_of(1))
    for call in (lambda: recognizer.teach(name, pixels_of(2)), lambda: recognizer.rename("okapi", name)):
        with pytest.raises(StoreError, match="is the answer for pictures of no known category"):
            call()
    assert names_of(recognizer)[3:] == ["okapi"]


def test_several_categories_are_taught_all_or_none(tmp_path):
    recognizer = Recognizer(PlainBackend(), tmp_path / "taught.sqlite")
    bad = tmp_path / "bad.png"
    bad.write_bytes(b"")
    with pytest.raises(RecollectError, match=r"bad\.png"):
        recognizer.teach_all({"okapi": pictures(1, 2), "tapir": [bad]})
    with pytest.raises(StoreError, match="taught already as 'okapi'"):
        recognizer.teach_all([("okapi", pictures(1)), ("Okapi", pictures(2))])
    assert names_of(recognizer)[3:] == []
    assert not (tmp_path / "taught.sqlite").exists()
    taught = recognizer.teach_all(iter([("okapi", pictures(1, 2)), ("tapir", pixels_of(3))]))
    assert [(one.name, one.examples) for one in taught] == [("okapi", 2), ("tapir", 1)]
    assert names_of(Recognizer(PlainBackend(), tmp_path / "taught.sqlite"))[3:] == ["okapi", "tapir"]


def test_the_default_store_is_the_command_lines(model, run, tmp_path):
    picture = write_picture(tmp_path / "okapi.png", 1)
    assert run("teach", model, "okapi", picture)[0] == 0
    with Recognizer.load(model, "default") as recognizer:
        assert names_of(recognizer)[7:] == ["okapi"]
        recognizer.teach("tapir", pixels_of(2))
    assert "tapir" in run("categories", model, "--json")[1]
    assert names_of(Recognizer.load(model))[7:] == []


def test_a_store_is_made_when_something_is_first_taught(model):
    before = tree(model.parent)
    recognizer = Recognizer.load(model, "default")
    recognizer.predict(PROBES)
    for call in (lambda: recognizer.forget("okapi"), lambda: recognizer.teach("", pixels_of(1))):
        with pytest.raises(RecollectError):
            call()
    assert tree(model.parent) == before
    other = Recognizer.load(model, "default")
    other.teach("okapi", pixels_of(1))
    assert default_store(model).exists()
    assert names_of(recognizer)[7:] == ["okapi"]  # it saw that the file is there now
    recognizer.teach("tapir", pixels_of(2))
    assert names_of(other)[7:] == ["okapi", "tapir"]


def test_a_bundles_categories_go_into_the_new_store_with_the_first_change(model, tmp_path):
    first = Recognizer.load(model)
    first.teach("okapi", pictures(1, 2))
    first.save(tmp_path / "bundle.safetensors")
    store = tmp_path / "new.sqlite"
    again = Recognizer.load(tmp_path / "bundle.safetensors", store)
    assert not store.exists()
    again.rename("okapi", "Okapia")
    assert names_of(Recognizer.load(model, store))[7:] == ["Okapia"]


def test_no_public_signature_names_a_store_type():
    for name, member in vars(Recognizer).items():
        if callable(member) and (not name.startswith("_") or name == "__init__"):
            words = " ".join(map(str, getattr(member, "__annotations__", {}).values()))
            assert "recollect.store" not in words, name


def test_a_store_that_cannot_be_looked_at_is_named(model, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="file"):
        Recognizer.load(model, tmp_path / "file" / "taught.sqlite").teach("okapi", pixels_of(1))
    assert Path(tmp_path / "file").read_text() == ""
