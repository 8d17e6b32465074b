"""What a recogniser answers, and that teaching and forgetting leave every other score alone."""

from collections import deque

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

import recollect
from pictures import pixels_of, write_picture
from plain import PROBES, PlainBackend, names_of, pictures, same
from recollect import Recognizer
from recollect.backends.torch import TorchBackend
from recollect.errors import ModelError, PictureError, RecollectError
from recollect.modelfile import save_model

KINDS = [
    *((classifier, generator) for classifier in ("cosine", "dot") for generator in ("mean", "attention")),
    ("cosine", "attention", "shot-aware"),
]


@pytest.fixture(scope="module", params=KINDS, ids=" ".join)
def model(request, make_model):
    classifier, generator, *aware = request.param
    return make_model(classifier=classifier, generator=generator, shot_aware=bool(aware))


@pytest.fixture
def recognizer(tiny_model):
    return Recognizer(TorchBackend(tiny_model))


names = st.sampled_from(["okapi", "tapir", "quoll", "saola"])

examples = st.lists(st.integers(0, 99), min_size=1, max_size=3)

teachings = st.lists(st.tuples(names, examples), max_size=4)


@settings(max_examples=30)
@given(before=teachings, after=teachings, data=st.data())
def test_teaching_leaves_base_scores_bit_identical_and_forgetting_restores_every_score(
    model, before, after, data
):
    recognizer = Recognizer(TorchBackend(model))
    untaught = recognizer.scores(PROBES)[0]
    for name, seeds in before:
        recognizer.teach(name, pictures(*seeds))
    known, start = recognizer.categories(), recognizer.scores(PROBES)
    new = [(f"new {name}", seeds) for name, seeds in after]
    for name, seeds in new:
        recognizer.teach(name, pictures(*seeds))
        assert np.array_equal(recognizer.scores(PROBES)[0], untaught)
    for name in data.draw(st.permutations(sorted({name for name, _ in new}))):
        recognizer.forget(name)
        assert np.array_equal(recognizer.scores(PROBES)[0], untaught)
    assert recognizer.categories() == known
    assert same(recognizer.scores(PROBES), start)


@settings(max_examples=30)
@given(seeds=st.lists(st.integers(0, 99), min_size=2, max_size=5, unique=True), data=st.data())
def test_one_by_one_or_all_at_once_in_any_order_gives_the_same_category(model, seeds, data):
    order = data.draw(st.permutations(seeds))
    cut = data.draw(st.integers(1, len(seeds) - 1))
    at_once, one_by_one, in_parts = (Recognizer(TorchBackend(model)) for _ in range(3))
    at_once.teach("okapi", pictures(*seeds))
    for seed in order:
        one_by_one.teach("okapi", pixels_of(seed))
    in_parts.teach("okapi", pictures(*order[:cut]))
    in_parts.teach("okapi", pictures(*order[cut:]))
    expected = at_once.scores(PROBES)[1]
    for other in (one_by_one, in_parts):
        np.testing.assert_allclose(other.scores(PROBES)[1], expected, rtol=1e-4, atol=1e-4)


def test_scores_are_the_models_joint_scores(model):
    support = {"okapi": (1, 2, 3), "tapir": (4, 5, 6)}
    recognizer = Recognizer(TorchBackend(model))
    for name, seeds in support.items():
        recognizer.teach(name, pictures(*seeds))
    with torch.inference_mode():
        examples = torch.stack(
            [model.embed(torch.from_numpy(np.stack(pictures(*seeds)))) for seeds in support.values()]
        )
        queries = model.embed(torch.from_numpy(np.stack(PROBES)))
        base, novel = model.joint_scores(examples[None], queries[None])
    found = recognizer.scores(PROBES)
    np.testing.assert_allclose(found[0], base[0].numpy(), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(found[1], novel[0].numpy(), rtol=1e-4, atol=1e-4)


@settings(max_examples=30)
@given(before=st.integers(0, 3), after=st.integers(1, 150), data=st.data())
def test_other_taught_categories_do_not_change_a_bit_of_a_taught_ones_scores(before, after, data):
    recognizer = Recognizer(PlainBackend())
    for number in range(before):
        recognizer.teach(f"earlier {number}", pixels_of(number))
    recognizer.teach("okapi", pictures(1001, 1002))
    base, novel, _ = recognizer.scores(PROBES)
    for number in range(after):
        recognizer.teach(f"later {number}", pixels_of(number))
    assert np.array_equal(recognizer.scores(PROBES)[1][:, : before + 1], novel)
    others = [name for name in names_of(recognizer)[3:] if name != "okapi"]
    for name in data.draw(st.lists(st.sampled_from(others), unique=True)):
        recognizer.forget(name)
    column = names_of(recognizer).index("okapi") - 3
    assert np.array_equal(recognizer.scores(PROBES)[1][:, column], novel[:, before])
    assert np.array_equal(recognizer.scores(PROBES)[0], base)


def test_a_picture_taught_is_recognised(recognizer):
    for seed, name in enumerate(("okapi", "tapir", "quoll")):
        recognizer.teach(name, pixels_of(seed))
    for seed, name in enumerate(("okapi", "tapir", "quoll")):
        novel = [answer for answer in recognizer.predict(pixels_of(seed), top=99) if answer.origin == "novel"]
        assert novel[0].category == name


def test_predictions_are_the_softmax_of_all_scores_sorted(model):
    recognizer = Recognizer(TorchBackend(model))
    recognizer.teach("okapi", pictures(1, 2))
    recognizer.teach("tapir", pictures(3))
    scores = np.concatenate(recognizer.scores(PROBES)[:2], axis=1).astype(np.float64)
    expected = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
    for row, answers in enumerate(recognizer.predict(PROBES, top=99)):
        assert sorted(answer.category for answer in answers) == sorted(names_of(recognizer))
        found = [answer.probability for answer in answers]
        assert found == sorted(found, reverse=True)
        for answer in answers:
            column = names_of(recognizer).index(answer.category)
            assert answer.probability == pytest.approx(expected[row, column], rel=1e-3, abs=1e-6)
            assert answer.origin == ("novel" if answer.category in {"okapi", "tapir"} else "base")


@pytest.mark.parametrize("top", [1, 3, 8, 50])
def test_only_the_best_are_told_and_sum_to_no_more_than_one(recognizer, top):
    recognizer.teach("okapi", pixels_of(1))
    answers = recognizer.predict(PROBES[0], top=top)
    assert len(answers) == min(top, 8)
    assert answers == recognizer.predict(PROBES[0], top=50)[:top]
    assert sum(answer.probability for answer in answers) <= 1 + 1e-6


def test_categories_to_choose_from_are_named_rightly(tiny_model):
    with pytest.raises(RecollectError, match="among 'old'"):
        Recognizer(TorchBackend(tiny_model)).predict(np.zeros((32, 32, 3), np.uint8), among="old")


def test_one_picture_gives_one_list_and_many_give_many(recognizer, tmp_path):
    path = write_picture(tmp_path / "a.png", 1)
    for one in (pixels_of(1), path, str(path), path.read_bytes()):
        assert recognizer.predict(one, top=1)[0] == recognizer.predict(pixels_of(1), top=1)[0]
    stack = np.stack(pictures(1, 2))
    expected = recognizer.predict(pictures(1, 2))
    for many in (tuple(pictures(1, 2)), stack, deque(pictures(1, 2))):
        assert recognizer.predict(many) == expected
    assert len(recognizer.predict([path])) == 1


def test_pictures_of_any_size_are_prepared_as_the_model_asks(recognizer):
    large = np.repeat(np.repeat(pixels_of(1), 4, axis=0), 4, axis=1)
    assert recognizer.scores(large)[0].shape == (1, 7)


def test_categories_come_base_first_then_in_the_order_of_teaching(recognizer, tiny_spec):
    for name in ("okapi", "tapir", "okapi", "quoll"):
        recognizer.teach(name, pixels_of(1))
    assert names_of(recognizer) == [*tiny_spec.categories, "okapi", "tapir", "quoll"]
    recognizer.forget("okapi")
    assert names_of(recognizer) == [*tiny_spec.categories, "tapir", "quoll"]


def test_more_examples_add_to_a_category(recognizer):
    recognizer.teach("okapi", pixels_of(1))
    one = recognizer.scores(PROBES)[1]
    recognizer.teach("okapi", pixels_of(2))
    assert recognizer.scores(PROBES)[1].shape == one.shape
    assert not np.array_equal(recognizer.scores(PROBES)[1], one)


@pytest.mark.parametrize("name", ["okapi", "new"])
def test_a_bad_picture_is_named_and_leaves_everything_as_it_was(recognizer, tmp_path, name):
    recognizer.teach("okapi", pictures(1, 2))
    before, known = recognizer.scores(PROBES), recognizer.categories()
    bad = tmp_path / "bad.jpg"
    bad.write_bytes(b"no picture")
    cut = tmp_path / "cut.png"
    cut.write_bytes(write_picture(tmp_path / "whole.png", 1).read_bytes()[:-60])
    huge = tmp_path / "huge.ppm"
    huge.write_bytes(b"P6 100000 100000 255\n" + bytes(100))
    for refused, named in (
        ([pixels_of(3), cut], r"cut\.png: the picture is cut short or damaged"),
        ([pixels_of(3), huge], r"huge\.ppm: .*too large"),
        ([pixels_of(3), np.zeros((0, 0, 3), np.uint8)], "picture 2 of 2: 0 × 0 pixels"),
        (Image.new("RGB", (0, 0)), "the picture: 0 × 0 pixels"),
        ([pixels_of(3), huge.read_bytes()], "picture 2 of 2: .*too large"),
        ([pixels_of(3), pixels_of(4).astype(np.float32)], "picture 2 of 2: expected an array of uint8"),
        ([pixels_of(3), bad], r"bad\.jpg"),
        (bad, r"bad\.jpg"),
        ([tmp_path / "nowhere.png", pixels_of(3)], r"nowhere\.png"),
        ([pixels_of(3), 7], "picture 2 of 2"),
        ([], "no pictures"),
    ):
        for call in (recognizer.scores, recognizer.predict, lambda bad: recognizer.teach(name, bad)):
            with pytest.raises(PictureError, match=named):
                call(refused)
    assert recognizer.categories() == known
    assert same(recognizer.scores(PROBES), before)


def test_wrong_names_are_refused_and_change_nothing(recognizer):
    def rename(name):
        recognizer.rename(name, "tapir")

    recognizer.teach("okapi", pixels_of(1))
    before, known = recognizer.scores(PROBES), recognizer.categories()
    for name, complaint in (
        ("BASE-3", "'BASE-3' is a base category"),
        (" ｂａｓｅ-3 ", "is a base category"),
        ("Okapi", "'Okapi' is taught already as 'okapi'"),
        ("ｏｋａｐｉ", "is taught already as 'okapi'"),
        ("", "not empty"),
        (" \t", "not empty"),
        ("x" * 201, "'x{20}'… has 201 characters: at most 200"),
        ("oka\x1b[31mpi", r"'oka\\x1b\[31mpi' holds characters that cannot be printed"),
        (7, "is text, not int"),
    ):
        with pytest.raises(RecollectError, match=complaint):
            recognizer.teach(name, pixels_of(2))
        if not complaint.endswith("'okapi'"):  # a category may change its own spelling
            with pytest.raises(RecollectError, match=complaint):
                recognizer.rename("okapi", name)
    for name, complaint in (
        ("BASE-3", "'BASE-3' is a base category spelled 'base-3': use that spelling"),
        ("yeti", "'yeti' (was taught|is known); taught are: okapi"),
        ("OKAPI", "'OKAPI' (was taught|is known); it is spelled 'okapi'"),
        ("", "not empty"),
    ):
        for call in (recognizer.forget, recognizer.explain, recognizer.examples, rename):
            with pytest.raises(RecollectError, match=complaint):
                call(name)
    for name, complaint in (
        ("BASE-3", "spelled 'base-3'"),
        ("yeti", "no base category is called 'yeti'"),
        ("okapi", "only base categories can be hidden"),
        ("", "not empty"),
    ):
        with pytest.raises(RecollectError, match=complaint):
            recognizer.hide(name)
    assert recognizer.categories() == known
    assert same(recognizer.scores(PROBES), before)


def test_names_that_are_nearly_right_are_offered(recognizer):
    recognizer.teach("okapi", pixels_of(1))
    for call, name, expected in (
        (recognizer.forget, "okappi", "no category called 'okappi' was taught; did you mean 'okapi'?"),
        (recognizer.hide, "bas-3", "no base category is called 'bas-3'; did you mean 'base-3'"),
        (lambda name: recognizer.rename(name, "x"), "bse-3", "'bse-3' is known; did you mean 'base-3'"),
    ):
        with pytest.raises(RecollectError) as error:
            call(name)
        assert expected in str(error.value)


def test_forgetting_twice_says_that_nothing_is_taught(recognizer):
    recognizer.teach("okapi", pixels_of(1))
    recognizer.forget("okapi")
    with pytest.raises(RecollectError, match="taught are: none"):
        recognizer.forget("okapi")


def test_two_recognisers_of_one_model_do_not_share_what_they_are_taught(tiny_model):
    backend = TorchBackend(tiny_model)
    one, other = Recognizer(backend), Recognizer(backend)
    one.teach("okapi", pixels_of(1))
    assert "okapi" not in names_of(other)


@pytest.mark.parametrize("place", ["file", "folder", "text"])
def test_a_model_loads_from_its_file_and_from_its_run_folder(tmp_path, tiny_model, recognizer, place):
    path = tmp_path / "model.safetensors"
    save_model(path, tiny_model)
    named = {"file": path, "folder": tmp_path, "text": str(path)}[place]
    assert same(recollect.Recognizer.load(named).scores(PROBES), recognizer.scores(PROBES))


def test_a_model_that_is_not_there_is_named(tmp_path):
    with pytest.raises(ModelError, match="nowhere"):
        Recognizer.load(tmp_path / "nowhere")


def test_an_example_added_and_taken_away_leaves_every_bit(model):
    recognizer = Recognizer(TorchBackend(model))
    recognizer.teach("okapi", pictures(1, 2, 3))
    recognizer.teach("tapir", pictures(4))
    before = recognizer.scores(PROBES)
    recognizer.teach("okapi", pictures(5))
    assert not np.array_equal(recognizer.scores(PROBES)[1], before[1])
    recognizer.forget_example(recognizer.examples("okapi")[-1].id)
    assert same(recognizer.scores(PROBES), before)


@settings(max_examples=30)
@given(
    kept=st.lists(st.integers(0, 99), min_size=1, max_size=5, unique=True),
    passing=st.lists(st.integers(100, 199), max_size=4, unique=True),
    data=st.data(),
)
def test_what_was_taken_away_and_the_order_of_the_rest_do_not_matter(model, kept, passing, data):
    expected, recognizer = Recognizer(TorchBackend(model)), Recognizer(TorchBackend(model))
    expected.teach("okapi", pictures(*kept))
    ids = {}
    for seed in data.draw(st.permutations([*kept, *passing])):
        recognizer.teach("okapi", pixels_of(seed))
        ids[seed] = recognizer.examples("okapi")[-1].id
    for seed in data.draw(st.permutations(passing)):
        recognizer.forget_example(ids[seed])
    assert recognizer.categories()[-1].examples == len(kept)
    np.testing.assert_allclose(recognizer.scores(PROBES)[1], expected.scores(PROBES)[1], rtol=1e-4, atol=1e-4)


def test_explanations_are_the_attention_of_the_model(make_model):
    model = make_model(generator="attention")
    recognizer = Recognizer(TorchBackend(model))
    recognizer.teach("okapi", pictures(1, 2, 3))
    with torch.inference_mode():
        z = torch.nn.functional.normalize(model.embed(torch.from_numpy(np.stack(pictures(1, 2, 3)))))
        queries = torch.nn.functional.normalize(model.generator.phi_q(z))
        keys = torch.nn.functional.normalize(model.generator.keys)
        logits = model.generator.sharpness * queries @ keys.T
        expected = logits.softmax(dim=1).mean(dim=0).tolist()
    told = recognizer.explain("okapi", top=99)
    assert {name for name, _ in told} == {f"base-{index}" for index in range(7)}
    assert sum(share for _, share in told) == pytest.approx(1, abs=1e-5)
    shares = [share for _, share in told]
    assert shares == sorted(shares, reverse=True)
    assert [dict(told)[f"base-{index}"] for index in range(7)] == pytest.approx(expected, abs=1e-5)
    assert recognizer.explain("okapi", top=2) == told[:2]


@pytest.mark.parametrize("generator", ["mean", "average"])
def test_without_attention_a_category_is_explained_by_what_it_resembles(make_model, generator):
    recognizer = Recognizer(TorchBackend(make_model(generator=generator)))
    recognizer.teach("okapi", pictures(1, 2))
    before = recognizer.predict(pictures(1, 2), top=99, unknown=False)
    recognizer.teach("double", pictures(1, 2))
    told = recognizer.explain("double", top=99)
    assert told == recognizer.resembles("double", top=99)
    assert [name for name, _ in recognizer.resembles("double", top=1)] == [told[0][0]]
    for name, share in told:  # what its pictures would be called without it
        chances = [one.probability for answers in before for one in answers if one.category == name]
        assert share == pytest.approx(np.mean(chances), abs=1e-5)
