import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recollect.evaluation.reliability import auroc, calibration_error, reliability

shares = st.floats(0, 1, width=32)


def slow_error(confidence, right, bins):
    """The definition, answer by answer."""
    error = 0.0
    for number in range(bins):
        low, high = number / bins, (number + 1) / bins
        inside = [
            (c, r)
            for c, r in zip(confidence, right, strict=True)
            if low < c <= high or (number == 0 and c == 0)
        ]
        if inside:
            mean = sum(c for c, _ in inside) / len(inside)
            accuracy = sum(r for _, r in inside) / len(inside)
            error += len(inside) / len(confidence) * abs(accuracy - mean)
    return error


@given(st.lists(st.tuples(shares, st.booleans()), min_size=1, max_size=60))
def test_the_calibration_error_is_its_definition(answers):
    # Away from the edges of bins, where k / 15 is not the same number for every way to compute it.
    confidence = [min(max(c, 1e-3), 0.999) for c, _ in answers]
    confidence = [c + 1e-4 if abs(c * 15 - round(c * 15)) < 1e-5 else c for c in confidence]
    right = [r for _, r in answers]
    found = calibration_error(np.array(confidence), np.array(right))
    assert found == pytest.approx(slow_error(confidence, right, 15), abs=1e-9)


def test_honest_probabilities_have_no_error_and_boasting_ones_have_all_of_it():
    rng = np.random.default_rng(0)
    confidence = rng.random(200_000)
    assert calibration_error(confidence, rng.random(200_000) < confidence) < 0.01
    assert calibration_error(np.ones(10), np.zeros(10, bool)) == 1


def test_bins_hold_every_answer_once_the_edges_included():
    groups = reliability(np.array([0.0, 1.0, 0.5, 0.51]), np.array([True, True, False, True]), bins=2)
    assert groups.counts.tolist() == [2, 2]
    assert groups.accuracy.tolist() == [0.5, 1.0]
    assert groups.confidence == pytest.approx([0.25, 0.755])


numbers = st.lists(st.integers(-5, 5), min_size=1, max_size=30)  # few values, so that there are ties


@given(known=numbers, unknown=numbers)
def test_auroc_is_the_share_of_pairs_in_the_right_order(known, unknown):
    pairs = [(k > u) + 0.5 * (k == u) for k in known for u in unknown]
    found = auroc(np.array(known, float), np.array(unknown, float))
    assert found == pytest.approx(sum(pairs) / len(pairs))
