"""Feature extractors F(x | θ), by name. A new one is a module here whose class calls `register`."""

from recollect.model.extractors.base import Extractor, build_extractor, extractor_names, published_input
from recollect.model.extractors.conv4 import Conv4
from recollect.model.extractors.efficientnet_lite import EfficientNetLite
from recollect.model.extractors.mishra import MishraResNet
from recollect.model.extractors.resnet10 import ResNet10

__all__ = [
    "Conv4",
    "EfficientNetLite",
    "Extractor",
    "MishraResNet",
    "ResNet10",
    "build_extractor",
    "extractor_names",
    "published_input",
]
