"""The torch backend."""

import os
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from recollect.backends import DAMAGED_MOMENTS, Doubles, Floats, checked_fading, composed
from recollect.errors import ModelError
from recollect.model.generator import AttentionGenerator, RidgeGenerator
from recollect.model.model import Model
from recollect.modelfile import PAPER, Header, digest_of, load_model, read_header, weights_of
from recollect.system.forks import undisturbed
from recollect.system.machine import asked_threads, find_device

_processes = {os.getpid()}  # this one, and forks of it that compute with one thread


class TorchBackend:
    """Computes with a model in evaluation mode, on one device."""

    def __init__(self, model: Model, header: Header | None = None, device: str = "cpu") -> None:
        self.device = find_device(device)
        self.model = model.eval().to(self.device)
        self._extractor = model.extractor.for_inference()
        self.header = header or Header(spec=model.spec)
        self.fingerprint = digest_of(model.spec, self.weights())
        self.base_vectors: Floats = model.classifier.weight.detach().cpu().numpy().copy()
        self.scale = float(model.classifier.scale.detach())
        generator = model.generator
        self._regularised: Doubles | None = None  # what every solution starts from
        self._fading: float | None = None
        if isinstance(generator, AttentionGenerator) and generator.fading is not None:
            self._fading = checked_fading(float(generator.fading.detach()))
        if isinstance(generator, RidgeGenerator):
            self._regularised = generator.regularised().cpu().numpy()

    @classmethod
    def load(cls, path: str | Path, extractor: str | None = None, device: str = "auto") -> "TorchBackend":
        """Read a model; if its extractor is your own code, you must name it again."""
        if (threads := asked_threads()) is not None:  # before torch was loaded, perhaps
            torch.set_num_threads(threads)
        header = read_header(path)
        if header.method != PAPER:
            raise ModelError(
                f"{path} is a model of the method {header.method}, which is there for comparison: "
                "only `recollect evaluate` can use it"
            )
        return cls(load_model(path, extractor), header, device)

    @undisturbed()
    @torch.inference_mode()
    def embed(self, pixels: npt.NDArray[np.uint8]) -> Floats:
        """Return the features (n, d) of pixels (n, size, size, 3)."""
        features: Floats = self.model.embed(self._tensor(pixels), self._extractor).cpu().numpy()
        return features

    @undisturbed()
    @torch.inference_mode()
    def generate(self, features: Floats) -> Floats:
        """Return each example's term (n, d), or both parts of it (n, 2d)."""
        terms: Floats = self.model.terms(self._tensor(features)).cpu().numpy()
        return terms

    def compose(self, mean: Floats, examples: int) -> Floats:
        """Return the vectors (…, d) of categories with so many examples, from the means of their terms."""
        return composed(mean, examples, self._fading)

    @undisturbed()
    @torch.inference_mode()
    def solve(self, moments: Doubles, sums: Floats) -> Floats:
        """Return the vectors (k, d) of taught categories, for the generator `ridge`."""
        if self._regularised is None:
            raise ValueError(f"the generator '{self.model.spec.generator}' takes means")
        matrix = np.empty(moments.shape, np.float32)
        np.add(self._regularised, moments, out=matrix, casting="same_kind")
        factor, failed = torch.linalg.cholesky_ex(self._tensor(matrix))
        if failed:
            raise ModelError(DAMAGED_MOMENTS)
        # From the right, where rows stay rows, this is a quarter faster than `torch.cholesky_solve`.
        half = torch.linalg.solve_triangular(factor.mT, self._tensor(sums), upper=True, left=False)
        vectors: Floats = torch.linalg.solve_triangular(factor, half, upper=False, left=False).cpu().numpy()
        return vectors

    @undisturbed()
    @torch.inference_mode()
    def attend(self, features: Floats) -> Floats | None:
        """Return how much each example leans on each base category (n, k), or `None` without attention."""
        generator = self.model.generator
        if not isinstance(generator, AttentionGenerator):
            return None
        seen = self.model.classifier.view(self._tensor(features))
        leaning: Floats = generator.attend(seen).cpu().numpy()
        return leaning

    def weights(self) -> dict[str, npt.NDArray[np.generic]]:
        """Return every weight by its name in a model file."""
        return weights_of(self.model)

    def _tensor(self, values: npt.NDArray[np.generic]) -> torch.Tensor:
        if os.getpid() not in _processes:
            # A fork leaves torch's other threads behind, and would wait for them for ever.
            torch.set_num_threads(1)
            _processes.add(os.getpid())
        return torch.from_numpy(values).to(self.device)
