"""The paper's ResNet: the authors' variant of the extractor of Mishra et al."""

from torch import Tensor, nn

from recollect.model.extractors.base import Extractor, register

PLANES = (64, 96, 128, 256)


class _Block(nn.Module):
    """(BN, leaky ReLU, 3×3 conv) three times, plus a 1×1-conv skip."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for planes in (inputs, outputs, outputs):
            layers += [
                nn.BatchNorm2d(planes),
                nn.LeakyReLU(0.1),
                nn.Conv2d(planes, outputs, 3, padding=1, bias=False),
            ]
        self.body = nn.Sequential(*layers)
        self.skip = nn.Conv2d(inputs, outputs, 1)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.skip(x) + self.body(x)
        return out


class MishraResNet(Extractor):
    """3×3 conv to 64, four residual blocks with pooling, global average, two 1×1 convs; d = 512."""

    learns_in_bfloat16 = True

    def __init__(self, *, last_relu: bool) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.Conv2d(3, PLANES[0], 3, padding=1)]
        for inputs, outputs in zip((PLANES[0], *PLANES[:-1]), PLANES, strict=True):
            layers += [_Block(inputs, outputs), nn.MaxPool2d(2)]
        self.body = nn.Sequential(*layers)
        head: list[nn.Module] = [
            nn.AdaptiveAvgPool2d(1),
            nn.BatchNorm2d(PLANES[-1]),
            nn.ReLU(),
            nn.Conv2d(PLANES[-1], 384, 1),
            nn.Dropout(0.5),
            nn.BatchNorm2d(384),
            nn.ReLU(),
            nn.Conv2d(384, 512, 1),
            nn.BatchNorm2d(512),
        ]
        if last_relu:
            head.append(nn.ReLU())
        head.append(nn.Dropout(0.5))
        self.head = nn.Sequential(*head)

    def feature_size(self, size: int) -> int:
        """Return 512 wherever four poolings leave a pixel."""
        return 512 if size >= 16 else 0

    def freeze(self) -> None:
        """Stop learning; dropout stays active in stage 2, as in the authors' runs."""
        super().freeze()
        for module in self.modules():
            if isinstance(module, nn.Dropout):
                module.train()

    def forward(self, x: Tensor) -> Tensor:
        """Return the features (n, 512)."""
        features: Tensor = self.head(self.body(x))
        return features.flatten(1)


register("resnet", lambda last_relu: MishraResNet(last_relu=last_relu))
