"""Temperature, bias and threshold, against searches by hand and on data that make them hard to fit."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from recollect.data.tasks import TaskShape, task_sampler
from recollect.evaluation.evaluate import model_scores
from recollect.evaluation.metrics import Scores, task_figures
from recollect.features import FeatureSet, extract
from recollect.model.spec import Calibration, bias_at
from recollect.recognition.scoring import clearance, unknown_probability
from recollect.training import calibration as module
from recollect.training.calibration import (
    COLDEST,
    HOTTEST,
    Lesson,
    Queries,
    Scored,
    calibrate,
    fit_bias,
    fit_temperature,
    fit_unknown,
    joint_error,
    joint_queries,
    lessons_of,
)
from recollect.training.ridge import solve_base

KINDS = [(kind, generator) for kind in ("cosine", "dot") for generator in ("mean", "average", "attention")]


def synthetic(temperature, rows=40_000, categories=12, seed=0):
    """Scores whose right answers are drawn from their softmax at a known temperature."""
    generator = torch.Generator().manual_seed(seed)
    scores = 3 * torch.randn(rows, categories, generator=generator)
    targets = (scores / temperature).softmax(1).multinomial(1, generator=generator).squeeze(1)
    return Queries(scores, targets)


def random_tasks(seed=0, lead=1.5, tasks=20, k=6, ways=3, queries=12):
    """Tasks whose novel scores lie `lead` higher than base ones, with answers that are often right."""
    generator = torch.Generator().manual_seed(seed)
    novel_targets = torch.arange(queries).remainder(ways).expand(tasks, queries)
    base_targets = torch.randint(0, k, (tasks, queries), generator=generator)

    def noise(width):
        return torch.randn(tasks, queries, width, generator=generator)

    own_way = 2 * torch.nn.functional.one_hot(novel_targets, ways)
    own_base = 2 * torch.nn.functional.one_hot(base_targets, k)
    scores = Scores(noise(k), noise(ways) + own_way + lead, noise(k) + own_base, noise(ways) + lead)
    return Scored(scores, novel_targets, base_targets)


def harmonic(scored, bias):
    parts = [task_figures(*some.biased(bias))["harmonic"] for some in scored]
    return torch.cat(parts).mean().item()


def features_of(sizes, seed, kind, width=32, spread=1.5):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
    centres = torch.randn(len(sizes), width, generator=generator)
    features = centres[labels] + spread * torch.randn(len(labels), width, generator=generator)
    return FeatureSet(features, labels, tuple(f"{kind}-{number}" for number in range(len(sizes))))


@pytest.mark.parametrize("temperature", [0.4, 1.0, 2.5])
def test_a_known_temperature_is_found_again_and_mends_the_calibration_error(temperature):
    queries = synthetic(temperature)
    found = fit_temperature(queries, len(queries.targets))
    assert found == pytest.approx(temperature, rel=0.03)
    assert joint_error(queries, found) < 0.012
    if temperature != 1:
        assert joint_error(queries) > 5 * joint_error(queries, found)


def test_the_temperature_has_the_highest_likelihood_of_all():
    queries = synthetic(1.7, rows=500)
    queries.scores[:, 3] = torch.where(queries.targets == 3, queries.scores[:, 3], -torch.inf)  # hidden

    def loss(temperature):
        return torch.nn.functional.cross_entropy(queries.scores / temperature, queries.targets).item()

    found = fit_temperature(queries, 10**9)
    assert loss(found) <= min(loss(t) for t in np.geomspace(COLDEST, HOTTEST, 400)) + 1e-6


@pytest.mark.parametrize("pictures", [4, 1000])
def test_few_pictures_that_are_all_right_do_not_make_certain(pictures):
    scores = torch.eye(5).repeat(20, 1) * 8
    queries = Queries(scores, torch.arange(5).repeat(20))
    found = fit_temperature(queries, pictures)
    confidence = (scores / found).softmax(1).amax(1).mean().item()
    # One of pictures + 2 is given blindly, and so is wrong in 4 of 5 cases.
    assert confidence == pytest.approx(1 - 0.8 / (pictures + 2), abs=2e-3)
    assert COLDEST <= found <= HOTTEST


def test_answers_that_are_all_wrong_give_the_highest_temperature():
    queries = Queries(torch.eye(5) * 8, torch.arange(5).roll(1))
    assert fit_temperature(queries, 1000) == pytest.approx(HOTTEST)


def test_equal_scores_give_a_temperature_within_bounds():
    assert (
        COLDEST <= fit_temperature(Queries(torch.zeros(4, 3), torch.zeros(4, dtype=torch.long)), 4) <= HOTTEST
    )


@pytest.mark.parametrize("lead", [-3.0, 0.0, 1.5, 40.0])
def test_no_other_bias_has_a_higher_harmonic_mean(lead):
    scored = [random_tasks(seed, lead) for seed in range(2)]
    found = fit_bias(scored)
    others = np.linspace(-lead - 4, -lead + 4, 301)
    assert harmonic(scored, found) >= max(harmonic(scored, bias) for bias in others) - 1e-9
    assert harmonic(scored, found) >= harmonic(scored, 0)
    assert found == pytest.approx(-lead, abs=1)


def test_the_bias_runs_along_the_logarithm_of_the_number_of_taught_categories(monkeypatch):
    found = {1: 9.0, 5: 1.0, 10: 0.0, 20: -1.0}
    monkeypatch.setattr(module, "fit_bias", lambda scored: found[scored[0]])
    biases = module.fit_biases({number: {1: number} for number in found})
    assert sorted(biases) == [5, 20]
    for number in (5, 10, 20):
        assert bias_at(biases, number) == pytest.approx(found[number])
    assert bias_at(biases, 1) == bias_at(biases, 5)
    assert bias_at(biases, 100) == bias_at(biases, 20)
    assert module.fit_biases({1: {1: 1}}) == {1: 9.0}


def test_a_bias_by_shots_is_found_again(monkeypatch):
    def found(scored, _):
        number, shots = scored[0]
        return 2.0 - 0.5 * np.log(number) - 0.3 * np.log(shots)

    monkeypatch.setattr(module, "fit_bias", found)
    drawn = {number: {shots: (number, shots) for shots in range(1, 6)} for number in (1, 5, 10, 20)}
    calibration = module.fit_biases_by_shots(drawn)
    assert calibration.bias_rise == pytest.approx(-0.3)
    assert sorted(calibration.bias) == [5, 20]
    assert calibration.bias[20] == pytest.approx(2 - 0.5 * np.log(20))
    told = calibration.biases([1, 3, 5, 50, 1, 1, 1, 1, 1, 1])
    assert told[0] == pytest.approx(2 - 0.5 * np.log(10))
    assert told[1] - told[0] == pytest.approx(-0.3 * np.log(3))
    assert told[3] == told[2] == pytest.approx(told[0] - 0.3 * np.log(5))
    calibration = module.fit_biases_by_shots({2: {1: (2, 1)}})
    assert calibration.bias == {2: pytest.approx(2 - 0.5 * np.log(2))}
    assert calibration.bias_rise == pytest.approx(0)


def test_a_bias_for_many_shots_rises_otherwise_with_each_number_of_taught_categories(monkeypatch):
    def found(scored, _):
        number, shots = scored[0]
        return 2.0 - 0.5 * np.log(number) - (0.3 - 0.1 * np.log(number)) * np.log(shots)

    monkeypatch.setattr(module, "fit_bias", found)
    numbers = (*range(1, 6), 10, 20)
    drawn = {number: {shots: (number, shots) for shots in numbers} for number in (1, 5, 10, 20)}
    calibration = module.fit_biases_by_shots(drawn)
    for taught in (5, 10, 20):
        told = calibration.biases([1, 3, 20, 50], taught=taught)
        assert told[:3] == pytest.approx([found([(taught, shots)], None) for shots in (1, 3, 20)])
        assert told[3] == told[2], "beyond what was fitted the bias stays"


@pytest.mark.parametrize("few", [5, 10])
def test_shots_that_only_many_taught_categories_leave_queries_for_are_not_fitted(monkeypatch, few):
    def found(scored, _):
        number, shots = scored[0]
        return 100.0 if shots > few else number - 0.3 * np.log(shots)

    monkeypatch.setattr(module, "fit_bias", found)
    numbers = [shots for shots in (1, 3, 5, 10, 20) if shots <= few]
    drawn = {number: {shots: (number, shots) for shots in numbers} for number in (5, 10)}
    drawn[20] = {shots: (20, shots) for shots in (*numbers, 2 * few)}
    calibration = module.fit_biases_by_shots(drawn)
    del drawn[20][2 * few]
    assert calibration == module.fit_biases_by_shots(drawn)
    assert calibration.most_shots == few


@pytest.mark.parametrize(("pictures", "most"), [(40, 20), (15, 10), (9, 5)])
def test_a_bias_by_shots_is_fitted_for_as_many_as_the_pictures_allow(make_model, pictures, most):
    novel = features_of([pictures] * 6, 1, "novel", spread=1.0)
    base = features_of([20] * 7, 0, "base", spread=1.0)
    model = make_model(categories=base.categories)
    found = calibrate(model, novel, base, by_shots=True)
    assert found.most_shots == most
    assert (found.biases([most]) == found.biases([1000])).all()
    assert (found.biases([most]) != found.biases([most - 1])).all()
    assert calibrate(model, novel, base).most_shots == 5


def test_scores_with_the_bias_are_those_that_predictions_compare(make_model):
    base, novel = features_of([9] * 7, 1, "base"), features_of([9] * 6, 2, "novel")
    score = model_scores(make_model(generator="ridge"), novel, base)
    tasks = task_sampler(base, novel).draw(TaskShape(3, 4, 2), 5, 0)
    plain = score(tasks)
    found = module.with_bias(score, Calibration(bias={1: 0.0, 9: 4.0}, bias_rise=-0.5))(tasks)
    bias = 2 - 0.5 * np.log(4)
    torch.testing.assert_close(found.novel_novel, plain.novel_novel + bias)
    torch.testing.assert_close(found.base_novel, plain.base_novel + bias)
    assert torch.equal(found.base_base, plain.base_base)
    assert torch.equal(found.novel_base, plain.novel_base)


def test_no_other_bias_has_a_higher_mean_accuracy():
    scored = [random_tasks(seed, 1.5) for seed in range(2)]

    def accuracy(bias):
        found = [task_figures(*some.biased(bias)) for some in scored]
        return torch.cat([(one["novel_in_joint"] + one["base_in_joint"]) / 2 for one in found]).mean().item()

    best = fit_bias(scored, lambda novel, base: (novel + base) / 2)
    assert accuracy(best) >= max(accuracy(bias) for bias in np.linspace(-5, 3, 301)) - 1e-9
    assert accuracy(best) > accuracy(0)


def test_ridge_is_calibrated_by_shots_with_hidden_categories_left_out(make_model):
    model = make_model(generator="ridge", categories=tuple(f"base-{number}" for number in range(12)))
    everything = features_of([9] * 12, 1, "base", spread=1.0)
    rows = torch.arange(9).repeat(12)
    learned, held = (
        replace(everything, features=everything.features[some], labels=everything.labels[some])
        for some in (rows < 6, rows >= 6)
    )
    solve_base(model, learned)
    found = calibrate(model, None, replace(held, support=learned))
    assert found.bias_rise != 0
    assert found.report["both_after"] > found.report["both_before"]
    assert calibrate(model, None, held).bias != found.bias


def test_the_bias_stays_where_nothing_better_is_found():
    perfect = random_tasks(lead=0)
    scores = Scores(*(100 * (part > 1.5) for part in vars(perfect.scores).values()))
    certain = Scored(
        Scores(
            torch.zeros_like(scores.novel_base, dtype=torch.float),
            10.0 * torch.nn.functional.one_hot(perfect.novel_targets, 3),
            10.0 * torch.nn.functional.one_hot(perfect.base_targets, 6),
            torch.zeros_like(scores.base_novel, dtype=torch.float),
        ),
        perfect.novel_targets,
        perfect.base_targets,
    )
    assert fit_bias([certain]) == 0
    hopeless = certain._replace(novel_targets=(certain.novel_targets + 1) % 3)  # no bias mends it
    assert fit_bias([hopeless]) == 0


def test_unknown_pictures_are_those_whose_own_category_is_not_taught(tiny_model):
    novel, base = features_of([9] * 6, 1, "novel"), features_of([9] * 7, 0, "base")
    tasks = task_sampler(base, novel).draw(TaskShape(3, 2, 4), 5, 0)
    scores = model_scores(tiny_model, novel, base)(tasks)
    scored = Scored(scores, tasks.novel_targets, tasks.base_targets)
    one_shot, two_shot = lessons_of({3: {1: scored, 2: scored}})
    assert [(some.taught, some.shots) for some in (one_shot, two_shot)] == [(3, 1), (3, 2)]
    others, owns = [], []
    for task in range(5):
        for query, own in enumerate(tasks.novel_targets[task]):
            row = scores.novel_novel[task, query].tolist()
            owns.append(row.pop(int(own)))
            others.append(max(row))
    assert one_shot.strange[1] == pytest.approx(others)
    assert one_shot.own == pytest.approx(owns)
    for found, expected in (
        (one_shot.base, (scores.base_base, scores.base_novel)),
        (one_shot.novel, (scores.novel_base, scores.novel_novel)),
        (one_shot.strange[:1], (scores.novel_base,)),
    ):
        for some, best in zip(found, expected, strict=True):
            assert some == pytest.approx(best.amax(2).flatten().numpy())


def lesson(rng, taught, shots, n=4000, own=2.0, near=6.0):
    """Scores of pictures: taught vectors of more examples, or among more others, score higher.

    Known pictures have a best score about 6 with base categories, unknown ones 4.5. Taught ones have `own`
    with their own category, and the others less.
    """
    level = own + 1.5 * np.log(shots) + 0.3 * np.log(taught)
    low = np.full(n, -20.0)
    own_scores = rng.normal(level, 1, n)
    return Lesson(
        taught,
        shots,
        base=(rng.normal(near, 1, n), rng.normal(level - 3, 1, n)),
        novel=(low, own_scores),
        strange=(rng.normal(near - 1.5, 1, n), rng.normal(level - 3, 1, n)),
        own=own_scores,
    )


def called_unknown(unknown, some, kind):
    base, novel = getattr(some, kind)
    calibration = Calibration(unknown=unknown)
    offset = calibration.unknown_offsets([some.shots] * some.taught)[0]
    return (clearance(np.maximum(base, novel + offset), some.taught, unknown) < 0).mean()


def test_the_false_alarm_rate_holds_however_many_are_taught_and_from_however_many_examples():
    rng = np.random.default_rng(0)
    lessons = [lesson(rng, taught, shots) for taught in (1, 5, 20) for shots in (1, 2, 5)]
    unknown = fit_unknown(lessons, 1000)
    assert unknown.rise == 0
    assert 0.03 < unknown.false_alarms <= 0.051
    offset = unknown.taught
    assert (offset.number, offset.rise) == pytest.approx((-0.3, -1.5), abs=0.05)
    before = np.mean([(some.base[0] < unknown.threshold).mean() for some in lessons])
    assert before == pytest.approx(0.05, abs=0.003)
    for some in lessons:
        assert called_unknown(unknown, some, "novel") == pytest.approx(0.05, abs=0.015)
        assert called_unknown(unknown, some, "base") <= (some.base[0] < unknown.threshold).mean()
        assert called_unknown(unknown, some, "strange") > 0.3


def test_teaching_makes_no_base_picture_unknown():
    rng = np.random.default_rng(0)
    unknown = fit_unknown([lesson(rng, taught, 2) for taught in (1, 5, 20)], 1000)
    scores = rng.normal(6, 1, 1000)
    before = clearance(scores, 0, unknown)
    for taught in (1, 6, 1000):
        assert np.array_equal(clearance(scores, taught, unknown), before)


def test_base_scores_of_many_hidden_categories_do_not_raise_the_threshold():
    rng = np.random.default_rng(0)
    few, many = lesson(rng, 1, 2), lesson(rng, 20, 2, near=9.0)
    threshold = fit_unknown([few, many], 1000).threshold
    assert threshold == pytest.approx(np.quantile(few.base[0], 0.05), abs=0.01)


def test_the_offset_stays_beyond_the_numbers_that_it_was_fitted_for():
    rng = np.random.default_rng(0)
    unknown = fit_unknown([lesson(rng, taught, 1) for taught in (1, 5, 20)], 1000)
    calibration = Calibration(unknown=unknown)
    few, most, more = (calibration.unknown_offsets([1] * taught)[0] for taught in (5, 20, 500))
    assert few > most + 0.2
    assert more == most


def test_taught_pictures_that_look_known_anyway_need_no_offset():
    rng = np.random.default_rng(0)
    some = lesson(rng, 5, 2)._replace(novel=(rng.normal(9, 1, 4000), rng.normal(2, 1, 4000)))
    offset = fit_unknown([some], 1000).taught
    assert np.isfinite([offset.start, offset.number, offset.rise, offset.slope]).all()
    # One number of taught categories and of shots says nothing about others.
    assert (offset.number, offset.rise, offset.slope) == pytest.approx((0, 0, 0))


def test_the_probability_of_unknown_is_right_among_as_many_known_ones():
    rng = np.random.default_rng(1)
    far, own = np.full(4000, -1000.0), rng.normal(0, 1, 4000)
    strange = np.tile(rng.normal(4.5, 1, 4000), 3), np.tile(far, 3)  # the priors stay equal
    unknown = fit_unknown([Lesson(1, 1, (rng.normal(6, 1, 4000), far), (far, own), strange, own)], 30_000)
    cleared = np.linspace(-3, 3, 13)
    score = cleared + unknown.threshold
    likelihoods = [np.exp(-((score - level) ** 2) / 2) for level in (4.5, 6.0)]
    expected = likelihoods[0] / (likelihoods[0] + likelihoods[1])
    assert unknown_probability(cleared, unknown) == pytest.approx(expected, abs=0.03)


def test_no_picture_is_called_unknown_that_is_more_probably_known():
    rng = np.random.default_rng(2)
    some = lesson(rng, 5, 1, near=10.0)
    unknown = fit_unknown([some._replace(strange=(rng.normal(0, 1, 4000), np.full(4000, -100.0)))], 4000)
    assert unknown.false_alarms < 0.03  # no need for 5 % where the two are so far apart
    assert unknown.threshold < np.quantile(some.base[0], 0.01)
    assert unknown.offset == pytest.approx(0, abs=1e-6)


def test_what_cannot_tell_unknown_pictures_is_not_used():
    some = lesson(np.random.default_rng(3), 5, 2)
    assert fit_unknown([some], 1000) is not None
    assert fit_unknown([some], 19) is None  # 5 % of 19 pictures is less than one
    higher = some._replace(strange=(some.base[0] + 5, some.strange[1]))
    assert fit_unknown([higher], 1000) is None  # unknown ones score higher


@pytest.mark.parametrize("fake", [False, True], ids=["novel", "fake-novel"])
@pytest.mark.parametrize(("classifier", "generator"), KINDS)
def test_every_kind_of_model_is_calibrated_for_the_better(
    make_model, classifier, generator, fake, monkeypatch
):
    monkeypatch.setattr(module, "_TASKS", 60)
    model = make_model(classifier=classifier, generator=generator)
    base = features_of([12] * 7, 0, "base")
    with torch.no_grad():  # base vectors that know their categories
        model.classifier.weight.copy_(
            torch.stack([base.features[base.labels == label].mean(0) for label in range(7)])
        )
    novel = None if fake else features_of([14] * 6, 1, "novel")
    found = calibrate(model, novel, base)
    report = found.report
    assert report["ece_after"] < max(report["ece_before"], 8)
    assert report["harmonic_after"] >= report["harmonic_before"] - 0.5  # a line, not the best point
    assert found.unknown is None or report["false_alarms"] <= 5
    assert calibrate(model, novel, base) == found
    assert calibrate(model, novel, base, seed=1) != found


def test_the_report_says_what_a_second_look_finds(tiny_model):
    novel, base = features_of([20] * 6, 1, "novel"), features_of([20] * 7, 0, "base")
    found = calibrate(tiny_model, novel, base)
    sampler, score = task_sampler(base, novel), model_scores(tiny_model, novel, base)
    scored = list(module.score_tasks(sampler, score, 5, module.FEW_SHOTS, 250, 1000, 0).values())
    bias = bias_at(found.bias, 5)
    adjusted = [some.biased(bias) for some in scored]
    queries = joint_queries(adjusted)
    assert found.report["ece_after"] == pytest.approx(100 * joint_error(queries, found.temperature), abs=0.01)
    assert found.report["harmonic_after"] == pytest.approx(100 * harmonic(scored, bias), abs=0.01)
    right = (queries.scores.argmax(1) == queries.targets).float().mean().item()
    assert found.report["both_after"] == pytest.approx(100 * right, abs=1)


@pytest.mark.parametrize("sizes", [[2, 2], [2, 3, 2], [2] * 5, [30, 30]])
def test_the_smallest_folders_are_calibrated(make_model, sizes):
    names = tuple(f"base-{number}" for number in range(len(sizes)))
    model = make_model(categories=names)
    found = calibrate(model, None, features_of(sizes, 0, "base"))
    assert COLDEST <= found.temperature <= HOTTEST
    assert all(abs(bias) < 30 for bias in found.bias.values())
    assert (found.unknown is None) or sum(sizes) >= 20


def test_tasks_have_every_number_of_shots_equally_often(tiny_model):
    novel, base = features_of([20] * 6, 1, "novel"), features_of([20] * 7, 0, "base")
    seen = []

    def watched(tasks):
        seen.append(tuple(tasks.support.shape))
        return model_scores(tiny_model, novel, base)(tasks)

    scored = module.score_tasks(task_sampler(base, novel), watched, 4, module.FEW_SHOTS, 40, 5, 0)
    assert seen == [(size, 4, shots) for shots in range(1, 6) for size in (5, 3)]
    assert {len(some.novel_targets[0]) for some in scored.values()} == {4 * 15}


@pytest.mark.parametrize(
    ("pictures", "kept"), [(13, {}), (15, {10: 5}), (18, {10: 8}), (21, {10: 11}), (40, {10: 15, 20: 15})]
)
def test_many_shots_leave_pictures_to_ask_about(tiny_model, pictures, kept):
    novel, base = features_of([pictures] * 6, 1, "novel"), features_of([20] * 7, 0, "base")
    sampler, score = task_sampler(base, novel), model_scores(tiny_model, novel, base)
    scored = module.score_tasks(sampler, score, 5, module.MANY_SHOTS, 40, 50, 0)
    assert {shots: len(some.novel_targets[0]) // 5 for shots, some in scored.items()} == kept


def test_pictures_of_a_split_are_calibrated(tiny_model, tiny_split):
    found = calibrate(
        tiny_model, extract(tiny_model, tiny_split.val), extract(tiny_model, tiny_split.base_val)
    )
    assert set(found.report) >= {"ece_before", "ece_after", "both_before", "both_after", "harmonic_after"}
