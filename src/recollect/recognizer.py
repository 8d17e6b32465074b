"""What people hold: a recogniser that is taught categories while it is used."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, overload

import numpy as np

from recollect.backends import Backend, Floats
from recollect.errors import RecollectError
from recollect.images import Picture, are_many, read_batch

Origin = Literal["base", "novel"]


@dataclass(frozen=True)
class Prediction:
    """One answer: a category, how probable it is, and whether it was learned (base) or taught (novel)."""

    category: str
    probability: float
    origin: Origin


class Recognizer:
    """A model and the categories it has been taught since; teaching never changes what it knew.

    Base and taught scores are two products over two matrices, so base scores stay bit-identical however
    much is taught, and forgetting a category restores every score.
    """

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._base_vectors = self._view(backend.base_vectors)
        self._taught: dict[str, Floats] = {}  # terms (examples, d) by category

    @classmethod
    def load(cls, model: str | Path) -> "Recognizer":
        """Load a model file or a run folder."""
        from recollect.backends.torch import TorchBackend

        return cls(TorchBackend.load(model))

    def categories(self) -> list[str]:
        """Return the names of all categories: base ones first, then taught ones in the order of teaching."""
        return [*self._backend.spec.categories, *self._taught]

    def teach(self, name: str, pictures: Picture | Sequence[Picture]) -> None:
        """Add a category from one or a few pictures, or more pictures to a category taught before."""
        if not name.strip():
            raise RecollectError("a category needs a name that is not empty")
        if name in self._backend.spec.categories:
            raise RecollectError(f"'{name}' is a base category already: choose another name")
        terms = self._backend.generate(self._embed(pictures))
        before = self._taught.get(name)
        self._taught[name] = terms if before is None else np.concatenate([before, terms])

    def forget(self, name: str) -> None:
        """Remove a taught category."""
        if name in self._backend.spec.categories:
            raise RecollectError(f"'{name}' is a base category: only taught ones can be forgotten")
        if name not in self._taught:
            known = ", ".join(self._taught) or "none"
            raise RecollectError(f"no category called '{name}' was taught; taught are: {known}")
        del self._taught[name]

    def scores(self, pictures: Picture | Sequence[Picture]) -> tuple[Floats, Floats]:
        """Return the raw scores of pictures over base (n, k) and over taught categories (n, taught)."""
        features = self._view(self._embed(pictures))
        scale = np.float32(self._backend.scale)
        base: Floats = scale * (features @ self._base_vectors.T)
        novel: Floats = scale * (features @ self._novel_vectors().T)
        return base, novel

    @overload
    def predict(  # type: ignore[overload-overlap]  # a path is a sequence of strings to the type checker
        self, pictures: Picture, top: int = 5
    ) -> list[Prediction]: ...
    @overload
    def predict(self, pictures: Sequence[Picture], top: int = 5) -> list[list[Prediction]]: ...
    def predict(
        self, pictures: Picture | Sequence[Picture], top: int = 5
    ) -> list[Prediction] | list[list[Prediction]]:
        """Return the `top` most probable categories of a picture, or a list of them for each of many."""
        scores = np.concatenate(self.scores(pictures), axis=1)
        probabilities = np.exp(scores - scores.max(axis=1, keepdims=True))
        probabilities /= probabilities.sum(axis=1, keepdims=True)
        names, base = self.categories(), len(self._backend.spec.categories)
        answers = [
            [
                Prediction(names[k], float(row[k]), "base" if k < base else "novel")
                for k in np.argsort(-row, kind="stable")[:top]
            ]
            for row in probabilities
        ]
        return answers if are_many(pictures) else answers[0]

    def _embed(self, pictures: Picture | Sequence[Picture]) -> Floats:
        prepare = self._backend.spec.preprocessing
        return self._backend.embed(read_batch(pictures, prepare.size, prepare.short_side))

    def _novel_vectors(self) -> Floats:
        means = [terms.mean(axis=0) for terms in self._taught.values()]
        return self._view(np.array(means, dtype=np.float32).reshape(-1, self._base_vectors.shape[1]))

    def _view(self, vectors: Floats) -> Floats:
        """Return vectors as the classifier sees them: of unit length for cosine."""
        if self._backend.spec.classifier == "dot":
            return vectors
        norms = np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), np.float32(1e-12))
        unit: Floats = vectors / norms
        return unit
