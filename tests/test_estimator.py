"""The scikit-learn face: scikit-learn's own checks, teaching that leaves all else alone, and its worth."""

import os
import pickle
from pathlib import Path

import joblib
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.decomposition import PCA
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.neighbors import NearestCentroid
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import Normalizer, StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from recollect import RecollectClassifier
from recollect.errors import EstimatorError, RecollectError
from recollect.model.classifier import Classifier
from recollect.model.generator import build_generator
from recollect.model.model import Head
from recollect.model.spec import RIDGE, Calibration
from recollect.recognition.ridge import SolvedVectors
from recollect.training.head import _players

GENERATORS = ["attention", "average", "mean", "ridge"]
WIDTH, BASE = 12, 8


def blobs(categories, examples, *, seed=0, first=0):
    """Return features around a centre for each of `categories`, and their labels from `first` on."""
    labels = np.repeat(np.arange(first, first + categories), examples)
    centres = np.stack([np.random.default_rng([5, label]).normal(size=WIDTH) for label in labels])
    return centres + 0.3 * np.random.default_rng([seed, first]).normal(size=centres.shape), labels


@pytest.fixture(scope="module")
def fitted():
    """Classifiers by generator, as pickles: no test sees what another has taught."""
    return {kind: pickle.dumps(fit_one(kind)) for kind in GENERATORS}


def fit_one(kind="attention", **parameters):
    values = {"steps": 40, "random_state": 0, **parameters}
    return RecollectClassifier(kind, **values).fit(*blobs(BASE, 10))


@pytest.fixture(params=GENERATORS)
def classifier(fitted, request):
    return pickle.loads(fitted[request.param])


@pytest.fixture
def attentive(fitted):
    return pickle.loads(fitted["attention"])


@parametrize_with_checks([RecollectClassifier(kind, steps=40) for kind in ("attention", "mean", "ridge")])
def test_scikit_learns_own_checks_pass(estimator, check):
    check(estimator)


def test_what_is_taught_is_recognised_beside_the_base_classes(classifier):
    classifier.teach(*blobs(4, 5, seed=1, first=20))
    assert classifier.classes_.tolist() == [*range(BASE), 20, 21, 22, 23]
    assert classifier.score(*blobs(BASE, 20, seed=2)) > 0.95
    # A regression separates no more categories than there are dimensions, and here there are as many.
    assert classifier.score(*blobs(4, 20, seed=3, first=20)) > (
        0.7 if classifier.generator == "ridge" else 0.95
    )
    probabilities = classifier.predict_proba(blobs(4, 2, seed=3, first=20)[0])
    assert probabilities.shape == (8, BASE + 4)
    np.testing.assert_allclose(probabilities.sum(axis=1), 1, rtol=1e-6)


def test_teaching_leaves_base_scores_bit_identical_and_forgetting_restores_all(classifier):
    X, _ = blobs(BASE, 3, seed=4)
    classifier.teach(*blobs(2, 2, first=50))
    before = classifier.decision_function(X)
    classes = classifier.classes_
    for first in range(100, 400, 100):
        classifier.teach(*blobs(100, 2, first=first))
    during = classifier.decision_function(X)
    assert during.shape == (len(X), BASE + 302)
    alone = BASE if classifier.generator == "ridge" else BASE + 2  # there, taught categories compete
    assert np.array_equal(during[:, :alone], before[:, :alone])
    for label in range(100, 400):
        classifier.forget(label)
    assert np.array_equal(classifier.decision_function(X), before)
    assert np.array_equal(classifier.classes_, classes)


def test_base_scores_of_two_classes_come_back_as_columns():
    X, y = blobs(2, 10)
    classifier = RecollectClassifier(steps=20, random_state=0).fit(X, y)
    difference = classifier.decision_function(X)
    assert difference.shape == (len(X),)
    scores = classifier.teach(*blobs(1, 3, first=9)).decision_function(X)
    assert scores.shape == (len(X), 3)
    assert np.array_equal(scores[:, 1] - scores[:, 0], difference)


@pytest.mark.parametrize("kind", ["attention", "ridge"])
@given(order=st.permutations(range(6)), cuts=st.sets(st.integers(1, 5)))
def test_any_order_and_grouping_of_examples_gives_the_same_scores(fitted, kind, order, cuts):
    X, y = blobs(2, 3, first=30)
    queries, _ = blobs(2, 5, seed=7, first=30)
    whole = pickle.loads(fitted[kind]).teach(X, y)
    parts = pickle.loads(fitted[kind])
    for rows in np.split(np.array(order), sorted(cuts)):
        parts.teach(X[rows], y[rows])
    columns = [parts.classes_.tolist().index(label) for label in whole.classes_]
    found, expected = parts.decision_function(queries)[:, columns], whole.decision_function(queries)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)
    assert kind != "ridge" or np.array_equal(found, expected)


def test_a_taught_vector_is_that_of_the_papers_generator(classifier):
    kind = classifier.generator_
    head = Head(Classifier(BASE, WIDTH, "cosine"), build_generator(kind, BASE, WIDTH))
    head.load_state_dict({name: torch.from_numpy(weight) for name, weight in classifier.weights_.items()})
    X, y = blobs(3, 4, first=40)
    queries, _ = blobs(3, 2, seed=1, first=40)
    centred = [torch.from_numpy(v - classifier.mean_).float() for v in (X.reshape(3, 4, WIDTH), queries)]
    with torch.no_grad():
        base, novel = head.joint_scores(centred[0][None], centred[1][None])
    expected = torch.cat([base[0], novel[0]], dim=1).numpy()
    found = classifier.teach(X, y).decision_function(queries)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


def test_ridge_solves_base_and_taught_vectors_and_adds_its_bias():
    known, labels = blobs(BASE, 10)
    known = known + np.random.default_rng(0).normal(size=known.shape)  # too easy, it would need no bias
    classifier = RecollectClassifier("ridge", random_state=0).fit(known, labels)
    base = classifier.decision_function(blobs(2, 3, seed=1, first=40)[0])
    X, y = blobs(2, 3, first=40)
    queries, _ = blobs(2, 3, seed=1, first=40)
    bias = classifier._calibration.biases([3, 3])
    assert (bias != 0).all()
    scores = classifier.teach(X, y).decision_function(queries)
    assert np.array_equal(scores[:, :BASE], base)

    def seen(features):
        centred = features - classifier.mean_
        return centred / np.linalg.norm(centred, axis=1, keepdims=True)

    z, taught = seen(known), seen(X)
    moments = z.T @ z + RIDGE * np.eye(WIDTH)
    for rows, found, matrix, one_hot, added in (
        (z, base, moments, np.eye(BASE)[labels], 0.0),
        (taught, scores[:, BASE:], moments + taught.T @ taught, np.eye(2)[y - 40], bias),
    ):
        vectors = np.linalg.solve(matrix, rows.T @ one_hot)
        expected = seen(queries) @ (vectors / np.linalg.norm(vectors, axis=0))
        tau = classifier.weights_["classifier.scale"]
        np.testing.assert_allclose(found, tau * expected + added, rtol=1e-3, atol=1e-2)


def test_predictions_only_read_so_that_threads_may_share_a_classifier(monkeypatch):
    queries, _ = blobs(2, 3, seed=1, first=40)
    classifier = RecollectClassifier("ridge", random_state=0)
    add = SolvedVectors._add_changes
    for change in (
        lambda: classifier.partial_fit(*blobs(BASE, 10), classes=range(60)),
        lambda: classifier.teach(*blobs(2, 3, first=40)),
        lambda: classifier.forget(40),
    ):
        monkeypatch.setattr(SolvedVectors, "_add_changes", add)
        change()
        monkeypatch.setattr(SolvedVectors, "_add_changes", lambda _: pytest.fail("a prediction changes it"))
        classifier.decision_function(queries)


def test_classes_without_examples_do_not_change_the_bias_of_others():
    queries, _ = blobs(2, 3, seed=1, first=40)
    plain, later = (RecollectClassifier("ridge", random_state=0) for _ in range(2))
    plain.fit(*blobs(BASE, 10))
    later.partial_fit(*blobs(BASE, 10), classes=range(60))
    found = []
    for one in (plain, later):
        one._calibration = Calibration(bias={1: 0.0, 50: 5.0})
        one.teach(*blobs(1, 3, first=40))
        found.append(one.decision_function(queries)[:, one.classes_.tolist().index(40)])
    np.testing.assert_allclose(*found, rtol=1e-4, atol=1e-4)


def test_fitting_leaves_torchs_random_state_alone():
    before = torch.random.get_rng_state()
    fit_one("ridge")
    assert torch.equal(torch.random.get_rng_state(), before)


def test_classes_that_are_too_small_to_calibrate_are_solved_all_the_same():
    X, y = blobs(3, 3)
    classifier = RecollectClassifier("ridge", random_state=0).fit(X, y)
    assert classifier.score(X, y) == 1
    assert classifier.teach(*blobs(1, 2, first=9)).predict(blobs(1, 1, first=9)[0]).tolist() == [9]


def test_a_ridge_of_a_memory_map_can_be_taught(tmp_path):
    joblib.dump(fit_one("ridge").teach(*blobs(1, 2, first=40)), tmp_path / "ridge")
    mapped = joblib.load(tmp_path / "ridge", mmap_mode="r")
    assert mapped.teach(*blobs(1, 2, first=50)).classes_.tolist() == [*range(BASE), 40, 50]
    assert mapped.decision_function(blobs(1, 2, first=50)[0]).shape == (2, BASE + 2)


def test_episodes_train_the_generator():
    weights = fit_one("attention").weights_
    assert (weights["generator.phi_att"] != 1).any()
    assert (weights["generator.keys"] != weights["classifier.weight"]).any()
    assert (fit_one("average").weights_["generator.phi_avg"] != 1).any()


def test_classes_stand_in_the_order_of_teaching_and_forgetting_moves_none():
    X, y = blobs(3, 8)
    names = np.array(["cat", "ant", "bee"])
    classifier = RecollectClassifier("mean", steps=5, random_state=0).fit(X, names[y])
    assert classifier.classes_.tolist() == ["ant", "bee", "cat"]
    few, _ = blobs(1, 3, first=9)
    classifier.teach(few, ["a much longer name"] * 3).teach(few + 5, ["yak", "dog", "yak"])
    assert classifier.classes_.tolist() == ["ant", "bee", "cat", "a much longer name", "dog", "yak"]
    assert classifier.forget("a much longer name").classes_.tolist() == ["ant", "bee", "cat", "dog", "yak"]
    classifier.teach(few, np.array(["a much longer name"] * 3, dtype=object))
    assert classifier.classes_.tolist() == ["ant", "bee", "cat", "dog", "yak", "a much longer name"]
    assert classifier.predict(few).tolist() == ["a much longer name"] * 3
    assert classifier.n_base_ == 3


@pytest.mark.parametrize(
    ("labels", "words"),
    [
        (["x", "y", "y"], "use one for both"),
        ([0.5, 1.5, 2.5], "continuous"),
        ([30, 30], "inconsistent numbers of samples"),
    ],
)
def test_labels_that_cannot_be_taught_change_nothing(attentive, labels, words):
    X, _ = blobs(1, 3, first=30)
    before = attentive.decision_function(X)
    with pytest.raises(ValueError, match=words):
        attentive.teach(X, labels)
    assert np.array_equal(attentive.decision_function(X), before)
    assert len(attentive.classes_) == BASE


def test_features_and_labels_that_are_swapped_are_told(attentive):
    with pytest.raises(ValueError, match="swap the two arguments"):
        attentive.teach([30, 31], np.zeros((2, WIDTH)))
    with pytest.raises(ValueError, match="swap the two arguments"):
        attentive.teach("okapi", np.zeros((2, WIDTH)))


@pytest.mark.parametrize(
    ("X", "words"),
    [
        (np.full((1, WIDTH), np.nan), "NaN"),
        (np.full((1, WIDTH), 1e300), "infinity"),
        (np.zeros((1, WIDTH - 1)), "11 features"),
        (np.zeros((0, WIDTH)), "0 sample"),
        (np.zeros(WIDTH), "1D array"),
    ],
)
@pytest.mark.filterwarnings("ignore:overflow encountered in cast")
def test_features_that_cannot_be_taught_change_nothing(attentive, X, words):
    with pytest.raises(ValueError, match=words):
        attentive.teach(X, [30] * len(X))
    assert attentive.classes_.tolist() == list(range(BASE))


def test_a_base_class_that_is_taught_answers_with_the_better_score_until_it_is_forgotten(classifier):
    X, _ = blobs(BASE, 3, seed=4)
    elsewhere = blobs(1, 6, seed=5, first=33)[0]  # nothing like class 3 was
    before = classifier.decision_function(X)
    classifier.teach(elsewhere[:3], [3] * 3).teach(*blobs(1, 2, first=60))
    assert classifier.classes_.tolist() == [*range(BASE), 60]
    during = classifier.decision_function(X)
    assert np.array_equal(np.delete(during, 3, axis=1)[:, : BASE - 1], np.delete(before, 3, axis=1))
    assert (during[:, 3] >= before[:, 3]).all()
    assert classifier.predict(elsewhere[3:]).tolist() == [3] * 3
    assert np.array_equal(classifier.forget(3).forget(60).decision_function(X), before)


def test_partial_fit_fits_the_first_batch_and_teaches_the_others():
    X, y = blobs(BASE, 20)
    rows = y < 5
    classifier = RecollectClassifier(steps=40, random_state=0)
    classifier.partial_fit(X[rows], y[rows], classes=np.arange(BASE))
    expected = RecollectClassifier(steps=40, random_state=0).fit(X[rows], y[rows])
    assert classifier.classes_.tolist() == list(range(BASE))
    assert classifier.n_base_ == 5
    assert np.array_equal(classifier.decision_function(X)[:, :5], expected.decision_function(X))
    assert (classifier.predict_proba(X)[:, 5:] == 0).all()
    for label in range(5, BASE):
        classifier.partial_fit(X[y == label], y[y == label])
        expected.teach(X[y == label], y[y == label])
    assert np.array_equal(classifier.decision_function(X), expected.decision_function(X))
    assert classifier.score(*blobs(BASE, 20, seed=2)) > 0.9
    classifier.partial_fit(*blobs(1, 4, first=99))
    assert classifier.classes_.tolist() == [*range(BASE), 99]


def test_partial_fit_refuses_labels_that_its_classes_leave_out():
    X, y = blobs(4, 10)
    classifier = RecollectClassifier(steps=20, random_state=0)
    for labels in ([0, 1, 2], ["a", "b"]):
        with pytest.raises(EstimatorError, match="not one of the given classes"):
            classifier.partial_fit(X, y, classes=labels)
        assert not hasattr(classifier, "classes_")
    classifier.partial_fit(X, y)
    with pytest.raises(EstimatorError, match="label 0 is not one of the given classes"):
        classifier.partial_fit(X, y, classes=[1, 2, 3])


def test_only_what_was_taught_can_be_forgotten(attentive):
    attentive.teach(*blobs(1, 2, first=30))
    with pytest.raises(EstimatorError, match=r"class 3 is a base class.*taught are: \[30\]"):
        attentive.forget(3)
    with pytest.raises(EstimatorError, match=r"class 31 was not taught; taught are: \[30\]"):
        attentive.forget(31)
    assert issubclass(EstimatorError, RecollectError)


@pytest.mark.parametrize("call", [lambda c: c.teach([[0.0]], [1]), lambda c: c.forget(1)])
def test_an_unfitted_classifier_says_so(call):
    with pytest.raises(NotFittedError):
        call(RecollectClassifier())


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ({"generator": "median"}, "generator='median': choose one of 'mean', 'average', 'attention'"),
        ({"steps": 0}, "steps == 0"),
        ({"learning_rate": 0.0}, "learning_rate == 0"),
        ({"learning_rate": 1e30}, "diverged: lower learning_rate"),
    ],
)
def test_wrong_parameters_are_told_when_fitting(parameters, words):
    with pytest.raises(ValueError, match=words):
        RecollectClassifier(**{"steps": 20, **parameters}).fit(*blobs(4, 5))


def test_fitting_again_drops_what_was_taught(attentive):
    attentive.teach(*blobs(1, 2, first=30)).fit(*blobs(3, 5))
    assert attentive.classes_.tolist() == [0, 1, 2]
    assert attentive.decision_function(blobs(1, 1)[0]).shape == (1, 3)


def test_a_seed_decides_everything_and_nothing_global_is_touched(capsys):
    torch.manual_seed(1)
    np.random.seed(1)  # noqa: NPY002
    states = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    threads = torch.get_num_threads()
    first = fit_one(random_state=3).teach(*blobs(1, 2, first=30))
    assert torch.equal(torch.get_rng_state(), states[0])
    assert np.array_equal(np.random.get_state()[1], states[1])  # noqa: NPY002
    assert torch.get_num_threads() == threads
    torch.manual_seed(2)
    again, other = fit_one(random_state=3), fit_one(random_state=4)
    assert all(np.array_equal(first.weights_[name], weight) for name, weight in again.weights_.items())
    assert any(not np.array_equal(first.weights_[name], weight) for name, weight in other.weights_.items())
    assert capsys.readouterr() == ("", "")


def test_threads_that_fit_at_once_get_the_weights_of_their_seeds():
    alone = [fit_one(random_state=seed).weights_ for seed in range(4)]
    together = joblib.Parallel(n_jobs=4, backend="threading")(
        joblib.delayed(fit_one)(random_state=seed) for seed in range(4)
    )
    for weights, found in zip(alone, together, strict=True):
        assert all(np.array_equal(weights[name], found.weights_[name]) for name in weights)


def test_without_a_pair_of_examples_to_play_novel_the_generator_is_plain_means():
    X, y = blobs(6, 1)
    lonely = RecollectClassifier(steps=5, random_state=0).fit(X, y)
    assert lonely.generator_ == "mean"
    assert lonely.score(X, y) == 1
    lonely.teach(*blobs(2, 1, first=9))
    assert lonely.score(*blobs(2, 1, first=9)) == 1
    pair = RecollectClassifier(steps=5, random_state=0).fit(np.repeat(X[:2], 2, axis=0), [0, 0, 1, 1])
    assert pair.generator_ == "attention"


def test_small_categories_stand_by_and_keep_their_places():
    X, y = blobs(BASE, 10)
    kept = ~np.isin(y, [0, 3]) | (np.arange(len(y)) % 10 < 1)  # one example of categories 0 and 3
    classifier = RecollectClassifier(steps=40, random_state=0).fit(X[kept], y[kept])
    assert classifier.generator_ == "attention"
    assert classifier.score(*blobs(BASE, 10, seed=1)) > 0.9
    leaning = classifier.weights_["generator.keys"] @ classifier.weights_["classifier.weight"].T
    assert leaning.argmax(axis=1).tolist() == list(range(BASE))


@pytest.mark.parametrize(
    ("sizes", "players"),
    [([50, 50, 50], 3), ([50, 3, 50], 2), ([3, 3, 9], 3), ([1, 1, 1, 2, 2], 2), ([1, 1], 0), ([2, 2], 2)],
)
def test_at_least_half_of_the_categories_play_novel_where_they_can(sizes, players):
    assert _players(np.array(sizes)).sum() == players


def test_a_pickle_holds_arrays_and_no_torch(classifier, tmp_path):
    X, _ = blobs(BASE, 2, seed=1)
    classifier.teach(*blobs(2, 3, first=30))
    content = pickle.dumps(classifier)
    assert b"torch" not in content
    joblib.dump(classifier, tmp_path / "classifier.joblib")
    copies = [pickle.loads(content), joblib.load(tmp_path / "classifier.joblib")]
    for copy in copies:
        assert np.array_equal(copy.decision_function(X), classifier.decision_function(X))
        more = blobs(2, 2, seed=5, first=31)
        assert np.array_equal(
            copy.teach(*more).decision_function(X),
            pickle.loads(content).teach(*more).decision_function(X),
        )


@pytest.mark.slow
def test_it_works_in_pipelines_searches_and_cross_validation():
    X, y = load_digits(return_X_y=True)
    some = np.random.default_rng(0).permutation(len(y))[:600]  # the file is in the order of its writers
    X, y = X[some], y[some]
    pipeline = make_pipeline(
        StandardScaler(), PCA(20, random_state=0), RecollectClassifier(steps=60, random_state=0)
    )
    assert cross_val_score(pipeline, X, y, cv=3).min() > 0.8
    search = GridSearchCV(pipeline, {"recollectclassifier__generator": ["mean", "average"]}, cv=2).fit(X, y)
    assert search.best_score_ > 0.8
    base = y < 7
    pipeline.fit(X[base][:300], y[base][:300])
    few = np.concatenate([np.flatnonzero(y == label)[:5] for label in (7, 8, 9)])
    pipeline[-1].teach(pipeline[:-1].transform(X[few]), y[few])
    assert pipeline.score(X[450:], y[450:]) > 0.75
    assert pipeline.classes_.tolist() == list(range(10))
    untaught = clone(pipeline[-1])
    assert not hasattr(untaught, "classes_")
    assert untaught.get_params() == pipeline[-1].get_params()


@pytest.mark.data
@pytest.mark.skipif(
    "RECOLLECT_DATA" not in os.environ, reason="RECOLLECT_DATA does not say where the features are"
)
def test_one_example_each_does_better_than_refitting_the_usual_classifiers():
    with np.load(Path(os.environ["RECOLLECT_DATA"]) / "imagenet-lite0" / "features.npz") as file:
        features, labels = file["features"].astype(np.float32), file["labels"]
    rng = np.random.default_rng(0)
    rows = np.stack(
        [rng.permutation(np.flatnonzero(labels == label)) for label in rng.permutation(1000)[:84]]
    )
    base, held, taught, novel = rows[:64, :7], rows[:64, 7:], rows[64:, :1], rows[64:, 5:]

    def examples(rows):
        return features[rows.ravel()], labels[rows.ravel()]

    ours = RecollectClassifier(random_state=0).fit(*examples(base)).teach(*examples(taught))
    X, y = (np.concatenate(pair) for pair in zip(examples(base), examples(taught), strict=True))
    queries = [np.concatenate(pair) for pair in zip(examples(held), examples(novel), strict=True)]
    both = ours.score(*queries)
    balanced = LogisticRegression(max_iter=300, class_weight="balanced")
    for usual in (
        NearestCentroid(),
        LogisticRegression(max_iter=300),
        make_pipeline(StandardScaler(with_std=False), Normalizer(), balanced),
    ):
        assert both > usual.fit(X, y).score(*queries) + 0.02
