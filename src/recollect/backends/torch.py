"""The torch backend."""

from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from recollect.backends import Floats
from recollect.model.model import Model
from recollect.modelfile import load_model


class TorchBackend:
    """Computes with a model in evaluation mode."""

    def __init__(self, model: Model) -> None:
        self._model = model.eval()
        self.spec = model.spec
        self.base_vectors: Floats = model.classifier.weight.detach().cpu().numpy().copy()
        self.scale = float(model.classifier.scale.detach())

    @classmethod
    def load(cls, path: str | Path) -> "TorchBackend":
        """Read a model file or a run folder."""
        return cls(load_model(path))

    @torch.inference_mode()
    def embed(self, pixels: npt.NDArray[np.uint8]) -> Floats:
        """Return the features (n, d) of pixels (n, size, size, 3)."""
        features: Floats = self._model.embed(torch.from_numpy(pixels)).numpy()
        return features

    @torch.inference_mode()
    def generate(self, features: Floats) -> Floats:
        """Return each example's term (n, d)."""
        terms: Floats = self._model.terms(torch.from_numpy(features)).numpy()
        return terms
