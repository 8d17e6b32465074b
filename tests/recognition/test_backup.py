"""Features instead of pictures, and backups of what was taught."""

import json

import numpy as np
import pytest
from safetensors.numpy import load, save

from pictures import pixels_of
from recollect import Recognizer
from recollect.backends.torch import TorchBackend
from recollect.errors import ArgumentError, NameTakenError

PICTURES = np.stack([pixels_of(seed) for seed in range(6)])


@pytest.fixture(params=["attention", "ridge"])
def recognizer(request, make_model):
    return Recognizer(TorchBackend(make_model(generator=request.param)))


@pytest.fixture
def other(recognizer):
    return Recognizer(recognizer._backend)


def test_features_are_answered_as_their_pictures_are(recognizer):
    recognizer.teach("okapi", PICTURES[:2])
    features = recognizer.features(PICTURES)
    for options in ({}, {"top": 2}, {"among": "novel"}, {"among": "base"}):
        assert recognizer.predict_features(features, **options) == recognizer.predict(PICTURES, **options)


def test_teaching_features_is_teaching_their_pictures(recognizer, other):
    expected = recognizer.teach_all({"okapi": PICTURES[:2], "tapir": PICTURES[2:3], "base-1": PICTURES[3:4]})
    names = ["okapi", "okapi", "tapir", "base-1"]
    assert other.teach_features(names, other.features(PICTURES[:4]), [b"small"] * 4) == expected
    assert [one.thumbnail for one in other.examples("okapi")] == [b"small"] * 2
    for ours, theirs in zip(other.predict(PICTURES), recognizer.predict(PICTURES), strict=True):
        assert [one.category for one in ours] == [one.category for one in theirs]
        assert [one.probability for one in ours] == pytest.approx(
            [one.probability for one in theirs], rel=1e-3
        )


@pytest.mark.parametrize(
    "wrong", [np.zeros((2, 31), np.float32), np.zeros((2, 32)), np.zeros(32, np.float32)]
)
def test_features_of_another_model_are_refused(recognizer, wrong):
    with pytest.raises(ArgumentError, match=r"expected features of float32 and shape \(n, 32\)"):
        recognizer.predict_features(wrong)
    with pytest.raises(ArgumentError, match=r"expected features of float32 and shape \(n, 32\)"):
        recognizer.teach_features(["okapi", "okapi"], wrong)
    assert len(recognizer.categories()) == 7


def test_a_restored_backup_gives_the_same_scores_names_and_ids(recognizer, other):
    recognizer.teach("gone", PICTURES[4])
    recognizer.teach_all({"okapi": PICTURES[:2], "base-1": PICTURES[3]}, thumbnails=True)
    recognizer.forget("gone")
    recognizer.rename("base-2", "zebu")
    recognizer.hide("base-3")
    backup = recognizer.backup()
    assert other.restore(backup) == {"okapi": 2, "base-1": 1}
    assert other.categories() == recognizer.categories()
    for ours, theirs in zip(other.scores(PICTURES)[:2], recognizer.scores(PICTURES)[:2], strict=True):
        assert np.array_equal(ours, theirs)
    assert [one.thumbnail for one in other.examples("okapi")] == [
        one.thumbnail for one in recognizer.examples("okapi")
    ]
    assert other.restore(backup) == {}


def test_what_was_taught_since_a_backup_stays_and_what_was_forgotten_comes_back(recognizer, tmp_path):
    kept = Recognizer(recognizer._backend, tmp_path / "taught.sqlite")
    kept.teach("okapi", PICTURES[0])
    backup = kept.backup()
    kept.forget("okapi")
    kept.teach("tapir", PICTURES[1])
    for _ in range(2):
        assert kept.restore(backup) == {"okapi": 1}
        assert {one.name for one in kept.categories()[7:]} == {"okapi", "tapir"}
        assert {one.category for one in kept.predict(PICTURES[0], among="novel")} == {"okapi", "tapir"}
        kept.forget("okapi")


def test_a_backup_that_contradicts_what_is_known_changes_nothing(recognizer, other):
    recognizer.teach_all({"aardvark": PICTURES[1], "zebu": PICTURES[0]})
    other.rename("base-1", "zebu")
    before = other.categories()
    with pytest.raises(NameTakenError):
        other.restore(recognizer.backup())
    assert other.categories() == before


def test_a_backup_of_another_model_is_refused(recognizer, make_model):
    stranger = Recognizer(TorchBackend(make_model(seed=1)))
    stranger.teach("okapi", PICTURES[0])
    with pytest.raises(ArgumentError, match="belongs to another model"):
        recognizer.restore(stranger.backup())


def with_words(backup, change):
    """Return a backup whose header was altered."""
    length = int.from_bytes(backup[:8], "little")
    words = json.loads(json.loads(backup[8 : 8 + length])["__metadata__"]["recollect-backup"])
    change(words)
    return save(load(backup), metadata={"recollect-backup": json.dumps(words)})


@pytest.mark.parametrize(
    "change",
    [
        lambda words: words["taught"][0].update(name="unknown"),
        lambda words: words["taught"][0].update(name="a\nb"),
        lambda words: words["taught"][0].update(id=-1),
        lambda words: words["taught"][0]["examples"].pop(),
        lambda words: words["base_changes"].update({"nobody": {"shown": "a", "hidden": False}}),
        lambda words: words.pop("taught"),
        lambda words: words.update(taught=1),
    ],
)
def test_an_altered_backup_is_refused(recognizer, other, change):
    recognizer.teach("okapi", PICTURES[:2])
    with pytest.raises(ArgumentError):
        other.restore(with_words(recognizer.backup(), change))
    assert len(other.categories()) == 7
    for nothing in (b"", b"{}", bytes(8), save({}), save({}, metadata={"recollect-backup": "[" * 10_000})):
        with pytest.raises(ArgumentError, match="this is not a backup"):
            other.restore(nothing)
