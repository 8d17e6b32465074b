import pytest
import torch
from torch import nn
from torch.nn import functional as F

from recollect.model.extractors import build_extractor, published_input
from recollect.model.extractors.base import folded

SIZES = {"efficientnet-lite0": 224, "efficientnet-lite1": 240, "efficientnet-lite2": 260}
MILLIONS = {"efficientnet-lite0": 4.65, "efficientnet-lite1": 5.42, "efficientnet-lite2": 6.09}
LAST_LAYER = 1000 * 1280 + 1000  # parameters of the network's own classifier, which is no part of ours
every_one = pytest.mark.parametrize("name", SIZES)


@pytest.fixture(scope="module")
def lite():
    """A network whose batch norm matters, in evaluation mode."""
    torch.manual_seed(0)
    network, _ = build_extractor("efficientnet-lite0", size=64)
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_(std=0.1)
            module.running_var.uniform_(0.5, 2)
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.normal_(module.bias, std=0.3)
    return network.eval()


def pictures(size, count=2):
    return torch.randn(count, 3, size, size, generator=torch.Generator().manual_seed(1))


@every_one
def test_the_networks_have_their_published_sizes(name):
    with torch.device("meta"):
        network, width = build_extractor(name, size=SIZES[name])
    assert width == 1280
    parameters = LAST_LAYER + sum(parameter.numel() for parameter in network.parameters())
    assert round(parameters / 1e6, 2) == MILLIONS[name]
    assert published_input(name).size == SIZES[name]


@pytest.mark.parametrize("size", [1, 33, 64])
def test_any_size_gives_1280_numbers(lite, size):
    with torch.inference_mode():
        features = lite(pictures(size))
    assert features.shape == (2, 1280)
    assert (features >= 0).all()  # the last ReLU is there
    assert (features <= 6).all()


@pytest.mark.parametrize(("size", "before", "after"), [(8, 0, 1), (7, 1, 1)])
def test_odd_and_even_pictures_are_padded_as_the_weights_were_learned(lite, size, before, after):
    stem = lite.stem[0]
    x = pictures(size)
    with torch.inference_mode():
        expected = F.conv2d(F.pad(x, (before, after, before, after)), stem.weight, stride=2)
        assert torch.equal(stem(x), expected)


def test_folded_batch_norm_gives_the_same_features(lite):
    quick = lite.for_inference()
    assert not any(isinstance(module, nn.BatchNorm2d) for module in quick.modules())
    x = pictures(64, 4)
    with torch.inference_mode():
        torch.testing.assert_close(quick(x), lite(x), rtol=1e-4, atol=1e-5)
    assert any(isinstance(module, nn.BatchNorm2d) for module in lite.modules())


def test_folding_serves_any_convolution_that_batch_norm_follows():
    torch.manual_seed(0)
    network, _ = build_extractor("c32f", size=16)
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_()
    x = pictures(16)
    with torch.inference_mode():
        torch.testing.assert_close(folded(network)(x), network.eval()(x), rtol=1e-4, atol=1e-5)
