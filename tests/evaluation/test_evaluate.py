from dataclasses import replace

import numpy as np
import pytest
import torch

from recollect.data.tasks import TaskShape, task_sampler
from recollect.errors import DataError
from recollect.evaluation import evaluate as evaluate_module
from recollect.evaluation.evaluate import evaluate, figures, model_figures, model_scores
from recollect.evaluation.metrics import METRICS, Scores, summary, task_figures
from recollect.features import FeatureSet, extract
from recollect.model.spec import Calibration
from recollect.training.ridge import solve_base

CLASSIFIERS = ["cosine", "dot"]
GENERATORS = ["mean", "average", "attention"]


def feature_set(sizes, width, seed, kind):
    """Return features that scatter around a centre of their category, far enough to overlap."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
    labels = labels[torch.randperm(len(labels), generator=generator)]
    centres = torch.randn(len(sizes), width, generator=generator)
    features = centres[labels] + 1.5 * torch.randn(len(labels), width, generator=generator)
    return FeatureSet(features, labels, tuple(f"{kind}-{index}" for index in range(len(sizes))))


@pytest.fixture(scope="module")
def base():
    return feature_set([9, 12, 8, 10, 9, 14, 8], 32, 0, "base")


@pytest.fixture(scope="module")
def novel():
    return feature_set([8, 9, 20, 8, 11, 8], 32, 1, "novel")


def joint_scores_of(model, novel, base, tasks):
    """Score tasks by the model's own joint scores, with nothing computed beforehand."""
    source = base if novel is None else novel
    hidden = tasks.hidden(len(base.categories)) if novel is None else None
    support = (base.support or source).features[tasks.support]
    with torch.no_grad():
        novel_base, novel_novel = model.joint_scores(
            support, source.features[tasks.novel_queries], hidden=hidden
        )
        base_base, base_novel = model.joint_scores(support, base.features[tasks.base_queries], hidden=hidden)
    return Scores(novel_base, novel_novel, base_base, base_novel)


@pytest.mark.parametrize("kind", ["novel", "fake-novel", "fake-novel with other support"])
@pytest.mark.parametrize("generator", GENERATORS)
@pytest.mark.parametrize("classifier", CLASSIFIERS)
def test_scores_of_tasks_are_the_models_joint_scores(make_model, novel, base, classifier, generator, kind):
    model = make_model(classifier=classifier, generator=generator)
    novel = novel if kind == "novel" else None
    if kind == "fake-novel with other support":
        base = replace(base, support=feature_set([30] * 7, 32, 2, "base"))
    tasks = task_sampler(base, novel, base.support).draw(TaskShape(3, 2, 4, 9), 20, 0)
    assert (tasks.support.max() >= len(base.labels)) == (kind == "fake-novel with other support")
    found = model_scores(model, novel, base)(tasks)
    expected = joint_scores_of(model, novel, base, tasks)
    for name in ("novel_base", "novel_novel", "base_base", "base_novel"):
        torch.testing.assert_close(getattr(found, name), getattr(expected, name), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("fake", [False, True], ids=["novel", "fake-novel"])
def test_chunks_do_not_change_figures(tiny_model, novel, base, fake):
    novel = None if fake else novel
    tasks = task_sampler(base, novel).draw(TaskShape(3, 2, 4), 50, 0)
    score = model_scores(tiny_model, novel, base)
    whole = figures(score, tasks, chunk=50)
    assert tuple(whole) == METRICS
    for chunk in (1, 7, 49, 1000):
        parts = figures(score, tasks, chunk=chunk)
        for name in METRICS:
            torch.testing.assert_close(parts[name], whole[name], rtol=0, atol=1e-6)


def test_the_size_of_gathered_features_does_not_change_figures(tiny_model, novel, base, monkeypatch):
    shape = TaskShape(3, 2, 4)
    whole = model_figures(tiny_model, novel, base, shape, 40, 3)
    monkeypatch.setattr(evaluate_module, "_CHUNK_VALUES", 1)
    one_by_one = model_figures(tiny_model, novel, base, shape, 40, 3)
    for name in METRICS:
        torch.testing.assert_close(one_by_one[name], whole[name], rtol=0, atol=1e-6)


def test_any_function_that_scores_tasks_can_be_evaluated(novel, base):
    tasks = task_sampler(base, novel).draw(TaskShape(3, 1, 4), 10, 0)

    def score(some):
        # Knows every answer among base and among novel categories, and prefers novel ones by far.
        right_way = torch.nn.functional.one_hot(some.novel_targets, 3).float()
        right_base = torch.nn.functional.one_hot(some.base_targets, len(base.categories)).float()
        return Scores(
            torch.zeros(len(some), 12, len(base.categories)),
            9 + right_way,
            right_base,
            torch.full((len(some), 12, 3), 9.0),
        )

    found = {name: values.mean().item() for name, values in figures(score, tasks, chunk=4).items()}
    assert found["novel"] == found["base"] == found["novel_in_joint"] == 1
    assert found["base_in_joint"] == found["harmonic"] == 0
    assert found["both"] == 0.5


@pytest.mark.parametrize("fake", [False, True], ids=["novel", "fake-novel"])
def test_two_thousand_tasks(tiny_model, novel, base, fake):
    found = model_figures(tiny_model, None if fake else novel, base, TaskShape(3, 1, 5), 2000, 0)
    assert all(values.shape == (2000,) and values.isfinite().all() for values in found.values())
    assert 1 / 3 < found["novel"].mean() < 1  # the categories overlap, and can be told apart


def test_more_shots_help(tiny_model, novel, base):
    few, many = (
        model_figures(tiny_model, novel, base, TaskShape(5, shots, 3), 500, 0)["novel"].mean()
        for shots in (1, 5)
    )
    assert many > few + 0.05


def test_features_already_seen_by_evaluation_stay_usable_in_training(tiny_model, novel, base):
    model_figures(tiny_model, novel, base, TaskShape(2, 1, 2), 2, 0)
    tiny_model.terms(novel.features).sum().backward()
    assert tiny_model.generator.phi_avg.grad is not None


def test_a_report_has_every_figure_with_its_interval(tiny_model, tiny_split):
    results = evaluate(tiny_model, tiny_split, shots=(1, 3), ways=3, queries=4, tasks=30, seed=5)
    assert [result["shots"] for result in results] == [1, 3]
    novel, base = extract(tiny_model, tiny_split.test), extract(tiny_model, tiny_split.base_test)
    for result in results:
        assert set(result) == {"shots", *METRICS, "both_calibrated"}
        assert result["both_calibrated"] == result["both"]
        tasks = task_sampler(base, novel).draw(TaskShape(3, result["shots"], 4), 30, 5)
        expected = task_figures(
            joint_scores_of(tiny_model, novel, base, tasks), tasks.novel_targets, tasks.base_targets
        )
        for name in METRICS:
            assert result[name] == pytest.approx(summary(expected[name]), abs=0.02), name


def test_both_is_also_told_with_the_bias_that_predictions_have(tiny_model, tiny_split):
    calibration = Calibration(bias={2: 9.0, 3: -4.95}, bias_rise=-0.05)
    asked = {"shots": (1, 3), "ways": 3, "queries": 4, "tasks": 30, "seed": 5}
    plain = evaluate(tiny_model, tiny_split, **asked)
    results = evaluate(tiny_model, tiny_split, **asked, calibration=calibration)
    novel, base = extract(tiny_model, tiny_split.test), extract(tiny_model, tiny_split.base_test)
    for result, before in zip(results, plain, strict=True):
        shots = result["shots"]
        tasks = task_sampler(base, novel).draw(TaskShape(3, shots, 4), 30, 5)
        scores, bias = joint_scores_of(tiny_model, novel, base, tasks), -4.95 - 0.05 * np.log(shots)
        scores = replace(scores, novel_novel=scores.novel_novel + bias, base_novel=scores.base_novel + bias)
        expected = task_figures(scores, tasks.novel_targets, tasks.base_targets)["both"]
        told = result.pop("both_calibrated")
        assert told == pytest.approx(summary(expected), abs=0.02)
        assert 6 < told["mean"] < result["both"]["mean"] - 1
        assert before.pop("both_calibrated") == before["both"]
        assert result == before


def test_validation_and_test_look_at_their_own_pictures(tiny_model, tiny_split, monkeypatch):
    looked_at = []

    def watched(_model, images):
        looked_at.append(images)
        return extract(tiny_model, images)

    monkeypatch.setattr(evaluate_module, "cached_features", watched)
    options = {"shots": (1,), "ways": 2, "queries": 2, "tasks": 3}
    evaluate(tiny_model, tiny_split, part="val", **options)
    assert looked_at == [tiny_split.val, tiny_split.base_val]
    looked_at.clear()
    evaluate(tiny_model, tiny_split, part="test", **options)
    assert looked_at == [tiny_split.test, tiny_split.base_test]


def test_queries_are_those_of_the_data_unless_said(tiny_model, tiny_split):
    options = {"shots": (1,), "ways": 3, "tasks": 20}
    found = evaluate(tiny_model, replace(tiny_split, queries=4), **options)
    assert found == evaluate(tiny_model, tiny_split, queries=4, **options)
    with pytest.raises(DataError, match="queries: 15"):
        evaluate(tiny_model, tiny_split, **options)


def test_without_reserved_categories_base_ones_play_novel(tiny_model, make_split):
    split = make_split(reserve=False)
    (result,) = evaluate(tiny_model, split, shots=(1,), ways=3, queries=4, tasks=30)
    base = extract(tiny_model, split.base_test)
    expected = model_figures(tiny_model, None, base, TaskShape(3, 1, 4), 30, 0)
    assert result["both"] == summary(expected["both"])


def test_the_seed_decides_the_figures(tiny_model, tiny_split):
    def run(seed):
        return evaluate(tiny_model, tiny_split, shots=(1,), ways=3, queries=4, tasks=40, seed=seed)

    assert run(1) == run(1)
    assert run(1) != run(2)


def test_too_few_pictures_are_noticed_before_the_extractor_runs(tiny_model, tiny_split, monkeypatch):
    def never(_model, _images):
        pytest.fail("the extractor ran")

    monkeypatch.setattr(evaluate_module, "cached_features", never)
    with pytest.raises(DataError, match=r"'test-0' has 9 pictures and needs 10 \(shots: 6, queries: 4\)"):
        evaluate(tiny_model, tiny_split, shots=(1, 6), ways=3, queries=4, tasks=5)
    with pytest.raises(DataError, match="7 ways"):
        evaluate(tiny_model, tiny_split, shots=(1,), ways=7, queries=2, tasks=5)


def test_where_only_held_out_pictures_count_it_is_said_how_many_they_are(tiny_model, make_split):
    split = make_split(reserve=False, train=11, held=2)
    with pytest.raises(
        DataError,
        match=r"'base-0' has 2 pictures and needs 6 .* \(--ways 2 --shots 1 --queries 1 would do\)\. Only "
        r"pictures held out from training count: of the 15 of 'base-0' these are 2\. .* --split",
    ):
        evaluate(tiny_model, split, shots=(5,), ways=2, queries=1)
    assert evaluate(tiny_model, split, shots=(1,), ways=2, queries=1, tasks=2)


def test_what_a_training_measured_is_said_in_the_users_words():
    from recollect.commands.train import train_text

    measured = {"novel": 61.04, "base": 84.2, "both": 70.0}
    result = {"model": "runs/a/model.safetensors", "held_out": 144, "validation": measured}
    assert train_text(result) == (
        "runs/a/model.safetensors\nRight answers in random tasks on 144 held-out pictures: 84.2 % among "
        "the trained categories, 61.0 % among new categories taught from a few pictures, 70.0 % among all of "
        "them together."
    )
    assert "trained" not in train_text({**result, "validation": {"novel": 61.04}})
    assert train_text({**result, "validation": {}}) == "runs/a/model.safetensors"


def test_categories_that_act_as_novel_are_left_out_of_all_that_ridge_solves(make_model):
    """The same scores as from a model that never saw the hidden categories."""
    generator = torch.Generator().manual_seed(0)
    model = make_model(generator="ridge")
    features = torch.randn(7 * 12, model.width, generator=generator)
    labels = torch.arange(7).repeat_interleave(12)
    names, shown = model.spec.categories, torch.arange(12).repeat(7) < 8
    learned = FeatureSet(features[shown], labels[shown], names)
    base = FeatureSet(features[~shown], labels[~shown], names, learned)
    solve_base(model, learned)
    tasks = task_sampler(base, None, learned).draw(TaskShape(2, 3, 2), 4, 0)
    found = model_scores(model, None, base)(tasks)
    for task in range(4):
        hidden = tasks.ways[task].tolist()
        kept = [label for label in range(7) if label not in hidden]
        rest = torch.isin(learned.labels, torch.tensor(kept))
        places = torch.tensor([kept.index(label) for label in learned.labels[rest].tolist()])
        smaller = make_model(generator="ridge", categories=tuple(names[label] for label in kept))
        smaller.classifier.scale.data.copy_(model.classifier.scale)
        solve_base(smaller, FeatureSet(learned.features[rest], places, smaller.spec.categories))
        queries = base.features[torch.cat([tasks.novel_queries[task], tasks.base_queries[task]])]
        scores = smaller.joint_scores(learned.features[tasks.support[task]][None], queries[None])
        joint = [
            torch.cat([found.novel_base, found.base_base], 1),
            torch.cat([found.novel_novel, found.base_novel], 1),
        ]
        torch.testing.assert_close(joint[0][task][:, kept], scores[0][0], rtol=1e-3, atol=1e-3)
        torch.testing.assert_close(joint[1][task], scores[1][0], rtol=1e-3, atol=1e-3)
        assert (joint[0][task][:, hidden] == -torch.inf).all()
