"""ResNet-10, the extractor of the ImageNet low-shot benchmark."""

from torch import Tensor, nn
from torch.nn import functional as F

from recollect.model.extractors.base import Extractor, register


class _BasicBlock(nn.Module):
    """Two 3×3 convs with batch norm and a shortcut; the ReLU after the addition is optional."""

    def __init__(self, inputs: int, outputs: int, *, stride: int, final_relu: bool) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(inplace=True),
            nn.Conv2d(outputs, outputs, 3, padding=1, bias=False),
            nn.BatchNorm2d(outputs),
        )
        self.shortcut = (
            nn.Identity()
            if stride == 1 and inputs == outputs
            else nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False), nn.BatchNorm2d(outputs)
            )
        )
        self.final_relu = final_relu

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.body(x) + self.shortcut(x)
        return F.relu(out) if self.final_relu else out


class ResNet10(Extractor):
    """7×7/2 conv to 64, BN, ReLU, 3×3/2 max-pool, one basic block per stage, global average; d = 512."""

    learns_in_bfloat16 = True

    def __init__(self, *, last_relu: bool) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False),
            nn.BatchNorm2d(64),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, stride=2, padding=1),
        )
        self.stages = nn.Sequential(
            _BasicBlock(64, 64, stride=1, final_relu=True),
            _BasicBlock(64, 128, stride=2, final_relu=True),
            _BasicBlock(128, 256, stride=2, final_relu=True),
            _BasicBlock(256, 512, stride=2, final_relu=last_relu),
        )

    def feature_size(self, size: int) -> int:
        """Return 512: padding keeps a pixel at any size."""
        return 512 if size >= 1 else 0

    def forward(self, x: Tensor) -> Tensor:
        """Return the features (n, 512)."""
        features: Tensor = self.stages(self.stem(x))
        return features.mean(dim=(2, 3))


register("resnet10", lambda last_relu: ResNet10(last_relu=last_relu))
