"""The backend of an exported folder: onnxruntime and numpy, no torch."""

from pathlib import Path
from typing import Self

import numpy as np
import numpy.typing as npt

from recollect.backends import DAMAGED_MOMENTS, Doubles, Floats, checked_fading, composed
from recollect.backends.exported import EXTRACTOR, GENERATOR, Export, checked_bytes, find_export, read_export
from recollect.errors import ConfigError, ModelError
from recollect.model.spec import RIDGE
from recollect.modelfile import FILE_NAME, read_weights
from recollect.system.sessions import Session


class OnnxBackend:
    """Computes with the graphs of an exported folder, on the CPU."""

    def __init__(self, folder: Path) -> None:
        self.export: Export = read_export(folder)
        graphs = {name: checked_bytes(folder, self.export, name) for name in (EXTRACTOR, GENERATOR)}
        checked_bytes(folder, self.export, FILE_NAME)
        self.header, weights = read_weights(folder / FILE_NAME, extractor=False)
        self.fingerprint = self.export.fingerprint
        self._folder = folder
        self._extractor = Session(graphs[EXTRACTOR], str(folder / EXTRACTOR))
        self._generator_content = graphs[GENERATOR]
        self._generator: Session | None = None
        try:
            width = int(self._extractor.outputs[0].shape[1])
            self.base_vectors: Floats = weights["classifier.weight"].astype(np.float32)
            self.scale = float(weights["classifier.scale"])
            fits = self.base_vectors.shape == (len(self.header.spec.categories), width)
            fading = weights.get("generator.fading")
            self._fading = None if fading is None else checked_fading(float(fading))
            self._moments = weights.get("generator.moments")
        except (LookupError, TypeError, ValueError) as error:
            raise ModelError(
                f"the files of {folder} do not fit each other: export the model again"
            ) from error
        if not fits:
            raise ModelError(f"the files of {folder} do not fit each other: export the model again")
        self._regularised: Doubles | None = None

    @classmethod
    def load(cls, model: str | Path, device: str = "auto") -> Self:
        """Open the exported folder that `model` means."""
        if device not in {"auto", "cpu"}:
            raise ConfigError(
                f"onnxruntime computes on the CPU here, not on '{device}': leave out the device, or use torch"
            )
        folder = find_export(model)
        if folder is None:
            raise ModelError(
                f"{model} is not exported to ONNX: run `recollect export {model} --onnx DIR`, and name DIR"
            )
        return cls(folder)

    def embed(self, pixels: npt.NDArray[np.uint8]) -> Floats:
        """Return the features (n, d) of pixels (n, size, size, 3)."""
        features: Floats
        (features,) = self._extractor.run(["features"], pixels=np.ascontiguousarray(pixels))
        return features

    def generate(self, features: Floats) -> Floats:
        """Return each example's term (n, d), or both parts of it (n, 2d)."""
        terms: Floats
        (terms,) = self._generating().run(["terms"], features=features)
        return terms

    def compose(self, mean: Floats, examples: int) -> Floats:
        """Return the vectors (…, d) of categories with so many examples, from the means of their terms."""
        return composed(mean, examples, self._fading)

    def solve(self, moments: Doubles, sums: Floats) -> Floats:
        """Return the vectors (k, d) of taught categories, for the generator `ridge`."""
        matrix = np.empty(moments.shape, np.float32)
        np.add(self._starting(), moments, out=matrix, casting="same_kind")
        try:
            return np.ascontiguousarray(np.linalg.solve(matrix, sums.T).T)
        except np.linalg.LinAlgError as error:
            raise ModelError(DAMAGED_MOMENTS) from error

    def attend(self, features: Floats) -> Floats | None:
        """Return how much each example leans on each base category (n, k), or `None` without attention."""
        if self.header.spec.generator != "attention":
            return None
        attention: Floats
        (attention,) = self._generating().run(["attention"], features=features)
        return attention

    def weights(self) -> dict[str, npt.NDArray[np.generic]]:
        """Return every weight by its name in a model file."""
        return read_weights(self._folder / FILE_NAME)[1]

    def _generating(self) -> Session:
        """Return the generator, which predictions do not need."""
        if self._generator is None:
            self._generator = Session(self._generator_content, str(self._folder / GENERATOR))
        return self._generator

    def _starting(self) -> Doubles:
        """Return G + λI (d, d), what every solution starts from."""
        if self._regularised is None:
            width = self.base_vectors.shape[1]
            if self._moments is None or self._moments.shape != (width * (width + 1) // 2,):
                raise ModelError(DAMAGED_MOMENTS)
            matrix = np.zeros((width, width))
            matrix[np.triu_indices(width)] = self._moments
            diagonal = matrix.diagonal() + RIDGE
            if not (diagonal > 0).all():
                raise ModelError(DAMAGED_MOMENTS)
            matrix += matrix.T
            np.fill_diagonal(matrix, diagonal)
            self._regularised = matrix
        return self._regularised
