"""The blocks in C against torch's layers: the same maps, statistics and gradients."""

import copy
import shutil

import pytest
import torch
from torch import nn

from recollect.model.extractors import blocks, build_extractor

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")
CHANNELS = [(3, 16), (3, 64), (16, 16), (32, 32), (16, 48), (64, 32)]
# Even and odd, one tile and many, and all remainders of a tile.
SIZES = [(2, 2), (3, 5), (4, 4), (6, 7), (9, 8), (10, 10), (21, 13), (42, 42)]


def make_block(inputs, outputs, *, relu, seed=0):
    torch.manual_seed(seed)
    layers = [nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.MaxPool2d(2)]
    block = nn.Sequential(*layers, *([nn.ReLU()] if relu else []))
    # Of either sign: where γ is negative, the largest value after batch norm is the smallest before.
    nn.init.normal_(block[1].weight)
    nn.init.normal_(block[1].bias)
    block[1].running_mean.normal_()
    block[1].running_var.uniform_(0.5, 2)
    return block


def close(found, expected, tolerance=2e-5):
    expected = expected.double()
    difference = (found.double() - expected).norm() / expected.norm().clamp_min(1e-3)
    assert difference.item() < tolerance


def decided(y):
    """Return where rounding decides neither which of four values is largest nor whether ReLU passes it."""
    four = torch.nn.functional.unfold(y.flatten(0, 1).unsqueeze(1), 2, stride=2).unflatten(0, y.shape[:2])
    first, second = four.topk(2, dim=2).values.unbind(2)
    shape = (*y.shape[:2], y.shape[2] // 2, y.shape[3] // 2)
    return ((first - second > 1e-4) & (first.abs() > 1e-4)).view(shape)


@pytest.mark.parametrize("relu", [True, False])
@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
@pytest.mark.parametrize("channels", CHANNELS, ids=lambda pair: f"{pair[0]}-{pair[1]}")
def test_a_block_that_learns_is_the_one_of_torch(channels, size, relu):
    block = make_block(*channels, relu=relu)
    reference = copy.deepcopy(block).double()
    x = torch.randn(5, channels[0], *size)
    inner, exact = (values.requires_grad_(channels[0] != 3) for values in (x.clone(), x.double()))
    z = blocks.learning(block, inner)
    expected = reference(exact)
    weights = torch.randn_like(expected) * decided(copy.deepcopy(reference)[:2](exact.detach()))
    (z * weights.float()).sum().backward()
    (expected * weights).sum().backward()
    close(z, expected)
    for found, value in zip(block.state_dict().values(), reference.state_dict().values(), strict=True):
        close(found, value)
    for found, value in zip(block.parameters(), reference.parameters(), strict=True):
        close(found.grad, value.grad)
    if channels[0] != 3:
        close(inner.grad, exact.grad)


@pytest.mark.parametrize("relu", [True, False])
@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
@pytest.mark.parametrize("channels", CHANNELS, ids=lambda pair: f"{pair[0]}-{pair[1]}")
def test_a_known_block_is_the_one_of_torch(channels, size, relu):
    block = make_block(*channels, relu=relu).eval()
    x = torch.randn(5, channels[0], *size)
    with torch.no_grad():
        close(blocks.known(block)(x), copy.deepcopy(block).double()(x.double()))


@pytest.mark.parametrize("count", [1, 2, 3, 20, 130])
def test_any_number_of_pictures(count):
    block = make_block(16, 16, relu=True)
    x = torch.randn(count, 16, 5, 6)
    exact = copy.deepcopy(block).double()(x.double())
    close(blocks.learning(block, x), exact)


def test_threads_share_pictures_and_agree():
    x = torch.randn(7, 32, 12, 12)
    found = []
    for threads in (1, 3, 16):
        torch.set_num_threads(threads)
        block, inner = make_block(32, 32, relu=True), x.clone().requires_grad_()
        blocks.learning(block, inner).square().sum().backward()
        found.append([inner.grad, *(parameter.grad for parameter in block.parameters())])
    torch.set_num_threads(1)
    for other in found[1:]:
        for one, same in zip(found[0], other, strict=True):
            close(one, same)


def test_the_same_call_gives_the_same_bits():
    torch.set_num_threads(2)
    x = torch.randn(9, 3, 20, 20)
    grads = []
    for _ in range(2):
        block = make_block(3, 32, relu=True)
        blocks.learning(block, x).sin().sum().backward()
        grads.append([parameter.grad.clone() for parameter in block.parameters()])
    torch.set_num_threads(1)
    assert all(torch.equal(one, same) for one, same in zip(*grads, strict=True))


def in_c(extractor, x, monkeypatch):
    """Return whether an extractor in training takes the blocks in C."""
    taken = []
    learning = blocks.learning
    monkeypatch.setattr(blocks, "learning", lambda *words: taken.append(1) or learning(*words))
    extractor.train()(x)
    return bool(taken)


@pytest.mark.parametrize("name", ["c32f", "c64f", "c128f"])
def test_extractors_of_the_paper_learn_and_extract_in_c(name, monkeypatch):
    extractor, _ = build_extractor(name, size=21)
    x = torch.randn(4, 3, 21, 21)
    reference = copy.deepcopy(extractor).double().train()
    expected = reference(x.double())  # double precision is torch's
    assert in_c(extractor, x, monkeypatch)
    close(copy.deepcopy(extractor).train()(x), expected)
    extractor.eval()
    with torch.no_grad():
        close(extractor.for_extraction()(x), copy.deepcopy(extractor).double()(x.double()))


def test_what_only_torch_can_do_is_left_to_torch(monkeypatch):
    extractor, _ = build_extractor("c32f", size=16)
    x = torch.randn(4, 3, 16, 16)
    assert in_c(extractor, x, monkeypatch)
    assert not in_c(extractor, x.clone().requires_grad_(), monkeypatch)
    assert not in_c(copy.deepcopy(extractor).double(), x.double(), monkeypatch)
    assert not in_c(copy.deepcopy(extractor).to("meta"), x.to("meta"), monkeypatch)


def test_second_derivatives_are_refused_and_not_wrong():
    block = make_block(3, 16, relu=True)
    loss = blocks.learning(block, torch.randn(2, 3, 8, 8)).square().sum()
    (gradient,) = torch.autograd.grad(loss, [block[0].weight], create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()


def test_without_a_compiler_torch_does_everything(monkeypatch):
    extractor, _ = build_extractor("c32f", size=16)
    x = torch.randn(4, 3, 16, 16)
    expected = copy.deepcopy(extractor).train()(x)
    monkeypatch.setattr(blocks, "_functions", lambda: None)
    assert not in_c(extractor, x, monkeypatch)
    torch.testing.assert_close(copy.deepcopy(extractor).train()(x), expected, rtol=1e-4, atol=1e-4)
    assert extractor.for_extraction() is extractor
