"""Meta-LSTM against a loop written by hand, coordinate by coordinate."""

from math import exp, log

import pytest
import torch
from torch import nn

from recollect.methods import find_method
from recollect.methods.meta_lstm import MetaLearner, preprocessed
from recollect.model.model import Model
from recollect.model.spec import LearnerSpec, ModelSpec, Preprocessing

SPEC = LearnerSpec(ways=2, shots=1, steps=3, training_steps=3)


def sigmoid(x):
    return 1 / (1 + exp(-x))


def tanh(x):
    return 2 * sigmoid(2 * x) - 1


def words(x):
    return [log(abs(x)) / 10, (x > 0) - (x < 0)] if abs(x) >= exp(-10) else [-1, exp(10) * x]


def affine(weight, bias, values):
    return [
        sum(a * b for a, b in zip(row, values, strict=True)) + c for row, c in zip(weight, bias, strict=True)
    ]


class Coordinate:
    """One weight of a network, and the state of both layers for it."""

    def __init__(self, learner, value):
        self.part = {name: values.tolist() for name, values in learner.state_dict().items()}
        self.value, self.forget, self.take = value, 0.0, 0.0
        self.hidden, self.cell = [0.0] * 20, [0.0] * 20

    def step(self, slope, loss):
        part = self.part
        seen = affine(part["lstm.weight_ih"], part["lstm.bias_ih"], [*words(slope), *words(loss)])
        past = affine(part["lstm.weight_hh"], part["lstm.bias_hh"], self.hidden)
        gates = [a + b for a, b in zip(seen, past, strict=True)]
        for k in range(20):
            take, keep, new, show = gates[k], gates[20 + k], gates[40 + k], gates[60 + k]
            self.cell[k] = sigmoid(keep) * self.cell[k] + sigmoid(take) * tanh(new)
            self.hidden[k] = sigmoid(show) * tanh(self.cell[k])
        known = [*self.hidden, slope, self.value]
        (self.forget,) = affine(part["forget.weight"], part["forget.bias"], [*known, self.forget])
        (self.take,) = affine(part["input.weight"], part["input.bias"], [*known, self.take])
        self.value = sigmoid(self.forget) * self.value - sigmoid(self.take) * slope


class Parabola:
    """Two tasks whose loss is (a · x − b)², in place of a network and pictures."""

    queries = None

    def __init__(self, start):
        self.begin = start
        self.a = torch.tensor([[1.0, 2.0, -1.0], [0.5, 1.0, 3.0]], dtype=torch.double)
        self.b = torch.tensor([1.0, -2.0], dtype=torch.double)

    def start(self):
        return {"x": self.begin.expand(2, -1)}

    def support_losses(self, weights):
        losses = ((self.a * weights["x"]).sum(1) - self.b).square()
        return losses, [(losses, losses)]

    def scores(self, weights, pictures, statistics=None):
        return weights["x"], []


@pytest.fixture
def learner():
    torch.manual_seed(0)
    learner = MetaLearner(SPEC, 4).double()
    for parameter in (learner.forget.weight, learner.input.weight, *learner.lstm.parameters()):
        nn.init.normal_(parameter, std=0.5)  # larger than they start, so that everything matters
    return learner


def model_with(learner):
    model = nn.Module()
    model.learner = learner
    return model.train()


def test_the_unrolled_learner_is_the_loop_written_by_hand(learner):
    start = torch.tensor([0.3, -0.2, 1e-6], dtype=torch.double)
    method, problem = find_method("meta-lstm"), Parabola(start)
    found = method.adapted_scores(model_with(learner), problem, 3)
    for task in range(2):
        weights = [Coordinate(learner, value) for value in start.tolist()]
        a, b = problem.a[task].tolist(), problem.b[task].item()
        for _ in range(3):
            rest = sum(p * w.value for p, w in zip(a, weights, strict=True)) - b
            slopes = [2 * rest * p for p in a]
            for weight, slope in zip(weights, slopes, strict=True):
                weight.step(slope, rest**2)
        assert found[task].tolist() == pytest.approx([weight.value for weight in weights], rel=1e-9)


def test_gradients_and_losses_enter_as_data(learner):
    """With fixed slopes, the derivative by the start is the product of the forget gates' parts alone."""
    start = torch.tensor([0.3, -0.2, 0.1], dtype=torch.double, requires_grad=True)
    for linear in (learner.forget, learner.input):
        nn.init.zeros_(linear.weight)  # gates that depend on nothing
    found = find_method("meta-lstm").adapted_scores(model_with(learner), Parabola(start), 3)
    (slope,) = torch.autograd.grad(found[0].sum(), start)
    gate = sigmoid(learner.forget.bias.item())
    assert slope.tolist() == pytest.approx([gate**3] * 3)


def test_small_values_are_preprocessed_linearly():
    values = torch.tensor([1.0, -exp(-5), exp(-11), 0.0], dtype=torch.double)
    expected = [[0.0, 1.0], [-0.5, -1.0], [-1.0, exp(-1)], [-1.0, 0.0]]
    for one, other in zip(preprocessed(values).tolist(), expected, strict=True):
        assert one == pytest.approx(other)
    values.requires_grad_()
    assert torch.autograd.grad(preprocessed(values).sum(), values)[0].isfinite().all()


def test_the_gates_start_as_in_the_paper():
    for seed in range(5):
        torch.manual_seed(seed)
        learner = MetaLearner(SPEC, 4)
        assert 4 <= learner.forget.bias.item() <= 6
        assert -5 <= learner.input.bias.item() <= -4
        assert max(parameter.abs().max() for parameter in learner.lstm.parameters()) <= 0.01


@pytest.fixture
def network():
    torch.manual_seed(0)
    method = find_method("meta-lstm")
    spec = ModelSpec(
        extractor="c32f",
        preprocessing=Preprocessing(size=16),
        categories=("a",),
        learner=SPEC,
        last_relu=True,
    )
    support = torch.randint(0, 256, (2, 2, 1, 16, 16, 3), dtype=torch.uint8)
    queries = torch.randint(0, 256, (2, 6, 16, 16, 3), dtype=torch.uint8)
    return method, Model(spec, learner=method.learner), support, queries


@pytest.mark.slow
def test_queries_of_a_new_task_are_answered_one_by_one_by_statistics_of_its_support(network):
    method, model, support, queries = network
    with torch.inference_mode():
        model.eval()
        all_of_them = method.novel_scores(model, support, queries)
        one = method.novel_scores(model, support, queries[:, 2:3])
        torch.testing.assert_close(all_of_them[:, 2:3], one)
        alone = method.novel_scores(model, support[1:], queries[1:])
        torch.testing.assert_close(all_of_them[1:], alone)
    with torch.no_grad(), torch.enable_grad():
        model.train()
        all_of_them = method.novel_scores(model, support, queries)
        one = method.novel_scores(model, support, queries[:, 2:4])
        assert not torch.allclose(all_of_them[:, 2:4], one), "in training the batch is what counts"


def test_the_whole_network_and_the_meta_learner_are_learned(network):
    method, model, support, queries = network
    method.novel_scores(model.train(), support, queries).logsumexp(-1).sum().backward()
    for name, parameter in [*model.extractor.named_parameters(), *model.learner.named_parameters()]:
        assert parameter.grad is not None, name
        assert parameter.grad.abs().max() > 0, name
    parameter = nn.Parameter(torch.zeros(2))
    parameter.grad = torch.tensor([3.0, 4.0])
    method.adam([parameter]).step()
    assert parameter.grad.norm().item() == pytest.approx(0.25, rel=1e-4)


def test_there_are_more_steps_for_one_shot():
    assert find_method("meta-lstm").usual_steps(1) == (12, 12)
    assert find_method("meta-lstm").usual_steps(5) == (8, 8)
