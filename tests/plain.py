"""A backend of plain numpy, for tests that need many recognisers, or some in processes without torch."""

import hashlib

import numpy as np

from pictures import pixels_of
from recollect.model.spec import ModelSpec, Preprocessing
from recollect.modelfile import Header

SIZE, WIDTH = 4, 6


class PlainBackend:
    """Features are a random projection of the pixels; each is its own term."""

    def __init__(self, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        self.header = Header(
            spec=ModelSpec(
                extractor="plain",
                generator="mean",
                preprocessing=Preprocessing(size=SIZE),
                categories=("lion", "zebra", "Straße"),
            )
        )
        self._projection = rng.standard_normal((SIZE * SIZE * 3, WIDTH)).astype(np.float32)
        self.base_vectors = rng.standard_normal((3, WIDTH)).astype(np.float32)
        self.scale = 7.0
        self.fingerprint = hashlib.sha256(self._projection.tobytes()).hexdigest()

    def embed(self, pixels):
        return (pixels.reshape(len(pixels), -1) / np.float32(255)) @ self._projection

    def generate(self, features):
        return features

    def compose(self, mean, examples):
        return mean

    def attend(self, features):
        return None

    def weights(self):
        return {"projection": self._projection}


PROBES = [pixels_of(1000 + number) for number in range(3)]


def pictures(*seeds):
    return [pixels_of(seed) for seed in seeds]


def names_of(recognizer):
    return [category.name for category in recognizer.categories()]


def same(one, other):
    return all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))
