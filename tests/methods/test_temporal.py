"""Temporal convolutions against a loop over one sequence for each query, and their causality."""

import pytest
import torch
from torch.nn import functional as F

from recollect.methods import find_method
from recollect.methods.temporal import Attention, DenseBlock, TemporalNetwork
from recollect.model.spec import LearnerSpec

SPEC = LearnerSpec(ways=3, shots=2)
WIDTH = 6


@pytest.fixture
def network():
    torch.manual_seed(0)
    return TemporalNetwork(SPEC, WIDTH).double()


def task(ways=3, shots=2, queries=4):
    torch.manual_seed(1)
    examples = torch.randn(2, ways * shots, WIDTH, dtype=torch.double)
    asked = torch.randn(2, queries, WIDTH, dtype=torch.double)
    return examples, torch.arange(ways).repeat(shots), asked


def read_slowly(network, sequence):
    """Return what every element of a sequence (t, c) becomes in every layer, an element at a time."""
    states = [list(sequence)]
    for layer in network.layers:
        before, after = states[-1], []
        for place, element in enumerate(before):
            if isinstance(layer, DenseBlock):
                new = layer.own(element)
                if place >= layer.dilation:
                    new = new + layer.earlier(before[place - layer.dilation])
                added = torch.tanh(new[:128]) * torch.sigmoid(new[128:])
            else:
                ask = layer.asks(element)
                leaning = torch.stack([ask @ layer.keys(one) for one in before[: place + 1]])
                share = torch.softmax(leaning / len(ask) ** 0.5, 0)
                added = sum(a * layer.values(one) for a, one in zip(share, before[: place + 1], strict=True))
            after.append(torch.cat([element, added]))
        states.append(after)
    return states


def labelled(examples, labels, ways=3):
    return torch.cat([examples, F.one_hot(labels, ways).double()], -1)


def test_scores_are_those_of_one_sequence_for_each_query(network):
    examples, labels, asked = task()
    found = network(examples, labels, asked)
    for number in range(2):
        for place in range(4):
            last = F.pad(network.embed(asked[number, place]), (0, 3))
            sequence = torch.cat([labelled(network.embed(examples[number]), labels), last[None]])
            expected = network.out(read_slowly(network, sequence)[-1][-1])
            torch.testing.assert_close(found[number, place], expected)


def test_the_layers_are_those_of_the_paper(network):
    assert (network.embed.in_features, network.embed.out_features) == (WIDTH, 64)
    assert [type(layer).__name__[0] for layer in network.layers] == [*"ADDDADDDA"]  # 7 elements: 1, 2 and 4
    assert [layer.dilation for layer in network.layers if isinstance(layer, DenseBlock)] == [1, 2, 4] * 2
    sizes = [
        (layer.keys.out_features, layer.values.out_features)
        for layer in network.layers
        if isinstance(layer, Attention)
    ]
    assert sizes == [(64, 32), (256, 128), (512, 256)]


@pytest.mark.parametrize("changed", range(6))
def test_changing_an_element_changes_no_earlier_one_and_every_query(network, changed):
    examples, labels, asked = task()
    other = examples.clone()
    other[:, changed] += 1

    def read(x):
        x, q = labelled(network.embed(x), labels.expand(2, -1)), F.pad(network.embed(asked), (0, 3))
        for layer in network.layers:
            x, q = layer(x, q)
        return x, q

    (one, answers), (two, others) = read(examples), read(other)
    assert torch.equal(one[:, :changed], two[:, :changed])
    assert not torch.equal(one[:, changed], two[:, changed])
    assert (answers != others).any(-1).all()


def test_no_query_sees_another_or_its_label(network):
    examples, labels, asked = task()
    found = network(examples, labels, asked)
    other = asked.clone()
    other[:, 1] += 1
    changed = (network(examples, labels, other) != found).any(-1)
    assert changed.tolist() == [[False, True, False, False]] * 2
    order = torch.tensor([2, 0, 3, 1])  # the label of a query is its place
    torch.testing.assert_close(network(examples, labels, asked[:, order]), found[:, order])


@pytest.mark.parametrize(("ways", "shots"), [(2, 1), (3, 1), (2, 2)])
def test_tasks_may_have_fewer_ways_and_shots_than_in_training(network, ways, shots):
    method = find_method("temporal")
    model = torch.nn.Module()
    model.learner = network
    support = torch.randn(2, ways, shots, WIDTH, dtype=torch.double)
    scores = method.novel_scores(model.eval(), support, torch.randn(2, 5, WIDTH, dtype=torch.double))
    assert scores.shape == (2, 5, ways)
    assert torch.equal(scores, scores.clone())


def test_examples_come_in_any_order_in_training_and_always_the_same_after(network, monkeypatch):
    method = find_method("temporal")
    model = torch.nn.Module()
    model.learner = network
    support = torch.randn(1, 3, 2, WIDTH, dtype=torch.double)
    asked = torch.randn(1, 1, WIDTH, dtype=torch.double)
    seen = []

    def forward(examples, labels, queries):
        for place, label in enumerate(labels):  # every example keeps its label
            assert any(torch.equal(examples[0, place], one) for one in support[0, label])
        seen.append(labels.tolist())
        return queries.new_zeros(1, 1, 3)

    monkeypatch.setattr(network, "forward", forward)
    for mode in (True, True, True, False, False):
        method.novel_scores(model.train(mode), support, asked)
    assert seen[3] == seen[4] == [0, 1, 2, 0, 1, 2]
    assert len({tuple(labels) for labels in seen[:3]}) > 1
