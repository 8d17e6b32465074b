"""The blocks in C against torch's layers: the same maps, statistics and gradients."""

import copy
import os
from pathlib import Path

import pytest
import torch
from torch import nn

from recollect.model.extractors import blocks, build_extractor
from recollect.system import compiled

pytestmark = pytest.mark.skipif(not blocks.available(), reason="the blocks cannot be compiled here")
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
        close(blocks._known(block)(x), copy.deepcopy(block).double()(x.double()))


@pytest.mark.slow
def test_a_processor_with_shorter_vectors_computes_the_same(monkeypatch):
    """Where vectors are long, those of other processors are tried too.

    Which products and sums the compiler fuses depends on the vectors. Without fusing, the bits are the same.
    """
    cases = [(make_block(*pair, relu=True), torch.randn(5, pair[0], 21, 13)) for pair in CHANNELS]
    found = []
    compiler = os.environ.get("CC", "cc")
    for options in (" -ffp-contract=off", " -ffp-contract=off -mno-avx512f"):
        monkeypatch.setattr(compiled, "_libraries", {})
        monkeypatch.setenv("CC", compiler + options)
        if not blocks.available():
            pytest.skip("the compiler has no option for shorter vectors")
        values = []
        for block, pictures in copy.deepcopy(cases):
            x = pictures.requires_grad_(pictures.shape[1] != 3)
            values.append(blocks.learning(block, x))
            values[-1].sin().sum().backward()
            values += [one.grad for one in (x, *block.parameters()) if one.grad is not None]
            with torch.no_grad():
                values.append(blocks._known(block.eval())(x))
        found.append((Path(compiled.library(blocks._SOURCE)._name).read_bytes(), values))
    (long, expected), (short, values) = found
    if short == long:
        pytest.skip("the vectors of this processor are not longer")
    assert all(torch.equal(value, other) for value, other in zip(values, expected, strict=True))


@pytest.mark.parametrize("count", [1, 2, 3, 20, 130])
def test_any_number_of_pictures(count):
    block = make_block(16, 16, relu=True)
    x = torch.randn(count, 16, 5, 6)
    exact = copy.deepcopy(block).double()(x.double())
    close(blocks.learning(block, x), exact)


@pytest.mark.parametrize("threads", [2, 3, 16])
@pytest.mark.parametrize("channels", [(3, 32), (32, 32)], ids=["colours", "maps"])
def test_threads_share_pictures(channels, threads):
    torch.set_num_threads(threads)
    block, x = make_block(*channels, relu=True), torch.randn(7, channels[0], 12, 12)
    reference = copy.deepcopy(block).double()
    expected = reference(x.double())
    weights = torch.randn_like(expected) * decided(copy.deepcopy(reference)[:2](x.double()))
    (expected * weights).sum().backward()
    (blocks.learning(block, x) * weights.float()).sum().backward()
    for found, value in zip(block.parameters(), reference.parameters(), strict=True):
        close(found.grad, value.grad)
    with torch.no_grad():
        close(blocks._known(block.eval())(x), reference.eval()(x.double()))


def test_the_same_call_gives_the_same_bits():
    torch.set_num_threads(2)
    x = torch.randn(9, 3, 20, 20)
    grads = []
    for _ in range(2):
        block = make_block(3, 32, relu=True)
        blocks.learning(block, x).sin().sum().backward()
        grads.append([parameter.grad.clone() for parameter in block.parameters()])
    assert all(torch.equal(one, same) for one, same in zip(*grads, strict=True))


@pytest.fixture
def calls(monkeypatch):
    """Return the functions of `blocks.c` that are called."""
    found = []
    call = blocks._call
    monkeypatch.setattr(blocks, "_call", lambda name, *words: found.append(name) or call(name, *words))
    return found


def learns_in_c(extractor, x, calls):
    calls.clear()
    extractor.train()(x)
    return bool(calls)


@pytest.mark.parametrize("name", ["c32f", "c64f", "c128f"])
def test_extractors_of_the_paper_learn_and_extract_in_c(name, calls):
    extractor, _ = build_extractor(name, size=21)
    x = torch.randn(4, 3, 21, 21)
    expected = copy.deepcopy(extractor).double().train()(x.double())  # double precision is torch's
    assert not calls
    close(copy.deepcopy(extractor).train()(x), expected)
    assert calls == ["convolution", "pooling"] * 4
    calls.clear()
    extractor.eval()
    with torch.no_grad():
        close(extractor.for_extraction()(x), copy.deepcopy(extractor).double()(x.double()))
    assert calls == ["block"] * 4


def test_what_only_torch_can_do_is_left_to_torch(calls):
    extractor, _ = build_extractor("c32f", size=16)
    x = torch.randn(4, 3, 16, 16)
    assert learns_in_c(extractor, x, calls)
    assert not learns_in_c(extractor, x.clone().requires_grad_(), calls)
    assert not learns_in_c(copy.deepcopy(extractor).double(), x.double(), calls)
    assert not learns_in_c(copy.deepcopy(extractor).to("meta"), x.to("meta"), calls)
    with torch.autocast("cpu", torch.bfloat16):
        assert not learns_in_c(extractor, x, calls)

    def loss(weights):
        buffers = {name: buffer.clone() for name, buffer in extractor.named_buffers()}
        return torch.func.functional_call(extractor, {**weights, **buffers}, (x,)).sum()

    calls.clear()
    gradients = torch.func.grad(loss)(dict(extractor.named_parameters()))
    assert gradients["blocks.0.0.weight"].shape == (32, 3, 3, 3)
    assert not calls
    extractor.train()
    for block in extractor.blocks:
        block[1].eval()  # frozen statistics
    calls.clear()
    extractor(x)
    assert not calls


@pytest.mark.parametrize("shape", [(2, 4, 16, 16), (2, 1, 16, 16), (2, 3, 8, 8), (2, 3, 4, 4), (3, 16, 16)])
def test_pictures_that_torch_refuses_are_refused(shape):
    extractor, _ = build_extractor("c32f", size=16)
    with pytest.raises((RuntimeError, ValueError)):
        extractor.train()(torch.randn(shape))
    with pytest.raises((RuntimeError, ValueError)), torch.no_grad():
        extractor.eval().for_extraction()(torch.randn(shape))


def test_other_kinds_of_numbers_are_extracted_by_torch(calls):
    extractor, _ = build_extractor("c32f", size=16)
    x = torch.randn(2, 3, 16, 16, dtype=torch.double)
    with pytest.raises(RuntimeError), torch.no_grad():
        extractor.eval().for_extraction()(x)
    exact = copy.deepcopy(extractor).double()
    with torch.no_grad():
        assert torch.equal(exact.for_extraction()(x), exact(x))
    assert not calls


def test_defaults_of_torch_do_not_reach_c():
    block, x = make_block(16, 16, relu=True), torch.randn(2, 16, 6, 6)
    expected = blocks.learning(copy.deepcopy(block), x)
    blocks._transform.cache_clear()
    try:
        torch.set_default_dtype(torch.bfloat16)
        with torch.device("meta"):
            found = blocks.learning(copy.deepcopy(block), x)
    finally:
        torch.set_default_dtype(torch.float32)
    assert torch.equal(found, expected)


def test_memory_of_another_kind_never_reaches_c():
    for wrong in (torch.zeros(4, device="meta"), torch.zeros(4, 4).T, torch.zeros(4, dtype=torch.half)):
        with pytest.raises(ValueError, match="dense tensors on the CPU"):
            blocks._call("pooling", wrong)


@pytest.mark.parametrize("relu", [True, False])
@pytest.mark.parametrize("place", [(2, 2), (2, 3), (3, 2), (3, 3)])
@pytest.mark.parametrize("inputs", [3, 16])
def test_what_is_not_a_number_stays_so(inputs, relu, place):
    """As in torch, so that a damaged model is noticed."""
    block, x = make_block(inputs, 16, relu=relu), torch.randn(1, inputs, 8, 8)
    x[0, 1, *place] = torch.nan
    with torch.no_grad():
        found, expected = (compute(x).isnan() for compute in (blocks._known(block.eval()), block))
    assert (found >= expected).all()
    assert expected.any()
    if inputs == 3:  # Winograd's tiles are not a number as a whole
        assert torch.equal(found, expected)
    assert blocks.learning(block.train(), x).isnan().all()


def test_features_may_be_changed_in_place():
    extractor, _ = build_extractor("c32f", size=16)
    features = extractor.train()(torch.randn(4, 3, 16, 16))
    features.mul_(2).sum().backward()


def test_second_derivatives_are_refused_and_not_wrong():
    block = make_block(3, 16, relu=True)
    loss = blocks.learning(block, torch.randn(2, 3, 8, 8)).square().sum()
    (gradient,) = torch.autograd.grad(loss, [block[0].weight], create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()


def test_without_a_compiler_torch_does_everything(monkeypatch, calls):
    extractor, _ = build_extractor("c32f", size=16)
    x = torch.randn(4, 3, 16, 16)
    learned, extracted = copy.deepcopy(extractor).train()(x), extractor.eval().for_extraction()(x)
    monkeypatch.setattr(blocks, "_functions", lambda: None)
    assert not blocks.available()
    assert not learns_in_c(copy.deepcopy(extractor), x, calls)
    torch.testing.assert_close(copy.deepcopy(extractor).train()(x), learned, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(extractor.eval().for_extraction()(x), extracted, rtol=1e-4, atol=1e-4)
    assert not calls


def test_processes_that_compute_together_compute_alike(monkeypatch, calls):
    extractor, _ = build_extractor("c32f", size=16)
    monkeypatch.setattr(blocks, "_left_to_torch", [])
    blocks.leave_to_torch()
    assert not learns_in_c(extractor, torch.randn(4, 3, 16, 16), calls)
