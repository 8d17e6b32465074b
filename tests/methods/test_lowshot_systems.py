"""The systems of table 3: each computes what its paper says, one draw at a time or all at once."""

from dataclasses import replace
from itertools import permutations

import pytest
import torch
from torch.nn import functional as F

from recollect.errors import Diverged
from recollect.evaluation.lowshot import HalfFeatures, LinearTaught, count_right, draw_examples, named
from recollect.features import FeatureSet
from recollect.methods.lowshot import SYSTEMS, analogies, logistic, system
from recollect.methods.lowshot.embedding import Context, Network
from recollect.methods.lowshot.generators import teach_with
from recollect.methods.lowshot.matching import MatchingNetwork
from recollect.methods.lowshot.prototype_matching import Hallucinator
from recollect.methods.lowshot.prototypical import scored
from recollect.methods.lowshot.ridge import solve
from recollect.methods.lowshot.system import (
    EACH,
    Base,
    LargeEpisodes,
    descend,
    root_mean_square,
    scaled,
    show,
)
from recollect.model.classifier import Classifier, unit
from recollect.model.generator import AttentionGenerator, MeanGenerator
from recollect.model.model import Head
from recollect.training.config import LowShot

BASE, NOVEL, D = 8, 6, 12
RECIPE = LowShot(steps=12, logistic_steps=15, logistic_batch=40, centroids=4, fill=4, queries=3)


def clustered(categories, each, seed, noise=0.6):
    draw = torch.Generator().manual_seed(seed)
    means = torch.randn(categories, D, generator=draw)
    labels = torch.arange(categories).repeat_interleave(each)
    other = torch.Generator().manual_seed(1000 * seed + each)
    return (means[labels] + noise * torch.randn(len(labels), D, generator=other)).relu(), labels


@pytest.fixture
def base():
    features, labels = clustered(BASE, 30, 1)
    torch.manual_seed(0)
    classifier = Classifier(BASE, D, "cosine").requires_grad_(False)
    for category in range(BASE):
        classifier.weight[category] = features[labels == category].mean(0)
    head = Head(classifier, MeanGenerator())
    return Base(features.half(), labels, head, torch.device("cpu"), 1 / root_mean_square(features))


@pytest.fixture
def half():
    sets = [
        FeatureSet(features.half(), labels, ())
        for features, labels in (clustered(BASE, 5, 1), clustered(NOVEL, 20, 2), clustered(NOVEL, 7, 2))
    ]
    columns = torch.tensor([1, 3, 4, 6, 7])
    own = torch.isin(sets[0].labels, columns)
    labels = torch.searchsorted(columns, sets[0].labels[own])
    return HalfFeatures(columns, FeatureSet(sets[0].features[own], labels, ()), *sets[1:])


def learned(system, base, shots, recipe=RECIPE):
    own = base if system.stage1 != "cosine" else replace(base, factor=1.0)
    return scaled(system.learn(own, (shots,), recipe, 0), own.factor)


@pytest.mark.parametrize("key", SYSTEMS)
def test_every_system_tells_novel_categories_apart_and_scores_draws_one_by_one_alike(key, base, half):
    teach = learned(SYSTEMS[key], base, 2)
    examples = draw_examples(half.examples.labels.numpy(), 4, 2, seed=0)
    right = count_right(teach, half, examples, 2, {5: 0.5, 1: 0.5})
    share = right[named("novel", 1)].double().mean() / half.asked["novel"]
    assert share > 0.4, f"chance is {1 / NOVEL:.2f}"
    assert right[named("all", 1)].double().mean() / half.asked["all"] > 0.3
    if key.endswith("-h"):
        return  # what is hallucinated depends on how many draws there are
    support = half.examples.features[examples].float()
    with torch.no_grad():
        together = teach(support, half.columns).scores(half.novel.features.float())
        for draw in range(4):
            alone = teach(support[draw : draw + 1], half.columns).scores(half.novel.features.float())
            for some, one in zip(together, alone, strict=True):
                own = some[:, draw] if some.shape[1] > 1 else some[:, 0]
                torch.testing.assert_close(own, one[:, 0], atol=2e-4, rtol=1e-4)


@pytest.mark.parametrize("key", ["attention", "logistic"])
def test_the_scores_of_vectors_stay_products_with_them_when_features_are_scaled(key, base, half, monkeypatch):
    seen, parts = [], LinearTaught.parts
    monkeypatch.setattr(LinearTaught, "parts", lambda self: seen.append(1) or parts(self))
    examples = draw_examples(half.examples.labels.numpy(), 2, 1, seed=0)
    own = replace(base, factor=1.0 if key == "attention" else 0.25)
    teach = SYSTEMS[key].learn(own, (1,), RECIPE, 0)
    scale = scaled(teach, own.factor)
    count_right(scale, half, examples, 1, {5: 0.5, 1: 0.5})
    assert seen
    support, queries = half.examples.features[examples].float(), half.novel.features.float()
    with torch.no_grad():
        expected = teach(own.factor * support, half.columns).scores(own.factor * queries)
        torch.testing.assert_close(scale(support, half.columns).scores(queries), expected)


@pytest.mark.parametrize("key", SYSTEMS)
def test_the_same_seed_learns_the_same(key, base, half):
    examples = draw_examples(half.examples.labels.numpy(), 2, 1, seed=0)
    support = half.examples.features[examples].float()
    found = []
    for _ in range(2):
        torch.manual_seed(torch.seed() % 1000)
        teach = learned(SYSTEMS[key], base, 1, RECIPE.model_copy(update={"steps": 3}))
        with torch.no_grad():
            found.append(teach(support, half.columns).scores(half.novel.features.float()))
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))


def test_logistic_regression_is_that_of_autograd_and_torchs_sgd_draw_by_draw(base, half):
    examples = draw_examples(half.examples.labels.numpy(), 3, 2, seed=0)
    support = base.factor * half.examples.features[examples].float()
    start = torch.randn(len(half.columns) + NOVEL, D + 1, generator=torch.Generator().manual_seed(0))
    found = logistic.fit(base, half.columns, support, RECIPE, 5, start)
    batches = logistic.Batches(base, half.columns, NOVEL, 2, RECIPE, 5)
    schedule = logistic.OneCycle(kind="one-cycle", peak=RECIPE.logistic_rate)
    for draw in range(3):
        weights = start.clone().requires_grad_()
        descent = torch.optim.SGD([weights], lr=0.1, momentum=0.9, weight_decay=RECIPE.logistic_decay)
        for step in range(RECIPE.logistic_steps):
            rows, targets, places = batches[step]
            shown = torch.cat([base.take(rows), support[draw].flatten(0, 1)[places]])
            labels = torch.cat([targets, len(half.columns) + places // 2])
            descent.param_groups[0]["lr"] = schedule.rate((step + 0.5) / RECIPE.logistic_steps)
            descent.zero_grad()
            F.cross_entropy(shown @ weights[:, :-1].T + weights[:, -1], labels).backward()
            descent.step()
        torch.testing.assert_close(found[draw], weights.detach(), atol=1e-5, rtol=1e-4)


def test_batches_have_base_and_novel_pictures_in_the_proportion_of_their_categories(base, half):
    batches = logistic.Batches(base, half.columns, NOVEL, 2, RECIPE, 0)
    rows, targets, places = batches[0]
    assert (len(rows), len(places)) == (18, 22)  # 40 · 5 / 11, and the rest
    assert torch.equal(half.columns[targets], base.labels[rows])
    assert places.max() < 2 * NOVEL
    assert not torch.equal(batches[1][0], rows)


def slow_analogies(centres, partners):
    """One pair against one pair after the other."""
    found = set()
    count = centres.shape[1]
    for category, others in enumerate(partners.tolist()):
        for other in others:
            for a, b in permutations(range(count), 2):
                own = centres[category, b] - centres[category, a]
                cosines = {
                    (c, d): F.cosine_similarity(own, centres[other, d] - centres[other, c], dim=0).item()
                    for c, d in permutations(range(count), 2)
                }
                best = max(cosines, key=cosines.get)
                if cosines[best] > 0:
                    found.add((category, a, category, b, other, best[0], other, best[1]))
    return found


def test_analogies_are_those_of_comparing_all_pairs_one_by_one():
    centres = torch.randn(4, 3, 5, generator=torch.Generator().manual_seed(0))
    partners = torch.tensor([[1, 2], [0, 3], [3, 1], [0, 2]])
    found = analogies.find_analogies(centres, partners)
    assert {tuple(one.flatten().tolist()) for one in found} == slow_analogies(centres, partners)
    assert 30 < len(found) <= 4 * 2 * 6
    assert len(analogies.find_analogies(centres[:, :1], partners)) == 0, "one centroid has no differences"


def test_without_analogies_there_is_logistic_regression(base, half):
    support = half.examples.features[draw_examples(half.examples.labels.numpy(), 2, 1, seed=0)].float()
    recipe = RECIPE.model_copy(update={"centroids": 1})
    with torch.no_grad():
        one, other = (
            learned(SYSTEMS[key], base, 1, recipe)(support, half.columns).scores(half.novel.features.float())
            for key in ("logistic-h", "logistic")
        )
    assert torch.equal(one[1], other[1])


def test_partners_are_other_categories():
    partners = analogies._partners(6, 0)
    assert partners.shape == (6, 4)
    for category, others in enumerate(partners.tolist()):
        assert category not in others
        assert len(set(others)) == 4


def test_centroids_are_means_of_their_own_category(base):
    centres = analogies.centroids(base, 3, 0)
    assert centres.shape == (BASE, 3, D)
    own = base.take(torch.arange(len(base.labels)))
    for category in range(BASE):
        members = own[base.labels == category]
        nearest = torch.cdist(members, centres[category]).argmin(1)
        means = torch.stack([members[nearest == one].mean(0) for one in range(3)])
        torch.testing.assert_close(centres[category], means, atol=1e-3, rtol=1e-3)
    assert analogies.centroids(base, 100, 0).shape[1] == 7, "one for four pictures"


def test_the_loss_of_completed_analogies():
    completed, wanted = torch.randn(5, 3), torch.randn(5, 3)
    scores, targets = torch.randn(5, 4), torch.tensor([0, 1, 2, 3, 0])
    entropy = -sum(scores[i].log_softmax(0)[targets[i]] for i in range(5)) / 5
    error = sum((completed[i] - wanted[i]).square().sum() for i in range(5)) / 15
    found = analogies.completion_loss(completed, wanted, scores, targets)
    assert found.item() == pytest.approx((entropy + 10 * error).item(), rel=1e-5)


def test_completion_learns_the_analogies_that_there_are(base):
    centres = analogies.centroids(base, 4, 0)
    found = analogies.find_analogies(centres, analogies._partners(BASE, 0))
    first, second, c, d = (centres[found[:, end, 0], found[:, end, 1]] for end in range(4))
    errors = []
    for steps in (1, 100):
        recipe = RECIPE.model_copy(update={"steps": steps, "network_rate": 0.01})
        complete = analogies.learn_to_complete(base, centres, found, recipe, 0)
        with torch.no_grad():
            errors.append((complete(first, c, d) - second).square().mean())
    assert errors[1] < 0.7 * errors[0]


def test_filling_up_keeps_the_examples_and_starts_from_them():
    torch.manual_seed(0)
    support = torch.rand(2, 3, 2, D)
    changes = torch.rand(5, 2, D)
    filled = analogies.fill_up(
        support, changes, lambda first, c, d: first + 0 * c, 6, torch.Generator().manual_seed(0)
    )
    assert filled.shape == (2, 3, 6, D)
    assert torch.equal(filled[:, :, :2], support)
    for draw in range(2):
        for category in range(3):
            for extra in filled[draw, category, 2:]:
                assert any(torch.equal(extra, one) for one in support[draw, category])
    assert torch.equal(analogies.fill_up(support, changes, None, 2, torch.Generator()), support)
    hallucinated = Hallucinator(D).fill_up(support, 6, torch.Generator().manual_seed(0))
    assert torch.equal(hallucinated[:, :, :2], support)
    nearest = torch.cdist(hallucinated[:, :, 2:], support).amin(-1)
    assert nearest.max() < 0.05, "it starts near the examples"
    assert nearest.min() > 0


def test_changes_are_the_second_halves_of_analogies():
    centres = torch.randn(4, 3, 5, generator=torch.Generator().manual_seed(0))
    found = analogies.find_analogies(centres, torch.tensor([[1, 2], [0, 3], [3, 1], [0, 2]]))
    changes = analogies.Changes(centres, found)
    assert len(changes) == len(found)
    rows = torch.tensor([[7, 0, 3], [1, 1, len(found) - 1]])
    for place, row in zip(
        torch.cartesian_prod(torch.arange(2), torch.arange(3)), rows.flatten(), strict=True
    ):
        (b, first), (same, second) = found[row, 2:].tolist()
        assert b == same
        expected = torch.stack([centres[b, first], centres[b, second]])
        assert torch.equal(changes[rows][tuple(place)], expected)


@pytest.mark.parametrize("key", ["logistic-h", "prototype-matching-h"])
def test_hallucination_is_the_same_however_many_draws_are_in_memory(key, base, half, monkeypatch):
    examples = draw_examples(half.examples.labels.numpy(), 5, 2, seed=0)
    support = half.examples.features[examples].float()
    found = []
    for values in (1 << 25, 2 * NOVEL * RECIPE.fill * D):
        monkeypatch.setattr(system, "SUPPORT_VALUES", values)
        teach = learned(SYSTEMS[key], base, 2)
        with torch.no_grad():
            found.append(teach(support, half.columns).scores(half.novel.features.float()))
            alone = teach(support[:1], half.columns).scores(half.novel.features.float())
    for one, other, first in zip(*found, alone, strict=True):
        torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(one[:, :1], first, atol=1e-4, rtol=1e-4)
    assert system.draws_at_once(support, RECIPE.fill) == 2
    assert system.draws_at_once(support, 1000) == 1


def test_prototypical_scores_are_squared_distances_but_for_a_constant():
    torch.manual_seed(0)
    network = Network(D, 1.7)
    torch.nn.init.normal_(network.embed.second.weight, std=0.1)
    known, novel, queries = torch.randn(1, 4, D), torch.randn(3, 5, D), torch.randn(6, D)
    base_scores, novel_scores = scored(network, known, novel, queries)
    asked = network.embed(queries)
    for number in range(6):
        constant = 1.7 / D * asked[number].square().sum()
        for category in range(4):
            expected = -1.7 / D * (asked[number] - known[0, category]).square().sum() + constant
            torch.testing.assert_close(base_scores[number, 0, category], expected, atol=1e-4, rtol=1e-4)
        for draw in range(3):
            for category in range(5):
                expected = -1.7 / D * (asked[number] - novel[draw, category]).square().sum() + constant
                torch.testing.assert_close(
                    novel_scores[number, draw, category], expected, atol=1e-4, rtol=1e-4
                )


def slow_context(context, query, members):
    """The LSTM with attention, written out for one query and one set."""
    state, read, cell = query, torch.zeros(D), torch.zeros(D)
    for _ in range(context.steps):
        gates = context.gates.weight @ torch.cat([query, state, read]) + context.gates.bias
        into, forget, out, new = gates[:D], gates[D : 2 * D], gates[2 * D : 3 * D], gates[3 * D :]
        cell = torch.sigmoid(forget) * cell + torch.sigmoid(into) * torch.tanh(new)
        state = query + torch.sigmoid(out) * torch.tanh(cell)
        leaning = torch.stack([D**0.5 * F.cosine_similarity(state, one, dim=0) for one in members]).softmax(0)
        read = sum(share * one for share, one in zip(leaning, members, strict=True))
    return state


@pytest.fixture
def context():
    torch.manual_seed(3)
    made = Context(D)
    torch.nn.init.normal_(made.mix.weight, std=0.3)
    torch.nn.init.normal_(made.gates.weight, std=0.3)
    return made


@torch.no_grad()
def test_contextual_embeddings_of_queries_are_those_of_the_lstm_written_out(context):
    members, queries = torch.randn(2, 5, D), torch.randn(4, D)
    found = context.queries(queries, members)
    for draw in range(2):
        for number in range(4):
            expected = slow_context(context, queries[number], members[draw])
            torch.testing.assert_close(found[draw, number], expected, atol=1e-5, rtol=1e-4)


@torch.no_grad()
def test_members_see_each_other_in_no_order(context):
    members = torch.randn(2, 5, D)
    order = torch.tensor([3, 0, 4, 1, 2])
    placed = context.members(members)
    torch.testing.assert_close(context.members(members[:, order]), placed[:, order])
    other = members.clone()
    other[0, 1] += 1
    changed = context.members(other)
    assert not torch.allclose(changed[0, 0], placed[0, 0]), "it matters who else is there"
    assert torch.equal(changed[1], placed[1]), "in another draw it does not"


@torch.no_grad()
def test_an_untrained_context_changes_little():
    network = MatchingNetwork(D)
    members, queries = torch.randn(1, 5, D), torch.randn(3, D)
    found = network.similarities(network.context.members(members), queries)[:, 0]
    torch.testing.assert_close(found, 10 * unit(queries) @ unit(members[0]).T, atol=0.05, rtol=0)


def test_ridge_vectors_solve_the_regression_of_all_examples():
    torch.manual_seed(0)
    examples = unit(torch.randn(2, NOVEL, 3, D))
    moments = torch.randn(40, D)
    regularised = moments.T @ moments + torch.eye(D)
    found = solve(regularised, examples)
    labels = torch.eye(NOVEL).repeat_interleave(3, 0)
    for draw in range(2):
        z = examples[draw].flatten(0, 1)
        expected = torch.linalg.inv(regularised + z.T @ z) @ z.T @ labels
        torch.testing.assert_close(found[draw], expected.T, atol=1e-5, rtol=1e-3)


def test_generators_score_as_the_model_does_with_all_base_categories_in_memory(base, half):
    torch.manual_seed(0)
    head = Head(base.head.classifier, AttentionGenerator(BASE, D, 5.0))
    examples = draw_examples(half.examples.labels.numpy(), 3, 4, seed=0)
    support, queries = half.examples.features[examples].float(), half.novel.features.float()
    with torch.no_grad():
        base_scores, novel_scores = teach_with(head)(support, half.columns).scores(queries)
        expected = head.joint_scores(support, queries.expand(3, -1, -1))
    torch.testing.assert_close(base_scores[:, 0], expected[0][0][:, half.columns], atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(novel_scores, expected[1].transpose(0, 1), atol=1e-4, rtol=1e-4)


def test_generators_learn_from_dropped_out_features_and_go_on_with_the_base_vectors(base):
    seen = []
    plain = replace(base, factor=1.0)
    own = SYSTEMS["average"]
    recipe = RECIPE.model_copy(update={"steps": 2})
    before = base.head.classifier.weight.clone()
    original = torch.nn.functional.cross_entropy

    def keep(scores, *words, **more):
        seen.append(scores.shape)
        return original(scores, *words, **more)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("recollect.training.episodes.F.cross_entropy", keep)
        teach = own.learn(plain, (3,), recipe, 0)
    ways = round(recipe.share * BASE)
    assert seen == [(ways * 3 + ways * 3 // 2, BASE + ways)] * 2
    assert torch.equal(base.head.classifier.weight, before), "stage 1 stays as it was"
    taught = teach(torch.rand(1, 2, 3, D), torch.arange(BASE))
    assert not torch.allclose(unit(taught.base[0]), unit(before))


def test_episodes_hide_the_share_of_base_categories_that_acts_as_novel(base):
    episodes = LargeEpisodes(base, (1, 5), RECIPE.model_copy(update={"share": 250 / 389}), 0)
    tasks = [episodes[step] for step in range(8)]
    assert {task.support.shape[2] for task in tasks} == {1, 5}
    for task in tasks:
        assert task.ways.shape == (1, 5)
        assert not {*task.support.flatten().tolist()} & {*task.novel_queries.flatten().tolist()}
        assert not torch.isin(task.base_targets, task.ways).any()
        assert task.novel_queries.shape[1] == 15
        assert task.base_queries.shape[1] == 7
    assert torch.equal(episodes[3].support, LargeEpisodes(base, (1, 5), RECIPE, 0)[3].support)


def test_networks_see_base_categories_without_the_queries(base):
    tasks = LargeEpisodes(base, (2,), RECIPE, 0)[0]
    shown = show(base, tasks, 0)
    ways = tasks.ways[0]
    assert {*shown.rest.tolist()} == {*range(BASE)} - {*ways.tolist()}
    assert shown.rest_rows.shape == (len(shown.rest), EACH)
    assert torch.equal(base.labels[shown.rest_rows], shown.rest.unsqueeze(1).expand(-1, EACH))
    asked = torch.isin(shown.rest_rows, tasks.base_queries[0])
    assert asked.any()
    assert torch.equal(shown.rest_present, ~asked)
    categories = torch.cat([shown.rest, ways])
    rows = torch.cat([tasks.novel_queries[0], tasks.base_queries[0]])
    assert torch.equal(categories[shown.targets], base.labels[rows])
    assert torch.equal(shown.queries, base.take(rows))
    assert torch.equal(shown.support, base.take(tasks.support[0]))


def test_a_base_prototype_is_the_mean_over_all_training_features(base, monkeypatch):
    monkeypatch.setattr("recollect.methods.lowshot.system._ROWS", 7)
    own = base.take(torch.arange(len(base.labels)))
    expected = torch.stack([(2 * own[base.labels == category]).mean(0) for category in range(BASE)])
    torch.testing.assert_close(base.means(lambda z: 2 * z), expected)
    assert base.factor * root_mean_square(base.features) == pytest.approx(1, rel=1e-3)
    assert own.square().mean().item() == pytest.approx(1, rel=1e-3)


@pytest.mark.parametrize(("adam", "rate"), [(False, "schedule.peak"), (True, "network_rate")])
def test_learning_that_diverges_says_which_rate_to_lower(base, adam, rate):
    layer = torch.nn.Linear(2, 2)
    with pytest.raises(Diverged, match=rf"lower lowshot\.{rate}$"):
        descend(layer, lambda step: layer.weight.sum() * torch.nan, RECIPE, base, 0, adam=adam)


def test_centroids_that_are_almost_equal_have_no_direction():
    generator = torch.Generator().manual_seed(0)
    theirs, own = torch.randn(4, 8, generator=generator), torch.randn(500, 8, generator=generator)
    theirs[1] = theirs[0] + 1e-6
    cosine, ends = analogies._most_alike(own, theirs)
    assert cosine.max() <= 1 + 1e-5
    assert not (ends.sort(dim=1).values == torch.tensor([0, 1])).all(dim=1).any()
