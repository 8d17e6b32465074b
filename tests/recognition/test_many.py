"""Very many taught categories: an index finds them, exact scores rank them."""

import logging
import os
import signal
import sys

import numpy as np
import pytest

from recollect import Recognizer
from recollect.backends.torch import TorchBackend
from recollect.model.spec import Calibration, Unknown
from recollect.modelfile import Header
from recollect.recognition import index, knowledge, many, vectors
from recollect.recognition.index import Index
from recollect.recognition.vectors import VectorTable

rng = np.random.default_rng(0)
LONG = Calibration(
    temperature=0.8,
    bias={1: 2.0, 1000: -1.0},
    bias_rise=-0.7,
    unknown=Unknown(threshold=1.0, rise=0.1, steepness=2.0, offset=0.0, false_alarms=0.05),
)


@pytest.fixture(autouse=True)
def few_are_many(monkeypatch):
    monkeypatch.setattr(knowledge, "MOST_EXACT", 300)
    monkeypatch.setattr(index, "CANDIDATES", 100)
    monkeypatch.setattr(many, "_SAMPLE", 200)
    monkeypatch.setattr(vectors, "_BLOCK_ROWS", 128)


def pair(model, calibration=LONG):
    """Return two recognisers of one model: with an index and without."""
    header = Header(spec=model.spec, calibration=calibration)
    found = [Recognizer(TorchBackend(model, header)) for _ in range(2)]
    found[1]._known.most_exact = 10**9
    return found


def teach(both, count, first=0, examples=(1,), scatter=0.4):
    """Teach made-up categories to each; return the features."""
    width = both[0].width
    centres = np.random.default_rng(5).standard_normal((10, width))
    names, features = [], []
    for number in range(first, first + count):
        for _ in range(examples[number % len(examples)]):
            names.append(f"c{number}")
            noise = np.random.default_rng([number, len(names)]).standard_normal(width)
            features.append(centres[number % 10] + 2 * scatter * noise)
    values = np.array(features, np.float32)
    for one in both:
        one.teach_features(names, values)
    return values


def same(both, features, *, top=5, among="all", within=0.4):
    """Check that probabilities agree, nearly all the better; return the share of answers that are the same.

    Few candidates and a small sample make them differ much more than in use.
    """
    one, other = (each.predict_features(features, top, among) for each in both)
    agree, ratios = 0, []
    for found, expected in zip(one, other, strict=True):
        agree += [answer.category for answer in found] == [answer.category for answer in expected]
        likely = {answer.category: answer.probability for answer in expected}
        for answer in found:
            if answer.category in likely:
                assert answer.probability == pytest.approx(likely[answer.category], rel=within)
                ratios.append(answer.probability / likely[answer.category])
    assert np.mean(ratios) == pytest.approx(1, rel=within / 10)
    return agree / len(one)


@pytest.mark.parametrize("generator", ["mean", "attention"])
@pytest.mark.parametrize("among", ["all", "novel"])
def test_an_index_gives_the_answers_of_a_look_at_each(make_model, generator, among):
    both = pair(make_model(generator=generator))
    features = teach(both, 700, examples=(1, 2, 5))
    assert [one.search for one in both] == ["index", "exact"]
    assert (
        same(both, features[::9] + 0.1 * rng.standard_normal(features[::9].shape, np.float32), among=among)
        > 0.85
    )


def test_candidates_are_those_with_the_best_scores_for_their_number_of_examples(make_model):
    """A few categories with one example each come before many with two, which have better products."""
    both = pair(make_model(), Calibration(bias_rise=-7.0))
    features = teach(both, 700, examples=(1, *[2] * 19))
    assert same(both, features[::15], within=0.9) > 0.85


def test_scores_of_candidates_have_the_bits_of_a_look_at_each(make_model):
    both = pair(make_model(), Calibration())
    features = teach(both, 600)[:20]
    (near,) = both[0]._predictor._shortlists(features[:1], "all")
    exact = both[1]._predictor.scores(features[:1])
    ids = near.candidates.ids
    assert np.array_equal(near.base, exact.base[0])
    assert np.array_equal(near.candidates.scores, exact.novel[0, ids - 1])
    assert len(ids) >= 90


def test_base_scores_keep_every_bit_when_the_index_comes(make_model):
    both = pair(make_model())
    features = teach(both, 290)[:7]
    before = both[0]._predictor.scores(features).base
    assert both[0].search == "exact"
    teach(both, 20, first=290)
    assert both[0].search == "index"
    assert np.array_equal(
        np.stack([one.base for one in both[0]._predictor._shortlists(features, "all")]), before
    )


def test_the_index_keeps_in_step_with_teaching_and_forgetting(make_model):
    both = pair(make_model())
    features = teach(both, 500)
    random = np.random.default_rng(3)
    for turn in range(6):
        gone = random.choice([one.name for one in both[0].categories() if one.origin == "novel"], 25, False)
        for one in both:
            for name in gone.tolist():
                one.forget(name)
        found = both[0].predict_features(features[::5], 20)
        assert not {answer.category for answers in found for answer in answers} & {*gone.tolist()}
        teach(both, 30, first=1000 + 30 * turn)
        more = teach(both, 5, first=1000 + 30 * turn, scatter=0.8)  # further examples move their vectors
        assert same(both, more) == 1
        for one in both:
            one.rename(f"c{1000 + 30 * turn}", f"renamed-{turn}")
        assert same(both, more) == 1
    assert same(both, features) > 0.95
    assert len(both[0]._known.many._index) == len(both[0]._known.vectors) == 530


def test_an_index_that_is_not_worth_it_any_more_goes(make_model):
    both = pair(make_model())
    features = teach(both, 310)
    for number in range(170):
        both[0].forget(f"c{number}")
        both[1].forget(f"c{number}")
    assert [one.search for one in both] == ["exact", "exact"]
    assert same(both, features[::10]) == 1


def test_hidden_and_corrected_base_categories_answer_as_ever(make_model):
    both = pair(make_model(), LONG.model_copy(update={"unknown": None}))
    features = teach(both, 400)
    for one in both:
        one.hide("base-1")
        one.teach_features(["base-2"], 3 * features[7:8])
        one.rename("base-3", "Zebra")
    near = both[0].predict_features(features[7:8])[0]
    assert "base-2" in {answer.category for answer in near}
    assert same(both, features[::7]) > 0.95
    answers = both[0].predict_features(features[:50], 200)
    named = {answer.category for some in answers for answer in some}
    assert "base-1" not in named
    assert {"Zebra", "base-2"} <= named
    for one in both:
        one.forget("base-2")
    assert same(both, features[::7]) > 0.95


def test_more_answers_than_candidates_come_from_a_look_at_each(make_model):
    both = pair(make_model())
    features = teach(both, 400)[:3]
    found = both[0].predict_features(features, 201)
    assert [len(answers) for answers in found] == [201] * 3
    assert found == both[1].predict_features(features, 201)


def test_unknown_pictures_are_told_apart_as_ever(make_model):
    both = pair(make_model())
    features = teach(both, 400)
    strange = np.random.default_rng(9).standard_normal((40, both[0].width)).astype(np.float32)
    some = np.concatenate([features[:40], strange])
    one, other = (
        [answers[0].origin == "unknown" for answers in each.predict_features(some)] for each in both
    )
    assert one == other
    assert 0 < sum(one) < len(one)


def test_the_order_of_teaching_hardly_matters(make_model):
    """Several servers learn the same in different orders: candidates may differ, their scores do not."""
    both = pair(make_model())
    both[1]._known.most_exact = 300
    features = teach(both[:1], 400)
    both[1]._known.store.fill(both[0]._known.store.content())
    both[1]._known._seen = object()
    for id_ in np.random.default_rng(1).permutation(np.arange(1, 401)).tolist():
        both[1]._known._learn_own([both[0]._known.taught[id_]])
    assert both[1].search == "index"
    assert both[0]._known.many._sampled.ids == both[1]._known.many._sampled.ids
    assert same(both, features[:30], within=0.1) > 0.9


@pytest.mark.parametrize("changes", [{"generator": "ridge"}, {"classifier": "dot"}])
def test_what_no_index_can_follow_is_looked_at_as_ever(make_model, changes):
    both = pair(make_model(**changes), Calibration())
    features = teach(both, 320)[:5]
    assert both[0].search == "exact"
    assert both[0].predict_features(features) == both[1].predict_features(features)


def test_without_faiss_each_category_is_looked_at_with_a_warning(make_model, monkeypatch, caplog):
    monkeypatch.setitem(sys.modules, "faiss", None)
    monkeypatch.delitem(sys.modules, "recollect.recognition.index")
    both = pair(make_model())
    with caplog.at_level(logging.WARNING):
        features = teach(both, 310)
        teach(both, 10, first=310)
    assert caplog.text.count("pip install 'recollect[many]'") == 1
    assert both[0].search == "exact"
    assert same(both, features[:20]) == 1


def test_rows_of_an_index_are_overwritten_and_dropped():
    values = rng.standard_normal((900, 33)).astype(np.float32)
    made = Index(values[:50])
    made.append(values[:601])
    for row in range(601, 650):
        made.put(row, values[row])

    def own(rows):
        found = made.search(values[rows])
        assert found.max() < len(made)
        return np.mean([row in some for row, some in zip(rows, found.tolist(), strict=True)])

    assert len(made) == 650
    assert own(range(650)) == 1
    values[100:200] = rng.standard_normal((100, 33))
    assert own(range(100, 200)) < 0.6
    for row in range(100, 200):
        made.put(row, values[row])
    assert own(range(650)) == 1
    for _ in range(97):
        made.drop_last()
    assert len(made) == 553
    assert own(range(553)) == 1
    values[553:650] = rng.standard_normal((97, 33))
    made.append(values[553:900])
    assert own(range(900)) == 1


def test_blocks_of_a_table_are_one_table():
    table, values = VectorTable(5), rng.standard_normal((500, 5)).astype(np.float32)
    for id_ in range(500):
        assert table.put(id_, values[id_]) == id_
    assert len(table._blocks) == 4
    features = values[:3]
    assert np.array_equal(table.products(features), np.vecdot(features[:, None], values[None]))
    order = np.random.default_rng(0).permutation(500)
    for id_ in order[:350].tolist():
        table.drop(id_)
    left = np.sort(order[350:])
    assert table.ids == left.tolist()
    assert np.array_equal(table.products(features), np.vecdot(features[:, None], values[None, left]))
    assert len(table._blocks) <= 3
    rows = np.array([table.row(id_) for id_ in table.ids])
    assert table.ids_of(rows.tolist()) == table.ids
    assert np.array_equal(table.rows(rows), values[left])


@pytest.mark.parametrize("sizes", [(1, 5, 0, 200, 130, 1), (500,), (127, 1, 1)])
def test_vectors_put_in_at_once_lie_where_those_put_in_one_by_one_do(sizes):
    values = rng.standard_normal((600, 5)).astype(np.float32)
    at_once, one_by_one, first = VectorTable(5), VectorTable(5), 0
    for size in sizes:
        ids = np.arange(first, first + size)
        rows = at_once.put_all(2 * ids, values[ids])
        assert rows.tolist() == [one_by_one.put(2 * id_, values[id_]) for id_ in ids.tolist()]
        first += size
    some = np.array([1, 2, 2 * first - 1, 2 * first])  # between, again, and after the others
    rows = at_once.put_all(some, values[-4:])
    assert rows.tolist() == [one_by_one.put(id_, values[k - 4]) for k, id_ in enumerate(some.tolist())]
    assert at_once.ids == one_by_one.ids
    assert np.array_equal(at_once.products(values[:3]), one_by_one.products(values[:3]))


@pytest.mark.parametrize("width", [32, 33, 34, 35])
def test_codes_are_those_of_faiss(width):
    values = rng.standard_normal((200, width)).astype(np.float32)
    made = Index(values)
    turned = (values - made._mean) @ made._rotation
    assert np.array_equal(made._codes(values), made._shards[0].pq.compute_codes(turned))
    made.append(values[:190])
    for row in range(190, 200):
        made.put(row, values[row])
    for number, shard in enumerate(made._shards):
        other = Index(values)._shards[number]
        other.add(turned[number :: index._SHARDS])
        assert np.array_equal(made._blocks(shard), made._blocks(other))


def test_an_index_answers_in_a_process_that_forked():
    values = rng.standard_normal((200, 16)).astype(np.float32)
    made = Index(values)
    made.append(values)
    made.search(values[:1])  # starts its threads
    child = os.fork()
    if not child:
        signal.alarm(20)  # ends it if it waits for threads that are not there
        os._exit(0 if len(made.search(values[:1])[0]) else 1)
    assert os.waitpid(child, 0)[1] == 0
