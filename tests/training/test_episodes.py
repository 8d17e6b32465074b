"""Episodes of stage 2: what they ask, what they teach, and that fake-novel categories leave no trace."""

from collections import Counter

import numpy as np
import pytest
import torch

from recollect.data.tasks import TaskSampler, TaskShape
from recollect.model.model import Model
from recollect.training import stage2
from recollect.training.config import Config, StageTwo
from recollect.training.episodes import Episodes, drop_out
from recollect.training.stage2 import EpisodicTraining, make_views

CLASSIFIERS = ["cosine", "dot"]
GENERATORS = ["mean", "average", "attention"]
LEARNED = {
    "classifier.weight",
    "classifier.scale",
    "generator.phi_avg",
    "generator.phi_att",
    "generator.phi_q.weight",
    "generator.phi_q.bias",
    "generator.keys",
    "generator.sharpness",
}


def stage_of(model, split, *, shots="mixed", seed=0, **recipe):
    values = {
        "steps": 10,
        "episodes": 4,
        "ways": 2,
        "queries": 2,
        "base_queries": 5,
        "max_shots": 3,
        "views": 2,
        "dropout": 0,
    }
    config = Config(
        data="synthetic", shots=shots, seed=seed, select_tasks=5, stage2=StageTwo(**{**values, **recipe})
    )
    return EpisodicTraining(model, split, config, make_views(model, split, config))


def gradients(stage, step=0):
    stage.model.zero_grad(set_to_none=True)
    loss, share = stage.loss(step)
    loss.backward()
    found = {name: p.grad.clone() for name, p in stage.model.named_parameters() if p.grad is not None}
    return loss.detach(), share.detach(), found


@pytest.mark.parametrize("shots", ["mixed", 2])
@pytest.mark.parametrize("classifier", CLASSIFIERS)
def test_the_loss_is_the_mean_over_queries_among_remaining_and_fake_novel_categories(
    make_model, tiny_split, classifier, shots
):
    model = make_model(classifier=classifier)
    stage = stage_of(model, tiny_split, shots=shots)
    losses, hits = [], []
    tasks, views = stage.episodes[3]
    labels = tiny_split.base_train.labels
    for task in range(len(tasks)):
        ways = tasks.ways[task].tolist()
        rows = [*tasks.support[task].flatten(), *tasks.novel_queries[task], *tasks.base_queries[task]]
        z = [
            stage.views[view * len(labels) + row].float()
            for view, row in zip(views[task].tolist(), rows, strict=True)
        ]
        most = tasks.support.shape[2]
        support = torch.stack(z[: len(ways) * most]).view(1, len(ways), most, -1)
        hidden = torch.zeros(1, 7, dtype=torch.bool)
        hidden[0, ways] = True
        remaining = [category for category in range(7) if category not in ways]
        for row, query in zip(rows[len(ways) * most :], z[len(ways) * most :], strict=True):
            base, novel = model.joint_scores(support, query.view(1, 1, -1), hidden=hidden)
            scores = {category: base[0, 0, category] for category in remaining}
            scores |= {category: novel[0, 0, place] for place, category in enumerate(ways)}
            right = int(labels[row])
            losses.append(torch.stack(list(scores.values())).logsumexp(0) - scores[right])
            hits.append(max(scores, key=lambda category: scores[category].item()) == right)
    loss, share = stage.loss(3)
    torch.testing.assert_close(loss, torch.stack(losses).mean(), rtol=1e-4, atol=1e-4)
    assert share.item() == pytest.approx(sum(hits) / len(hits))


def test_dropout_empties_features_of_examples_and_queries_and_stretches_the_rest(
    make_model, tiny_split, monkeypatch
):
    seen = []
    monkeypatch.setattr(stage2, "episode_loss", lambda head, tasks, features: seen.append(features))
    model = make_model()
    for dropout, seed in ((0.0, 0), (0.5, 0), (0.5, 0), (0.5, 1)):
        stage = stage_of(model, tiny_split, dropout=dropout)
        torch.manual_seed(seed)
        stage.loss(3)
    whole, dropped, again, other = seen
    kept = dropped != 0
    torch.testing.assert_close(dropped[kept], 2 * whole[kept])
    assert kept.float().mean(dim=(0, 2)).sub(0.5).abs().max() < 0.3  # of every example and query
    assert torch.equal(dropped, again)
    assert not torch.equal(dropped, other)


@pytest.mark.parametrize("share", [0.0, 0.1, 0.25, 0.5, 0.9])
def test_dropout_takes_its_share_and_keeps_the_mean(share):
    torch.manual_seed(0)
    values = torch.full((300, 301), 2.0)
    found = drop_out(values, share)
    assert (found == 0).float().mean().item() == pytest.approx(share, abs=0.01)
    assert found.mean().item() == pytest.approx(2, rel=0.03)
    assert len(found.unique()) <= 2
    dropped = (found == 0).float()
    assert dropped.mean(0).std() < 0.05  # no place is dropped more often than another
    assert not share or not torch.equal(found, drop_out(values, share))


@pytest.mark.parametrize("classifier", CLASSIFIERS)
def test_gradients_reach_everything_that_stage_2_learns_and_not_the_extractor(
    make_model, tiny_split, classifier
):
    stage = stage_of(make_model(classifier=classifier), tiny_split)
    _, _, found = gradients(stage)
    assert set(found) == LEARNED
    for name, gradient in found.items():
        assert gradient.isfinite().all(), name
        assert (gradient != 0).any(), name
    assert {id(p) for p in stage.learned()} == {
        id(p) for name, p in stage.model.named_parameters() if name in LEARNED
    }
    assert not any(p.requires_grad for p in stage.model.extractor.parameters())


@pytest.mark.parametrize(
    ("generator", "learned"),
    [("mean", {"classifier.weight", "classifier.scale"}),
     ("average", {"classifier.weight", "classifier.scale", "generator.phi_avg"})],
)  # fmt: skip
def test_weaker_generators_learn_what_they_have(make_model, tiny_split, generator, learned):
    _, _, found = gradients(stage_of(make_model(generator=generator), tiny_split))
    assert set(found) == learned
    assert all(gradient.isfinite().all() and (gradient != 0).any() for gradient in found.values())


def test_steps_change_everything_learned_and_nothing_of_the_extractor(tiny_model, tiny_split):
    stage = stage_of(tiny_model, tiny_split)
    before = {name: value.clone() for name, value in tiny_model.state_dict().items()}
    optimizer = torch.optim.SGD(stage.learned(), lr=0.05, momentum=0.9, nesterov=True, weight_decay=5e-4)
    first = stage.loss(0)[0].item()
    for step in range(10):
        optimizer.zero_grad()
        stage.loss(step)[0].backward()
        optimizer.step()
    for name, value in tiny_model.state_dict().items():
        assert torch.equal(before[name], value) == (name not in LEARNED), name
    assert stage.loss(0)[0].item() < first


@pytest.mark.parametrize("generator", GENERATORS)
@pytest.mark.parametrize("classifier", CLASSIFIERS)
def test_fake_novel_categories_leave_no_trace(make_model, tiny_split, classifier, generator):
    model = make_model(classifier=classifier, generator=generator)
    stage = stage_of(model, tiny_split, episodes=1)
    for step in range(3):
        tasks, _ = stage.episodes[step]
        hidden = tasks.ways[0]
        loss, share, found = gradients(stage, step)
        assert (found["classifier.weight"][hidden] == 0).all()
        if generator == "attention":
            assert (found["generator.keys"][hidden] == 0).all()
        kept = {name: value.clone() for name, value in model.state_dict().items()}
        with torch.no_grad():
            model.classifier.weight[hidden] += 100 * torch.randn(len(hidden), model.width)
            if generator == "attention":
                model.generator.keys[hidden] += 100 * torch.randn(len(hidden), model.width)
        loss_after, share_after, found_after = gradients(stage, step)
        assert torch.equal(loss, loss_after)
        assert torch.equal(share, share_after)
        assert all(torch.equal(found[name], found_after[name]) for name in found)
        model.load_state_dict(kept)


def test_categories_that_remain_do_leave_a_trace(tiny_model, tiny_split):
    stage = stage_of(tiny_model, tiny_split, episodes=1)
    hidden = stage.episodes[0][0].ways[0].tolist()
    shown = next(category for category in range(7) if category not in hidden)
    loss, _, _ = gradients(stage)
    for parameter in (tiny_model.classifier.weight, tiny_model.generator.keys):
        with torch.no_grad():
            parameter[shown] += 1
        changed, _, _ = gradients(stage)
        assert not torch.equal(loss, changed)
        with torch.no_grad():
            parameter[shown] -= 1


def test_the_extractor_runs_for_the_first_judgement_and_in_no_step(tiny_model, tiny_split, monkeypatch):
    def never(*_words):
        pytest.fail("the extractor ran")

    stage = stage_of(tiny_model, tiny_split)
    assert "held_out" not in vars(stage), "computed with the stage, for nothing where only steps are timed"
    first = stage.judge()
    monkeypatch.setattr(Model, "embed", never)
    assert stage.judge() == first
    gradients(stage)


def shots_of(stage, steps):
    """Return how often each number of shots is drawn, which the episodes of a step share."""
    return Counter(stage.episodes[step][0].support.shape[2] for step in range(steps))


def test_mixed_shots_are_drawn_uniformly_and_fixed_ones_stay(tiny_model, tiny_split):
    counts = shots_of(stage_of(tiny_model, tiny_split, episodes=1), 512)
    assert set(counts) == {1, 2, 3}
    assert all(120 < count < 222 for count in counts.values())  # 512 / 3 each, five standard errors
    fixed = stage_of(tiny_model, tiny_split, shots=2)
    assert shots_of(fixed, 5) == {2: 5}
    assert fixed.episodes[0][0].support.shape == (4, 2, 2)


def test_more_than_five_shots_are_the_rarer_the_more_they_are():
    sampler = TaskSampler(np.repeat(np.arange(7), 30), None, base_names=list("abcdefg"))
    shape = TaskShape(2, 20, 2, 5)
    episodes = Episodes(sampler, shape, count=1, views=1, mixed=True, seed=0)
    steps = 6400
    counts = Counter(episodes[step][0].support.shape[2] for step in range(steps))
    weights = {shots: 1 / max(shots, 5) for shots in range(1, 21)}
    for shots, weight in weights.items():
        expected = steps * weight / sum(weights.values())
        assert abs(counts[shots] - expected) < 5 * expected**0.5


def test_episodes_of_a_step_do_not_depend_on_the_steps_before(make_model, tiny_split):
    stage, other = (stage_of(make_model(), tiny_split) for _ in range(2))
    for step in range(70):
        stage.episodes[step]
    for step in (69, 3, 64, 0):  # as a resumed run would ask
        (tasks, views), (tasks_again, views_again) = stage.episodes[step], other.episodes[step]
        assert torch.equal(tasks.support, tasks_again.support)
        assert torch.equal(tasks.base_queries, tasks_again.base_queries)
        assert torch.equal(views, views_again)


def test_no_two_steps_and_no_two_seeds_have_the_same_episodes(make_model, tiny_split):
    stages = [stage_of(make_model(), tiny_split, seed=seed) for seed in (0, 1)]
    drawn = [
        tuple(stage.episodes[step][0].base_queries.flatten().tolist())
        for stage in stages
        for step in range(130)
    ]
    assert len(set(drawn)) == len(drawn)


def test_every_view_takes_part(tiny_model, tiny_split):
    stage = stage_of(tiny_model, tiny_split, views=3)
    views = torch.cat([stage.episodes[step][1].flatten() for step in range(20)])
    assert set(views.tolist()) == {0, 1, 2}


def test_a_split_without_reserved_categories_can_be_learned_from(tiny_model, make_split):
    stage = stage_of(tiny_model, make_split(reserve=False))
    loss, _, _ = gradients(stage)
    assert loss.isfinite()
    assert all(0 <= figure <= 100 for figure in stage.judge().values())
    assert {"novel", "base", "both"} <= set(stage.judge())
