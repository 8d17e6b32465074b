"""What `predict` makes of a calibration: probabilities and "unknown", against computations by hand."""

from math import exp, log

import numpy as np
import pytest

from pictures import pixels_of
from recollect import Recognizer
from recollect.backends.torch import TorchBackend
from recollect.model.spec import Calibration, TaughtOffset, Unknown
from recollect.modelfile import Header, read_header, save_model
from recollect.recognition.scoring import clearance, joint_scores, softmax, unknown_probability

PROBES = [pixels_of(1000 + number) for number in range(6)]
UNKNOWN = Unknown(threshold=0.0, rise=0.3, steepness=0.8, offset=0.4, false_alarms=0.05)


def recognizer_of(model, calibration, taught=2):
    recognizer = Recognizer(TorchBackend(model, Header(spec=model.spec, calibration=calibration)))
    for seed in range(taught):
        recognizer.teach(f"new-{seed}", [pixels_of(seed), pixels_of(50 + seed)])
    return recognizer


def between(recognizer, bias, taught):
    """Return a calibration by which half of the probes are unknown."""
    base, novel, _ = recognizer.scores(PROBES)
    best = np.sort(np.maximum(base.max(1), novel.max(1) + bias))
    threshold = float(best[2:4].mean()) - UNKNOWN.rise * log(1 + taught)
    return Calibration(
        temperature=1.7, bias=bias, unknown=UNKNOWN.model_copy(update={"threshold": threshold})
    )


@pytest.fixture
def half(tiny_model):
    """A recogniser for which half of the probes are unknown, and its calibration."""
    plain = recognizer_of(tiny_model, Calibration())
    calibration = between(plain, 0.9, 2)
    return recognizer_of(tiny_model, calibration), calibration


def by_hand(recognizer, calibration, row):
    """Return the probabilities by category and how far the best score is above the threshold."""
    base, novel = (part[row].tolist() for part in recognizer.scores(PROBES)[:2])
    scores = [*base, *(score + calibration.bias for score in novel)]
    powers = [exp(score / calibration.temperature) for score in scores]
    names = [category.name for category in recognizer.categories()]
    shares = {name: power / sum(powers) for name, power in zip(names, powers, strict=True)}
    unknown = calibration.unknown
    return shares, max(scores) - unknown.threshold - unknown.rise * log(1 + len(novel))


def test_probabilities_and_unknown_are_those_computed_by_hand(half):
    recognizer, calibration = half
    marked = 0
    for row, answers in enumerate(recognizer.predict(PROBES, top=99)):
        shares, cleared = by_hand(recognizer, calibration, row)
        rest = 1.0
        if cleared < 0:
            marked += 1
            first = answers.pop(0)
            assert (first.category, first.origin) == ("unknown", "unknown")
            assert first.probability == pytest.approx(1 / (1 + exp(0.8 * cleared - 0.4)), rel=1e-4)
            assert first.probability >= 0.5
            rest -= first.probability
        assert {answer.category for answer in answers} == set(shares)
        for answer in answers:
            assert answer.probability == pytest.approx(rest * shares[answer.category], rel=1e-3)
            assert answer.origin == ("novel" if answer.category.startswith("new") else "base")
    assert marked == 3


def test_a_category_of_more_examples_has_a_bias_of_its_own(tiny_model):
    calibration = Calibration(bias=0.9, bias_rise=-0.5)
    recognizer = recognizer_of(tiny_model, calibration)  # of two pictures each
    recognizer.teach("new-1", [pixels_of(70), pixels_of(71)])
    base, novel, _ = recognizer.scores(PROBES)
    joint = np.concatenate([base, novel + np.array([0.9 - 0.5 * log(2), 0.9 - 0.5 * log(4)])], axis=1)
    names = [category.name for category in recognizer.categories()]
    for row, answers in enumerate(recognizer.predict(PROBES, top=99)):
        expected = dict(zip(names, softmax(joint)[row], strict=True))
        assert {one.category: one.probability for one in answers} == pytest.approx(expected, rel=1e-4)


def test_answers_add_up_to_one_and_come_sorted(half):
    for answers in half[0].predict(PROBES, top=99):
        shares = [answer.probability for answer in answers]
        assert sum(shares) == pytest.approx(1, abs=1e-5)
        assert shares == sorted(shares, reverse=True)


@pytest.mark.parametrize("top", [1, 2, 9, 10, 50])
def test_unknown_counts_among_the_top_answers(half, top):
    every = half[0].predict(PROBES, top=99)
    assert {len(answers) for answers in every} == {9, 10}
    assert half[0].predict(PROBES, top=top) == [answers[:top] for answers in every]


def test_unknown_can_be_switched_off(half):
    recognizer, calibration = half
    for row, answers in enumerate(recognizer.predict(PROBES, top=99, unknown=False)):
        shares, _ = by_hand(recognizer, calibration, row)
        assert {answer.category: answer.probability for answer in answers} == pytest.approx(shares, rel=1e-3)


@pytest.mark.parametrize("among", ["base", "novel"])
def test_asked_among_some_categories_the_picture_is_of_one_of_them(half, among):
    recognizer, calibration = half
    scores = recognizer.scores(PROBES)[["base", "novel"].index(among)].astype(np.float64)
    powers = np.exp(scores / calibration.temperature)  # a bias of all novel scores changes nothing among them
    expected = powers / powers.sum(1, keepdims=True)
    for row, answers in enumerate(recognizer.predict(PROBES, top=99, among=among)):
        assert {answer.origin for answer in answers} == {among}
        found = sorted(answer.probability for answer in answers)
        assert found == pytest.approx(sorted(expected[row]), rel=1e-3)


def test_a_model_without_calibration_answers_as_its_scores_say(tiny_model):
    recognizer = recognizer_of(tiny_model, Calibration())
    scores = np.concatenate(recognizer.scores(PROBES)[:2], axis=1)
    powers = np.exp(scores - scores.max(axis=1, keepdims=True))
    expected = powers / powers.sum(axis=1, keepdims=True)
    for row, answers in enumerate(recognizer.predict(PROBES, top=99)):
        assert [answer.probability for answer in answers] == sorted(expected[row].tolist(), reverse=True)
        assert "unknown" not in {answer.origin for answer in answers}


def test_raw_scores_know_nothing_of_a_calibration(tiny_model, half):
    plain = recognizer_of(tiny_model, Calibration())
    for one, other in zip(plain.scores(PROBES), half[0].scores(PROBES), strict=True):
        assert np.array_equal(one, other)


def test_the_threshold_rises_with_what_is_taught():
    best = np.array([1.0, 2.0], np.float32)
    assert clearance(best, 0, UNKNOWN) == pytest.approx([1, 2])
    assert clearance(best, 9, UNKNOWN) == pytest.approx([1 - 0.3 * log(10), 2 - 0.3 * log(10)])


def test_tight_examples_change_the_bias_and_the_offset_of_unknown(make_model):
    model = make_model(generator="ridge")
    plain = recognizer_of(model, Calibration())
    base, novel, _ = (np.asarray(part) for part in plain.scores(PROBES))
    cosines = []
    for seed in range(2):
        one, other = plain.features([pixels_of(seed), pixels_of(50 + seed)]).astype(np.float64)
        cosines.append(one @ other / np.linalg.norm(one) / np.linalg.norm(other))
    excess = np.mean(cosines) - 0.25
    bias = 0.9 + 0.3 * log(2) - 2.0 * excess
    offset = 0.5 + 0.2 * log(2) - 0.4 * log(2) + 3.0 * excess
    best = np.sort(np.maximum(base.max(1), novel.max(1) + offset))
    unknown = Unknown(
        threshold=float(best[2:4].mean()),
        steepness=0.8,
        offset=0.4,
        false_alarms=0.05,
        taught=TaughtOffset(start=0.5, number=0.2, rise=-0.4, slope=3.0),
    )
    calibration = Calibration(
        bias=0.9, bias_rise=0.3, bias_slope={2: -2.0, 50: 0.0}, tightness=0.25, unknown=unknown
    )
    recognizer = recognizer_of(model, calibration)
    answers = recognizer.predict(PROBES, top=99)
    assert sum(some[0].category == "unknown" for some in answers) == 3
    joint = np.concatenate([base, novel + bias], axis=1).astype(np.float64)
    powers = np.exp(joint - joint.max(axis=1, keepdims=True))
    expected = powers / powers.sum(axis=1, keepdims=True)
    for row, some in enumerate(recognizer.predict(PROBES, top=99, unknown=False)):
        assert [one.probability for one in some] == pytest.approx(sorted(expected[row])[::-1], rel=1e-3)


def test_without_two_examples_of_a_category_nothing_is_tight():
    calibration = Calibration(bias_slope=-2.0, tightness=0.25)
    assert calibration.biases([1, 1]).tolist() == calibration.biases([1, 1], 0.25).tolist() == [0, 0]
    assert calibration.biases([1, 2], 0.75).tolist() == [-1, -1]
    assert calibration.unknown_offsets([1, 2], 0.75).tolist() == [-1, -1]


def test_extreme_scores_stay_numbers():
    assert unknown_probability(np.array([-1e9, 1e9]), UNKNOWN).tolist() == [1, 0]
    assert softmax(np.array([[1e30, 0.0, -1e30]], np.float32), 0.05).tolist() == [[1, 0, 0]]


def test_a_bias_moves_taught_scores_alone():
    base, novel = np.zeros((2, 3), np.float32), np.ones((2, 2), np.float32)
    assert joint_scores(base, novel, 0.5).tolist() == [[0, 0, 0, 1.5, 1.5]] * 2
    assert novel.tolist() == [[1, 1]] * 2


def test_a_calibration_travels_with_the_model_and_with_what_it_was_taught(tiny_model, half, tmp_path):
    recognizer, calibration = half
    save_model(tmp_path / "model.safetensors", tiny_model, calibration=calibration)
    assert read_header(tmp_path).calibration == calibration
    recognizer.save(tmp_path / "saved.safetensors")
    assert Recognizer.load(tmp_path / "saved.safetensors").predict(PROBES) == recognizer.predict(PROBES)
