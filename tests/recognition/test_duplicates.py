"""The same picture taught twice is noticed, and one category alone is not certain of everything."""

import numpy as np
import pytest

from pictures import pixels_of
from plain import PlainBackend, pictures
from recollect import Duplicate, Recognizer
from recollect.backends.torch import TorchBackend
from recollect.model.spec import Calibration, Unknown
from recollect.modelfile import Header


@pytest.fixture(params=["memory", "sqlite"])
def recognizer(request, tmp_path):
    return Recognizer(PlainBackend(), None if request.param == "memory" else tmp_path / "taught.sqlite")


def test_a_picture_taught_twice_or_under_two_names_is_noticed(recognizer):
    recognizer.teach("okapi", pictures(1, 2))
    assert recognizer.duplicates("okapi") == []
    recognizer.teach("okapi", pictures(3, 1))
    assert recognizer.duplicates("okapi") == [Duplicate(4, 1, "okapi")]
    recognizer.teach("tapir", pictures(2))
    assert recognizer.duplicates("tapir") == [Duplicate(5, 2, "okapi")]
    assert Duplicate(2, 5, "tapir") in recognizer.duplicates("okapi")
    recognizer.teach("lion", pictures(3))
    recognizer.rename("lion", "Löwe")
    assert Duplicate(3, 6, "Löwe") in recognizer.duplicates("okapi")
    recognizer.forget("tapir")
    recognizer.forget_example(4)
    assert recognizer.duplicates("okapi") == [Duplicate(3, 6, "Löwe")]


def test_duplicates_are_left_out_if_asked(recognizer):
    recognizer.teach("okapi", pictures(1, 2))
    assert recognizer.teach("okapi", pictures(2, 3, 3, 1), skip_duplicates=True).examples == 3
    assert recognizer.teach("okapi", pictures(1), skip_duplicates=True).examples == 3
    assert recognizer.teach("tapir", pictures(1), skip_duplicates=True).examples == 1, "of another category"
    assert recognizer.teach("tapir", pictures(1)).examples == 2
    skipped = []
    pairs = [("okapi", pictures(4, 1)), ("zebra", pictures(1)), ("okapi", pictures(4, 5))]
    taught = recognizer.teach_all(pairs, skipped=skipped)
    assert [(one.name, one.examples) for one in taught] == [("okapi", 5), ("zebra", 1)]
    assert skipped == [1, 3]


def test_the_batch_a_picture_was_in_does_not_hide_it(make_model):
    recognizer = Recognizer(TorchBackend(make_model()))
    recognizer.teach("okapi", pictures(*range(40)))
    recognizer.teach("tapir", pixels_of(7))
    assert [(one.example, one.other) for one in recognizer.duplicates("tapir")] == [(41, 8)]


@pytest.fixture
def alone(make_model):
    """A model without base categories, as `recollect new` makes it, that was taught one."""
    model = make_model(categories=(), generator="mean")
    model.classifier.scale.data.fill_(20.0)
    recognizer = Recognizer(TorchBackend(model))
    recognizer.teach("okapi", pixels_of(1))
    return recognizer


def test_one_category_alone_is_weighed_against_anything_else(alone):
    many = [pixels_of(1), np.zeros((16, 16, 3), np.uint8), *pictures(*range(2, 30))]
    cosines = alone.scores(many).novel[:, 0] / 20
    for cosine, answers in zip(cosines.tolist(), alone.predict(many), strict=True):
        expected = 1 / (1 + np.exp(-20 * (cosine - 0.5)))
        found = {one.category: one.probability for one in answers}
        assert found["okapi"] == pytest.approx(expected, rel=1e-4)
        assert (answers[0].category == "unknown") == (expected <= 0.5)
        assert sum(found.values()) <= 1 + 1e-6
    assert alone.predict(pixels_of(1), unknown=False)[0].probability == 1


def test_two_categories_share_as_before(alone):
    alone.teach("tapir", pixels_of(2))
    answers = alone.predict(pixels_of(3))
    assert sum(one.probability for one in answers) == pytest.approx(1, abs=1e-5)


def test_a_calibrated_model_with_one_category_weighs_by_its_calibration(make_model):
    model = make_model(categories=(), generator="mean")
    unknown = Unknown(threshold=-100.0, steepness=0.01, offset=0.0, false_alarms=0.05)
    header = Header(spec=model.spec, calibration=Calibration(unknown=unknown))
    recognizer = Recognizer(TorchBackend(model, header))
    recognizer.teach("okapi", pixels_of(1))
    (answer,) = recognizer.predict(pixels_of(9))
    score = recognizer.scores(pixels_of(9)).novel[0, 0]
    assert answer.probability == pytest.approx(1 / (1 + np.exp(-0.01 * (score + 100))), rel=1e-4)
