"""The optimiser: SGD where nothing else is asked for, orthogonal steps of convolutions with Muon."""

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from recollect.training.optimizer import Descent, orthogonal


def network():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(32, 5)
    )


def learn(net, optimizer, steps=4, rate=0.1):
    for step in range(steps):
        torch.manual_seed(step)
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.zero_grad()
        net(torch.randn(6, 3, 4, 4)).square().sum().backward()
        optimizer.step()
    return net.state_dict()


def descent(net, muon):
    return Descent(net.parameters(), momentum=0.9, weight_decay=5e-4, muon=muon)


def test_without_muon_it_is_sgd_to_the_bit():
    ours, theirs = network(), network()
    sgd = torch.optim.SGD(theirs.parameters(), lr=0.1, momentum=0.9, nesterov=True, weight_decay=5e-4)
    found, expected = learn(ours, descent(ours, 0.0)), learn(theirs, sgd)
    assert all(torch.equal(found[name], expected[name]) for name in expected)


@given(st.integers(1, 24), st.integers(1, 24), st.integers(0, 99))
def test_orthogonal_keeps_directions_and_makes_them_equally_long(rows, columns, seed):
    left, _ = torch.linalg.qr(torch.randn(rows, rows, generator=torch.Generator().manual_seed(seed)))
    right, _ = torch.linalg.qr(torch.randn(columns, columns, generator=torch.Generator().manual_seed(seed)))
    least = min(rows, columns)
    lengths = torch.logspace(0, -1, least)
    found = left[:, :least].T @ orthogonal(left[:, :least] * lengths @ right[:least]) @ right[:least].T
    assert (found - found.diag().diag()).abs().max() < 1e-3
    assert found.diag().min() > 0.5
    assert found.diag().max() < 1.5


def test_muon_changes_every_direction_of_a_convolution_by_the_same_share():
    net = network()
    optimizer = descent(net, muon=0.5)
    learn(net, optimizer, steps=1)
    before = net[0].weight.detach().clone()
    learn(net, optimizer, steps=1)
    filters = before * (8**0.5 / before.norm())
    moved = torch.linalg.svdvals((net[0].weight.detach() - filters).flatten(1))
    assert moved.min() > 0.5 * 0.5 * 0.1
    assert moved.max() < 1.5 * 0.5 * 0.1


def test_muon_does_not_depend_on_the_scale_of_the_loss():
    small, large = network(), network()
    optimizers = [descent(net, muon=0.5) for net in (small, large)]
    for net, optimizer, scale in zip((small, large), optimizers, (1, 64), strict=True):
        optimizer.param_groups[0]["lr"] = 0.1
        (scale * net(torch.ones(6, 3, 4, 4).cumsum(3)).square().sum()).backward()
        optimizer.step()
    torch.testing.assert_close(small[0].weight, large[0].weight)
    assert not torch.allclose(small[4].weight, large[4].weight), "the rest is SGD"
