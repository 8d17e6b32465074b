import numpy as np
import pytest
from PIL import Image

from recollect.evaluation.confusion import (
    CULPRITS,
    MOST,
    UNKNOWN,
    WRITTEN,
    Confusion,
    confusion_figure,
    shown_shares,
)
from recollect.evaluation.plots import save_figure


def confusion_of(categories, others=3, seed=0):
    """Counts of pictures of some categories taken for them or, in the last columns, for others."""
    rng = np.random.default_rng(seed)
    counts = rng.integers(0, 4, (categories, categories + others)) + 30 * np.eye(
        categories, categories + others, dtype=np.int64
    )
    names = [f"_category ${index}$" for index in range(categories)]
    # The model knows them in another order than the folder.
    order = rng.permutation(categories + others)
    predicted = [*names, *(f"other {index}" for index in range(others))]
    return Confusion(counts[:, order], tuple(names), tuple(predicted[place] for place in order))


def test_shares_are_those_of_each_row():
    confusion = confusion_of(5)
    names, answers, shares = shown_shares(confusion)
    assert names == list(confusion.true)
    assert answers[:5] == names
    assert sorted(answers[5:]) == ["other 0", "other 1", "other 2"]
    for row, name in enumerate(names):
        total = sum(confusion.counts[row])
        for column, other in enumerate(answers):
            count = confusion.counts[row, confusion.predicted.index(other)]
            assert shares[row, column] == pytest.approx(100 * count / total), (name, other)
    np.testing.assert_allclose(shares.sum(axis=1), 100)


def test_the_real_culprits_are_shown_and_then_unknown():
    others = CULPRITS + 4
    predicted = ("ant", *(f"c{number}" for number in range(others)), UNKNOWN)
    counts = np.array([[50, *range(others), 7]])
    names, answers, shares = shown_shares(Confusion(counts, ("ant",), predicted))
    worst = [f"c{number}" for number in range(others - 1, others - 1 - CULPRITS, -1)]
    assert names == ["ant"]
    assert answers == ["ant", *worst, UNKNOWN, "(other)"]
    assert shares.sum() == pytest.approx(100)
    assert shares[0, -1] == pytest.approx(100 * (1 + 2 + 3) / counts.sum())


def test_for_what_nobody_taught_unknown_is_right():
    counts = np.array([[8, 0, 1], [4, 0, 6]])
    confusion = Confusion(counts, ("ant", "yeti"), ("ant", "bee", UNKNOWN))
    assert confusion.own().tolist() == [0, 2]
    assert shown_shares(confusion)[1] == ["ant", UNKNOWN]
    labels = confusion_figure(confusion).axes[0].get_yticklabels()
    assert [label.get_text() for label in labels] == ["ant", "yeti (not known)"]


def test_of_many_categories_those_with_the_most_mistakes_are_shown():
    count = MOST + 3
    counts = np.diag(np.full(count, 50))
    counts[2:, 0] = 1  # every other category is taken for the first at times
    counts[1, 1] = 50
    counts[4, 5] = counts[6, 7] = 9
    counts[8, 0] = 0  # neither 1 nor 8 are ever mistaken
    names = tuple(f"c{index}" for index in range(count))
    shown, answers, shares = shown_shares(Confusion(counts, names, names))
    assert len(shown) == MOST
    assert {"c0", "c4", "c5", "c6", "c7"} <= set(shown)
    assert not {"c1", "c8"} & set(shown)
    assert shown == sorted(shown, key=names.index)
    assert answers == shown, "nothing was taken for the others"
    assert shares.shape == (MOST, MOST)
    np.testing.assert_allclose(shares.sum(axis=1), 100)
    figure = confusion_figure(Confusion(counts, names, names))
    assert f"the {MOST} of {count} categories with the most mistakes" in figure.axes[0].get_title()


@pytest.mark.parametrize("categories", [1, 3, WRITTEN, WRITTEN + 1])
def test_cells_hold_their_shares_while_there_is_room(categories, tmp_path):
    confusion = confusion_of(categories)
    names, answers, shares = shown_shares(confusion)
    figure = confusion_figure(confusion)
    axes = figure.axes[0]
    np.testing.assert_allclose(axes.images[0].get_array(), shares)
    assert [label.get_text()[-7:] for label in axes.get_xticklabels()][-3:] == answers[-3:]
    assert len(axes.get_yticklabels()) == len(names)
    written = {text.get_position(): text.get_text() for text in axes.texts}
    expected = {
        (column, row): f"{share:.0f}" for (row, column), share in np.ndenumerate(shares) if share >= 0.5
    }
    assert written == (expected if categories <= WRITTEN else {})
    save_figure(figure, tmp_path / "confusion.png")
    with Image.open(tmp_path / "confusion.png") as image:
        assert image.format == "PNG"
        assert 300 < image.width < 3000


def test_there_is_no_column_of_others_where_nothing_is_taken_for_them():
    names = ("ant", "bee")
    axes = confusion_figure(Confusion(np.array([[3, 1], [0, 4]]), names, names)).axes[0]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["ant", "bee"]
    assert [(text.get_position(), text.get_text()) for text in axes.texts] == [
        ((0, 0), "75"),
        ((1, 0), "25"),
        ((1, 1), "100"),
    ]
