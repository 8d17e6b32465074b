from collections import Counter
from itertools import pairwise

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from recollect.errors import ModelError
from recollect.model.extractors import build_extractor, extractor_names

# Section 2 of the specification: d at 84×84 and at 32×32, and the smallest picture.
WIDTHS = {
    "c32f": (800, 128, 16),
    "c64f": (1600, 256, 16),
    "c128f": (3200, 512, 16),
    "resnet": (512, 512, 16),
    "resnet10": (512, 512, 1),
}
PLANES = {"c32f": (3, 32, 32, 32, 32), "c64f": (3, 64, 64, 64, 64), "c128f": (3, 64, 64, 128, 128)}
every_extractor = pytest.mark.parametrize("name", sorted(WIDTHS))


def build(name, size=32, *, last_relu=False, seed=0):
    torch.manual_seed(seed)
    return build_extractor(name, last_relu=last_relu, size=size)


def unsettled(extractor):
    """Give batch norm statistics and weights that matter, as after training."""
    for module in extractor.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_(std=0.3)
            module.running_var.uniform_(0.5, 2)
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.normal_(module.bias, std=0.3)
        elif isinstance(module, nn.Conv2d) and module.bias is not None:
            nn.init.normal_(module.bias, std=0.1)
    return extractor.eval()


def pictures(count=2, size=32, seed=1):
    return torch.randn(count, 3, size, size, generator=torch.Generator().manual_seed(seed))


def test_the_registry_holds_the_papers_extractors_and_those_with_published_weights():
    assert extractor_names() == sorted([*WIDTHS, *(f"efficientnet-lite{number}" for number in range(3))])


@every_extractor
@pytest.mark.parametrize("which", [0, 1], ids=["84", "32"])
def test_feature_size_is_the_specifications(name, which):
    size = (84, 32)[which]
    extractor, width = build(name, size)
    assert width == WIDTHS[name][which]
    with torch.inference_mode():
        features = extractor.eval()(pictures(1, size))
    assert features.shape == (1, width)
    assert features.dtype == torch.float32


@every_extractor
@pytest.mark.parametrize("size", [28, 37])
def test_feature_size_foretells_the_features_at_other_sizes(name, size):
    extractor, width = build(name, size)
    with torch.inference_mode():
        assert extractor.eval()(pictures(2, size)).shape == (2, width)


def test_resnet10_takes_pictures_of_224():
    extractor, width = build("resnet10", 224)
    with torch.inference_mode():
        stem = extractor.stem(pictures(1, 224))
        assert stem.shape == (1, 64, 56, 56)
        assert extractor.stages(stem).shape == (1, width, 7, 7)


@every_extractor
def test_a_picture_too_small_is_an_error_that_names_the_size_needed(name):
    smallest = WIDTHS[name][2]
    with pytest.raises(ModelError, match=rf"{smallest - 1}×{smallest - 1}.*'{name}'.*--size {smallest} "):
        build(name, smallest - 1)
    extractor, width = build(name, smallest)
    with torch.inference_mode():
        assert extractor.eval()(pictures(2, smallest)).shape == (2, width)


def test_an_unknown_extractor_is_an_error_that_names_the_known_ones():
    with pytest.raises(ModelError, match=r"'c31f'.*c32f.*resnet10"):
        build("c31f")


@every_extractor
def test_convolutions_start_normal_with_variance_two_over_their_fan_out(name):
    extractor, _ = build(name, 84)
    for module in extractor.modules():
        if isinstance(module, nn.Conv2d):
            weight = module.weight.detach()
            variance = 2 / (module.kernel_size[0] ** 2 * module.out_channels)
            spread = 5 * (2 / weight.numel()) ** 0.5  # five standard errors of a variance
            assert weight.var().item() == pytest.approx(variance, rel=spread)
            assert weight.mean().abs().item() < 5 * (variance / weight.numel()) ** 0.5
            if module.bias is not None:
                assert (module.bias == 0).all()
        elif isinstance(module, nn.BatchNorm2d):
            assert (module.weight == 1).all()
            assert (module.bias == 0).all()


def specified_convolutions(name):
    """Every convolution of section 2 as (in, out, kernel, stride, has bias)."""
    if name in PLANES:
        planes = PLANES[name]
        return [(a, b, 3, 1, False) for a, b in pairwise(planes)]
    if name == "resnet":
        found = [(3, 64, 3, 1, True), (256, 384, 1, 1, True), (384, 512, 1, 1, True)]
        for a, b in ((64, 64), (64, 96), (96, 128), (128, 256)):
            found += [(a, b, 3, 1, False), (b, b, 3, 1, False), (b, b, 3, 1, False), (a, b, 1, 1, True)]
        return found
    found = [(3, 64, 7, 2, False), (64, 64, 3, 1, False), (64, 64, 3, 1, False)]
    for a, b in ((64, 128), (128, 256), (256, 512)):
        found += [(a, b, 3, 2, False), (b, b, 3, 1, False), (a, b, 1, 2, False)]
    return found


@every_extractor
def test_convolutions_and_their_biases_are_the_specifications(name):
    extractor, _ = build(name)
    found = [
        (m.in_channels, m.out_channels, m.kernel_size[0], m.stride[0], m.bias is not None)
        for m in extractor.modules()
        if isinstance(m, nn.Conv2d)
    ]
    assert Counter(found) == Counter(specified_convolutions(name))


def normed(x, bn):
    shape = (1, -1, 1, 1)
    scaled = (x - bn.running_mean.view(shape)) / (bn.running_var.view(shape) + bn.eps).sqrt()
    return scaled * bn.weight.view(shape) + bn.bias.view(shape)


def convolved(x, conv):
    padding = {1: 0, 3: 1, 7: 3}[conv.kernel_size[0]]
    return F.conv2d(x, conv.weight.contiguous(), conv.bias, stride=conv.stride, padding=padding)


def reference_features(name, extractor, x, *, last_relu):
    """Section 2, layer by layer in the order of its words, in evaluation mode."""
    convs = (m for m in extractor.modules() if isinstance(m, nn.Conv2d))
    norms = (m for m in extractor.modules() if isinstance(m, nn.BatchNorm2d))
    if name in PLANES:
        for block in range(4):
            x = normed(convolved(x, next(convs)), next(norms))
            if block < 3 or last_relu:
                x = F.relu(x)
            x = F.max_pool2d(x, 2)
        return x.flatten(1)
    if name == "resnet":
        x = convolved(x, next(convs))
        for _ in range(4):
            branch = x
            for _ in range(3):
                branch = convolved(F.leaky_relu(normed(branch, next(norms)), 0.1), next(convs))
            x = F.max_pool2d(branch + convolved(x, next(convs)), 2)
        x = x.mean((2, 3), keepdim=True)
        x = convolved(F.relu(normed(x, next(norms))), next(convs))
        x = convolved(F.relu(normed(x, next(norms))), next(convs))
        x = normed(x, next(norms))
        return (F.relu(x) if last_relu else x).flatten(1)
    x = F.max_pool2d(F.relu(normed(convolved(x, next(convs)), next(norms))), 3, stride=2, padding=1)
    for stage in range(4):
        branch = F.relu(normed(convolved(x, next(convs)), next(norms)))
        branch = normed(convolved(branch, next(convs)), next(norms))
        x = branch + (x if stage == 0 else normed(convolved(x, next(convs)), next(norms)))
        if stage < 3 or last_relu:
            x = F.relu(x)
    return x.mean((2, 3))


@every_extractor
@pytest.mark.parametrize("last_relu", [False, True])
def test_features_are_those_of_the_specified_layers(name, last_relu):
    extractor = unsettled(build(name, last_relu=last_relu)[0])
    x = pictures()
    with torch.no_grad():
        found = extractor(x)
        expected = reference_features(name, extractor, x, last_relu=last_relu)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


@every_extractor
def test_the_last_relu_is_absent_unless_asked_for(name):
    plain, clipped = (unsettled(build(name, last_relu=relu)[0]) for relu in (False, True))
    with torch.inference_mode():
        x = pictures(4)
        assert (plain(x) < 0).any()
        assert (clipped(x) >= 0).all()
        assert (clipped(x) > 0).any()


@every_extractor
def test_evaluation_mode_is_deterministic_and_per_picture(name):
    extractor = unsettled(build(name)[0])
    x = pictures(4)
    with torch.inference_mode():
        features = extractor(x)
        assert torch.equal(extractor(x), features)
        torch.testing.assert_close(extractor(x[1:2]), features[1:2], rtol=1e-4, atol=1e-4)


@every_extractor
def test_the_same_seed_gives_the_same_weights(name):
    first, again, other = (build(name, seed=seed)[0].state_dict() for seed in (3, 3, 4))
    assert all(torch.equal(first[key], again[key]) for key in first)
    assert not all(torch.equal(first[key], other[key]) for key in first)


@every_extractor
def test_freezing_stops_learning_and_batch_statistics_but_not_dropout(name):
    extractor, _ = build(name)
    extractor.train()
    extractor.freeze()
    assert not any(parameter.requires_grad for parameter in extractor.parameters())
    before = {key: value.clone() for key, value in extractor.state_dict().items()}
    x = pictures(4)
    with torch.no_grad():
        first, second = extractor(x), extractor(x)
    assert all(torch.equal(before[key], value) for key, value in extractor.state_dict().items())
    assert not any(m.training for m in extractor.modules() if isinstance(m, nn.BatchNorm2d))
    if name == "resnet":
        assert not torch.equal(first, second)
        assert ((first == 0).float().mean().item()) == pytest.approx(0.5, abs=0.06)
    else:
        assert torch.equal(first, second)


def test_dropout_of_a_frozen_resnet_is_seeded():
    extractor, _ = build("resnet")
    extractor.freeze()
    with torch.no_grad():
        torch.manual_seed(5)
        first = extractor(pictures())
        torch.manual_seed(5)
        assert torch.equal(extractor(pictures()), first)


@every_extractor
def test_memory_order_of_the_input_changes_nothing(name):
    extractor = unsettled(build(name)[0])
    x = pictures()
    with torch.inference_mode():
        torch.testing.assert_close(
            extractor(x.contiguous(memory_format=torch.channels_last)), extractor(x), rtol=1e-4, atol=1e-4
        )


@every_extractor
def test_every_parameter_gets_a_gradient_in_training(name):
    extractor, _ = build(name)
    extractor.train()
    extractor(pictures(4)).square().sum().backward()
    for parameter_name, parameter in extractor.named_parameters():
        assert parameter.grad is not None, parameter_name
        assert parameter.grad.isfinite().all(), parameter_name
