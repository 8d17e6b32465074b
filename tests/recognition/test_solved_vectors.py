"""Taught categories that are solved together: the same set gives the same bits, whatever came before."""

import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from pictures import pixels_of
from plain import PROBES, names_of, pictures, same
from recollect import Recognizer
from recollect.backends.torch import TorchBackend
from recollect.commands.explain import explain, explain_table
from recollect.commands.opening import Target
from recollect.errors import ModelError
from recollect.model.generator import RIDGE, STEP
from recollect.modelfile import load_model, read_header, save_model
from recollect.recognition.ridge import SolvedVectors

NAMES = ["okapi", "tapir", "quoll"]


class OneByOne(TorchBackend):
    """A feature never depends on what goes through the extractor beside it."""

    def embed(self, pixels):
        return np.concatenate([super(OneByOne, self).embed(one[None]) for one in pixels])


@pytest.fixture(scope="module")
def model(make_model):
    return make_model(generator="ridge")


def recognizer_of(model, store=None):
    return Recognizer(OneByOne(model), store)


class OneByOneRecognizer(Recognizer):
    def __init__(self, backend, store=None):
        super().__init__(OneByOne(backend.model, backend.header), store)


def plain_vectors(model, taught):
    """The vectors (taught, d) of lists of seeds by the formula, in double precision."""
    width = model.width
    upper = np.zeros((width, width))
    upper[np.triu_indices(width)] = model.generator.moments.numpy()
    matrix = upper + upper.T - np.diag(np.diag(upper)) + RIDGE * np.eye(width)
    sums = []
    for seeds in taught:
        with torch.inference_mode():
            z = model.embed(torch.from_numpy(np.stack(pictures(*seeds)))).double().numpy()
        z = np.rint(z / np.linalg.norm(z, axis=1, keepdims=True) / STEP) * STEP
        matrix += z.T @ z
        sums.append(z.sum(axis=0))
    vectors = np.linalg.solve(matrix, np.array(sums).T).T
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def test_scores_are_those_of_the_formula(model):
    recognizer = recognizer_of(model)
    taught = {"okapi": (1, 2, 3), "tapir": (4,), "quoll": (5, 6)}
    for name, seeds in taught.items():
        recognizer.teach(name, pictures(*seeds))
    features = recognizer.features(PROBES)
    cosines = features / np.linalg.norm(features, axis=1, keepdims=True)
    expected = model.classifier.scale.item() * cosines @ plain_vectors(model, taught.values()).T
    np.testing.assert_allclose(recognizer.scores(PROBES).novel, expected, rtol=1e-3, atol=1e-3)
    with torch.inference_mode():
        support = torch.from_numpy(recognizer.features(pictures(1, 2, 3, 4, 5, 6))).view(1, 3, 2, -1)
        _, novel = model.joint_scores(support, torch.from_numpy(features)[None])
    pairs = recognizer_of(model)
    for number, name in enumerate(NAMES):
        pairs.teach(name, pictures(2 * number + 1, 2 * number + 2))
    np.testing.assert_allclose(pairs.scores(PROBES).novel, novel[0], rtol=1e-3, atol=1e-3)


steps = st.lists(
    st.one_of(
        st.tuples(
            st.just("teach"),
            st.sampled_from(NAMES),
            st.lists(st.integers(0, 20), min_size=1, max_size=3),
        ),
        st.tuples(st.just("forget"), st.sampled_from(NAMES), st.none()),
        st.tuples(st.just("forget_example"), st.sampled_from(NAMES), st.integers(0, 9)),
        st.tuples(st.just("rename"), st.sampled_from(NAMES), st.sampled_from(NAMES)),
        st.tuples(st.sampled_from(["ask", "reopen", "save"]), st.none(), st.none()),
    ),
    max_size=12,
)


@settings(max_examples=40)
@given(steps=steps, data=st.data())
def test_the_same_set_gives_the_same_bits_whatever_came_before(model, steps, data):
    with tempfile.TemporaryDirectory() as folder:
        compare_with_one_taught_at_once(model, steps, data, Path(folder))


def compare_with_one_taught_at_once(model, steps, data, folder):
    recognizer, kept = recognizer_of(model, folder / "first.sqlite"), {}
    base = recognizer.scores(PROBES).base
    for number, (step, name, more) in enumerate(steps):
        if step in {"reopen", "save"}:
            store = recognizer._known.place if step == "reopen" else folder / f"{number}.sqlite"
            recognizer.save(folder / "bundle.safetensors")
            recognizer.close()
            recognizer = OneByOneRecognizer.load(folder / "bundle.safetensors", store)
        elif step == "teach":
            recognizer.teach(name, pictures(*more))
            kept.setdefault(name, []).extend(more)
        elif step == "ask":
            assert np.array_equal(recognizer.scores(PROBES).base, base)
        elif not kept.get(name):
            continue
        elif step == "forget":
            recognizer.forget(name)
            del kept[name]
        elif step == "forget_example":
            place = more % len(kept[name])
            recognizer.forget_example(recognizer.examples(name)[place].id)
            del kept[name][place]
        elif not kept.get(more):
            recognizer.rename(name, more)
            kept[more] = kept.pop(name)
    at_once = recognizer_of(model)
    for name in data.draw(st.permutations(sorted(filter(kept.get, kept)))):
        at_once.teach(name, pictures(*data.draw(st.permutations(kept[name]))))
    assert np.array_equal(recognizer.scores(PROBES).base, base)
    assert by_name(recognizer) == by_name(at_once)


def by_name(recognizer):
    """The bits of every taught category's scores."""
    base, novel, _ = recognizer.scores(PROBES)
    taught = names_of(recognizer)[base.shape[1] :]
    return {name: column.tobytes() for name, column in zip(taught, novel.T, strict=True)}


def test_every_change_is_felt_by_all_taught_categories_and_forgetting_restores_them(model):
    recognizer = recognizer_of(model)
    recognizer.teach("okapi", pictures(1, 2))
    alone = recognizer.scores(PROBES)
    recognizer.teach("tapir", pictures(3))
    assert not np.array_equal(recognizer.scores(PROBES).novel[:, :1], alone.novel)
    recognizer.forget("tapir")
    assert same(recognizer.scores(PROBES)[:2], alone[:2])


def test_what_another_process_teaches_changes_the_others_too(model, tmp_path):
    ours, theirs = (recognizer_of(model, tmp_path / "taught.sqlite") for _ in range(2))
    ours.teach("okapi", pictures(1, 2))
    before = theirs.scores(PROBES)
    ours.teach("tapir", pictures(3))
    assert same(ours.scores(PROBES)[:2], theirs.scores(PROBES)[:2])
    theirs.forget("tapir")
    assert same(ours.scores(PROBES)[:2], before[:2])


def test_a_bundle_and_a_store_bring_the_same_bits_back(model, tmp_path):
    save_model(tmp_path / "model.safetensors", model)
    with Recognizer.load(tmp_path, tmp_path / "taught.sqlite") as recognizer:
        recognizer.teach("okapi", pictures(1, 2))
        recognizer.teach("tapir", pictures(3))
        before = recognizer.scores(PROBES)
        recognizer.save(tmp_path / "bundle.safetensors")
    for loaded in (
        Recognizer.load(tmp_path / "bundle.safetensors"),
        Recognizer.load(tmp_path, tmp_path / "taught.sqlite"),
    ):
        with loaded:
            assert same(loaded.scores(PROBES)[:2], before[:2])


def test_a_model_file_keeps_second_moments_also_in_half_precision(model, tmp_path):
    path = tmp_path / "model.safetensors"
    save_model(path, model)
    assert torch.equal(load_model(path).generator.moments, model.generator.moments)
    weights = load_file(path)
    weights["generator.moments"] = weights["generator.moments"].half()
    save_file(weights, path, metadata={"recollect": read_header(path).model_dump_json()})
    torch.testing.assert_close(
        load_model(path).generator.moments, model.generator.moments, rtol=1e-3, atol=1e-3
    )


def test_moments_that_no_pictures_have_are_refused(make_model):
    model = make_model(generator="ridge")
    model.generator.moments.neg_()
    recognizer = recognizer_of(model)
    recognizer.teach("okapi", pixels_of(1))
    for _ in range(2):  # the second time too
        with pytest.raises(ModelError, match="second moments in the model are damaged"):
            recognizer.scores(PROBES)


def test_explanations_name_what_a_category_competes_with(model, tmp_path):
    save_model(tmp_path / "model.safetensors", model)
    target = Target(tmp_path)
    with target.open() as recognizer:
        recognizer.teach("okapi", pictures(1, 2))
        recognizer.teach("double", pictures(1, 2))
        recognizer.teach("tapir", pictures(3))
        told = recognizer.explain("okapi", top=99)
        names = [category.name for category in recognizer.categories()]
        scores = np.concatenate(recognizer.scores(pictures(1, 2))[:2], axis=1)
    assert told[0][0] == "double"
    assert {name for name, _ in told} == {*model.spec.categories, "double", "tapir"}
    others = np.delete(scores, names.index("okapi"), axis=1)
    chances = np.exp(others) / np.exp(others).sum(axis=1, keepdims=True)
    assert sorted(share for _, share in told) == pytest.approx(sorted(chances.mean(axis=0)), abs=1e-5)
    report = explain(target, "okapi", top=2)
    assert [row["category"] for row in report["competes_with"]] == [name for name, _ in told[:2]]
    assert report["competes_with"][0]["share"] == told[0][1]
    assert explain_table(report).row_count == 2


def test_many_changes_are_added_exactly():
    rng = np.random.default_rng(0)
    examples = np.rint(rng.uniform(-1, 1, (700, 3, 4)) * 32767).astype(np.float32) / 32768
    asked = []

    def solve(moments, sums):
        asked.append(moments.copy())
        return sums.astype(np.float32)

    table = SolvedVectors(4, solve)
    for id_, terms in enumerate(examples):
        table.put(id_, terms)
    table.products(np.eye(4, dtype=np.float32))
    for id_ in range(0, 700, 2):
        table.drop(id_)
    assert table.ids == list(range(1, 700, 2))
    table.products(np.eye(4, dtype=np.float32))
    kept = examples[1::2].reshape(-1, 4).astype(np.float64)
    assert np.array_equal(asked[-1], kept.T @ kept)
    assert not np.array_equal(asked[0], asked[1])


def test_the_order_of_teaching_changes_nothing_of_what_is_solved():
    rng = np.random.default_rng(0)
    examples = np.rint(rng.uniform(-1, 1, (9, 2, 4)) * 32767).astype(np.float32) / 32768
    asked = []

    def solve(moments, sums):
        asked.append((moments.tobytes(), sums.tobytes()))
        return sums.astype(np.float32)

    forwards, backwards = SolvedVectors(4, solve), SolvedVectors(4, solve)
    for place in range(9):
        forwards.put(place, examples[place])
        backwards.put(place, examples[8 - place])
    asked_for = np.eye(4, dtype=np.float32)
    assert np.array_equal(forwards.products(asked_for), backwards.products(asked_for)[:, ::-1])
    assert asked[0] == asked[1]
