"""MAML against an explicit loop over tasks and plain torch modules, and against finite differences."""

import copy
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from colours import SETTINGS, SPLIT, write_colours
from recollect.data.catalogue import load_data
from recollect.errors import DataError
from recollect.methods import find_method
from recollect.methods.task_network import convolve
from recollect.model.model import Model
from recollect.model.spec import LearnerSpec, ModelSpec, Preprocessing
from recollect.training.config import make_config, read_preset

TASKS, WAYS, SHOTS, QUERIES, STEPS = 2, 3, 2, 2, 2


def problem(name, *, size=32, learn_rates=False, seed=0, last_relu=True):
    """Return a method, an untrained model of double precision, and the pixels of some tasks."""
    method = find_method(name)
    torch.manual_seed(seed)
    learner = LearnerSpec(
        ways=WAYS, shots=SHOTS, steps=STEPS, training_steps=STEPS, rate=0.3, learn_rates=learn_rates
    )
    preprocessing = Preprocessing(size=size)
    spec = ModelSpec(
        extractor="c32f",
        last_relu=last_relu,
        preprocessing=preprocessing,
        categories=("a", "b"),
        learner=learner,
    )
    model = Model(spec, learner=method.learner).double()
    for block in model.extractor.blocks:  # weights and biases of batch norm that matter
        nn.init.uniform_(block[1].weight, 0.5, 1.5)
        nn.init.normal_(block[1].bias, std=0.3)
    support = torch.randint(0, 256, (TASKS, WAYS, SHOTS, size, size, 3), dtype=torch.uint8)
    queries = torch.randint(0, 256, (TASKS, WAYS * QUERIES, size, size, 3), dtype=torch.uint8)
    return method, model, support, queries


def loss_of(scores):
    targets = torch.arange(WAYS).repeat_interleave(QUERIES).repeat(TASKS)
    return F.cross_entropy(scores.flatten(0, 1), targets)


def slowly(model, support, queries, *, second_order, head_alone=False):
    """Return the scores of queries by a loop over tasks and torch's own layers."""

    def network(weights, pixels):
        x = ((pixels - model.mean) / model.std).permute(0, 3, 1, 2)
        for block in range(4):
            own = [weights[f"extractor.blocks.{block}.{part}"] for part in ("0.weight", "1.weight", "1.bias")]
            x = F.conv2d(x, own[0], padding=1)
            x = F.batch_norm(x, None, None, own[1], own[2], training=True)
            x = F.max_pool2d(x, 2)
            x = F.relu(x) if block < 3 or model.spec.last_relu else x
        return F.linear(x.flatten(1), weights["learner.head.weight"], weights["learner.head.bias"])

    found = []
    for task in range(len(support)):
        weights = {
            name: weight
            for name, weight in model.named_parameters()
            if name.startswith(("extractor.", "learner.head"))
        }
        rates = dict(zip(weights, model.learner.rates, strict=True))
        for _ in range(STEPS):
            loss = F.cross_entropy(
                network(weights, support[task].flatten(0, 1)), torch.arange(WAYS).repeat_interleave(SHOTS)
            )
            moving = [name for name in weights if not head_alone or "head" in name]
            slopes = torch.autograd.grad(loss, [weights[name] for name in moving], create_graph=second_order)
            weights = weights | {
                name: weights[name] - rates[name] * slope for name, slope in zip(moving, slopes, strict=True)
            }
        found.append(network(weights, queries[task]))
    return torch.stack(found)


def gradients(model, scores):
    learned = [*model.extractor.parameters(), *model.learner.parameters()]
    return torch.autograd.grad(loss_of(scores), learned)


@pytest.mark.parametrize("last_relu", [True, False])
@pytest.mark.parametrize(
    ("name", "how"),
    [
        ("maml", {"second_order": True}),
        ("fomaml", {"second_order": False}),
        ("anil", {"second_order": True, "head_alone": True}),
    ],
)
def test_scores_and_meta_gradients_are_those_of_a_loop_over_tasks(name, how, last_relu):
    method, model, support, queries = problem(name, learn_rates=True, last_relu=last_relu)
    ours = method.novel_scores(model.train(), support, queries)
    theirs = slowly(model, support, queries, **how)
    torch.testing.assert_close(ours, theirs)
    for one, other in zip(gradients(model, ours), gradients(model, theirs), strict=True):
        assert other.abs().max() > 0
        torch.testing.assert_close(one, other)
    torch.testing.assert_close(method.novel_scores(model.eval(), support, queries), theirs)


def test_a_run_may_begin_with_the_first_order():
    method, model, support, queries = problem("maml", size=16)
    config = make_config({}, {"data": "x"}, {"meta.first_order": "0.5"})
    expected = {
        order: gradients(model, slowly(model.train(), support, queries, second_order=order))[0]
        for order in (True, False)
    }
    for share, order in ((0.0, False), (0.49, False), (0.5, True), (0.9, True)):
        method.prepare(model, config, share)
        found = gradients(model, method.novel_scores(model, support, queries))[0]
        torch.testing.assert_close(found, expected[order])
    find_method("fomaml").prepare(model, config, 0.9)
    assert not model.learner.second_order


def test_the_meta_gradient_is_that_of_finite_differences():
    method, model, support, queries = problem("maml", size=16, learn_rates=True, seed=1)
    model.train()
    learned = [*model.extractor.parameters(), *model.learner.parameters()]
    found = gradients(model, method.novel_scores(model, support, queries))
    for seed in range(3):
        torch.manual_seed(seed)
        way = [torch.randn_like(parameter) for parameter in learned]
        losses = []
        for sign in (1, -1):
            moved = copy.deepcopy(model)
            places = [*moved.extractor.parameters(), *moved.learner.parameters()]
            with torch.no_grad():
                for place, step in zip(places, way, strict=True):
                    place.add_(step, alpha=sign * 1e-7)
            losses.append(loss_of(method.novel_scores(moved, support, queries)).item())
        slope = sum((one * other).sum().item() for one, other in zip(found, way, strict=True))
        assert slope == pytest.approx((losses[0] - losses[1]) / 2e-7, rel=1e-4)
    first, *_ = gradients(model, find_method("fomaml").novel_scores(model, support, queries))
    assert not torch.allclose(first, found[0], rtol=0.01), "the second order changes something"


@pytest.mark.parametrize("size", [4, 12])  # as matrix products, and task by task
def test_a_convolution_of_many_tasks_is_exact_in_any_order(size):
    torch.manual_seed(0)
    x = torch.randn(2, 2, 3, size, size, dtype=torch.double, requires_grad=True)
    weight = torch.randn(2, 4, 3, 3, 3, dtype=torch.double, requires_grad=True)

    def many(x, weight):
        return torch.vmap(convolve)(x, weight)

    one = torch.stack([F.conv2d(a, b, padding=1) for a, b in zip(x, weight, strict=True)])
    torch.testing.assert_close(many(x, weight), one)
    if size == 4:
        assert torch.autograd.gradcheck(many, (x, weight), fast_mode=True)
    assert torch.autograd.gradgradcheck(many, (x, weight), fast_mode=True)


def test_permuting_the_ways_permutes_the_answers_where_all_outputs_start_alike():
    method, model, support, queries = problem("maml", size=16)
    model.eval()
    order = torch.tensor([2, 0, 1])
    with torch.no_grad():
        one, other = (method.novel_scores(model, some, queries) for some in (support, support[:, order]))
        assert not torch.allclose(one[..., order], other), "each output has a start of its own"
        nn.init.zeros_(model.learner.head.weight)
        nn.init.zeros_(model.learner.head.bias)
        one, other = (method.novel_scores(model, some, queries) for some in (support, support[:, order]))
    torch.testing.assert_close(one[..., order], other)
    assert not torch.allclose(one, other)


def test_a_task_is_answered_alike_in_any_company_and_its_queries_together():
    method, model, support, queries = problem("maml", size=16)
    model.eval()
    with torch.inference_mode():
        many = method.novel_scores(model, support.repeat(4, 1, 1, 1, 1, 1), queries.repeat(4, 1, 1, 1, 1))
        alone = method.novel_scores(model, support[1:], queries[1:])
        some = method.novel_scores(model, support[1:], queries[1:, :4])
    for place in range(1, 8, 2):
        torch.testing.assert_close(many[place], alone[0])
    assert not torch.allclose(some, alone[:, :4]), "batch norm takes the statistics of all queries"


def test_a_new_task_takes_the_steps_that_the_model_says():
    method, model, support, queries = problem("maml", size=16)
    taken = []

    class Counting(type(method)):
        def adapted_scores(self, model, adaptation, steps):
            taken.append(steps)
            return super().adapted_scores(model, adaptation, steps)

    spec = model.learner.spec.model_copy(update={"steps": 4, "training_steps": 1})
    model.learner.spec = spec
    for mode in (True, False):
        Counting().novel_scores(model.train(mode), support, queries)
    assert taken == [1, 4]


def test_rates_are_learned_only_where_they_are_asked_for():
    for asked in (True, False):
        _, model, _, _ = problem("maml", size=16, learn_rates=asked)
        names = {name for name, _ in model.learner.named_parameters()}
        assert names == {"head.weight", "head.bias"} | ({"rates"} if asked else set())
        assert ("rates" in model.learner.state_dict()) == asked


def test_the_published_recipe_is_what_the_settings_say_nothing_of():
    method = find_method("maml")
    assert method.usual_steps(1) == (5, 10)
    assert method.rate == 1e-3
    parameter = nn.Parameter(torch.zeros(2))
    parameter.grad = torch.tensor([25.0, -3.0])
    adam = method.adam([parameter])
    adam.step()
    assert parameter.grad.tolist() == [10.0, -3.0]


def test_a_head_may_start_at_zero(tmp_path):
    split = load_data(str(write_colours(tmp_path / "pictures")), size=16, split=SPLIT)
    for asked in (True, False):
        settings = {**SETTINGS, "shots": "1", "meta.zero_head": str(asked).lower(), "device": "cpu"}
        config = find_method("maml").settled(make_config({}, {"data": "x"}, settings))
        head = find_method("maml").stage(config, split).model.learner.head
        assert asked == (not head.weight.any() and not head.bias.any())


def test_the_published_recipe_departs_from_nothing_and_ours_says_in_what():
    method = find_method("maml")
    published = make_config(read_preset("paper-maml"), {"data": "x"})
    assert method.departures(published) == ""
    assert published.stage1.pad == 0
    assert not published.stage1.flip
    changes = {
        "meta.inner_steps": ("3", "3 inner steps in training and 10 on new tasks (5 and 10)"),
        "meta.test_steps": ("4", "5 inner steps in training and 4 on"),
        "meta.inner_rate": ("0.1", "inner learning rate 0.1 (0.01)"),
        "meta.learn_rates": ("true", "learned for every weight tensor (fixed)"),
        "meta.first_order": ("0.25", "first order for the first 25 % of training (never)"),
        "meta.zero_head": ("true", "zero-initialised head (random)"),
        "meta.schedule": ("one-cycle", "annealed from 0.001 to 0 (constant 0.001)"),
        "episodic.queries": ("5", "5 queries of each category (15)"),
        "meta.rate": ("0.01", "Adam's learning rate 0.01 (0.001)"),
        "stage1.pad": ("8", "random shifts (none)"),
        "stage1.flip": ("true", "random flips (none)"),
    }
    for name, (value, words) in changes.items():
        found = method.departures(make_config(read_preset("paper-maml"), {"data": "x"}, {name: value}))
        assert found.startswith("MAML (published values in brackets): ")
        assert words in found
        assert found.count(";") == 0


@pytest.mark.parametrize("name", ["maml", "maml-started"])
def test_pictures_that_are_decoded_on_the_fly_are_refused_before_anything_is_learned(name):
    images = SimpleNamespace(on_the_fly=True)
    with pytest.raises(DataError, match="raise --cache-gb"):
        find_method(name).see(None, images)
    config = make_config({}, {"data": "x", "extractor": "c32f"})
    for some in ((None, images), (images, SimpleNamespace(on_the_fly=False))):
        with pytest.raises(DataError, match="raise --cache-gb"):
            find_method(name).check(config, SimpleNamespace(evaluated=lambda part, some=some: some))
