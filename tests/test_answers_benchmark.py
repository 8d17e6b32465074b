"""The figures of `benchmarks.answers` are those of a recogniser that is really taught."""

import numpy as np
import pytest
from benchmarks import answers

from recollect import Recognizer
from recollect.backends.torch import TorchBackend
from recollect.features import extract
from recollect.model.spec import Calibration, Unknown
from recollect.modelfile import Header

CALIBRATION = Calibration(
    temperature=1.3,
    bias={1: 0.6, 5: -0.8},
    unknown=Unknown(threshold=6.0, rise=0.2, steepness=0.5, offset=0.3, false_alarms=0.05),
)


@pytest.fixture
def lesson(tiny_split):
    return answers.draw_lesson(tiny_split.test.labels, 3, 0)


@pytest.fixture
def sight(tiny_model, tiny_split):
    novel, base = extract(tiny_model, tiny_split.test), extract(tiny_model, tiny_split.base_test)
    return answers.Sight(tiny_model, CALIBRATION, novel, base)


def new_recognizer(model):
    return Recognizer(TorchBackend(model, Header(spec=model.spec, calibration=CALIBRATION)))


def other_pictures(split, lesson, category):
    """Return the pictures of a category that nothing is taught from."""
    return split.test.take(np.setdiff1d(np.flatnonzero(split.test.labels == category), lesson.support))


def teach(recognizer, split, lesson, place):
    category = lesson.order[place]
    recognizer.teach(split.test.categories[category], list(split.test.take(lesson.support[place])))


def test_a_lesson_takes_each_categorys_own_pictures_and_each_category_once(tiny_split, lesson):
    assert sorted(lesson.order) == list(range(6))
    for category, rows in zip(lesson.order, lesson.support, strict=True):
        assert set(tiny_split.test.labels[rows]) == {category}
        assert len(set(rows)) == 3
    assert lesson.swapped.order.tolist() == [*lesson.order[3:], *lesson.order[:3]]
    assert (lesson.swapped.support[0] == lesson.support[3]).all()


def test_accuracies_are_those_of_a_recogniser_taught_one_by_one(tiny_model, tiny_split, sight, lesson):
    found = answers.lesson_accuracies(sight, lesson)
    recognizer = new_recognizer(tiny_model)
    names = tiny_split.test.categories
    base_pixels = tiny_split.base_test.take(np.arange(len(tiny_split.base_test)))
    base_names = [tiny_split.categories[label] for label in tiny_split.base_test.labels]

    def share(pixels, wanted):
        given = recognizer.predict(list(pixels), top=1, unknown=False)
        return [one[0].category == name for one, name in zip(given, wanted, strict=True)]

    for count in range(7):
        if count:
            teach(recognizer, tiny_split, lesson, count - 1)
        right_base = share(base_pixels, base_names)
        assert found["base"][count] == pytest.approx(100 * np.mean(right_base))
        each = [
            np.mean([r for r, n in zip(right_base, base_names, strict=True) if n == name])
            for name in tiny_split.categories
        ]
        right = []
        for category in lesson.order[:count]:
            pixels = other_pictures(tiny_split, lesson, category)
            mine = share(pixels, [names[category]] * len(pixels))
            each.append(np.mean(mine))
            right += mine
        if count:
            assert found["taught"][count - 1] == pytest.approx(100 * np.mean(right))
        assert found["overall"][count] == pytest.approx(100 * np.mean(each))


def test_pictures_called_unknown_are_those_that_a_recogniser_calls_so(tiny_model, tiny_split, sight, lesson):
    middle = np.median(np.concatenate(list(answers.clearances(sight, lesson).values())))
    unknown = CALIBRATION.unknown.model_copy(
        update={"threshold": CALIBRATION.unknown.threshold + float(middle)}
    )
    calibration = CALIBRATION.model_copy(update={"unknown": unknown})
    sight.calibration = calibration
    found = answers.clearances(sight, lesson)
    recognizer = Recognizer(TorchBackend(tiny_model, Header(spec=tiny_model.spec, calibration=calibration)))
    for place in range(3):
        teach(recognizer, tiny_split, lesson, place)

    def called(pixels):
        return sum(one[0].origin == "unknown" for one in recognizer.predict(list(pixels), top=1))

    base = called(tiny_split.base_test.take(np.arange(len(tiny_split.base_test))))
    taught, strange = (
        sum(called(other_pictures(tiny_split, lesson, category)) for category in some)
        for some in (lesson.order[:3], lesson.order[3:])
    )
    assert (base, taught, strange) == tuple((found[name] < 0).sum() for name in ("base", "taught", "unknown"))
    assert 0 < base + taught + strange < sum(len(values) for values in found.values())


def test_everything_is_measured_and_drawn(sight, tmp_path, monkeypatch):
    monkeypatch.setattr(answers, "LESSONS", 2)
    monkeypatch.setattr(answers, "TASKS", 10)
    monkeypatch.setattr(answers, "bias_report", lambda *_: [])  # tasks of 5 + 15 pictures are too large here
    report = answers.measure(sight.model, CALIBRATION, sight.novel, sight.base, tmp_path)
    assert len(report["one_by_one"]["base"]["mean"]) == 7
    assert 0 <= report["unknown"]["auroc"]["mean"] <= 100
    assert report["reliability"]["after"]["ece"] >= 0
    for name in ("one-by-one.png", "reliability.png", "unknown.png"):
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")
