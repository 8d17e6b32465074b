"""Correcting what a recogniser knew: examples for base categories, hidden ones, other names."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pictures import pixels_of
from plain import PROBES, PlainBackend, names_of, pictures, same
from recollect import Category, Recognizer
from recollect.backends.torch import TorchBackend
from recollect.errors import RecollectError, StoreError
from recollect.model.spec import Calibration
from recollect.modelfile import Header
from recollect.store import BaseChange

BASE = ["lion", "zebra", "Straße"]


@pytest.fixture(params=["memory", "sqlite"])
def place(request, tmp_path):
    return None if request.param == "memory" else tmp_path / "taught.sqlite"


@pytest.fixture
def recognizer(place):
    return Recognizer(PlainBackend(), place)


def first(recognizer, picture, **options):
    return recognizer.predict(picture, top=1, **options)[0]


def test_a_base_category_that_is_taught_answers_with_the_better_score(recognizer):
    before = recognizer.scores(PROBES)
    wrong = next(seed for seed in range(100) if first(recognizer, pixels_of(seed)).category != "lion")
    assert recognizer.teach("lion", pixels_of(wrong)) == Category(0, "lion", "base", 1)
    answer = first(recognizer, pixels_of(wrong))
    assert (answer.category, answer.origin) == ("lion", "base")
    after = recognizer.scores(PROBES)
    assert np.array_equal(after.base, before.base)
    assert after.novel.shape == (3, 1)
    assert after.categories[3] == after.categories[0] == Category(0, "lion", "base", 1)
    for row, answers in enumerate(recognizer.predict(PROBES, top=99)):
        best = np.maximum(after.base[row], [after.novel[row, 0], -np.inf, -np.inf]).astype(np.float64)
        expected = np.exp(best) / np.exp(best).sum()
        found = {one.category: one.probability for one in answers}
        assert found == pytest.approx(dict(zip(BASE, expected, strict=True)), rel=1e-4)


def test_a_renamed_base_category_does_not_resemble_itself(recognizer):
    recognizer.teach("lion", pixels_of(3))
    recognizer.rename("lion", "Löwe")
    for name in ("lion", "Löwe"):
        assert {other for other, _ in recognizer.resembles(name)} == {"zebra", "Straße"}


def test_its_taught_score_has_the_bias_of_taught_categories(make_model):
    model = make_model()
    calibration = Calibration(bias=1000.0)
    recognizer = Recognizer(TorchBackend(model, Header(spec=model.spec, calibration=calibration)))
    recognizer.teach("base-3", pixels_of(1))
    assert {one.category for one in (first(recognizer, picture) for picture in PROBES)} == {"base-3"}


def test_forgetting_removes_its_examples_and_restores_every_answer(recognizer):
    recognizer.teach("okapi", pixels_of(5))
    before, known, answers = recognizer.scores(PROBES), recognizer.categories(), recognizer.predict(PROBES)
    recognizer.teach("zebra", pictures(1, 2))
    assert [one.examples for one in recognizer.categories()] == [None, 2, None, 1]
    assert len(recognizer.examples("zebra")) == 2
    recognizer.forget("zebra")
    assert same(recognizer.scores(PROBES), before)
    assert (recognizer.categories(), recognizer.predict(PROBES)) == (known, answers)
    with pytest.raises(
        RecollectError, match="'zebra' is a base category, and nothing was taught to it: hide it"
    ):
        recognizer.forget("zebra")


def test_a_hidden_category_is_never_answered_and_its_scores_stay(recognizer, place):
    recognizer.teach("lion", pixels_of(1))
    before, answers = recognizer.scores(PROBES), recognizer.predict(PROBES, top=99)
    recognizer.hide("lion")
    assert recognizer.categories()[0] == Category(0, "lion", "base", 1, hidden=True)
    for among in ("all", "base"):
        for given_ in recognizer.predict([*PROBES, pixels_of(1)], top=99, among=among):
            assert {one.category for one in given_} == {"zebra", "Straße"}
            assert sum(one.probability for one in given_) == pytest.approx(1, abs=1e-5)
    assert same(recognizer.scores(PROBES)[:2], before[:2])
    if place is not None:
        assert Recognizer(PlainBackend(), place).categories()[0].hidden
    recognizer.unhide("lion")
    assert recognizer.predict(PROBES, top=99) == answers
    for name in BASE:
        recognizer.hide(name)
    with pytest.raises(RecollectError, match="there are no categories to choose from"):
        recognizer.predict(PROBES[0])


def test_only_base_categories_hide(recognizer):
    recognizer.teach("okapi", pixels_of(1))
    with pytest.raises(RecollectError, match="only base categories can be hidden: forget 'okapi' instead"):
        recognizer.hide("okapi")
    with pytest.raises(RecollectError, match="no base category is called 'yeti'"):
        recognizer.unhide("yeti")


def test_every_change_wants_the_spelling_that_is_shown(recognizer):
    recognizer.rename("lion", "Löwe")
    for change in (recognizer.hide, lambda name: recognizer.rename(name, "cat"), recognizer.examples):
        with pytest.raises(RecollectError, match="'LION' is a base category spelled 'Löwe': use that"):
            change("LION")
    assert names_of(recognizer) == ["Löwe", "zebra", "Straße"]


def test_a_base_category_is_shown_under_another_name(recognizer, place):
    before, answers = recognizer.scores(PROBES)[:2], recognizer.predict(PROBES, top=99)
    recognizer.rename("lion", "Löwe")
    assert names_of(recognizer) == ["Löwe", "zebra", "Straße"]
    assert {one.category for one in recognizer.predict(PROBES[0], top=99)} == {"Löwe", "zebra", "Straße"}
    assert same(recognizer.scores(PROBES)[:2], before)
    assert recognizer.teach("Löwe", pixels_of(1)).id == recognizer.teach("lion", pixels_of(2)).id == 0
    assert len(recognizer.examples("Löwe")) == 2
    if place is not None:
        assert names_of(Recognizer(PlainBackend(), place)) == ["Löwe", "zebra", "Straße"]
    recognizer.hide("Löwe")
    recognizer.rename("Löwe", "lioness")
    assert recognizer.categories()[0] == Category(0, "lioness", "base", 2, hidden=True)
    recognizer.unhide("lioness")
    recognizer.forget("lioness")
    recognizer.rename("lioness", "lion")
    assert recognizer.predict(PROBES, top=99) == answers
    assert recognizer._known.store.base_changes() == {}


def test_a_base_category_can_be_spelled_otherwise_and_taught(recognizer):
    recognizer.rename("lion", "Lion")
    assert recognizer.teach("Lion", pixels_of(1)) == Category(0, "Lion", "base", 1)
    recognizer.rename("Lion", "LION")
    assert recognizer.teach("LION", pixels_of(2)) == Category(0, "LION", "base", 2)


def test_no_two_categories_show_one_name(recognizer):
    recognizer.teach("okapi", pixels_of(1))
    recognizer.rename("lion", "Löwe")
    for old, new in (
        ("zebra", "LÖWE"),
        ("zebra", "Lion"),
        ("zebra", "okapi"),
        ("okapi", "Löwe"),
        ("okapi", "lion"),
    ):
        with pytest.raises(RecollectError, match="already"):
            recognizer.rename(old, new)
    with pytest.raises(RecollectError, match="is a base category spelled 'Löwe'"):
        recognizer.teach("löwe", pixels_of(1))
    with pytest.raises(StoreError, match="no known category"):
        recognizer.rename("zebra", "Unknown")
    assert names_of(recognizer) == ["Löwe", "zebra", "Straße", "okapi"]


def test_a_change_of_a_category_that_the_model_does_not_have_is_passed_over(tmp_path):
    with Recognizer(PlainBackend(), tmp_path / "taught.sqlite") as recognizer:
        recognizer.teach("okapi", pictures(1))
        recognizer._known.store.change_base("yeti", BaseChange("bigfoot"))
    with (
        Recognizer(PlainBackend(), tmp_path / "taught.sqlite") as recognizer,
        pytest.raises(RecollectError, match="no category called 'bigfoot' was taught"),
    ):
        recognizer.forget("bigfoot")


def test_two_recognisers_of_one_file_agree_about_base_categories(tmp_path):
    one, other = (Recognizer(PlainBackend(), tmp_path / "taught.sqlite") for _ in range(2))
    one.hide("lion")
    other.rename("zebra", "Zebra crossing")
    other.teach("lion", pixels_of(1))
    assert one.categories() == other.categories()
    assert one.predict(PROBES) == other.predict(PROBES)


def test_a_bundle_carries_all_of_it(make_model, tmp_path):
    recognizer = Recognizer(TorchBackend(make_model()))
    recognizer.teach("base-1", pictures(1, 2))
    recognizer.teach("okapi", pixels_of(3))
    recognizer.hide("base-2")
    recognizer.rename("base-1", "Erste")
    recognizer.save(tmp_path / "zoo.safetensors")
    for store in (None, tmp_path / "new.sqlite"):
        again = Recognizer.load(tmp_path / "zoo.safetensors", store)
        again.teach("tapir", pixels_of(4))
        again.forget("tapir")
        assert again.categories() == recognizer.categories()
        assert again.predict(PROBES, top=99) == recognizer.predict(PROBES, top=99)
        again.rename("Erste", "base-1")
        again.unhide("base-2")
        again.forget("base-1")
        assert names_of(again)[:7] == [f"base-{index}" for index in range(7)]


names = st.sampled_from(["lion", "zebra", "Straße", "okapi", "tapir", "Löwe"])
steps = st.lists(
    st.tuples(st.sampled_from(["teach", "teach", "forget", "hide", "unhide", "rename"]), names, names),
    max_size=12,
)


@settings(max_examples=40)
@given(steps=steps)
def test_whatever_was_done_undoing_it_restores_every_answer(steps):
    recognizer = Recognizer(PlainBackend())
    base, answers, known = recognizer.scores(PROBES).base, recognizer.predict(PROBES), recognizer.categories()
    for number, (step, name, other) in enumerate(steps):
        arguments = {"teach": (name, pixels_of(number)), "rename": (name, other)}.get(step, (name,))
        try:
            getattr(recognizer, step)(*arguments)
        except RecollectError:
            continue
        assert np.array_equal(recognizer.scores(PROBES).base, base)
        shown = names_of(recognizer)
        assert len(set(shown)) == len(shown)
    for category in recognizer.categories():
        if category.examples:
            recognizer.forget(category.name)
        if category.hidden:
            recognizer.unhide(category.name)
    for place, name in enumerate(BASE):
        shown = recognizer.categories()[place].name
        if shown != name:
            recognizer.rename(shown, name)
    assert (recognizer.categories(), recognizer.predict(PROBES)) == (known, answers)
