"""The obvious alternative to stage 1: a plain PyTorch loop over one DataLoader that decodes with Pillow.

Run as `python benchmarks/plain.py FOLDER CHANNELS SIZE BATCH WORKERS STEPS` in a process of its own,
without any of Recollect's settings; prints pictures a second.
"""

import random
import sys
import time
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset


class Pictures(Dataset):
    def __init__(self, folder, size):
        self.size = size
        self.files = sorted(Path(folder).glob("*/*"))
        names = sorted({file.parent.name for file in self.files})
        self.labels = [names.index(file.parent.name) for file in self.files]
        self.categories = len(names)

    def __len__(self):
        return len(self.files)

    def __getitem__(self, index):
        picture = ImageOps.expand(Image.open(self.files[index]).convert("RGB"), border=4)
        left, top = random.randint(0, 8), random.randint(0, 8)
        picture = picture.crop((left, top, left + self.size, top + self.size))
        if random.random() < 0.5:
            picture = ImageOps.mirror(picture)
        pixels = torch.from_numpy(np.array(picture)).permute(2, 0, 1).float() / 255
        return (pixels - 0.5) / 0.25, self.labels[index]


def block(inputs, outputs, *, relu=True):
    layers = [nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs)]
    return nn.Sequential(*layers, *([nn.ReLU()] if relu else []), nn.MaxPool2d(2))


def main():
    folder, channels, size, batch, workers, steps = sys.argv[1], *map(int, sys.argv[2:])
    pictures = Pictures(folder, size)
    loader = DataLoader(pictures, batch, shuffle=True, drop_last=True, num_workers=workers)
    extractor = nn.Sequential(
        block(3, channels),
        block(channels, channels),
        block(channels, channels),
        block(channels, channels, relu=False),
        nn.Flatten(),
    )
    width = channels * (size // 16) ** 2
    weight = nn.Parameter(torch.randn(pictures.categories, width) * (2 / width) ** 0.5)
    scale = nn.Parameter(torch.tensor(10.0))
    optimizer = torch.optim.SGD(
        [*extractor.parameters(), weight, scale], 0.01, momentum=0.9, nesterov=True, weight_decay=5e-4
    )

    def batches():
        while True:
            yield from loader

    for step, (pixels, targets) in enumerate(batches()):
        if step == 3:
            began = time.perf_counter()
        if step == 3 + steps:
            break
        optimizer.zero_grad()
        scores = scale * F.normalize(extractor(pixels)) @ F.normalize(weight).T
        F.cross_entropy(scores, targets).backward()
        optimizer.step()
    print(steps * batch / (time.perf_counter() - began))


if __name__ == "__main__":
    main()
